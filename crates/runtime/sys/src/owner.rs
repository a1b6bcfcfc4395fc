//! Ownership of memory: a child of vfork shares its parent's memory, and must leave the parent's state alone.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Id of the process that owns this memory; 0 once it has begun to exit.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Notes that this process owns its memory: at start, and after a fork.
pub fn claim_memory() {
    OWNER.store(std::process::id(), Relaxed);
}

/// Whether the calling process owns its memory and has not begun to exit.
#[must_use]
pub fn is_owner() -> bool {
    OWNER.load(Relaxed) == std::process::id()
}

/// Notes that the process begins to exit. Returns true if it owns its memory and this is the first call.
#[must_use]
pub fn begin_exit() -> bool {
    OWNER.compare_exchange(std::process::id(), 0, Relaxed, Relaxed).is_ok()
}
