//! The engine's phase, and the reason for it.

use crate::state::gate::{
    FREE_CHECKS_POINTERS, HEAP_MIN_BYTES, MIN_ENGINE_BYTES, MIN_HOOK_BYTES, MIN_STREAM_BYTES,
};
use crate::state::policy::POLICY;
use crate::state::{counters, recording};
use uncopy_core::recording::Sampled;
use uncopy_sys::features;
use uncopy_sys::lock::Lock;
use uncopy_sys::mem;
use uncopy_sys::sync::CachePadded;
use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

/// Bound on registered blocks where the limit on mappings is not known.
const DEFAULT_REGISTERED: u64 = 16_000;

/// Phase of the engine's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Not configured, or not needed yet.
    Dormant = 0,
    /// Eliding is possible: the engine serves calls and faults.
    Active = 1,
    /// Plain copies from here on.
    Inactive = 2,
}

/// State of the engine as a whole.
pub struct State {
    /// Held while the engine is activated or retired, and across a fork.
    pub(crate) activation: CachePadded<Lock>,
    phase: AtomicU8,
    max_registered: AtomicU64,
    has_warned: AtomicBool,
}

uncopy_sys::statics! {
    /// State of this process's engine.
    pub static STATE: State = State {
        activation: CachePadded(Lock::new()),
        phase: AtomicU8::new(Phase::Dormant as u8),
        max_registered: AtomicU64::new(DEFAULT_REGISTERED),
        has_warned: AtomicBool::new(false),
    };
}

impl State {
    /// Returns the current phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.phase.load(Acquire) {
            0 => Phase::Dormant,
            1 => Phase::Active,
            _ => Phase::Inactive,
        }
    }

    /// Whether new views may be made.
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.phase.load(Acquire) == Phase::Active as u8
    }

    /// Enters the phase `Active`, once all that it needs exists. Under the lock of activation.
    pub(crate) fn activate(&self) {
        features::set_active();
        self.phase.store(Phase::Active as u8, Release);
    }

    /// Switches eliding off from the start, by choice.
    pub(crate) fn switch_off(&self, why: &str) {
        counters::set_reason(why);
        self.phase.store(Phase::Inactive as u8, Relaxed);
    }

    /// Ends eliding for good, without a message, for a reason that is not a failure. Under the lock of activation.
    pub(crate) fn retire(&self, why: &str) {
        if self.phase.swap(Phase::Inactive as u8, AcqRel) != Phase::Inactive as u8 {
            close_gates();
            counters::set_reason(why);
        }
    }

    /// Falls back to plain copies for good, after a failure; prints the reason once.
    pub fn give_up(&self, why: &str) {
        recording::set_sampled(Sampled::Impossible);
        self.phase.store(Phase::Inactive as u8, Release);
        close_gates();
        counters::add_fallback(why);
        counters::set_reason(why);
        self.warn_once(why);
    }

    /// Prints one line on standard error, the first time only.
    pub(crate) fn warn_once(&self, why: &str) {
        if !self.has_warned.swap(true, Relaxed) {
            mem::write_stderr(format_args!("uncopy: inactive: {why}; see 'uncopy doctor'\n"));
        }
    }

    /// Bound on registered blocks, from the kernel's limit on mappings.
    #[must_use]
    pub fn max_registered(&self) -> u64 {
        self.max_registered.load(Relaxed)
    }

    pub(crate) fn set_max_registered(&self, blocks: u64) {
        self.max_registered.store(blocks, Relaxed);
    }
}

fn close_gates() {
    set_min_engine_bytes(usize::MAX);
    HEAP_MIN_BYTES.store(usize::MAX, Relaxed);
}

/// Sets the smallest size that the engine handles, bytes.
pub(crate) fn set_min_engine_bytes(bytes: usize) {
    MIN_ENGINE_BYTES.store(bytes, Relaxed);
    update_gates();
}

uncopy_sys::statics! {
    /// Whether hooks handle every input and output, for lanes or for a log that has the only copy.
    static HANDLES_ALL: AtomicBool = AtomicBool::new(false);
}

/// Makes hooks handle every input and output that may be a stream's, however small.
pub fn handle_all_stream_io() {
    HANDLES_ALL.store(true, Relaxed);
    update_gates();
}

/// Recomputes the gates after an input of theirs has changed.
pub fn update_gates() {
    let is_recording = uncopy_record::is_on();
    if is_recording {
        FREE_CHECKS_POINTERS.store(true, Relaxed);
    }
    let sampled = if STATE.is_active() { Sampled::Yes } else { Sampled::No };
    let samples = is_recording && POLICY.is_paused() && MIN_ENGINE_BYTES.load(Relaxed) != usize::MAX;
    recording::switch(samples, sampled);
    // Two threads may do this at once: the last to store sees both changes.
    loop {
        let least = || MIN_ENGINE_BYTES.load(Relaxed).min(uncopy_record::min_size_bytes());
        let stored = least();
        MIN_HOOK_BYTES.store(stored, Relaxed);
        MIN_STREAM_BYTES.store(if HANDLES_ALL.load(Relaxed) { 1 } else { stored }, Relaxed);
        if cfg!(loom) || least() == stored {
            return;
        }
    }
}
