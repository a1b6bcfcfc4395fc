//! Hostile peers whose words are arbitrary bytes, for fuzzing (`fuzz/`) and for tests with random bytes. Whatever
//! a peer writes, this process touches nothing outside the memory that the peer shares, and receives no more than
//! there is.

use crate::board::{Announcements, Board, LinkPart, Slot};
use crate::lane_thread::board_bytes;
use crate::peers::{HeldBytes, Peer, Peers};
use crate::pool::CHUNK_BYTES;
use crate::protocol::Message;
use crate::receive::{Next, Receiver, Socket};
use std::cell::Cell;
use std::sync::{Mutex, OnceLock};
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::SharedMemory;
use uncopy_sys::sync::Arc;

const LANE: u32 = 1;
const PEER: u64 = 2;
const THIS: u64 = 1;
const MAX_RECEIVES: usize = 64;

/// Parses the words of a message; those that parse must be the words of the parsed message.
///
/// # Panics
/// If they are not.
pub fn message_words(data: &[u8]) {
    let words: Vec<u64> =
        data.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes)).collect();
    if let Some(message) = Message::parse(&words) {
        assert_eq!(message.words().as_slice(), words, "{message:?}");
    }
}

/// A stream whose length and offset the peer chooses.
struct Offered {
    unread: Cell<usize>,
    read: Cell<u64>,
}

impl Offered {
    fn take(&self, len_bytes: usize) {
        self.unread.set(self.unread.get() - len_bytes);
        self.read.set(self.read.get().wrapping_add(len_bytes as u64));
    }
}

impl Socket for Offered {
    fn unread(&self) -> Result<usize, Errno> {
        Ok(self.unread.get())
    }

    fn read_bytes(&self, _unread: usize) -> Option<u64> {
        Some(self.read.get())
    }

    fn take_token(&self) -> Result<(), Errno> {
        if self.unread.get() == 0 {
            return Err(Errno(libc::EAGAIN));
        }
        self.take(1);
        Ok(())
    }
}

/// A linked peer that shares one chunk.
struct Stage {
    peers: Peers,
    theirs: &'static Board,
    own: &'static Board,
}

fn board() -> Option<&'static Board> {
    let shared: &'static SharedMemory =
        Box::leak(Box::new(SharedMemory::make(c"board", board_bytes()).ok()?));
    // SAFETY: the mapping is a page-aligned `Board`, never unmapped; zero is valid for its atomics.
    Some(unsafe { &*(shared.base() as *const Board) })
}

impl Stage {
    fn new() -> Option<Self> {
        let own = board()?;
        own.links[0].begin(PEER);
        let shared = SharedMemory::make(c"board", board_bytes()).ok()?;
        // SAFETY: the mapping has the length of a `Board` and is page-aligned; `peer`, which owns it, lives as
        // long as the stage; any bytes are valid for a board's atomics.
        let theirs = unsafe { &*(shared.base() as *const Board) };
        let peer = Arc::new(Peer::new(PEER, shared, 0, &own.links[0]));
        peer.add_chunk(SharedMemory::make(c"chunk", CHUNK_BYTES).ok()?);
        let peers = Peers::new(THIS);
        let _ = peers.add(peer);
        Some(Self { peers, theirs, own })
    }

    /// Overwrites the peer's first slot with these bytes.
    fn send(&self, data: &[u8]) {
        let slot = &raw const self.theirs.slots[0];
        let len_bytes = data.len().min(size_of::<Slot>());
        // SAFETY: `slot` points to the peer's first slot, at least `len_bytes` long and writable; it consists of
        // atomics, for which any bytes are valid, and no other thread uses it.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), slot.cast_mut().cast(), len_bytes) };
        // With another lane, the announcements would be ignored.
        // SAFETY: the lane is the slot's first word, aligned as the slot is; no other thread uses it.
        unsafe { slot.cast_mut().cast::<u32>().write(LANE) };
    }

    /// Reads the returns that were written for the peer, so that their ring does not fill up.
    fn receive_next(&self) {
        let (theirs, own): (&LinkPart, &LinkPart) = (&self.theirs.links[0], &self.own.links[0]);
        while own.return_at(theirs.returns_read()).is_some() {
            theirs.mark_return_read();
        }
        if let Some(peer) = self.peers.find(PEER) {
            while !peer.flush_returns() {
                while own.return_at(theirs.returns_read()).is_some() {
                    theirs.mark_return_read();
                }
            }
        }
    }

    fn release(&self, held: Arc<HeldBytes>) {
        if let Some(held) = Arc::into_inner(held) {
            self.peers.release(held);
        }
    }

    /// Receives until nothing is left or the sender is found to be broken.
    fn receive(&self, offered: &Offered, far: Announcements<'_>) {
        let own = &self.own.slots[0];
        let mut receiver = Receiver::default();
        for _ in 0..MAX_RECEIVES {
            let _ = receiver.receivable(offered.unread.get(), offered.read.get(), far);
            if let Some(due) = receiver.due(offered.read.get(), far).filter(|_| offered.unread.get() > 0) {
                offered.take(1);
                match receiver.resolve_due(due, far, own, &self.peers) {
                    Some(Ok(held)) => {
                        touch(&held);
                        self.peers.release(held);
                    }
                    Some(Err(_)) => break,
                    None => {}
                }
                continue;
            }
            match receiver.next(offered, far, &self.peers) {
                Next::Nothing | Next::Broken(_) => break,
                Next::Literal(most) | Next::Before(most) => {
                    assert!(most > 0 && most <= offered.unread.get(), "{most} of {}", offered.unread.get());
                    offered.take(most);
                    receiver.note_literal(most);
                }
                Next::Reference { held, taken_bytes } => {
                    touch(held);
                    let rest_bytes = held.len_bytes() - taken_bytes;
                    if let Ok(Some(done)) = receiver.note_delivered(rest_bytes.div_ceil(2), offered, own) {
                        self.release(done);
                    }
                }
            }
        }
        for held in receiver.end(far, own, &self.peers) {
            self.peers.release(held);
        }
    }
}

fn touch(held: &HeldBytes) {
    for at in [held.address(), held.address() + held.len_bytes() - 1] {
        // SAFETY: `at` lies within a held range, which must be mapped; a signal otherwise is the failure looked
        // for.
        std::hint::black_box(unsafe { std::ptr::read_volatile(at as *const u8) });
    }
}

/// Receives from a stream whose length, offset and sender's board are taken from `data`.
///
/// # Panics
/// If more is received than there is, or memory for a peer is missing.
pub fn sender(data: &[u8]) {
    static STAGE: OnceLock<Mutex<Stage>> = OnceLock::new();
    let Some((head, words)) = data.split_first_chunk::<4>() else { return };
    let stage = STAGE.get_or_init(|| Mutex::new(Stage::new().expect("memory")));
    let stage = stage.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let [unread, read] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_ne_bytes);
    let offered = Offered { unread: Cell::new(usize::from(unread)), read: Cell::new(u64::from(read)) };
    stage.own.slots[0].clear(LANE);
    stage.send(words);
    stage.receive(&offered, stage.theirs.slots[0].sending.of(LANE));
    stage.receive_next();
}
