//! Outgoing connections: connect(2) of a program through the service.

use super::kept::SocketNote;
use super::registrations;
use super::service::{any, client, is_of};
use core::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};
use uncopy_core::streams::Outcome;
use uncopy_engine::state::ledger;
use uncopy_fdtable::{self as fdtable, Feature};
use uncopy_net::address;
use uncopy_net::board::Condition;
use uncopy_net::client::{Client, Known};
use uncopy_net::name::{Bound, Connection};
use uncopy_sys::descriptor::{OwnFd, ProgramFd};
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::Critical;
use uncopy_sys::tcp::{self, Waited};
use uncopy_sys::{socket, unix};

const DOMAINS: [c_int; 2] = [libc::AF_INET, libc::AF_INET6];

/// Connects a descriptor through the service; `None`: libc must connect it.
pub fn connect_there(fd: ProgramFd, remote: SocketAddr) -> Option<Result<(), Errno>> {
    let client = client()?;
    let critical = Critical::enter();
    let reaches = client.reaches(address::plain(remote).ip());
    match client.known(fd) {
        Some(Known::Connection { connection, is_v6 }) => {
            let done = reconnect(client, fd, &connection, is_v6);
            drop(critical);
            Some(done.unwrap_or_else(|| wait(client, fd, &connection, is_v6)))
        }
        Some(Known::Bound(_)) if is_listening(fd) => Some(Err(Errno(libc::EISCONN))),
        Some(Known::Bound(bound)) if !is_of(DOMAINS[usize::from(bound.is_v6())], &remote) => {
            Some(Err(Errno(libc::EAFNOSUPPORT)))
        }
        Some(Known::Bound(bound)) if reaches => {
            let note = SocketNote::of(fd);
            let begun = begin(client, fd, bound.address, remote, note);
            drop(critical);
            Some(begun.and_then(|connection| finish(client, fd, &connection, remote.is_ipv6())))
        }
        Some(Known::Bound(bound)) => {
            ledger::add_stream(Outcome::Unserved, 1);
            give_back(fd, &bound).err().map(Err)
        }
        None if reaches => {
            let domain = tcp::undecided(fd).filter(|domain| is_of(*domain, &remote))?;
            let begun = begin(client, fd, any(domain), remote, SocketNote::of_tcp(fd));
            drop(critical);
            Some(begun.and_then(|connection| finish(client, fd, &connection, remote.is_ipv6())))
        }
        None => {
            if ledger::are_kept() && tcp::undecided(fd).is_some() {
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
    let is_dual = local.ip().is_unspecified() && address::plain(remote).is_ipv4();
    let local = if is_dual { SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port()) } else { local };
    fdtable::replaced(Feature::Service, fd);
    let connection = client.connect(fd, local, remote, note.options())?;
    ledger::add_stream(Outcome::Served, 1);
    note.keep(fd);
    registrations::renew(fd);
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
    match client.condition(connection) {
        Some(Condition::Connecting) if socket::is_non_blocking(fd) => Some(Err(Errno(libc::EALREADY))),
        Some(Condition::Connecting) => None,
        // The first connect(2) after the handshake succeeds, as on Linux.
        Some(Condition::Established | Condition::Ended) if SocketNote::report_established(fd) => Some(Ok(())),
        Some(Condition::Established | Condition::Ended) | None => Some(Err(Errno(libc::EISCONN))),
        Some(Condition::Failed(_)) if SocketNote::of(fd).knows_established => Some(Err(Errno(libc::EISCONN))),
        Some(Condition::Failed(why)) => {
            let why = if SocketNote::of(fd).is_error_reported { libc::ECONNABORTED } else { why };
            start_over(fd, is_v6);
            Some(Err(Errno(why)))
        }
    }
}

/// Waits for a connection to be established, as long as SO_SNDTIMEO allows.
fn wait(client: &Client, fd: ProgramFd, connection: &Connection, is_v6: bool) -> Result<(), Errno> {
    let waited = tcp::wait_for_room(fd, socket::send_timeout_ms(fd).unwrap_or(-1))?;
    match client.condition(connection) {
        Some(Condition::Failed(why)) => {
            let _critical = Critical::enter();
            start_over(fd, is_v6);
            Err(Errno(why))
        }
        Some(Condition::Established | Condition::Ended) => {
            SocketNote::report_established(fd);
            Ok(())
        }
        _ => match waited {
            Waited::Room => Ok(()),
            Waited::Nothing => Err(Errno(libc::EINPROGRESS)),
            // The service has ended.
            Waited::Ended => Err(Errno(libc::ECONNABORTED)),
        },
    }
}

/// Replaces the socket of a failed or aborted connection by a kernel socket, which may connect again.
pub fn start_over(fd: ProgramFd, is_v6: bool) {
    let _ = replace(fd, is_v6, |_| Ok(()));
}

/// Replaces a bound socket by a kernel socket with the same port, because the service does not reach the peer.
fn give_back(fd: ProgramFd, bound: &Bound) -> Result<(), Errno> {
    let is_v6 = bound.is_v6();
    replace(fd, is_v6, |made| {
        tcp::set_option(made, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        let any = SocketAddr::new(any(DOMAINS[usize::from(is_v6)]).ip(), bound.address.port());
        let (bytes, len_bytes) = address::write(any, is_v6);
        tcp::bind(made, &bytes[..len_bytes])
    })
}

fn replace(
    fd: ProgramFd,
    is_v6: bool,
    prepare: impl FnOnce(&OwnFd) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let note = SocketNote::of(fd);
    let made = tcp::stream(DOMAINS[usize::from(is_v6)])?;
    fdtable::replaced(Feature::Service, fd);
    let done = prepare(&made).and_then(|()| unix::inherit(fd, &made)).and_then(|()| {
        note.set(&made);
        unix::replace(&made, fd)
    });
    drop(made);
    registrations::renew(fd);
    done
}
