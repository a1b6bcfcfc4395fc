//! The send family as direct system calls, because libc's functions may be interposed by the caller. Each
//! function has the safety conditions of the libc function of the same name.

use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::socket::raw;

/// Converts a system call's result to that of the libc function, setting `errno`.
fn returned(result: Result<usize, uncopy_sys::errno::Errno>) -> ssize_t {
    match result {
        Ok(count) => count.cast_signed(),
        Err(error) => {
            uncopy_sys::errno::set(error.0);
            -1
        }
    }
}

pub unsafe fn sendto(
    fd: ProgramFd,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: the kernel only reads the buffer and the address, which sendto's contract makes readable.
    returned(unsafe { raw::sendto(fd, buffer as usize, len, flags, to as usize, to_len) })
}

pub unsafe fn sendmsg(fd: ProgramFd, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the kernel only reads what the header refers to, which sendmsg's contract makes readable.
    returned(unsafe { raw::sendmsg(fd, message as usize, flags) })
}

pub unsafe fn sendmmsg(fd: ProgramFd, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // SAFETY: the kernel reads what the headers refer to and writes `msg_len`, as sendmmsg's contract allows.
    let sent = returned(unsafe { raw::sendmmsg(fd, messages as usize, count, flags) });
    c_int::try_from(sent).unwrap_or(c_int::MAX)
}

pub unsafe fn write(fd: ProgramFd, buffer: *const c_void, len: usize) -> ssize_t {
    // SAFETY: the kernel only reads the buffer, which write's contract makes readable.
    returned(unsafe { raw::write(fd, buffer as usize, len) })
}

pub unsafe fn writev(fd: ProgramFd, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the kernel only reads the vector and its parts, which writev's contract makes readable.
    returned(unsafe { raw::writev(fd, vector as usize, count) })
}
