//! The send family: parts of a message that lie in twin memory go to the proxy, everything else straight to libc.
//!
//! A call that has none is a comparison and a jump. Without a libc behind ours (a statically linked program) the system call is made here.

use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};
use uncopy_interpose::{entry, slots};
use uncopy_twin as twin;
use uncopy_twin::send as proxy;

type Pointer = *const c_void;

slots! {
    WRITE = c"write": unsafe extern "C" fn(c_int, Pointer, usize) -> ssize_t;
    WRITEV = c"writev": unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;
    SEND = c"send": unsafe extern "C" fn(c_int, Pointer, usize, c_int) -> ssize_t;
    SENDTO = c"sendto": unsafe extern "C" fn(c_int, Pointer, usize, c_int, *const sockaddr, socklen_t) -> ssize_t;
    SENDMSG = c"sendmsg": unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t;
    SENDMMSG = c"sendmmsg": unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
}

/// Makes a call that may wait, in a statically linked program, as glibc makes it: a thread that is cancelled need not wait
/// for its end (glibc before 2.41 does just this, sysdeps/unix/sysv/linux/sysdep-cancel.h).
#[cold]
fn cancellable<T>(call: impl FnOnce() -> T) -> T {
    unsafe extern "C" {
        fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    }
    /// PTHREAD_CANCEL_ASYNCHRONOUS.
    const AT_ANY_INSTRUCTION: c_int = 1;
    let mut kind = 0;
    // SAFETY: a kind that exists, and a place for the old one. In between there is nothing but a system call.
    unsafe { pthread_setcanceltype(AT_ANY_INSTRUCTION, &raw mut kind) };
    let result = call();
    // SAFETY: as above.
    unsafe { pthread_setcanceltype(kind, core::ptr::null_mut()) };
    result
}

/// A hook of a function that the proxy has as well.
macro_rules! hook {
    ($name:ident $slot:ident $try:ident ($($argument:ident: $type:ty),*) -> $result:ty, if $may_be_twin:expr
        $(, plain $plain:ident)?) => {
        entry!($name $slot ($($argument: $type),*) -> $result, $may_be_twin, {
            if $may_be_twin && let Some(sent) = proxy::$try($($argument),* $(, $plain)?) {
                return sent;
            }
            match $slot.find() {
                Some(real) => real($($argument),*),
                None => cancellable(|| proxy::$name($($argument),*)),
            }
        });
    };
}

hook!(send SEND try_send (fd: c_int, buffer: Pointer, len: usize, flags: c_int) -> ssize_t,
    if twin::contains(buffer as usize));
hook!(sendto SENDTO try_sendto
    (fd: c_int, buffer: Pointer, len: usize, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t,
    if twin::contains(buffer as usize));
hook!(write WRITE try_write (fd: c_int, buffer: Pointer, len: usize) -> ssize_t,
    if twin::contains(buffer as usize));
hook!(writev WRITEV try_writev (fd: c_int, vector: *const iovec, count: c_int) -> ssize_t,
    if twin::is_used());
hook!(sendmsg SENDMSG try_sendmsg (fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t,
    if twin::is_used());
hook!(sendmmsg SENDMMSG try_sendmmsg (fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int,
    if twin::is_used(), plain plain_sendmsg);

unsafe fn plain_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise, which is libc's.
    unsafe {
        match SENDMSG.find() {
            Some(real) => real(fd, message, flags),
            None => cancellable(|| proxy::sendmsg(fd, message, flags)),
        }
    }
}
