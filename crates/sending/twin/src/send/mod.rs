//! The send family, with parts in twin memory passed by reference (the proxy of ZCopy §3.2.2).
//!
//! There are two variants of each function. `send` and its siblings have libc's signature, result and
//! `errno`, and can replace libc's function. `try_send` and its siblings return `None` without having done
//! anything if nothing would be gained; the caller, such as an interposing library, then makes libc's own
//! call. A program that knows which of its memory is twin memory lends it explicitly, with [`Loans`].

use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t};
use message::{Call, SendPart};
pub use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::readable::is_readable;
use uncopy_transmit::Envelope;

mod loans;
mod message;
mod pending;
mod plain;

pub use loans::Loans;

/// True if a buffer of `len_bytes` bytes is too small to be sent by reference. Costs one comparison.
#[inline]
#[must_use]
pub fn is_small(len_bytes: usize) -> bool {
    len_bytes < uncopy_transmit::min_bytes()
}

#[inline]
fn is_in_use() -> bool {
    crate::pages::is_used()
}

/// Sends like send(2) by reference, or returns `None`.
///
/// # Safety
/// The same as for libc's `send`.
pub unsafe fn try_send(fd: ProgramFd, buffer: *const c_void, len: usize, flags: c_int) -> Option<ssize_t> {
    // SAFETY: `send` is `sendto` without an address, and the caller upholds its contract.
    unsafe { try_sendto(fd, buffer, len, flags, core::ptr::null(), 0) }
}

/// Sends like sendto(2) by reference, or returns `None`.
///
/// # Safety
/// The same as for libc's `sendto`.
pub unsafe fn try_sendto(
    fd: ProgramFd,
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
    message::send(fd, &[SendPart { address: buffer as usize, len_bytes: len }], call)
}

/// Sends like sendmsg(2) by reference, or returns `None`.
///
/// # Safety
/// The same as for libc's `sendmsg`.
pub unsafe fn try_sendmsg(fd: ProgramFd, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    if !is_in_use() || !message.is_aligned() || !is_readable(message as usize, size_of::<msghdr>()) {
        return None;
    }
    // SAFETY: the header was just found to be aligned and readable. A `msghdr` allows any bytes, and
    // sendmsg's contract forbids changes during the call.
    let header = unsafe { &*message };
    // SAFETY: sendmsg's contract forbids changes of the vector during the call.
    let parts = unsafe { message::read_vector(header.msg_iov, header.msg_iovlen) }?;
    let envelope = Envelope {
        to: header.msg_name as usize,
        to_len_bytes: header.msg_namelen,
        control: header.msg_control as usize,
        control_len_bytes: header.msg_controllen,
    };
    message::send(fd, parts, Call::Message { flags, envelope: &envelope })
}

/// A function with the contract of libc's `sendmsg`.
pub type SendMessage = unsafe fn(ProgramFd, *const msghdr, c_int) -> ssize_t;

/// Sends like sendmmsg(2) by reference, or returns `None`. Messages of which nothing is lent are sent by
/// `plain`, which should be a cancellation point if the caller's function is.
///
/// # Safety
/// The same as for libc's `sendmmsg`.
pub unsafe fn try_sendmmsg(
    fd: ProgramFd,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    plain: SendMessage,
) -> Option<c_int> {
    // The kernel ignores further messages.
    let number = (count as usize).min(MAX_MESSAGES);
    let is_readable =
        is_in_use() && messages.is_aligned() && is_readable(messages as usize, number * size_of::<mmsghdr>());
    if number == 0 || !is_readable {
        return None;
    }
    // SAFETY: the array was just found to be aligned and readable. A `mmsghdr` allows any bytes, and
    // sendmmsg's contract gives exclusive write access during the call.
    let messages = unsafe { core::slice::from_raw_parts_mut(messages, number) };
    // SAFETY: sendmmsg's contract forbids changes of the vectors during the call.
    let has_twin = messages.iter().any(|message| unsafe { has_twin(&message.msg_hdr) });
    // SAFETY: the caller upholds sendmmsg's contract for the array, of which the slice is a prefix.
    has_twin.then(|| unsafe { send_one_by_one(fd, messages, flags, plain) })
}

/// Writes like write(2) by reference, or returns `None`.
///
/// # Safety
/// The same as for libc's `write`.
pub unsafe fn try_write(fd: ProgramFd, buffer: *const c_void, len: usize) -> Option<ssize_t> {
    if is_small(len) || !crate::pages::contains(buffer as usize) {
        return None;
    }
    message::send(fd, &[SendPart { address: buffer as usize, len_bytes: len }], Call::Write)
}

/// Writes like writev(2) by reference, or returns `None`.
///
/// # Safety
/// The same as for libc's `writev`.
pub unsafe fn try_writev(fd: ProgramFd, vector: *const iovec, count: c_int) -> Option<ssize_t> {
    if !is_in_use() {
        return None;
    }
    // SAFETY: writev's contract forbids changes of the vector during the call.
    let parts = unsafe { message::read_vector(vector, usize::try_from(count).unwrap_or(0)) }?;
    message::send(fd, parts, Call::Write)
}

/// Reads completions of messages on a socket whose owner set [`uncopy_transmit::SocketOwner::reads_errors`], and
/// settles their loans. Returns the number of loans still pending on all sockets.
pub fn completions(fd: ProgramFd) -> usize {
    uncopy_transmit::completions(fd, &mut pending::complete);
    pending::count()
}

/// Maximum messages per `sendmmsg` (UIO_MAXIOV).
const MAX_MESSAGES: usize = 1024;

/// True if a message has a part in twin memory.
///
/// # Safety
/// The message's vector must not change during the call.
unsafe fn has_twin(header: &msghdr) -> bool {
    // SAFETY: the caller guarantees that the vector does not change while the parts are in use.
    unsafe { message::read_vector(header.msg_iov, header.msg_iovlen) }
        .is_some_and(|parts| parts.iter().any(|part| crate::pages::contains(part.address)))
}

/// Sends messages one by one, like the kernel, up to the first that fails or is sent in part.
///
/// # Safety
/// The same as for libc's `sendmmsg`.
unsafe fn send_one_by_one(
    fd: ProgramFd,
    messages: &mut [mmsghdr],
    flags: c_int,
    plain: SendMessage,
) -> c_int {
    let mut count = 0;
    for message in messages {
        let header = &raw const message.msg_hdr;
        // SAFETY: sendmmsg's contract, which the caller upholds, includes that of sendmsg for each header.
        let sent = unsafe { try_sendmsg(fd, header, flags).unwrap_or_else(|| plain(fd, header, flags)) };
        let Ok(sent) = usize::try_from(sent) else { break };
        message.msg_len = c_uint::try_from(sent).unwrap_or(c_uint::MAX);
        count += 1;
        // SAFETY: sendmmsg's contract forbids changes of the vector during the call.
        let parts = unsafe { message::read_vector(message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) };
        let len_bytes: usize = parts.unwrap_or(&[]).iter().map(|part| part.len_bytes).sum();
        if sent < len_bytes {
            break;
        }
    }
    if count == 0 { -1 } else { count }
}

/// Sends like send(2), by reference if that pays.
///
/// # Safety
/// The same as for libc's `send`.
pub unsafe fn send(fd: ProgramFd, buffer: *const c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: both functions have the contract of libc's `send`, which the caller upholds.
    unsafe {
        try_send(fd, buffer, len, flags)
            .unwrap_or_else(|| plain::sendto(fd, buffer, len, flags, core::ptr::null(), 0))
    }
}

/// Sends like sendto(2), by reference if that pays.
///
/// # Safety
/// The same as for libc's `sendto`.
pub unsafe fn sendto(
    fd: ProgramFd,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: both functions have the contract of libc's `sendto`, which the caller upholds.
    unsafe {
        try_sendto(fd, buffer, len, flags, to, to_len)
            .unwrap_or_else(|| plain::sendto(fd, buffer, len, flags, to, to_len))
    }
}

/// Sends like sendmsg(2), by reference if that pays.
///
/// # Safety
/// The same as for libc's `sendmsg`.
pub unsafe fn sendmsg(fd: ProgramFd, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: both functions have the contract of libc's `sendmsg`, which the caller upholds.
    unsafe { try_sendmsg(fd, message, flags).unwrap_or_else(|| plain::sendmsg(fd, message, flags)) }
}

/// Sends like sendmmsg(2), by reference if that pays.
///
/// # Safety
/// The same as for libc's `sendmmsg`.
pub unsafe fn sendmmsg(fd: ProgramFd, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // SAFETY: both functions have the contract of libc's `sendmmsg`, which the caller upholds.
    unsafe {
        try_sendmmsg(fd, messages, count, flags, plain::sendmsg)
            .unwrap_or_else(|| plain::sendmmsg(fd, messages, count, flags))
    }
}

/// Writes like write(2), by reference if that pays.
///
/// # Safety
/// The same as for libc's `write`.
pub unsafe fn write(fd: ProgramFd, buffer: *const c_void, len: usize) -> ssize_t {
    // SAFETY: both functions have the contract of libc's `write`, which the caller upholds.
    unsafe { try_write(fd, buffer, len).unwrap_or_else(|| plain::write(fd, buffer, len)) }
}

/// Writes like writev(2), by reference if that pays.
///
/// # Safety
/// The same as for libc's `writev`.
pub unsafe fn writev(fd: ProgramFd, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: both functions have the contract of libc's `writev`, which the caller upholds.
    unsafe { try_writev(fd, vector, count).unwrap_or_else(|| plain::writev(fd, vector, count)) }
}
