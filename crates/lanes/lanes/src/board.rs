//! The board: the state of a process's lanes, in a memory file that only this process can write and its peers map
//! read-only.
//!
//! ```text
//! board of S                                   board of R
//!   slot s: sending    produced, busy, ring      slot r: receiving   attention, consumed
//!   link l: taken, known chunks, returns         link m: …
//! ```
//!
//! A sender first *announces* a reference to bytes of a segment, with the stream offset of the *token*, the single
//! byte that stands for the reference. Then it sends the token. A receiver asks the kernel how many bytes can be
//! read before it looks at the ring, so the ring lists every token among those bytes. If a token could not be
//! sent, its announcement is withdrawn before anything else is sent at that offset.
//!
//! Another process's board is untrusted: each word is read once, and may have any value.

use uncopy_sys::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};

/// Maximum number of stream ends of a process that may be lanes.
pub const MAX_SLOTS: usize = 1024;
/// Maximum number of peers that a process is linked with.
pub const MAX_LINKS: usize = 64;
/// Maximum number of announcements per stream that the receiver has not consumed.
pub const MAX_ANNOUNCEMENTS: u32 = if cfg!(loom) { 2 } else { 32 };
/// Maximum number of returns that a peer has not read.
pub const MAX_RETURNS: u32 = 256;

/// Bytes in a segment of any process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Id of the process that owns the memory.
    pub owner: u64,
    /// Number of the chunk among the owner's.
    pub chunk: u32,
    /// First page, within the chunk, of the run that contains the bytes.
    pub run: u32,
    /// Offset of the first byte in the chunk.
    pub offset_bytes: u32,
    /// Length in bytes; never 0.
    pub len_bytes: u32,
}

/// A reference, and the stream offset of its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Offset in the stream, modulo 2⁶⁴.
    pub at: u64,
    /// Bytes that the token stands for.
    pub reference: Reference,
}

/// Notice from a holder of a run to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    /// Number of the chunk among the owner's.
    pub chunk: u32,
    /// First page of the run.
    pub run: u32,
    /// Change of the run's holders.
    pub kind: ReturnKind,
}

/// Change of the holders of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnKind {
    /// The holder has dropped one of its references.
    Released,
    /// The holder has sent a reference on to this process.
    Shared(u64),
    /// The holder withdraws an earlier `Shared`: the reference was not sent.
    NotShared(u64),
}

impl ReturnKind {
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

/// Sender's half of a slot.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Sending {
    /// Lane of the end that owns the slot now. Announcements of earlier lanes were all received, or never will be.
    lane: AtomicU32,
    /// Total number of announcements.
    produced: AtomicU32,
    /// Nonzero from before the sender checks whether references are accepted until its tokens are sent.
    busy: AtomicU32,
    /// Nonzero while the sender sends large parts through the kernel because references do not pay.
    pauses_refs: AtomicU32,
    ring: [Entry; MAX_ANNOUNCEMENTS as usize],
}

/// Receiver's half of a slot.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Receiving {
    /// Lane for which the receiver accepts references; 0: none.
    attention: AtomicU32,
    /// Number of announcements received completely.
    consumed: AtomicU32,
    /// Latest lane closed at this end: it is no longer read.
    closed: AtomicU32,
    /// Sequence counter, odd while the receiver reads from the socket.
    read_sequence: AtomicU32,
    /// Stream offset of the next byte to read; for sockets whose kernel keeps no count, relative to where the
    /// receiver began to accept references.
    read_bytes: AtomicU64,
}

/// Shared state of one end of a stream.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Slot {
    /// Outgoing direction of this end.
    pub sending: Sending,
    /// Incoming direction of this end.
    pub receiving: Receiving,
}

#[repr(C)]
#[derive(Debug, Default)]
struct ReturnEntry {
    to: AtomicU64,
    chunk: AtomicU32,
    run: AtomicU32,
    kind: AtomicU32,
}

/// Part of a board that is addressed to one peer.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct LinkPart {
    /// Id of the peer; 0: unused.
    peer: AtomicU64,
    /// Number of the peer's returns that were read.
    taken: AtomicU32,
    /// Number of the peer's chunks that are mapped: those with smaller numbers.
    known_chunks: AtomicU32,
    /// Total number of returns written for the peer.
    produced: AtomicU32,
    ring: [ReturnEntry; MAX_RETURNS as usize],
}

/// Shared state of a process.
#[repr(C)]
#[derive(Debug)]
pub struct Board {
    /// Parts for peers, by link index.
    pub links: [LinkPart; MAX_LINKS],
    /// Stream ends, by slot number.
    pub slots: [Slot; MAX_SLOTS],
}

impl Sending {
    /// Marks the sender as busy. To be called before [`Receiving::accepts_refs`], by the sender.
    pub fn begin(&self) {
        self.busy.store(1, Relaxed);
        // The fences on both sides form a Dekker pair: either a receiver that stops accepting references sees
        // `busy`, or the sender sees that they are not accepted.
        fence(SeqCst);
    }

    /// Marks the sender as idle, once its tokens are sent or withdrawn.
    pub fn end(&self) {
        self.busy.store(0, Release);
    }

    /// True if unknown tokens may still arrive. For the receiver, after it has stopped accepting references.
    pub fn is_busy(&self) -> bool {
        fence(SeqCst);
        self.busy.load(Acquire) != 0
    }

    /// True if the sender pauses references because they do not pay.
    pub fn pauses_refs(&self) -> bool {
        self.pauses_refs.load(Relaxed) != 0
    }

    /// True if the sender pauses references on `lane`. For the receiver.
    pub fn pauses_refs_at(&self, lane: u32) -> bool {
        self.pauses_refs() && self.lane.load(Acquire) == lane
    }

    /// Pauses or resumes references. For the sender.
    pub fn set_pauses_refs(&self, pauses_refs: bool) {
        if self.pauses_refs() != pauses_refs {
            self.pauses_refs.store(pauses_refs.into(), Relaxed);
        }
    }

    /// Returns the total number of announcements.
    pub fn produced(&self) -> u32 {
        self.produced.load(Acquire)
    }

    /// Returns the announcements of a lane, for its receiver.
    #[must_use]
    pub const fn of(&self, lane: u32) -> Announcements<'_> {
        Announcements { sending: self, lane }
    }

    /// Returns the free entries of the ring, given the receiver's count of consumed ones. For the sender.
    #[must_use]
    pub fn room(&self, consumed: u32) -> u32 {
        MAX_ANNOUNCEMENTS.saturating_sub(self.produced.load(Relaxed).wrapping_sub(consumed))
    }

    /// Announces a reference. For the sender. Returns false if the ring is full, or if a smaller reference was
    /// withdrawn at this offset, since the receiver may already have sized its buffer for that one.
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

    /// Withdraws the last `count` announcements, whose tokens were not sent. For the sender.
    pub fn withdraw_last(&self, count: u32) {
        self.produced.store(self.produced.load(Relaxed).wrapping_sub(count), Release);
    }

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

/// A sender's announcements on one lane; none once another end has the slot.
#[derive(Clone, Copy, Debug)]
pub struct Announcements<'a> {
    sending: &'a Sending,
    lane: u32,
}

impl Announcements<'_> {
    /// True if there are announcements beyond the first `number`.
    #[must_use]
    pub fn has_more_than(&self, number: u32) -> bool {
        self.sending.produced() != number && self.are_current()
    }

    /// Returns the announcement with this number, if there is one.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<Announcement> {
        self.sending.announcement(number).filter(|_| self.are_current())
    }

    /// True if the slot still belongs to this lane. Checked after an entry is read: a new owner writes its lane
    /// first.
    fn are_current(&self) -> bool {
        self.sending.lane.load(Acquire) == self.lane
    }
}

impl Receiving {
    /// True if the receiver accepts references on this lane. For the sender, after [`Sending::begin`].
    #[must_use]
    pub fn accepts_refs(&self, lane: u32) -> bool {
        lane != 0 && self.attention.load(Acquire) == lane
    }

    /// Starts accepting references on this lane, or on none if it is 0. For the receiver.
    pub fn accept_refs(&self, lane: u32) {
        self.attention.store(lane, Release);
    }

    /// Returns the number of announcements received completely, whose entries are free again.
    #[must_use]
    pub fn consumed(&self) -> u32 {
        self.consumed.load(Acquire)
    }

    /// Stops reading this lane. For the receiver.
    pub fn close(&self, lane: u32) {
        self.closed.store(lane, Release);
    }

    /// True if this lane is no longer read. The lanes of a slot have ascending numbers.
    #[must_use]
    pub fn has_closed(&self, lane: u32) -> bool {
        self.closed.load(Acquire) >= lane
    }

    /// Marks the start of a read from the socket. For the receiver.
    pub fn begin_reading(&self) {
        self.read_sequence.store(self.read_sequence.load(Relaxed).wrapping_add(1), SeqCst);
    }

    /// Marks the end of a read of `len_bytes` bytes. For the receiver.
    pub fn end_reading(&self, len_bytes: usize) {
        self.read_bytes.store(self.read_bytes.load(Relaxed).wrapping_add(len_bytes as u64), Relaxed);
        self.read_sequence.store(self.read_sequence.load(Relaxed).wrapping_add(1), SeqCst);
    }

    /// Sets the offset of the next byte to read. For the receiver, before it accepts references.
    pub fn count_from(&self, read_bytes: u64) {
        self.read_bytes.store(read_bytes, Relaxed);
    }

    /// Returns the offset of the next byte to read, by the receiver's own count.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Relaxed)
    }

    /// Returns the number of bytes that the receiver has read, or `None` if a read is in progress or `is_empty` is
    /// false. With an empty socket this is the number of bytes sent. For the sender.
    #[must_use]
    pub fn read_bytes_if_empty(&self, is_empty: impl FnOnce() -> bool) -> Option<u64> {
        let before = self.read_sequence.load(SeqCst);
        let read_bytes = self.read_bytes.load(Relaxed);
        let is_quiet = before.is_multiple_of(2) && is_empty() && self.read_sequence.load(SeqCst) == before;
        is_quiet.then_some(read_bytes)
    }

    /// Counts an announcement that was received completely. For the receiver.
    pub fn consume(&self) {
        self.consumed.store(self.consumed.load(Relaxed).wrapping_add(1), Release);
    }
}

impl Slot {
    /// Resets the slot for a new lane, without announcements. For the owner.
    pub fn clear(&self, lane: u32) {
        self.sending.lane.store(lane, Release);
        self.receiving.accept_refs(0);
        self.receiving.consumed.store(0, Relaxed);
        self.receiving.read_sequence.store(0, Relaxed);
        self.receiving.read_bytes.store(0, Relaxed);
        self.sending.busy.store(0, Relaxed);
        self.sending.pauses_refs.store(0, Relaxed);
        self.sending.produced.store(0, Release);
    }
}

impl LinkPart {
    /// Assigns this part to a peer that has not written anything yet; 0: to nobody. For the owner.
    pub fn begin(&self, peer: u64) {
        self.taken.store(0, Relaxed);
        self.known_chunks.store(0, Relaxed);
        self.produced.store(0, Relaxed);
        self.peer.store(peer, Release);
    }

    /// Returns the id of the peer; 0: none.
    #[must_use]
    pub fn peer(&self) -> u64 {
        self.peer.load(Acquire)
    }

    /// Publishes that the peer's chunks below `chunks` are mapped. For the owner.
    pub fn publish_mapped_chunks(&self, chunks: u32) {
        self.known_chunks.store(chunks, Release);
    }

    /// True if that chunk of the peer's is mapped.
    #[must_use]
    pub fn has_mapped_chunk(&self, chunk: u32) -> bool {
        chunk < self.known_chunks.load(Acquire)
    }

    /// Writes a return, given the peer's count of returns read. Returns false if the ring is full. For the owner.
    #[must_use]
    pub fn push_return(&self, returned: &Return, taken: u32) -> bool {
        let produced = self.produced.load(Relaxed);
        if produced.wrapping_sub(taken) >= MAX_RETURNS {
            return false;
        }
        let entry = &self.ring[(produced % MAX_RETURNS) as usize];
        let (kind, to) = returned.kind.words();
        entry.kind.store(kind, Relaxed);
        entry.to.store(to, Relaxed);
        entry.chunk.store(returned.chunk, Relaxed);
        entry.run.store(returned.run, Relaxed);
        self.produced.store(produced.wrapping_add(1), Release);
        true
    }

    /// Returns the return with this number, if there is one. For the peer.
    #[must_use]
    pub fn return_at(&self, number: u32) -> Option<Return> {
        let ahead = self.produced.load(Acquire).wrapping_sub(number);
        if ahead == 0 || ahead > MAX_RETURNS {
            return None;
        }
        let entry = &self.ring[(number % MAX_RETURNS) as usize];
        let kind = ReturnKind::of_words(entry.kind.load(Relaxed), entry.to.load(Relaxed));
        Some(Return { chunk: entry.chunk.load(Relaxed), run: entry.run.load(Relaxed), kind })
    }

    /// Returns the number of the peer's returns that this process has read.
    #[must_use]
    pub fn returns_read(&self) -> u32 {
        self.taken.load(Acquire)
    }

    /// Counts one of the peer's returns as read. For the owner.
    pub fn mark_return_read(&self) {
        self.taken.store(self.taken.load(Relaxed).wrapping_add(1), Release);
    }
}
