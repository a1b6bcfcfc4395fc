//! The few words that calls look at.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, fence};

/// Bits of the factors that are on.
pub(crate) static ARMS: AtomicU32 = AtomicU32::new(u32::MAX);
/// Bits of the factors that do not pay.
pub(crate) static LOSSES: AtomicU32 = AtomicU32::new(0);
/// Bits of the factors that were found to save time.
pub(crate) static GAINS: AtomicU32 = AtomicU32::new(0);
/// Bits of the factors that somebody asked for since this was last emptied.
pub(crate) static CONCERNED: AtomicU32 = AtomicU32::new(0);
/// The calls that the program makes are counted where they are made: see [`crate::count_every_call`].
pub(crate) static COUNTS_EVERY_CALL: AtomicBool = AtomicBool::new(false);
/// When the stage is over, ms; `u64::MAX`: there are no trials.
pub(crate) static DUE_MS: AtomicU64 = AtomicU64::new(u64::MAX);
/// The trials are over, for good.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);
/// A slice is being measured.
pub(crate) static IS_MEASURED: AtomicBool = AtomicBool::new(false);

/// Tells how much processor time others have used for what passes between them and this process, ns: never less than before. Called
/// in a critical section.
pub type CpuOfOthers = fn() -> u64;

/// Who tells that, or null.
static OTHERS: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// See [`crate::count_others`].
pub(crate) fn count_others(cpu_ns: CpuOfOthers) {
    OTHERS.store(cpu_ns as *mut (), Relaxed);
}

/// Processor time of others that counts as this process's, ns.
pub(crate) fn others_cpu_ns() -> u64 {
    let told = OTHERS.load(Relaxed);
    if told.is_null() {
        return 0;
    }
    // SAFETY: only `count_others` stores here, functions of that type.
    let cpu_ns = unsafe { core::mem::transmute::<*mut (), CpuOfOthers>(told) };
    cpu_ns()
}

/// Ends the trials: what was found to save time is on from here on, all else is off.
pub(crate) fn end() {
    HAS_ENDED.store(true, Relaxed);
    fence(SeqCst);
    settle();
}

/// Whether the trials are over. After a step of theirs: one that was under way while they ended is undone.
pub(crate) fn have_ended() -> bool {
    fence(SeqCst);
    let have_ended = HAS_ENDED.load(Relaxed);
    if have_ended {
        settle();
    }
    have_ended
}

/// Nothing is tried; what was found to save time is on.
pub(crate) fn settle() {
    DUE_MS.store(u64::MAX, Relaxed);
    ARMS.store(GAINS.load(Relaxed), Relaxed);
    IS_MEASURED.store(false, Relaxed);
}
