//! What is true of the process: gates, counters, limits.

pub mod counters;
pub mod gate;
pub mod limits;
