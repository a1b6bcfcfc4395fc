//! The store: a log by which what a program syncs survives before its file system has written it.
//!
//! ```text
//! write ─► the kernel's page cache ─► the file, when the kernel pleases
//!            │ fsync                          ▲
//!            └──► log: one write, one flush ──┘ after a crash only
//! ```
//!
//! Files stay the kernel's: whoever reads, maps, copies or looks at one finds what was written. Only what fsync waits for is
//! different. Here are the log's [`layout`], [appending](log) to it, and [`recovery`]; which files take part is for their hooks to say.
#![cfg(target_os = "linux")]
#![allow(clippy::cast_possible_truncation, reason = "64-bit machines; records are short")]

pub mod device;
pub mod layout;
pub mod log;
pub mod recovery;
pub mod state;
