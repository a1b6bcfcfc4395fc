//! The few words that calls look at.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Bits of the factors that are on.
pub(crate) static ARMS: AtomicU32 = AtomicU32::new(u32::MAX);
/// Bits of the factors that do not pay.
pub(crate) static LOSSES: AtomicU32 = AtomicU32::new(0);
/// Bits of the factors that somebody asked for since this was last emptied.
pub(crate) static CONCERNED: AtomicU32 = AtomicU32::new(0);
/// The calls that the program makes are counted where they are made: see [`crate::count_every_call`].
pub(crate) static COUNTS_EVERY_CALL: AtomicBool = AtomicBool::new(false);
/// When the stage is over, ms; `u64::MAX`: there are no trials.
pub(crate) static DUE_MS: AtomicU64 = AtomicU64::new(u64::MAX);
/// A slice is being measured.
pub(crate) static IS_MEASURED: AtomicBool = AtomicBool::new(false);
