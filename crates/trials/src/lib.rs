//! The running program compared with itself without eliding and lending, in short slices of time.
//!
//! What is compared is the processor time of the whole process for each byte that it moves. The arithmetic is
//! `uncopy_core::policy::trials`; here are the clock, the count of bytes, and whose turn it is:
//!
//! ```text
//! rest ──► settle ──► measure ──► settle ──► measure ──► rest …        a pair of slices, or none for the time of one
//!          └─ first slice ─────┘  └─ second slice ────┘
//! ```
//!
//! Nothing is done by a timer: the call that moves bytes after a stage is over begins the next one. A program that is idle
//! is left alone, and its idle time counts nothing, as no processor time goes by.
//!
//! [`is_on`] is asked wherever something could be done or left out, [`moved()`] is told what each call moved.
#![cfg(target_os = "linux")]

mod arms;
mod moved;
mod pace;
mod slices;

pub use arms::CpuOfOthers;
pub use pace::Pace;
pub use slices::Changed;

use arms::{ARMS, CONCERNED, COUNTS_EVERY_CALL, DUE_MS, IS_MEASURED, LOSSES};
use core::sync::atomic::Ordering::Relaxed;
use uncopy_sys::clock;

/// Whether something is to be done that can be left out. `factor`: its number (`uncopy_core::policy::trials`).
#[inline]
#[must_use]
pub fn is_on(factor: usize) -> bool {
    let bit = 1 << factor;
    if CONCERNED.load(Relaxed) & bit == 0 {
        CONCERNED.fetch_or(bit, Relaxed);
    }
    ARMS.load(Relaxed) & bit != 0
}

/// Whether something is left out at the moment, for a trial or because it does not pay. Does not count as a case for it.
#[inline]
#[must_use]
pub fn is_left_out(factor: usize) -> bool {
    ARMS.load(Relaxed) & 1 << factor == 0
}

/// Whether something does not pay: it is left out but for trials.
#[inline]
#[must_use]
pub fn is_a_loss(factor: usize) -> bool {
    LOSSES.load(Relaxed) & 1 << factor != 0
}

/// Takes note that a call moved `len_bytes` bytes between the program and the kernel.
#[inline]
pub fn moved(len_bytes: usize) {
    let due_ms = DUE_MS.load(Relaxed);
    if due_ms != u64::MAX {
        moved::add(len_bytes);
        step_if_due(due_ms);
    }
}

/// Ends the stage if its time is over. Waits for nothing.
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

/// From here on whoever sends need not count: every large call that moves bytes is. For a library that sees them all.
pub fn count_every_call() {
    COUNTS_EVERY_CALL.store(true, Relaxed);
}

/// From here on the processor time of others counts as this process's: what saves time here at their cost does not pay.
pub fn count_others(cpu_ns: CpuOfOthers) {
    arms::count_others(cpu_ns);
}

/// Whether a sender is to count what it sends now, because nobody else does and a slice is being measured. Begins the
/// trials if nobody has.
#[inline]
#[must_use]
pub fn counts_sends() -> bool {
    slices::begin_once();
    if COUNTS_EVERY_CALL.load(Relaxed) {
        return false;
    }
    tick();
    IS_MEASURED.load(Relaxed)
}

/// Begins with the trials, unless they have ended; `changed` is told after each pair of slices. A later call changes the
/// pace, and begins with a rest. The caller has seen to it that no filter ends the process for reading a clock.
pub fn begin(pace: Pace, changed: Option<Changed>) {
    slices::begin(pace, changed);
}

/// Ends the trials for good: what was found to save time is on from here on, and nothing else, because nobody looks any
/// more whether it costs.
pub fn end() {
    arms::end();
}

/// In a forked child, before another thread exists: its own clock begins with nothing. What is known stays.
pub fn in_child() {
    slices::in_child();
}
