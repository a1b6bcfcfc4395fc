//! Experiments on the echo server.
//!
//! ```text
//!   point      one point of any of them: the server under each side, loaded, every answer compared
//!   drain      what is recorded of a server, where that is measured
//! ```

pub mod checksum;
pub mod copies;
mod drain;
pub mod faults;
pub mod point;
pub mod recording;
pub mod sizes;
pub mod switching;
pub mod threads;
pub mod touched;
