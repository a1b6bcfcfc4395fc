//! The few words that a hook compares with before it does anything else. They stand alone so that a
//! hook written in assembly can name them.
//!
//! Their first values send every call straight to libc, also before any constructor has run.

use crate::account::sampling;
use crate::service::activation::ENGINE;
use uncopy_sys::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

uncopy_sys::statics! {
    /// Smallest copy, input or output that a hook looks at, bytes: what the engine does, or what is recorded.
    pub static MIN_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// Smallest copy, input or output that the engine looks at, bytes; `usize::MAX`: none.
    pub static MIN_SIZE_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// Smallest allocation that the block heap serves, bytes; `usize::MAX`: none.
    pub static HEAP_MIN_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// First address of the block heap.
    pub static HEAP_BASE: AtomicUsize = AtomicUsize::new(0);
    /// Length of the block heap, bytes; 0: nothing is in it.
    pub static HEAP_LEN_BYTES: AtomicUsize = AtomicUsize::new(0);
    /// Whether `free` looks at every pointer: there may be memory that no allocator knows, or it is recorded.
    pub static FREE_LOOKS: AtomicBool = AtomicBool::new(false);
}

/// Sets the smallest size that the engine looks at.
pub(crate) fn set_min_size(bytes: usize) {
    MIN_SIZE_BYTES.store(bytes, Relaxed);
    settle();
}

/// Sets the gates after what they depend on has changed.
pub fn settle() {
    let is_recording = uncopy_record::is_on();
    if is_recording {
        FREE_LOOKS.store(true, Relaxed);
    }
    sampling::switch(is_recording && ENGINE.is_paused() && MIN_SIZE_BYTES.load(Relaxed) != usize::MAX);
    // Two threads may do so at once: the last to store finds what both have changed.
    loop {
        let least = || MIN_SIZE_BYTES.load(Relaxed).min(uncopy_record::min_size_bytes());
        let stored = least();
        MIN_BYTES.store(stored, Relaxed);
        if cfg!(loom) || least() == stored {
            return;
        }
    }
}
