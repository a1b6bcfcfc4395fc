//! Process-wide state: phase, policy and accounts, gates, counters, warm-up, limits, clock, children, ledger, bell.

pub(crate) mod bell;
pub(crate) mod children;
pub mod clock;
pub mod counters;
pub mod gate;
pub mod ledger;
pub mod limits;
pub mod phase;
pub mod policy;
pub mod recording;
pub mod warmup;
