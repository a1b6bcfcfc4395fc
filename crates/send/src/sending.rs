//! The send family: parts of a message that lie in twin memory are lent, everything else goes straight to libc.
//!
//! A call that has none is a comparison and a jump.

use core::ffi::{c_int, c_uint};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};
use uncopy_capi::sending::{self, Pointer, SEND, SENDMMSG, SENDMSG, SENDTO, WRITE, WRITEV};
use uncopy_capi::sending::{is_candidate, may_have_candidates};
use uncopy_interpose::entry;

entry!(write WRITE (fd: c_int, buffer: Pointer, len: usize) -> ssize_t, is_candidate(buffer), {
    sending::write(fd, buffer, len)
});

entry!(writev WRITEV (fd: c_int, vector: *const iovec, count: c_int) -> ssize_t, may_have_candidates(), {
    sending::writev(fd, vector, count)
});

entry!(send SEND (fd: c_int, buffer: Pointer, len: usize, flags: c_int) -> ssize_t, is_candidate(buffer), {
    sending::send(fd, buffer, len, flags)
});

entry!(sendto SENDTO
(fd: c_int, buffer: Pointer, len: usize, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t,
is_candidate(buffer), {
    sending::sendto(fd, buffer, len, flags, to, to_len)
});

entry!(sendmsg SENDMSG (fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t, may_have_candidates(), {
    sending::sendmsg(fd, message, flags)
});

entry!(sendmmsg SENDMMSG (fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int,
may_have_candidates(), {
    sending::sendmmsg(fd, messages, count, flags)
});
