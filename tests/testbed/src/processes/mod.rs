//! Processes that this program starts: none outlives it, and every wait is bounded.
//!
//! ```text
//!   process       servers and helpers; cpu_time: their processor time
//!   descendants   what came of them
//!   cleanup       what must not outlive this program; signals end it
//!   wait          for a descriptor, with a bound
//! ```

pub mod cleanup;
pub mod cpu_time;
pub mod descendants;
pub mod process;
pub mod signals;
pub mod wait;

pub use rustix::process::{Pid, Signal};
