//! The store: a log by which what a program syncs survives before its file system has written it.
//!
//! ```text
//! write ─► the kernel's page cache ─► the file, when the kernel pleases
//!            │ fsync                          ▲
//!            └──► log: one write, one flush ──┘ after a crash only
//! ```
//!
//! Files stay the kernel's: whoever reads, maps, copies or looks at one finds what was written. Only what fsync waits for is
//! different.
//!
//! | module | what it is |
//! |---|---|
//! | [`layout`], [`device`], [`capture`], [`log`], [`recovery`] | a log: its bytes, where they lie, what was written, appending it, reading it again |
//! | [`overlay`] | which bytes of several writes count |
//! | [`mark`], [`places`] | a log's files; logs in a directory |
//! | [`state`], `messages` | what a program and the keeper of its log tell each other |
//! | [`program`] | what hooks do: which files take part, what is written to them, what their syncs wait for |
//! | [`keeper`] | the process that syncs the files later, and outlives the program |
#![cfg(target_os = "linux")]
#![allow(clippy::cast_possible_truncation, reason = "64-bit machines; records are short")]

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod capture;
pub mod device;
pub mod keeper;
pub mod layout;
pub mod log;
pub mod mark;
mod messages;
pub mod overlay;
pub mod places;
pub mod program;
pub mod recovery;
pub mod state;

/// Waits for a mutex, also for one that a thread held when it panicked: what it guards is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
