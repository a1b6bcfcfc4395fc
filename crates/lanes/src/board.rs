//! The board: what a process tells its peers about its lanes, in a file in memory that only it can write and they map
//! read-only.
//!
//! ```text
//! board of S                                   board of R
//!   slot s: sending    produced, busy, ring      slot r: receiving   attention, consumed
//!   link l: taken, known chunks, returns         link m: …
//! ```
//!
//! A stream's sender *announces* a reference, the bytes of some segment, by the offset in the stream at which a single byte
//! stands for them, the *token*; then it sends the token. So whoever finds a byte in the kernel's socket finds in the ring
//! what it is: the ring is looked at after the kernel was asked how many bytes there are. An announcement whose token was not
//! sent is taken back before anything else is sent at its offset.
//!
//! What is read of another process's board is hostile: every word is read once, and may be anything.

use uncopy_sys::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};

/// Ends of streams that a process has lanes at, at most.
pub const MAX_SLOTS: usize = 1024;
/// Processes that one is linked with, at most.
pub const MAX_LINKS: usize = 64;
/// Announcements of a stream that were not consumed, at most.
pub const MAX_ANNOUNCEMENTS: u32 = if cfg!(loom) { 2 } else { 32 };
/// Returns to a peer that it has not taken, at most.
pub const MAX_RETURNS: u32 = 256;

/// Bytes of a segment of whichever process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The process whose memory it is.
    pub owner: u64,
    /// Which of its chunks.
    pub chunk: u32,
    /// First page in the chunk of the run of pages that is held.
    pub run: u32,
    /// Where the bytes begin in the chunk.
    pub offset_bytes: u32,
    /// How many they are; never 0.
    pub len_bytes: u32,
}

/// A reference and its token's offset in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Offset in the stream, modulo 2⁶⁴.
    pub at: u64,
    /// What the token stands for.
    pub reference: Reference,
}

/// Something that a holder says to the owner of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    /// Which of the owner's chunks.
    pub chunk: u32,
    /// First page of the run.
    pub run: u32,
    /// What it says.
    pub what: Said,
}

/// What a holder says of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It holds the run once less.
    Released,
    /// It has sent a reference to it on to this process.
    Shared(u64),
    /// It has not done so after all.
    NotShared(u64),
}

impl Said {
    const fn words(self) -> (u32, u64) {
        match self {
            Self::Released => (0, 0),
            Self::Shared(to) => (1, to),
            Self::NotShared(to) => (2, to),
        }
    }

    const fn of_words(kind: u32, to: u64) -> Self {
        match kind {
            1 => Self::Shared(to),
            2 => Self::NotShared(to),
            _ => Self::Released,
        }
    }
}

/// An announcement's words.
#[repr(C)]
#[derive(Debug, Default)]
struct Entry {
    at: AtomicU64,
    owner: AtomicU64,
    chunk: AtomicU32,
    run: AtomicU32,
    offset_bytes: AtomicU32,
    len_bytes: AtomicU32,
}

/// What a stream's sender tells.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Sending {
    /// The lane of the end that tells it; an earlier one's announcements were all received, or never will be.
    lane: AtomicU32,
    /// Announcements so far.
    produced: AtomicU32,
    /// The sender is between asking for attention and having sent its tokens.
    busy: AtomicU32,
    /// What could go by reference does not, because that does not pay: attention is in vain for now.
    withholds: AtomicU32,
    ring: [Entry; MAX_ANNOUNCEMENTS as usize],
}

/// What a stream's receiver tells.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Receiving {
    /// The lane whose tokens it understands; 0: none.
    attention: AtomicU32,
    /// Announcements that were received whole.
    consumed: AtomicU32,
    /// The last lane that was given up here: nothing of it is read any more.
    closed: AtomicU32,
    /// Odd while the receiver reads from the socket.
    turns: AtomicU32,
    /// Offset of the next byte that it reads; where the kernel does not count, since it attends.
    read_bytes: AtomicU64,
}

/// One end of a stream.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Slot {
    /// Of what is sent at this end.
    pub sending: Sending,
    /// Of what is received at this end.
    pub receiving: Receiving,
}

/// A return's words.
#[repr(C)]
#[derive(Debug, Default)]
struct ReturnEntry {
    to: AtomicU64,
    chunk: AtomicU32,
    run: AtomicU32,
    kind: AtomicU32,
}

/// What a process tells one of its peers.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct LinkPart {
    /// The peer; 0: none.
    peer: AtomicU64,
    /// Returns of the peer's that were taken.
    taken: AtomicU32,
    /// The peer's chunks below this are mapped.
    known_chunks: AtomicU32,
    /// Returns to the peer so far.
    produced: AtomicU32,
    ring: [ReturnEntry; MAX_RETURNS as usize],
}

/// The whole of it.
#[repr(C)]
#[derive(Debug)]
pub struct Board {
    /// Of links.
    pub links: [LinkPart; MAX_LINKS],
    /// Of ends.
    pub slots: [Slot; MAX_SLOTS],
}

impl Sending {
    /// The sender's: it is about to look whether the receiver attends. [`Receiving::attends`] comes after it.
    pub fn begin(&self) {
        self.busy.store(1, Relaxed);
        // With a fence on both sides, either the receiver that withdraws its attention sees this, or the sender sees that.
        fence(SeqCst);
    }

    /// The sender's: its tokens are sent, or taken back.
    pub fn end(&self) {
        self.busy.store(0, Release);
    }

    /// The receiver's, after it has withdrawn its attention: whether tokens may still come that it does not know of.
    pub fn is_busy(&self) -> bool {
        fence(SeqCst);
        self.busy.load(Acquire) != 0
    }

    /// Whether what could go by reference does not, because that does not pay.
    pub fn withholds(&self) -> bool {
        self.withholds.load(Relaxed) != 0
    }

    /// The same for a lane, for its receiver.
    pub fn withholds_at(&self, lane: u32) -> bool {
        self.withholds() && self.lane.load(Acquire) == lane
    }

    /// The sender's: whether that is so from here on.
    pub fn withhold(&self, withholds: bool) {
        if self.withholds() != withholds {
            self.withholds.store(withholds.into(), Relaxed);
        }
    }

    /// Announcements so far.
    pub fn produced(&self) -> u32 {
        self.produced.load(Acquire)
    }

    /// What is announced of a lane, for its receiver.
    #[must_use]
    pub const fn of(&self, lane: u32) -> Announcements<'_> {
        Announcements { sending: self, lane }
    }

    /// The sender's: how many announcements there is room for, where the receiver has consumed so many.
    #[must_use]
    pub fn room(&self, consumed: u32) -> u32 {
        MAX_ANNOUNCEMENTS.saturating_sub(self.produced.load(Relaxed).wrapping_sub(consumed))
    }

    /// The sender's: announces a reference. False where the receiver has not consumed enough of them; or where one of less was taken
    /// back at this offset, for which the receiver may have made room already.
    #[must_use]
    pub fn announce(&self, announcement: &Announcement, consumed: u32) -> bool {
        if self.room(consumed) == 0 {
            return false;
        }
        let produced = self.produced.load(Relaxed);
        let entry = &self.ring[(produced % MAX_ANNOUNCEMENTS) as usize];
        let Announcement { at, reference } = announcement;
        let (back_at, back_bytes) = (entry.at.load(Relaxed), entry.len_bytes.load(Relaxed));
        if back_at == *at && (1..reference.len_bytes).contains(&back_bytes) {
            return false;
        }
        entry.at.store(*at, Relaxed);
        entry.owner.store(reference.owner, Relaxed);
        entry.chunk.store(reference.chunk, Relaxed);
        entry.run.store(reference.run, Relaxed);
        entry.offset_bytes.store(reference.offset_bytes, Relaxed);
        entry.len_bytes.store(reference.len_bytes, Relaxed);
        self.produced.store(produced.wrapping_add(1), Release);
        true
    }

    /// The sender's: takes the last `count` announcements back, whose tokens were not sent.
    pub fn take_back(&self, count: u32) {
        self.produced.store(self.produced.load(Relaxed).wrapping_sub(count), Release);
    }

    /// The announcement with this number, if there is one.
    #[must_use]
    fn announcement(&self, number: u32) -> Option<Announcement> {
        let ahead = self.produced().wrapping_sub(number);
        if ahead == 0 || ahead > MAX_ANNOUNCEMENTS {
            return None;
        }
        let entry = &self.ring[(number % MAX_ANNOUNCEMENTS) as usize];
        let reference = Reference {
            owner: entry.owner.load(Relaxed),
            chunk: entry.chunk.load(Relaxed),
            run: entry.run.load(Relaxed),
            offset_bytes: entry.offset_bytes.load(Relaxed),
            len_bytes: entry.len_bytes.load(Relaxed),
        };
        Some(Announcement { at: entry.at.load(Relaxed), reference })
    }
}

/// What a sender announces of one lane: nothing once its slot is another end's, which would be taken for that lane's.
#[derive(Clone, Copy, Debug)]
pub struct Announcements<'a> {
    sending: &'a Sending,
    lane: u32,
}

impl Announcements<'_> {
    /// Whether there are others than the first `number`.
    #[must_use]
    pub fn has_beyond(&self, number: u32) -> bool {
        self.sending.produced() != number && self.are_current()
    }

    /// The announcement with this number, if there is one.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<Announcement> {
        self.sending.announcement(number).filter(|_| self.are_current())
    }

    /// Looked at behind what was announced: the next end's lane is written before anything of it.
    fn are_current(&self) -> bool {
        self.sending.lane.load(Acquire) == self.lane
    }
}

impl Receiving {
    /// The sender's: whether the receiver understands tokens of this lane. After [`Sending::begin`].
    #[must_use]
    pub fn attends(&self, lane: u32) -> bool {
        lane != 0 && self.attention.load(Acquire) == lane
    }

    /// The receiver's: from here on it understands tokens of this lane; 0: of none.
    pub fn attend(&self, lane: u32) {
        self.attention.store(lane, Release);
    }

    /// Announcements that were received whole: their entries may be used again.
    #[must_use]
    pub fn consumed(&self) -> u32 {
        self.consumed.load(Acquire)
    }

    /// The receiver's: it reads nothing of this lane any more.
    pub fn close(&self, lane: u32) {
        self.closed.store(lane, Release);
    }

    /// Whether nothing of this lane is read any more. Lanes of a slot have ascending numbers.
    #[must_use]
    pub fn has_closed(&self, lane: u32) -> bool {
        self.closed.load(Acquire) >= lane
    }

    /// The receiver's: it is about to read from the socket.
    pub fn begin_reading(&self) {
        self.turns.store(self.turns.load(Relaxed).wrapping_add(1), SeqCst);
    }

    /// The receiver's: it has read so many bytes.
    pub fn end_reading(&self, len_bytes: usize) {
        self.read_bytes.store(self.read_bytes.load(Relaxed).wrapping_add(len_bytes as u64), Relaxed);
        self.turns.store(self.turns.load(Relaxed).wrapping_add(1), SeqCst);
    }

    /// The receiver's, before it attends: the offset of the next byte that it reads.
    pub fn count_from(&self, read_bytes: u64) {
        self.read_bytes.store(read_bytes, Relaxed);
    }

    /// Offset of the next byte that the receiver reads, by its own count.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Relaxed)
    }

    /// The sender's: bytes that the receiver has read, if nothing is under way and `is_empty` says so of the socket: then
    /// they are what was sent. `None`: it reads just now.
    #[must_use]
    pub fn quiet_bytes(&self, is_empty: impl FnOnce() -> bool) -> Option<u64> {
        let before = self.turns.load(SeqCst);
        let read_bytes = self.read_bytes.load(Relaxed);
        let is_quiet = before.is_multiple_of(2) && is_empty() && self.turns.load(SeqCst) == before;
        is_quiet.then_some(read_bytes)
    }

    /// The receiver's: one announcement more was received whole.
    pub fn consume(&self) {
        self.consumed.store(self.consumed.load(Relaxed).wrapping_add(1), Release);
    }
}

impl Slot {
    /// The owner's: nothing was announced or consumed of a new lane.
    pub fn clear(&self, lane: u32) {
        self.sending.lane.store(lane, Release);
        self.receiving.attend(0);
        self.receiving.consumed.store(0, Relaxed);
        self.receiving.turns.store(0, Relaxed);
        self.receiving.read_bytes.store(0, Relaxed);
        self.sending.busy.store(0, Relaxed);
        self.sending.withholds.store(0, Relaxed);
        self.sending.produced.store(0, Release);
    }
}

impl LinkPart {
    /// The owner's: it tells this peer, which has not told it anything yet; 0: nobody.
    pub fn begin(&self, peer: u64) {
        self.taken.store(0, Relaxed);
        self.known_chunks.store(0, Relaxed);
        self.produced.store(0, Relaxed);
        self.peer.store(peer, Release);
    }

    /// The peer that is told; 0: none.
    #[must_use]
    pub fn peer(&self) -> u64 {
        self.peer.load(Acquire)
    }

    /// The owner's: the peer's chunks below `chunks` are mapped.
    pub fn know_chunks(&self, chunks: u32) {
        self.known_chunks.store(chunks, Release);
    }

    /// Whether a chunk of the peer's is mapped.
    #[must_use]
    pub fn knows_chunk(&self, chunk: u32) -> bool {
        chunk < self.known_chunks.load(Acquire)
    }

    /// The owner's: says something, unless the peer, which has taken `taken` returns, has no room for it.
    #[must_use]
    pub fn say(&self, said: &Return, taken: u32) -> bool {
        let produced = self.produced.load(Relaxed);
        if produced.wrapping_sub(taken) >= MAX_RETURNS {
            return false;
        }
        let entry = &self.ring[(produced % MAX_RETURNS) as usize];
        let (kind, to) = said.what.words();
        entry.kind.store(kind, Relaxed);
        entry.to.store(to, Relaxed);
        entry.chunk.store(said.chunk, Relaxed);
        entry.run.store(said.run, Relaxed);
        self.produced.store(produced.wrapping_add(1), Release);
        true
    }

    /// The peer's: the return with this number, if there is one.
    #[must_use]
    pub fn said(&self, number: u32) -> Option<Return> {
        let ahead = self.produced.load(Acquire).wrapping_sub(number);
        if ahead == 0 || ahead > MAX_RETURNS {
            return None;
        }
        let entry = &self.ring[(number % MAX_RETURNS) as usize];
        let what = Said::of_words(entry.kind.load(Relaxed), entry.to.load(Relaxed));
        Some(Return { chunk: entry.chunk.load(Relaxed), run: entry.run.load(Relaxed), what })
    }

    /// Returns of the peer's that this process has taken.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.taken.load(Acquire)
    }

    /// The owner's: it has taken one more of the peer's returns.
    pub fn take(&self) {
        self.taken.store(self.taken.load(Relaxed).wrapping_add(1), Release);
    }
}
