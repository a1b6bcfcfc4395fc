//! libc's send family, with the parts of a message that lie in twin memory lent to the kernel: what the hooks call in
//! libc's place, when the views are gathered.

use core::ffi::{c_int, c_void};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};
use uncopy_twin as twin;
use uncopy_twin::send as proxy;

use crate::writing::{SEND, SENDMMSG, SENDMSG, SENDTO, WRITE, WRITEV};

type Pointer = *const c_void;

/// Whether a buffer that begins there may be lent.
#[inline]
pub fn is_twin(buffer: Pointer) -> bool {
    twin::contains(buffer as usize)
}

/// Whether a vector may name parts that can be lent.
#[inline]
pub fn may_be_twin() -> bool {
    twin::is_used()
}

macro_rules! sending {
    ($($name:ident $slot:ident $try:ident ($($argument:ident: $type:ty),*) -> $result:ty, if $concerned:expr
        $(, plain $plain:ident)?;)*) => {
        $(
            pub unsafe fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller's promise, which is libc's.
                unsafe {
                    if $concerned && let Some(sent) = proxy::$try($($argument),* $(, $plain)?) {
                        return sent;
                    }
                    $slot.call()($($argument),*)
                }
            }
        )*
    };
}

sending! {
    write WRITE try_write (fd: c_int, buffer: Pointer, len: usize) -> ssize_t, if is_twin(buffer);
    writev WRITEV try_writev (fd: c_int, vector: *const iovec, count: c_int) -> ssize_t, if may_be_twin();
    send SEND try_send (fd: c_int, buffer: Pointer, len: usize, flags: c_int) -> ssize_t, if is_twin(buffer);
    sendto SENDTO try_sendto
        (fd: c_int, buffer: Pointer, len: usize, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t,
        if is_twin(buffer);
    sendmsg SENDMSG try_sendmsg (fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t, if may_be_twin();
    sendmmsg SENDMMSG try_sendmmsg (fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int,
        if may_be_twin(), plain plain_sendmsg;
}

unsafe fn plain_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise, which is libc's.
    unsafe { SENDMSG.call()(fd, message, flags) }
}
