//! The twin allocator (ZCopy §3.2): memory that can be handed to the kernel by reference, because a write to it
//! after it was sent replaces the page instead of changing it.
//!
//! One allocator for the process. Every function may be called from any thread and in any state of the process: where
//! userfaultfd is refused, and in a forked child that has not lent anything yet, its memory is ordinary memory and
//! [`lend`] may say `None`, which means: copy.
//!
//! How to send: [`lend`] the parts in twin memory; make the system calls; then, before the program's call returns,
//! drop the loan if the kernel may hold the pages for good ([`Until::Dropped`]), or call [`Loan::confirm`] and keep it
//! until the completion arrives, when [`settle`] takes it ([`Until::Completed`]). Pages that were never handed over
//! are settled as well.
//!
//! Not protected are bytes that a device or io_uring writes to pages it pinned *before* they were sent: do not register
//! twin memory as a fixed buffer for reading.
#![cfg(target_os = "linux")]

mod bytes;
mod interim;
mod options;
mod traits;

pub use bytes::Bytes;
pub use interim::*;
pub use options::{ConfigureError, Options};
pub use traits::Twin;

/// Alignment of every object, bytes: that of C's `malloc`.
pub const ALIGNMENT: usize = 16;
