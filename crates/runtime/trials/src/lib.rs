//! Switchback trials of the running program: slices of time with and without eliding and lending.
//!
//! The measure is the processor time of the whole process for each byte that it moves. The arithmetic is in
//! `uncopy_core::policy::trials`. This crate has the clock, the count of bytes and the sequence of stages:
//!
//! ```text
//! rest ──► settle ──► measure ──► settle ──► measure ──► rest …
//!          └─ first slice ─────┘  └─ second slice ────┘        a pair of slices, or none for as long
//! ```
//!
//! There is no timer: the first call that moves bytes after the end of a stage begins the next one. An idle
//! program is not disturbed, and its idle time counts nothing because it uses no processor time.
//!
//! Callers ask [`is_on`] before each step that a trial may leave out, and report to [`record_transfer()`] what each
//! call moved.
#![cfg(target_os = "linux")]

mod arms;
mod pace;
mod slices;
mod traffic;

pub use arms::PeerCpuTime;
pub use pace::Pace;
pub use slices::PairCallback;

use arms::{ARMS, COUNTS_EVERY_CALL, DUE_MS, EXERCISED, IS_MEASURED, LOSSES};
use core::sync::atomic::Ordering::Relaxed;
use uncopy_sys::clock;

/// Whether to do what `factor` stands for (a number of `uncopy_core::policy::trials`). Counts as a use of it.
#[inline]
#[must_use]
pub fn is_on(factor: usize) -> bool {
    let bit = 1 << factor;
    if EXERCISED.load(Relaxed) & bit == 0 {
        EXERCISED.fetch_or(bit, Relaxed);
    }
    ARMS.load(Relaxed) & bit != 0
}

/// Whether `factor` is left out now, for a trial or because it does not pay. Does not count as a use.
#[inline]
#[must_use]
pub fn is_left_out(factor: usize) -> bool {
    ARMS.load(Relaxed) & 1 << factor == 0
}

/// Whether `factor` does not pay, so that it is on in trials only.
#[inline]
#[must_use]
pub fn is_a_loss(factor: usize) -> bool {
    LOSSES.load(Relaxed) & 1 << factor != 0
}

/// Counts a call that moved `len_bytes` bytes between the program and the kernel.
#[inline]
pub fn record_transfer(len_bytes: usize) {
    let due_ms = DUE_MS.load(Relaxed);
    if due_ms != u64::MAX {
        traffic::add(len_bytes);
        step_if_due(due_ms);
    }
}

/// Begins the next stage if this one is over. Does not block.
#[inline]
fn tick() {
    let due_ms = DUE_MS.load(Relaxed);
    if due_ms != u64::MAX {
        step_if_due(due_ms);
    }
}

#[inline]
fn step_if_due(due_ms: u64) {
    if clock::now_ms() >= due_ms {
        slices::step();
    }
}

/// Makes [`needs_send_reports`] always false. For a library that reports every large call to [`record_transfer()`] itself.
pub fn count_every_call() {
    COUNTS_EVERY_CALL.store(true, Relaxed);
}

/// Counts `cpu_ns` as this process's, so that nothing pays that saves time here at the cost of others.
pub fn count_peers(cpu_ns: PeerCpuTime) {
    arms::count_peers(cpu_ns);
}

/// Whether a sender is to report its sends to [`record_transfer()`]: a slice is being measured, and nothing else
/// counts them. Begins the trials unless they have begun.
#[inline]
#[must_use]
pub fn needs_send_reports() -> bool {
    slices::begin_once();
    if COUNTS_EVERY_CALL.load(Relaxed) {
        return false;
    }
    tick();
    IS_MEASURED.load(Relaxed)
}

/// Begins the trials unless they have ended. `on_pair` is called after each pair of slices. A later call
/// changes the pace and starts again with the warm-up.
///
/// The caller must know that no seccomp filter ends the process for reading a clock.
pub fn begin(pace: Pace, on_pair: Option<PairCallback>) {
    slices::begin(pace, on_pair);
}

/// Ends the trials for good. Factors found to save time stay on; others are off, as they may cost time.
pub fn end() {
    arms::end();
}

/// Restarts the trials in a forked child that has one thread. The findings so far are kept.
pub fn restart_in_child() {
    slices::restart_in_child();
}
