//! Streams that somebody else may have, too: a program that was executed, a process that a descriptor was sent to, whoever this
//! process inherited it from. Somebody who knows nothing of tokens may read or write there, so they are literal for good.
//!
//! They are known by the cookies of their sockets, which are never used again.

extern crate alloc;
use alloc::collections::BTreeSet;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};

/// Sockets that are remembered, at most; beyond, every stream is literal.
const MAX_SOCKETS: usize = 16 << 10;

static SOCKETS: Guarded<BTreeSet<u64>> = Guarded::new(BTreeSet::new());
/// There is one.
static HAS_SOME: AtomicBool = AtomicBool::new(false);
/// Every stream.
static IS_ALL: AtomicBool = AtomicBool::new(false);

/// A stream is somebody else's, too.
pub(crate) fn note(cookie: u64) {
    let mut sockets = SOCKETS.lock();
    if sockets.len() < MAX_SOCKETS {
        sockets.insert(cookie);
    } else {
        IS_ALL.store(true, Release);
    }
    HAS_SOME.store(true, Release);
}

/// All streams are, also those to come.
pub fn note_all() {
    IS_ALL.store(true, Release);
    HAS_SOME.store(true, Release);
}

/// Whether a stream may be somebody else's, too.
#[must_use]
pub fn is_handed(cookie: u64) -> bool {
    HAS_SOME.load(Acquire) && (IS_ALL.load(Acquire) || SOCKETS.lock().contains(&cookie))
}
