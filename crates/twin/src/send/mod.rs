//! The send family, with the parts of a message that lie in twin memory passed by reference (ZCopy §3.2.2, its proxy).
//!
//! Each function comes twice. `send` and its like have libc's signature, result and `errno`, and can be called
//! in its place. `try_send` and its like return `None` where there is nothing to gain and nothing was done: the caller
//! then makes libc's own call, which is what an interposing library does. A program that knows which of its memory is twin
//! memory lends it itself, by [`Loans`].

use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};
use message::is_readable;
use message::{Call, Given};
use uncopy_transmit::Envelope;

mod loans;
mod message;
mod pending;
mod plain;

pub use loans::Loans;

/// Whether a buffer of `len_bytes` is too small for any way but copying: a comparison, no system call. A hook's first
/// question.
#[inline]
#[must_use]
pub fn is_small(len_bytes: usize) -> bool {
    len_bytes < uncopy_transmit::min_bytes()
}

/// Whether there is any twin memory.
#[inline]
fn is_in_use() -> bool {
    crate::pages::is_used()
}

/// `send`, or `None`.
///
/// # Safety
/// As libc's.
pub unsafe fn try_send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> Option<ssize_t> {
    // SAFETY: a `send` is a `sendto` without an address, and the caller calls it as libc's.
    unsafe { try_sendto(fd, buffer, len, flags, core::ptr::null(), 0) }
}

/// `sendto`, or `None`.
///
/// # Safety
/// As libc's.
pub unsafe fn try_sendto(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> Option<ssize_t> {
    if is_small(len) || !crate::pages::contains(buffer as usize) {
        return None;
    }
    let envelope = Envelope { to: to as usize, to_len_bytes: to_len, ..Envelope::default() };
    let call = Call::Message { flags, envelope: &envelope };
    message::send(fd, &[Given { address: buffer as usize, len_bytes: len }], call)
}

/// `sendmsg`, or `None`.
///
/// # Safety
/// As libc's.
pub unsafe fn try_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    if !is_in_use() || !message.is_aligned() || !is_readable(message as usize, size_of::<msghdr>()) {
        return None;
    }
    // SAFETY: aligned and readable, as just checked; a msghdr may hold any bytes, and the program does not change it during
    // its call.
    let header = unsafe { &*message };
    // SAFETY: the program does not change the vector during its call.
    let given = unsafe { message::given(header.msg_iov, header.msg_iovlen) }?;
    let envelope = Envelope {
        to: header.msg_name as usize,
        to_len_bytes: header.msg_namelen,
        control: header.msg_control as usize,
        control_len_bytes: header.msg_controllen,
    };
    message::send(fd, given, Call::Message { flags, envelope: &envelope })
}

/// A function with `sendmsg`'s contract.
pub type SendMessage = unsafe fn(c_int, *const msghdr, c_int) -> ssize_t;

/// `sendmmsg`, or `None`. Messages of which nothing is lent go by `plain`, in which a thread that waits can be cancelled
/// if it can in the caller's call.
///
/// # Safety
/// As libc's.
pub unsafe fn try_sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    plain: SendMessage,
) -> Option<c_int> {
    // The kernel reads no more.
    let number = (count as usize).min(MAX_MESSAGES);
    let is_readable =
        is_in_use() && messages.is_aligned() && is_readable(messages as usize, number * size_of::<mmsghdr>());
    if number == 0 || !is_readable {
        return None;
    }
    // SAFETY: aligned and readable, as just checked; a mmsghdr may hold any bytes; sendmmsg is given memory that it may write
    // to and that nobody else uses during the call.
    let messages = unsafe { core::slice::from_raw_parts_mut(messages, number) };
    // SAFETY: the program does not change the vectors during its call.
    let has_twin = messages.iter().any(|message| unsafe { has_twin(&message.msg_hdr) });
    // SAFETY: the caller calls this as libc's `sendmmsg`; the slice is its array, as far as the kernel looks.
    has_twin.then(|| unsafe { send_in_turn(fd, messages, flags, plain) })
}

/// `write`, or `None`.
///
/// # Safety
/// As libc's.
pub unsafe fn try_write(fd: c_int, buffer: *const c_void, len: usize) -> Option<ssize_t> {
    if is_small(len) || !crate::pages::contains(buffer as usize) {
        return None;
    }
    message::send(fd, &[Given { address: buffer as usize, len_bytes: len }], Call::Write)
}

/// `writev`, or `None`.
///
/// # Safety
/// As libc's.
pub unsafe fn try_writev(fd: c_int, vector: *const iovec, count: c_int) -> Option<ssize_t> {
    if !is_in_use() {
        return None;
    }
    // SAFETY: the program does not change the vector during its call.
    let given = unsafe { message::given(vector, usize::try_from(count).unwrap_or(0)) }?;
    message::send(fd, given, Call::Write)
}

/// Takes back what the kernel has done with, of messages on a socket whose owner promised
/// [`uncopy_transmit::Owner::reads_errors`]. Returns the number of loans that are still out, on any socket.
pub fn completions(fd: c_int) -> usize {
    uncopy_transmit::completions(fd, &mut pending::complete);
    pending::count()
}

/// Messages of one `sendmmsg` that the kernel sends.
const MAX_MESSAGES: usize = 1024;

/// Whether a message has a part in twin memory.
///
/// # Safety
/// Nobody changes its vector meanwhile.
unsafe fn has_twin(header: &msghdr) -> bool {
    // SAFETY: the caller says that nobody changes the vector while the parts are in use.
    unsafe { message::given(header.msg_iov, header.msg_iovlen) }
        .is_some_and(|given| given.iter().any(|part| crate::pages::contains(part.address)))
}

/// Sends one message after the other, as the kernel does: up to the first that fails or is cut.
///
/// # Safety
/// As libc's `sendmmsg`.
unsafe fn send_in_turn(fd: c_int, messages: &mut [mmsghdr], flags: c_int, plain: SendMessage) -> c_int {
    let mut count = 0;
    for message in messages {
        let header = &raw const message.msg_hdr;
        // SAFETY: the header is one of a `sendmmsg`'s, which the kernel would send as `sendmsg` does.
        let sent = unsafe { try_sendmsg(fd, header, flags).unwrap_or_else(|| plain(fd, header, flags)) };
        let Ok(sent) = usize::try_from(sent) else { break };
        message.msg_len = c_uint::try_from(sent).unwrap_or(c_uint::MAX);
        count += 1;
        // SAFETY: the program does not change the vector during its call.
        let given = unsafe { message::given(message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) };
        let len_bytes: usize = given.unwrap_or(&[]).iter().map(|part| part.len_bytes).sum();
        if sent < len_bytes {
            break;
        }
    }
    if count == 0 { -1 } else { count }
}

/// `send`.
///
/// # Safety
/// As libc's.
pub unsafe fn send(fd: c_int, buffer: *const c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: both have the contract of libc's `send`, as which the caller calls this.
    unsafe {
        try_send(fd, buffer, len, flags)
            .unwrap_or_else(|| plain::sendto(fd, buffer, len, flags, core::ptr::null(), 0))
    }
}

/// `sendto`.
///
/// # Safety
/// As libc's.
pub unsafe fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: both have the contract of libc's `sendto`, as which the caller calls this.
    unsafe {
        try_sendto(fd, buffer, len, flags, to, to_len)
            .unwrap_or_else(|| plain::sendto(fd, buffer, len, flags, to, to_len))
    }
}

/// `sendmsg`.
///
/// # Safety
/// As libc's.
pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: both have the contract of libc's `sendmsg`, as which the caller calls this.
    unsafe { try_sendmsg(fd, message, flags).unwrap_or_else(|| plain::sendmsg(fd, message, flags)) }
}

/// `sendmmsg`.
///
/// # Safety
/// As libc's.
pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // SAFETY: both have the contract of libc's `sendmmsg`, as which the caller calls this.
    unsafe {
        try_sendmmsg(fd, messages, count, flags, plain::sendmsg)
            .unwrap_or_else(|| plain::sendmmsg(fd, messages, count, flags))
    }
}

/// `write`.
///
/// # Safety
/// As libc's.
pub unsafe fn write(fd: c_int, buffer: *const c_void, len: usize) -> ssize_t {
    // SAFETY: both have the contract of libc's `write`, as which the caller calls this.
    unsafe { try_write(fd, buffer, len).unwrap_or_else(|| plain::write(fd, buffer, len)) }
}

/// `writev`.
///
/// # Safety
/// As libc's.
pub unsafe fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: both have the contract of libc's `writev`, as which the caller calls this.
    unsafe { try_writev(fd, vector, count).unwrap_or_else(|| plain::writev(fd, vector, count)) }
}
