//! Freed blocks whose mapping the program has altered: what becomes of them.
//!
//! | the program | the block, once it is freed |
//! |---|---|
//! | dropped pages, or had them made present | is as any other |
//! | gave advice, or asked for huge pages | stays as it is for the site that asked; for every other site its mapping is renewed |
//! | changed protection, locked it, gave it a policy … | has its mapping renewed |
//! | put a mapping of its own over it | is lost: all of its addresses are reserved again, as free of a large chunk takes them away |
//! | took part of its mapping away | is lost: the rest of its addresses is reserved again, what is in that part is somebody else's |
//!
//! Renewing is one mmap in the place of what is there: the new mapping has the properties of its neighbours, with which the
//! kernel joins it. A freed block is in no list meanwhile, and no lock but its own is held.

use super::Heap;
use crate::range::alteration::Alteration;
use crate::range::block::{BlockRef, Flag};
use crate::range::heap_memory::HEAP_MEMORY;
use uncopy_core::addr::{PAGE_BYTES, PageRange};
use uncopy_sys::lock::Critical;
use uncopy_sys::mem;
use uncopy_sys::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Any alteration that is left.
const ALTERED: Flag = Flag::DISOWNED.or(WISHES).or(Flag::OTHER_PROPERTIES).or(LOST);
/// What a site wants of its memory: each of its blocks would be advised anew.
const WISHES: Flag = Flag::HUGE_PAGES.or(Flag::ADVISED);
/// The block is not handed out again.
const LOST: Flag = Flag::COVERED.or(Flag::VACATED);
/// What a renewed mapping does not have.
const RENEWED: Flag =
    Flag::DISOWNED.or(WISHES).or(Flag::OTHER_PROPERTIES).or(Flag::NOT_INHERITED).or(Flag::RELOCATED);

uncopy_sys::statics! {
    /// Whether forked children may be without a block's mapping.
    static IS_ANY_LEFT_OUT: AtomicBool = AtomicBool::new(false);
}

/// The parts of a block before and after some of its pages, as far as there are any.
fn around(at: BlockRef, pages: PageRange) -> impl Iterator<Item = PageRange> {
    let parts = [PageRange::new(0, pages.start), PageRange::new(pages.end, at.pages)];
    parts.into_iter().filter(|part| !part.is_empty())
}

/// A free block: whether it is registered, and its present pages as far as is known.
pub(super) type Kept = (bool, u32);

impl BlockRef {
    /// Enters what the program is about to do to the block's part of `start..end`. Its pages must be in place.
    pub(super) fn note(&self, (start, end): (usize, usize), alteration: Alteration) {
        let flags = match alteration {
            Alteration::Pages => Flag::DISOWNED,
            Alteration::Advice => Flag::ADVISED,
            Alteration::HugePages => Flag::DISOWNED.or(Flag::HUGE_PAGES),
            Alteration::Properties => Flag::DISOWNED.or(Flag::OTHER_PROPERTIES),
            Alteration::NotInherited => {
                IS_ANY_LEFT_OUT.store(true, Relaxed);
                Flag::DISOWNED.or(Flag::OTHER_PROPERTIES).or(Flag::NOT_INHERITED)
            }
            Alteration::Covered => Flag::DISOWNED.or(Flag::COVERED),
            Alteration::Vacated => {
                let page = |address: usize| {
                    (address.clamp(self.base, self.base + self.bytes()) - self.base).div_ceil(PAGE_BYTES)
                };
                let first = (start.max(self.base) - self.base) / PAGE_BYTES;
                self.block.vacate(PageRange::new(first as u32, page(end) as u32));
                Flag::DISOWNED
            }
        };
        self.block.set(flags);
    }

    /// The mapping of `from` has been moved here, with what the program asked of it.
    pub(super) fn inherit_wishes(&self, from: Self) {
        for (flag, and) in [(Flag::HUGE_PAGES, Flag::DISOWNED), (Flag::ADVISED, Flag::ADVISED)] {
            if from.block.has(flag) {
                self.block.set(flag.or(and));
            }
        }
    }

    /// The pages that the program took away; none begin and end with the block's first.
    fn vacated(&self) -> PageRange {
        if self.block.has(Flag::VACATED) { self.block.vacated() } else { PageRange::new(0, 0) }
    }

    /// Whether the program took the mapping at `address` away, so that what is there may be anybody's.
    fn is_vacated(&self, address: usize) -> bool {
        let (pages, page) = (self.vacated(), self.page(address));
        pages.start <= page && page < pages.end
    }
}

impl Heap {
    /// The block that `pointer`, which malloc or its like gave, is of. `None`: another allocator gave it. The addresses may be
    /// the heap's all the same, where the program has unmapped a part of a block.
    #[must_use]
    pub fn owner_of(&self, pointer: usize) -> Option<BlockRef> {
        let is_its =
            |at: &BlockRef| !at.is_vacated(pointer) || at.block.has(Flag::ALLOCATED) && at.start() == pointer;
        self.find(pointer).filter(is_its)
    }

    /// Makes a block fit for its next owner that the program has freed and whose mapping it had altered. `None`: it is lost.
    pub(super) fn recover(&self, at: BlockRef, is_registered: bool, present_pages: u32) -> Option<Kept> {
        if at.block.has(LOST) {
            Self::withdraw(at);
            return None;
        }
        // Registered still: its absent pages could not be put in place.
        if is_registered || at.block.has(Flag::OTHER_PROPERTIES) {
            return if Self::renew(at) { Some((false, 0)) } else { None };
        }
        at.block.clear(Flag::DISOWNED);
        Some((false, present_pages))
    }

    /// Whether a block that was just taken from a free list is fit for `site`; makes it so if that can be done. A block that
    /// is not is in no list any more.
    #[inline]
    pub(super) fn is_fit(&self, at: BlockRef, site: u16) -> bool {
        !at.block.has(ALTERED) || self.make_fit(at, site)
    }

    #[cold]
    fn make_fit(&self, at: BlockRef, site: u16) -> bool {
        let is_disowned = at.block.has(Flag::DISOWNED);
        let is_another =
            at.block.has(LOST.or(Flag::OTHER_PROPERTIES)) || is_disowned && at.block.has(Flag::REGISTERED);
        if !is_another && (!at.block.has(WISHES) || at.block.alloc_site() == site) {
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

    /// Puts a fresh mapping in the place of the block's, which nobody uses. False, and the block is as it was: the kernel
    /// refuses (sealed memory, too many mappings).
    fn renew(at: BlockRef) -> bool {
        let _critical = Critical::enter();
        let mut locked = at.lock_for_service();
        // SAFETY: the block is free and in no list, and all of its addresses have mappings of the heap's.
        if unsafe { HEAP_MEMORY.renew(at.base, at.bytes()) }.is_err() {
            return false;
        }
        // The new mapping is not registered.
        locked.forget_registration();
        at.block.clear(RENEWED);
        at.block.set(Flag::FRESH);
        true
    }

    /// Reserves the addresses of a freed block for good, but for those that it has nothing at any more.
    fn withdraw(at: BlockRef) {
        let _critical = Critical::enter();
        at.lock_for_service().forget_registration();
        at.block.set(Flag::DISOWNED);
        for pages in around(at, at.vacated()) {
            // SAFETY: the program has freed what is there, a mapping of its own too. Where it is refused, it stays.
            let _ = unsafe { HEAP_MEMORY.withdraw(at.base + pages.start_bytes(), pages.len_bytes()) };
        }
    }

    /// Gives the addresses of a freed block back, because nobody asks for blocks any more, with what lies there but for what
    /// may be somebody else's.
    pub(super) fn unmap(at: BlockRef) {
        let vacated = at.vacated();
        // First: whoever gets the addresses may free what it has there.
        at.note((at.base, at.base + at.bytes()), Alteration::Vacated);
        for pages in around(at, vacated) {
            // SAFETY: the program gave the block back; it is in no list and never will be.
            let _ = unsafe { mem::unmap(at.base + pages.start_bytes(), pages.len_bytes()) };
        }
    }

    /// In a forked child: what the program's parent asked not to be inherited is not there.
    pub(crate) fn vacate_what_is_not_inherited(&self) {
        if !IS_ANY_LEFT_OUT.load(Relaxed) {
            return;
        }
        self.for_each_block(|at| {
            if at.block.has(Flag::NOT_INHERITED) {
                at.block.vacate(at.all());
            }
        });
    }
}
