//! Segments: reference-counted runs of the arena, filled once and immutable from then on.
//!
//! A message often arrives in several pieces that the program receives back to back into one buffer. The
//! pieces are received back to back into one segment ([`OpenEnd`]), so that the buffer is one view and not
//! several with seams between them.
//!
//! `references = views + calls in progress + open ends`. When the last reference goes, the pages go back to
//! the reservoir, except those that were lent to the kernel (`loan`). Pages that no view needs any more may
//! be released earlier ([`Segment::release_all_but`]).
//!
//! A segment may also lie in memory that other processes share ([`SharedBytes`]). Such a segment has no pages of
//! the arena; its owner is dropped with the last reference.

use crate::arena::loan::{SendHistory, split};
use crate::arena::pages::{ARENA, ResidentPages};
use crate::state::clock::{self, Moment};
use crate::state::{counters, limits};
use core::any::Any;
use smallvec::SmallVec;
use std::sync::OnceLock;
use uncopy_core::addr::{ArenaPages, PAGE_BYTES, SegmentPages, pages_up};
use uncopy_core::bounds::NeededPages;
use uncopy_core::page_map::SiteId;
use uncopy_core::policy::sites::Exit;
use uncopy_core::stats::Counter;
use uncopy_sys::errno::Errno;
use uncopy_sys::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, fence,
};
use uncopy_sys::sync::{Arc, UnsafeCell};

/// A run of the arena that one call is filling, and that only this call may access.
#[derive(Debug)]
pub struct Draft {
    pages: ArenaPages,
    /// End of the pages that the run still owns: a frozen run can give its unfilled end back.
    end: AtomicU32,
    cost_ns: i64,
    /// Pages before `end` that the run has given up, in the order in which they went.
    holes: UnsafeCell<Vec<ArenaPages>>,
    sends: SendHistory,
}

// SAFETY: `holes` is accessed only with exclusive access to the run (`&mut`, or in `drop`), and by
// `Segment::release_all_but`, whose contract excludes every other access.
unsafe impl Sync for Draft {}

impl Draft {
    /// Takes present pages for `len_bytes` bytes.
    ///
    /// # Errors
    /// ENOMEM, also where the segment would exceed the memory bound.
    pub fn new(len_bytes: usize) -> Result<Self, Errno> {
        let wanted = pages_up(len_bytes).max(1);
        if uncopy_sys::alloc::is_low() || !limits::admits(wanted as usize * PAGE_BYTES) {
            return Err(Errno::ENOMEM);
        }
        let ResidentPages { pages, cost_ns } = ARENA.take_resident(wanted)?;
        counters::add_with_peak(Counter::SegmentsBytes, Counter::SegmentsPeakBytes, pages.len_bytes());
        let (end, holes) = (AtomicU32::new(pages.end), UnsafeCell::new(Vec::new()));
        Ok(Self { pages, cost_ns, end, holes, sends: SendHistory::new() })
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        ARENA.address(self.pages.start)
    }

    /// Cost of making the pages present, ns: 0 if they came from the reservoir.
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

    /// The lent pages, numbered as the arena's are.
    fn lent(&self) -> ArenaPages {
        self.pages.of_segment(self.sends.lent())
    }

    /// Gives the pages beyond `len_bytes` back. No call may be filling them, and none may be lent.
    pub fn shorten(&self, len_bytes: usize) {
        let end = (self.pages.start + pages_up(len_bytes).max(1)).min(self.pages.end);
        let old_end = self.end.fetch_min(end, Relaxed);
        let rest = ArenaPages::new(end, old_end);
        counters::subtract(Counter::SegmentsBytes, rest.len_bytes());
        ARENA.give_resident(rest);
    }

    /// Records that pages were moved out and are absent.
    pub fn record_moved_out(&mut self, pages: SegmentPages) {
        if !pages.is_empty() {
            let hole = self.pages.of_segment(pages);
            counters::subtract(Counter::SegmentsBytes, hole.len_bytes());
            ARENA.give_nonresident(hole);
            // SAFETY: `&mut self` excludes every other access to `holes`.
            unsafe { (*self.holes.get()).push(hole) };
        }
    }

    /// Turns the draft into a segment, whose bytes never change.
    #[must_use]
    pub fn freeze(self, site: SiteId) -> Segment {
        Segment::new(Memory::Own(self), site)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // SAFETY: `drop` has the only access to the run, and so to `holes`.
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
pub struct SharedBytes {
    address: usize,
    len_bytes: usize,
    owner: SharedOwner,
}

/// Owner of shared bytes, which stay unchanged until it is dropped with the last reference to their segment.
pub type SharedOwner = Box<dyn Any + Send + Sync>;

uncopy_sys::statics! {
    /// Number of segments in shared memory.
    static SHARED: AtomicUsize = AtomicUsize::new(0);
}

impl SharedBytes {
    /// Describes `len_bytes` bytes at `address`.
    ///
    /// # Safety
    /// The bytes must be readable and unchanged until `owner` is dropped, by whichever thread.
    #[must_use]
    pub unsafe fn new(address: usize, len_bytes: usize, owner: SharedOwner) -> Self {
        SHARED.fetch_add(1, Relaxed);
        Self { address, len_bytes, owner }
    }

    /// Turns the shared bytes into a segment.
    #[must_use]
    pub fn freeze(self, site: SiteId) -> Segment {
        Segment::new(Memory::Shared(self), site)
    }

    /// Address of the first byte.
    #[must_use]
    pub const fn address(&self) -> usize {
        self.address
    }

    /// Number of bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The owner of the shared bytes.
    #[must_use]
    pub fn owner(&self) -> &(dyn Any + Send + Sync) {
        &*self.owner
    }

    /// Returns the number of segments in shared memory.
    #[must_use]
    pub fn count() -> usize {
        SHARED.load(Relaxed)
    }
}

/// Shared memory that an input fills.
pub trait SharedDraft: Send {
    /// Address of the first byte.
    fn address(&self) -> usize;
    /// Freezes the first `len_bytes` bytes, which an input filled, and gives the rest back.
    fn freeze(self: Box<Self>, len_bytes: usize) -> SharedBytes;
}

/// Allocator of shared memory for `len_bytes` bytes; returns `None` if there is none now.
pub type SharedAllocator = fn(usize) -> Option<Box<dyn SharedDraft>>;

static SHARED_ALLOCATORS: [OnceLock<SharedAllocator>; Exit::ALL.len()] =
    [const { OnceLock::new() }; Exit::ALL.len()];

/// Sets the allocator for inputs whose bytes are likely to leave by `exit`.
pub fn set_shared_allocator(exit: Exit, allocator: SharedAllocator) {
    let _ = SHARED_ALLOCATORS[exit as usize].set(allocator);
}

/// Takes shared memory for `len_bytes` bytes that are likely to leave by `exit`.
#[must_use]
pub fn allocate_shared(exit: Exit, len_bytes: usize) -> Option<Box<dyn SharedDraft>> {
    SHARED_ALLOCATORS[exit as usize].get().and_then(|take| take(len_bytes))
}

impl core::fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SharedBytes")
            .field("address", &self.address)
            .field("len_bytes", &self.len_bytes)
            .finish()
    }
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        SHARED.fetch_sub(1, Relaxed);
    }
}

#[derive(Debug)]
enum Memory {
    Own(Draft),
    Shared(SharedBytes),
}

#[derive(Debug)]
struct Frozen {
    memory: Memory,
    site: SiteId,
    filled: Moment,
    /// The [`Moment`] at which the segment was filled or last used.
    last_used: AtomicU64,
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
        let filled = clock::now();
        Self(Arc::new(Frozen { memory, site, filled, last_used: AtomicU64::new(filled.0) }))
    }

    /// The run of the arena; `None`: the segment lies in shared memory.
    fn draft(&self) -> Option<&Draft> {
        match &self.0.memory {
            Memory::Own(draft) => Some(draft),
            Memory::Shared(_) => None,
        }
    }

    /// The segment's shared memory; `None`: the segment lies in the arena.
    #[must_use]
    pub fn shared(&self) -> Option<&SharedBytes> {
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

    /// First page, which identifies the segment while it lives; `None`: the segment is not in the arena.
    #[must_use]
    pub fn first_page(&self) -> Option<u32> {
        self.draft().map(|draft| draft.pages.start)
    }

    /// Length in pages, whether views need them or not.
    #[must_use]
    pub fn pages(&self) -> u32 {
        match &self.0.memory {
            Memory::Own(draft) => draft.owned().len(),
            Memory::Shared(shared) => pages_up(shared.len_bytes),
        }
    }

    /// Records a use by a copy, an input or an output.
    #[inline]
    pub fn touch(&self) {
        let now = clock::now();
        if self.last_used() != now {
            self.0.last_used.store(now.0, Relaxed);
        }
    }

    /// Whether the segment is from before this process was forked.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.0.filled.is_before_birth()
    }

    /// The moment at which the segment was filled or last used.
    #[inline]
    #[must_use]
    pub fn last_used(&self) -> Moment {
        Moment(self.0.last_used.load(Relaxed))
    }

    /// Returns the number of references. Reads through dropped references happen before the return.
    #[must_use]
    pub fn references(&self) -> usize {
        let count = Arc::strong_count(&self.0);
        fence(Acquire);
        count
    }

    /// Records a part that was sent.
    pub fn record_sent(&self, offset_bytes: usize, len_bytes: usize) {
        if let Some(draft) = self.draft() {
            draft.sends.count(offset_bytes, len_bytes);
        }
    }

    /// Whether a part has been sent; false for shared memory, which the kernel must not refer to for good.
    #[must_use]
    pub fn was_sent(&self, offset_bytes: usize, len_bytes: usize) -> bool {
        self.draft().is_some_and(|draft| draft.sends.was_sent_before(offset_bytes, len_bytes))
    }

    /// Records that a part is about to be lent to the kernel for good. Returns the number of pages that
    /// were not lent before.
    #[must_use]
    pub fn lend(&self, offset_bytes: usize, len_bytes: usize) -> u32 {
        self.draft().map_or(0, |draft| draft.sends.lend(offset_bytes, len_bytes))
    }

    /// Takes the pages outside `kept` out of the segment. Calls `gone` with each run, which is the caller's
    /// from then on, and whether the run is lent.
    ///
    /// # Safety
    /// Every view of the segment must lie in kept pages, and the caller must hold the locks of all blocks
    /// with such views. The caller's own reference must be the only other one. blocks that have one; there
    /// must be no other reference but the caller's own.
    pub unsafe fn release_all_but(&self, kept: &NeededPages, mut gone: impl FnMut(ArenaPages, bool)) {
        let Some(draft) = self.draft() else { return };
        // SAFETY: access to `holes` needs a reference. The caller has the only one besides those of views,
        // whose blocks it has locked.
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

    /// Site of the input that filled the segment.
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

    /// Gives the pages beyond `len_bytes` back. No view may cover them, and no call may be filling them.
    pub fn shorten(&self, len_bytes: usize) {
        if let Some(draft) = self.draft() {
            draft.shorten(len_bytes);
        }
    }

    /// The draft, if this is the only reference and no page is lent: the pages may then be moved out.
    pub fn as_unique_draft(&mut self) -> Option<&mut Draft> {
        match &mut Arc::get_mut(&mut self.0)?.memory {
            Memory::Own(draft) if draft.sends.lent().is_empty() => Some(draft),
            Memory::Own(_) | Memory::Shared(_) => None,
        }
    }

    /// Whether a view at `offset_bytes` is aligned with the segment's pages, so that these can be moved in.
    #[must_use]
    pub const fn is_congruent(offset_bytes: usize) -> bool {
        offset_bytes.is_multiple_of(PAGE_BYTES)
    }
}

/// Bound on the room of all open ends together, bytes.
const MAX_OPEN_ROOM_BYTES: usize = 16 << 20;
uncopy_sys::statics! {
    static OPEN_ROOM_BYTES: AtomicUsize = AtomicUsize::new(0);
}

/// A segment with room behind its filled bytes, for an input that continues where the last one ended. Kept
/// with the block that received the last input.
#[derive(Debug)]
pub struct OpenEnd {
    /// The segment with room at its end.
    pub segment: Segment,
    /// Length of the filled part, bytes.
    pub filled_bytes: usize,
    /// Address in the program's buffer at which the next input would continue.
    pub next_address: usize,
}

impl OpenEnd {
    /// Whether an input of `len_bytes` at `address` continues here.
    #[must_use]
    pub fn continues(&self, address: usize, len_bytes: usize) -> bool {
        self.next_address == address && self.filled_bytes + len_bytes <= self.segment.len_bytes()
    }

    /// Whether the bound on open ends leaves room for this one: idle connections must not keep a buffer's
    /// worth of memory each.
    #[must_use]
    pub fn has_room(&self) -> bool {
        OPEN_ROOM_BYTES.load(Relaxed) + self.room_bytes() <= MAX_OPEN_ROOM_BYTES
    }

    fn room_bytes(&self) -> usize {
        self.segment.len_bytes() - self.filled_bytes
    }

    /// Updates the room of all open ends after `put` has replaced `taken`.
    pub(crate) fn count(put: Option<&Self>, taken: Option<&Self>) {
        // Both are usually `None`; updating regardless would have all threads write one word.
        if let Some(put) = put {
            OPEN_ROOM_BYTES.fetch_add(put.room_bytes(), Relaxed);
        }
        if let Some(taken) = taken {
            OPEN_ROOM_BYTES.fetch_sub(taken.room_bytes(), Relaxed);
        }
    }

    /// Gives the unfilled room back.
    pub fn close(self) {
        self.segment.shorten(self.filled_bytes);
    }
}
