//! libc's send family, with the parts of a message that lie in twin memory lent to the kernel: what the hooks of both
//! libraries call in libc's place. The hooks themselves are each library's own, because the engine comes first in
//! `libuncopy.so`.
//!
//! Without a libc behind ours (a statically linked program) the system call is made here.

use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};
use uncopy_interpose::slots;
use uncopy_twin::{self as twin, send as lending};

/// The first byte of what is sent.
pub type Pointer = *const c_void;

slots! {
    WRITE = c"write": unsafe extern "C" fn(c_int, Pointer, usize) -> ssize_t;
    WRITEV = c"writev": unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;
    SEND = c"send": unsafe extern "C" fn(c_int, Pointer, usize, c_int) -> ssize_t;
    SENDTO = c"sendto": unsafe extern "C" fn(c_int, Pointer, usize, c_int, *const sockaddr, socklen_t) -> ssize_t;
    SENDMSG = c"sendmsg": unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t;
    SENDMMSG = c"sendmmsg": unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
}

/// Whether a buffer that begins there may be lent: two comparisons.
#[inline]
pub fn is_candidate(buffer: Pointer) -> bool {
    twin::contains(buffer as usize)
}

/// Whether a vector may name parts that can be lent: anything was ever allocated from twin memory.
#[inline]
pub fn may_have_candidates() -> bool {
    twin::is_used()
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
    // SAFETY: the kind that there was; null is allowed where the old one is not wanted.
    unsafe { pthread_setcanceltype(kind, core::ptr::null_mut()) };
    result
}

/// `NAME SLOT TRY (ARGUMENTS) -> RESULT, if CONDITION`: calls TRY where the condition holds, and where that has nothing to
/// gain, libc's function. `plain FUNCTION` is for messages of which nothing is lent.
macro_rules! sending {
    ($($name:ident $slot:ident $try:ident ($($argument:ident: $type:ty),*) -> $result:ty, if $is_candidate:expr
        $(, plain $plain:ident)?;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`, what lies in twin memory lent.")]
            ///
            /// # Safety
            /// As libc's.
            pub unsafe fn $name($($argument: $type),*) -> $result {
                // SAFETY: all have libc's contract, which the caller keeps to.
                unsafe {
                    if $is_candidate && let Some(sent) = lending::$try($($argument),* $(, $plain)?) {
                        return sent;
                    }
                    match $slot.find() {
                        Some(real) => real($($argument),*),
                        None => cancellable(|| lending::$name($($argument),*)),
                    }
                }
            }
        )*
    };
}

sending! {
    write WRITE try_write (fd: c_int, buffer: Pointer, len: usize) -> ssize_t, if is_candidate(buffer);
    writev WRITEV try_writev (fd: c_int, vector: *const iovec, count: c_int) -> ssize_t, if may_have_candidates();
    send SEND try_send (fd: c_int, buffer: Pointer, len: usize, flags: c_int) -> ssize_t, if is_candidate(buffer);
    sendto SENDTO try_sendto
        (fd: c_int, buffer: Pointer, len: usize, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t,
        if is_candidate(buffer);
    sendmsg SENDMSG try_sendmsg (fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t,
        if may_have_candidates();
    sendmmsg SENDMMSG try_sendmmsg (fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int,
        if may_have_candidates(), plain plain_sendmsg;
}

unsafe fn plain_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: both have libc's contract; the message is one of those that the program passed to sendmmsg.
    unsafe {
        match SENDMSG.find() {
            Some(real) => real(fd, message, flags),
            None => cancellable(|| lending::sendmsg(fd, message, flags)),
        }
    }
}
