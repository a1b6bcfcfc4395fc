//! Directory of all memory that can hold views: the heap's blocks and the foreign ranges.

use crate::arena::pages::ARENA;
use crate::range::alteration::Alteration;
use crate::range::block::BlockRef;
use crate::range::constants;
use crate::range::foreign::FOREIGN;
use crate::range::heap::HEAP;
use uncopy_sys::lock::Critical;
use uncopy_sys::sync::atomic::{AtomicBool, Ordering::Relaxed};

uncopy_sys::statics! {
    static HAS_GIVEN_BACK: AtomicBool = AtomicBool::new(false);
}

/// The block of the heap, or the foreign range, that holds `address`.
#[inline]
#[must_use]
pub fn find(address: usize) -> Option<BlockRef> {
    HEAP.find(address).or_else(|| FOREIGN.find(address))
}

/// Makes all blocks and ranges that `address..address + len_bytes` overlaps ordinary memory, because the
/// program is about to change the mapping.
pub fn disown(address: usize, len_bytes: usize, alteration: Alteration) {
    HEAP.disown(address, len_bytes, alteration);
    if alteration == Alteration::Advice {
        return;
    }
    FOREIGN.disown(address, address.saturating_add(len_bytes));
    constants::forget(address, len_bytes);
}

/// Calls `each` for every block of the heap and every foreign range.
pub fn for_each_block(mut each: impl FnMut(BlockRef)) {
    HEAP.for_each_block(&mut each);
    FOREIGN.for_each_range(each);
}

/// Gives unused addresses back, because the program limits its address space. False if that was done
/// before, or there is nothing to give back.
pub fn give_back_addresses() -> bool {
    if !HEAP.is_reserved() || HAS_GIVEN_BACK.swap(true, Relaxed) {
        return false;
    }
    let _critical = Critical::enter();
    HEAP.give_back_addresses();
    ARENA.give_back_addresses();
    true
}
