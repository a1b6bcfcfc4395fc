//! The bell that wakes the handler thread from a sleep without timeout: touching a page that is kept absent
//! is a fault, which the kernel reports to the handler.

use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicUsize, Ordering::AcqRel, Ordering::Relaxed, Ordering::SeqCst,
};

struct Bell {
    /// True while the handler sleeps without timeout and the page can be touched to wake it.
    is_armed: AtomicBool,
    /// Address of the bell's page; 0: not set yet.
    address: AtomicUsize,
}

uncopy_sys::statics! {
    static BELL: Bell = Bell { is_armed: AtomicBool::new(false), address: AtomicUsize::new(0) };
}

/// Wakes the handler if it sleeps without timeout, for memory that must be given back later. Not to be
/// called under the lock of the arena, or any other that the handler waits for.
#[inline]
pub(crate) fn request_upkeep() {
    // The caller has counted its memory before, by an instruction that later loads do not pass on x86-64.
    // Should a wake-up be missed all the same, the next caller wakes the handler.
    if !cfg!(loom) && BELL.is_armed.load(Relaxed) {
        ring();
    }
}

#[cold]
fn ring() {
    if disarm() {
        let page = address() as *const u8;
        // SAFETY: `disarm` returned true, so the address is set. The page belongs to the arena and is set
        // aside for this; the handler, which is serving faults, places a page there, so the read succeeds.
        unsafe { page.read_volatile() };
    }
}

pub(crate) fn address() -> usize {
    BELL.address.load(Relaxed)
}

pub(crate) fn set_address(address: usize) {
    BELL.address.store(address, Relaxed);
}

/// Arms the bell: the page is absent, and the handler is about to sleep without timeout.
pub(crate) fn arm() {
    BELL.is_armed.store(true, SeqCst);
}

/// Disarms the bell; returns whether it was armed.
pub(crate) fn disarm() -> bool {
    BELL.is_armed.swap(false, AcqRel)
}

/// Disarms the bell where a concurrent ring is impossible or harmless.
pub(crate) fn mute() {
    BELL.is_armed.store(false, Relaxed);
}
