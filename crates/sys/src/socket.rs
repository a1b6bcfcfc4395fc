//! Sockets: sending, and what one is asked before anything is sent by reference.
//!
//! The program's own messages are not among the calls that a test may let fail: what the kernel says to them is the
//! program's to hear.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use crate::iovec::Part;

/// Whom a message goes to and what goes with it, as the program gave them. The kernel looks at both: bad
/// addresses are its to refuse.
#[derive(Clone, Copy, Debug, Default)]
pub struct Envelope {
    /// `msg_name`; 0: none.
    pub to: usize,
    /// `msg_namelen`.
    pub to_len_bytes: u32,
    /// `msg_control`; 0: none.
    pub control: usize,
    /// `msg_controllen`.
    pub control_len_bytes: usize,
}

impl Envelope {
    /// Whether there is nothing on it: a connected socket, no control data.
    #[must_use]
    pub const fn is_blank(&self) -> bool {
        self.to == 0 && self.to_len_bytes == 0 && self.control == 0 && self.control_len_bytes == 0
    }
}

/// `sendmsg`. Bytes sent.
///
/// # Errors
/// What sendmsg says.
pub fn send(fd: i32, parts: &[Part], flags: i32, envelope: &Envelope) -> Result<usize, Errno> {
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_name = envelope.to as *mut _;
    header.msg_namelen = envelope.to_len_bytes;
    header.msg_iov = parts.as_ptr().cast_mut().cast();
    header.msg_iovlen = parts.len() as _;
    header.msg_control = envelope.control as *mut _;
    header.msg_controllen = envelope.control_len_bytes as _;
    // SAFETY: the header is valid; the kernel only reads what it points to, and says EFAULT where it cannot.
    check(unsafe { syscall!(libc::SYS_sendmsg, fd, &raw const header, flags) }).map(|sent| sent as usize)
}

/// `writev`. Bytes written.
///
/// # Errors
/// What writev says.
pub fn write(fd: i32, parts: &[Part]) -> Result<usize, Errno> {
    // SAFETY: the kernel only reads what the parts name, and says EFAULT where it cannot.
    check(unsafe { syscall!(libc::SYS_writev, fd, parts.as_ptr(), parts.len()) }).map(|sent| sent as usize)
}

/// `recvmsg` without a name and control data. Bytes received.
///
/// # Errors
/// What recvmsg says.
///
/// # Safety
/// The parts must be memory that may be written, or that the kernel refuses.
pub unsafe fn receive(fd: i32, parts: &[Part], flags: i32) -> Result<usize, Errno> {
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = parts.as_ptr().cast_mut().cast();
    header.msg_iovlen = parts.len() as _;
    // SAFETY: the caller answers for the parts.
    unsafe { receive_message(fd, &mut header, flags) }
}

/// `recvmsg`. Bytes received.
///
/// # Errors
/// What recvmsg says.
///
/// # Safety
/// What the header names must be memory that may be written, or that the kernel refuses.
pub unsafe fn receive_message(fd: i32, header: &mut libc::msghdr, flags: i32) -> Result<usize, Errno> {
    // SAFETY: the header is valid; what it names is the caller's to answer for.
    check(unsafe { syscall!(libc::SYS_recvmsg, fd, core::ptr::from_mut(header), flags) })
        .map(|got| got as usize)
}

fn option<const WORDS: usize>(fd: i32, level: i32, name: i32) -> Result<[u32; WORDS], Errno> {
    let mut value = [0u32; WORDS];
    let mut len_bytes = size_of_val(&value) as u32;
    // SAFETY: room for as many bytes as is said.
    let result = unsafe {
        kernel!(Ask, syscall!(libc::SYS_getsockopt, fd, level, name, value.as_mut_ptr(), &raw mut len_bytes))
    };
    check(result).map(|_| value)
}

/// What kind of socket a descriptor is: its domain (AF_…), type (SOCK_…) and protocol (IPPROTO_…).
///
/// # Errors
/// What getsockopt says: EBADF, ENOTSOCK.
pub fn kind(fd: i32) -> Result<(i32, i32, i32), Errno> {
    let ask = |name| option::<1>(fd, libc::SOL_SOCKET, name).map(|[value]| value as i32);
    Ok((ask(libc::SO_DOMAIN)?, ask(libc::SO_TYPE)?, ask(libc::SO_PROTOCOL)?))
}

/// A number that no other socket of the same network namespace ever has.
///
/// # Errors
/// What getsockopt says: EBADF, ENOTSOCK.
pub fn cookie(fd: i32) -> Result<u64, Errno> {
    option::<2>(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
        .map(|[low, high]| u64::from(low) | u64::from(high) << 32)
}

/// How many bytes there must be before a receive returns, and before poll says that there are some (SO_RCVLOWAT).
///
/// # Errors
/// What getsockopt says: EBADF, ENOTSOCK.
pub fn least_bytes(fd: i32) -> Result<u32, Errno> {
    option::<1>(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).map(|[bytes]| bytes)
}

/// Ends a connection both ways, at once.
pub fn reset(fd: i32) {
    // SAFETY: touches no memory.
    unsafe { kernel!(Ask, syscall!(libc::SYS_shutdown, fd, libc::SHUT_RDWR)) };
}

/// The network namespace of a socket (Linux 5.14).
///
/// # Errors
/// What getsockopt says: EBADF, ENOTSOCK.
pub fn namespace(fd: i32) -> Result<u64, Errno> {
    const SO_NETNS_COOKIE: i32 = 71;
    option::<2>(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE)
        .map(|[low, high]| u64::from(low) | u64::from(high) << 32)
}

/// A send buffer, in bytes as the kernel counts them: with its own overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What it takes without waiting.
    pub free_bytes: usize,
    /// What it takes when it is empty.
    pub limit_bytes: usize,
}

/// Bytes that a send buffer takes without waiting, as the kernel counts them: with its own overhead.
///
/// # Errors
/// What getsockopt says: EBADF, ENOTSOCK.
pub fn room(fd: i32) -> Result<Room, Errno> {
    /// SK_MEMINFO_WMEM_ALLOC, SK_MEMINFO_SNDBUF, SK_MEMINFO_WMEM_QUEUED (linux/sock_diag.h).
    const ALLOCATED: usize = 2;
    const LIMIT: usize = 3;
    const QUEUED: usize = 5;
    let found: [u32; 9] = option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    // A stream of TCP counts what is queued, others what is allocated; the other one is smaller or of no matter.
    let used = if found[QUEUED] == 0 { found[ALLOCATED] } else { found[QUEUED] };
    let limit_bytes = found[LIMIT] as usize;
    Ok(Room { free_bytes: limit_bytes.saturating_sub(used as usize), limit_bytes })
}

/// How long a send may wait, milliseconds; `None`: for ever.
#[must_use]
pub fn send_timeout_ms(fd: i32) -> Option<i32> {
    let [seconds, _, micros, _] = option::<4>(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO).ok()?;
    match (seconds, micros) {
        (0, 0) => None,
        _ => i32::try_from(u64::from(seconds) * 1000 + u64::from(micros).div_ceil(1000)).ok(),
    }
}

/// Whether a TCP socket has an upper-layer protocol (TLS in the kernel).
#[must_use]
pub fn has_upper_layer(fd: i32) -> bool {
    option::<4>(fd, libc::SOL_TCP, libc::TCP_ULP).is_ok_and(|[name, ..]| name != 0)
}

/// Whether BBR controls the congestion of a TCP socket, in any version.
#[must_use]
pub fn has_bbr(fd: i32) -> bool {
    // The first word of a name of up to 16 bytes.
    let name = option::<4>(fd, libc::SOL_TCP, libc::TCP_CONGESTION);
    name.is_ok_and(|[first, ..]| first.to_ne_bytes().starts_with(b"bbr"))
}

/// The addresses of both ends, as the kernel writes them; `None`: not connected, or no such addresses.
#[must_use]
pub fn ends(fd: i32) -> Option<[[u8; 28]; 2]> {
    let mut found = [[0; 28]; 2];
    for (call, address) in [libc::SYS_getsockname, libc::SYS_getpeername].into_iter().zip(&mut found) {
        let mut len_bytes = address.len() as u32;
        // SAFETY: room for as many bytes as is said.
        let result = unsafe { kernel!(Ask, syscall!(call, fd, address.as_mut_ptr(), &raw mut len_bytes)) };
        check(result).ok()?;
    }
    Some(found)
}

/// Whether the other end of a connected stream socket is on this host, for all that its addresses tell: a UNIX socket, the loopback
/// device, an address of its own.
#[must_use]
pub fn is_on_this_host(fd: i32) -> bool {
    match kind(fd) {
        Ok((libc::AF_UNIX, ..)) => true,
        Ok((libc::AF_INET | libc::AF_INET6, ..)) => {
            ends(fd).is_some_and(|[near, far]| is_same_host(&near, &far))
        }
        _ => false,
    }
}

/// Whether two addresses, as the kernel writes them, are of one host.
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

/// Whether calls on this descriptor do not wait.
#[must_use]
pub fn is_non_blocking(fd: i32) -> bool {
    // SAFETY: touches no memory.
    let flags = unsafe { kernel!(Fcntl, syscall!(libc::SYS_fcntl, fd, libc::F_GETFL)) };
    flags >= 0 && flags as i32 & libc::O_NONBLOCK != 0
}

/// What a socket can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// There is room to send.
    Room,
    /// There is none.
    Full,
    /// It was reset, shut down or closed, or the wait was ended: by a signal or after `timeout_ms`.
    Ended,
}

/// Looks whether a socket has room, without taking its pending error; waits for up to `timeout_ms` (-1: for ever).
#[must_use]
pub fn readiness(fd: i32, timeout_ms: i32) -> Readiness {
    let mut asked = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid structure.
    let count = unsafe { kernel!(Poll, syscall!(libc::SYS_poll, &raw mut asked, 1, timeout_ms)) };
    match count {
        1 if asked.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 => Readiness::Ended,
        1 => Readiness::Room,
        0 if timeout_ms == 0 => Readiness::Full,
        _ => Readiness::Ended,
    }
}

/// Whether the other end has ended its side, or the connection is no more. Takes no pending error.
#[must_use]
pub fn has_peer_ended(fd: i32) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one valid structure.
    unsafe { kernel!(Poll, syscall!(libc::SYS_poll, &raw mut asked, 1, 0)) != 0 }
}

/// Whether a socket is shut for reading and for writing, or its other end is gone.
#[must_use]
pub fn has_hung_up(fd: i32) -> bool {
    let mut asked = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: one valid structure.
    let ready = unsafe { kernel!(Poll, syscall!(libc::SYS_poll, &raw mut asked, 1, 0)) };
    ready == 1 && asked.revents & libc::POLLHUP != 0
}

/// Lets MSG_ZEROCOPY have a meaning on a socket (SO_ZEROCOPY: Linux 4.14 for TCP, 5.0 for UDP).
///
/// # Errors
/// What setsockopt says.
pub fn allow_zerocopy(fd: i32) -> Result<(), Errno> {
    let one = 1u32;
    // SAFETY: a valid integer.
    let result = unsafe {
        kernel!(
            Ask,
            syscall!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &raw const one, 4)
        )
    };
    check(result).map(drop)
}

/// Messages of a socket, counted from 0 since [`allow_zerocopy`], whose pages the kernel has done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The first message.
    pub first: u32,
    /// The last message.
    pub last: u32,
    /// The kernel copied them after all.
    pub was_copied: bool,
}

/// Takes the next notice of completed messages from a socket's error queue, without waiting. Other errors found there
/// are passed over: `Ok(None)`.
///
/// # Errors
/// What recvmsg says: EAGAIN where there is nothing.
pub fn next_completed(fd: i32) -> Result<Option<Completed>, Errno> {
    /// SO_EE_ORIGIN_ZEROCOPY, SO_EE_CODE_ZEROCOPY_COPIED (linux/errqueue.h).
    const ORIGIN: u8 = 5;
    const COPIED: u8 = 1;
    let mut control = [0u64; 16];
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header names room for control data, and nothing else.
    check(unsafe { kernel!(Ask, syscall!(libc::SYS_recvmsg, fd, &raw mut header, flags)) })?;
    // SAFETY: the kernel has filled the header and the control data it names.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !message.is_null() {
        // SAFETY: inside the control data, aligned as it is; the data of these two kinds is the structure.
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

/// The send family as the program called it: the arguments go to the kernel as they are.
pub mod raw {
    use super::{Errno, check};
    use crate::call::syscall;

    /// `sendto`.
    ///
    /// # Errors
    /// What sendto says.
    ///
    /// # Safety
    /// The kernel reads what the arguments point to, and nothing else.
    pub unsafe fn sendto(
        fd: i32,
        buffer: usize,
        len: usize,
        flags: i32,
        to: usize,
        to_len: u32,
    ) -> Result<usize, Errno> {
        // SAFETY: the kernel only reads, what the program passed: EFAULT where it cannot.
        check(unsafe { syscall!(libc::SYS_sendto, fd, buffer, len, flags, to, to_len) })
            .map(|count| count as usize)
    }

    /// `sendmsg`.
    ///
    /// # Errors
    /// What sendmsg says.
    ///
    /// # Safety
    /// As [`sendto`].
    pub unsafe fn sendmsg(fd: i32, message: usize, flags: i32) -> Result<usize, Errno> {
        // SAFETY: the kernel only reads, what the program passed: EFAULT where it cannot.
        check(unsafe { syscall!(libc::SYS_sendmsg, fd, message, flags) }).map(|count| count as usize)
    }

    /// `sendmmsg`. Messages sent.
    ///
    /// # Errors
    /// What sendmmsg says.
    ///
    /// # Safety
    /// As [`sendto`]; the kernel writes each message's length.
    pub unsafe fn sendmmsg(fd: i32, messages: usize, count: u32, flags: i32) -> Result<usize, Errno> {
        // SAFETY: the kernel reads what the program passed and writes lengths there: EFAULT where it cannot.
        check(unsafe { syscall!(libc::SYS_sendmmsg, fd, messages, count, flags) }).map(|count| count as usize)
    }

    /// `write`.
    ///
    /// # Errors
    /// What write says.
    ///
    /// # Safety
    /// As [`sendto`].
    pub unsafe fn write(fd: i32, buffer: usize, len: usize) -> Result<usize, Errno> {
        // SAFETY: the kernel only reads, what the program passed: EFAULT where it cannot.
        check(unsafe { syscall!(libc::SYS_write, fd, buffer, len) }).map(|count| count as usize)
    }

    /// `writev`.
    ///
    /// # Errors
    /// What writev says.
    ///
    /// # Safety
    /// As [`sendto`].
    pub unsafe fn writev(fd: i32, vector: usize, count: i32) -> Result<usize, Errno> {
        // SAFETY: the kernel only reads, what the program passed: EFAULT where it cannot.
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
