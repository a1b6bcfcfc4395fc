//! Twin memory as this server uses it: buffers for whole files, and the send that passes them by
//! reference. Everything that it knows of the twin allocator is here.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::c_int;
use uncopy_twin::Bytes;

use crate::files::os;

/// Memory for one file's bytes.
#[derive(Debug)]
pub struct Buffer(Bytes);

/// Objects of more bytes have pages of their own (the default of [`uncopy_twin::Options`]).
const LARGE_BYTES: u64 = 4096;
/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;

/// What a buffer of `len_bytes` takes of the memory: whole pages if it is large. Small ones are packed, with a waste of at
/// most a sixteenth, which does not count.
#[must_use]
pub const fn taken_bytes(len_bytes: u64) -> u64 {
    if len_bytes > LARGE_BYTES {
        len_bytes.saturating_add(PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES
    } else {
        len_bytes
    }
}

impl Buffer {
    /// `len_bytes` of it, zeroed; `None` where there is none left.
    #[must_use]
    pub fn new(len_bytes: usize) -> Option<Self> {
        Bytes::zeroed(len_bytes).map(Self)
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Sends `head`, copied, and `body`, which lies in a [`Buffer`], by reference where that pays; returns how
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
