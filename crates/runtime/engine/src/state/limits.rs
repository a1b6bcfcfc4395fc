//! Bounds on uncopy's memory: the option's value, scaled down by the limits of the process, and in
//! proportion to the program's own use. The arithmetic is in `uncopy_core::bounds`.
//!
//! Where a bound is reached, inputs and copies are plain; that is never an error.

use crate::state::counters;
use uncopy_core::bounds::Bounds;
use uncopy_core::stats::Counter;
use uncopy_sys::sync::Tally;
use uncopy_sys::sync::atomic::Ordering::Relaxed;
use uncopy_sys::{cgroup, mem};

/// Whether rounds of upkeep follow one another closely and leave no waste, for tests of the library with
/// debug assertions.
pub(crate) const IS_EAGER: bool = cfg!(debug_assertions) && !cfg!(feature = "inject");

uncopy_sys::statics! {
    static CAP_BYTES: Tally = Tally::new(u64::MAX);
    static SPARE_BYTES: Tally = Tally::new(u64::MAX);
    /// Total length of the foreign ranges, bytes.
    static FOREIGN_BYTES: Tally = Tally::new(0);
}

fn set(bounds: Bounds) {
    CAP_BYTES.store(bounds.cap_bytes as u64, Relaxed);
    SPARE_BYTES.store(bounds.spare_bytes as u64, Relaxed);
}

/// Applies the option `--memory`.
pub(crate) fn configure(option_bytes: Option<usize>) {
    set(Bounds::new(option_bytes, &[]));
}

/// Applies the limits of the process and of its control groups.
pub(crate) fn read_limits() {
    let cap_bytes = Some(bounds().cap_bytes).filter(|bytes| *bytes != usize::MAX);
    set(Bounds::new(cap_bytes, &[cgroup::memory_limit(), mem::address_space_limit(), mem::data_limit()]));
}

/// The bounds in force.
#[must_use]
pub fn bounds() -> Bounds {
    Bounds { cap_bytes: CAP_BYTES.load(Relaxed) as usize, spare_bytes: SPARE_BYTES.load(Relaxed) as usize }
}

/// Program's own use of memory that can hold views, bytes.
#[must_use]
pub fn program_bytes() -> usize {
    (counters::get(Counter::BlocksBytes) + FOREIGN_BYTES.load(Relaxed)) as usize
}

/// Counts foreign ranges that come or go.
pub(crate) fn count_foreign(came_bytes: usize, went_bytes: usize) {
    FOREIGN_BYTES.fetch_add(came_bytes as u64, Relaxed);
    FOREIGN_BYTES.fetch_sub(went_bytes as u64, Relaxed);
}

/// Whether the bound admits a further segment of `len_bytes`.
#[must_use]
pub fn admits(len_bytes: usize) -> bool {
    let segments_bytes = counters::get(Counter::SegmentsBytes) as usize;
    let admits = segments_bytes.saturating_add(len_bytes) <= bounds().max_segments_bytes(program_bytes());
    if !admits {
        counters::add(Counter::RefusedBytes, len_bytes);
    }
    admits
}

/// Bound on the reservoir, bytes.
#[must_use]
pub fn max_reservoir_bytes() -> usize {
    bounds().max_reservoir_bytes(program_bytes())
}

/// Bound on the pages that free blocks retain, bytes.
#[must_use]
pub fn max_retained_bytes() -> usize {
    bounds().max_free_blocks_bytes(program_bytes())
}

/// Bound on the bytes of segments that no view needs, bytes.
#[must_use]
pub fn max_waste_bytes() -> usize {
    if IS_EAGER {
        return 0;
    }
    bounds().max_waste_bytes(program_bytes(), counters::get(Counter::SegmentsBytes) as usize)
}
