//! The proxy (ZCopy §3.2.2): the send family, with the parts of a message that lie in twin memory passed by
//! reference.
//!
//! Each function comes twice. `send` and its like have libc's signature, result and `errno`, and can be called
//! in its place. `try_send` and its like return `None` where there is nothing to gain and nothing was done: the caller
//! then makes libc's own call, which is what an interposing library does.
#![cfg(target_os = "linux")]

use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};

/// Whether a buffer of so many bytes is too small for any way but copying: a comparison, no system call. A hook's
/// first question.
#[inline]
#[must_use]
pub fn is_small(len_bytes: usize) -> bool {
    len_bytes < uncopy_transmit::least_bytes()
}

/// `send`, or `None`.
///
/// # Safety
/// As libc's.
pub unsafe fn try_send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> Option<ssize_t> {
    // SAFETY: the caller's promise.
    unsafe { try_sendto(fd, buffer, len, flags, core::ptr::null(), 0) }
}

/// `sendto`, or `None`.
///
/// # Safety
/// As libc's.
pub unsafe fn try_sendto(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> Option<ssize_t> {
    let _ = (fd, buffer, len, flags, to, to_len);
    None
}

/// `sendmsg`, or `None`.
///
/// # Safety
/// As libc's.
pub unsafe fn try_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    let _ = (fd, message, flags);
    None
}

/// `sendmmsg`, or `None`.
///
/// # Safety
/// As libc's.
pub unsafe fn try_sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> Option<c_int> {
    let _ = (fd, messages, count, flags);
    None
}

/// `write`, or `None`.
///
/// # Safety
/// As libc's.
pub unsafe fn try_write(fd: c_int, buffer: *const c_void, len: usize) -> Option<ssize_t> {
    let _ = (fd, buffer, len);
    None
}

/// `writev`, or `None`.
///
/// # Safety
/// As libc's.
pub unsafe fn try_writev(fd: c_int, vector: *const iovec, count: c_int) -> Option<ssize_t> {
    let _ = (fd, vector, count);
    None
}

mod plain;

/// `send`.
///
/// # Safety
/// As libc's.
pub unsafe fn send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        try_send(fd, buffer, len, flags)
            .unwrap_or_else(|| plain::sendto(fd, buffer, len, flags, core::ptr::null(), 0))
    }
}

/// `sendto`.
///
/// # Safety
/// As libc's.
pub unsafe fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        try_sendto(fd, buffer, len, flags, to, to_len)
            .unwrap_or_else(|| plain::sendto(fd, buffer, len, flags, to, to_len))
    }
}

/// `sendmsg`.
///
/// # Safety
/// As libc's.
pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { try_sendmsg(fd, message, flags).unwrap_or_else(|| plain::sendmsg(fd, message, flags)) }
}

/// `sendmmsg`.
///
/// # Safety
/// As libc's.
pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        try_sendmmsg(fd, messages, count, flags)
            .unwrap_or_else(|| plain::sendmmsg(fd, messages, count, flags))
    }
}

/// `write`.
///
/// # Safety
/// As libc's.
pub unsafe fn write(fd: c_int, buffer: *const c_void, len: usize) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { try_write(fd, buffer, len).unwrap_or_else(|| plain::write(fd, buffer, len)) }
}

/// `writev`.
///
/// # Safety
/// As libc's.
pub unsafe fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { try_writev(fd, vector, count).unwrap_or_else(|| plain::writev(fd, vector, count)) }
}
