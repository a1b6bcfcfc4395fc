//! The ends of streams that may become lanes: what is known of each, by its descriptor.
//!
//! ```text
//! large call ──► known (a slot of the board) ──► told to all peers ──► bound (the other end is known)
//!                                                                        │ large input: attends
//!                 close, exec, SCM_RIGHTS, fork, what cannot be followed ▼
//!                 ◄─────────────────────────────────────────────── literal for good
//! ```

extern crate alloc;
use crate::board::{Board, MAX_SLOTS, Slot};
use crate::outcome;
use crate::peers::Peer;
use crate::protocol::Stream;
use crate::receive::Receiver;
use alloc::collections::BTreeMap;
use uncopy_core::streams::Outcome;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::sync::Arc;
use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release, Ordering::SeqCst, fence,
};

/// The other end, as far as it is known.
pub struct Far {
    /// Its process.
    pub peer: Arc<Peer>,
    /// Its slot there.
    pub slot: u32,
    /// What it attends to when it attends.
    pub lane: u32,
}

impl Far {
    /// Whether it receives references.
    #[must_use]
    pub fn attends(&self) -> bool {
        self.peer.slot(self.slot).is_some_and(|slot| slot.receiving.attends(self.lane))
    }

    /// Whether it withholds references for now.
    #[must_use]
    pub fn withholds(&self) -> bool {
        !self.peer.is_gone()
            && self.peer.slot(self.slot).is_some_and(|slot| slot.sending.withholds_at(self.lane))
    }

    fn is(&self, other: &Self) -> bool {
        (self.peer.id(), self.slot, self.lane) == (other.peer.id(), other.slot, other.lane)
    }
}

/// An end of a stream.
pub struct End {
    /// The stream from this end.
    pub stream: Stream,
    /// The socket's own number, by which a descriptor is known to be still the same one's.
    pub cookie: u64,
    /// Its slot of this process's board.
    pub slot: u32,
    /// What it attends to when it attends; never 0.
    pub lane: u32,
    far: Guarded<Option<Arc<Far>>>,
    is_bound: AtomicBool,
    /// It counts as one whose other end is not known.
    is_unpaired: AtomicBool,
    /// Literal for good.
    has_ended: AtomicBool,
    is_attentive: AtomicBool,
    /// Large receives that are to come plainly before it attends again; how many those were the last time.
    backoff: AtomicU64,
    /// How far what is received is.
    pub receiver: Guarded<Receiver>,
    /// One that sends references has it alone; literal sends count themselves in.
    sends: AtomicU32,
    /// Bytes that were sent, where the kernel does not count them; [`UNKNOWN`]: it was not found out yet.
    sent_bytes: AtomicU64,
}

/// See [`End`].
const UNKNOWN: u64 = u64::MAX;
/// Large receives before a stream attends again, at most.
const MAX_BACKOFF: u64 = 4096;
/// Of [`End`]'s sends: one sends references.
const ALONE: u32 = 1 << 31;

impl End {
    fn new(stream: Stream, cookie: u64, slot: u32, lane: u32) -> Self {
        Self {
            stream,
            cookie,
            slot,
            lane,
            far: Guarded::new(None),
            is_bound: AtomicBool::new(false),
            is_unpaired: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            is_attentive: AtomicBool::new(false),
            backoff: AtomicU64::new(0),
            receiver: Guarded::new(Receiver::default()),
            sends: AtomicU32::new(0),
            sent_bytes: AtomicU64::new(UNKNOWN),
        }
    }

    /// The other end; `None`: it is not known.
    #[must_use]
    pub fn far(&self) -> Option<Arc<Far>> {
        if !self.is_bound.load(Acquire) { None } else { self.far.lock().clone() }
    }

    /// Whether it receives references.
    #[inline]
    #[must_use]
    pub fn is_attentive(&self) -> bool {
        self.is_attentive.load(Acquire)
    }

    /// It is literal for good, because of what is going on elsewhere.
    pub fn end(&self) {
        self.has_ended.store(true, Release);
    }

    /// It is literal for good, which is what becomes of it.
    pub fn end_as(&self, outcome: Outcome) {
        if !self.has_ended.swap(true, AcqRel) {
            self.count_paired();
            outcome::add(outcome);
        }
    }

    /// Whether it is literal for good.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Acquire)
    }

    /// It counts as one whose other end is not known, until that is found.
    fn count_unpaired(&self) {
        self.is_unpaired.store(true, Release);
        outcome::add(Outcome::Unpaired);
    }

    fn count_paired(&self) {
        if self.is_unpaired.swap(false, AcqRel) {
            outcome::remove(Outcome::Unpaired);
        }
    }

    /// The other end was found; whether one was before. Where that was another one, a second process has that end, or had: nobody
    /// knows whose tokens come.
    fn bind(&self, far: Far) -> bool {
        let known = &mut *self.far.lock();
        if let Some(known) = known {
            if !known.is(&far) {
                self.end_as(Outcome::Shared);
            }
            return true;
        }
        *known = Some(Arc::new(far));
        self.count_paired();
        self.is_bound.swap(true, AcqRel)
    }

    /// From here on it receives references.
    pub fn attend(&self, own: &Slot) {
        if !self.has_ended() && !self.is_attentive.swap(true, Release) {
            own.receiving.attend(self.lane);
        }
    }

    /// From here on it is sent none.
    pub fn withdraw(&self, own: &Slot) {
        if self.is_attentive.swap(false, Release) {
            own.receiving.attend(0);
        }
    }

    /// Withdraws its attention because nothing comes by reference; whether it did. Each time it takes longer until it attends again,
    /// unless the sender says when that is: it `withholds` references for now.
    /// Ends that count for themselves attend for good: a sender does not begin to count twice.
    pub fn lose_interest(&self, own: &Slot, withholds: bool) -> bool {
        let loses = matches!(self.stream, Stream::Tcp { .. });
        if loses {
            let last = self.backoff.load(Relaxed) >> 32;
            let longer = (last * 4).clamp(1, MAX_BACKOFF);
            let (next, wait) = if withholds { (last.max(1), 0) } else { (longer, longer) };
            self.backoff.store(next << 32 | wait, Relaxed);
            self.withdraw(own);
        }
        loses
    }

    /// Whether it is time to attend, after a large part came plainly.
    pub fn is_due(&self) -> bool {
        let backoff = self.backoff.load(Relaxed);
        let is_due = backoff as u32 == 0;
        if !is_due {
            self.backoff.store(backoff - 1, Relaxed);
        }
        is_due
    }

    /// Whether it has not lost interest yet.
    pub fn is_first(&self) -> bool {
        self.backoff.load(Relaxed) == 0
    }

    /// Takes the right to send references; `None`: somebody else sends just now, or it is literal for good.
    #[must_use]
    pub fn send_alone(&self) -> Option<Alone<'_>> {
        let alone = self.sends.compare_exchange(0, ALONE, Acquire, Relaxed).ok().map(|_| Alone(self))?;
        // With a fence on both sides, either this sees that the end has ended, or who ends it waits.
        fence(SeqCst);
        (!self.has_ended()).then_some(alone)
    }

    /// Waits for whoever sends references: it is literal for good, and whoever takes the right from here on sees that.
    pub fn await_references(&self) {
        fence(SeqCst);
        while self.sends.load(Acquire) & ALONE != 0 {
            // A few system calls that do not wait.
            uncopy_sys::thread::pause();
        }
    }

    /// Counts a literal send in, after whoever sends references.
    pub fn begin_literal(&self) {
        loop {
            let sends = self.sends.load(Relaxed);
            if sends & ALONE != 0 {
                // A few system calls that do not wait.
                uncopy_sys::thread::pause();
            } else if self.sends.compare_exchange(sends, sends + 1, Acquire, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// It is over.
    pub fn end_literal(&self) {
        self.sends.fetch_sub(1, Release);
    }

    /// Bytes that were sent by this process's count, if it has one.
    #[must_use]
    pub fn sent_bytes(&self) -> Option<u64> {
        Some(self.sent_bytes.load(Relaxed)).filter(|bytes| *bytes != UNKNOWN)
    }

    /// So many bytes were sent until now, says the other end.
    pub fn count_from(&self, sent_bytes: u64) {
        self.sent_bytes.store(sent_bytes, Relaxed);
    }

    /// Bytes went to the socket.
    pub fn count_sent(&self, len_bytes: usize) {
        if self.sent_bytes.load(Relaxed) != UNKNOWN {
            self.sent_bytes.fetch_add(len_bytes as u64, Relaxed);
        }
    }
}

/// The right to send references at an end.
pub struct Alone<'a>(&'a End);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.sends.fetch_and(!ALONE, Release);
    }
}

struct Inner {
    by_fd: BTreeMap<i32, Arc<End>>,
    by_stream: BTreeMap<Key, Arc<End>>,
    free_slots: Vec<u32>,
    /// Slots of ends that are closed here, of which the other end may still receive something.
    closed: Vec<(u32, Arc<Far>)>,
    /// Slots that have been used.
    slots: u32,
    /// Lanes so far.
    lanes: u32,
}

impl Inner {
    /// Frees the slots of closed ends whose announcements were all received, or never will be.
    fn free_closed(&mut self, board: &Board) {
        let free_slots = &mut self.free_slots;
        self.closed.retain(|(slot, far)| {
            let produced = board.slots[*slot as usize].sending.produced();
            let is_needed = far.peer.slot(far.slot).is_some_and(|theirs| {
                !theirs.receiving.has_closed(far.lane) && theirs.receiving.consumed() != produced
            });
            if !is_needed || far.peer.is_gone() {
                free_slots.push(*slot);
                return false;
            }
            true
        });
    }
}

/// A stream, to be looked up by.
type Key = [u64; 7];

fn key(stream: Stream) -> Key {
    match stream {
        Stream::Unix { near, far } => [1, near, far, 0, 0, 0, 0],
        Stream::Net { service, connection, is_named } => {
            [2, service, connection, u64::from(is_named), 0, 0, 0]
        }
        Stream::Tcp { namespace, near, far } => {
            let ports = u64::from(near.port) << 16 | u64::from(far.port);
            [0, namespace, near.ip[0], near.ip[1], far.ip[0], far.ip[1], ports]
        }
    }
}

/// Descriptors whose ends are looked up without a lock.
const QUICK_DESCRIPTORS: usize = 1 << 16;

/// All ends of this process.
pub struct Ends {
    inner: Guarded<Inner>,
    /// A bit for each descriptor that has an end.
    quick: [AtomicU64; QUICK_DESCRIPTORS / 64],
}

impl Ends {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        let inner = Inner {
            by_fd: BTreeMap::new(),
            by_stream: BTreeMap::new(),
            free_slots: Vec::new(),
            closed: Vec::new(),
            slots: 0,
            lanes: 0,
        };
        Self { inner: Guarded::new(inner), quick: [const { AtomicU64::new(0) }; QUICK_DESCRIPTORS / 64] }
    }

    fn bit(&self, fd: i32) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.quick.get(fd / 64)?, 1 << (fd % 64)))
    }

    /// The end behind a descriptor, if it is known. A load where it is not.
    #[inline]
    #[must_use]
    pub fn find(&self, fd: i32) -> Option<Arc<End>> {
        if self.may_have(fd) { self.inner.lock().by_fd.get(&fd).cloned() } else { None }
    }

    /// Makes an end known, with a slot of its own. `None`: there is no slot left, or no such descriptor.
    #[must_use]
    pub fn add(&self, fd: i32, stream: Stream, cookie: u64, board: &Board) -> Option<Arc<End>> {
        let (word, bit) = self.bit(fd)?;
        let inner = &mut *self.inner.lock();
        if let Some(end) = inner.by_stream.get(&key(stream)).filter(|end| end.cookie == cookie) {
            // By another descriptor of the same socket.
            let end = Arc::clone(end);
            inner.by_fd.insert(fd, Arc::clone(&end));
            word.fetch_or(bit, Release);
            return Some(end);
        }
        inner.free_closed(board);
        let slot = inner.free_slots.pop().or_else(|| {
            let fresh = inner.slots;
            ((fresh as usize) < MAX_SLOTS).then(|| inner.slots += 1).map(|()| fresh)
        })?;
        inner.lanes = inner.lanes.wrapping_add(1).max(1);
        board.slots[slot as usize].clear(inner.lanes);
        let end = Arc::new(End::new(stream, cookie, slot, inner.lanes));
        end.count_unpaired();
        inner.by_fd.insert(fd, Arc::clone(&end));
        inner.by_stream.insert(key(stream), Arc::clone(&end));
        word.fetch_or(bit, Release);
        Some(end)
    }

    /// Whether a descriptor may have an end: a look without a lock.
    #[must_use]
    pub fn may_have(&self, fd: i32) -> bool {
        self.bit(fd).is_some_and(|(word, bit)| word.load(Acquire) & bit != 0)
    }

    /// Another descriptor of the same socket.
    pub fn duplicate(&self, from: i32, to: i32) {
        let Some(end) = self.find(from) else { return };
        let Some((word, bit)) = self.bit(to) else { return };
        self.inner.lock().by_fd.insert(to, end);
        word.fetch_or(bit, Release);
    }

    /// A descriptor is closed. The end, if it was the last of it.
    #[must_use]
    pub fn remove(&self, fd: i32) -> Option<Arc<End>> {
        let (word, bit) = self.bit(fd)?;
        if word.load(Acquire) & bit == 0 {
            return None;
        }
        let inner = &mut *self.inner.lock();
        word.fetch_and(!bit, Release);
        let end = inner.by_fd.remove(&fd)?;
        if inner.by_fd.values().any(|other| Arc::ptr_eq(other, &end)) {
            return None;
        }
        inner.by_stream.remove(&key(end.stream));
        Some(end)
    }

    /// The slot of an end that is closed: to be used by another once `far`, if there is one, needs nothing of it.
    pub fn give_slot(&self, slot: u32, far: Option<Arc<Far>>) {
        let inner = &mut *self.inner.lock();
        match far {
            None => inner.free_slots.push(slot),
            Some(far) => inner.closed.push((slot, far)),
        }
    }

    /// A peer says that it has an end of this stream: the own one, if there is one, is bound to it. The end, if it was not
    /// before.
    #[must_use]
    pub fn bind(&self, stream: Stream, far: Far) -> Option<Arc<End>> {
        let end = Arc::clone(self.inner.lock().by_stream.get(&key(stream.mirrored()))?);
        (!end.bind(far)).then_some(end)
    }

    /// All ends.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<End>> {
        self.inner.lock().by_stream.values().cloned().collect()
    }

    /// All ends, by their descriptors.
    #[must_use]
    pub fn with_descriptors(&self) -> Vec<(i32, Arc<End>)> {
        self.inner.lock().by_fd.iter().map(|(fd, end)| (*fd, Arc::clone(end))).collect()
    }

    /// A peer is gone: its ends announce nothing any more. What they have announced is still received.
    pub fn unbind(&self, board: &Board) {
        for end in self.all() {
            if end.far().is_some_and(|far| far.peer.is_gone()) {
                end.end();
                if let Some(own) = board.slots.get(end.slot as usize) {
                    end.withdraw(own);
                }
            }
        }
    }

    /// Whether an end may still receive a reference to memory of this process, or one that it has announced.
    #[must_use]
    pub fn awaits(&self, process: u64) -> bool {
        self.all().iter().any(|end| {
            let Some(far) = end.far() else { return false };
            let Some(slot) = far.peer.slot(far.slot) else { return false };
            let receiver = end.receiver.lock();
            if far.peer.id() == process {
                return receiver.has_announced(slot.sending.of(far.lane));
            }
            receiver.has_announced_of(slot.sending.of(far.lane), process)
        })
    }
}

impl Default for Ends {
    fn default() -> Self {
        Self::new()
    }
}
