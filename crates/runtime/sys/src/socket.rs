//! Sockets: sending and receiving, and the queries that precede sending by reference.
//!
//! The program's own messages are not subject to fault injection: their errors belong to the program.

use crate::call::{kernel, syscall};
use crate::descriptor::Descriptor;
use crate::errno::{Errno, check};
use crate::fd::poll;
use crate::iovec::Part;

/// Destination and control data of a message, as the program passed them. The kernel validates the addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Envelope {
    /// `msg_name`; 0 for none.
    pub to: usize,
    /// `msg_namelen`.
    pub to_len_bytes: u32,
    /// `msg_control`; 0 for none.
    pub control: usize,
    /// `msg_controllen`.
    pub control_len_bytes: usize,
}

impl Envelope {
    /// Whether the message has neither destination nor control data.
    #[must_use]
    pub const fn is_blank(&self) -> bool {
        self.to == 0 && self.to_len_bytes == 0 && self.control == 0 && self.control_len_bytes == 0
    }
}

/// Sends a message by sendmsg(2). Returns the number of bytes sent.
///
/// # Errors
/// Errors of sendmsg(2).
pub fn send(fd: impl Descriptor, parts: &[Part], flags: i32, envelope: &Envelope) -> Result<usize, Errno> {
    // SAFETY: `msghdr` consists of integers and pointers, for which all-zero bytes are valid.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_name = envelope.to as *mut _;
    header.msg_namelen = envelope.to_len_bytes;
    header.msg_iov = parts.as_ptr().cast_mut().cast();
    header.msg_iovlen = parts.len() as _;
    header.msg_control = envelope.control as *mut _;
    header.msg_controllen = envelope.control_len_bytes as _;
    // SAFETY: the header lives through the call; sendmsg(2) only reads, and refuses bad addresses (EFAULT).
    check(unsafe { syscall!(libc::SYS_sendmsg, fd, &raw const header, flags) }).map(|sent| sent as usize)
}

/// Writes parts by writev(2). Returns the number of bytes written.
///
/// # Errors
/// Errors of writev(2).
pub fn write(fd: impl Descriptor, parts: &[Part]) -> Result<usize, Errno> {
    // SAFETY: `parts` lives through the call; writev(2) only reads, and refuses bad addresses (EFAULT).
    check(unsafe { syscall!(libc::SYS_writev, fd, parts.as_ptr(), parts.len()) }).map(|sent| sent as usize)
}

/// Receives by recvmsg(2), without address and control data. Returns the number of bytes received.
///
/// # Errors
/// Errors of recvmsg(2).
///
/// # Safety
/// The parts must be memory that may be written, or that the kernel refuses.
pub unsafe fn receive(fd: impl Descriptor, parts: &[Part], flags: i32) -> Result<usize, Errno> {
    // SAFETY: `msghdr` consists of integers and pointers, for which all-zero bytes are valid.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = parts.as_ptr().cast_mut().cast();
    header.msg_iovlen = parts.len() as _;
    // SAFETY: the header names only the parts, for which the caller vouches.
    unsafe { receive_message(fd, &mut header, flags) }
}

/// Receives by recvmsg(2). Returns the number of bytes received.
///
/// # Errors
/// Errors of recvmsg(2).
///
/// # Safety
/// Everything that the header names must be memory that may be written, or that the kernel refuses.
pub unsafe fn receive_message(
    fd: impl Descriptor,
    header: &mut libc::msghdr,
    flags: i32,
) -> Result<usize, Errno> {
    // SAFETY: the header lives through the call; the caller vouches for the memory that it names.
    check(unsafe { syscall!(libc::SYS_recvmsg, fd, core::ptr::from_mut(header), flags) })
        .map(|got| got as usize)
}

fn option<const WORDS: usize>(fd: impl Descriptor, level: i32, name: i32) -> Result<[u32; WORDS], Errno> {
    let mut value = [0u32; WORDS];
    let mut len_bytes = size_of_val(&value) as u32;
    // SAFETY: getsockopt(2) writes at most `len_bytes` bytes, the size of `value`.
    let result = unsafe {
        kernel!(Ask, syscall!(libc::SYS_getsockopt, fd, level, name, value.as_mut_ptr(), &raw mut len_bytes))
    };
    check(result).map(|_| value)
}

/// Returns a socket's domain (AF_…), type (SOCK_…) and protocol (IPPROTO_…).
///
/// # Errors
/// Errors of getsockopt(2): EBADF, ENOTSOCK.
pub fn kind(fd: impl Descriptor) -> Result<(i32, i32, i32), Errno> {
    let ask = |name| option::<1>(fd, libc::SOL_SOCKET, name).map(|[value]| value as i32);
    Ok((ask(libc::SO_DOMAIN)?, ask(libc::SO_TYPE)?, ask(libc::SO_PROTOCOL)?))
}

/// Returns a socket's cookie (SO_COOKIE), which no other socket of its network namespace ever has.
///
/// # Errors
/// Errors of getsockopt(2): EBADF, ENOTSOCK.
pub fn cookie(fd: impl Descriptor) -> Result<u64, Errno> {
    option::<2>(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
        .map(|[low, high]| u64::from(low) | u64::from(high) << 32)
}

/// Returns the number of bytes that a receive or poll(2) waits for (SO_RCVLOWAT).
///
/// # Errors
/// Errors of getsockopt(2): EBADF, ENOTSOCK.
pub fn receive_low_water_bytes(fd: impl Descriptor) -> Result<u32, Errno> {
    option::<1>(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).map(|[bytes]| bytes)
}

/// Shuts a connection down in both directions.
pub fn shut_down(fd: impl Descriptor) {
    // SAFETY: shutdown(2) takes only integers here, and accesses no memory of the process.
    unsafe { kernel!(Ask, syscall!(libc::SYS_shutdown, fd, libc::SHUT_RDWR)) };
}

/// Returns the cookie of a socket's network namespace (Linux 5.14).
///
/// # Errors
/// Errors of getsockopt(2): EBADF, ENOTSOCK.
pub fn namespace(fd: impl Descriptor) -> Result<u64, Errno> {
    const SO_NETNS_COOKIE: i32 = 71;
    option::<2>(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE)
        .map(|[low, high]| u64::from(low) | u64::from(high) << 32)
}

/// Free space of a send buffer. Bytes include the kernel's own overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that can be sent without waiting.
    pub free_bytes: usize,
    /// Bytes that can be sent if the buffer is empty.
    pub limit_bytes: usize,
}

/// Returns the free space of a socket's send buffer.
///
/// # Errors
/// Errors of getsockopt(2): EBADF, ENOTSOCK.
pub fn room(fd: impl Descriptor) -> Result<Room, Errno> {
    /// Indices of SK_MEMINFO_WMEM_ALLOC, SK_MEMINFO_SNDBUF and SK_MEMINFO_WMEM_QUEUED (linux/sock_diag.h).
    const ALLOCATED: usize = 2;
    const LIMIT: usize = 3;
    const QUEUED: usize = 5;
    let found: [u32; 9] = option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    // TCP counts queued bytes against the limit; other sockets count allocated ones and queue none.
    let used = if found[QUEUED] == 0 { found[ALLOCATED] } else { found[QUEUED] };
    let limit_bytes = found[LIMIT] as usize;
    Ok(Room { free_bytes: limit_bytes.saturating_sub(used as usize), limit_bytes })
}

/// Returns the send timeout (SO_SNDTIMEO), milliseconds; `None` if there is none.
#[must_use]
pub fn send_timeout_ms(fd: impl Descriptor) -> Option<i32> {
    let [seconds, _, micros, _] = option::<4>(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO).ok()?;
    match (seconds, micros) {
        (0, 0) => None,
        _ => i32::try_from(u64::from(seconds) * 1000 + u64::from(micros).div_ceil(1000)).ok(),
    }
}

/// Whether a TCP socket has an upper-layer protocol, such as TLS in the kernel.
#[must_use]
pub fn has_upper_layer(fd: impl Descriptor) -> bool {
    option::<4>(fd, libc::SOL_TCP, libc::TCP_ULP).is_ok_and(|[name, ..]| name != 0)
}

/// Whether a TCP socket uses BBR congestion control, in any version.
#[must_use]
pub fn has_bbr(fd: impl Descriptor) -> bool {
    // Only the first word of the name, which has up to 16 bytes, is compared.
    let name = option::<4>(fd, libc::SOL_TCP, libc::TCP_CONGESTION);
    name.is_ok_and(|[first, ..]| first.to_ne_bytes().starts_with(b"bbr"))
}

/// Returns the local address and the peer's, as the kernel writes them; `None` if the socket has
/// none or is not connected.
#[must_use]
pub fn addresses(fd: impl Descriptor) -> Option<[[u8; 28]; 2]> {
    let mut found = [[0; 28]; 2];
    for (call, address) in [libc::SYS_getsockname, libc::SYS_getpeername].into_iter().zip(&mut found) {
        let mut len_bytes = address.len() as u32;
        // SAFETY: both calls write at most `len_bytes` bytes, the size of `address`.
        let result = unsafe { kernel!(Ask, syscall!(call, fd, address.as_mut_ptr(), &raw mut len_bytes)) };
        check(result).ok()?;
    }
    Some(found)
}

/// Whether the addresses of a connected stream socket show that its peer is on this host: a UNIX
/// socket, a loopback address, or the same address at both ends.
#[must_use]
pub fn is_on_this_host(fd: impl Descriptor) -> bool {
    match kind(fd) {
        Ok((libc::AF_UNIX, ..)) => true,
        Ok((libc::AF_INET | libc::AF_INET6, ..)) => {
            addresses(fd).is_some_and(|[near, far]| is_same_host(&near, &far))
        }
        _ => false,
    }
}

/// Whether two addresses, as the kernel writes them, belong to one host.
fn is_same_host(near: &[u8; 28], far: &[u8; 28]) -> bool {
    const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let ip = |address: &[u8; 28]| match i32::from(u16::from_ne_bytes([address[0], address[1]])) {
        libc::AF_INET => {
            let mut mapped = [0; 16];
            mapped[..12].copy_from_slice(&MAPPED);
            mapped[12..].copy_from_slice(&address[4..8]);
            Some(mapped)
        }
        libc::AF_INET6 => address[8..24].try_into().ok(),
        _ => None,
    };
    let (Some(near), Some(far)) = (ip(near), ip(far)) else { return false };
    let is_loopback = far == 1u128.to_be_bytes() || (far[..12] == MAPPED && far[12] == 127);
    is_loopback || near == far
}

/// Whether a descriptor is in non-blocking mode.
#[must_use]
pub fn is_non_blocking(fd: impl Descriptor) -> bool {
    // SAFETY: fcntl(2) takes only integers here, and accesses no memory of the process.
    let flags = unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_GETFL)) };
    flags >= 0 && flags as i32 & libc::O_NONBLOCK != 0
}

/// State of a socket's send side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The send buffer has room.
    Room,
    /// The send buffer is full.
    Full,
    /// The socket was reset, shut down or closed, or the wait ended by a signal or after `timeout_ms`.
    Ended,
}

/// Checks for room in the send buffer, waiting up to `timeout_ms` (-1: without limit). Takes no pending
/// error.
#[must_use]
pub fn readiness(fd: impl Descriptor, timeout_ms: i32) -> Readiness {
    match poll(fd, libc::POLLOUT, timeout_ms) {
        Ok(0) if timeout_ms == 0 => Readiness::Full,
        Ok(events) if events != 0 && events & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) == 0 => {
            Readiness::Room
        }
        _ => Readiness::Ended,
    }
}

/// Whether the peer has shut down its side, or the connection has ended. Leaves a pending error in place.
#[must_use]
pub fn has_peer_ended(fd: impl Descriptor) -> bool {
    poll(fd, libc::POLLRDHUP, 0) != Ok(0)
}

/// Whether a socket is shut down in both directions, or its peer is closed.
#[must_use]
pub fn has_hung_up(fd: impl Descriptor) -> bool {
    poll(fd, 0, 0).is_ok_and(|events| events & libc::POLLHUP != 0)
}

/// Enables MSG_ZEROCOPY on a socket (SO_ZEROCOPY: Linux 4.14 for TCP, 5.0 for UDP).
///
/// # Errors
/// Errors of setsockopt(2).
pub fn allow_zerocopy(fd: impl Descriptor) -> Result<(), Errno> {
    let one = 1u32;
    // SAFETY: `one` lives through the call and its size is passed; setsockopt(2) only reads it.
    let result = unsafe {
        kernel!(
            Ask,
            syscall!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &raw const one, 4)
        )
    };
    check(result).map(drop)
}

/// A range of zero-copy messages, counted from 0 since [`allow_zerocopy`], which the kernel has done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Number of the first message.
    pub first: u32,
    /// Number of the last message.
    pub last: u32,
    /// Whether the kernel copied them instead.
    pub was_copied: bool,
}

/// Reads the next completion of zero-copy messages from a socket's error queue, without waiting.
/// Returns `Ok(None)` for an error of another kind, which is discarded.
///
/// # Errors
/// Errors of recvmsg(2): EAGAIN if the queue is empty.
pub fn next_completed(fd: impl Descriptor) -> Result<Option<Completed>, Errno> {
    /// SO_EE_ORIGIN_ZEROCOPY and SO_EE_CODE_ZEROCOPY_COPIED (linux/errqueue.h).
    const ORIGIN: u8 = 5;
    const COPIED: u8 = 1;
    let mut control = [0u64; 16];
    // SAFETY: `msghdr` consists of integers and pointers, for which all-zero bytes are valid.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header names only `control`, with its size; both live through the call.
    check(unsafe { kernel!(Ask, syscall!(libc::SYS_recvmsg, fd, &raw mut header, flags)) })?;
    // SAFETY: recvmsg(2) has filled the header and the control data that it names.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !message.is_null() {
        // SAFETY: `message` is a head inside the filled control data, which is aligned for it. The
        // data of these two kinds is a `sock_extended_err`, and is read unaligned.
        unsafe {
            let (level, kind) = ((*message).cmsg_level, (*message).cmsg_type);
            if matches!(
                (level, kind),
                (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
            ) {
                let error = libc::CMSG_DATA(message).cast::<libc::sock_extended_err>().read_unaligned();
                if error.ee_origin == ORIGIN && error.ee_errno == 0 {
                    let was_copied = error.ee_code & COPIED != 0;
                    return Ok(Some(Completed { first: error.ee_info, last: error.ee_data, was_copied }));
                }
            }
            message = libc::CMSG_NXTHDR(&raw const header, message);
        }
    }
    Ok(None)
}

/// The program's own send calls, whose arguments are passed on unchanged.
pub mod raw {
    use super::{Errno, check};
    use crate::call::syscall;
    use crate::descriptor::ProgramFd;

    /// Calls sendto(2). Returns the number of bytes sent.
    ///
    /// # Errors
    /// Errors of sendto(2).
    ///
    /// # Safety
    /// The arguments must be those of the program's own call, which only reads memory.
    pub unsafe fn sendto(
        fd: ProgramFd,
        buffer: usize,
        len: usize,
        flags: i32,
        to: usize,
        to_len: u32,
    ) -> Result<usize, Errno> {
        // SAFETY: the program's own arguments; sendto(2) only reads, and refuses bad addresses (EFAULT).
        check(unsafe { syscall!(libc::SYS_sendto, fd, buffer, len, flags, to, to_len) })
            .map(|count| count as usize)
    }

    /// Calls sendmsg(2). Returns the number of bytes sent.
    ///
    /// # Errors
    /// Errors of sendmsg(2).
    ///
    /// # Safety
    /// See [`sendto`].
    pub unsafe fn sendmsg(fd: ProgramFd, message: usize, flags: i32) -> Result<usize, Errno> {
        // SAFETY: the program's own arguments; sendmsg(2) only reads, and refuses bad addresses (EFAULT).
        check(unsafe { syscall!(libc::SYS_sendmsg, fd, message, flags) }).map(|count| count as usize)
    }

    /// Calls sendmmsg(2). Returns the number of messages sent.
    ///
    /// # Errors
    /// Errors of sendmmsg(2).
    ///
    /// # Safety
    /// See [`sendto`]; the kernel also writes each message's length.
    pub unsafe fn sendmmsg(fd: ProgramFd, messages: usize, count: u32, flags: i32) -> Result<usize, Errno> {
        // SAFETY: the program's own arguments; sendmmsg(2) writes only the lengths in them, and
        // fails with EFAULT at invalid addresses.
        check(unsafe { syscall!(libc::SYS_sendmmsg, fd, messages, count, flags) }).map(|count| count as usize)
    }

    /// Calls write(2). Returns the number of bytes written.
    ///
    /// # Errors
    /// Errors of write(2).
    ///
    /// # Safety
    /// See [`sendto`].
    pub unsafe fn write(fd: ProgramFd, buffer: usize, len: usize) -> Result<usize, Errno> {
        // SAFETY: the program's own arguments; write(2) only reads, and refuses bad addresses (EFAULT).
        check(unsafe { syscall!(libc::SYS_write, fd, buffer, len) }).map(|count| count as usize)
    }

    /// Calls writev(2). Returns the number of bytes written.
    ///
    /// # Errors
    /// Errors of writev(2).
    ///
    /// # Safety
    /// See [`sendto`].
    pub unsafe fn writev(fd: ProgramFd, vector: usize, count: i32) -> Result<usize, Errno> {
        // SAFETY: the program's own arguments; writev(2) only reads, and refuses bad addresses (EFAULT).
        check(unsafe { syscall!(libc::SYS_writev, fd, vector, count) }).map(|count| count as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_are_known() {
        let address = |family: i32, ip: &[u8]| {
            let mut bytes = [0; 28];
            bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
            let at = if family == libc::AF_INET { 4 } else { 8 };
            bytes[at..at + ip.len()].copy_from_slice(ip);
            bytes
        };
        let four = |ip: [u8; 4]| address(libc::AF_INET, &ip);
        let six = |ip: u128| address(libc::AF_INET6, &ip.to_be_bytes());
        assert!(is_same_host(&four([127, 0, 0, 1]), &four([127, 0, 0, 9])));
        assert!(is_same_host(&four([10, 1, 2, 3]), &four([10, 1, 2, 3])));
        assert!(!is_same_host(&four([10, 1, 2, 3]), &four([10, 1, 2, 4])));
        assert!(
            is_same_host(&six(5), &six(1))
                && is_same_host(&six(5), &six(5))
                && !is_same_host(&six(5), &six(6))
        );
        assert!(is_same_host(&six(5), &six(0xffff_7f00_0001)), "mapped");
        assert!(!is_same_host(&[0; 28], &[0; 28]), "no family");
    }
}
