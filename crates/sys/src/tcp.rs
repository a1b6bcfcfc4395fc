//! TCP sockets of the kernel's: made, asked what has become of them, their options by number. And what is watched by epoll.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};

/// An option of a socket whose value is an integer.
///
/// # Errors
/// What getsockopt says.
pub fn option(fd: i32, level: i32, name: i32) -> Result<i32, Errno> {
    let mut value = 0i32;
    let mut len_bytes = size_of_val(&value) as u32;
    // SAFETY: room for as many bytes as is said.
    let asked = unsafe {
        kernel!(Ask, syscall!(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut len_bytes))
    };
    check(asked).map(|_| value)
}

/// Sets such an option.
///
/// # Errors
/// What setsockopt says.
pub fn set_option(fd: i32, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    let len_bytes = size_of_val(&value);
    // SAFETY: a valid integer.
    check(unsafe {
        kernel!(Ask, syscall!(libc::SYS_setsockopt, fd, level, name, &raw const value, len_bytes))
    })
    .map(drop)
}

/// What getsockopt says of an option of any kind, as a program has asked for it.
///
/// # Errors
/// What getsockopt says.
///
/// # Safety
/// As getsockopt: the kernel looks whether it may write there.
pub unsafe fn any_option(fd: i32, level: i32, name: i32, value: *mut u8, len: *mut u32) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    check(unsafe { kernel!(Ask, syscall!(libc::SYS_getsockopt, fd, level, name, value, len)) }).map(drop)
}

/// The same of setsockopt.
///
/// # Errors
/// What setsockopt says.
///
/// # Safety
/// As setsockopt: the kernel looks whether it may read there.
pub unsafe fn set_any_option(
    fd: i32,
    level: i32,
    name: i32,
    value: *const u8,
    len_bytes: u32,
) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    check(unsafe { kernel!(Ask, syscall!(libc::SYS_setsockopt, fd, level, name, value, len_bytes)) })
        .map(drop)
}

/// SO_LINGER: whether closing waits, and how long, seconds; `None`: it is no socket.
#[must_use]
pub fn linger(fd: i32) -> Option<(bool, i32)> {
    let mut value = [0i32; 2];
    let mut len_bytes = size_of_val(&value) as u32;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
    // SAFETY: room for as many bytes as is said.
    let asked = unsafe {
        kernel!(Ask, syscall!(libc::SYS_getsockopt, fd, level, name, value.as_mut_ptr(), &raw mut len_bytes))
    };
    check(asked).ok().map(|_| (value[0] != 0, value[1]))
}

/// A TCP socket, whose calls wait. Closed by `exec`.
///
/// # Errors
/// What socket says.
pub fn stream(domain: i32) -> Result<i32, Errno> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: makes a descriptor, touches no memory.
    check(unsafe { kernel!(Open, syscall!(libc::SYS_socket, domain, kind, libc::IPPROTO_TCP)) })
        .map(|fd| fd as i32)
}

/// Binds a socket to an address as the kernel writes it.
///
/// # Errors
/// What bind says.
pub fn bind(fd: i32, address: &[u8]) -> Result<(), Errno> {
    // SAFETY: the address is valid for its length.
    check(unsafe { kernel!(Name, syscall!(libc::SYS_bind, fd, address.as_ptr(), address.len())) }).map(drop)
}

/// The domain of a socket that is one of TCP; `None`: it is not.
fn domain(fd: i32) -> Option<i32> {
    let ask = |name| option(fd, libc::SOL_SOCKET, name).ok();
    let domain = ask(libc::SO_DOMAIN).filter(|domain| matches!(*domain, libc::AF_INET | libc::AF_INET6))?;
    let is_tcp = ask(libc::SO_TYPE)? == libc::SOCK_STREAM && ask(libc::SO_PROTOCOL)? == libc::IPPROTO_TCP;
    is_tcp.then_some(domain)
}

/// Whether a descriptor is a socket of the kernel's TCP.
#[must_use]
pub fn is_tcp(fd: i32) -> bool {
    domain(fd).is_some()
}

/// The domain of a socket that is one of TCP, neither bound nor connected; `None`: it is not.
#[must_use]
pub fn undecided(fd: i32) -> Option<i32> {
    let domain = domain(fd)?;
    let mut address = [0u8; 28];
    let mut len_bytes = address.len() as u32;
    let address_of = libc::SYS_getsockname;
    // SAFETY: room for as many bytes as is said.
    check(unsafe { kernel!(Ask, syscall!(address_of, fd, address.as_mut_ptr(), &raw mut len_bytes)) })
        .ok()?;
    // Whatever connects or listens has a port.
    (address[2..4] == [0, 0]).then_some(domain)
}

/// What poll says of a socket that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It can be written to.
    Room,
    /// It has ended.
    Ended,
    /// It was waited in vain.
    Nothing,
}

/// Waits until a socket has room, or has ended: for up to `timeout_ms` (-1: for ever).
///
/// # Errors
/// EINTR: a handler of a signal has run.
pub fn wait_for_room(fd: i32, timeout_ms: i32) -> Result<Waited, Errno> {
    let mut asked = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid structure.
    let count = check(unsafe { kernel!(Poll, syscall!(libc::SYS_poll, &raw mut asked, 1, timeout_ms)) })?;
    Ok(match count {
        0 => Waited::Nothing,
        _ if asked.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 => Waited::Ended,
        _ => Waited::Room,
    })
}

/// Has epoll watch a descriptor.
///
/// # Errors
/// What epoll_ctl says: EEXIST where it does already.
pub fn watch(epoll: i32, fd: i32, events: u32, data: u64) -> Result<(), Errno> {
    let event = libc::epoll_event { events, u64: data };
    // SAFETY: a valid structure.
    check(unsafe {
        kernel!(Poll, syscall!(libc::SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, fd, &raw const event))
    })
    .map(drop)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::file::close;

    #[test]
    fn a_socket_is_undecided_until_it_has_a_port() {
        for domain in [libc::AF_INET, libc::AF_INET6] {
            let fd = stream(domain).expect("a socket");
            assert_eq!(undecided(fd), Some(domain));
            set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).expect("set");
            assert_eq!(option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY), Ok(1));
            assert_eq!(linger(fd), Some((false, 0)));
            let mut address = [0u8; 28];
            address[..2].copy_from_slice(&(domain as u16).to_ne_bytes());
            bind(fd, &address).expect("bound");
            assert_eq!(undecided(fd), None);
            close(fd);
            assert_eq!(undecided(fd), None);
        }
        let other = crate::unix::stream().expect("a socket");
        assert_eq!(undecided(other), None);
        close(other);
    }
}
