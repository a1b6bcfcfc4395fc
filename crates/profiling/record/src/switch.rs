//! Whether recording is on, and from which size.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Minimum size of a recorded event in bytes; `usize::MAX` while recording is off.
pub(crate) static MIN_SIZE_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Returns the minimum size of a recorded event in bytes; `usize::MAX` while recording is off.
#[inline]
#[must_use]
pub fn min_size_bytes() -> usize {
    MIN_SIZE_BYTES.load(Relaxed)
}

/// True if a recording is in progress.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    min_size_bytes() != usize::MAX
}
