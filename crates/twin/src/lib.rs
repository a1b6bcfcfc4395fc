//! Memory that leaves through sockets without the kernel's copy, and that may be overwritten or freed at any time: what was
//! sent arrives as it was at the moment of the call, because a write to a page that may be on its way replaces the page
//! instead of changing it. The idea is that of ZCopy (§3.2); here it works on a stock Linux kernel, by userfaultfd's write
//! protection.
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
//! - [`Buffer`] is an owned run of bytes; [`Twin`] an allocator for collections, and a `GlobalAlloc`.
//! - [`Sender`] makes a socket send them: `Write`, or message by message, over TCP, UDP and UNIX sockets.
//! - [`status()`] says whether memory is sent by reference in this process, and why if it is not, [`statistics`] how much of it
//!   was protected; [`configure`] sets [`Options`], before the first allocation.
//!
//! It pays for memory that is sent more often than it is written, in messages of some 16 KiB and more. By which way a message
//! goes, and from which size on, is measured while the program runs; on loopback the receiver copies in any case.
//! `examples/serve.rs` is a whole server.
//!
//! # Anywhere, in any state
//!
//! One allocator serves the process. Every function may be called from any thread and in any state of the process: where
//! userfaultfd is refused (as a user without `CAP_SYS_PTRACE` and without access to `/dev/userfaultfd`), and in a forked child
//! that has not lent anything yet, it is ordinary memory, and the kernel copies. Forks are noticed by `pthread_atfork`.
//! After the first loan the process has one more thread and one more descriptor.
//!
//! Not protected are bytes that a device or io_uring writes to pages it pinned *before* they were sent: do not register
//! twin memory as a fixed buffer for reading.
//!
//! # By hand
//!
//! [`mod@send`] has the send family with libc's signatures, for libraries that stand in front of it. Who makes the system calls
//! himself must [`lend`] the parts in twin memory (`None` means: copy); make the calls; then, before the program's call returns,
//! drop the loan if the kernel may hold the pages for good ([`Until::Dropped`]), or call [`Loan::confirm`] and keep it
//! until the completion arrives, when [`settle`] takes it ([`Until::Completed`]). Pages that were never handed over
//! are settled as well.
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures; the range has fewer than 2^32 pages"
)]

// Its files:
//
// | module | one line |
// |---|---|
// | `options` | what can be set before the first allocation |
// | `classes` | size classes of small objects, and what they waste |
// | `table` | the allocator's own data, apart from the pages; some of it wiped in children |
// | `unit` | runs of pages with one purpose, and the states of pages |
// | `pages` | the reserved range; free runs |
// | `process` | what is true of this process only: phase, descriptor, locks |
// | `status` | whether memory is lent, and if not, why |
// | `start` | what is reserved before the first allocation, and opened before the first loan |
// | `allocator` | allocating, reallocating, giving back |
// | `small`, `large` | objects |
// | `loan` | lending |
// | `handler` | the fault service |
// | `replace` | putting pages in place |
// | `fork` | what a fork needs |
// | `send` | the send family, with the parts of a message that lie in twin memory passed by reference |
// | `buffer`, `traits` | a buffer, and the standard traits |
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

/// What the README shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
