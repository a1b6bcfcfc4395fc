//! Whether the process is recorded, and its inputs are sampled meanwhile.
//!
//! While a recording is on nothing is elided but samples, and the accounts by which sites are switched on
//! and off stay unchanged.

use crate::state::policy::POLICY;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::Relaxed};
use uncopy_core::page_map::SiteId;
use uncopy_core::recording::Sampled;
use uncopy_record::session;

// Atomics of `core`, also in models: nothing is sampled there, and every access to one of the model's would
// add a point at which it can switch threads.
static IS_ON: AtomicBool = AtomicBool::new(false);
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Processor time of the process when sampling began, ns.
static BEGAN_NS: AtomicI64 = AtomicI64::new(0);

/// Bit of a site id that makes it the number of a recording's row.
pub(crate) const ROW: SiteId = 1 << 15;

/// Whether inputs are sampled.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

/// Switches sampling on or off. Views that were made stay, and count until the recording ends.
pub(crate) fn switch(is_on: bool, sampled: Sampled) {
    if is_on && !IS_ON.load(Relaxed) {
        begin_generation();
        BEGAN_NS.store(processor_ns(), Relaxed);
        session::set_sampled(sampled);
    }
    IS_ON.store(is_on, Relaxed);
}

/// Begins a new generation of rows, also in a forked child, whose rows are not its parent's.
pub(crate) fn begin_generation() {
    GENERATION.fetch_add(1, Relaxed);
}

/// Number of the recording, modulo 2^32.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

fn processor_ns() -> i64 {
    uncopy_sys::ids::processor_ns().cast_signed()
}

pub(crate) fn elapsed_ns() -> i64 {
    processor_ns() - BEGAN_NS.load(Relaxed)
}

/// Records whether sampling is possible.
pub(crate) fn set_sampled(sampled: Sampled) {
    if is_on() {
        session::set_sampled(sampled);
    }
}

/// Whether the id is of a recording's row, not of a site's account.
#[inline]
pub(crate) const fn is_row(site: SiteId) -> bool {
    site & ROW != 0
}

/// Charges sampling, if it is on, with `ns`.
#[inline]
pub(crate) fn spend(ns: i64) {
    if is_on() {
        POLICY.sampling.spend(ns);
    }
}
