//! Kernel TCP sockets: creation, state, integer options; and registration with epoll.

use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor, OwnFd, ProgramFd};
use crate::errno::{Errno, check};

/// Returns the value of an integer option of a socket.
///
/// # Errors
/// Errors of getsockopt(2).
pub fn option(fd: impl Descriptor, level: i32, name: i32) -> Result<i32, Errno> {
    let mut value = 0i32;
    let mut len_bytes = size_of_val(&value) as u32;
    // SAFETY: getsockopt(2) writes at most `len_bytes` bytes, the size of `value`.
    let result = unsafe {
        kernel!(Ask, syscall!(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len_bytes))
    };
    check(result).map(|_| value)
}

/// Sets an integer option of a socket.
///
/// # Errors
/// Errors of setsockopt(2).
pub fn set_option(fd: impl Descriptor, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    let len_bytes = size_of_val(&value);
    // SAFETY: `value` lives through the call and its size is passed; setsockopt(2) only reads it.
    check(unsafe {
        kernel!(Ask, syscall!(libc::SYS_setsockopt, fd, level, name, &raw const value, len_bytes))
    })
    .map(drop)
}

/// Calls getsockopt(2) with the program's own arguments.
///
/// # Errors
/// Errors of getsockopt(2).
///
/// # Safety
/// See getsockopt(2); the kernel refuses addresses that it may not write to.
pub unsafe fn raw_option(
    fd: impl Descriptor,
    level: i32,
    name: i32,
    value: *mut u8,
    len: *mut u32,
) -> Result<(), Errno> {
    // SAFETY: the caller vouches for `value` and `len`; the kernel fails with EFAULT at invalid addresses.
    check(unsafe { kernel!(Ask, syscall!(libc::SYS_getsockopt, fd, level, name, value, len)) }).map(drop)
}

/// Calls setsockopt(2) with the program's own arguments.
///
/// # Errors
/// Errors of setsockopt(2).
///
/// # Safety
/// See setsockopt(2); the kernel refuses addresses that it may not read.
pub unsafe fn set_raw_option(
    fd: impl Descriptor,
    level: i32,
    name: i32,
    value: *const u8,
    len_bytes: u32,
) -> Result<(), Errno> {
    // SAFETY: setsockopt(2) only reads `value`, and fails with EFAULT at invalid addresses.
    check(unsafe { kernel!(Ask, syscall!(libc::SYS_setsockopt, fd, level, name, value, len_bytes)) })
        .map(drop)
}

/// Returns SO_LINGER: whether close waits, and for how many seconds; `None` if it is not a socket.
#[must_use]
pub fn linger(fd: impl Descriptor) -> Option<(bool, i32)> {
    let mut value = [0i32; 2];
    let mut len_bytes = size_of_val(&value) as u32;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
    // SAFETY: getsockopt(2) writes at most `len_bytes` bytes, the size of `value`.
    let result = unsafe {
        kernel!(Ask, syscall!(libc::SYS_getsockopt, fd, level, name, value.as_mut_ptr(), &raw mut len_bytes))
    };
    check(result).ok().map(|_| (value[0] != 0, value[1]))
}

/// Creates a blocking TCP socket, closed on exec.
///
/// # Errors
/// Errors of socket(2).
pub fn stream(domain: i32) -> Result<OwnFd, Errno> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: socket(2) takes only integers and returns a new descriptor.
    OwnFd::from_result(unsafe { kernel!(Open, syscall!(libc::SYS_socket, domain, kind, libc::IPPROTO_TCP)) })
}

/// Binds a socket to an address in the kernel's format.
///
/// # Errors
/// Errors of bind(2).
pub fn bind(fd: impl Descriptor, address: &[u8]) -> Result<(), Errno> {
    // SAFETY: bind(2) reads `address.len()` bytes of `address`, which lives through the call.
    check(unsafe { kernel!(Name, syscall!(libc::SYS_bind, fd, address.as_ptr(), address.len())) }).map(drop)
}

/// Returns the domain of a TCP socket; `None` if the descriptor is not one.
fn domain(fd: impl Descriptor) -> Option<i32> {
    let ask = |name| option(fd, libc::SOL_SOCKET, name).ok();
    let domain = ask(libc::SO_DOMAIN).filter(|domain| matches!(*domain, libc::AF_INET | libc::AF_INET6))?;
    let is_tcp = ask(libc::SO_TYPE)? == libc::SOCK_STREAM && ask(libc::SO_PROTOCOL)? == libc::IPPROTO_TCP;
    is_tcp.then_some(domain)
}

/// Whether a descriptor is a kernel TCP socket.
#[must_use]
pub fn is_tcp(fd: impl Descriptor) -> bool {
    domain(fd).is_some()
}

/// Returns the domain of a TCP socket that is neither bound nor connected; `None` for others.
#[must_use]
pub fn unconnected_domain(fd: ProgramFd) -> Option<i32> {
    let domain = domain(fd)?;
    let mut address = [0u8; 28];
    let mut len_bytes = address.len() as u32;
    let address_of = libc::SYS_getsockname;
    // SAFETY: both calls write at most `len_bytes` bytes, the size of `address`.
    check(unsafe { kernel!(Ask, syscall!(address_of, fd, address.as_mut_ptr(), &raw mut len_bytes)) })
        .ok()?;
    // A socket that is connected or listens has a port.
    (address[2..4] == [0, 0]).then_some(domain)
}

/// Result of waiting for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// The socket is writable.
    Room,
    /// The connection has ended.
    Ended,
    /// The timeout has expired.
    Nothing,
}

/// Waits until a socket is writable or its connection has ended, up to `timeout_ms` (-1: without limit).
///
/// # Errors
/// EINTR if a signal handler has run.
pub fn wait_for_room(fd: impl Descriptor, timeout_ms: i32) -> Result<WaitResult, Errno> {
    Ok(match crate::fd::poll(fd, libc::POLLOUT, timeout_ms)? {
        0 => WaitResult::Nothing,
        events if events & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 => WaitResult::Ended,
        _ => WaitResult::Room,
    })
}

/// Registers a descriptor with an epoll.
///
/// # Errors
/// Errors of epoll_ctl(2): EEXIST if it is registered already.
pub fn epoll_add(epoll: ProgramFd, fd: ProgramFd, events: u32, data: u64) -> Result<(), Errno> {
    let event = libc::epoll_event { events, u64: data };
    // SAFETY: epoll_ctl(2) reads `event`, which lives through the call.
    check(unsafe {
        kernel!(Poll, syscall!(libc::SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, fd, &raw const event))
    })
    .map(drop)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_undecided_until_it_has_a_port() {
        for domain in [libc::AF_INET, libc::AF_INET6] {
            let fd = stream(domain).expect("a socket");
            assert_eq!(unconnected_domain(fd.as_program()), Some(domain));
            set_option(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).expect("set");
            assert_eq!(option(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY), Ok(1));
            assert_eq!(linger(&fd), Some((false, 0)));
            let mut address = [0u8; 28];
            address[..2].copy_from_slice(&(domain as u16).to_ne_bytes());
            bind(&fd, &address).expect("bound");
            let number = fd.as_program();
            assert_eq!(unconnected_domain(number), None);
            drop(fd);
            assert_eq!(unconnected_domain(number), None);
        }
        let other = crate::unix::stream().expect("a socket");
        assert_eq!(unconnected_domain(other.as_program()), None);
    }
}
