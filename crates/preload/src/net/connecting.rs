//! Connections that the program begins.

use super::kept::Kept;
use super::{any, client, is_of, registrations};
use crate::lanes;
use core::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};
use uncopy_core::streams::Outcome;
use uncopy_engine::state::ledger;
use uncopy_net::address;
use uncopy_net::board::Condition;
use uncopy_net::client::{Client, Known};
use uncopy_net::name::{Bound, Connection};
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::Critical;
use uncopy_sys::tcp::{self, Waited};
use uncopy_sys::{file, socket, unix};

const DOMAINS: [c_int; 2] = [libc::AF_INET, libc::AF_INET6];

/// Connects a descriptor through the service. `None`: it is libc's to do.
pub fn connect_there(fd: c_int, remote: SocketAddr) -> Option<Result<(), Errno>> {
    let client = client()?;
    let critical = Critical::enter();
    let reaches = client.reaches(address::plain(remote).ip());
    match client.known(fd) {
        Some(Known::Connection { connection, is_v6 }) => {
            let done = again(client, fd, &connection, is_v6);
            drop(critical);
            Some(done.unwrap_or_else(|| wait(client, fd, &connection, is_v6)))
        }
        Some(Known::Bound(_)) if is_listening(fd) => Some(Err(Errno(libc::EISCONN))),
        Some(Known::Bound(bound)) if !is_of(DOMAINS[usize::from(bound.is_v6())], &remote) => {
            Some(Err(Errno(libc::EAFNOSUPPORT)))
        }
        Some(Known::Bound(bound)) if reaches => {
            let kept = Kept::of(fd);
            let begun = begin(client, fd, bound.address, remote, kept);
            drop(critical);
            Some(begun.and_then(|connection| finish(client, fd, &connection, remote.is_ipv6())))
        }
        Some(Known::Bound(bound)) => {
            ledger::add_stream(Outcome::Unserved, 1);
            give_back(fd, &bound).err().map(Err)
        }
        None if reaches => {
            let domain = tcp::undecided(fd).filter(|domain| is_of(*domain, &remote))?;
            let begun = begin(client, fd, any(domain), remote, Kept::of_tcp(fd));
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

/// Whether a socket waits for connections.
pub fn is_listening(fd: c_int) -> bool {
    tcp::option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN).is_ok_and(|value| value != 0)
}

fn begin(
    client: &Client,
    fd: c_int,
    local: SocketAddr,
    remote: SocketAddr,
    kept: Kept,
) -> Result<Connection, Errno> {
    // A socket of both families that is bound to any address connects from one of the peer's family.
    let is_dual = local.ip().is_unspecified() && address::plain(remote).is_ipv4();
    let local = if is_dual { SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port()) } else { local };
    lanes::closed(fd);
    uncopy_record::closed(fd);
    let connection = client.connect(fd, local, remote, kept.options())?;
    ledger::add_stream(Outcome::Served, 1);
    kept.keep(fd);
    registrations::renew(fd);
    Ok(connection)
}

/// A connection that has just begun: waited for, unless the program does not wait.
fn finish(client: &Client, fd: c_int, connection: &Connection, is_v6: bool) -> Result<(), Errno> {
    if socket::is_non_blocking(fd) {
        return Err(Errno(libc::EINPROGRESS));
    }
    wait(client, fd, connection, is_v6)
}

/// What the program hears that connects once more; `None`: it waits.
fn again(client: &Client, fd: c_int, connection: &Connection, is_v6: bool) -> Option<Result<(), Errno>> {
    match client.condition(connection) {
        Some(Condition::Connecting) if socket::is_non_blocking(fd) => Some(Err(Errno(libc::EALREADY))),
        Some(Condition::Connecting) => None,
        // The first time it is told that it is connected, as that is news.
        Some(Condition::Established | Condition::Ended) if Kept::join(fd) => Some(Ok(())),
        Some(Condition::Established | Condition::Ended) | None => Some(Err(Errno(libc::EISCONN))),
        Some(Condition::Failed(_)) if Kept::of(fd).is_joined => Some(Err(Errno(libc::EISCONN))),
        Some(Condition::Failed(why)) => {
            let why = if Kept::of(fd).is_told { libc::ECONNABORTED } else { why };
            start_over(fd, is_v6);
            Some(Err(Errno(why)))
        }
    }
}

/// Waits for a connection, as long as a send may wait.
fn wait(client: &Client, fd: c_int, connection: &Connection, is_v6: bool) -> Result<(), Errno> {
    let waited = tcp::wait_for_room(fd, socket::send_timeout_ms(fd).unwrap_or(-1))?;
    match client.condition(connection) {
        Some(Condition::Failed(why)) => {
            let _critical = Critical::enter();
            start_over(fd, is_v6);
            Err(Errno(why))
        }
        Some(Condition::Established | Condition::Ended) => {
            Kept::join(fd);
            Ok(())
        }
        _ => match waited {
            Waited::Room => Ok(()),
            Waited::Nothing => Err(Errno(libc::EINPROGRESS)),
            // There is no service any more.
            Waited::Ended => Err(Errno(libc::ECONNABORTED)),
        },
    }
}

/// A socket whose connection could not be made, or was given up, may connect again: it is one of the kernel's.
pub fn start_over(fd: c_int, is_v6: bool) {
    let _ = replace(fd, is_v6, |_| Ok(()));
}

/// A bound socket is to connect to somebody whom the service does not reach: it is one of the kernel's, with the same port.
fn give_back(fd: c_int, bound: &Bound) -> Result<(), Errno> {
    let is_v6 = bound.is_v6();
    replace(fd, is_v6, |made| {
        tcp::set_option(made, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        let any = SocketAddr::new(any(DOMAINS[usize::from(is_v6)]).ip(), bound.address.port());
        let (bytes, len_bytes) = address::write(any, is_v6);
        tcp::bind(made, &bytes[..len_bytes])
    })
}

/// Puts a socket of the kernel's in the place of a descriptor.
fn replace(fd: c_int, is_v6: bool, prepare: impl FnOnce(c_int) -> Result<(), Errno>) -> Result<(), Errno> {
    let kept = Kept::of(fd);
    let made = tcp::stream(DOMAINS[usize::from(is_v6)])?;
    lanes::closed(fd);
    uncopy_record::closed(fd);
    let done = prepare(made).and_then(|()| unix::inherit(fd, made)).and_then(|()| {
        kept.set(made);
        unix::replace(made, fd)
    });
    file::close(made);
    registrations::renew(fd);
    done
}
