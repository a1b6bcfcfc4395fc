//! The record of a block, and the block's position.

use crate::arena::pages::ARENA;
use crate::arena::segment::{OpenEnd, Segment};
use crate::range::changes::CHANGES;
use core::mem::MaybeUninit;
use uncopy_core::addr::{ByteRange, PAGE_BYTES, PageRange, pages_up};
use uncopy_core::page_map::{PageMap, SiteId};
use uncopy_sys::lock::Lock;
use uncopy_sys::sync::UnsafeCell;
use uncopy_sys::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};
use uncopy_sys::uffd::Uffd;

/// Copies of a block's views after which the views are put in place, at about the cost of one copy.
const MAX_COPIES: u16 = 32;

/// A property of a block.
#[derive(Clone, Copy)]
pub struct Flag(u32);

impl Flag {
    /// Allocated: the program has the block.
    pub const ALLOCATED: Self = Self(1);
    /// Registered with userfaultfd, with a page map.
    pub const REGISTERED: Self = Self(1 << 1);
    /// A view was made in the block since it was allocated.
    pub const HELD_A_VIEW: Self = Self(1 << 2);
    /// No page of the block was ever touched.
    pub const FRESH: Self = Self(1 << 3);
    /// The block consists of more than one mapping since `mremap` moved pages in.
    pub const RELOCATED: Self = Self(1 << 4);
    /// The program has changed the block's mapping (mprotect, munmap …). The block holds no view until it
    /// is freed, and afterwards only if `range::heap::renewal` makes it fit for another owner.
    pub const DISOWNED: Self = Self(1 << 5);
    /// Every page of the foreign range was made present when it was registered.
    pub const POPULATED: Self = Self(1 << 6);
    /// The block contains a stack that a hook ran on (a coroutine's). It is plain memory until it is freed:
    /// a thread must not fault on its own stack while it holds locks.
    pub const STACK: Self = Self(1 << 7);
    /// The program asked for huge pages in the block, which therefore holds no view.
    pub const HUGE_PAGES: Self = Self(1 << 8);
    /// The program gave advice about the block that does not affect views.
    pub const ADVISED: Self = Self(1 << 13);
    /// The block's mapping has properties that differ from other blocks'.
    pub const OTHER_PROPERTIES: Self = Self(1 << 9);
    /// Forked children do not inherit the block's mapping.
    pub const NOT_INHERITED: Self = Self(1 << 10);
    /// The program mapped over the block.
    pub const MAPPED_OVER: Self = Self(1 << 11);
    /// The program unmapped the block, or a part of it: see [`unmapped_pages`](Block::unmapped_pages).
    pub const UNMAPPED: Self = Self(1 << 12);
    /// Allocated while a trial left eliding out, or skipped by a copy for that reason: the absence of views
    /// says nothing about the site.
    pub const UNTRIED: Self = Self(1 << 14);

    /// Combines two flags: [`has`](Block::has) is then true for a block with either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Unit of usable sizes: a cache line. Blocks begin at cache lines, so the rounded-up length fits behind every start.
const USABLE_UNIT_BYTES: usize = 64;

/// The record of a block. All-zero bytes are a block that was never allocated.
#[repr(C, align(64))]
pub struct Block {
    /// Guards `state` and the states of the block's pages.
    pub lock: Lock,
    pub(super) flags: AtomicU32,
    /// Index plus one of the next block in a free list.
    next_free: AtomicU32,
    /// Pages known to be absent: 0 lets a hook skip the lock.
    pub(super) absent_pages: AtomicU32,
    /// Page after the last one that a fault put in place.
    pub(super) fault_end: AtomicU32,
    /// Number of pages that the last fault put in place.
    fault_batch: AtomicU32,
    /// Most pages that the program has asked for since it got the block.
    asked_pages: AtomicU32,
    /// Length last asked for, in units of [`USABLE_UNIT_BYTES`].
    usable_units: AtomicU32,
    /// Consecutive copies of the block's views that were not elided.
    copies: AtomicU16,
    /// Bytes before the program's first one: see [`lead_bytes`](Self::lead_bytes).
    lead_bytes: AtomicU16,
    /// Estimate of the pages that were present when the block was last freed.
    retained_pages: AtomicU32,
    /// Cost of copying over short present runs since a run was last moved out, ns.
    pub(super) copied_over_ns: AtomicU32,
    /// Number of times that the lock was taken: tells the handler whether one thread has held it all the while.
    pub(super) lock_count: AtomicU32,
    /// First page that the last copy or input touched. In a block that is [`Flag::UNMAPPED`], which holds no
    /// view any more: first page that the program unmapped.
    buffer_start: AtomicU32,
    /// Page after the last one of that run.
    buffer_end: AtomicU32,
    /// Site of the last copy or input that made views in the block.
    buffer_site: AtomicU16,
    /// Allocation site, for placement.
    alloc_site: AtomicU16,
    /// Initialised when the block is registered. Stored inline, not behind a pointer: the cost of an elided
    /// copy is the cost of its cache misses.
    pub(super) state: UnsafeCell<MaybeUninit<BlockState>>,
}

/// Pages that a fault put in place.
#[derive(Clone, Copy)]
pub(crate) struct FaultBatch {
    /// Page after the last one.
    pub end: u32,
    /// Number of these pages.
    pub pages: u32,
}

/// State of a registered block.
pub(super) struct BlockState {
    pub(super) map: PageMap<Segment>,
    /// Open end, where the next input may continue.
    pub(super) open: Option<OpenEnd>,
}

// SAFETY: `state` is accessed only by `Locked`, whose owner holds `lock`; all other fields are atomics.
unsafe impl Sync for Block {}

impl Block {
    uncopy_sys::constant! {
    /// The record of a block that was never allocated.
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
            usable_units: AtomicU32::new(0),
            lead_bytes: AtomicU16::new(0),
            copies: AtomicU16::new(0),
            retained_pages: AtomicU32::new(0),
            copied_over_ns: AtomicU32::new(0),
            lock_count: AtomicU32::new(0),
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

    /// Sets a flag; returns whether it was set before.
    #[inline]
    pub fn set(&self, flag: Flag) -> bool {
        self.flags.fetch_or(flag.0, Relaxed) & flag.0 != 0
    }

    /// Clears a flag; returns whether it was set before.
    #[inline]
    pub fn clear(&self, flag: Flag) -> bool {
        self.flags.fetch_and(!flag.0, Relaxed) & flag.0 != 0
    }

    /// Allocation site, for placement.
    #[must_use]
    pub fn alloc_site(&self) -> u16 {
        self.alloc_site.load(Relaxed)
    }

    /// Most pages that the program has asked for since it got the block.
    #[must_use]
    pub fn asked_pages(&self) -> u32 {
        self.asked_pages.load(Relaxed)
    }

    /// Records an allocation by `alloc_site` of `len_bytes`, which begin `lead_bytes` into the block.
    pub(in crate::range) fn set_request(&self, alloc_site: u16, lead_bytes: u16, len_bytes: usize) {
        self.forget_copies();
        self.alloc_site.store(alloc_site, Relaxed);
        self.lead_bytes.store(lead_bytes, Relaxed);
        self.asked_pages.store(pages_up(usize::from(lead_bytes) + len_bytes), Relaxed);
        self.set_usable(len_bytes);
    }

    fn set_usable(&self, len_bytes: usize) {
        self.usable_units.store(len_bytes.div_ceil(USABLE_UNIT_BYTES) as u32, Relaxed);
    }

    /// Returns the value for `malloc_usable_size`, bytes: the request rounded up, so that it depends on the
    /// request alone, not on the lead or the class. Programs add these values up.
    #[must_use]
    pub fn usable_bytes(&self) -> usize {
        self.usable_units.load(Relaxed) as usize * USABLE_UNIT_BYTES
    }

    /// Counts a copy of the block's views that was not elided; returns true at the last of [`MAX_COPIES`] in a row.
    #[must_use]
    pub fn count_copy(&self) -> bool {
        let copies = self.copies.load(Relaxed) + 1;
        self.copies.store(copies % MAX_COPIES, Relaxed);
        copies >= MAX_COPIES
    }

    /// Resets the count of copies, after an elided copy or for a new owner.
    pub fn forget_copies(&self) {
        if self.copies.load(Relaxed) != 0 {
            self.copies.store(0, Relaxed);
        }
    }

    /// Bytes before the program's first one, less than a page; see `range::heap`.
    #[must_use]
    pub fn lead_bytes(&self) -> usize {
        usize::from(self.lead_bytes.load(Relaxed))
    }

    /// Pages known to be absent: 0 lets a hook skip the lock.
    #[must_use]
    pub fn absent_pages(&self) -> u32 {
        self.absent_pages.load(Relaxed)
    }

    /// Estimate of the pages that were present when the block was last freed, and are retained while it is free.
    pub(in crate::range) fn retained_pages(&self) -> u32 {
        self.retained_pages.load(Relaxed)
    }

    pub(in crate::range) fn set_retained_pages(&self, pages: u32) {
        self.retained_pages.store(pages, Relaxed);
    }

    /// Sets the link in a free list: index plus one of the next block. Under the class's lock.
    pub(in crate::range) fn set_next_free(&self, link: u32) {
        self.next_free.store(link, Relaxed);
    }

    /// Takes the block out of a free list; returns the link. Under the class's lock.
    pub(in crate::range) fn take_next_free(&self) -> u32 {
        self.next_free.swap(0, Relaxed)
    }

    /// Cost of copying over short present runs since a run was last moved out, ns.
    pub(in crate::range) fn copied_over_ns(&self) -> u32 {
        self.copied_over_ns.load(Relaxed)
    }

    pub(in crate::range) fn set_copied_over_ns(&self, ns: u32) {
        self.copied_over_ns.store(ns, Relaxed);
    }

    /// Number of times that the lock was taken: tells the handler whether one thread has held it all the while.
    pub(crate) fn lock_count(&self) -> u32 {
        self.lock_count.load(Acquire)
    }

    pub(crate) fn last_batch(&self) -> FaultBatch {
        FaultBatch { end: self.fault_end.load(Relaxed), pages: self.fault_batch.load(Relaxed) }
    }

    /// Sets the pages that the last fault put in place: the `pages` pages before `end`. For the handler.
    pub(crate) fn set_last_batch(&self, end: u32, pages: u32) {
        self.fault_end.store(end, Relaxed);
        self.fault_batch.store(pages, Relaxed);
    }

    /// Smallest run with all pages that the program unmapped, if the block is [`Flag::UNMAPPED`].
    pub(in crate::range) fn unmapped_pages(&self) -> PageRange {
        PageRange::new(self.buffer_start.load(Relaxed), self.buffer_end.load(Relaxed))
    }

    /// Adds pages to the run that the program unmapped.
    pub(in crate::range) fn mark_unmapped(&self, pages: PageRange) {
        let mut all = pages;
        if self.has(Flag::UNMAPPED) {
            let known = self.unmapped_pages();
            all = PageRange::new(known.start.min(pages.start), known.end.max(pages.end));
        }
        self.buffer_start.store(all.start, Relaxed);
        self.buffer_end.store(all.end, Relaxed);
        self.set(Flag::UNMAPPED);
    }

    /// First and last page that the program asked for.
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

/// Slot for one foreign range.
pub struct ForeignSlot {
    pub(in crate::range) block: Block,
    /// Address of the first byte; 0: free.
    pub(in crate::range) base: AtomicUsize,
    pub(in crate::range) pages: AtomicU32,
}

impl ForeignSlot {
    uncopy_sys::constant! {
        /// A slot that is free.
        #[must_use]
        pub const fn new() -> Self {
            Self { block: Block::new(), base: AtomicUsize::new(0), pages: AtomicU32::new(0) }
        }
    }

    pub(in crate::range) fn at(&'static self) -> BlockRef {
        BlockRef {
            block: &self.block,
            base: self.base.load(Acquire),
            pages: self.pages.load(Acquire),
            slot: Some(self),
        }
    }

    /// Whether the slot stands for this range. Certain only while its block is locked.
    pub(crate) fn is(&self, at: &BlockRef) -> bool {
        self.base.load(Acquire) == at.base && self.pages.load(Acquire) == at.pages
    }
}

/// A block and its position.
#[derive(Clone, Copy)]
pub struct BlockRef {
    /// Record of the block.
    pub block: &'static Block,
    /// Address of the first byte.
    pub base: usize,
    /// Length of the block, pages.
    pub pages: u32,
    /// Slot of a foreign range; `None`: a block of the heap.
    pub slot: Option<&'static ForeignSlot>,
}

impl BlockRef {
    /// Length, bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.pages as usize * PAGE_BYTES
    }

    /// All pages of the block.
    #[must_use]
    pub const fn all(&self) -> PageRange {
        PageRange::new(0, self.pages)
    }

    /// Range of `address..address + len_bytes` within the block; `None` if it extends beyond the block.
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

    /// Length from the program's first byte to the end of the block, bytes.
    #[must_use]
    pub fn room_bytes(&self) -> usize {
        self.bytes() - self.block.lead_bytes()
    }

    /// Changes the length that the program has to `len_bytes`. False if the block is too short, or the
    /// length is less than half of the largest one asked for.
    #[must_use]
    pub fn resize(&self, len_bytes: usize) -> bool {
        if len_bytes > self.room_bytes() {
            return false;
        }
        let pages = pages_up(self.block.lead_bytes() + len_bytes);
        // Compared with the length asked for, not with the block's: the block may be larger than its owner needed.
        let is_served = 2 * pages >= self.block.asked_pages.fetch_max(pages, Relaxed);
        if is_served {
            self.block.set_usable(len_bytes);
        }
        is_served
    }

    /// Whether pages of the block may be absent.
    #[must_use]
    pub fn may_have_absent_pages(&self) -> bool {
        self.block.absent_pages.load(Relaxed) != 0
    }

    /// Records the buffer in which a copy or an input of `site` has made views. Under the lock.
    pub fn set_last_buffer(&self, site: SiteId, pages: PageRange) {
        self.block.buffer_start.store(pages.start, Relaxed);
        self.block.buffer_end.store(pages.end, Relaxed);
        self.block.buffer_site.store(site, Relaxed);
    }

    /// Site that last made views in the block.
    #[must_use]
    pub fn last_site(&self) -> SiteId {
        self.block.buffer_site.load(Relaxed)
    }

    /// Pages of the buffer that holds `page`, if `site` was the last to make views in the block.
    #[must_use]
    pub fn buffer(&self, site: SiteId, page: u32) -> Option<PageRange> {
        let field = |field: &AtomicU32| field.load(Relaxed);
        let pages = PageRange::new(field(&self.block.buffer_start), field(&self.block.buffer_end));
        let is_same_site = self.block.buffer_site.load(Relaxed) == site;
        (is_same_site && pages.start <= page && page < pages.end).then_some(pages)
    }

    /// Whether the block's lock is to be taken before the other's.
    #[must_use]
    pub fn comes_before(&self, other: &Self) -> bool {
        let key = |at: &Self| (at.slot.is_some(), core::ptr::from_ref(at.block) as usize);
        key(self) < key(other)
    }

    /// Whether both have the same record, and so the same lock.
    #[must_use]
    pub fn shares_record(&self, other: &Self) -> bool {
        core::ptr::eq(self.block, other.block)
    }

    /// Whether both are the same block.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.base == other.base
    }

    /// Number of the page at an address inside the block.
    #[must_use]
    pub const fn page(&self, address: usize) -> u32 {
        ((address - self.base) / PAGE_BYTES) as u32
    }

    /// The userfaultfd for registering the block's addresses.
    #[must_use]
    pub fn uffd(&self) -> Uffd {
        if self.slot.is_some() { CHANGES.uffd() } else { ARENA.uffd() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_block_serves_what_is_not_much_less_than_was_asked_for_however_large_it_is() {
        static BLOCK: Block = Block::new();
        let at = BlockRef { block: &BLOCK, base: 0, pages: 16, slot: None };
        BLOCK.set_request(0, 2048, 8 * PAGE_BYTES);
        // Nine pages with the lead.
        for (pages, serves) in
            [(8, true), (4, true), (3, false), (15, true), (8, true), (16, false), (6, false)]
        {
            assert_eq!(at.resize(pages * PAGE_BYTES), serves, "{pages}");
        }
        assert_eq!(BLOCK.asked_pages(), 16, "with the lead, of 15");
        assert_eq!(BLOCK.usable_bytes(), 8 * PAGE_BYTES, "what was served last");
    }

    #[test]
    fn views_are_put_in_place_after_many_copies_of_which_none_was_elided() {
        let block = Block::new();
        assert!((1..MAX_COPIES).all(|_| !block.count_copy()) && block.count_copy());
        assert!((1..MAX_COPIES).all(|_| !block.count_copy()));
        block.forget_copies();
        assert!((1..MAX_COPIES).all(|_| !block.count_copy()));
    }
}
