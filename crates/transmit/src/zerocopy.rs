//! The way by reference with completions: `sendmsg` with MSG_ZEROCOPY, for owners who leave their socket's error queue
//! to us.
//!
//! The kernel numbers a socket's messages; its notices name the numbers that it has done with, and say whether it
//! copied them after all (loopback, veth, a device without scatter-gather). A socket whose notices say so is not
//! sent to in this way any more.
//!
//! ```text
//! a word   │ copied (1) │ epoch of the socket (31) │ number of the next message (32) │
//! a token  │     0      │ epoch                    │ number of the message           │
//! ```

use crate::bump::AREA_BYTES;
use crate::part::Part;
use crate::pool;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec;
use uncopy_sys::socket::{self, Envelope};

/// Names what the kernel holds until it says that it is done. Never reused in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Descriptors that have a place.
const PLACES: usize = 1 << 16;
/// Parts of one message.
const MAX_PARTS: usize = 64;
/// Ordinary bytes of one message.
const MAX_BUMPED_BYTES: usize = AREA_BYTES / 4;
const COPIED: u64 = 1 << 63;
const EPOCH_MASK: u64 = (1 << 31) - 1;

static WORDS: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
static EPOCHS: AtomicU32 = AtomicU32::new(1);

fn word(fd: i32) -> Option<&'static AtomicU64> {
    WORDS.get(usize::try_from(fd).ok()?)
}

/// Prepares a socket; false: it cannot be sent to in this way.
pub fn own(fd: i32) -> bool {
    let Some(word) = word(fd) else { return false };
    let epoch = u64::from(EPOCHS.fetch_add(1, Relaxed)) & EPOCH_MASK;
    word.store(epoch << 32, Relaxed);
    socket::allow_zerocopy(fd).is_ok()
}

/// Whether notices have not said yet that the kernel copies.
pub fn pays(fd: i32) -> bool {
    word(fd).is_some_and(|word| {
        let word = word.load(Relaxed);
        word != 0 && word & COPIED == 0
    })
}

/// Sends a message; `None`: nothing was done, send it by copying. Only one thread at a time sends on the socket.
pub fn send(
    fd: i32,
    parts: &[Part],
    flags: i32,
    envelope: &Envelope,
) -> Option<Result<(usize, Token), Errno>> {
    let word = word(fd)?;
    let bumped: usize = parts.iter().filter(|part| !part.is_lent()).map(|part| part.len()).sum();
    if parts.len() > MAX_PARTS || bumped > MAX_BUMPED_BYTES {
        return None;
    }
    let mut taken = pool::take()?;
    let bump = &mut taken.tools().bump;
    bump.make_room(MAX_BUMPED_BYTES).ok()?;
    let mut iovecs = [iovec::Part::NONE; MAX_PARTS];
    for (iovec, part) in iovecs.iter_mut().zip(parts) {
        *iovec = part.iovec();
        // The kernel refers to these bytes as well.
        if !part.is_lent() && !part.is_empty() {
            iovec.address = bump.append(part.address(), part.len()).ok()?;
        }
    }
    match socket::send(fd, &iovecs[..parts.len()], flags | libc::MSG_ZEROCOPY, envelope) {
        Ok(sent) => {
            // The lower half alone goes round.
            let before = word.load(Relaxed);
            let next = before & !u64::from(u32::MAX) | u64::from((before as u32).wrapping_add(1));
            word.store(next, Relaxed);
            Some(Ok((sent, Token(before & !COPIED))))
        }
        // Too much is under way (optmem_max, RLIMIT_MEMLOCK), or it cannot be done here.
        Err(Errno(libc::ENOBUFS | libc::ENOMEM | libc::EOPNOTSUPP | libc::EINVAL)) => None,
        Err(error) => Some(Err(error)),
    }
}

/// Takes a socket's notices, and gives the token of each message that has completed.
pub fn completions(fd: i32, done: &mut dyn FnMut(Token)) {
    let Some(word) = word(fd) else { return };
    // No more than there can be: a socket that reports errors without end is no reason to go on without end.
    for _ in 0..=u16::MAX {
        match socket::next_completed(fd) {
            Ok(Some(completed)) => {
                let epoch = word.load(Relaxed) & !COPIED & !u64::from(u32::MAX);
                for number in 0..=completed.last.wrapping_sub(completed.first) {
                    done(Token(epoch | u64::from(completed.first.wrapping_add(number))));
                }
                if completed.was_copied {
                    word.fetch_or(COPIED, Relaxed);
                }
            }
            Ok(None) => {}
            Err(_) => return,
        }
    }
}
