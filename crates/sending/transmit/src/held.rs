//! Sends of bytes that are held in a pipe of the caller's: a duplicate of the references goes to the socket
//! by splice, so that what is not sent stays held.
//!
//! Result and errors are those of `sendmsg`, for the reasons given in [`mod@crate::splice`].

use crate::pool::{self, SlotGuard};
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

/// One call that sends held bytes to a stream socket, in several steps.
pub struct HeldSender {
    fd: ProgramFd,
    waiting: Waiting,
    /// Holds the pipe, which was checked when the call began.
    slot: SlotGuard,
    /// Free space of a blocking socket, as far as known, bytes.
    room_bytes: usize,
    /// Suppresses SIGPIPE, from the first byte sent on.
    guard: Option<SigpipeGuard>,
}

impl HeldSender {
    /// Prepares a call. `None`: nothing can be sent by reference.
    #[must_use]
    pub fn new(fd: ProgramFd, flags: i32, waiting: Waiting) -> Option<Self> {
        // An error that a later message of the kernel's reports would be lost, unless it is a reset.
        if socket::has_peer_ended(fd) {
            return None;
        }
        let mut slot = pool::acquire()?;
        slot.open_pipe(false).ok()?;
        let guard = (flags & libc::MSG_NOSIGNAL != 0).then(|| SigpipeGuard::new(true));
        Some(Self { fd, waiting, slot, room_bytes: 0, guard })
    }

    /// Records that the call has sent `len_bytes` bytes.
    pub fn note_sent(&mut self, len_bytes: usize) {
        // A copied part may take twice its length.
        self.room_bytes = self.room_bytes.saturating_sub(2 * len_bytes);
        if len_bytes > 0 {
            self.guard.get_or_insert_with(|| SigpipeGuard::new(true));
        }
    }

    /// Gives the signal back while the call waits.
    pub fn wait(&mut self) {
        self.room_bytes = 0;
        self.guard = None;
    }

    /// Returns how many of `len_bytes` bytes a splice sends without waiting; `None` if too few.
    fn wanted_bytes(&mut self, len_bytes: usize) -> Result<Option<usize>, Errno> {
        if self.waiting == Waiting::ByDescriptor {
            return Ok(Some(len_bytes));
        }
        if self.room_bytes < len_bytes {
            self.room_bytes = usable_bytes(socket::room(self.fd)?.free_bytes);
        }
        Ok(Some(len_bytes.min(self.room_bytes)).filter(|bytes| *bytes >= len_bytes.min(MIN_ROOM_BYTES)))
    }

    /// Sends up to `len_bytes` held bytes. `duplicate` puts references to them into a pipe and returns the numbers of
    /// unwanted bytes before them and of all bytes; `None`: they are not held any more. `more`: others follow at once.
    /// `has_sent`: the call has sent bytes before.
    ///
    /// # Errors
    /// Errors of sendmsg(2). Nothing was sent then.
    pub fn send(
        &mut self,
        len_bytes: usize,
        more: bool,
        has_sent: bool,
        duplicate: impl FnOnce(Pipe, usize) -> Option<(usize, usize)>,
    ) -> Result<HeldSent, Errno> {
        if has_sent {
            self.guard.get_or_insert_with(|| SigpipeGuard::new(true));
        }
        let wanted_bytes = match self.wanted_bytes(len_bytes) {
            Ok(Some(wanted_bytes)) => wanted_bytes,
            Ok(None) => return Ok(HeldSent::NoRoom),
            Err(_) => return Ok(HeldSent::Unavailable),
        };
        // A new one, if the last step could not empty the pipe and gave it up.
        let Ok(pipe) = self.slot.open_pipe(true) else { return Ok(HeldSent::Unavailable) };
        let Some((unwanted_bytes, all_bytes)) = duplicate(pipe, wanted_bytes) else {
            return Ok(HeldSent::Unavailable);
        };
        let wanted_bytes = all_bytes - unwanted_bytes;
        if unwanted_bytes > 0 && !pipe.drain(unwanted_bytes) {
            self.slot.resources().discard();
            return Ok(HeldSent::Unavailable);
        }
        if wanted_bytes == 0 {
            return Ok(HeldSent::Unavailable);
        }
        let passed = splice_retrying(pipe, self.fd, wanted_bytes, more || wanted_bytes < len_bytes);
        let sent_bytes = passed.unwrap_or(0);
        if sent_bytes < wanted_bytes {
            self.slot.resources().drain(wanted_bytes - sent_bytes);
        }
        // Pages that are spliced take what they have, and each message some more.
        self.room_bytes = self.room_bytes.saturating_sub(sent_bytes + sent_bytes / 8);
        match passed {
            // A reset during the send is reported as an earlier one: the peer never reads these bytes.
            Ok(1..)
                if sent_bytes < wanted_bytes
                    && !has_sent
                    && socket::readiness(self.fd, 0) == Readiness::Ended =>
            {
                Err(Errno(libc::ECONNRESET))
            }
            Ok(1..) => Ok(HeldSent::Bytes { len_bytes: sent_bytes, is_full: sent_bytes < wanted_bytes }),
            Err(Errno::EAGAIN) if self.waiting == Waiting::ByDescriptor => Err(Errno::EAGAIN),
            Err(error) if !crate::splice::should_copy(error) => Err(error),
            Ok(_) | Err(_) => Ok(HeldSent::Unavailable),
        }
    }
}
