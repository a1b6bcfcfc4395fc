//! Whether a recording is on, and of what.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Smallest size that is recorded, bytes; `usize::MAX`: nothing is.
pub(crate) static MIN_SIZE_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Smallest size that is recorded, bytes; `usize::MAX`: nothing is.
#[inline]
#[must_use]
pub fn min_size_bytes() -> usize {
    MIN_SIZE_BYTES.load(Relaxed)
}

/// Whether a recording is on.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    min_size_bytes() != usize::MAX
}
