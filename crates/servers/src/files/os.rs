//! What this server asks of the kernel and `rustix` does not offer, or must go through the C library
//! because `uncopy run` is to see it: sends of memory, a look at mapped memory.

#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_void};
use uncopy_transmit::{Completed, next_completed};

/// A part of a message that is in memory.
pub type Part = libc::iovec;

/// The part that `bytes` are.
pub fn part(bytes: &[u8]) -> Part {
    Part { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// The message that consists of `parts`.
pub fn message(parts: &[Part]) -> libc::msghdr {
    // SAFETY: all-zero is a valid msghdr: no address, no parts, no control data.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len();
    message
}

/// Sends `parts`, copied by the kernel or as `flags` say; returns how many bytes it took.
///
/// # Errors
/// The kernel's; EFAULT where a part is mapped from a file that has become shorter.
///
/// # Safety
/// Every part must be memory that stays mapped during the call, and, with MSG_ZEROCOPY, whose pages are not
/// written to before the completion. What the memory holds may change.
pub unsafe fn send(socket: BorrowedFd<'_>, parts: &[Part], flags: c_int) -> io::Result<usize> {
    let message = message(parts);
    // SAFETY: the message has parts only, which the caller keeps mapped during the call, and unchanged for as long as the
    // kernel reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags | libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sends bytes, which the kernel copies. `more`: others follow at once.
///
/// # Errors
/// The kernel's.
pub fn send_copied<const N: usize>(
    socket: BorrowedFd<'_>,
    parts: [&[u8]; N],
    more: bool,
) -> io::Result<usize> {
    // SAFETY: the parts are borrowed for the length of the call, and without MSG_ZEROCOPY the kernel copies them in it.
    unsafe { send(socket, &parts.map(part), more_flag(more)) }
}

/// The flag of a send that others follow at once.
pub const fn more_flag(more: bool) -> c_int {
    if more { libc::MSG_MORE } else { 0 }
}

/// Allows MSG_ZEROCOPY on a socket.
///
/// # Errors
/// The kernel's.
pub fn allow_zerocopy(socket: BorrowedFd<'_>) -> io::Result<()> {
    let one: c_int = 1;
    let len = libc::socklen_t::try_from(size_of::<c_int>()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the option takes an int, which `one` is, of `len` bytes.
    let outcome = unsafe {
        let value = (&raw const one).cast::<c_void>();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, len)
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What a socket's error queue held.
#[derive(Clone, Copy, Debug, Default)]
pub struct Completions {
    /// Sends that are completed.
    pub sends: u32,
    /// Whether the kernel copied one of them.
    pub copied: bool,
}

/// Takes all completions of MSG_ZEROCOPY from a socket's error queue.
pub fn completions(socket: BorrowedFd<'_>) -> Completions {
    let mut all = Completions::default();
    while let Ok(next) = next_completed(socket.as_raw_fd()) {
        if let Some(Completed { first, last, was_copied }) = next {
            // Both included; the numbers wrap around.
            all.sends = all.sends.wrapping_add(last.wrapping_sub(first).wrapping_add(1));
            all.copied |= was_copied;
        }
    }
    all
}

/// Copies memory that may be mapped from a file that becomes shorter at any moment, where reading it
/// would end the program by SIGBUS: the kernel reads it, and stops where there is nothing.
/// Returns how many bytes there were.
pub fn peek(from: *const c_void, into: &mut [u8]) -> usize {
    let local = Part { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = Part { iov_base: from.cast_mut(), iov_len: into.len() };
    // SAFETY: both vectors are valid and have one part; the kernel writes to `into`, which is borrowed mutably, and checks
    // the other address itself.
    let got = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(got).unwrap_or(0)
}
