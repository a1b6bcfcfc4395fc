//! Foreign ranges: memory outside the block heap that holds views all the same, such as static buffers,
//! mappings that the program makes itself, and memory of other allocators.
//!
//! A range consists of the pages that a buffer overlaps, and is claimed when an input or a copy first wants
//! to make a view there. From then on it is a block like those of the heap, but found by search instead of
//! by arithmetic, and registered with a userfaultfd of its own, which also reports changes of the mapping:
//!
//! ```text
//!  claim ──► plain ──► registered ──► (mapping changes, or a range that overlaps is claimed) ──► gone
//! ```
//!
//! The handler reads and follows changes of mappings ([`crate::range::changes`]). Before it lowers its
//! flag, it marks the ranges concerned as [`Flag::DISOWNED`]. A hook that has locked a range checks the
//! kernel's flag, the handler's and the mark; if one is set, it treats the range as ordinary memory, which
//! is always right: touching it faults, and faults are served once the changes that were read have been
//! followed. Following comes first, in order: unmapped pages are taken out of the page maps, and bytes of
//! moved pages are placed at the new addresses. The rest of the ranges concerned is made plain afterwards.
//!
//! Slots are reused: after locking one, a thread checks that it still stands for the range that was looked up.

use crate::range::block::{BlockRef, Flag, ForeignSlot, Locked};
use crate::range::changes::{CHANGES, SETTLE_TRIES};
use crate::range::registration::can_hold_views;
use crate::state::gate::is_in_heap;
use crate::state::{counters, limits};
use smallvec::SmallVec;
use uncopy_core::addr::{PAGE_BYTES, PageRange};
use uncopy_core::page_map::{Dropped, State};
use uncopy_core::stats::Counter;
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::Lock;
use uncopy_sys::presence::Section;
use uncopy_sys::sync::CachePadded;
use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use uncopy_sys::uffd::Change;

/// Bound on the number of ranges. A model creates all slots anew for every order that it tries.
const SLOTS: usize = if cfg!(loom) { 1 } else { 256 };
/// Longest range, bytes.
const MAX_BYTES: usize = 64 << 20;
/// Log2 of the length of a stretch of addresses, for which the filter has a bit.
const FILTER_SHIFT: u32 = 21;
/// Number of addresses that are remembered because nothing could be claimed there.
const REFUSALS: usize = if cfg!(loom) { 1 } else { 64 };

/// Error: the handler must follow changes of mappings first, for which it needs the locks.
struct Unsettled;

/// The foreign ranges of a process.
pub struct Foreign {
    /// Held while ranges are added or removed; taken before the locks of foreign blocks, and these before
    /// [`SettledGuard`](crate::range::changes::SettledGuard).
    lock: Lock,
    slots: [ForeignSlot; SLOTS],
    /// Number of slots that were ever in use.
    used: AtomicU32,
    /// Number of ranges that exist.
    ranges: AtomicU32,
    /// Bloom filter: a bit for each stretch of addresses, hashed, in which there may be a range.
    filter: AtomicU64,
    next_victim: AtomicU32,
    refusals: [AtomicUsize; REFUSALS],
    is_on: AtomicBool,
}

uncopy_sys::statics! {
    /// The foreign ranges of this process.
    pub static FOREIGN: CachePadded<Foreign> = CachePadded(Foreign::new());
}

impl Default for Foreign {
    fn default() -> Self {
        Self::new()
    }
}

fn filter_bit(address: usize) -> u64 {
    1 << ((address >> FILTER_SHIFT) % 64)
}

fn filter_of(base: usize, pages: u32) -> u64 {
    let end = base + pages as usize * PAGE_BYTES;
    let (first, last) = (base >> FILTER_SHIFT, (end - 1) >> FILTER_SHIFT);
    (first..=last).take(64).fold(0, |bits, stretch| bits | 1 << (stretch % 64))
}

/// First address of the pages that a buffer overlaps, and the one after the last.
fn overlapped(address: usize, len_bytes: usize) -> Option<(usize, usize)> {
    let end = address.checked_add(len_bytes)?.checked_next_multiple_of(PAGE_BYTES)?;
    Some((address / PAGE_BYTES * PAGE_BYTES, end))
}

impl Foreign {
    uncopy_sys::constant! {
        /// An empty registry, switched off.
        #[must_use]
        pub const fn new() -> Self {
            Self {
                lock: Lock::new(),
                #[cfg(not(loom))]
                slots: [const { ForeignSlot::new() }; SLOTS],
                #[cfg(loom)]
                slots: core::array::from_fn(|_| ForeignSlot::new()),
                used: AtomicU32::new(0),
                ranges: AtomicU32::new(0),
                filter: AtomicU64::new(0),
                next_victim: AtomicU32::new(0),
                #[cfg(not(loom))]
                refusals: [const { AtomicUsize::new(0) }; REFUSALS],
                #[cfg(loom)]
                refusals: core::array::from_fn(|_| AtomicUsize::new(0)),
                is_on: AtomicBool::new(false),
            }
        }
    }

    /// Allows ranges to be claimed (`--foreign`).
    pub fn switch_on(&self) {
        self.is_on.store(true, Relaxed);
    }

    /// Whether memory outside the heap may hold views.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// The range that holds `address`.
    #[inline]
    #[must_use]
    pub fn find(&'static self, address: usize) -> Option<BlockRef> {
        if self.filter.load(Relaxed) & filter_bit(address) == 0 {
            return None;
        }
        self.overlapping(address, address + 1).next()
    }

    fn overlapping(&'static self, start: usize, end: usize) -> impl Iterator<Item = BlockRef> {
        let used = self.used.load(Acquire) as usize;
        let overlaps = move |at: &BlockRef| at.base != 0 && at.base < end && start < at.base + at.bytes();
        self.slots[..used].iter().map(ForeignSlot::at).filter(overlaps)
    }

    /// Claims the pages that a buffer overlaps as a range that can hold views; an existing range that
    /// contains them all is returned as it is. `None` if the kind of memory does not allow it.
    ///
    /// To be called in a [`Section`], with no lock held.
    #[must_use]
    pub fn claim(&'static self, address: usize, len_bytes: usize) -> Option<BlockRef> {
        if !self.is_on() || CHANGES.open().is_none() || is_in_heap(address) {
            return None;
        }
        let (start, end) = overlapped(address, len_bytes)?;
        let refusal = &self.refusals[(start / PAGE_BYTES) % REFUSALS];
        if refusal.load(Relaxed) == start {
            return None;
        }
        let claimed = self.claim_pages(start, end);
        if claimed.is_none() {
            refusal.store(start, Relaxed);
        }
        claimed
    }

    fn claim_pages(&'static self, start: usize, end: usize) -> Option<BlockRef> {
        for _ in 0..SETTLE_TRIES {
            if let Ok(claimed) = self.try_claim(start, end) {
                return claimed;
            }
            uncopy_sys::thread::pause();
        }
        None
    }

    fn try_claim(&'static self, mut start: usize, mut end: usize) -> Result<Option<BlockRef>, Unsettled> {
        let mut dropped = Dropped::new();
        let _guard = self.lock.guard();
        // Two buffers that share a page become one range.
        let mut before = (0, 0);
        while before != (start, end) {
            before = (start, end);
            for at in self.overlapping(start, end) {
                if at.base <= start && end <= at.base + at.bytes() && !at.block.has(Flag::DISOWNED) {
                    return Ok(Some(at));
                }
                start = start.min(at.base);
                end = end.max(at.base + at.bytes());
            }
        }
        if end - start > MAX_BYTES || !can_hold_views(start, end) {
            return Ok(None);
        }
        let mut taken = self.lock_overlapping(start, end);
        if taken.is_empty() {
            let Some(slot) = self.free_slot() else { return Ok(None) };
            taken.push(slot.at().lock_for_handler());
        }
        // A pending change would be applied to the range that is made here.
        let _settled = CHANGES.try_hold_settled().ok_or(Unsettled)?;
        if !taken.iter_mut().all(|locked| self.undo(locked, &mut dropped)) {
            return Ok(None);
        }
        let Some((locked, slot)) =
            taken.first_mut().and_then(|first| first.at.slot.map(|slot| (first, slot)))
        else {
            return Ok(None);
        };
        locked.reset();
        slot.pages.store(((end - start) / PAGE_BYTES) as u32, Release);
        slot.base.store(start, Release);
        self.ranges.fetch_add(1, Relaxed);
        self.filter.fetch_or(filter_of(start, slot.pages.load(Relaxed)), Relaxed);
        counters::add(Counter::ForeignRanges, 1);
        limits::count_foreign(end - start, 0);
        Ok(Some(slot.at()))
    }

    /// Locks the ranges that overlap `start..end`, in order of their slots. The registry must be locked.
    fn lock_overlapping(&'static self, start: usize, end: usize) -> SmallVec<[Locked; 2]> {
        self.overlapping(start, end).map(BlockRef::lock_for_handler).collect()
    }

    /// A free slot; if there is none, that of a range to be replaced.
    fn free_slot(&'static self) -> Option<&'static ForeignSlot> {
        let used = self.used.load(Relaxed) as usize;
        if let Some(slot) = self.slots[..used].iter().find(|slot| slot.base.load(Relaxed) == 0) {
            return Some(slot);
        }
        if used < SLOTS {
            self.used.store(used as u32 + 1, Release);
            return Some(&self.slots[used]);
        }
        let start = self.next_victim.fetch_add(1, Relaxed) as usize;
        let order = || (start..start + SLOTS).map(|index| &self.slots[index % SLOTS]);
        let is_idle = |slot: &&ForeignSlot| slot.block.absent_pages() == 0;
        order().find(is_idle).or_else(|| order().next())
    }

    /// Makes a range ordinary memory and frees its slot; the registry must be locked. False: some views
    /// could not be put in place; the range gets no more views, and its faults are still served.
    fn undo(&self, locked: &mut Locked, dropped: &mut Dropped<crate::arena::segment::Segment>) -> bool {
        let Some(slot) = locked.at.slot else { return false };
        if slot.base.load(Relaxed) == 0 {
            return true;
        }
        if !locked.make_plain(dropped) {
            slot.block.set(Flag::DISOWNED);
            return false;
        }
        self.forget(slot);
        true
    }

    /// Frees the slot of a plain range; both range and registry are locked.
    fn forget(&self, slot: &ForeignSlot) {
        limits::count_foreign(0, slot.pages.swap(0, AcqRel) as usize * PAGE_BYTES);
        slot.base.store(0, Release);
        counters::subtract(Counter::ForeignRanges, 1);
        if self.ranges.fetch_sub(1, Relaxed) == 1 {
            self.filter.store(0, Relaxed);
        }
    }

    /// Makes all ranges that overlap `start..end` ordinary memory, because the program is about to change
    /// the mapping.
    pub fn disown(&'static self, start: usize, end: usize) {
        if self.ranges.load(Relaxed) == 0 || self.overlapping(start, end).next().is_none() {
            return;
        }
        let Some(_section) = Section::enter() else {
            // A fork may wait for this thread. Absent pages are still served, and hooks treat marked ranges
            // as ordinary memory: memory that becomes read-only must not get a view.
            self.overlapping(start, end).for_each(|at| _ = at.block.set(Flag::DISOWNED));
            return;
        };
        let mut dropped = Dropped::new();
        for _ in 0..SETTLE_TRIES {
            if self.try_disown(start, end, &mut dropped) {
                return;
            }
            uncopy_sys::thread::pause();
        }
        self.overlapping(start, end).for_each(|at| _ = at.block.set(Flag::DISOWNED));
    }

    /// Tries once to make the ranges plain. False: the handler must follow changes first.
    fn try_disown(
        &'static self,
        start: usize,
        end: usize,
        dropped: &mut Dropped<crate::arena::segment::Segment>,
    ) -> bool {
        let _guard = self.lock.guard();
        let mut taken = self.lock_overlapping(start, end);
        let Some(_settled) = CHANGES.try_hold_settled() else { return false };
        for locked in &mut taken {
            // On failure, the range's absent pages are still served.
            let _ = self.undo(locked, dropped);
        }
        true
    }

    /// Calls `each` for every range.
    pub fn for_each_range(&'static self, mut each: impl FnMut(BlockRef)) {
        if self.ranges.load(Relaxed) != 0 {
            self.overlapping(0, usize::MAX).for_each(&mut each);
        }
    }

    /// Takes the locks of the registry and of every slot, to be held across a fork.
    pub(crate) fn lock_all(&self) {
        self.lock.lock();
        self.slots_in_use().for_each(|slot| slot.block.lock.lock());
    }

    /// Releases the locks that [`lock_all`](Self::lock_all) took. The number of slots in use changes only
    /// under the registry's lock.
    pub(crate) fn unlock_all(&self) {
        self.slots_in_use().for_each(|slot| slot.block.lock.unlock());
        self.lock.unlock();
    }

    fn slots_in_use(&self) -> impl Iterator<Item = &ForeignSlot> {
        self.slots[..self.used.load(Acquire) as usize].iter()
    }

    /// Marks the ranges that `changes`, all that are not followed yet, concern: hooks treat them as ordinary memory.
    pub(crate) fn mark_changed(&'static self, changes: &[Change]) {
        for change in changes {
            for at in self.overlapping(change.start, change.end) {
                at.block.set(Flag::DISOWNED);
            }
        }
        CHANGES.finish_read(changes.len() as u32);
    }

    /// Follows a change: removes the pages concerned from the page maps, or places their bytes at the new
    /// addresses. False: another thread holds a lock, or the kernel refused; retry.
    pub(crate) fn follow(&'static self, change: Change) -> bool {
        if !self.lock.try_lock() {
            return false;
        }
        let mut dropped = Dropped::new();
        let mut is_done = true;
        for at in self.overlapping(change.start, change.end) {
            is_done &= at.try_lock().is_some_and(|locked| self.follow_in(locked, change, &mut dropped));
        }
        self.lock.unlock();
        drop(dropped);
        is_done
    }

    fn follow_in(
        &self,
        mut locked: Locked,
        change: Change,
        dropped: &mut Dropped<crate::arena::segment::Segment>,
    ) -> bool {
        let at = locked.at;
        let page = |address: usize| (address.clamp(at.base, at.base + at.bytes()) - at.base) / PAGE_BYTES;
        let gone = PageRange::new(page(change.start) as u32, page(change.end) as u32);
        if let Some(moved_to) = change.moved_to {
            let new_base = moved_to + (at.base + gone.start_bytes() - change.start);
            if !self.place_moved(&locked, gone, new_base) {
                return false;
            }
        }
        // The kernel fills these addresses from here on, present or not.
        locked.change(|map| map.set_present(gone, dropped));
        true
    }

    /// Makes the ranges concerned plain, after all changes that were read have been followed. False: some
    /// are left, whose views are still served.
    pub(crate) fn clear_changed(&'static self) -> bool {
        if self.ranges.load(Relaxed) == 0 {
            return true;
        }
        if !self.lock.try_lock() {
            return false;
        }
        let mut dropped = Dropped::new();
        let mut is_done = true;
        for at in self.overlapping(0, usize::MAX) {
            if at.block.has(Flag::DISOWNED) {
                is_done &= at.try_lock().is_some_and(|mut locked| self.undo(&mut locked, &mut dropped));
            }
        }
        self.lock.unlock();
        drop(dropped);
        is_done
    }

    /// Places the bytes of the views among `pages` where the program has moved the mapping.
    fn place_moved(&self, locked: &Locked, pages: PageRange, new_base: usize) -> bool {
        let mut views: SmallVec<[_; 8]> = SmallVec::new();
        if let Some(map) = locked.map() {
            map.for_each(pages, |run, state| {
                if let State::Viewed(view) = state {
                    views.push((run, view));
                }
            });
        }
        let uffd = CHANGES.uffd();
        let is_placed = views.iter().all(|(run, view)| {
            let skip = (run.start - pages.start) as usize * PAGE_BYTES;
            let source = view.segment.address() + view.offset_bytes;
            // SAFETY: `view` holds a reference to the segment, whose bytes are present. The destination is
            // the program's registered memory, in which `copy` fills absent pages only.
            let placed = unsafe { uffd.copy(new_base + skip, source, run.len_bytes()) };
            // EEXIST: placed by an earlier try. ENOENT, EINVAL: the mapping has changed again.
            placed.error.is_none_or(|errno| matches!(errno, Errno::EEXIST | Errno::ENOENT | Errno::EINVAL))
        });
        if is_placed {
            let _ = uffd.unregister(new_base, pages.len_bytes());
        }
        is_placed
    }
}
