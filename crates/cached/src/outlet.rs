//! How messages leave: copied, or with the values that lie in twin memory by reference.

#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::{SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmsg, sendmsg_addr};
use uncopy_transmit::Owner;

use crate::arguments::Transmit;

/// A page of memory, bytes.
pub const PAGE_BYTES: usize = 4096;

/// What the engine may rely on in this process.
pub fn prepare() {
    uncopy_transmit::trust_descriptors();
}

/// Says what is true of a connection's socket: it is non-blocking, one thread's own, SIGPIPE is ignored (by Rust's
/// runtime), and a connection that fails is closed.
pub fn own(transmit: Transmit, socket: BorrowedFd<'_>) {
    if transmit != Transmit::Copy {
        let reads_errors = transmit == Transmit::Zerocopy;
        let owner = Owner { ends_on_errors: true, sends_alone: true, reads_errors };
        uncopy_transmit::own(socket.as_raw_fd(), owner);
    }
}

/// The same of a UDP socket, which goes on after errors.
pub fn own_datagrams(socket: BorrowedFd<'_>) {
    let owner = Owner { ends_on_errors: true, sends_alone: true, reads_errors: false };
    uncopy_transmit::own(socket.as_raw_fd(), owner);
}

/// Sends `parts` as one message on a connected, non-blocking socket: how many bytes were taken.
///
/// # Errors
/// As sendmsg(2).
pub fn send(transmit: Transmit, socket: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    if transmit == Transmit::Copy {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        return Ok(sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags)?);
    }
    let count = i32::try_from(parts.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: IoSlice has the layout of iovec, and `count` of them are borrowed for the call.
    let sent = unsafe { uncopy_proxy::writev(socket.as_raw_fd(), parts.as_ptr().cast(), count) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sends `parts` as one datagram to `peer`.
///
/// # Errors
/// As sendmsg(2).
pub fn send_to(socket: BorrowedFd<'_>, parts: &[IoSlice<'_>], peer: &SocketAddrAny) -> io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(sendmsg_addr(socket, peer, parts, &mut SendAncillaryBuffer::default(), flags)?)
}
