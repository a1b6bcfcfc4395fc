//! What a stream's sender does: announces references, and puts a token into the stream for each.

use crate::board::{Announcement, Reference, Slot};
use crate::peers::{Held, Peer, Peers};
use smallvec::SmallVec;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::Part;

/// A part of a message.
#[derive(Clone, Copy)]
pub enum Piece<'a> {
    /// Bytes that go through the kernel.
    Literal(Part),
    /// Bytes of shared memory, which go by reference.
    Shared {
        /// The memory.
        held: &'a Held,
        /// Where the bytes begin in it.
        offset_bytes: usize,
        /// How many.
        len_bytes: usize,
    },
}

impl Piece<'_> {
    /// Its bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        match self {
            Self::Literal(part) => part.len_bytes,
            Self::Shared { len_bytes, .. } => *len_bytes,
        }
    }
}

/// The kernel's side of a stream's end.
pub trait Socket {
    /// Bytes that were given to it to be sent, ever. `None`: it cannot be told.
    fn sent_bytes(&self) -> Option<u64>;
    /// Sends these parts, without waiting; how many bytes it took.
    ///
    /// # Errors
    /// What the kernel says: EAGAIN where there is no room.
    fn send(&self, parts: &[Part]) -> Result<usize, Errno>;
}

/// The byte that stands for a reference. It says nothing: what counts is where it lies.
static TOKEN: u8 = 0;

/// A stream's receiver, as its sender knows it.
#[derive(Clone, Copy)]
pub struct Far<'a> {
    /// The process.
    pub peer: &'a Peer,
    /// Its slot.
    pub slot: &'a Slot,
    /// What it attends to when it attends.
    pub lane: u32,
}

/// Sends the pieces, references among them, without waiting. Nobody else sends at this end meanwhile. How many bytes of the
/// message are on their way; `None`: nothing was sent, and it cannot go by reference now.
///
/// # Errors
/// What the kernel says, where nothing was sent: EAGAIN where there is no room.
pub fn send(
    socket: &impl Socket,
    pieces: &[Piece<'_>],
    own: &Slot,
    far: Far<'_>,
    peers: &Peers,
) -> Option<Result<usize, Errno>> {
    own.sending.begin();
    let sent =
        if far.slot.receiving.attends(far.lane) { announced(socket, pieces, own, far, peers) } else { None };
    own.sending.end();
    sent
}

struct Announced<'a> {
    held: &'a Held,
    /// Index of its piece.
    piece: usize,
}

fn announced(
    socket: &impl Socket,
    pieces: &[Piece<'_>],
    own: &Slot,
    far: Far<'_>,
    peers: &Peers,
) -> Option<Result<usize, Errno>> {
    let mut at = socket.sent_bytes()?;
    let mut parts: SmallVec<[Part; 8]> = SmallVec::new();
    let mut announced: SmallVec<[Announced<'_>; 4]> = SmallVec::new();
    let consumed = far.slot.receiving.consumed();
    for (piece, of) in pieces.iter().enumerate() {
        let part = match *of {
            Piece::Literal(part) => part,
            Piece::Shared { held, offset_bytes, len_bytes } => {
                let Some(reference) = peers.share(held, offset_bytes, len_bytes, far.peer) else { break };
                if !own.sending.announce(&Announcement { at, reference }, consumed) {
                    peers.unshare(held, far.peer);
                    break;
                }
                announced.push(Announced { held, piece });
                Part { address: (&raw const TOKEN) as usize, len_bytes: 1 }
            }
        };
        at = at.wrapping_add(part.len_bytes as u64);
        parts.push(part);
    }
    if announced.is_empty() {
        return None;
    }
    let result = socket.send(&parts);
    let mut left_bytes = *result.as_ref().unwrap_or(&0);
    // Of the message's bytes; how many pieces went whole.
    let (mut sent_bytes, mut whole) = (0, 0);
    for (part, piece) in parts.iter().zip(pieces) {
        if left_bytes < part.len_bytes {
            sent_bytes += left_bytes;
            break;
        }
        left_bytes -= part.len_bytes;
        sent_bytes += piece.len_bytes();
        whole += 1;
    }
    let unsent = announced.iter().filter(|announced| announced.piece >= whole);
    let count = unsent.clone().count();
    if count > 0 {
        own.sending.take_back(count as u32);
        unsent.for_each(|announced| peers.unshare(announced.held, far.peer));
    }
    Some(result.map(|_| sent_bytes))
}

/// The reference's length that goes into one announcement, at most.
pub const MAX_REFERENCE_BYTES: usize = crate::pool::CHUNK_BYTES / 4;

const _: () = assert!(MAX_REFERENCE_BYTES < u32::MAX as usize && size_of::<Reference>() <= 32);
