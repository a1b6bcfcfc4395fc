//! Hooks for TCP through a user-level service (`--net`). Without `--net` each hook is a load and a branch.
//!
//! A program's socket is the kernel's until `bind`, `listen` or `connect` selects the service. Then a UNIX
//! socket replaces the descriptor: poll, epoll, fork and exec work as for any descriptor, receives and sends
//! are those of a UNIX stream, which may be a lane, and hooks cover the differences to TCP. The socket's name
//! identifies it and a note carries its options, so nothing is stored here but early registrations with epoll
//! ([`registrations`]).
//!
//! | call | what is done |
//! |---|---|
//! | `bind`, `listen` | a UNIX socket, if the address is one of the service's or unspecified |
//! | `connect` | a UNIX socket, if the service reaches the peer |
//! | `shutdown`, `connect` with AF_UNSPEC | see [`disconnecting`] |
//! | `accept`, `getsockname`, `getpeername` | addresses are those of TCP |
//! | `getsockopt`, `setsockopt` | see [`options`] |
//! | `setuid` and its like, `chroot` | a connection to the service is kept open |
//! | poll, epoll reporting a hang-up | POLLERR, if the connection has failed: see [`failures`] |
//! | a receive without bytes, a send that fails | the connection's error, if there is one |
//! | a send to an address | the address is ignored |
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "each hook has the contract of the libc function of the same name"
)]
#![allow(missing_docs, reason = "as above")]

mod addresses;
mod congestion;
mod connecting;
mod disconnecting;
mod failures;
mod options;
mod probe_socket;
mod registrations;
mod results;
mod service;
mod socket_note;

use addresses::{AddressBuffer, read_address};
use connecting::connect_by_service;
use core::ffi::{c_char, c_int};
pub use failures::fill as fill_polls;
use libc::{epoll_event, sockaddr, socklen_t};
pub use registrations::in_child;
pub use results::{
    is_address_refused, raise_sigpipe, read_after_shutdown, recv_result, send_result, suppress_sigpipe,
};
use service::{MAX_BACKLOG, client, matches_domain, unspecified_address};
pub use service::{before_change, disable, is_on};
use socket_note::SocketNote;
use std::net::SocketAddr;
use uncopy_core::streams::Outcome;
use uncopy_engine::state::{ledger, warmup};
use uncopy_fdtable::{self as fdtable, Feature};
use uncopy_interpose::{before, entry, slots};
use uncopy_net::address;
use uncopy_net::client::{Client, ServiceSocket};
use uncopy_net::state_table::ConnectionState;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::{self, Errno};
use uncopy_sys::lock::Critical;
use uncopy_sys::tcp;

slots! {
    BIND = c"bind": unsafe extern "C" fn(ProgramFd, *const sockaddr, socklen_t) -> c_int;
    LISTEN = c"listen": unsafe extern "C" fn(ProgramFd, c_int) -> c_int;
    CONNECT = c"connect": unsafe extern "C" fn(ProgramFd, *const sockaddr, socklen_t) -> c_int;
    SHUTDOWN = c"shutdown": unsafe extern "C" fn(ProgramFd, c_int) -> c_int;
    ACCEPT = c"accept": unsafe extern "C" fn(ProgramFd, *mut sockaddr, *mut socklen_t) -> ProgramFd;
    ACCEPT4 = c"accept4": unsafe extern "C" fn(ProgramFd, *mut sockaddr, *mut socklen_t, c_int) -> ProgramFd;
    GETSOCKNAME = c"getsockname": unsafe extern "C" fn(ProgramFd, *mut sockaddr, *mut socklen_t) -> c_int;
    GETPEERNAME = c"getpeername": unsafe extern "C" fn(ProgramFd, *mut sockaddr, *mut socklen_t) -> c_int;
    GETSOCKOPT = c"getsockopt": unsafe extern "C" fn(ProgramFd, c_int, c_int, *mut core::ffi::c_void, *mut socklen_t) -> c_int;
    EPOLL_CTL = c"epoll_ctl": unsafe extern "C" fn(ProgramFd, c_int, ProgramFd, *mut epoll_event) -> c_int;
    CHROOT = c"chroot": unsafe extern "C" fn(*const c_char) -> c_int;
}

before!(chroot CHROOT (path: *const c_char) -> c_int, { before_change(); });

/// Connects to the service. Returns the folder of its lanes; `None`: it does not answer, which was reported.
pub fn switch_on(control: &[u8]) -> Option<&'static str> {
    fdtable::register(Feature::Service, &registrations::FD_CALLBACKS);
    service::switch_on(control)
}

/// Converts a result to libc's, and sets errno.
fn result(done: Result<(), Errno>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(why) => {
            errno::set(why.0);
            -1
        }
    }
}

/// Replaces a program's socket by one that is bound to an address of the service.
fn bind_to(client: &Client, fd: ProgramFd, address: SocketAddr) -> Result<(), Errno> {
    let note = SocketNote::from_tcp(fd);
    fdtable::on_replace(Feature::Service, fd);
    client.bind(fd, address, note.reuses_port())?;
    note.store(fd);
    registrations::reregister(fd);
    Ok(())
}

/// Implements `bind`; `None`: libc must do it.
fn bind_by_service(fd: ProgramFd, address: SocketAddr) -> Option<Result<(), Errno>> {
    let client = client().filter(|client| client.owns(address::canonical(address).ip()))?;
    let _critical = Critical::enter();
    let domain = tcp::unconnected_domain(fd)?;
    matches_domain(domain, &address).then(|| bind_to(client, fd, address))
}

entry!(bind BIND (fd: ProgramFd, address: *const sockaddr, len: socklen_t) -> c_int, is_on(), {
    match read_address(address, len).and_then(|address| bind_by_service(fd, address)) {
        Some(done) => result(done),
        None => BIND.call()(fd, address, len),
    }
});

/// Implements `listen`, by calling `listen` for the UNIX socket; `None`: libc must do it.
fn listen_by_service(
    fd: ProgramFd,
    backlog: c_int,
    listen: impl FnOnce() -> c_int,
) -> Option<Result<(), Errno>> {
    let client = client()?;
    let _critical = Critical::enter();
    if let Some(domain) = tcp::unconnected_domain(fd)
        && let Err(why) = bind_to(client, fd, unspecified_address(domain))
    {
        return Some(Err(why));
    }
    let Some(ServiceSocket::Bound(bound)) = client.service_socket(fd) else { return None };
    if listen() != 0 {
        return Some(Err(Errno(errno::get())));
    }
    let backlog = backlog.cast_unsigned().min(MAX_BACKLOG);
    Some(client.listen(&bound, backlog, SocketNote::load(fd).options()))
}

entry!(listen LISTEN (fd: ProgramFd, backlog: c_int) -> c_int, is_on(), {
    let listen = || LISTEN.call()(fd, backlog);
    match listen_by_service(fd, backlog, listen) {
        Some(done) => result(done),
        None => listen(),
    }
});

entry!(connect CONNECT (fd: ProgramFd, address: *const sockaddr, len: socklen_t) -> c_int, is_on(), {
    let done = if addresses::is_unspecified_family(address, len) {
        disconnecting::disconnect(fd)
    } else {
        read_address(address, len).and_then(|address| connect_by_service(fd, address))
    };
    match done {
        Some(done) => result(done),
        None => CONNECT.call()(fd, address, len),
    }
});

entry!(shutdown SHUTDOWN (fd: ProgramFd, how: c_int) -> c_int, is_on(), {
    match disconnecting::shut_down(fd, how) {
        Some(done) => result(done),
        None => SHUTDOWN.call()(fd, how),
    }
});

fn explain_accepted(client: &Client, accepted: ProgramFd) {
    if ledger::are_kept() {
        let _errno = errno::SavedErrno::new();
        if client.connection(accepted).is_some() {
            ledger::add_stream(Outcome::Served, 1);
        } else if tcp::is_tcp(accepted) {
            ledger::add_stream(Outcome::Unserved, 1);
        }
    }
}

/// Accepts by `call`, and reports the peer's TCP address.
///
/// # Safety
/// `address` and `len` are the arguments of accept(2).
unsafe fn accept_by(
    fd: ProgramFd,
    address: *mut sockaddr,
    len: *mut socklen_t,
    call: impl Fn(*mut sockaddr, *mut socklen_t) -> ProgramFd,
) -> ProgramFd {
    let Some(client) = client() else { return call(address, len) };
    let call = |address, len| {
        let accepted = call(address, len);
        if accepted.is_valid() {
            explain_accepted(client, accepted);
        } else {
            disconnecting::correct_accept_errno(fd);
        }
        accepted
    };
    // SAFETY: `address` and `len` are the program's arguments, which `AddressBuffer::of` checks.
    let Some(room) = (unsafe { AddressBuffer::of(address, len) }) else {
        let accepted = call(address, len);
        if accepted.is_valid() {
            SocketNote::copy_to_accepted(fd, accepted);
        }
        return accepted;
    };
    let mut bytes = addresses::AddressStorage::default();
    let mut len_bytes = size_of_val(&bytes) as socklen_t;
    let accepted = call((&raw mut bytes).cast(), &raw mut len_bytes);
    if !accepted.is_valid() {
        return accepted;
    }
    let bytes = bytes.bytes(len_bytes);
    let Some(connection) = client.parse(bytes) else {
        room.put(bytes);
        return accepted;
    };
    let _errno = errno::SavedErrno::new();
    let is_v6 = matches!(client.service_socket(fd), Some(ServiceSocket::Bound(bound)) if bound.is_v6());
    room.put_address(connection.remote, is_v6);
    SocketNote::copy_to_accepted(fd, accepted);
    accepted
}

/// Returns whether accept needs any handling. A program that accepts connections ends the warm-up.
fn accepts() -> bool {
    warmup::end();
    is_on()
}

entry!(accept ACCEPT (fd: ProgramFd, address: *mut sockaddr, len: *mut socklen_t) -> ProgramFd, accepts(), {
    let real = ACCEPT.call();
    accept_by(fd, address, len, |address, len| real(fd, address, len))
});

entry!(accept4 ACCEPT4 (fd: ProgramFd, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> ProgramFd, accepts(), {
    let real = ACCEPT4.call();
    accept_by(fd, address, len, |address, len| real(fd, address, len, flags))
});

/// Returns the address of one end of a descriptor's socket; `None`: libc must return it.
fn address_of(
    fd: ProgramFd,
    of_connection: impl FnOnce(&Client, uncopy_net::name::Connection) -> Result<SocketAddr, Errno>,
    of_bound: impl FnOnce(SocketAddr) -> Option<SocketAddr>,
) -> Option<Result<(SocketAddr, bool), Errno>> {
    let client = client()?;
    let _errno = errno::SavedErrno::new();
    match client.service_socket(fd)? {
        ServiceSocket::Connection { connection, is_v6 } => {
            Some(of_connection(client, connection).map(|address| (address, is_v6)))
        }
        ServiceSocket::Bound(bound) => of_bound(bound.address).map(|address| Ok((address, bound.is_v6()))),
    }
}

/// Writes such an address to the program's buffer, or returns the result of `call`.
///
/// # Safety
/// `address` and `len` are the arguments of getsockname(2).
unsafe fn put_name(
    address_of: Option<Result<(SocketAddr, bool), Errno>>,
    address: *mut sockaddr,
    len: *mut socklen_t,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let Some(address_of) = address_of else { return call() };
    // SAFETY: `address` and `len` are the program's arguments, which `AddressBuffer::of` checks; the kernel
    // reports invalid ones.
    let Some(room) = (unsafe { AddressBuffer::of(address, len) }) else { return call() };
    result(address_of.map(|(address, is_v6)| room.put_address(address, is_v6)))
}

entry!(getsockname GETSOCKNAME (fd: ProgramFd, address: *mut sockaddr, len: *mut socklen_t) -> c_int, is_on(), {
    let own = address_of(fd, |_, connection| Ok(connection.local), Some);
    put_name(own, address, len, || GETSOCKNAME.call()(fd, address, len))
});

entry!(getpeername GETPEERNAME (fd: ProgramFd, address: *mut sockaddr, len: *mut socklen_t) -> c_int, is_on(), {
    let of_connection = |client: &Client, connection| {
        let is_begun = client.connection_state(&connection) != Some(ConnectionState::Connecting);
        if is_begun && !disconnecting::is_finished(client, fd, &connection) {
            Ok(connection.remote)
        } else {
            Err(Errno(libc::ENOTCONN))
        }
    };
    let peer = address_of(fd, of_connection, |_| None);
    put_name(peer, address, len, || GETPEERNAME.call()(fd, address, len))
});

entry!(getsockopt GETSOCKOPT
(fd: ProgramFd, level: c_int, name: c_int, value: *mut core::ffi::c_void, len: *mut socklen_t) -> c_int, is_on(), {
    let real = || GETSOCKOPT.call()(fd, level, name, value, len);
    match options::get(fd, level, name, value.cast(), len, &real) {
        Some(done) => result(done),
        None => real(),
    }
});

/// Returns the result of `setsockopt`; `None`: libc must do it.
///
/// # Safety
/// `value` and `len` are the arguments of setsockopt(2).
pub unsafe fn set_option(
    fd: ProgramFd,
    level: c_int,
    name: c_int,
    value: *const core::ffi::c_void,
    len: socklen_t,
) -> Option<c_int> {
    // SAFETY: `value` and `len` are the program's arguments, as this function's caller promises.
    unsafe { options::set(fd, level, name, value.cast(), len) }.map(result)
}

entry!(epoll_ctl EPOLL_CTL (epoll: ProgramFd, operation: c_int, fd: ProgramFd, event: *mut epoll_event) -> c_int, is_on(), {
    let done = EPOLL_CTL.call()(epoll, operation, fd, event);
    if done == 0 {
        failures::on_epoll_ctl(epoll, operation, fd, event);
        registrations::on_epoll_ctl(epoll, operation, fd, event);
    }
    done
});
