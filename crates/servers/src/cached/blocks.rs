//! Where the memory of values comes from: the twin allocator.

#![allow(unsafe_code)]

use std::ptr::NonNull;

/// A block of `len_bytes`, not initialised; `None` when memory is short.
pub fn allocate(len_bytes: usize) -> Option<NonNull<u8>> {
    NonNull::new(uncopy_twin::allocate(len_bytes))
}

/// Gives a block back.
///
/// # Safety
/// `start` came from [`allocate`], and nobody uses it any more.
pub unsafe fn deallocate(start: NonNull<u8>) {
    // SAFETY: the caller's promise.
    unsafe { uncopy_twin::deallocate(start.as_ptr()) };
}
