//! Sockets that a server listens on.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with, sockopt};

/// Of every socket here.
pub const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A socket of the family of `address`.
///
/// # Errors
/// As socket(2).
pub fn inet(address: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(socket_with(family, kind, FLAGS, None)?)
}

/// Has a TCP socket listen at `address`; where it listens then, which has a port of the kernel's choice for port 0.
///
/// # Errors
/// As bind(2): the address is in use, say.
pub fn listen_tcp(socket: &OwnedFd, address: SocketAddr, backlog: i32) -> io::Result<SocketAddr> {
    sockopt::set_socket_reuseaddr(socket, true)?;
    // Connections inherit it (Linux).
    sockopt::set_tcp_nodelay(socket, true)?;
    bind(socket, &address)?;
    listen(socket, backlog)?;
    local(socket)
}

/// The address that a socket is bound to.
///
/// # Errors
/// As getsockname(2).
pub fn local(socket: &OwnedFd) -> io::Result<SocketAddr> {
    SocketAddr::try_from(getsockname(socket)?).map_err(|_| io::ErrorKind::AddrNotAvailable.into())
}
