//! Renewal of freed blocks whose mapping the program has altered.
//!
//! | the program | the freed block |
//! |---|---|
//! | dropped pages, or had them made present | is used like any other |
//! | gave advice, or asked for huge pages | stays for the site that asked; its mapping is renewed for any other |
//! | changed protection, locked it, gave it a policy … | has its mapping renewed |
//! | put a mapping of its own over it | is lost: its addresses are reserved again; free of a large chunk unmaps, too |
//! | took part of its mapping away | is lost: the rest is reserved again; that part may be in other use |
//!
//! Renewing is one mmap over the old mapping: the new one has the properties of its neighbours, with which
//! the kernel merges it. Meanwhile the freed block is in no list, and no lock but its own is held.

use super::Heap;
use crate::range::alteration::Alteration;
use crate::range::block::{BlockRef, Flag};
use crate::range::heap_memory::HEAP_MEMORY;
use uncopy_core::addr::{PAGE_BYTES, PageRange};
use uncopy_sys::lock::Critical;
use uncopy_sys::mem;
use uncopy_sys::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// All flags that an alteration leaves behind.
const ALTERED: Flag = Flag::DISOWNED.or(ADVICE).or(Flag::OTHER_PROPERTIES).or(LOST);
/// Advice of the allocation site: after renewal the site would only give it again.
const ADVICE: Flag = Flag::HUGE_PAGES.or(Flag::ADVISED);
/// Flags of blocks that are not handed out again.
const LOST: Flag = Flag::MAPPED_OVER.or(Flag::UNMAPPED);
/// Flags that a renewed mapping does not have.
const RENEWED: Flag =
    Flag::DISOWNED.or(ADVICE).or(Flag::OTHER_PROPERTIES).or(Flag::NOT_INHERITED).or(Flag::RELOCATED);

uncopy_sys::statics! {
    /// Whether forked children may lack a block's mapping.
    static ANY_NOT_INHERITED: AtomicBool = AtomicBool::new(false);
}

/// The nonempty parts of a block before and after `pages`.
fn around(at: BlockRef, pages: PageRange) -> impl Iterator<Item = PageRange> {
    let parts = [PageRange::new(0, pages.start), PageRange::new(pages.end, at.pages)];
    parts.into_iter().filter(|part| !part.is_empty())
}

/// A free block: whether it is registered, and an estimate of its present pages.
pub(super) type FreeBlockState = (bool, u32);

impl BlockRef {
    /// Records the alteration that the program is about to make to the block's part of `start..end`. The
    /// pages concerned must be in place.
    pub(super) fn record_alteration(&self, (start, end): (usize, usize), alteration: Alteration) {
        let flags = match alteration {
            Alteration::Pages => Flag::DISOWNED,
            Alteration::Advice => Flag::ADVISED,
            Alteration::HugePages => Flag::DISOWNED.or(Flag::HUGE_PAGES),
            Alteration::Properties => Flag::DISOWNED.or(Flag::OTHER_PROPERTIES),
            Alteration::NotInherited => {
                ANY_NOT_INHERITED.store(true, Relaxed);
                Flag::DISOWNED.or(Flag::OTHER_PROPERTIES).or(Flag::NOT_INHERITED)
            }
            Alteration::MappedOver => Flag::DISOWNED.or(Flag::MAPPED_OVER),
            Alteration::Unmapped => {
                let page = |address: usize| {
                    (address.clamp(self.base, self.base + self.bytes()) - self.base).div_ceil(PAGE_BYTES)
                };
                let first = (start.max(self.base) - self.base) / PAGE_BYTES;
                self.block.mark_unmapped(PageRange::new(first as u32, page(end) as u32));
                Flag::DISOWNED
            }
        };
        self.block.set(flags);
    }

    /// Copies the program's advice from the block whose mapping has been moved here.
    pub(super) fn copy_advice(&self, from: Self) {
        for (flag, and) in [(Flag::HUGE_PAGES, Flag::DISOWNED), (Flag::ADVISED, Flag::ADVISED)] {
            if from.block.has(flag) {
                self.block.set(flag.or(and));
            }
        }
    }

    /// The pages that the program unmapped; an empty run at 0 if there are none.
    fn unmapped_pages(&self) -> PageRange {
        if self.block.has(Flag::UNMAPPED) { self.block.unmapped_pages() } else { PageRange::new(0, 0) }
    }

    /// Whether the program unmapped the page at `address`, which may be in other use since.
    fn is_unmapped(&self, address: usize) -> bool {
        let (pages, page) = (self.unmapped_pages(), self.page(address));
        pages.start <= page && page < pages.end
    }
}

impl Heap {
    /// The block that `pointer`, a result of malloc or the like, belongs to. `None`: another allocator
    /// returned it, possibly an address within the heap, where the program has unmapped a part of a block.
    #[must_use]
    pub fn owner_of(&self, pointer: usize) -> Option<BlockRef> {
        let is_owner = |at: &BlockRef| {
            !at.is_unmapped(pointer) || at.block.has(Flag::ALLOCATED) && at.start() == pointer
        };
        self.find(pointer).filter(is_owner)
    }

    /// Makes a freed block with an altered mapping fit for its next owner. `None`: the block is lost.
    pub(super) fn recover(
        &self,
        at: BlockRef,
        is_registered: bool,
        present_pages: u32,
    ) -> Option<FreeBlockState> {
        if at.block.has(LOST) {
            Self::withdraw(at);
            return None;
        }
        // If the block is still registered, its absent pages could not be put in place.
        if is_registered || at.block.has(Flag::OTHER_PROPERTIES) {
            return if Self::renew(at) { Some((false, 0)) } else { None };
        }
        at.block.clear(Flag::DISOWNED);
        Some((false, present_pages))
    }

    /// Whether a block that was just taken from a free list is fit for `site`, possibly after renewal. A
    /// block that is not is in no list any more.
    #[inline]
    pub(super) fn is_reusable(&self, at: BlockRef, site: u16) -> bool {
        !at.block.has(ALTERED) || self.make_reusable(at, site)
    }

    #[cold]
    fn make_reusable(&self, at: BlockRef, site: u16) -> bool {
        let is_disowned = at.block.has(Flag::DISOWNED);
        let is_another =
            at.block.has(LOST.or(Flag::OTHER_PROPERTIES)) || is_disowned && at.block.has(Flag::REGISTERED);
        if !is_another && (!at.block.has(ADVICE) || at.block.alloc_site() == site) {
            at.block.clear(Flag::DISOWNED);
            return true;
        }
        let retained = at.block.retained_pages();
        self.retained_pages.fetch_sub(retained as usize, Relaxed);
        at.block.set_retained_pages(0);
        if at.block.has(LOST) {
            Self::withdraw(at);
            return false;
        }
        Self::renew(at) || !is_another
    }

    /// Replaces the mapping of an unused block by a fresh one. False, with nothing changed, if the kernel
    /// refuses (sealed memory, too many mappings).
    fn renew(at: BlockRef) -> bool {
        let _critical = Critical::enter();
        let mut locked = at.lock_for_handler();
        // SAFETY: the block is free and in no list, and all of its addresses hold mappings of the heap,
        // none of the program's.
        if unsafe { HEAP_MEMORY.renew(at.base, at.bytes()) }.is_err() {
            return false;
        }
        // The new mapping is not registered.
        locked.forget_registration();
        at.block.clear(RENEWED);
        at.block.set(Flag::FRESH);
        true
    }

    /// Reserves the addresses of a freed block for good, except those that the program unmapped.
    fn withdraw(at: BlockRef) {
        let _critical = Critical::enter();
        at.lock_for_handler().forget_registration();
        at.block.set(Flag::DISOWNED);
        for pages in around(at, at.unmapped_pages()) {
            // SAFETY: the program has freed the block, and with it mappings of its own over it; unmapped
            // pages are left out. If the call is refused, the mapping stays.
            let _ = unsafe { HEAP_MEMORY.withdraw(at.base + pages.start_bytes(), pages.len_bytes()) };
        }
    }

    /// Unmaps a freed block, because blocks are not handed out any more, except the part that may be in other use.
    pub(super) fn unmap(at: BlockRef) {
        let unmapped_pages = at.unmapped_pages();
        // Marked first: a later owner of the addresses may free memory there.
        at.record_alteration((at.base, at.base + at.bytes()), Alteration::Unmapped);
        for pages in around(at, unmapped_pages) {
            // SAFETY: the program has freed the block, which is in no list and never will be; pages in
            // other use are left out.
            let _ = unsafe { mem::unmap(at.base + pages.start_bytes(), pages.len_bytes()) };
        }
    }

    /// In a forked child: marks blocks as unmapped that the program asked not to be inherited.
    pub(crate) fn mark_uninherited_unmapped(&self) {
        if !ANY_NOT_INHERITED.load(Relaxed) {
            return;
        }
        self.for_each_block(|at| {
            if at.block.has(Flag::NOT_INHERITED) {
                at.block.mark_unmapped(at.all());
            }
        });
    }
}
