//! Logs that have the only copy of what a program writes: files that are mapped, and their digest to files.
//!
//! ```text
//! write ─► mapped log ──digest, about a second later──► the file
//! ```
//!
//! The format and its rules are those of the crate `uncopy_mapped`, which makes no system call.
//!
//! | module | what it is |
//! |---|---|
//! | [`file`](mod@file) | the file of a log: made, locked, mapped |
//! | [`digest`] | carrying out plans, by the keeper or by a program whose keeper has died |
//! | [`recover`] | recovery, and what the log's owner may ask of it |
//! | [`service_memory`] | memory of the user-level TCP that records refer to |

pub mod digest;
pub mod file;
pub mod recover;
pub mod service_memory;
#[cfg(test)]
pub(crate) mod testing;
