//! The calls as they are: straight to the kernel, because libc's functions may be the very ones that called. Each is as
//! safe as libc's function of that name: the kernel touches what the arguments describe, and nothing else.

use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};
use uncopy_sys::socket::raw;

/// Makes a result of the kernel's what libc's function returns; sets `errno`.
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
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: the kernel reads the buffer and the address, which are readable for the length of libc's own call.
    returned(unsafe { raw::sendto(fd, buffer as usize, len, flags, to as usize, to_len) })
}

pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the kernel reads what the header describes, which is readable for the length of libc's own call.
    returned(unsafe { raw::sendmsg(fd, message as usize, flags) })
}

pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // SAFETY: the kernel reads what the headers describe and writes their msg_len, as in libc's own call.
    let sent = returned(unsafe { raw::sendmmsg(fd, messages as usize, count, flags) });
    c_int::try_from(sent).unwrap_or(c_int::MAX)
}

pub unsafe fn write(fd: c_int, buffer: *const c_void, len: usize) -> ssize_t {
    // SAFETY: the kernel reads the buffer, which is readable for the length of libc's own call.
    returned(unsafe { raw::write(fd, buffer as usize, len) })
}

pub unsafe fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the kernel reads the vector and its parts, which are readable for the length of libc's own call.
    returned(unsafe { raw::writev(fd, vector as usize, count) })
}
