//! Sockets, and sends of memory.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use libc::{iovec, msghdr};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// Number of bytes that the kernel took, or the error: [`io::ErrorKind::WouldBlock`] if a socket is full or empty,
/// [`io::ErrorKind::UnexpectedEof`] if the client has closed or a file was truncated.
pub type IoBytes = io::Result<usize>;

/// A connection's socket, which does not block.
pub struct Socket {
    pub fd: OwnedFd,
    /// Whether MSG_ZEROCOPY may be used; `None` until that is known.
    pub allows_zerocopy: Option<bool>,
}

/// Sends bytes, which the kernel copies. `more`: further bytes follow at once.
pub fn send_copied(socket: &Socket, parts: [&[u8]; 2], more: bool) -> IoBytes {
    let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
    Ok(sendmsg(&socket.fd, &parts.map(IoSlice::new), &mut SendAncillaryBuffer::default(), flags)?)
}

/// Sends `head` and, if the kernel took all of it, calls `body`, whose error is then left to the next call.
pub fn send_then(socket: &mut Socket, head: &[u8], body: impl FnOnce(&mut Socket) -> IoBytes) -> IoBytes {
    if head.is_empty() {
        return body(socket);
    }
    let sent = send_copied(socket, [head, &[]], true)?;
    Ok(if sent == head.len() { sent + body(socket).unwrap_or(0) } else { sent })
}

/// Returns the part of a message that points to `bytes`.
pub fn iovec_of(bytes: &[u8]) -> iovec {
    iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// Returns the message that consists of `parts`, which must outlive every use of it.
pub fn message(parts: &mut [iovec; 2]) -> msghdr {
    // SAFETY: all-zero bytes are a valid msghdr, without an address, parts or control data.
    let empty: msghdr = unsafe { std::mem::zeroed() };
    msghdr { msg_iov: parts.as_mut_ptr(), msg_iovlen: parts.len(), ..empty }
}

/// Converts a length, capped at the largest `usize`.
pub fn to_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
