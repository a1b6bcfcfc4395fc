//! Hooks for the send family: twin memory is lent, other calls go to libc after a comparison and a jump.

use core::ffi::{c_int, c_uint};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};
use uncopy_capi::sending::{self, Pointer, SEND, SENDMMSG, SENDMSG, SENDTO, WRITE, WRITEV};
use uncopy_capi::sending::{is_candidate, may_have_candidates};
use uncopy_interpose::entry;
use uncopy_sys::descriptor::ProgramFd;

entry!(write WRITE (fd: ProgramFd, buffer: Pointer, len: usize) -> ssize_t, is_candidate(buffer), {
    sending::write(fd, buffer, len)
});

entry!(writev WRITEV (fd: ProgramFd, vector: *const iovec, count: c_int) -> ssize_t, may_have_candidates(), {
    sending::writev(fd, vector, count)
});

entry!(send SEND (fd: ProgramFd, buffer: Pointer, len: usize, flags: c_int) -> ssize_t, is_candidate(buffer), {
    sending::send(fd, buffer, len, flags)
});

entry!(sendto SENDTO
(fd: ProgramFd, buffer: Pointer, len: usize, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t,
is_candidate(buffer), {
    sending::sendto(fd, buffer, len, flags, to, to_len)
});

entry!(sendmsg SENDMSG (fd: ProgramFd, message: *const msghdr, flags: c_int) -> ssize_t, may_have_candidates(), {
    sending::sendmsg(fd, message, flags)
});

entry!(sendmmsg SENDMMSG (fd: ProgramFd, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int,
may_have_candidates(), {
    sending::sendmmsg(fd, messages, count, flags)
});
