//! `shutdown`, and `connect` with AF_UNSPEC, on sockets of the service. The results are those of TCP on Linux:
//! a former listener is a bound socket, and a connection that is shut for reading still delivers what arrives.

use super::connecting::{is_listening, replace_by_kernel_socket};
use super::service::{MAX_BACKLOG, client};
use super::socket_note::SocketNote;
use core::ffi::c_int;
use libc::ssize_t;
use uncopy_fdtable::{self as fdtable, Feature};
use uncopy_net::client::{Client, ServiceSocket};
use uncopy_net::message::Options;
use uncopy_net::name::{BoundSocket, Connection};
use uncopy_net::state_table::ConnectionState;
use uncopy_sys::descriptor::{OwnFd, ProgramFd};
use uncopy_sys::errno::{self, Errno};
use uncopy_sys::lock::Critical;
use uncopy_sys::{epoll, socket, tcp, unix};

const MAX_REST_BYTES: usize = 1 << 20;

/// Implements `shutdown`; `None`: libc must do it.
pub fn shut_down(fd: ProgramFd, how: c_int) -> Option<Result<(), Errno>> {
    let client = client()?;
    let _errno = errno::SavedErrno::new();
    let _critical = Critical::enter();
    let known = client.service_socket(fd).filter(|_| (libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how))?;
    match known {
        // For a listener, Linux ignores SHUT_WR.
        ServiceSocket::Bound(_) if how == libc::SHUT_WR && is_listening(fd) => Some(Ok(())),
        ServiceSocket::Bound(bound) if is_listening(fd) => {
            stop_listening(client, fd, &bound);
            Some(Ok(()))
        }
        ServiceSocket::Bound(_) => Some(Err(Errno(libc::ENOTCONN))),
        ServiceSocket::Connection { connection, .. } if is_finished(client, fd, &connection) => {
            Some(Err(Errno(libc::ENOTCONN)))
        }
        // Linux aborts a connection that is still connecting.
        ServiceSocket::Connection { connection, .. }
            if client.connection_state(&connection) == Some(ConnectionState::Connecting) =>
        {
            if socket::has_hung_up(fd) {
                return Some(Err(Errno(libc::ENOTCONN)));
            }
            socket::shut_down(fd);
            Some(Ok(()))
        }
        ServiceSocket::Connection { connection, .. } => {
            // From here on the program knows that the connection is established.
            SocketNote::mark_established_reported(fd);
            // The service refuses to keep bytes for another user's process: then they are lost.
            if how == libc::SHUT_RD && client.keep_received(&connection).is_ok() {
                SocketNote { is_shut_for_reading: true, ..SocketNote::load(fd) }.store(fd);
            }
            None
        }
    }
}

/// Returns whether a connection has failed, or both ends have ended it.
pub fn is_finished(client: &Client, fd: ProgramFd, connection: &Connection) -> bool {
    match client.connection_state(connection) {
        Some(ConnectionState::Failed(_)) => true,
        Some(ConnectionState::PeerEnded) => socket::has_hung_up(fd),
        Some(ConnectionState::Connecting | ConnectionState::Established) | None => false,
    }
}

/// Implements `connect` with AF_UNSPEC; `None`: libc must do it.
pub fn disconnect(fd: ProgramFd) -> Option<Result<(), Errno>> {
    let client = client()?;
    let _errno = errno::SavedErrno::new();
    let _critical = Critical::enter();
    match client.service_socket(fd)? {
        ServiceSocket::Bound(bound) if is_listening(fd) => stop_listening(client, fd, &bound),
        ServiceSocket::Bound(_) => {}
        ServiceSocket::Connection { connection, is_v6 } => {
            if !is_finished(client, fd, &connection) {
                let _ = client.set_options(
                    &connection,
                    Options { resets_on_close: true, ..SocketNote::load(fd).options() },
                );
            }
            // The reset also reaches duplicates of the descriptor.
            socket::shut_down(fd);
            replace_by_kernel_socket(fd, is_v6);
        }
    }
    Some(Ok(()))
}

/// Stops a listener: threads that wait in accept get EINVAL, and pending connections are reset. A socket with
/// the same address that does not listen replaces the descriptor, also in the epolls that watch it.
fn stop_listening(client: &Client, fd: ProgramFd, bound: &BoundSocket) {
    socket::shut_down(fd);
    for _ in 0..MAX_BACKLOG {
        // A socket that is shut down never blocks in accept.
        let accepted = if is_shut(fd) { unix::accept(fd) } else { return };
        let Ok((accepted, _)) = accepted else { break };
        if let Some(connection) = client.connection(&accepted) {
            let _ = client.set_options(&connection, Options { resets_on_close: true, ..Options::default() });
        }
    }
    // After the replacement, epoll_ctl(2) could no longer remove the old file.
    let Ok(registrations) = epoll::registrations_of(fd) else { return };
    let Ok(made) = client.unlisten(bound) else { return };
    let note = SocketNote::load(fd);
    fdtable::on_replace(Feature::Service, fd);
    for registration in &registrations {
        let _ = epoll::epoll_remove(registration.epoll, fd);
    }
    let _ = unix::copy_options(fd, &made).and_then(|()| unix::replace_descriptor(&made, fd));
    drop(made);
    note.store(fd);
    for registration in &registrations {
        let _ = tcp::epoll_add(registration.epoll, fd, registration.events, registration.data);
    }
}

/// Returns whether a listener was shut, through this or another descriptor of the same file.
fn is_shut(fd: ProgramFd) -> bool {
    socket::has_peer_ended(fd)
}

/// Corrects errno after a failed accept: TCP reports EINVAL on a listener that was shut, a UNIX socket EAGAIN.
#[cold]
pub fn correct_accept_errno(fd: ProgramFd) {
    let why = errno::get();
    let is_ended = why == libc::EAGAIN && is_shut(fd) && is_known_bound(fd);
    errno::set(if is_ended { libc::EINVAL } else { why });
}

fn is_known_bound(fd: ProgramFd) -> bool {
    client().is_some_and(|client| matches!(client.service_socket(fd), Some(ServiceSocket::Bound(_))))
}

/// Returns TCP's errno for a receive or send on an unconnected socket, where a UNIX socket has another one;
/// `None`: it is connected.
pub fn unconnected_errno(fd: ProgramFd, is_send: bool) -> Option<c_int> {
    is_known_bound(fd).then_some(if is_send { libc::EPIPE } else { libc::ENOTCONN })
}

/// Reads bytes that arrived after the program has shut a connection for reading, at most `len_bytes`. `read`
/// reads from the file that has them.
#[cold]
#[inline(never)]
pub fn read_after_shutdown(
    fd: ProgramFd,
    len_bytes: usize,
    flags: c_int,
    read: impl FnOnce(&OwnFd) -> ssize_t,
) -> ssize_t {
    take(fd, len_bytes, flags & libc::MSG_PEEK != 0).map_or(0, |file| read(&file))
}

fn take(fd: ProgramFd, len_bytes: usize, is_peeked: bool) -> Option<OwnFd> {
    let _errno = errno::SavedErrno::new();
    let client = client().filter(|_| len_bytes > 0)?;
    let connection = client.connection(fd).filter(|_| SocketNote::load(fd).is_shut_for_reading)?;
    let _critical = Critical::enter();
    client.take_received(&connection, len_bytes.min(MAX_REST_BYTES) as u32, is_peeked).ok().flatten()
}
