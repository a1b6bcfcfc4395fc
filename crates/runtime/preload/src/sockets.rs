//! Hooks of ioctl and setsockopt: unread bytes, asynchronous notification and options of sockets that may be lanes
//! or a service's; ioctls of files; requests that pin memory.

use crate::{files, lanes, net, requests};
use core::ffi::{c_int, c_ulong, c_void};
use libc::socklen_t;
use uncopy_interpose::{before, slots};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::pins;

slots! {
    IOCTL = c"ioctl": unsafe extern "C" fn(ProgramFd, c_ulong, usize) -> c_int;
    SETSOCKOPT = c"setsockopt": unsafe extern "C" fn(ProgramFd, c_int, c_int, *const c_void, socklen_t) -> c_int;
}

// ioctl has a third argument for some requests only; every libc takes it in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: ProgramFd, request: c_ulong, argument: usize) -> c_int {
    pins::note_ioctl(request);
    requests::before_ioctl(request, argument);
    if files::is_tracked(fd) {
        files::before_ioctl(fd, request);
    }
    // SAFETY: the program's own arguments, passed on to libc unchanged.
    let result = unsafe { IOCTL.call()(fd, request, argument) };
    if result == 0
        && request == libc::FIONREAD
        && lanes::is_on()
        && let Some(receivable) = lanes::receivable(fd)
    {
        // SAFETY: the kernel has just stored an int at `argument`, so it is writable.
        unsafe {
            (argument as *mut c_int).write_unaligned(c_int::try_from(receivable).unwrap_or(c_int::MAX))
        };
    }
    result
}

/// True for options by which the program or the kernel counts the stream's bytes or reports on them: a token is
/// one byte, whatever it stands for.
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
(fd: ProgramFd, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int, {
    pins::note_setsockopt(level);
    if lanes::is_on() && needs_every_byte(level, name) {
        lanes::end(fd);
    }
    // SAFETY: the program's own arguments of setsockopt.
    if net::is_on() && let Some(result) = unsafe { net::set_option(fd, level, name, value, len) } {
        return result;
    }
});
