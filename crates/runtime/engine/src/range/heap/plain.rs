//! Blocks that become plain memory for good: the program is about to change their mapping, or has its stack there.
//! Unused addresses that the program's limit on its address space needs.

use super::Heap;
use crate::arena::pages::ARENA;
use crate::range::alteration::Alteration;
use crate::range::block::{Block, BlockRef, Flag};
use crate::range::foreign::FOREIGN;
use crate::range::heap_memory::HEAP_MEMORY;
use crate::state::gate::is_in_heap;
use crate::state::phase::STATE;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::classes::Class;
use uncopy_core::page_map::Dropped;
use uncopy_sys::mem;
use uncopy_sys::presence::Section;
use uncopy_sys::readable;
use uncopy_sys::sync::atomic::Ordering::Relaxed;

impl Heap {
    /// Makes the block or foreign range that contains the caller's stack plain memory. To be called before
    /// taking blocks' locks; usually costs one comparison.
    #[inline]
    pub fn make_stack_plain(&self) {
        let here = 0u8;
        let address = core::ptr::from_ref(core::hint::black_box(&here)) as usize;
        if is_in_heap(address) {
            self.keep_plain(address);
        } else if FOREIGN.find(address).is_some() {
            FOREIGN.disown(address, address + 1);
        }
    }

    #[cold]
    fn keep_plain(&self, address: usize) {
        let Some(at) = self.find(address) else { return };
        if at.block.has(Flag::STACK) {
            return;
        }
        let Some(_section) = Section::enter() else { return };
        at.block.set(Flag::STACK);
        let mut dropped = Dropped::new();
        if STATE.is_active() {
            // On failure, the block's absent pages are still served.
            let _ = at.lock().make_plain(&mut dropped);
        }
        drop(dropped);
    }

    /// Makes every block that overlaps `address..address + len_bytes` plain memory until it is freed,
    /// because the program is about to change the mapping: mprotect, madvise, mremap, munmap, mlock, mmap.
    pub fn disown(&self, address: usize, len_bytes: usize, alteration: Alteration) {
        let mut at = address;
        let last = address.saturating_add(len_bytes);
        while at < last {
            let Some(block) = self.find(at) else { return };
            let end = block.base + block.bytes();
            let keeps_views = alteration == Alteration::Advice;
            if !keeps_views && (!block.block.set(Flag::DISOWNED) || block.may_have_absent_pages()) {
                match Section::enter() {
                    Some(_section) => make_plain(&block),
                    // A fork may wait for this thread. Absent pages are still served, but those that the program is
                    // about to drop (madvise) would get their bytes back: reading them first puts them in place.
                    None => (at / PAGE_BYTES..end.min(last).div_ceil(PAGE_BYTES))
                        .for_each(|page| _ = readable::is_readable(page * PAGE_BYTES, size_of::<usize>())),
                }
            }
            block.record_alteration((at, last), alteration);
            at = end;
        }
    }

    /// Gives the addresses back that no block has used, because the program limits its address space. No
    /// block is made from then on.
    pub fn give_back_addresses(&self) {
        let Some((blocks, records)) = HEAP_MEMORY.reservations() else { return };
        for (index, state) in self.classes.iter().enumerate() {
            let Some(class) = Class::from_index(index) else { return };
            let _guard = state.free.lock();
            let blocks_made = state.blocks.load(Relaxed) as usize;
            if state.closed.swap(true, Relaxed) {
                continue;
            }
            let span_bytes = 1usize << self.shift.load(Relaxed);
            let span = blocks.base() + index * span_bytes;
            let used_bytes = blocks_made * class.bytes();
            let first = records.base() + index * self.records_step.load(Relaxed);
            let recorded_bytes = (blocks_made * core::mem::size_of::<Block>()).next_multiple_of(PAGE_BYTES);
            let rest_bytes = self.records_step.load(Relaxed) - recorded_bytes;
            // SAFETY: the addresses lie beyond the last block that exists, and the closed class makes no
            // more. If unmapping is refused, they stay reserved.
            unsafe {
                let _ = mem::unmap(span + used_bytes, span_bytes - used_bytes);
                let _ = mem::unmap(first + recorded_bytes, rest_bytes);
            }
        }
    }
}

/// Makes a block plain memory for good, as far as possible.
fn make_plain(at: &BlockRef) {
    let mut dropped = Dropped::new();
    let mut locked = at.lock_for_handler();
    if ARENA.descriptor().open().is_some() {
        // On failure, the block's absent pages are still served.
        let _ = locked.make_plain(&mut dropped);
    }
    drop(locked);
    drop(dropped);
}
