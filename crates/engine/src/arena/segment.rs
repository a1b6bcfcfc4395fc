//! Segments: refcounted runs of the arena, whose bytes are filled once and immutable from then on.
//!
//! A message often arrives in several pieces that the program receives one behind the other into one
//! buffer. They are received one behind the other into one segment ([`Open`]), so that the buffer is
//! one view and not several with seams between them.
//!
//! `references = views + calls in progress + open ends`. When the last reference goes, the pages go back to
//! the reservoir, except those that were lent to the kernel (`loan`). Pages that no view needs any more may
//! go before that ([`Segment::release_all_but`]).
//!
//! A segment may also lie in memory that other processes share ([`Shared`]): then none of that is the arena's, and what
//! keeps its bytes goes with the last reference.

use crate::arena::loan::{Sends, split};
use crate::arena::pages::{ARENA, Resident};
use crate::state::{counters, limits};
use core::any::Any;
use smallvec::SmallVec;
use std::sync::OnceLock;
use uncopy_core::addr::{ArenaPages, PAGE_BYTES, SegmentPages, pages_up};
use uncopy_core::bounds::Kept;
use uncopy_core::page_map::SiteId;
use uncopy_core::stats::Counter;
use uncopy_sys::errno::Errno;
use uncopy_sys::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, fence};
use uncopy_sys::sync::{Arc, UnsafeCell};

/// A run of the arena that a call is still filling. Owned by that call alone.
#[derive(Debug)]
pub struct Draft {
    pages: ArenaPages,
    /// End of the pages that are still the run's: a frozen run can give its unfilled end back.
    end: AtomicU32,
    /// What gathering and filling the pages has cost.
    cost_ns: i64,
    /// Pages before `end` that are not the run's any more, in order of their going.
    holes: UnsafeCell<Vec<ArenaPages>>,
    sends: Sends,
}

// SAFETY: `holes` is only touched by whoever has the run alone (`&mut`, or at the end), and by
// `Segment::release_all_but`, whose caller keeps everybody else away.
unsafe impl Sync for Draft {}

impl Draft {
    /// Takes present pages for `len_bytes` bytes.
    ///
    /// # Errors
    /// ENOMEM, also where that is more than uncopy may keep.
    pub fn new(len_bytes: usize) -> Result<Self, Errno> {
        let wanted = pages_up(len_bytes).max(1);
        if uncopy_sys::alloc::is_low() || !limits::admits(wanted as usize * PAGE_BYTES) {
            return Err(Errno::ENOMEM);
        }
        let Resident { pages, cost_ns } = ARENA.take_resident(wanted)?;
        counters::raise(Counter::SegmentsBytes, Counter::SegmentsPeakBytes, pages.len_bytes());
        let (end, holes) = (AtomicU32::new(pages.end), UnsafeCell::new(Vec::new()));
        Ok(Self { pages, cost_ns, end, holes, sends: Sends::new() })
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        ARENA.address(self.pages.start)
    }

    /// What making its pages present has cost, ns: 0 if the reservoir had them at hand.
    #[must_use]
    pub const fn cost_ns(&self) -> i64 {
        self.cost_ns
    }

    /// Length, bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.owned().len_bytes()
    }

    fn owned(&self) -> ArenaPages {
        ArenaPages::new(self.pages.start, self.end.load(Relaxed))
    }

    /// The pages that the kernel may hold, numbered as the arena's are.
    fn lent(&self) -> ArenaPages {
        self.pages.of_segment(self.sends.lent())
    }

    /// Gives the pages beyond `len_bytes` back. Nobody may be filling them, or have lent any of them.
    pub fn shorten(&self, len_bytes: usize) {
        let end = (self.pages.start + pages_up(len_bytes).max(1)).min(self.pages.end);
        let old_end = self.end.fetch_min(end, Relaxed);
        let rest = ArenaPages::new(end, old_end);
        counters::subtract(Counter::SegmentsBytes, rest.len_bytes());
        ARENA.give_resident(rest);
    }

    /// Records that pages were moved out: they are absent.
    pub fn moved_out(&mut self, pages: SegmentPages) {
        if !pages.is_empty() {
            let hole = self.pages.of_segment(pages);
            counters::subtract(Counter::SegmentsBytes, hole.len_bytes());
            ARENA.give_nonresident(hole);
            // SAFETY: the run is the caller's alone.
            unsafe { (*self.holes.get()).push(hole) };
        }
    }

    /// Makes it a segment: its bytes never change again.
    #[must_use]
    pub fn freeze(self, site: SiteId) -> Segment {
        Segment::new(Memory::Own(self), site)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // SAFETY: nobody else knows the run any more.
        let holes = unsafe { &mut *self.holes.get() };
        holes.sort_unstable_by_key(|hole| hole.start);
        let mut start = self.pages.start;
        let (end, lent) = (self.owned().end, self.lent());
        for hole in holes.iter().chain([&ArenaPages::new(end, end)]) {
            let part = ArenaPages::new(start, hole.start);
            counters::subtract(Counter::SegmentsBytes, part.len_bytes());
            for (part, is_lent) in split(part, lent) {
                if is_lent {
                    ARENA.quarantine(part);
                } else {
                    ARENA.give_resident(part);
                }
            }
            start = hole.end;
        }
    }
}

/// Bytes in memory that other processes share.
pub struct Shared {
    address: usize,
    len_bytes: usize,
    keeper: Keeper,
}

/// What keeps shared bytes as they are; dropped with the last reference to their segment.
pub type Keeper = Box<dyn Any + Send + Sync>;

uncopy_sys::statics! {
    /// Segments in shared memory.
    static SHARED: AtomicUsize = AtomicUsize::new(0);
}

impl Shared {
    /// `len_bytes` bytes at `address`.
    ///
    /// # Safety
    /// They must be readable, and stay as they are, until `keeper` is dropped, by whichever thread.
    #[must_use]
    pub unsafe fn new(address: usize, len_bytes: usize, keeper: Keeper) -> Self {
        SHARED.fetch_add(1, Relaxed);
        Self { address, len_bytes, keeper }
    }

    /// Makes it a segment.
    #[must_use]
    pub fn freeze(self, site: SiteId) -> Segment {
        Segment::new(Memory::Shared(self), site)
    }

    /// Address of the first byte.
    #[must_use]
    pub const fn address(&self) -> usize {
        self.address
    }

    /// What keeps the bytes.
    #[must_use]
    pub fn keeper(&self) -> &(dyn Any + Send + Sync) {
        &*self.keeper
    }

    /// How many segments there are in shared memory.
    #[must_use]
    pub fn count() -> usize {
        SHARED.load(Relaxed)
    }
}

/// Memory that other processes share, for an input to fill.
pub trait SharedDraft: Send {
    /// Address of the first byte.
    fn address(&self) -> usize;
    /// So many bytes were filled: they stay as they are, and the rest is given back.
    fn freeze(self: Box<Self>, len_bytes: usize) -> Shared;
}

/// Who gives such memory for so many bytes, if there is any now.
pub type Sharer = fn(usize) -> Option<Box<dyn SharedDraft>>;

static SHARER: OnceLock<Sharer> = OnceLock::new();

/// Inputs whose bytes are likely to go to other processes are received into memory of this one's from here on.
pub fn share_by(sharer: Sharer) {
    let _ = SHARER.set(sharer);
}

/// Takes shared memory for `len_bytes` bytes.
#[must_use]
pub fn take_shared(len_bytes: usize) -> Option<Box<dyn SharedDraft>> {
    SHARER.get().and_then(|take| take(len_bytes))
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("address", &self.address).field("len_bytes", &self.len_bytes).finish()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        SHARED.fetch_sub(1, Relaxed);
    }
}

#[derive(Debug)]
enum Memory {
    Own(Draft),
    Shared(Shared),
}

#[derive(Debug)]
struct Frozen {
    memory: Memory,
    site: SiteId,
    /// The round of upkeep in which it was filled or last used.
    used_at: AtomicU32,
}

/// A reference to a segment.
#[derive(Clone, Debug)]
pub struct Segment(Arc<Frozen>);

impl PartialEq for Segment {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Segment {
    fn new(memory: Memory, site: SiteId) -> Self {
        Self(Arc::new(Frozen { memory, site, used_at: AtomicU32::new(limits::round()) }))
    }

    /// The run of the arena; `None`: it lies in shared memory.
    fn draft(&self) -> Option<&Draft> {
        match &self.0.memory {
            Memory::Own(draft) => Some(draft),
            Memory::Shared(_) => None,
        }
    }

    /// The shared memory that it lies in, if it does.
    #[must_use]
    pub fn shared(&self) -> Option<&Shared> {
        match &self.0.memory {
            Memory::Own(_) => None,
            Memory::Shared(shared) => Some(shared),
        }
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        match &self.0.memory {
            Memory::Own(draft) => draft.address(),
            Memory::Shared(shared) => shared.address,
        }
    }

    /// Its first page, by which it is told from all others while it lives; `None`: it is not in the arena.
    #[must_use]
    pub fn first_page(&self) -> Option<u32> {
        self.draft().map(|draft| draft.pages.start)
    }

    /// Its pages, needed or not.
    #[must_use]
    pub fn pages(&self) -> u32 {
        match &self.0.memory {
            Memory::Own(draft) => draft.owned().len(),
            Memory::Shared(shared) => pages_up(shared.len_bytes),
        }
    }

    /// Takes note that a copy, an input or an output has used it.
    #[inline]
    pub fn touch(&self) {
        let round = limits::round();
        if self.0.used_at.load(Relaxed) != round {
            self.0.used_at.store(round, Relaxed);
        }
    }

    /// The round of upkeep in which it was last used.
    #[must_use]
    pub fn used_at(&self) -> u32 {
        self.0.used_at.load(Relaxed)
    }

    /// How many references there are. What those that are gone did with its bytes has happened before.
    #[must_use]
    pub fn references(&self) -> usize {
        let count = Arc::strong_count(&self.0);
        fence(Acquire);
        count
    }

    /// Takes note of a part that was sent.
    pub fn count_sent(&self, offset_bytes: usize, len_bytes: usize) {
        if let Some(draft) = self.draft() {
            draft.sends.count(offset_bytes, len_bytes);
        }
    }

    /// Whether a part has been sent `times` times; never of shared memory, which the kernel must not refer to for good.
    #[must_use]
    pub fn was_sent(&self, offset_bytes: usize, len_bytes: usize, times: usize) -> bool {
        self.draft().is_some_and(|draft| draft.sends.has_gone(offset_bytes, len_bytes, times))
    }

    /// Notes that the kernel is about to get references to the pages of a part, for good. Returns how many were
    /// not lent before.
    #[must_use]
    pub fn lend(&self, offset_bytes: usize, len_bytes: usize) -> u32 {
        self.draft().map_or(0, |draft| draft.sends.lend(offset_bytes, len_bytes))
    }

    /// Takes the pages that are not kept out of the segment; they are the caller's then, and `gone` is told each
    /// run of them, and whether it is lent.
    ///
    /// # Safety
    /// Every view of the segment must lie in pages that are kept, and the caller must hold the locks of all
    /// blocks that have one; there must be no other reference but the caller's own.
    pub unsafe fn release_all_but(&self, kept: &Kept, mut gone: impl FnMut(ArenaPages, bool)) {
        let Some(draft) = self.draft() else { return };
        // SAFETY: whoever else could look at them would need a reference, and the caller has the only one beside those of views whose blocks it has locked.
        let holes = unsafe { &mut *draft.holes.get() };
        holes.sort_unstable_by_key(|hole| hole.start);
        let mut fresh: SmallVec<[ArenaPages; 8]> = SmallVec::new();
        for gap in kept.gaps(self.pages()) {
            let gap = draft.pages.of_segment(gap);
            let mut start = gap.start;
            for hole in holes.iter().map(|hole| hole.intersection(gap)).filter(|hole| !hole.is_empty()) {
                fresh.push(ArenaPages::new(start, hole.start));
                start = hole.end;
            }
            fresh.push(ArenaPages::new(start, gap.end));
        }
        for run in fresh.into_iter().filter(|run| !run.is_empty()) {
            counters::subtract(Counter::SegmentsBytes, run.len_bytes());
            holes.push(run);
            for (part, is_lent) in split(run, draft.lent()) {
                if !part.is_empty() {
                    gone(part, is_lent);
                }
            }
        }
    }

    /// The input site that filled it.
    #[must_use]
    pub fn site(&self) -> SiteId {
        self.0.site
    }

    /// Length of the run, filled or not, bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        match &self.0.memory {
            Memory::Own(draft) => draft.len_bytes(),
            Memory::Shared(shared) => shared.len_bytes,
        }
    }

    /// Gives the pages beyond `len_bytes` back, which no view covers and nobody is filling.
    pub fn shorten(&self, len_bytes: usize) {
        if let Some(draft) = self.draft() {
            draft.shorten(len_bytes);
        }
    }

    /// The run itself, if this is the only reference and none of it is lent: its pages may then be moved out.
    pub fn sole(&mut self) -> Option<&mut Draft> {
        match &mut Arc::get_mut(&mut self.0)?.memory {
            Memory::Own(draft) if draft.sends.lent().is_empty() => Some(draft),
            Memory::Own(_) | Memory::Shared(_) => None,
        }
    }

    /// Whether a view at `offset_bytes` has its pages where the segment has them.
    #[must_use]
    pub const fn is_congruent(offset_bytes: usize) -> bool {
        offset_bytes.is_multiple_of(PAGE_BYTES)
    }
}

/// Room that all open ends together may keep, bytes.
const MAX_OPEN_ROOM_BYTES: usize = 16 << 20;
uncopy_sys::statics! {
    /// Room that they keep, bytes.
    static OPEN_ROOM_BYTES: AtomicUsize = AtomicUsize::new(0);
}

/// A segment with room behind its filled bytes, waiting for the input that goes on where the last
/// one ended. Kept with the block that the last one went to.
#[derive(Debug)]
pub struct Open {
    /// The segment.
    pub segment: Segment,
    /// Its filled bytes.
    pub filled_bytes: usize,
    /// Address in the program's buffer at which the next input would go on.
    pub next_address: usize,
}

impl Open {
    /// Whether an input of `len_bytes` at `address` goes on here.
    #[must_use]
    pub fn continues(&self, address: usize, len_bytes: usize) -> bool {
        self.next_address == address && self.filled_bytes + len_bytes <= self.segment.len_bytes()
    }

    /// Whether there is place among the open ends for this one's room: idle connections must not keep
    /// a buffer's worth of memory each.
    #[must_use]
    pub fn has_place(&self) -> bool {
        OPEN_ROOM_BYTES.load(Relaxed) + self.room_bytes() <= MAX_OPEN_ROOM_BYTES
    }

    fn room_bytes(&self) -> usize {
        self.segment.len_bytes() - self.filled_bytes
    }

    /// Counts the room of an open end that is put in the place of another.
    pub(crate) fn count(put: Option<&Self>, taken: Option<&Self>) {
        // Mostly there is none: all threads would write the same word.
        if let Some(put) = put {
            OPEN_ROOM_BYTES.fetch_add(put.room_bytes(), Relaxed);
        }
        if let Some(taken) = taken {
            OPEN_ROOM_BYTES.fetch_sub(taken.room_bytes(), Relaxed);
        }
    }

    /// Gives the room back.
    pub fn close(self) {
        self.segment.shorten(self.filled_bytes);
    }
}
