//! Outgoing connections: connect(2) of a program through the service.

use super::registrations;
use super::service::{client, matches_domain, unspecified_address};
use super::socket_note::SocketNote;
use core::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};
use uncopy_core::streams::Outcome;
use uncopy_engine::state::ledger;
use uncopy_fdtable::{self as fdtable, Feature};
use uncopy_net::address;
use uncopy_net::client::{Client, ServiceSocket};
use uncopy_net::name::{BoundSocket, Connection};
use uncopy_net::state_table::ConnectionState;
use uncopy_sys::descriptor::{OwnFd, ProgramFd};
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::Critical;
use uncopy_sys::tcp::{self, WaitResult};
use uncopy_sys::{socket, unix};

const DOMAINS: [c_int; 2] = [libc::AF_INET, libc::AF_INET6];

/// Connects a descriptor through the service; `None`: libc must connect it.
pub fn connect_by_service(fd: ProgramFd, remote: SocketAddr) -> Option<Result<(), Errno>> {
    let client = client()?;
    let critical = Critical::enter();
    let reaches = client.reaches(address::canonical(remote).ip());
    match client.service_socket(fd) {
        Some(ServiceSocket::Connection { connection, is_v6 }) => {
            let done = reconnect(client, fd, &connection, is_v6);
            drop(critical);
            Some(done.unwrap_or_else(|| wait(client, fd, &connection, is_v6)))
        }
        Some(ServiceSocket::Bound(_)) if is_listening(fd) => Some(Err(Errno(libc::EISCONN))),
        Some(ServiceSocket::Bound(bound))
            if !matches_domain(DOMAINS[usize::from(bound.is_v6())], &remote) =>
        {
            Some(Err(Errno(libc::EAFNOSUPPORT)))
        }
        Some(ServiceSocket::Bound(bound)) if reaches => {
            let note = SocketNote::load(fd);
            let begun = begin(client, fd, bound.address, remote, note);
            drop(critical);
            Some(begun.and_then(|connection| finish(client, fd, &connection, remote.is_ipv6())))
        }
        Some(ServiceSocket::Bound(bound)) => {
            ledger::add_stream(Outcome::Unserved, 1);
            give_back(fd, &bound).err().map(Err)
        }
        None if reaches => {
            let domain = tcp::unconnected_domain(fd).filter(|domain| matches_domain(*domain, &remote))?;
            let begun = begin(client, fd, unspecified_address(domain), remote, SocketNote::from_tcp(fd));
            drop(critical);
            Some(begun.and_then(|connection| finish(client, fd, &connection, remote.is_ipv6())))
        }
        None => {
            if ledger::are_kept() && tcp::unconnected_domain(fd).is_some() {
                ledger::add_stream(Outcome::Unserved, 1);
            }
            None
        }
    }
}

pub fn is_listening(fd: ProgramFd) -> bool {
    tcp::option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN).is_ok_and(|value| value != 0)
}

fn begin(
    client: &Client,
    fd: ProgramFd,
    local: SocketAddr,
    remote: SocketAddr,
    note: SocketNote,
) -> Result<Connection, Errno> {
    // A dual-stack socket bound to the unspecified address connects from an address of the peer's family.
    let is_dual = local.ip().is_unspecified() && address::canonical(remote).is_ipv4();
    let local = if is_dual { SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port()) } else { local };
    fdtable::on_replace(Feature::Service, fd);
    let connection = client.connect(fd, local, remote, note.options())?;
    ledger::add_stream(Outcome::Served, 1);
    note.store(fd);
    registrations::reregister(fd);
    Ok(connection)
}

/// Completes connect(2) for a connection that has just begun: waits for it unless the socket is non-blocking.
fn finish(client: &Client, fd: ProgramFd, connection: &Connection, is_v6: bool) -> Result<(), Errno> {
    if socket::is_non_blocking(fd) {
        return Err(Errno(libc::EINPROGRESS));
    }
    wait(client, fd, connection, is_v6)
}

/// Returns the result of connect(2) on a socket that is already connecting or connected; `None`: it must wait.
fn reconnect(
    client: &Client,
    fd: ProgramFd,
    connection: &Connection,
    is_v6: bool,
) -> Option<Result<(), Errno>> {
    match client.connection_state(connection) {
        Some(ConnectionState::Connecting) if socket::is_non_blocking(fd) => Some(Err(Errno(libc::EALREADY))),
        Some(ConnectionState::Connecting) => None,
        // The first connect(2) after the handshake succeeds, as on Linux.
        Some(ConnectionState::Established | ConnectionState::PeerEnded)
            if SocketNote::mark_established_reported(fd) =>
        {
            Some(Ok(()))
        }
        Some(ConnectionState::Established | ConnectionState::PeerEnded) | None => {
            Some(Err(Errno(libc::EISCONN)))
        }
        Some(ConnectionState::Failed(_)) if SocketNote::load(fd).is_established_reported => {
            Some(Err(Errno(libc::EISCONN)))
        }
        Some(ConnectionState::Failed(why)) => {
            let why = if SocketNote::load(fd).is_error_reported { libc::ECONNABORTED } else { why };
            replace_by_kernel_socket(fd, is_v6);
            Some(Err(Errno(why)))
        }
    }
}

/// Waits for a connection to be established, as long as SO_SNDTIMEO allows.
fn wait(client: &Client, fd: ProgramFd, connection: &Connection, is_v6: bool) -> Result<(), Errno> {
    let waited = tcp::wait_for_room(fd, socket::send_timeout_ms(fd).unwrap_or(-1))?;
    match client.connection_state(connection) {
        Some(ConnectionState::Failed(why)) => {
            let _critical = Critical::enter();
            replace_by_kernel_socket(fd, is_v6);
            Err(Errno(why))
        }
        Some(ConnectionState::Established | ConnectionState::PeerEnded) => {
            SocketNote::mark_established_reported(fd);
            Ok(())
        }
        _ => match waited {
            WaitResult::Room => Ok(()),
            WaitResult::Nothing => Err(Errno(libc::EINPROGRESS)),
            // The service has ended.
            WaitResult::Ended => Err(Errno(libc::ECONNABORTED)),
        },
    }
}

/// Replaces the socket of a failed or aborted connection by a kernel socket, which may connect again.
pub fn replace_by_kernel_socket(fd: ProgramFd, is_v6: bool) {
    let _ = replace(fd, is_v6, |_| Ok(()));
}

/// Replaces a bound socket by a kernel socket with the same port, because the service does not reach the peer.
fn give_back(fd: ProgramFd, bound: &BoundSocket) -> Result<(), Errno> {
    let is_v6 = bound.is_v6();
    replace(fd, is_v6, |made| {
        tcp::set_option(made, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        let any =
            SocketAddr::new(unspecified_address(DOMAINS[usize::from(is_v6)]).ip(), bound.address.port());
        let (bytes, len_bytes) = address::write(any, is_v6);
        tcp::bind(made, &bytes[..len_bytes])
    })
}

fn replace(
    fd: ProgramFd,
    is_v6: bool,
    prepare: impl FnOnce(&OwnFd) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let note = SocketNote::load(fd);
    let made = tcp::stream(DOMAINS[usize::from(is_v6)])?;
    fdtable::on_replace(Feature::Service, fd);
    let done = prepare(&made).and_then(|()| unix::copy_options(fd, &made)).and_then(|()| {
        note.apply_to(&made);
        unix::replace_descriptor(&made, fd)
    });
    drop(made);
    registrations::reregister(fd);
    done
}
