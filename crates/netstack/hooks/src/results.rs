//! TCP's results of receives and sends on the service's connections, which are UNIX sockets to the kernel.

use crate::disconnecting;
use crate::service::{client, is_on};
use crate::socket_note::SocketNote;
use core::ffi::c_int;
use libc::ssize_t;
use uncopy_net::state_table::ConnectionState;
use uncopy_sys::descriptor::{OwnFd, ProgramFd};
use uncopy_sys::{errno, socket};

/// Returns the result of a receive; at the end of the stream or on failure, an unreported error of the
/// connection.
#[inline(always)]
pub fn recv_result(fd: ProgramFd, got: ssize_t) -> ssize_t {
    if got > 0 || !is_on() { got } else { look_at_error(fd, got, libc::ECONNRESET) }
}

/// Returns the result of a receive; at the end of the stream, that of `read` on a file of bytes that arrived
/// after the program has shut the connection for reading. `len_bytes` returns the size of the program's buffer.
#[inline(always)]
pub fn read_after_shutdown(
    fd: ProgramFd,
    got: ssize_t,
    len_bytes: impl FnOnce() -> usize,
    flags: c_int,
    read: impl FnOnce(&OwnFd) -> ssize_t,
) -> ssize_t {
    if got != 0 || !is_on() { got } else { disconnecting::read_after_shutdown(fd, len_bytes(), flags, read) }
}

/// Returns the result of a send; in place of an error, the connection's own one.
#[inline(always)]
pub fn send_result(fd: ProgramFd, sent: ssize_t) -> ssize_t {
    if sent >= 0 || !is_on() { sent } else { look_at_error(fd, sent, libc::EPIPE) }
}

/// Suppresses SIGPIPE in a send's flags, because TCP reports a connection's own error without the signal.
#[inline(always)]
pub fn suppress_sigpipe(flags: c_int) -> c_int {
    if is_on() { flags | libc::MSG_NOSIGNAL } else { flags }
}

/// Raises SIGPIPE after a send with suppressed SIGPIPE failed with EPIPE, unless the program suppresses it.
#[inline(always)]
pub fn raise_sigpipe(fd: ProgramFd, flags: c_int, sent: ssize_t) -> ssize_t {
    if sent < 0 && is_on() && flags & libc::MSG_NOSIGNAL == 0 {
        raise(fd);
    }
    sent
}

/// Returns whether a send failed because of its address, which TCP ignores on a connection.
#[inline(always)]
pub fn is_address_refused(fd: ProgramFd, sent: ssize_t) -> bool {
    sent < 0 && is_on() && has_refused_address(fd)
}

#[cold]
#[inline(never)]
fn has_refused_address(fd: ProgramFd) -> bool {
    let _errno = errno::SavedErrno::new();
    errno::get() == libc::EISCONN && client().is_some_and(|client| client.connection(fd).is_some())
}

#[cold]
#[inline(never)]
fn raise(fd: ProgramFd) {
    let _errno = errno::SavedErrno::new();
    if errno::get() == libc::EPIPE && socket::kind(fd).is_ok() {
        // SAFETY: raise(3) takes any signal number; a handler runs as it would for the program's own send.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
}

#[cold]
#[inline(never)]
fn look_at_error(fd: ProgramFd, result: ssize_t, usual: c_int) -> ssize_t {
    let (before, is_send) = (errno::get(), usual == libc::EPIPE);
    if result < 0 && before == if is_send { libc::ENOTCONN } else { libc::EINVAL } {
        errno::set(disconnecting::unconnected_errno(fd, is_send).unwrap_or(before));
        return result;
    }
    if result < 0 && before != usual && before != libc::ECONNRESET {
        return result;
    }
    let Some(client) = client() else { return result };
    let condition = client.connection(fd).and_then(|connection| client.connection_state(&connection));
    errno::set(before);
    match condition {
        // The peer's FIN arrived before its reset, so the receive reports the end of the stream.
        Some(ConnectionState::Failed(why))
            if (is_send || why != libc::EPIPE) && SocketNote::mark_error_reported(fd) =>
        {
            errno::set(why);
            -1
        }
        Some(ConnectionState::Failed(_)) if is_send => {
            errno::set(libc::EPIPE);
            -1
        }
        Some(ConnectionState::Failed(_)) => 0,
        // The program has shut its own side down, or the service has died and nothing tells the outcome.
        Some(ConnectionState::Established) if result == 0 && client.is_gone() => {
            errno::set(libc::ECONNRESET);
            -1
        }
        _ => {
            errno::set(before);
            result
        }
    }
}
