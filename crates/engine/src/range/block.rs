//! One block of the heap: its lock, its page map, its registration.

use crate::arena::segment::{Open, Segment};
use crate::range::apply::fill_views;
use crate::range::foreign::{Slot, can_hold_views};
use crate::service::activation::{ENGINE, Phase};
use crate::state::counters;
use core::mem::MaybeUninit;
use core::ops::Range;
use uncopy_core::addr::{ByteRange, PAGE_BYTES, PageRange};
use uncopy_core::page_map::{Dropped, PageMap, SiteId, State};
use uncopy_core::plan::{Piece, Pieces};
use uncopy_core::stats::Counter;
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::Lock;
use uncopy_sys::mem;
use uncopy_sys::sync::UnsafeCell;
use uncopy_sys::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};
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

/// Views of one block at most, except for those that overwriting splits.
const MAX_VIEWS: usize = 2048;

/// Longest run between two inputs that is compared with the segment, bytes.
const SEAM_BYTES: usize = 2 * PAGE_BYTES;

/// The program has changed the block's mapping itself (mprotect, munmap …): it never holds a view
/// again and is never handed out again.
pub const DISOWNED: u32 = 1 << 5;

/// Of a foreign range: every page was made present when it was registered.
pub const POPULATED: u32 = 1 << 6;

/// Foreign ranges up to here are made present as a whole: the input that is about to come will fill most of
/// it. Of longer ones only what is to be viewed is.
const POPULATE_BYTES: usize = 4 << 20;
/// Of a plain block that is to be registered: with more runs of absent pages than this, all of them are filled.
const MAX_ABSENT_RUNS: usize = 64;

/// A stack lies in it that a hook ran on (a coroutine's): it is plain memory until it is freed. Nobody may fault
/// on his own stack while he holds locks.
pub const STACK: u32 = 1 << 7;

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
    /// How often the lock was taken: tells the fault service that a thread has held it all the while.
    pub turns: AtomicU32,
    /// Pages that the last copy or input into it touched, from here …
    pub buffer_start: AtomicU32,
    /// … to here, exclusive.
    pub buffer_end: AtomicU32,
    /// The site of that copy or input.
    pub buffer_site: AtomicU16,
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

impl Block {
    uncopy_sys::constant! {
    /// One that was never allocated.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            lock: Lock::new(),
            flags: AtomicU32::new(0),
            next_free: AtomicU32::new(0),
            absent_pages: AtomicU32::new(0),
            fault_end: AtomicU32::new(0),
            fault_batch: AtomicU32::new(0),
            asked_pages: AtomicU32::new(0),
            retained_pages: AtomicU32::new(0),
            copied_over_ns: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            buffer_start: AtomicU32::new(0),
            buffer_end: AtomicU32::new(0),
            buffer_site: AtomicU16::new(0),
            alloc_site: AtomicU16::new(0),
            state: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
    }
}

impl Block {
    /// The first page and the last that the program asked for.
    #[must_use]
    pub fn edges(&self) -> (u32, u32) {
        (0, self.asked_pages.load(Relaxed).saturating_sub(1))
    }
}

impl Default for Block {
    fn default() -> Self {
        Self::new()
    }
}

/// A block and where it is.
#[derive(Clone, Copy)]
pub struct BlockRef {
    /// Its record.
    pub block: &'static Block,
    /// Address of its first byte.
    pub base: usize,
    /// Its pages.
    pub pages: u32,
    /// Of a foreign range: its slot.
    pub slot: Option<&'static Slot>,
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

    /// Takes note of the buffer that a copy or an input of `site` has made views in. Under the lock.
    pub fn note_buffer(&self, site: SiteId, pages: PageRange) {
        self.block.buffer_start.store(pages.start, Relaxed);
        self.block.buffer_end.store(pages.end, Relaxed);
        self.block.buffer_site.store(site, Relaxed);
    }

    /// The site that made the last buffer in the block views.
    #[must_use]
    pub fn last_site(&self) -> SiteId {
        self.block.buffer_site.load(Relaxed)
    }

    /// The pages of the buffer that `page` belongs to, if `site` was the last to make views in the block.
    #[must_use]
    pub fn buffer(&self, site: SiteId, page: u32) -> Option<PageRange> {
        let field = |field: &AtomicU32| field.load(Relaxed);
        let pages = PageRange::new(field(&self.block.buffer_start), field(&self.block.buffer_end));
        let is_its = self.block.buffer_site.load(Relaxed) == site;
        (is_its && pages.start <= page && page < pages.end).then_some(pages)
    }

    /// Whether its lock is to be taken before the other's.
    #[must_use]
    pub fn comes_before(&self, other: &Self) -> bool {
        let key = |at: &Self| (at.slot.is_some(), core::ptr::from_ref(at.block) as usize);
        key(self) < key(other)
    }

    /// Whether both have one lock.
    #[must_use]
    pub fn shares_record(&self, other: &Self) -> bool {
        core::ptr::eq(self.block, other.block)
    }

    /// Whether it is the same block.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.base == other.base
    }

    /// Takes the lock, for a hook: a foreign range whose mapping the program may have changed meanwhile
    /// looks like ordinary memory.
    #[must_use]
    pub fn lock(self) -> Locked {
        self.block.lock.lock();
        self.count_turn();
        let is_doubtful = self.slot.is_some_and(|slot| {
            !slot.is(&self)
                || self.block.flags.load(Relaxed) & DISOWNED != 0
                || ENGINE.foreign.may_be_changing()
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

    /// The number of the page at an address inside it.
    #[must_use]
    pub const fn page(&self, address: usize) -> u32 {
        ((address - self.base) / PAGE_BYTES) as u32
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

    /// The userfaultfd that its addresses are, or would be, registered with.
    #[must_use]
    pub fn uffd(&self) -> Uffd {
        if self.slot.is_some() { ENGINE.foreign.uffd_or_none() } else { ENGINE.arena.uffd() }
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

    fn is_registered(&self) -> bool {
        self.at.block.flags.load(Relaxed) & REGISTERED != 0 && !self.is_doubtful
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

    /// Registers the block with userfaultfd, so that it can hold views. Every page is present afterwards or, if
    /// nobody has touched it, empty.
    ///
    /// # Errors
    /// What the kernel says; the block is then as before.
    pub fn register(&mut self) -> Result<(), Errno> {
        let block = self.at.block;
        let flags = block.flags.load(Relaxed);
        if uncopy_sys::alloc::is_low() {
            return Err(Errno::ENOMEM);
        }
        let is_refused = flags & (RELOCATED | DISOWNED | STACK) != 0 || self.is_doubtful;
        if is_refused || ENGINE.phase() != Phase::Active {
            // UFFDIO_MOVE does not cross mappings; a disowned block's are the program's.
            return Err(Errno::EINVAL);
        }
        if flags & REGISTERED != 0 {
            return if self.has_many_views() { Err(Errno::ENOMEM) } else { Ok(()) };
        }
        if counters::get(Counter::RegisteredBlocks) >= ENGINE.max_registered() {
            return Err(Errno::ENOMEM);
        }
        let (base, bytes, uffd) = (self.at.base, self.at.bytes(), self.at.uffd());
        let mut map = PageMap::new();
        if self.at.slot.is_some() {
            self.register_foreign()?;
        } else if flags & FRESH != 0 {
            uffd.register(base, bytes)?;
            // Never touched, but pages may be there all the same: locked memory is populated, and a huge
            // page may reach over from a neighbour.
            if ENGINE.heap.discard_pages(base, bytes).is_ok() {
                map.set_empty(self.at.all(), &mut Dropped::new());
            } else {
                // Whatever fails from here on: no page of it holds anything, and what is registered and not
                // known to be so reads as zeroes.
                uffd.unregister(base, bytes)?;
                ENGINE.heap.populate(base, bytes)?;
                uffd.register(base, bytes)?;
            }
        } else {
            uffd.register(base, bytes)?;
            // From here on nobody but the handler, which waits for this lock, puts a page where none is.
            let absent =
                |run: Range<u32>| map.set_empty(PageRange::new(run.start, run.end), &mut Dropped::new());
            if mem::absent_runs(base, self.at.pages, MAX_ABSENT_RUNS, absent).is_err() {
                map = PageMap::new();
                uffd.unregister(base, bytes)?;
                ENGINE.heap.populate(base, bytes)?;
                uffd.register(base, bytes)?;
            }
            // Known now, not only when it is freed: a program that fills its memory with what it receives had every
            // block of it populated for nothing.
            ENGINE.placement.record(block.alloc_site.load(Relaxed), true);
        }
        block.absent_pages.store(map.absent_pages(), Relaxed);
        // SAFETY: `self` is the proof that the lock is held.
        unsafe { (*block.state.get()).write(BlockState { map, open: None }) };
        block.flags.fetch_or(REGISTERED, Relaxed);
        block.flags.fetch_and(!FRESH, Relaxed);
        counters::add(Counter::RegisteredBlocks, 1);
        Ok(())
    }

    /// Registers a foreign range. What can be done to its mapping is reported from then on; so this is
    /// when to look whether it still is what it was when the range was claimed.
    fn register_foreign(&self) -> Result<(), Errno> {
        let BlockRef { block, base, .. } = self.at;
        let bytes = self.at.bytes();
        if bytes <= POPULATE_BYTES {
            mem::populate(base, bytes)?;
            block.flags.fetch_or(POPULATED, Relaxed);
        }
        let uffd = self.at.uffd();
        uffd.register(base, bytes)?;
        if can_hold_views(base, base + bytes) {
            return Ok(());
        }
        block.flags.fetch_or(DISOWNED, Relaxed);
        // Where it is refused, absent pages are served as what they are, empty.
        let _ = uffd.unregister(base, bytes);
        Err(Errno::EINVAL)
    }

    /// Of a foreign range: makes pages present that are about to be moved out, if that was not done when
    /// it was registered.
    pub fn populate(&self, pages: PageRange) {
        if self.at.slot.is_some() && self.at.block.flags.load(Relaxed) & POPULATED == 0 {
            // Where it is refused they are copied over, and fault.
            let _ = mem::populate(self.at.base + pages.start_bytes(), pages.len_bytes());
        }
    }

    /// Puts the bytes of every view in place and takes the registration back: the block is ordinary memory
    /// from here on, whose empty pages are the kernel's to fill. False: that could not be done for all
    /// of it; what is left goes on being served.
    pub fn make_plain(&mut self, dropped: &mut Dropped<Segment>) -> bool {
        if !self.is_registered() {
            return true;
        }
        if let Some(open) = self.exchange_open(None) {
            open.close();
        }
        fill_views(self, self.at.all(), dropped);
        let is_filled = self.map().is_some_and(|map| map.views() == 0);
        if !is_filled {
            return false;
        }
        let unregistered = self.at.uffd().unregister(self.at.base, self.at.bytes());
        // Faults outside every known range are answered with zeroes, which is what a foreign range's absent
        // pages hold once its views are gone.
        if unregistered.is_err() && self.at.slot.is_none() {
            return false;
        }
        self.forget_registration();
        true
    }

    /// Takes note that the block is not registered any more; it must hold no views.
    pub fn forget_registration(&mut self) {
        if !self.is_registered() {
            return;
        }
        let all = self.at.all();
        self.change(|map| map.set_present(all, &mut Dropped::new()));
        // Its room goes back; a call that still fills it holds a reference of its own.
        if let Some(open) = self.exchange_open(None) {
            open.close();
        }
        // SAFETY: as in `change`; without the flag nobody looks at the state again before it is written.
        unsafe { (*self.at.block.state.get()).assume_init_drop() };
        self.at.block.flags.fetch_and(!REGISTERED, Relaxed);
        counters::subtract(Counter::RegisteredBlocks, 1);
    }

    /// Begins anew: for a slot that comes to stand for another range. It must not be registered.
    pub fn reset(&mut self) {
        let block = self.at.block;
        debug_assert_eq!(block.flags.load(Relaxed) & REGISTERED, 0);
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
