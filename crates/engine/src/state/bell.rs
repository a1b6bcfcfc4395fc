//! The bell that wakes the handler thread when it sleeps without limit: a page that is kept absent, so that touching it
//! is a fault, which the kernel reports to the handler.

use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicUsize, Ordering::AcqRel, Ordering::Relaxed, Ordering::SeqCst,
};

struct Bell {
    /// The handler sleeps without limit, and there is a page to touch for whoever has work for it.
    is_armed: AtomicBool,
    /// Address of that page; 0: there is none yet.
    address: AtomicUsize,
}

uncopy_sys::statics! {
    static BELL: Bell = Bell { is_armed: AtomicBool::new(false), address: AtomicUsize::new(0) };
}

/// Wakes the handler if it sleeps without limit: there is something that will have to be given back. Not under
/// the lock of the arena, or any that the handler waits for.
#[inline]
pub(crate) fn request_upkeep() {
    // What was left behind was counted before, by an instruction that x86-64 does not let a later load pass.
    // Should it be missed all the same, the next to leave something behind is not.
    if !cfg!(loom) && BELL.is_armed.load(Relaxed) {
        ring();
    }
}

#[cold]
fn ring() {
    if disarm() {
        let page = address() as *const u8;
        // SAFETY: a page of the arena that was set aside for this; the handler, which has said that it
        // serves faults, puts it there and takes it away again.
        unsafe { page.read_volatile() };
    }
}

/// Address of the page; 0: there is none yet.
pub(crate) fn address() -> usize {
    BELL.address.load(Relaxed)
}

/// Sets the page.
pub(crate) fn set_address(address: usize) {
    BELL.address.store(address, Relaxed);
}

/// The handler is about to sleep without limit; the page is absent.
pub(crate) fn arm() {
    BELL.is_armed.store(true, SeqCst);
}

/// Nobody needs to ring; whether somebody would have had to.
pub(crate) fn disarm() -> bool {
    BELL.is_armed.swap(false, AcqRel)
}

/// The same where nobody rings at the same time, or it does not matter.
pub(crate) fn mute() {
    BELL.is_armed.store(false, Relaxed);
}
