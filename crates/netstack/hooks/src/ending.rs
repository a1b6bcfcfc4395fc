//! `shutdown`, and `connect` with AF_UNSPEC, on sockets of the service. The results are those of TCP on Linux:
//! a former listener is a bound socket, and a connection that is shut for reading still delivers what arrives.

use super::connecting::{is_listening, start_over};
use super::kept::SocketNote;
use super::service::{MAX_BACKLOG, client};
use core::ffi::c_int;
use libc::ssize_t;
use uncopy_fdtable::{self as fdtable, Feature};
use uncopy_net::board::Condition;
use uncopy_net::client::{Client, Known};
use uncopy_net::message::Options;
use uncopy_net::name::{Bound, Connection};
use uncopy_sys::descriptor::{OwnFd, ProgramFd};
use uncopy_sys::errno::{self, Errno};
use uncopy_sys::lock::Critical;
use uncopy_sys::{epoll, socket, tcp, unix};

const MAX_REST_BYTES: usize = 1 << 20;

/// Implements `shutdown`; `None`: libc must do it.
pub fn shut_down(fd: ProgramFd, how: c_int) -> Option<Result<(), Errno>> {
    let client = client()?;
    let _errno = errno::Keep::new();
    let _critical = Critical::enter();
    let known = client.known(fd).filter(|_| (libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how))?;
    match known {
        // For a listener, Linux ignores SHUT_WR.
        Known::Bound(_) if how == libc::SHUT_WR && is_listening(fd) => Some(Ok(())),
        Known::Bound(bound) if is_listening(fd) => {
            stop_listening(client, fd, &bound);
            Some(Ok(()))
        }
        Known::Bound(_) => Some(Err(Errno(libc::ENOTCONN))),
        Known::Connection { connection, .. } if is_over(client, fd, &connection) => {
            Some(Err(Errno(libc::ENOTCONN)))
        }
        // Linux aborts a connection that is still connecting.
        Known::Connection { connection, .. }
            if client.condition(&connection) == Some(Condition::Connecting) =>
        {
            if socket::has_hung_up(fd) {
                return Some(Err(Errno(libc::ENOTCONN)));
            }
            socket::reset(fd);
            Some(Ok(()))
        }
        Known::Connection { connection, .. } => {
            // From here on the program knows that the connection is established.
            SocketNote::report_established(fd);
            // The service refuses to keep bytes for another user's process: then they are lost.
            if how == libc::SHUT_RD && client.keep(&connection).is_ok() {
                SocketNote { is_shut_for_reading: true, ..SocketNote::of(fd) }.keep(fd);
            }
            None
        }
    }
}

/// Returns whether a connection has failed, or both ends have ended it.
pub fn is_over(client: &Client, fd: ProgramFd, connection: &Connection) -> bool {
    match client.condition(connection) {
        Some(Condition::Failed(_)) => true,
        Some(Condition::Ended) => socket::has_hung_up(fd),
        Some(Condition::Connecting | Condition::Established) | None => false,
    }
}

/// Implements `connect` with AF_UNSPEC; `None`: libc must do it.
pub fn disconnect(fd: ProgramFd) -> Option<Result<(), Errno>> {
    let client = client()?;
    let _errno = errno::Keep::new();
    let _critical = Critical::enter();
    match client.known(fd)? {
        Known::Bound(bound) if is_listening(fd) => stop_listening(client, fd, &bound),
        Known::Bound(_) => {}
        Known::Connection { connection, is_v6 } => {
            if !is_over(client, fd, &connection) {
                let _ = client.set(&connection, Options { resets: true, ..SocketNote::of(fd).options() });
            }
            // The reset also reaches duplicates of the descriptor.
            socket::reset(fd);
            start_over(fd, is_v6);
        }
    }
    Some(Ok(()))
}

/// Stops a listener: threads that wait in accept get EINVAL, and pending connections are reset. A socket with
/// the same address that does not listen replaces the descriptor, also in the epolls that watch it.
fn stop_listening(client: &Client, fd: ProgramFd, bound: &Bound) {
    socket::reset(fd);
    for _ in 0..MAX_BACKLOG {
        // A socket that is shut down never blocks in accept.
        let accepted = if is_shut(fd) { unix::accept(fd) } else { return };
        let Ok((accepted, _)) = accepted else { break };
        if let Some(connection) = client.connection(&accepted) {
            let _ = client.set(&connection, Options { resets: true, ..Options::default() });
        }
    }
    // After the replacement, epoll_ctl(2) could no longer remove the old file.
    let Ok(registrations) = epoll::registrations_of(fd) else { return };
    let Ok(made) = client.unlisten(bound) else { return };
    let note = SocketNote::of(fd);
    fdtable::replaced(Feature::Service, fd);
    for registration in &registrations {
        let _ = epoll::unwatch(registration.epoll, fd);
    }
    let _ = unix::inherit(fd, &made).and_then(|()| unix::replace(&made, fd));
    drop(made);
    note.keep(fd);
    for registration in &registrations {
        let _ = tcp::watch(registration.epoll, fd, registration.events, registration.data);
    }
}

/// Returns whether a listener was shut, through this or another descriptor of the same file.
fn is_shut(fd: ProgramFd) -> bool {
    socket::has_peer_ended(fd)
}

/// Corrects errno after a failed accept: TCP reports EINVAL on a listener that was shut, a UNIX socket EAGAIN.
#[cold]
pub fn refused_accept(fd: ProgramFd) {
    let why = errno::get();
    let is_ended = why == libc::EAGAIN && is_shut(fd) && is_known_bound(fd);
    errno::set(if is_ended { libc::EINVAL } else { why });
}

fn is_known_bound(fd: ProgramFd) -> bool {
    client().is_some_and(|client| matches!(client.known(fd), Some(Known::Bound(_))))
}

/// Returns TCP's errno for a receive or send on an unconnected socket, where a UNIX socket has another one;
/// `None`: it is connected.
pub fn of_unconnected(fd: ProgramFd, is_send: bool) -> Option<c_int> {
    is_known_bound(fd).then_some(if is_send { libc::EPIPE } else { libc::ENOTCONN })
}

/// Reads bytes that arrived after the program has shut a connection for reading, at most `len_bytes`. `read`
/// reads from the file that has them.
#[cold]
#[inline(never)]
pub fn rest(fd: ProgramFd, len_bytes: usize, flags: c_int, read: impl FnOnce(&OwnFd) -> ssize_t) -> ssize_t {
    take(fd, len_bytes, flags & libc::MSG_PEEK != 0).map_or(0, |file| read(&file))
}

fn take(fd: ProgramFd, len_bytes: usize, is_peeked: bool) -> Option<OwnFd> {
    let _errno = errno::Keep::new();
    let client = client().filter(|_| len_bytes > 0)?;
    let connection = client.connection(fd).filter(|_| SocketNote::of(fd).is_shut_for_reading)?;
    let _critical = Critical::enter();
    client.take(&connection, len_bytes.min(MAX_REST_BYTES) as u32, is_peeked).ok().flatten()
}
