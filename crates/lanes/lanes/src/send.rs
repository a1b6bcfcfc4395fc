//! A stream's sender: announces references, and puts a token into the stream for each.

use crate::board::{Announcement, Reference, Slot};
use crate::peers::{HeldBytes, Peer, Peers};
use smallvec::SmallVec;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::Part;

/// A part of a message.
#[derive(Clone, Copy)]
pub enum Piece<'a> {
    /// Bytes that go through the kernel.
    Literal(Part),
    /// Bytes of shared memory, sent by reference.
    Shared {
        /// Memory that contains the bytes.
        held: &'a HeldBytes,
        /// Offset of the first byte in `held`.
        offset_bytes: usize,
        /// Length in bytes.
        len_bytes: usize,
    },
}

impl Piece<'_> {
    /// Returns the length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        match self {
            Self::Literal(part) => part.len_bytes,
            Self::Shared { len_bytes, .. } => *len_bytes,
        }
    }
}

/// Kernel side of a stream end.
pub trait Socket {
    /// Returns the total number of bytes given to the socket. `None` if it is unknown.
    fn sent_bytes(&self) -> Option<u64>;
    /// Sends parts without blocking; returns the number of bytes sent.
    ///
    /// # Errors
    /// The error of the system call; EAGAIN if there is no room.
    fn send(&self, parts: &[Part]) -> Result<usize, Errno>;
}

/// Byte sent for a reference. Its value has no meaning, only its offset.
static TOKEN: u8 = 0;

/// A stream's remote end, as the sender sees it.
#[derive(Clone, Copy)]
pub struct RemoteSlot<'a> {
    /// Process that has the remote end.
    pub peer: &'a Peer,
    /// Slot of the remote end.
    pub slot: &'a Slot,
    /// Lane for which the remote end accepts references.
    pub lane: u32,
}

/// Sends pieces without blocking, references among them. Nobody else sends at this end meanwhile. Returns the
/// number of the message's bytes sent; `None` if nothing was sent, and references are not possible now.
///
/// # Errors
/// The error of the system call, if nothing was sent; EAGAIN if there is no room.
pub fn send(
    socket: &impl Socket,
    pieces: &[Piece<'_>],
    own: &Slot,
    far: RemoteSlot<'_>,
    peers: &Peers,
) -> Option<Result<usize, Errno>> {
    own.sending.begin();
    let sent = if far.slot.receiving.accepts_refs(far.lane) {
        announced(socket, pieces, own, far, peers)
    } else {
        None
    };
    own.sending.end();
    sent
}

struct Announced<'a> {
    held: &'a HeldBytes,
    /// Index of the piece referred to.
    piece: usize,
}

fn announced(
    socket: &impl Socket,
    pieces: &[Piece<'_>],
    own: &Slot,
    far: RemoteSlot<'_>,
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
    // Bytes of the message that were sent, and pieces that were sent completely.
    let (mut sent_bytes, mut complete_pieces) = (0, 0);
    for (part, piece) in parts.iter().zip(pieces) {
        if left_bytes < part.len_bytes {
            sent_bytes += left_bytes;
            break;
        }
        left_bytes -= part.len_bytes;
        sent_bytes += piece.len_bytes();
        complete_pieces += 1;
    }
    let unsent = announced.iter().filter(|announced| announced.piece >= complete_pieces);
    let count = unsent.clone().count();
    if count > 0 {
        own.sending.withdraw_last(count as u32);
        unsent.for_each(|announced| peers.unshare(announced.held, far.peer));
    }
    Some(result.map(|_| sent_bytes))
}

/// Maximum length of a reference, bytes; longer parts take several.
pub const MAX_REFERENCE_BYTES: usize = crate::pool::CHUNK_BYTES / 4;

const _: () = assert!(MAX_REFERENCE_BYTES < u32::MAX as usize && size_of::<Reference>() <= 32);
