//! Segments of which older views need only a part: the rest of their pages is given back.
//!
//! A program that keeps a small part of each large message keeps the segment of each. zIO puts the bytes of
//! views that were least recently used in place once a second (§3.1.7); here nothing is copied and no view
//! changes. References to a segment are views, calls in progress and open ends. If all of them are views, and
//! the blocks of all these are locked, then nobody can look at the segment or come to refer to it, and the
//! pages that no view needs can be taken out of the middle of it:
//!
//! ```text
//!   segment   |  0  |  1  |  2  |  3  |  4  |  5  |  6  |  7  |
//!   views                    ◄──── a ────►                         at any byte offset
//!                                   ◄─ b ─►
//!   after     | free     |  2  |  3  |  4  |        free       |
//! ```
//!
//! First every registered block is looked at, a few at a time, and what its views need is added up for each
//! segment; then those are chosen that were used longest ago, as far as the waste is more than the bound
//! allows. What was found is only a hint: who is to lose pages is looked at again under the locks.
//!
//! Everything here is done by the handler thread in a round of upkeep, waits for no lock, and holds no
//! reference from one step to the next.

use crate::arena::pages::ARENA;
use crate::arena::segment::Segment;
use crate::range::block::{BlockRef, Flag, Locked};
use crate::range::directory;
use crate::range::foreign::FOREIGN;
use crate::range::heap::HEAP;
use crate::service::shared;
use crate::state::{counters, limits};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::bounds::Kept;
use uncopy_core::stats::Counter;

/// Segments looked at in one round; where there are more, others are next.
const MAX_SEGMENTS: usize = 16_384;
/// Blocks whose views one segment may have.
const MAX_BLOCKS: usize = 16;
/// Segments that are not older than this are left alone, rounds.
const AGE: u32 = 1;
/// Blocks passed over, and views looked at, in one step.
const STEP_BLOCKS: usize = 512;
const STEP_VIEWS: usize = 64;
/// Segments that lose pages in one step.
const STEP_SEGMENTS: usize = 8;

/// What is known of one segment.
#[derive(Default)]
struct Usage {
    pages: u32,
    used_at: u32,
    kept: Kept,
    /// Addresses of the blocks that have views of it, or its open end.
    blocks: SmallVec<[usize; 2]>,
}

impl Usage {
    fn waste_bytes(&self) -> usize {
        (self.pages - self.kept.pages().min(self.pages)) as usize * PAGE_BYTES
    }
}

/// One look at all segments. Numbers only: a child that inherits it needs nothing of it.
pub(crate) struct Compaction {
    segments: BTreeMap<u32, Usage>,
    /// Where the look goes on: class and number of a block.
    next: (usize, u32),
    /// Segments to lose pages, the first one last.
    chosen: Vec<u32>,
    /// What is wasted and what may be, bytes.
    waste_bytes: usize,
    /// Whether there is more than may be, all of it too young.
    is_early: bool,
}

impl Compaction {
    /// Nothing looked at.
    pub(crate) const fn new() -> Self {
        Self { segments: BTreeMap::new(), next: (0, 0), chosen: Vec::new(), waste_bytes: 0, is_early: false }
    }

    /// Begins a look.
    pub(crate) fn begin(&mut self) {
        *self = Self::new();
    }

    /// Looks at some blocks. True: that was the last of them.
    pub(crate) fn look(&mut self) -> bool {
        let mut views = 0;
        for _ in 0..STEP_BLOCKS {
            let (class, index) = self.next;
            match HEAP.nth(class, index) {
                Some(at) => {
                    self.next.1 += 1;
                    views += self.look_at(at);
                }
                None if class + 1 < uncopy_core::classes::CLASSES => self.next = (class + 1, 0),
                None => {
                    FOREIGN.for_each_range(|at| {
                        self.look_at(at);
                    });
                    return true;
                }
            }
            if views >= STEP_VIEWS {
                break;
            }
        }
        false
    }

    /// Looks at the views of one block, unless another thread holds it. Returns how much work that was.
    pub(crate) fn look_at(&mut self, at: BlockRef) -> usize {
        if !at.block.has(Flag::REGISTERED) {
            return 0;
        }
        let Some(mut locked) = at.try_lock() else { return 1 };
        shared::put_old_in_place(&mut locked);
        let mut views = 1;
        for_each_reference(&locked, |segment, range| {
            views += 1;
            self.add(at.base, segment, range);
        });
        views
    }

    fn add(&mut self, base: usize, segment: &Segment, range: (usize, usize)) {
        let Some(key) = segment.first_page() else { return };
        let is_full = self.segments.len() >= MAX_SEGMENTS;
        if segment.pages() < 2 || (is_full && !self.segments.contains_key(&key)) {
            return;
        }
        let usage = self.segments.entry(key).or_default();
        usage.pages = segment.pages();
        usage.used_at = segment.used_at();
        usage.kept.add(range.0, range.1);
        if usage.blocks.last() != Some(&base) {
            usage.blocks.push(base);
        }
    }

    /// Chooses what is to lose pages, once all has been looked at.
    pub(crate) fn choose(&mut self) {
        let max_bytes = limits::max_waste_bytes();
        self.waste_bytes = self.segments.values().map(Usage::waste_bytes).sum();
        counters::set(Counter::WasteBytes, self.waste_bytes);
        if self.waste_bytes <= max_bytes {
            return;
        }
        let round = limits::round();
        let is_old = |usage: &Usage| limits::IS_EAGER || round.wrapping_sub(usage.used_at) > AGE;
        let wastes = |usage: &Usage| usage.waste_bytes() > 0 && usage.blocks.len() <= MAX_BLOCKS;
        let mut found: Vec<(u32, u32, usize)> = self
            .segments
            .iter()
            .filter(|(_, usage)| wastes(usage) && is_old(usage))
            .map(|(key, usage)| (round.wrapping_sub(usage.used_at), *key, usage.waste_bytes()))
            .collect();
        self.is_early = self.segments.values().any(|usage| wastes(usage) && !is_old(usage));
        // Least recently used first, and of those what wastes most.
        found.sort_unstable_by_key(|(age, _, waste)| (core::cmp::Reverse(*age), core::cmp::Reverse(*waste)));
        let mut excess_bytes = self.waste_bytes - max_bytes / 2;
        for (_, key, waste_bytes) in found {
            if excess_bytes == 0 {
                break;
            }
            excess_bytes = excess_bytes.saturating_sub(waste_bytes);
            self.chosen.push(key);
        }
        self.chosen.reverse();
    }

    /// Takes pages out of some of the chosen segments. True: that was the last of them.
    pub(crate) fn release(&mut self) -> bool {
        for _ in 0..STEP_SEGMENTS {
            let Some(key) = self.chosen.pop() else { return true };
            if let Some(usage) = self.segments.remove(&key) {
                let gone_bytes = release(key, &usage).unwrap_or(0);
                counters::add(Counter::CompactedBytes, gone_bytes);
                self.waste_bytes -= gone_bytes.min(self.waste_bytes);
            }
        }
        false
    }

    /// Forgets what was found. True: there is more waste than may be, but it is too young.
    pub(crate) fn end(&mut self) -> bool {
        counters::set(Counter::WasteBytes, self.waste_bytes);
        let is_early = self.is_early;
        *self = Self::new();
        is_early
    }
}

/// Calls `each` for every view of a block, and for its open end, with the bytes of the segment that it needs:
/// where they begin, and how many.
fn for_each_reference(locked: &Locked, mut each: impl FnMut(&Segment, (usize, usize))) {
    if let Some(map) = locked.map() {
        map.for_each_view(|pages, view| each(&view.segment, (view.offset_bytes, pages.len_bytes())));
    }
    if let Some(open) = locked.open() {
        each(&open.segment, (0, 0));
    }
}

/// Takes the pages that no view needs out of a segment. Returns how many bytes that were; `None`: a block is
/// held by another thread, or there are references that were not found.
fn release(key: u32, usage: &Usage) -> Option<usize> {
    let mut blocks: SmallVec<[Locked; 4]> = SmallVec::new();
    for base in &usage.blocks {
        let at = directory::find(*base).filter(|at| at.base == *base)?;
        blocks.push(at.try_lock()?);
    }
    let mut segment: Option<Segment> = None;
    let mut kept = Kept::new();
    let mut views = 0;
    for locked in &mut blocks {
        // An input that goes on after so long begins a segment of its own.
        if locked.open().is_some_and(|open| open.segment.first_page() == Some(key))
            && let Some(open) = locked.exchange_open(None)
        {
            open.close();
        }
        for_each_reference(locked, |found, (offset_bytes, len_bytes)| {
            if found.first_page() == Some(key) {
                views += 1;
                kept.add(offset_bytes, len_bytes);
                segment.get_or_insert_with(|| found.clone());
            }
        });
    }
    let segment = segment?;
    if segment.references() != views + 1 {
        return None;
    }
    let mut gone: SmallVec<[_; 8]> = SmallVec::new();
    // SAFETY: the references are the views that were found and `segment`, and the views' blocks are locked.
    unsafe { segment.release_all_but(&kept, |run, is_lent| gone.push((run, is_lent))) };
    drop(blocks);
    drop(segment);
    for (run, is_lent) in &gone {
        if *is_lent {
            ARENA.quarantine(*run);
        } else {
            ARENA.give_back(*run);
        }
    }
    Some(gone.iter().map(|(run, _)| run.len_bytes()).sum())
}
