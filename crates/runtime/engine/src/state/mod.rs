//! Process-wide state: phase, policy and accounts, gates, counters, warm-up, limits, clock, ledger, bell.

pub(crate) mod bell;
pub mod clock;
pub mod counters;
pub mod gate;
pub mod ledger;
pub mod limits;
pub mod phase;
pub mod policy;
pub mod recording;
pub mod warmup;
