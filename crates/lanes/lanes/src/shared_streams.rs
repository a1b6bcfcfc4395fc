//! Streams that another process may have too: a program that was executed, a process that was sent the descriptor,
//! or the one that this process inherited it from. It may read or write there without knowing tokens, so such
//! streams are permanently literal.
//!
//! Streams are identified by socket cookies, which the kernel never reuses.

extern crate alloc;
use alloc::collections::BTreeSet;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};

/// Maximum number of sockets remembered; beyond it, every stream is literal.
const MAX_SOCKETS: usize = 16 << 10;

static SOCKETS: Guarded<BTreeSet<u64>> = Guarded::new(BTreeSet::new());
static HAS_SOME: AtomicBool = AtomicBool::new(false);
static IS_ALL: AtomicBool = AtomicBool::new(false);

/// Notes a stream as shared with another process.
pub(crate) fn note_shared(cookie: u64) {
    let mut sockets = SOCKETS.lock();
    if sockets.len() < MAX_SOCKETS {
        sockets.insert(cookie);
    } else {
        IS_ALL.store(true, Release);
    }
    HAS_SOME.store(true, Release);
}

/// Notes all streams, also future ones, as shared with other processes.
pub fn note_all_shared() {
    IS_ALL.store(true, Release);
    HAS_SOME.store(true, Release);
}

/// True if another process may have the stream too.
#[must_use]
pub fn may_be_shared(cookie: u64) -> bool {
    HAS_SOME.load(Acquire) && (IS_ALL.load(Acquire) || SOCKETS.lock().contains(&cookie))
}
