//! Sends by reference with completions: `sendmsg` with MSG_ZEROCOPY, for owners who leave their socket's
//! error queue to this crate.
//!
//! The kernel numbers a socket's zerocopy messages. Its notifications name the completed numbers, and tell
//! whether the data was copied after all (loopback, veth, a device without scatter-gather). Once that has
//! happened on a socket, the socket is no longer sent to in this way.
//!
//! ```text
//! a word   │ copied (1) │ epoch of the socket (31) │ number of the next message (32) │
//! a token  │     0      │ epoch                    │ number of the message           │
//! ```

use crate::bump::AREA_BYTES;
use crate::part::Part;
use crate::pool;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec;
use uncopy_sys::socket::{self, Envelope};

/// Identifies a message whose pages the kernel holds until its completion. Never reused within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Descriptors below this number are supported.
const MAX_FDS: usize = 1 << 16;
const MAX_PARTS: usize = 64;
/// Maximum bytes of a message that are copied to the bump area.
const MAX_COPIED_BYTES: usize = AREA_BYTES / 4;
const COPIED: u64 = 1 << 63;
const EPOCH_MASK: u64 = (1 << 31) - 1;

static STATES: [AtomicU64; MAX_FDS] = [const { AtomicU64::new(0) }; MAX_FDS];
static EPOCHS: AtomicU32 = AtomicU32::new(1);

fn state(fd: ProgramFd) -> Option<&'static AtomicU64> {
    STATES.get(fd.index()?)
}

/// Enables MSG_ZEROCOPY on a socket. Returns false if the socket does not support it.
pub fn enable(fd: ProgramFd) -> bool {
    let Some(state) = state(fd) else { return false };
    let epoch = u64::from(EPOCHS.fetch_add(1, Relaxed)) & EPOCH_MASK;
    state.store(epoch << 32, Relaxed);
    socket::allow_zerocopy(fd).is_ok()
}

/// True while no notification has reported that the kernel copies.
pub fn is_effective(fd: ProgramFd) -> bool {
    state(fd).is_some_and(|state| {
        let state = state.load(Relaxed);
        state != 0 && state & COPIED == 0
    })
}

/// Sends a message. Returns `None` if nothing was sent and the message must be sent by copying. Only one
/// thread at a time may send on the socket.
pub fn send(
    fd: ProgramFd,
    parts: &[Part],
    flags: i32,
    envelope: &Envelope,
) -> Option<Result<(usize, Token), Errno>> {
    let state = state(fd)?;
    let copied_bytes: usize = parts.iter().filter(|part| !part.is_lent()).map(|part| part.len()).sum();
    if parts.len() > MAX_PARTS || copied_bytes > MAX_COPIED_BYTES {
        return None;
    }
    let mut slot = pool::acquire()?;
    let bump = &mut slot.resources().bump;
    bump.reserve(MAX_COPIED_BYTES).ok()?;
    let mut iovecs = [iovec::Part::NONE; MAX_PARTS];
    for (iovec, part) in iovecs.iter_mut().zip(parts) {
        *iovec = part.iovec();
        // The kernel takes references to these bytes too, so they must not change after the call.
        if !part.is_lent() && !part.is_empty() {
            iovec.address = bump.append(part.address(), part.len()).ok()?;
        }
    }
    match socket::send(fd, &iovecs[..parts.len()], flags | libc::MSG_ZEROCOPY, envelope) {
        Ok(sent) => {
            // Only the lower 32 bits wrap, like the kernel's counter.
            let before = state.load(Relaxed);
            let next = before & !u64::from(u32::MAX) | u64::from((before as u32).wrapping_add(1));
            state.store(next, Relaxed);
            Some(Ok((sent, Token(before & !COPIED))))
        }
        // Too many pages are in flight (optmem_max, RLIMIT_MEMLOCK), or the socket does not support this.
        Err(Errno(libc::ENOBUFS | libc::ENOMEM | libc::EOPNOTSUPP | libc::EINVAL)) => None,
        Err(error) => Some(Err(error)),
    }
}

/// Reads a socket's notifications and calls `done` with the token of each completed message.
pub fn completions(fd: ProgramFd, done: &mut dyn FnMut(Token)) {
    let Some(state) = state(fd) else { return };
    // Bounded, because a socket may keep reporting errors.
    for _ in 0..=u16::MAX {
        match socket::next_completed(fd) {
            Ok(Some(completed)) => {
                let epoch = state.load(Relaxed) & !COPIED & !u64::from(u32::MAX);
                for number in 0..=completed.last.wrapping_sub(completed.first) {
                    done(Token(epoch | u64::from(completed.first.wrapping_add(number))));
                }
                if completed.was_copied {
                    state.fetch_or(COPIED, Relaxed);
                }
            }
            Ok(None) => {}
            Err(_) => return,
        }
    }
}
