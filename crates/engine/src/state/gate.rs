//! The few words that a hook compares with before it does anything else. They stand alone so that a
//! hook written in assembly can name them.
//!
//! Their first values send every call straight to libc, also before any constructor has run.

use uncopy_sys::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};

uncopy_sys::statics! {
    /// Smallest copy, input or output that a hook looks at, bytes: what the engine does, or what is recorded.
    pub static MIN_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// The same for inputs and outputs that may be a stream's, bytes.
    pub static MIN_STREAM_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// Smallest copy, input or output that the engine looks at, bytes; `usize::MAX`: none.
    pub static MIN_SIZE_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// Smallest allocation that the block heap serves, bytes; `usize::MAX`: none.
    pub static HEAP_MIN_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// First address of the block heap.
    pub static HEAP_BASE: AtomicUsize = AtomicUsize::new(0);
    /// Length of the block heap, bytes; 0: nothing is in it.
    pub static HEAP_LEN_BYTES: AtomicUsize = AtomicUsize::new(0);
    /// Whether the program's allocator serves every allocation: see [`leave_allocations`].
    pub static LEAVES_ALLOCATIONS: AtomicBool = AtomicBool::new(false);
    /// Whether `free` looks at every pointer: there may be memory that no allocator knows, or it is recorded.
    pub static FREE_LOOKS: AtomicBool = AtomicBool::new(false);
}

/// Smallest copy, input or output that the engine looks at, bytes; `usize::MAX`: none.
#[inline]
#[must_use]
pub fn min_size_bytes() -> usize {
    MIN_SIZE_BYTES.load(Relaxed)
}

/// Smallest allocation that the block heap serves, bytes; `usize::MAX`: none.
#[inline]
#[must_use]
pub fn heap_min_bytes() -> usize {
    HEAP_MIN_BYTES.load(Relaxed)
}

/// Whether an address lies in the block heap's range.
#[inline]
#[must_use]
pub fn is_in_heap(address: usize) -> bool {
    // The length first: it is published last.
    let len_bytes = HEAP_LEN_BYTES.load(Acquire);
    address.wrapping_sub(HEAP_BASE.load(Relaxed)) < len_bytes
}

/// No block is given out from here on, whatever the options say: the program's pointers reach functions that would not know one.
pub fn leave_allocations() {
    LEAVES_ALLOCATIONS.store(true, Relaxed);
    HEAP_MIN_BYTES.store(usize::MAX, Relaxed);
}
