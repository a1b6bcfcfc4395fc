//! The process as a whole: forks, and calls that only a single-threaded process may make.

pub mod alone;
pub mod fork;
