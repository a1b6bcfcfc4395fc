//! The gates: words that a hook compares with before it does anything else. They are statics of their own
//! so that a hook written in assembly can name them.
//!
//! The initial values send every call straight to libc, also before any constructor has run.

use uncopy_sys::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};

uncopy_sys::statics! {
    /// Smallest copy, input or output that a hook handles, bytes: for the engine or for a recording.
    pub static MIN_HOOK_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// Smallest input or output that a hook handles where it may be a stream's, bytes.
    pub static MIN_STREAM_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// Smallest copy, input or output that the engine handles, bytes; `usize::MAX`: none.
    pub static MIN_ENGINE_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// Smallest allocation that the block heap serves, bytes; `usize::MAX`: none.
    pub static HEAP_MIN_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// First address of the block heap.
    pub static HEAP_BASE: AtomicUsize = AtomicUsize::new(0);
    /// Length of the block heap, bytes; 0: not reserved.
    pub static HEAP_LEN_BYTES: AtomicUsize = AtomicUsize::new(0);
    /// Number of registered blocks and foreign ranges: no other memory can have absent pages.
    static REGISTERED: AtomicUsize = AtomicUsize::new(0);
    /// Whether the program's allocator serves every allocation: see [`disable_heap`].
    pub static HEAP_IS_DISABLED: AtomicBool = AtomicBool::new(false);
    /// Whether `free` examines every pointer, because some may be unknown to every allocator, or because
    /// the program is recorded.
    pub static FREE_CHECKS_POINTERS: AtomicBool = AtomicBool::new(false);
}

/// Smallest copy, input or output that the engine handles, bytes; `usize::MAX`: none.
#[inline]
#[must_use]
pub fn min_engine_bytes() -> usize {
    MIN_ENGINE_BYTES.load(Relaxed)
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
    // The length is published last, so it is read first.
    let len_bytes = HEAP_LEN_BYTES.load(Acquire);
    address.wrapping_sub(HEAP_BASE.load(Relaxed)) < len_bytes
}

/// Whether anything is registered, so that pages may be absent. This reads one shared word, where `directory::find`
/// reads four that are cache-cold by then: 1 % of a GET of 128 KiB from Redis with nothing elided.
#[inline]
#[must_use]
pub fn has_registered() -> bool {
    REGISTERED.load(Relaxed) != 0
}

pub(crate) fn count_registered() {
    REGISTERED.fetch_add(1, Relaxed);
}

pub(crate) fn count_unregistered() {
    REGISTERED.fetch_sub(1, Relaxed);
}

/// Stops handing out blocks, whatever the options: the program passes pointers to functions that do not know blocks.
pub fn disable_heap() {
    HEAP_IS_DISABLED.store(true, Relaxed);
    HEAP_MIN_BYTES.store(usize::MAX, Relaxed);
}
