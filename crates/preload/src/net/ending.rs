//! What ends a socket of the service's: `shutdown`, and `connect` to no family. As Linux does it with one of TCP: a listener is merely a
//! bound socket afterwards, and a connection that is shut for reading still gives the program what comes.

use super::connecting::{is_listening, start_over};
use super::kept::Kept;
use super::{Condition, MAX_BACKLOG, client};
use crate::lanes;
use core::ffi::c_int;
use libc::ssize_t;
use uncopy_net::client::{Client, Known};
use uncopy_net::message::Options;
use uncopy_net::name::{Bound, Connection};
use uncopy_sys::errno::{self, Errno};
use uncopy_sys::lock::Critical;
use uncopy_sys::{epoll, file, socket, tcp, unix};

/// Bytes that are asked of the service at a time, at most.
const MAX_REST_BYTES: usize = 1 << 20;

/// `shutdown`; `None`: it is libc's to do.
pub fn shut_down(fd: c_int, how: c_int) -> Option<Result<(), Errno>> {
    let client = client()?;
    let _errno = errno::Keep::new();
    let _critical = Critical::enter();
    let known = client.known(fd).filter(|_| (libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how))?;
    match known {
        // Only the receiving side of a listener means something.
        Known::Bound(_) if how == libc::SHUT_WR && is_listening(fd) => Some(Ok(())),
        Known::Bound(bound) if is_listening(fd) => {
            stop_listening(client, fd, &bound);
            Some(Ok(()))
        }
        Known::Bound(_) => Some(Err(Errno(libc::ENOTCONN))),
        Known::Connection { connection, .. } if is_over(client, fd, &connection) => {
            Some(Err(Errno(libc::ENOTCONN)))
        }
        // As Linux does, which gives such a connection up.
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
            // A program that shuts a connection knows of it.
            Kept::join(fd);
            // Another user's program may not ask for what comes: then that is lost.
            if how == libc::SHUT_RD && client.keep(&connection).is_ok() {
                Kept { is_shut_for_reading: true, ..Kept::of(fd) }.keep(fd);
            }
            None
        }
    }
}

/// Whether a connection has failed, or both ends have ended it.
pub fn is_over(client: &Client, fd: c_int, connection: &Connection) -> bool {
    match client.condition(connection) {
        Some(Condition::Failed(_)) => true,
        Some(Condition::Ended) => socket::has_hung_up(fd),
        Some(Condition::Connecting | Condition::Established) | None => false,
    }
}

/// `connect` with AF_UNSPEC; `None`: it is libc's to do.
pub fn disconnect(fd: c_int) -> Option<Result<(), Errno>> {
    let client = client()?;
    let _errno = errno::Keep::new();
    let _critical = Critical::enter();
    match client.known(fd)? {
        Known::Bound(bound) if is_listening(fd) => stop_listening(client, fd, &bound),
        Known::Bound(_) => {}
        Known::Connection { connection, is_v6 } => {
            if !is_over(client, fd, &connection) {
                let _ = client.set(&connection, Options { resets: true, ..Kept::of(fd).options() });
            }
            // Duplicates end as well.
            socket::reset(fd);
            start_over(fd, is_v6);
        }
    }
    Some(Ok(()))
}

/// Ends a listener: whoever waits at it, by whatever descriptor, hears EINVAL, and whoever waits to be accepted is reset. In the
/// descriptor's place comes a socket with the same address that does not listen; an epoll that watches it watches that one.
fn stop_listening(client: &Client, fd: c_int, bound: &Bound) {
    socket::reset(fd);
    for _ in 0..MAX_BACKLOG {
        // One that is shut never waits.
        let accepted = if is_shut(fd) { unix::accept(fd) } else { return };
        let Ok((accepted, _)) = accepted else { break };
        if let Some(connection) = client.connection(accepted) {
            let _ = client.set(&connection, Options { resets: true, ..Options::default() });
        }
        file::close(accepted);
    }
    // An epoll that goes on to watch the old file could not be told to leave it.
    let Ok(registrations) = epoll::registrations_of(fd) else { return };
    let Ok(made) = client.unlisten(bound) else { return };
    let kept = Kept::of(fd);
    lanes::closed(fd);
    uncopy_record::closed(fd);
    for registration in &registrations {
        let _ = epoll::unwatch(registration.epoll, fd);
    }
    let _ = unix::inherit(fd, made).and_then(|()| unix::replace(made, fd));
    file::close(made);
    kept.keep(fd);
    for registration in &registrations {
        let _ = tcp::watch(registration.epoll, fd, registration.events, registration.data);
    }
}

/// Whether a listener was shut, by this descriptor or by another one of the same file.
fn is_shut(fd: c_int) -> bool {
    socket::has_peer_ended(fd)
}

/// What `accept` says that has failed: at a listener that was shut a UNIX socket says that nobody is there yet.
#[cold]
pub fn refused_accept(fd: c_int) {
    let why = errno::get();
    let is_ended = why == libc::EAGAIN && is_shut(fd) && is_known_bound(fd);
    errno::set(if is_ended { libc::EINVAL } else { why });
}

fn is_known_bound(fd: c_int) -> bool {
    client().is_some_and(|client| matches!(client.known(fd), Some(Known::Bound(_))))
}

/// The errno of a receive or send at a socket that is not connected, where a UNIX socket says another one. `None`: it is connected.
pub fn of_unconnected(fd: c_int, is_send: bool) -> Option<c_int> {
    is_known_bound(fd).then_some(if is_send { libc::EPIPE } else { libc::ENOTCONN })
}

/// What `read` gets of a file of what came after the program has shut a connection for reading, `len_bytes` at most.
#[cold]
#[inline(never)]
pub fn rest(fd: c_int, len_bytes: usize, flags: c_int, read: impl FnOnce(c_int) -> ssize_t) -> ssize_t {
    let Some(file) = take(fd, len_bytes, flags & libc::MSG_PEEK != 0) else { return 0 };
    let got = read(file);
    file::close(file);
    got
}

fn take(fd: c_int, len_bytes: usize, is_peeked: bool) -> Option<c_int> {
    let _errno = errno::Keep::new();
    let client = client().filter(|_| len_bytes > 0)?;
    let connection = client.connection(fd).filter(|_| Kept::of(fd).is_shut_for_reading)?;
    let _critical = Critical::enter();
    client.take(&connection, len_bytes.min(MAX_REST_BYTES) as u32, is_peeked).ok().flatten()
}
