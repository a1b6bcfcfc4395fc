//! The process as a whole: forks, and calls that only a single-threaded process may make.

pub mod fork;
pub mod single_threaded;
