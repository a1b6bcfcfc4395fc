//! The few words that a hook compares with before it does anything else. They stand alone so that a
//! hook written in assembly can name them.
//!
//! Their first values send every call straight to libc, also before any constructor has run.

use uncopy_sys::sync::atomic::AtomicUsize;

uncopy_sys::statics! {
    /// Smallest copy, input or output that the engine looks at, bytes; `usize::MAX`: none.
    pub static MIN_SIZE_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// Smallest allocation that the block heap serves, bytes; `usize::MAX`: none.
    pub static HEAP_MIN_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// First address of the block heap.
    pub static HEAP_BASE: AtomicUsize = AtomicUsize::new(0);
    /// Length of the block heap, bytes; 0: nothing is in it.
    pub static HEAP_LEN_BYTES: AtomicUsize = AtomicUsize::new(0);
}
