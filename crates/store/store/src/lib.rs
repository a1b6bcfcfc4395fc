//! A log that makes a program's syncs durable before its file system has written the files.
//!
//! ```text
//! write ─► the kernel's page cache ─► the file, when the kernel pleases
//!            │ fsync                          ▲
//!            └──► log: one write, one flush ──┘ after a crash only
//! ```
//!
//! Files stay in the kernel's page cache: all readers and mappings see the latest writes. Only the time that
//! fsync waits is different.
//!
//! | module | what it is |
//! |---|---|
//! | [`layout`], [`device`], [`capture`], [`log`], [`recovery`] | format, device, writes, appending, reading |
//! | [`mapped`] | logs that have the only copy, until they are digested |
//! | [`overlay`] | the final bytes of overlapping writes |
//! | [`mark`], [`log_files`] | the mark of logged files; logs in a directory |
//! | [`logs`] | logs of either kind in a directory |
//! | [`state`], `messages` | shared state of a program and its keeper, and their messages |
//! | [`program`] | the program's side: which files are logged, their writes and syncs |
//! | [`keeper`] | the process that syncs the files later, and outlives the program |
#![cfg(target_os = "linux")]
#![allow(clippy::cast_possible_truncation, reason = "64-bit machines; records are short")]

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod capture;
pub mod device;
pub mod keeper;
pub mod layout;
pub mod log;
pub mod log_files;
pub mod logs;
pub mod mapped;
pub mod mark;
mod messages;
pub mod overlay;
pub mod program;
pub mod recovery;
pub mod state;

/// Locks a mutex, ignoring poisoning: no code that holds one leaves its data inconsistent when it panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
