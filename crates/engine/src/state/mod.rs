//! What is true of the process: its phase, the policy and its accounts, gates, counters, whether it is too early to begin, limits, the ledger, the bell.

pub(crate) mod bell;
pub mod counters;
pub mod early;
pub mod gate;
pub mod ledger;
pub mod limits;
pub mod phase;
pub mod policy;
pub mod recording;
