//! What the process may keep in memory: what the option says, scaled down by the limits that it runs under,
//! and in proportion to what the program itself uses. The arithmetic is `uncopy_core::bounds`.
//!
//! Where a bound binds, inputs and copies are plain; it is never an error.

use crate::state::counters;
use uncopy_core::bounds::Bounds;
use uncopy_core::stats::Counter;
use uncopy_sys::sync::Tally;
use uncopy_sys::sync::atomic::Ordering::Relaxed;
use uncopy_sys::{cgroup, mem};

/// Rounds of upkeep follow one another closely and leave no waste: for tests of the library with debug assertions.
pub(crate) const IS_EAGER: bool = cfg!(debug_assertions) && !cfg!(feature = "inject");

uncopy_sys::statics! {
    static CAP_BYTES: Tally = Tally::new(u64::MAX);
    static SPARE_BYTES: Tally = Tally::new(u64::MAX);
    /// Bytes of the foreign ranges.
    static FOREIGN_BYTES: Tally = Tally::new(0);
    /// Counts rounds of upkeep: the clock by which segments age.
    static ROUND: Tally = Tally::new(0);
}

fn set(bounds: Bounds) {
    CAP_BYTES.store(bounds.cap_bytes as u64, Relaxed);
    SPARE_BYTES.store(bounds.spare_bytes as u64, Relaxed);
}

/// Takes the option `--memory`.
pub(crate) fn configure(option_bytes: Option<usize>) {
    set(Bounds::new(option_bytes, &[]));
}

/// Takes the limits of the process and of its control groups into account.
pub(crate) fn read_limits() {
    let cap_bytes = Some(bounds().cap_bytes).filter(|bytes| *bytes != usize::MAX);
    set(Bounds::new(cap_bytes, &[cgroup::memory_limit(), mem::address_space_limit(), mem::data_limit()]));
}

/// The bounds in force.
#[must_use]
pub fn bounds() -> Bounds {
    Bounds { cap_bytes: CAP_BYTES.load(Relaxed) as usize, spare_bytes: SPARE_BYTES.load(Relaxed) as usize }
}

/// What the program itself uses of memory that can hold views, bytes.
#[must_use]
pub fn program_bytes() -> usize {
    (counters::get(Counter::BlocksBytes) + FOREIGN_BYTES.load(Relaxed)) as usize
}

/// Takes note of a foreign range that comes or goes.
pub(crate) fn count_foreign(came_bytes: usize, went_bytes: usize) {
    FOREIGN_BYTES.fetch_add(came_bytes as u64, Relaxed);
    FOREIGN_BYTES.fetch_sub(went_bytes as u64, Relaxed);
}

/// Whether there may be a further segment of so many bytes.
#[must_use]
pub fn admits(len_bytes: usize) -> bool {
    let segments_bytes = counters::get(Counter::SegmentsBytes) as usize;
    let admits = segments_bytes.saturating_add(len_bytes) <= bounds().segments(program_bytes());
    if !admits {
        counters::add(Counter::RefusedBytes, len_bytes);
    }
    admits
}

/// What the reservoir may hold, bytes.
#[must_use]
pub fn max_reservoir_bytes() -> usize {
    bounds().reservoir(program_bytes())
}

/// What free blocks may retain, bytes.
#[must_use]
pub fn max_retained_bytes() -> usize {
    bounds().retained(program_bytes())
}

/// What segments may hold that nobody needs, bytes.
#[must_use]
pub fn max_waste_bytes() -> usize {
    if IS_EAGER {
        return 0;
    }
    bounds().waste(program_bytes(), counters::get(Counter::SegmentsBytes) as usize)
}

/// The number of the round of upkeep.
#[inline]
#[must_use]
pub fn round() -> u32 {
    ROUND.load(Relaxed) as u32
}

/// Begins the next one.
pub(crate) fn next_round() {
    ROUND.fetch_add(1, Relaxed);
}
