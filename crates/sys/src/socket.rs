//! Sockets: sending, and what one is asked before anything is sent by reference.
//!
//! The program's own messages are not among the calls that a test may let fail: what the kernel says to them is the
//! program's to hear.

use crate::call::syscall;
use crate::errno::{Errno, check};

/// One part of a message as the kernel takes it: the layout of `iovec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Vector {
    /// First byte.
    pub address: usize,
    /// Bytes.
    pub len_bytes: usize,
}

/// Parts that the kernel takes in one message (`UIO_MAXIOV`).
pub const VECTORS_MOST: usize = 1024;

/// Whom a message goes to and what goes with it, as the program gave them. The kernel looks at both: bad
/// addresses are its to refuse.
#[derive(Clone, Copy, Debug, Default)]
pub struct Envelope {
    /// `msg_name`; 0: none.
    pub to: usize,
    /// `msg_namelen`.
    pub to_len_bytes: u32,
    /// `msg_control`; 0: none.
    pub control: usize,
    /// `msg_controllen`.
    pub control_len_bytes: usize,
}

impl Envelope {
    /// Whether there is nothing on it: a connected socket, no control data.
    #[must_use]
    pub const fn is_blank(&self) -> bool {
        self.to == 0 && self.to_len_bytes == 0 && self.control == 0 && self.control_len_bytes == 0
    }
}

/// `sendmsg`. Bytes sent.
///
/// # Errors
/// What sendmsg says.
pub fn send(fd: i32, vectors: &[Vector], flags: i32, envelope: &Envelope) -> Result<usize, Errno> {
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_name = envelope.to as *mut _;
    header.msg_namelen = envelope.to_len_bytes;
    header.msg_iov = vectors.as_ptr().cast_mut().cast();
    header.msg_iovlen = vectors.len() as _;
    header.msg_control = envelope.control as *mut _;
    header.msg_controllen = envelope.control_len_bytes as _;
    // SAFETY: the header is valid; the kernel only reads what it points to, and says EFAULT where it cannot.
    check(unsafe { syscall!(libc::SYS_sendmsg, fd, &raw const header, flags) }).map(|sent| sent as usize)
}

/// `writev`. Bytes written.
///
/// # Errors
/// What writev says.
pub fn write(fd: i32, vectors: &[Vector]) -> Result<usize, Errno> {
    // SAFETY: the kernel only reads what the vectors name, and says EFAULT where it cannot.
    check(unsafe { syscall!(libc::SYS_writev, fd, vectors.as_ptr(), vectors.len()) })
        .map(|sent| sent as usize)
}

/// The send family as the program called it: the arguments go to the kernel as they are.
pub mod raw {
    use super::{Errno, check};
    use crate::call::syscall;

    /// `sendto`.
    ///
    /// # Errors
    /// What sendto says.
    ///
    /// # Safety
    /// The kernel reads what the arguments point to, and nothing else.
    pub unsafe fn sendto(
        fd: i32,
        buffer: usize,
        len: usize,
        flags: i32,
        to: usize,
        to_len: u32,
    ) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        check(unsafe { syscall!(libc::SYS_sendto, fd, buffer, len, flags, to, to_len) })
            .map(|count| count as usize)
    }

    /// `sendmsg`.
    ///
    /// # Errors
    /// What sendmsg says.
    ///
    /// # Safety
    /// As [`sendto`].
    pub unsafe fn sendmsg(fd: i32, message: usize, flags: i32) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        check(unsafe { syscall!(libc::SYS_sendmsg, fd, message, flags) }).map(|count| count as usize)
    }

    /// `sendmmsg`. Messages sent.
    ///
    /// # Errors
    /// What sendmmsg says.
    ///
    /// # Safety
    /// As [`sendto`]; the kernel writes each message's length.
    pub unsafe fn sendmmsg(fd: i32, messages: usize, count: u32, flags: i32) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        check(unsafe { syscall!(libc::SYS_sendmmsg, fd, messages, count, flags) }).map(|count| count as usize)
    }

    /// `write`.
    ///
    /// # Errors
    /// What write says.
    ///
    /// # Safety
    /// As [`sendto`].
    pub unsafe fn write(fd: i32, buffer: usize, len: usize) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        check(unsafe { syscall!(libc::SYS_write, fd, buffer, len) }).map(|count| count as usize)
    }

    /// `writev`.
    ///
    /// # Errors
    /// What writev says.
    ///
    /// # Safety
    /// As [`sendto`].
    pub unsafe fn writev(fd: i32, vector: usize, count: i32) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        check(unsafe { syscall!(libc::SYS_writev, fd, vector, count) }).map(|count| count as usize)
    }
}
