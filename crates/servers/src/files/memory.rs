//! Twin memory as this server uses it: what files take of it, and the send that passes them by reference.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::c_int;

use crate::files::os;

/// Objects of more bytes have pages of their own (the default of [`uncopy_twin::Options`]).
const LARGE_BYTES: u64 = 4096;
/// Bytes of a page.
const PAGE_BYTES: u64 = uncopy_transmit::PAGE_BYTES as u64;

/// What a buffer of `len_bytes` takes of the memory: whole pages if it is large. Small ones are packed, with a waste of at
/// most a sixteenth, which does not count.
pub const fn taken_bytes(len_bytes: u64) -> u64 {
    if len_bytes > LARGE_BYTES {
        len_bytes.saturating_add(PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES
    } else {
        len_bytes
    }
}

/// Sends `head`, copied, and `body`, which lies in twin memory, by reference where that pays; returns how
/// many bytes of both were taken.
///
/// # Errors
/// As sendmsg.
pub fn send(socket: BorrowedFd<'_>, head: &[u8], body: &[u8], flags: c_int) -> io::Result<usize> {
    let parts = [os::part(head), os::part(body)];
    let message = os::message(&parts);
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: the message has nothing but two parts, both borrowed for the length of the call. Of these the kernel may hold
    // twin memory longer, whose pages are replaced when they are written to.
    let sent = unsafe { uncopy_twin::send::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
