//! libc's send family with twin memory lent to the kernel, called by the hooks of both libraries in place of
//! libc's functions. Each library has its own hooks, because `libuncopy.so` consults the engine first.
//!
//! Without a libc definition behind ours (static linking), these functions make the system call themselves.

use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};
use uncopy_interpose::slots;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_twin::{self as twin, send as lending};

/// Address of the data to send.
pub type Pointer = *const c_void;

slots! {
    WRITE = c"write": unsafe extern "C" fn(ProgramFd, Pointer, usize) -> ssize_t;
    WRITEV = c"writev": unsafe extern "C" fn(ProgramFd, *const iovec, c_int) -> ssize_t;
    SEND = c"send": unsafe extern "C" fn(ProgramFd, Pointer, usize, c_int) -> ssize_t;
    SENDTO = c"sendto": unsafe extern "C" fn(ProgramFd, Pointer, usize, c_int, *const sockaddr, socklen_t) -> ssize_t;
    SENDMSG = c"sendmsg": unsafe extern "C" fn(ProgramFd, *const msghdr, c_int) -> ssize_t;
    SENDMMSG = c"sendmmsg": unsafe extern "C" fn(ProgramFd, *mut mmsghdr, c_uint, c_int) -> c_int;
}

/// True if a buffer at this address may be lent. Costs two comparisons.
#[inline]
pub fn is_candidate(buffer: Pointer) -> bool {
    twin::contains(buffer as usize)
}

/// True if a vector may contain lendable parts, because memory was allocated from twin memory.
#[inline]
pub fn may_have_candidates() -> bool {
    twin::is_used()
}

/// Makes a blocking call in a statically linked program with asynchronous cancellation enabled, so that a
/// thread blocked in the call can be cancelled. glibc before 2.41 does the same
/// (sysdeps/unix/sysv/linux/sysdep-cancel.h).
#[cold]
fn cancellable<T>(call: impl FnOnce() -> T) -> T {
    unsafe extern "C" {
        fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    }
    const CANCEL_ASYNCHRONOUS: c_int = 1;
    let mut kind = 0;
    // SAFETY: pthread_setcanceltype(3) needs a valid type and a valid or null pointer; `kind` outlives the
    // call. Only a system call runs while the type is asynchronous.
    unsafe { pthread_setcanceltype(CANCEL_ASYNCHRONOUS, &raw mut kind) };
    let result = call();
    // SAFETY: `kind` is the previous type, so it is valid; null is allowed for the old type.
    unsafe { pthread_setcanceltype(kind, core::ptr::null_mut()) };
    result
}

/// `NAME SLOT TRY (ARGUMENTS) -> RESULT, if CONDITION`: calls TRY if CONDITION holds; if nothing was lent,
/// calls libc's function. `plain FUNCTION` sends the messages of which nothing is lent.
macro_rules! sending {
    ($($name:ident $slot:ident $try:ident ($($argument:ident: $type:ty),*) -> $result:ty, if $is_candidate:expr
        $(, plain $plain:ident)?;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`, what lies in twin memory lent.")]
            ///
            /// # Safety
            /// The same as for libc's function of this name.
            pub unsafe fn $name($($argument: $type),*) -> $result {
                // SAFETY: TRY, libc's function and the system call wrapper all have the contract of libc's
                // function, which the caller upholds for these arguments.
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
    write WRITE try_write (fd: ProgramFd, buffer: Pointer, len: usize) -> ssize_t, if is_candidate(buffer);
    writev WRITEV try_writev (fd: ProgramFd, vector: *const iovec, count: c_int) -> ssize_t, if may_have_candidates();
    send SEND try_send (fd: ProgramFd, buffer: Pointer, len: usize, flags: c_int) -> ssize_t, if is_candidate(buffer);
    sendto SENDTO try_sendto
        (fd: ProgramFd, buffer: Pointer, len: usize, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t,
        if is_candidate(buffer);
    sendmsg SENDMSG try_sendmsg (fd: ProgramFd, message: *const msghdr, flags: c_int) -> ssize_t,
        if may_have_candidates();
    sendmmsg SENDMMSG try_sendmmsg (fd: ProgramFd, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int,
        if may_have_candidates(), plain plain_sendmsg;
}

unsafe fn plain_sendmsg(fd: ProgramFd, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: both functions have sendmsg's contract. `message` is one of those that the program passed to
    // sendmmsg, whose contract includes that of sendmsg for each message.
    unsafe {
        match SENDMSG.find() {
            Some(real) => real(fd, message, flags),
            None => cancellable(|| lending::sendmsg(fd, message, flags)),
        }
    }
}
