//! The calls that hooks make: copies, inputs, outputs.

pub mod copy;
mod examined;
pub(crate) mod in_flight;
pub mod input;
pub mod output;
pub(crate) mod redirected;
pub mod shared_input;
pub mod short_reads;
