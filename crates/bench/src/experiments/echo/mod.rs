//! Experiments on the echo server.

pub mod checksum;
pub mod copies;
pub mod faults;
pub mod point;
pub mod recording;
pub mod sizes;
pub mod threads;
pub mod touched;
