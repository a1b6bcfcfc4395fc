//! The twin allocator (ZCopy §3.2): memory that can be handed to the kernel by reference, because a write to it
//! after it was sent replaces the page instead of changing it.
//!
//! One allocator for the process. Every function may be called from any thread and in any state of the process: where
//! userfaultfd is refused, and in a forked child that has not lent anything yet, its memory is ordinary memory and
//! [`lend`] may say `None`, which means: copy. [`status()`] says which it is, and why.
//!
//! How to send: [`lend`] the parts in twin memory; make the system calls; then, before the program's call returns,
//! drop the loan if the kernel may hold the pages for good ([`Until::Dropped`]), or call [`Loan::confirm`] and keep it
//! until the completion arrives, when [`settle`] takes it ([`Until::Completed`]). Pages that were never handed over
//! are settled as well.
//!
//! Not protected are bytes that a device or io_uring writes to pages it pinned *before* they were sent: do not register
//! twin memory as a fixed buffer for reading.
//!
//! | module | one line |
//! |---|---|
//! | [`options`] | what can be set before the first allocation |
//! | [`classes`] | size classes of small objects, and what they waste |
//! | [`table`] | the allocator's own data, apart from the pages; some of it wiped in children |
//! | [`mod@unit`] | runs of pages with one purpose, and the states of pages |
//! | [`pages`] | the reserved range; free runs |
//! | [`process`] | what is true of this process only: phase, descriptor, locks |
//! | [`mod@status`] | whether memory is lent, and if not, why |
//! | [`mod@start`] | what is reserved before the first allocation, and opened before the first loan |
//! | [`allocator`] | allocating, reallocating, giving back |
//! | [`small`], [`large`] | objects |
//! | [`loan`] | lending |
//! | [`handler`] | the fault service |
//! | [`mod@replace`] | putting pages in place |
//! | [`fork`] | what a fork needs |
//! | [`send`] | the send family, with the parts of a message that lie in twin memory passed by reference |
//! | [`bytes`], [`traits`] | a buffer, and the standard traits |
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures; the range has fewer than 2^32 pages"
)]

mod allocator;
mod bytes;
mod classes;
mod counters;
pub mod fork;
mod handler;
mod large;
mod loan;
mod options;
mod pages;
mod process;
mod replace;
pub mod send;
mod small;
mod start;
mod status;
mod table;
mod traits;
mod unit;

pub use allocator::{allocate, allocate_aligned, allocate_zeroed, deallocate, reallocate, usable_size};
pub use bytes::Bytes;
pub use counters::Statistics;
pub use loan::{Loan, Stamp, Until, lend, settle, worth_lending};
pub use options::{ALIGNMENT, ConfigureError, Options};
pub use process::{has_handler, statistics, status, switch_off};
pub use status::{Status, Why};
pub use traits::Twin;

/// Takes the options. Before the first allocation only.
///
/// # Errors
/// [`ConfigureError`]; nothing has changed then.
pub fn configure(options: Options) -> Result<(), ConfigureError> {
    start::configure(options)
}

/// Large enough for pages of its own.
const PROBE_BYTES: usize = 64 << 10;

/// Lends something that nobody sends, unless anything was lent before: so [`status()`] says what is missing, and no other
/// userfaultfd (that of `libuncopy.so`, which takes it for the program's) can be registered with the memory first.
pub fn probe() {
    if status() != Status::Dormant {
        return;
    }
    let object = allocate(PROBE_BYTES);
    if object.is_null() {
        return;
    }
    if let Some(loan) = lend(object as usize, PROBE_BYTES, Until::Completed) {
        settle(loan);
    }
    // SAFETY: allocated above, and used no more.
    unsafe { deallocate(object) };
}

/// Whether an address lies in twin memory: two comparisons.
#[inline]
#[must_use]
pub fn contains(address: usize) -> bool {
    pages::contains(address)
}

/// Whether any of `len` bytes at an address lies in twin memory.
#[must_use]
pub fn overlaps(address: usize, len: usize) -> bool {
    pages::overlaps(address, len)
}

/// Whether anything was ever allocated: before that, no address lies in twin memory.
#[inline]
#[must_use]
pub fn is_used() -> bool {
    pages::is_used()
}

/// Whether the allocator's own data agree. For tests, while no other thread allocates.
#[doc(hidden)]
#[must_use]
pub fn is_valid() -> bool {
    !process::is_ready() || pages::PAGES.is_valid()
}
