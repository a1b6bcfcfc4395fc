//! Sends of bytes that are held in a pipe of the caller's: a duplicate of the references goes to the socket
//! by splice, so that what is not sent stays held.
//!
//! Result and errors are those of `sendmsg`, for the reasons given in [`mod@crate::splice`].

use crate::pool;
use crate::socket_cache;
use crate::splice::{Waiting, splice_retrying, usable_bytes};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::pipe::Pipe;
use uncopy_sys::sigpipe::SigpipeGuard;
use uncopy_sys::socket::{self, Readiness};

/// Least number of bytes for which a blocking call waits for space, unless fewer are left.
const MIN_ROOM_BYTES: usize = 16 << 10;

/// Outcome of one step of sending held bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldSent {
    /// Number of bytes sent. On a non-blocking socket the send buffer is full if `is_full`.
    Bytes {
        /// Number of bytes sent.
        len_bytes: usize,
        /// Whether the kernel found no space for more.
        is_full: bool,
    },
    /// Nothing was sent, because the send buffer has too little space: wait for more.
    NoRoom,
    /// Nothing was sent, and nothing can be by reference: send a copy.
    Unavailable,
}

/// Whether held bytes can be sent to `fd` by reference.
pub fn accepts(fd: ProgramFd, with_bbr: bool) -> bool {
    use socket_cache::Kind::{BbrLocal, BbrRemote, TcpLocal, TcpRemote};
    let is_tcp = match socket_cache::of(fd).0 {
        TcpLocal | TcpRemote => true,
        BbrLocal | BbrRemote => with_bbr,
        _ => false,
    };
    is_tcp && socket_cache::is_same(fd)
}

/// Sends up to `len_bytes` held bytes to a stream socket. `duplicate` puts references to them into a pipe
/// and returns the numbers of unwanted bytes before them and of all bytes; `None`: they are not held any more.
/// `more`: others follow at once. `has_sent`: the call has sent bytes before.
///
/// # Errors
/// Errors of sendmsg(2). Nothing was sent then.
pub fn send_held(
    fd: ProgramFd,
    len_bytes: usize,
    (flags, more): (i32, bool),
    waiting: Waiting,
    has_sent: bool,
    duplicate: impl FnOnce(Pipe, usize) -> Option<(usize, usize)>,
) -> Result<HeldSent, Errno> {
    // An error that a later message of the kernel's reports would be lost, unless it is a reset.
    if socket::has_peer_ended(fd) {
        return Ok(HeldSent::Unavailable);
    }
    let wanted_bytes = match waiting {
        Waiting::ByDescriptor => len_bytes,
        Waiting::Never => {
            let Ok(room) = socket::room(fd) else { return Ok(HeldSent::Unavailable) };
            let room_bytes = usable_bytes(room.free_bytes);
            if room_bytes < len_bytes.min(MIN_ROOM_BYTES) {
                return Ok(HeldSent::NoRoom);
            }
            len_bytes.min(room_bytes)
        }
    };
    let Some(mut slot) = pool::acquire() else { return Ok(HeldSent::Unavailable) };
    let Ok(pipe) = slot.open_pipe(false) else { return Ok(HeldSent::Unavailable) };
    let Some((unwanted_bytes, all_bytes)) = duplicate(pipe, wanted_bytes) else {
        return Ok(HeldSent::Unavailable);
    };
    let wanted_bytes = all_bytes - unwanted_bytes;
    if unwanted_bytes > 0 && !pipe.drain(unwanted_bytes) {
        slot.resources().discard();
        return Ok(HeldSent::Unavailable);
    }
    if wanted_bytes == 0 {
        return Ok(HeldSent::Unavailable);
    }
    let guard = SigpipeGuard::new(has_sent || flags & libc::MSG_NOSIGNAL != 0);
    let passed = splice_retrying(pipe, fd, wanted_bytes, more || wanted_bytes < len_bytes);
    drop(guard);
    let sent_bytes = passed.unwrap_or(0);
    slot.resources().drain(wanted_bytes - sent_bytes);
    match passed {
        // A reset during the send is reported as an earlier one: the peer never reads these bytes.
        Ok(1..) if sent_bytes < wanted_bytes && !has_sent && socket::readiness(fd, 0) == Readiness::Ended => {
            Err(Errno(libc::ECONNRESET))
        }
        Ok(1..) => Ok(HeldSent::Bytes { len_bytes: sent_bytes, is_full: sent_bytes < wanted_bytes }),
        Err(Errno::EAGAIN) if waiting == Waiting::ByDescriptor => Err(Errno::EAGAIN),
        Err(error) if !crate::splice::should_copy(error) => Err(error),
        Ok(_) | Err(_) => Ok(HeldSent::Unavailable),
    }
}
