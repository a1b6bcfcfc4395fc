//! Words shared by all threads that calls read: which factors are on, and when the stage ends.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, fence};

/// Factors that are on now, a bit each.
pub(crate) static ARMS: AtomicU32 = AtomicU32::new(u32::MAX);
/// Factors that do not pay, a bit each.
pub(crate) static LOSSES: AtomicU32 = AtomicU32::new(0);
/// Factors that were found to save time, a bit each.
pub(crate) static GAINS: AtomicU32 = AtomicU32::new(0);
/// Factors that some call had a use for since this mask was last cleared, a bit each.
pub(crate) static EXERCISED: AtomicU32 = AtomicU32::new(0);
/// Whether every call that moves bytes is counted where it is made: see [`crate::count_every_call`].
pub(crate) static COUNTS_EVERY_CALL: AtomicBool = AtomicBool::new(false);
/// Time at which the stage ends, ms; `u64::MAX` without trials.
pub(crate) static DUE_MS: AtomicU64 = AtomicU64::new(u64::MAX);
static HAS_ENDED: AtomicBool = AtomicBool::new(false);
/// Whether a slice is being measured.
pub(crate) static IS_MEASURED: AtomicBool = AtomicBool::new(false);

/// Returns the processor time that other processes have used for their traffic with this process, ns. The
/// value never decreases. Called in a critical section.
pub type PeerCpuTime = fn() -> u64;

/// The function that [`crate::count_peers`] set, or null.
static PEER_CPU_TIME: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

pub(crate) fn count_peers(cpu_ns: PeerCpuTime) {
    PEER_CPU_TIME.store(cpu_ns as *mut (), Relaxed);
}

/// Returns the processor time of other processes that counts as this process's, ns.
pub(crate) fn peers_cpu_ns() -> u64 {
    let function = PEER_CPU_TIME.load(Relaxed);
    if function.is_null() {
        return 0;
    }
    // SAFETY: `others` is not null, and only `count_peers` stores here: a function of type `PeerCpuTime`.
    let cpu_ns = unsafe { core::mem::transmute::<*mut (), PeerCpuTime>(function) };
    cpu_ns()
}

/// Ends the trials for good: factors that were found to save time are on, all others off.
pub(crate) fn end() {
    HAS_ENDED.store(true, Relaxed);
    fence(SeqCst);
    stop_trials();
}

/// Whether the trials are over. Call this after each step of the trials: a step that ran while another
/// thread ended them is undone.
pub(crate) fn stop_if_ended() -> bool {
    fence(SeqCst);
    let has_ended = HAS_ENDED.load(Relaxed);
    if has_ended {
        stop_trials();
    }
    has_ended
}

/// Stops the trials: factors that were found to save time are on, all others off.
pub(crate) fn stop_trials() {
    DUE_MS.store(u64::MAX, Relaxed);
    ARMS.store(GAINS.load(Relaxed), Relaxed);
    IS_MEASURED.store(false, Relaxed);
}
