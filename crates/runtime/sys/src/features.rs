//! Whether any feature acts on calls of every length: one word for the hooks of `sendmsg`, `writev`
//! and so on, which cannot compare a length first.
//!
//! In a program that moves nothing large no feature is active, and such a hook is a comparison and
//! a jump. With a word for each feature the hook of `sendmsg` read nine cache lines: memcached took
//! 0.19 µs longer for a GET of 100 bytes, of 7 µs.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IS_ANY_ACTIVE: AtomicBool = AtomicBool::new(false);

/// Whether some feature acts on such calls: the engine, lanes, a log, a user-level TCP, a
/// recording, trials, or twin memory.
#[inline(always)]
#[must_use]
pub fn is_any_active() -> bool {
    IS_ANY_ACTIVE.load(Relaxed)
}

/// Notes, for good, that a feature acts on such calls. Called before the feature is switched on, so
/// that it misses no call of the calling thread.
pub fn set_active() {
    if !is_any_active() {
        IS_ANY_ACTIVE.store(true, Relaxed);
    }
}
