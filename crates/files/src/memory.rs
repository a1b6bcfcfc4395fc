//! Twin memory as this server uses it: buffers for whole files, and the send that passes them by
//! reference. Everything that it knows of `uncopy-twin` and `uncopy-proxy` is here.

use std::io;
use std::os::fd::BorrowedFd;

use libc::c_int;

use crate::os;

/// Memory for one file's bytes.
#[derive(Debug)]
pub struct Buffer(Box<[u8]>);

impl Buffer {
    /// `len_bytes` of it, zeroed; `None` where there is none left.
    #[must_use]
    pub fn new(len_bytes: usize) -> Option<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len_bytes).ok()?;
        bytes.resize(len_bytes, 0);
        Some(Self(bytes.into_boxed_slice()))
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
    // SAFETY: both are borrowed for the length of the call, and without MSG_ZEROCOPY the kernel copies.
    unsafe { os::send(socket, &[os::part(head), os::part(body)], flags) }
}
