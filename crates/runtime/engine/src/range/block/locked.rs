//! A locked block: page map, open end, and the pieces that hold the block's bytes.

use super::record::{BlockRef, BlockState, Flag};
use crate::arena::segment::{OpenEnd, Segment};
use crate::range::changes::CHANGES;
use crate::state::counters;
use uncopy_core::addr::{ByteRange, PAGE_BYTES};
use uncopy_core::page_map::{PageMap, State};
use uncopy_core::plan::{Piece, Pieces};
use uncopy_core::stats::Counter;
use uncopy_sys::sync::atomic::Ordering::Relaxed;

/// Bound on the views of one block, except for those that overwriting splits.
const MAX_VIEWS: usize = 2048;

/// Longest run between two inputs that is compared with the segment, bytes.
const SEAM_BYTES: usize = 2 * PAGE_BYTES;

impl BlockRef {
    /// Takes the lock, for a hook: a foreign range whose mapping the program may have changed meanwhile is
    /// treated as ordinary memory.
    #[must_use]
    pub fn lock(self) -> Locked {
        self.block.lock.lock();
        self.count_lock();
        let is_doubtful = self.slot.is_some_and(|slot| {
            !slot.is(&self) || self.block.has(Flag::DISOWNED) || CHANGES.may_be_changing()
        });
        Locked { at: self, is_doubtful }
    }

    /// Takes the lock, for a thread that serves faults or removes views: the page map is used whatever
    /// becomes of the mapping.
    #[must_use]
    pub fn lock_for_handler(self) -> Locked {
        self.block.lock.lock();
        self.count_lock();
        self.locked_for_service()
    }

    /// Takes the lock as [`lock_for_handler`](Self::lock_for_handler) does, if it is free.
    #[must_use]
    pub fn try_lock(self) -> Option<Locked> {
        self.block.lock.try_lock().then(|| {
            self.count_lock();
            self.locked_for_service()
        })
    }

    /// Returns the block as its locking thread sees it, without taking the lock; dropping the result does
    /// not release it.
    ///
    /// # Safety
    /// The caller must hold the lock, or know that the thread that holds it does not touch the block meanwhile.
    #[must_use]
    pub(crate) unsafe fn assume_locked(self) -> core::mem::ManuallyDrop<Locked> {
        core::mem::ManuallyDrop::new(self.locked_for_service())
    }

    fn count_lock(&self) {
        // A plain load and store suffice: writers hold the lock.
        self.block.lock_count.store(self.block.lock_count.load(Relaxed).wrapping_add(1), Relaxed);
    }

    fn locked_for_service(self) -> Locked {
        let mut locked = Locked { at: self, is_doubtful: false };
        locked.is_doubtful = locked.is_stale();
        locked
    }
}

/// A block whose lock is held until this value is dropped.
pub struct Locked {
    /// The block and its position.
    pub at: BlockRef,
    /// Whether the page map may be outdated; the block is then treated as ordinary memory.
    is_doubtful: bool,
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.at.block.lock.unlock();
    }
}

impl Locked {
    /// The page map; `None` while the block is not registered.
    #[must_use]
    pub fn map(&self) -> Option<&PageMap<Segment>> {
        // SAFETY: `self` holds the lock, which guards `state`; the state of a registered block is initialised.
        self.is_registered().then(|| unsafe { &(*self.at.block.state.get()).assume_init_ref().map })
    }

    /// Whether the slot of a foreign range has been reused for another range.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.at.slot.is_some_and(|slot| !slot.is(&self.at))
    }

    pub(in crate::range) const fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }

    /// Marks the block as registered, with `map` as its page map.
    pub(in crate::range) fn begin(&mut self, map: PageMap<Segment>) {
        let block = self.at.block;
        block.absent_pages.store(map.absent_pages(), Relaxed);
        // SAFETY: `self` holds the lock, which guards `state`; `&mut self` excludes other references to it.
        unsafe { (*block.state.get()).write(BlockState { map, open: None }) };
        block.set(Flag::REGISTERED);
        block.clear(Flag::FRESH);
    }

    /// Marks the block, which must be registered, as not registered.
    pub(in crate::range) fn end(&mut self) {
        // SAFETY: `self` holds the lock, which guards `state`; a registered block's state is initialised,
        // and without the flag, cleared below, it is not read again before it is written.
        unsafe { (*self.at.block.state.get()).assume_init_drop() };
        self.at.block.clear(Flag::REGISTERED);
    }

    /// Whether the block has a page map in force.
    pub(in crate::range) fn is_registered(&self) -> bool {
        self.at.block.has(Flag::REGISTERED) && !self.is_doubtful
    }

    /// Whether the block has so many views that copies must not add any, nor faults split one: the list of
    /// views must fit the reserve of the private allocator many times over.
    #[must_use]
    pub fn has_many_views(&self) -> bool {
        self.map().is_some_and(|map| map.views() > MAX_VIEWS)
    }

    /// Changes the page map and updates the counts.
    pub fn change(&mut self, change: impl FnOnce(&mut PageMap<Segment>)) {
        if !self.is_registered() {
            return;
        }
        // SAFETY: `self` holds the lock, which guards `state`, and is borrowed mutably; the state of a
        // registered block is initialised.
        let map = unsafe { &mut (*self.at.block.state.get()).assume_init_mut().map };
        let before = map.views();
        change(map);
        let after = map.views();
        if after > before {
            counters::add_with_peak(Counter::Views, Counter::ViewsPeak, after - before);
        } else if after < before {
            counters::subtract(Counter::Views, before - after);
        }
        self.at.block.absent_pages.store(map.absent_pages(), Relaxed);
    }

    /// Resets the record of a slot for another range. The block must not be registered.
    pub fn reset(&mut self) {
        let block = self.at.block;
        debug_assert!(!block.has(Flag::REGISTERED));
        for field in [&block.flags, &block.absent_pages, &block.fault_end, &block.copied_over_ns] {
            field.store(0, Relaxed);
        }
    }

    /// The open end, for the next input.
    #[must_use]
    pub fn open(&self) -> Option<&OpenEnd> {
        if !self.is_registered() {
            return None;
        }
        // SAFETY: `self` holds the lock, which guards `state`; the state of a registered block is initialised.
        unsafe { (*self.at.block.state.get()).assume_init_ref().open.as_ref() }
    }

    /// Replaces the open end; returns the old one, or `open` itself if the block is not registered.
    #[must_use]
    pub fn exchange_open(&mut self, open: Option<OpenEnd>) -> Option<OpenEnd> {
        if !self.is_registered() {
            return open;
        }
        // SAFETY: `self` holds the lock, which guards `state`, and is borrowed mutably; the state of a
        // registered block is initialised.
        let held = unsafe { &mut (*self.at.block.state.get()).assume_init_mut().open };
        OpenEnd::count(open.as_ref(), held.as_ref());
        core::mem::replace(held, open)
    }

    /// Returns the pieces that hold the bytes of `range`.
    #[must_use]
    pub fn pieces(&self, range: ByteRange) -> Pieces<Segment> {
        let mut pieces = Pieces::new();
        let Some(map) = self.map() else {
            pieces.push(Piece::Plain { len_bytes: range.len() });
            return pieces;
        };
        map.for_each(range.overlapped_pages(), |pages, state| {
            let bytes = ByteRange::from(pages).intersection(range);
            let len_bytes = bytes.len();
            match state {
                State::Present => pieces.push(Piece::Plain { len_bytes }),
                State::Empty => pieces.push(Piece::Zeroes { len_bytes }),
                State::Viewed(view) => {
                    let offset_bytes = view.offset_bytes + (bytes.start - pages.start_bytes());
                    if !self.joins_seam(&mut pieces, &view.segment, offset_bytes, bytes) {
                        pieces.push(Piece::Segment { segment: view.segment, offset_bytes, len_bytes });
                    }
                }
            }
        });
        pieces
    }

    /// Joins a view with the one before it if only a short present run lies between them that still holds
    /// the segment's bytes: the seam between two inputs of one message. The comparison costs less than
    /// tracking the seam through every further copy.
    fn joins_seam(
        &self,
        pieces: &mut Pieces<Segment>,
        next: &Segment,
        next_offset_bytes: usize,
        bytes: ByteRange,
    ) -> bool {
        let [.., Piece::Segment { segment, offset_bytes, len_bytes }, Piece::Plain { len_bytes: seam_bytes }] =
            pieces.as_slice()
        else {
            return false;
        };
        let joins = segment == next && offset_bytes + len_bytes + seam_bytes == next_offset_bytes;
        if !joins || *seam_bytes > SEAM_BYTES {
            return false;
        }
        let (seam_bytes, whole_bytes) = (*seam_bytes, len_bytes + seam_bytes + bytes.len());
        let plain = self.at.base + bytes.start - seam_bytes;
        let arena = next.address() + next_offset_bytes - seam_bytes;
        // SAFETY: the seam's pages are present and the block is locked; `next` holds a reference to the segment.
        let same = unsafe { uncopy_sys::bytes::equal(plain as *const u8, arena as *const u8, seam_bytes) };
        if same {
            pieces.pop();
            if let Some(Piece::Segment { len_bytes, .. }) = pieces.last_mut() {
                *len_bytes = whole_bytes;
            }
        }
        same
    }
}
