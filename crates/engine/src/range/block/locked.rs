//! A locked block: its page map, and what its bytes are.

use super::record::{BlockRef, BlockState, Flag};
use crate::arena::segment::{Open, Segment};
use crate::range::changes::CHANGES;
use crate::state::counters;
use uncopy_core::addr::{ByteRange, PAGE_BYTES};
use uncopy_core::page_map::{PageMap, State};
use uncopy_core::plan::{Piece, Pieces};
use uncopy_core::stats::Counter;
use uncopy_sys::sync::atomic::Ordering::Relaxed;

/// Views of one block at most, except for those that overwriting splits.
const MAX_VIEWS: usize = 2048;

/// Longest run between two inputs that is compared with the segment, bytes.
const SEAM_BYTES: usize = 2 * PAGE_BYTES;

impl BlockRef {
    /// Takes the lock, for a hook: a foreign range whose mapping the program may have changed meanwhile
    /// looks like ordinary memory.
    #[must_use]
    pub fn lock(self) -> Locked {
        self.block.lock.lock();
        self.count_turn();
        let is_doubtful = self.slot.is_some_and(|slot| {
            !slot.is(&self) || self.block.has(Flag::DISOWNED) || CHANGES.may_be_changing()
        });
        Locked { at: self, is_doubtful }
    }

    /// Takes the lock, for whoever serves faults or takes views away: what is there shows, whatever becomes
    /// of the mapping.
    #[must_use]
    pub fn lock_for_service(self) -> Locked {
        self.block.lock.lock();
        self.count_turn();
        self.locked_for_service()
    }

    /// The same if the lock is free.
    #[must_use]
    pub fn try_lock(self) -> Option<Locked> {
        self.block.lock.try_lock().then(|| {
            self.count_turn();
            self.locked_for_service()
        })
    }

    /// The block as the thread that has locked it sees it; the lock is neither taken nor given back.
    ///
    /// # Safety
    /// The caller must be the thread that has it locked, or know that this one does nothing with it.
    #[must_use]
    pub(crate) unsafe fn seen_through(self) -> core::mem::ManuallyDrop<Locked> {
        core::mem::ManuallyDrop::new(self.locked_for_service())
    }

    fn count_turn(&self) {
        // Under the lock: nobody else writes.
        self.block.turns.store(self.block.turns.load(Relaxed).wrapping_add(1), Relaxed);
    }

    fn locked_for_service(self) -> Locked {
        let mut locked = Locked { at: self, is_doubtful: false };
        locked.is_doubtful = locked.is_another();
        locked
    }
}

/// A locked block.
pub struct Locked {
    /// Where it is.
    pub at: BlockRef,
    /// What is known of it may not hold any more: it is taken for ordinary memory.
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
        // SAFETY: `self` is the proof that the lock is held; a registered block's map is initialised.
        self.is_registered().then(|| unsafe { &(*self.at.block.state.get()).assume_init_ref().map })
    }

    /// Whether the slot of a foreign range has come to stand for another one.
    #[must_use]
    pub fn is_another(&self) -> bool {
        self.at.slot.is_some_and(|slot| !slot.is(&self.at))
    }

    /// Whether what is known of the block may not hold any more.
    pub(in crate::range) const fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }

    /// The block is registered from here on, its pages as `map` says.
    pub(in crate::range) fn begin(&mut self, map: PageMap<Segment>) {
        let block = self.at.block;
        block.absent_pages.store(map.absent_pages(), Relaxed);
        // SAFETY: `self` is the proof that the lock is held.
        unsafe { (*block.state.get()).write(BlockState { map, open: None }) };
        block.set(Flag::REGISTERED);
        block.clear(Flag::FRESH);
    }

    /// The block is not registered any more. It must be.
    pub(in crate::range) fn end(&mut self) {
        // SAFETY: as in `change`; without the flag nobody looks at the state again before it is written.
        unsafe { (*self.at.block.state.get()).assume_init_drop() };
        self.at.block.clear(Flag::REGISTERED);
    }

    /// Whether it has a page map.
    pub(in crate::range) fn is_registered(&self) -> bool {
        self.at.block.has(Flag::REGISTERED) && !self.is_doubtful
    }

    /// Whether there are so many views in the block that no copy adds to them, and no fault splits one: the
    /// list of them is to fit the reserve of the allocator for our own data many times over.
    #[must_use]
    pub fn has_many_views(&self) -> bool {
        self.map().is_some_and(|map| map.views() > MAX_VIEWS)
    }

    /// Changes the page map and keeps the counts in step.
    pub fn change(&mut self, change: impl FnOnce(&mut PageMap<Segment>)) {
        if !self.is_registered() {
            return;
        }
        // SAFETY: `self` is the proof that the lock is held, and borrowed mutably; a registered
        // block's map is initialised.
        let map = unsafe { &mut (*self.at.block.state.get()).assume_init_mut().map };
        let before = map.views();
        change(map);
        let after = map.views();
        if after > before {
            counters::raise(Counter::Views, Counter::ViewsPeak, after - before);
        } else if after < before {
            counters::subtract(Counter::Views, before - after);
        }
        self.at.block.absent_pages.store(map.absent_pages(), Relaxed);
    }

    /// Begins anew: for a slot that comes to stand for another range. It must not be registered.
    pub fn reset(&mut self) {
        let block = self.at.block;
        debug_assert!(!block.has(Flag::REGISTERED));
        for field in [&block.flags, &block.absent_pages, &block.fault_end, &block.copied_over_ns] {
            field.store(0, Relaxed);
        }
    }

    /// What waits for the next input.
    #[must_use]
    pub fn open(&self) -> Option<&Open> {
        if !self.is_registered() {
            return None;
        }
        // SAFETY: as in `map`.
        unsafe { (*self.at.block.state.get()).assume_init_ref().open.as_ref() }
    }

    /// Exchanges what waits for the next input.
    #[must_use]
    pub fn exchange_open(&mut self, open: Option<Open>) -> Option<Open> {
        if !self.is_registered() {
            return open;
        }
        // SAFETY: as in `change`.
        let held = unsafe { &mut (*self.at.block.state.get()).assume_init_mut().open };
        Open::count(open.as_ref(), held.as_ref());
        core::mem::replace(held, open)
    }

    /// Where the bytes of `range` are.
    #[must_use]
    pub fn pieces(&self, range: ByteRange) -> Pieces<Segment> {
        let mut pieces = Pieces::new();
        let Some(map) = self.map() else {
            pieces.push(Piece::Plain { len_bytes: range.len() });
            return pieces;
        };
        map.for_each(range.touched_pages(), |pages, state| {
            let bytes = ByteRange::from(pages).intersection(range);
            let len_bytes = bytes.len();
            match state {
                State::Present => pieces.push(Piece::Plain { len_bytes }),
                State::Empty => pieces.push(Piece::Zeroes { len_bytes }),
                State::Viewed(view) => {
                    let offset_bytes = view.offset_bytes + (bytes.start - pages.start_bytes());
                    if !self.mends(&mut pieces, &view.segment, offset_bytes, bytes) {
                        pieces.push(Piece::Segment { segment: view.segment, offset_bytes, len_bytes });
                    }
                }
            }
        });
        pieces
    }

    /// Joins a view with the one before it where only a short present run lies between them that still
    /// holds the bytes which the segment has there: the seam between two inputs of one message. The
    /// comparison costs less than tracking the seam through every further copy.
    fn mends(
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
        // SAFETY: the seam is present and the block locked; the segment is held by `next`.
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
