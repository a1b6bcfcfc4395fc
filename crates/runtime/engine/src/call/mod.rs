//! The calls that hooks make: copies, inputs, outputs.

pub mod copy;
pub(crate) mod in_flight;
pub mod input;
pub mod little;
pub mod output;
pub mod placed;
pub(crate) mod redirected;
