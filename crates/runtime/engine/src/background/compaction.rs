//! Compaction: gives back the pages of segments of which old views need only a part.
//!
//! A program that keeps a small part of each large message keeps the segment of each. zIO places the bytes
//! of the least recently used views once a second (§3.1.7); compaction copies nothing and changes no view.
//! References to a segment are views, calls in progress and open ends. If all of them are views, and the
//! blocks of these are locked, then no thread can read the segment or gain a reference, and the pages that
//! no view needs can be taken out of its middle:
//!
//! ```text
//!   segment   |  0  |  1  |  2  |  3  |  4  |  5  |  6  |  7  |
//!   views                    ◄──── a ────►                         at any byte offset
//!                                   ◄─ b ─►
//!   after     | free     |  2  |  3  |  4  |        free       |
//! ```
//!
//! The scan visits all registered blocks, a few at a time, and sums up for each segment what its views
//! need. If the waste exceeds the bound, the least recently used segments are chosen, down to half the
//! bound. The scan's result is only a hint: each chosen segment is checked again under the locks.
//!
//! All of this is done by the handler thread in a round of upkeep, waits for no lock, and holds no
//! reference from one step to the next.

use crate::arena::pages::ARENA;
use crate::arena::segment::Segment;
use crate::background::shared_views;
use crate::range::block::{BlockRef, Flag, Locked};
use crate::range::directory;
use crate::range::foreign::FOREIGN;
use crate::range::heap::HEAP;
use crate::state::{clock, counters, limits};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::bounds::NeededPages;
use uncopy_core::stats::Counter;

/// Bound on the segments examined in one round; other segments follow in later rounds.
const MAX_SEGMENTS: usize = 16_384;
/// Bound on the blocks with views of one segment.
const MAX_BLOCKS: usize = 16;
/// Segments used within this many rounds are not compacted.
const AGE: u32 = 1;
/// Bounds on the blocks visited, and on the views examined, in one step.
const STEP_BLOCKS: usize = 512;
const STEP_VIEWS: usize = 64;
/// Segments that are compacted in one step.
const STEP_SEGMENTS: usize = 8;

/// Use of one segment, found by the scan.
#[derive(Default)]
struct Usage {
    pages: u32,
    last_used_round: u32,
    kept: NeededPages,
    /// Addresses of the blocks with views of the segment, or with its open end.
    blocks: SmallVec<[usize; 2]>,
}

impl Usage {
    fn waste_bytes(&self) -> usize {
        (self.pages - self.kept.pages().min(self.pages)) as usize * PAGE_BYTES
    }
}

/// One scan of all segments. Holds numbers only, so a forked child may just forget it.
pub(crate) struct Compaction {
    segments: BTreeMap<u32, Usage>,
    /// Position of the scan: class and number of the next block.
    next: (usize, u32),
    /// Keys of the segments to compact, the first one last.
    chosen: Vec<u32>,
    /// Waste of all examined segments, bytes.
    waste_bytes: usize,
    /// True if the waste exceeds the bound, but some of it is too young.
    has_young_waste: bool,
}

impl Compaction {
    pub(crate) const fn new() -> Self {
        Self {
            segments: BTreeMap::new(),
            next: (0, 0),
            chosen: Vec::new(),
            waste_bytes: 0,
            has_young_waste: false,
        }
    }

    pub(crate) fn begin(&mut self) {
        *self = Self::new();
    }

    /// Examines some blocks. Returns true after the last one.
    pub(crate) fn scan(&mut self) -> bool {
        let mut views = 0;
        for _ in 0..STEP_BLOCKS {
            let (class, index) = self.next;
            match HEAP.nth(class, index) {
                Some(at) => {
                    self.next.1 += 1;
                    views += self.scan_block(at);
                }
                None if class + 1 < uncopy_core::classes::CLASSES => self.next = (class + 1, 0),
                None => {
                    FOREIGN.for_each_range(|at| {
                        self.scan_block(at);
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

    /// Examines the views of one block, unless another thread holds its lock. Returns the number of views,
    /// as a measure of the work.
    pub(crate) fn scan_block(&mut self, at: BlockRef) -> usize {
        if !at.block.has(Flag::REGISTERED) {
            return 0;
        }
        let Some(mut locked) = at.try_lock() else { return 1 };
        shared_views::place_idle_views(&mut locked);
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
        usage.last_used_round = segment.last_used().round();
        usage.kept.add(range.0, range.1);
        if usage.blocks.last() != Some(&base) {
            usage.blocks.push(base);
        }
    }

    /// Chooses the segments to compact, once the scan is complete.
    pub(crate) fn choose(&mut self) {
        let max_bytes = limits::max_waste_bytes();
        self.waste_bytes = self.segments.values().map(Usage::waste_bytes).sum();
        counters::set(Counter::WasteBytes, self.waste_bytes);
        if self.waste_bytes <= max_bytes {
            return;
        }
        let round = clock::now().round();
        let is_old = |usage: &Usage| limits::IS_EAGER || round.wrapping_sub(usage.last_used_round) > AGE;
        let wastes = |usage: &Usage| usage.waste_bytes() > 0 && usage.blocks.len() <= MAX_BLOCKS;
        let mut found: Vec<(u32, u32, usize)> = self
            .segments
            .iter()
            .filter(|(_, usage)| wastes(usage) && is_old(usage))
            .map(|(key, usage)| (round.wrapping_sub(usage.last_used_round), *key, usage.waste_bytes()))
            .collect();
        self.has_young_waste = self.segments.values().any(|usage| wastes(usage) && !is_old(usage));
        // Least recently used first, and of equally old ones the most wasteful.
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

    /// Compacts some of the chosen segments. Returns true after the last one.
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

    /// Forgets the scan. Returns true if the waste exceeds the bound, but some of it is too young.
    pub(crate) fn end(&mut self) -> bool {
        counters::set(Counter::WasteBytes, self.waste_bytes);
        let has_young_waste = self.has_young_waste;
        *self = Self::new();
        has_young_waste
    }
}

/// Calls `each` for every view of a block and for its open end, with the offset and length of the segment's
/// bytes that are needed.
fn for_each_reference(locked: &Locked, mut each: impl FnMut(&Segment, (usize, usize))) {
    if let Some(map) = locked.map() {
        map.for_each_view(|pages, view| each(&view.segment, (view.offset_bytes, pages.len_bytes())));
    }
    if let Some(open) = locked.open() {
        each(&open.segment, (0, 0));
    }
}

/// Takes the pages that no view needs out of a segment. Returns their length, bytes. `None`: another thread
/// holds a block's lock, or there are references that the scan did not find.
fn release(key: u32, usage: &Usage) -> Option<usize> {
    let mut blocks: SmallVec<[Locked; 4]> = SmallVec::new();
    for base in &usage.blocks {
        let at = directory::find(*base).filter(|at| at.base == *base)?;
        blocks.push(at.try_lock()?);
    }
    let mut segment: Option<Segment> = None;
    let mut kept = NeededPages::new();
    let mut views = 0;
    for locked in &mut blocks {
        // An input that continues after so long a time begins a new segment.
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
    // SAFETY: `kept` covers all views that were found; the count shows that the only other reference is
    // `segment`, and the views' blocks are locked.
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
