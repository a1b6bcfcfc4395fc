//! One block of the heap: its lock, its page map, its registration.

use crate::apply::fill_views;
use crate::engine::{ENGINE, Phase};
use crate::live;
use crate::segment::{Open, Segment};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};
use uncopy_core::addr::{ByteRange, PAGE_BYTES, PageRange};
use uncopy_core::page_map::{Dropped, PageMap, State};
use uncopy_core::plan::{Piece, Pieces};
use uncopy_core::stats::Counter;
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::Lock;
use uncopy_sys::uffd::Uffd;

/// The program has it.
pub const ALLOCATED: u32 = 1;
/// Its addresses are registered with userfaultfd and it has a page map.
pub const REGISTERED: u32 = 1 << 1;
/// A view was made in it since it was allocated.
pub const HELD_A_VIEW: u32 = 1 << 2;
/// No page of it was ever touched.
pub const FRESH: u32 = 1 << 3;
/// Its addresses consist of more than one mapping since `mremap` moved pages in.
pub const RELOCATED: u32 = 1 << 4;

/// Longest run between two inputs that is compared with the segment, bytes.
const SEAM_BYTES: usize = 2 * PAGE_BYTES;

/// The program has changed the block's mapping itself (mprotect, munmap …): it never holds a view
/// again and is never handed out again.
pub const DISOWNED: u32 = 1 << 5;

/// What is known of a block. All-zero bytes are a block that was never allocated.
#[repr(C, align(64))]
pub struct Block {
    /// Guards `state` and the states of the block's pages.
    pub lock: Lock,
    /// `ALLOCATED` and its siblings.
    pub flags: AtomicU32,
    /// Index plus one of the next block in a free list.
    pub next_free: AtomicU32,
    /// Pages known to be absent: 0 lets a hook skip the lock.
    pub absent_pages: AtomicU32,
    /// Page after the last one that a fault put in place, and how many it put there.
    pub fault_end: AtomicU32,
    /// See `fault_end`.
    pub fault_batch: AtomicU32,
    /// Pages that the program asked for when it got the block.
    pub asked_pages: AtomicU32,
    /// Present pages counted as retained while the block is free.
    pub retained_pages: AtomicU32,
    /// What copying over short present runs has cost since a run was last moved out, ns.
    pub copied_over_ns: AtomicU32,
    /// Allocation site, for placement.
    pub alloc_site: AtomicU16,
    /// Initialised when the block is registered. Here and not behind a pointer: a copy that is elided
    /// costs what its cache misses cost.
    state: UnsafeCell<MaybeUninit<BlockState>>,
}

/// What a registered block holds.
struct BlockState {
    map: PageMap<Segment>,
    /// Where the next input may go on.
    open: Option<Open>,
}

// SAFETY: `state` is only touched under `lock`.
unsafe impl Sync for Block {}

/// A block and where it is.
#[derive(Clone, Copy)]
pub struct BlockRef {
    /// Its record.
    pub block: &'static Block,
    /// Address of its first byte.
    pub base: usize,
    /// Its pages.
    pub pages: u32,
}

impl BlockRef {
    /// Length, bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.pages as usize * PAGE_BYTES
    }

    /// All of its pages.
    #[must_use]
    pub const fn all(&self) -> PageRange {
        PageRange::new(0, self.pages)
    }

    /// The bytes of the block that `address..address + len_bytes` covers; `None` if it reaches out
    /// of the block.
    #[must_use]
    pub fn range(&self, address: usize, len_bytes: usize) -> Option<ByteRange> {
        let start = address.wrapping_sub(self.base);
        (start <= self.bytes() && len_bytes <= self.bytes() - start).then(|| ByteRange::at(start, len_bytes))
    }

    /// Whether some of its pages may be absent.
    #[must_use]
    pub fn may_have_absent_pages(&self) -> bool {
        self.block.absent_pages.load(Relaxed) != 0
    }

    /// Whether it is the same block.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.base == other.base
    }

    /// Takes the lock.
    #[must_use]
    pub fn lock(self) -> Locked {
        self.block.lock.lock();
        Locked { at: self }
    }

    /// Takes the lock if it is free.
    #[must_use]
    pub fn try_lock(self) -> Option<Locked> {
        self.block.lock.try_lock().then(|| Locked { at: self })
    }
}

/// A locked block.
pub struct Locked {
    /// Where it is.
    pub at: BlockRef,
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
        let registered = self.at.block.flags.load(Relaxed) & REGISTERED != 0;
        // SAFETY: `self` is the proof that the lock is held; a registered block's map is initialised.
        registered.then(|| unsafe { &(*self.at.block.state.get()).assume_init_ref().map })
    }

    /// Changes the page map and keeps the counts in step.
    pub fn change(&mut self, change: impl FnOnce(&mut PageMap<Segment>)) {
        if self.at.block.flags.load(Relaxed) & REGISTERED == 0 {
            return;
        }
        // SAFETY: `self` is the proof that the lock is held, and borrowed mutably; a registered
        // block's map is initialised.
        let map = unsafe { &mut (*self.at.block.state.get()).assume_init_mut().map };
        let before = map.views();
        change(map);
        let after = map.views();
        if after > before {
            live::raise(Counter::Views, Counter::ViewsPeak, after - before);
        } else if after < before {
            live::subtract(Counter::Views, before - after);
        }
        self.at.block.absent_pages.store(map.absent_pages(), Relaxed);
    }

    /// Registers the block with userfaultfd, so that it can hold views. Every page is present or
    /// (in a block never touched) empty afterwards.
    ///
    /// # Errors
    /// What the kernel says; the block is then as before.
    pub fn register(&mut self, uffd: Uffd) -> Result<(), Errno> {
        let block = self.at.block;
        let flags = block.flags.load(Relaxed);
        if flags & (RELOCATED | DISOWNED) != 0 || ENGINE.phase() != Phase::Active {
            // UFFDIO_MOVE does not cross mappings; a disowned block's are the program's.
            return Err(Errno(22));
        }
        if flags & REGISTERED != 0 {
            return Ok(());
        }
        if live::get(Counter::RegisteredBlocks) >= ENGINE.most_registered() {
            return Err(Errno(12));
        }
        let (base, bytes) = (self.at.base, self.at.bytes());
        let mut map = PageMap::new();
        if flags & FRESH != 0 {
            uffd.register(base, bytes)?;
            // Never touched, but pages may be there all the same: locked memory is populated, and a huge
            // page may reach over from a neighbour.
            if ENGINE.heap.discard_pages(base, bytes).is_ok() {
                map.set_empty(self.at.all(), &mut Dropped::new());
            } else {
                uffd.unregister(base, bytes)?;
                ENGINE.heap.populate(base, bytes)?;
                uffd.register(base, bytes)?;
            }
        } else {
            ENGINE.heap.populate(base, bytes)?;
            uffd.register(base, bytes)?;
        }
        block.absent_pages.store(map.absent_pages(), Relaxed);
        // SAFETY: `self` is the proof that the lock is held.
        unsafe { (*block.state.get()).write(BlockState { map, open: None }) };
        block.flags.fetch_or(REGISTERED, Relaxed);
        block.flags.fetch_and(!FRESH, Relaxed);
        live::add(Counter::RegisteredBlocks, 1);
        Ok(())
    }

    /// Puts the bytes of every view in place and takes the registration back: the block is ordinary memory
    /// from here on, whose empty pages are the kernel's to fill. False: that could not be done for all
    /// of it; what is left goes on being served.
    pub fn make_plain(&mut self, uffd: Uffd, dropped: &mut Dropped<Segment>) -> bool {
        if self.at.block.flags.load(Relaxed) & REGISTERED == 0 {
            return true;
        }
        if let Some(open) = self.exchange_open(None) {
            open.close();
        }
        fill_views(uffd, self, self.at.all(), dropped);
        let is_filled = self.map().is_some_and(|map| map.views() == 0);
        if !is_filled || uffd.unregister(self.at.base, self.at.bytes()).is_err() {
            return false;
        }
        let all = self.at.all();
        self.change(|map| map.set_present(all, &mut Dropped::new()));
        // SAFETY: as in `change`; without the flag nobody looks at the state again before it is written.
        unsafe { (*self.at.block.state.get()).assume_init_drop() };
        self.at.block.flags.fetch_and(!REGISTERED, Relaxed);
        live::subtract(Counter::RegisteredBlocks, 1);
        true
    }

    /// Exchanges what waits for the next input.
    #[must_use]
    pub fn exchange_open(&mut self, open: Option<Open>) -> Option<Open> {
        if self.at.block.flags.load(Relaxed) & REGISTERED == 0 {
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
        let hidden = next.address() + next_offset_bytes - seam_bytes;
        // SAFETY: the seam is present and the block locked; the segment is held by `next`.
        let same = unsafe { uncopy_sys::bytes::equal(plain as *const u8, hidden as *const u8, seam_bytes) };
        if same {
            pieces.pop();
            if let Some(Piece::Segment { len_bytes, .. }) = pieces.last_mut() {
                *len_bytes = whole_bytes;
            }
        }
        same
    }
}
