//! Memory that sockets send without the kernel's copy, and that may be overwritten or freed at any time. The
//! peer gets the bytes as they were at the time of the call, because a write to a page that may be in flight
//! replaces the page instead of changing it. The idea is ZCopy's (§3.2); this implementation works on stock
//! Linux kernels, with userfaultfd's write protection.
//!
//! # Allocate, fill, send
//!
//! ```
//! use std::io::{IoSlice, Read, Write};
//! use std::os::unix::net::UnixStream;
//! use uncopy_twin::{Buffer, Sender};
//!
//! let (server, mut client) = UnixStream::pair()?;
//! let page = Buffer::copy_of(&[b'x'; 40_000])?;
//!
//! let mut answer = Sender::new(server);
//! let head = format!("{}\n", page.len());
//! let sent = answer.write_vectored(&[IoSlice::new(head.as_bytes()), IoSlice::new(&page)])?;
//! drop(page);
//!
//! let mut arrived = vec![0; sent];
//! client.read_exact(&mut arrived)?;
//! assert!(arrived.starts_with(b"40000\nxxx"));
//! # std::io::Result::Ok(())
//! ```
//!
//! - [`Buffer`] is an owned byte buffer; [`Twin`] is an allocator for collections, and a `GlobalAlloc`.
//! - [`Sender`] makes a socket send twin memory by reference: as `Write`, or message by message, over TCP,
//!   UDP and UNIX sockets.
//! - [`status()`] tells whether memory is sent by reference in this process, and if not, why; [`statistics`]
//!   how much was protected; [`configure`] sets [`Options`] before the first allocation.
//!
//! The gain is in memory that is sent more often than written to, in messages of 16 KiB or more. How a
//! message is sent, and from which size by reference, is measured while the program runs; on loopback the
//! receiver copies in any case. `examples/serve.rs` is a complete server.
//!
//! # Restrictions
//!
//! One allocator serves the process. All functions may be called from any thread and in any state of the
//! process. If userfaultfd is not permitted (for users without `CAP_SYS_PTRACE` or access to
//! `/dev/userfaultfd`), and in a forked child before its first loan, the memory is ordinary and the kernel
//! copies. Forks are detected by `pthread_atfork`. After the first loan the process has one more thread and
//! one more descriptor.
//!
//! Writes by a device or io_uring to pages that it pinned *before* they were sent are not detected: do not
//! register twin memory as a fixed buffer for reading.
//!
//! # Lending explicitly
//!
//! [`mod@send`] has the send family with libc's signatures, for interposing libraries. Code that makes the
//! system calls itself must [`lend`] the parts in twin memory (`None` means: copy) and make the calls. Before
//! the program's call returns, it must drop the loan if the kernel may hold the pages forever
//! ([`Until::Dropped`]), or call [`Loan::confirm`] and keep the loan until the completion, then [`settle`] it
//! ([`Until::Completed`]). Loans of pages that were never passed on are settled, too.
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures; the range has fewer than 2^32 pages"
)]

// | module | contents |
// |---|---|
// | `options` | options that can be set before the first allocation |
// | `classes` | size classes of small objects, and their waste |
// | `table` | tables of the allocator's own data; some are wiped in children |
// | `unit` | runs of pages with one purpose, and page states |
// | `pages` | the reserved range and its free runs |
// | `process` | state of this process: phase, descriptor, locks |
// | `status` | whether memory is lent, and if not, why |
// | `start` | initialisation before the first allocation, and before the first loan |
// | `allocator` | allocate, reallocate, free |
// | `small`, `large` | objects |
// | `loan` | lending |
// | `handler` | the page fault handler |
// | `replace` | filling and replacing pages |
// | `fork` | fork handlers |
// | `send` | the send family, with twin memory passed by reference |
// | `buffer`, `traits` | a buffer, and the standard allocator traits |
// | `sender` | a socket that sends by reference, for safe code |
mod allocator;
mod buffer;
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
mod sender;
mod small;
mod start;
mod status;
mod table;
mod traits;
mod unit;

pub use allocator::{allocate, allocate_aligned, allocate_zeroed, deallocate, reallocate, usable_size};
pub use buffer::Buffer;
pub use counters::Statistics;
pub use loan::{Loan, Stamp, Until, lend, settle, worth_lending};
pub use options::{ALIGNMENT, ConfigureError, Options};
pub use process::{has_handler, statistics, status, switch_off};
pub use sender::Sender;
pub use status::{InactiveReason, Status};
pub use traits::Twin;

/// Sets the options. Must be called before the first allocation.
///
/// # Errors
/// Returns a [`ConfigureError`]; nothing has changed then.
pub fn configure(options: Options) -> Result<(), ConfigureError> {
    start::configure(options)
}

/// Large enough for an object with pages of its own.
const PROBE_BYTES: usize = 64 << 10;

/// Lends a dummy object, unless something was lent before. So [`status()`] tells whether anything is missing,
/// and no other userfaultfd (such as that of `libuncopy.so`) gets hold of the memory first.
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
    // SAFETY: `object` was allocated above, is not null, and nothing uses it any more.
    unsafe { deallocate(object) };
}

/// True if an address lies in twin memory. Costs two comparisons.
#[inline]
#[must_use]
pub fn contains(address: usize) -> bool {
    pages::contains(address)
}

/// True if any of `len` bytes at `address` lies in twin memory.
#[must_use]
pub fn overlaps(address: usize, len: usize) -> bool {
    pages::overlaps(address, len)
}

/// True if anything was ever allocated. Until then, no address lies in twin memory.
#[inline]
#[must_use]
pub fn is_used() -> bool {
    pages::is_used()
}

/// True if the allocator's own data are consistent. For tests, while no other thread allocates.
#[doc(hidden)]
#[must_use]
pub fn is_valid() -> bool {
    !process::is_ready() || pages::PAGES.is_valid()
}

/// Compiles the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
