//! What else a program asks of a socket that may be a lane, or a service's: how much there is, when to be told, its options. And of
//! files, and requests that may pin memory.

use crate::{files, lanes, net, requests};
use core::ffi::{c_int, c_ulong, c_void};
use libc::socklen_t;
use uncopy_interpose::{before, slots};
use uncopy_sys::pins;

slots! {
    IOCTL = c"ioctl": unsafe extern "C" fn(c_int, c_ulong, usize) -> c_int;
    SETSOCKOPT = c"setsockopt": unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
}

// The third argument is only looked at for requests that have one; taking it in any case is what every libc does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    pins::before_request(request);
    requests::before_ioctl(request, argument);
    if files::is_known(fd) {
        files::before_ioctl(fd, request);
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { IOCTL.call()(fd, request, argument) };
    if result == 0
        && request == libc::FIONREAD
        && lanes::is_on()
        && let Some(receivable) = lanes::receivable(fd)
    {
        // SAFETY: the kernel has just stored an int there.
        unsafe {
            (argument as *mut c_int).write_unaligned(c_int::try_from(receivable).unwrap_or(c_int::MAX))
        };
    }
    result
}

/// Options by which a program counts bytes as the kernel does, or is told something of them: a token is one byte, whatever it
/// stands for.
fn needs_every_byte(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_RCVLOWAT
                | libc::SO_PEEK_OFF
                | libc::SO_PASSCRED
                | libc::SO_PASSSEC
                | libc::SO_TIMESTAMP
                | libc::SO_TIMESTAMPNS
                | libc::SO_TIMESTAMPING
        ),
        libc::IPPROTO_TCP => matches!(name, libc::TCP_ULP | libc::TCP_INQ),
        _ => false,
    }
}

before!(setsockopt SETSOCKOPT
(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int, {
    pins::before_option(level);
    if lanes::is_on() && needs_every_byte(level, name) {
        lanes::end(fd);
    }
    // SAFETY: the program's own arguments.
    if net::is_on() && let Some(result) = unsafe { net::set_option(fd, level, name, value, len) } {
        return result;
    }
});
