//! Background work: faults, upkeep, requests, activation, release.

pub mod activation;
#[cfg_attr(loom, allow(dead_code, reason = "a model measures nothing"))]
mod calibration;
pub(crate) mod compaction;
pub(crate) mod fork_window;
pub mod handler;
pub mod release;
mod requests;
mod settling;
pub(crate) mod shared_views;
pub mod shutdown;
pub(crate) mod upkeep;
