//! One block of the heap: its lock, its page map, its registration.

use crate::arena::pages::ARENA;
use crate::arena::segment::{Open, Segment};
use crate::range::changes::CHANGES;
use crate::state::counters;
use core::mem::MaybeUninit;
use uncopy_core::addr::{ByteRange, PAGE_BYTES, PageRange, pages_up};
use uncopy_core::page_map::{PageMap, SiteId, State};
use uncopy_core::plan::{Piece, Pieces};
use uncopy_core::stats::Counter;
use uncopy_sys::lock::Lock;
use uncopy_sys::sync::UnsafeCell;
use uncopy_sys::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};
use uncopy_sys::uffd::Uffd;

/// Views of one block at most, except for those that overwriting splits.
const MAX_VIEWS: usize = 2048;

/// Longest run between two inputs that is compared with the segment, bytes.
const SEAM_BYTES: usize = 2 * PAGE_BYTES;

/// Copies of a block's views after which these are put in place: that costs about as much as one of them.
const MAX_COPIES: u16 = 32;

/// A property of a block.
#[derive(Clone, Copy)]
pub struct Flag(u32);

impl Flag {
    /// The program has it.
    pub const ALLOCATED: Self = Self(1);
    /// Its addresses are registered with userfaultfd and it has a page map.
    pub const REGISTERED: Self = Self(1 << 1);
    /// A view was made in it since it was allocated.
    pub const HELD_A_VIEW: Self = Self(1 << 2);
    /// No page of it was ever touched.
    pub const FRESH: Self = Self(1 << 3);
    /// Its addresses consist of more than one mapping since `mremap` moved pages in.
    pub const RELOCATED: Self = Self(1 << 4);
    /// The program has changed the block's mapping itself (mprotect, munmap …): it never holds a view
    /// again and is never handed out again.
    pub const DISOWNED: Self = Self(1 << 5);
    /// Of a foreign range: every page was made present when it was registered.
    pub const POPULATED: Self = Self(1 << 6);
    /// A stack lies in it that a hook ran on (a coroutine's): it is plain memory until it is freed. Nobody may fault
    /// on his own stack while he holds locks.
    pub const STACK: Self = Self(1 << 7);
}

/// What is known of a block. All-zero bytes are a block that was never allocated.
#[repr(C, align(64))]
pub struct Block {
    /// Guards `state` and the states of the block's pages.
    pub lock: Lock,
    /// The [`Flag`]s that are set.
    flags: AtomicU32,
    /// Index plus one of the next block in a free list.
    next_free: AtomicU32,
    /// Pages known to be absent: 0 lets a hook skip the lock.
    absent_pages: AtomicU32,
    /// Page after the last one that a fault put in place, and how many it put there.
    fault_end: AtomicU32,
    /// See `fault_end`.
    fault_batch: AtomicU32,
    /// Pages that the program asked for when it got the block.
    asked_pages: AtomicU32,
    /// Copies of its views that were made for want of anything better.
    copies: AtomicU16,
    /// Bytes before the program's first one: see [`lead_bytes`](Self::lead_bytes).
    lead_bytes: AtomicU16,
    /// Present pages counted as retained while the block is free.
    retained_pages: AtomicU32,
    /// What copying over short present runs has cost since a run was last moved out, ns.
    copied_over_ns: AtomicU32,
    /// How often the lock was taken: tells the fault service that a thread has held it all the while.
    turns: AtomicU32,
    /// Pages that the last copy or input into it touched, from here …
    buffer_start: AtomicU32,
    /// … to here, exclusive.
    buffer_end: AtomicU32,
    /// The site of that copy or input.
    buffer_site: AtomicU16,
    /// Allocation site, for placement.
    alloc_site: AtomicU16,
    /// Initialised when the block is registered. Here and not behind a pointer: a copy that is elided
    /// costs what its cache misses cost.
    state: UnsafeCell<MaybeUninit<BlockState>>,
}

/// Pages that a fault put in place.
#[derive(Clone, Copy)]
pub(crate) struct FaultBatch {
    /// Page after the last of them.
    pub end: u32,
    /// How many.
    pub pages: u32,
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
            lead_bytes: AtomicU16::new(0),
            copies: AtomicU16::new(0),
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
    /// Whether a flag is set.
    #[inline]
    #[must_use]
    pub fn has(&self, flag: Flag) -> bool {
        self.flags.load(Relaxed) & flag.0 != 0
    }

    /// Sets a flag; whether it was set before.
    #[inline]
    pub fn set(&self, flag: Flag) -> bool {
        self.flags.fetch_or(flag.0, Relaxed) & flag.0 != 0
    }

    /// Clears a flag; whether it was set before.
    #[inline]
    pub fn clear(&self, flag: Flag) -> bool {
        self.flags.fetch_and(!flag.0, Relaxed) & flag.0 != 0
    }

    /// Allocation site, for placement.
    #[must_use]
    pub fn alloc_site(&self) -> u16 {
        self.alloc_site.load(Relaxed)
    }

    /// Pages that the program asked for when it got the block.
    #[must_use]
    pub fn asked_pages(&self) -> u32 {
        self.asked_pages.load(Relaxed)
    }

    /// Records who asks for the block, and for how many bytes, which begin `lead_bytes` into it.
    pub(super) fn set_request(&self, alloc_site: u16, lead_bytes: u16, len_bytes: usize) {
        self.alloc_site.store(alloc_site, Relaxed);
        self.lead_bytes.store(lead_bytes, Relaxed);
        self.asked_pages.store(pages_up(usize::from(lead_bytes) + len_bytes), Relaxed);
    }

    /// Takes note of a copy of its views that was not elided; whether it is one of every [`MAX_COPIES`].
    #[must_use]
    pub fn is_copied_often(&self) -> bool {
        let copies = self.copies.load(Relaxed) + 1;
        self.copies.store(copies % MAX_COPIES, Relaxed);
        copies >= MAX_COPIES
    }

    /// Bytes before the first one that the program was given, less than a page. Blocks that all began at a page's start
    /// would alias: a string move whose destination is up to 63 bytes ahead of its source modulo 4096 takes 1.7 times as
    /// long on AMD's processors, in the program's copies as in the kernel's.
    #[must_use]
    pub fn lead_bytes(&self) -> usize {
        usize::from(self.lead_bytes.load(Relaxed))
    }

    /// Pages known to be absent: 0 lets a hook skip the lock.
    #[must_use]
    pub fn absent_pages(&self) -> u32 {
        self.absent_pages.load(Relaxed)
    }

    /// Present pages counted as retained while the block is free.
    pub(super) fn retained_pages(&self) -> u32 {
        self.retained_pages.load(Relaxed)
    }

    /// Sets that number.
    pub(super) fn set_retained_pages(&self, pages: u32) {
        self.retained_pages.store(pages, Relaxed);
    }

    /// Takes that number: the block is not free any more.
    pub(super) fn take_retained_pages(&self) -> u32 {
        self.retained_pages.swap(0, Relaxed)
    }

    /// Sets the link in a free list: index plus one of the next block. Under the class's lock.
    pub(super) fn set_next_free(&self, link: u32) {
        self.next_free.store(link, Relaxed);
    }

    /// Takes the link: the block is in no list any more. Under the class's lock.
    pub(super) fn take_next_free(&self) -> u32 {
        self.next_free.swap(0, Relaxed)
    }

    /// What copying over short present runs has cost since a run was last moved out, ns.
    pub(super) fn copied_over_ns(&self) -> u32 {
        self.copied_over_ns.load(Relaxed)
    }

    /// Sets that.
    pub(super) fn set_copied_over_ns(&self, ns: u32) {
        self.copied_over_ns.store(ns, Relaxed);
    }

    /// How often the lock was taken: tells the fault service that a thread has held it all the while.
    pub(crate) fn turns(&self) -> u32 {
        self.turns.load(Acquire)
    }

    /// What the last fault put in place.
    pub(crate) fn last_batch(&self) -> FaultBatch {
        FaultBatch { end: self.fault_end.load(Relaxed), pages: self.fault_batch.load(Relaxed) }
    }

    /// Sets that. For the fault service.
    pub(crate) fn set_last_batch(&self, batch: FaultBatch) {
        self.fault_end.store(batch.end, Relaxed);
        self.fault_batch.store(batch.pages, Relaxed);
    }

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

/// Place for one foreign range.
pub struct Slot {
    pub(super) block: Block,
    /// Address of the first byte; 0: free.
    pub(super) base: AtomicUsize,
    pub(super) pages: AtomicU32,
}

impl Slot {
    uncopy_sys::constant! {
        /// A free one.
        #[must_use]
        pub const fn new() -> Self {
            Self { block: Block::new(), base: AtomicUsize::new(0), pages: AtomicU32::new(0) }
        }
    }

    pub(super) fn at(&'static self) -> BlockRef {
        BlockRef {
            block: &self.block,
            base: self.base.load(Acquire),
            pages: self.pages.load(Acquire),
            slot: Some(self),
        }
    }

    /// Whether it stands for this range. Certain only while its block is locked.
    pub(crate) fn is(&self, at: &BlockRef) -> bool {
        self.base.load(Acquire) == at.base && self.pages.load(Acquire) == at.pages
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

    /// The address of the program's first byte in a block of the heap.
    #[must_use]
    pub fn start(&self) -> usize {
        self.base + self.block.lead_bytes()
    }

    /// Bytes that the program may use from there on.
    #[must_use]
    pub fn room_bytes(&self) -> usize {
        self.bytes() - self.block.lead_bytes()
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
        if self.slot.is_some() { CHANGES.uffd() } else { ARENA.uffd() }
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
    pub(super) const fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }

    /// The block is registered from here on, its pages as `map` says.
    pub(super) fn begin(&mut self, map: PageMap<Segment>) {
        let block = self.at.block;
        block.absent_pages.store(map.absent_pages(), Relaxed);
        // SAFETY: `self` is the proof that the lock is held.
        unsafe { (*block.state.get()).write(BlockState { map, open: None }) };
        block.set(Flag::REGISTERED);
        block.clear(Flag::FRESH);
    }

    /// The block is not registered any more. It must be.
    pub(super) fn end(&mut self) {
        // SAFETY: as in `change`; without the flag nobody looks at the state again before it is written.
        unsafe { (*self.at.block.state.get()).assume_init_drop() };
        self.at.block.clear(Flag::REGISTERED);
    }

    /// Whether it has a page map.
    pub(super) fn is_registered(&self) -> bool {
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
