//! Ends of streams that may become lanes, by descriptor.
//!
//! ```text
//! large call ──► known (a slot of the board) ──► told to all peers ──► bound (the other end is known)
//!                                                                        │ large input: attends
//!                 close, exec, SCM_RIGHTS, fork, what cannot be followed ▼
//!                 ◄─────────────────────────────────────────────── literal for good
//! ```
//!
//! An end *attends* while it accepts references; a *literal* end sends and receives bytes only.

extern crate alloc;
use crate::board::{Board, MAX_SLOTS, Slot};
use crate::outcome;
use crate::peers::Peer;
use crate::protocol::Stream;
use crate::receive::Receiver;
use alloc::collections::BTreeMap;
use uncopy_core::streams::Outcome;
use uncopy_fdtable::{self as fdtable, Feature};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::sync::Arc;
use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release, Ordering::SeqCst, fence,
};

/// The remote end of a stream.
pub struct RemoteEnd {
    /// Process that has the remote end.
    pub peer: Arc<Peer>,
    /// Slot of the remote end on the peer's board.
    pub slot: u32,
    /// Lane for which the remote end accepts references.
    pub lane: u32,
}

impl RemoteEnd {
    /// True if the remote end accepts references.
    #[must_use]
    pub fn accepts_refs(&self) -> bool {
        self.peer.slot(self.slot).is_some_and(|slot| slot.receiving.accepts_refs(self.lane))
    }

    /// True if the remote end pauses references.
    #[must_use]
    pub fn pauses_refs(&self) -> bool {
        !self.peer.is_gone()
            && self.peer.slot(self.slot).is_some_and(|slot| slot.sending.pauses_refs_at(self.lane))
    }

    fn is(&self, other: &Self) -> bool {
        (self.peer.id(), self.slot, self.lane) == (other.peer.id(), other.slot, other.lane)
    }
}

/// A local end of a stream.
pub struct End {
    /// Identity of the stream, seen from this end.
    pub stream: Stream,
    /// Cookie of the socket (SO_COOKIE), which detects that the descriptor's number was reused.
    pub cookie: u64,
    /// Slot of this end on this process's board.
    pub slot: u32,
    /// Lane for which this end accepts references; never 0.
    pub lane: u32,
    /// Number of descriptors of this end; protected by the lock of [`Ends`].
    descriptors: AtomicU32,
    far: Guarded<Option<Arc<RemoteEnd>>>,
    is_bound: AtomicBool,
    /// True while the end is counted as one whose remote end is unknown.
    is_unpaired: AtomicBool,
    has_ended: AtomicBool,
    accepts_refs: AtomicBool,
    /// Large plain receives left before references are accepted again, and the number it last started from.
    backoff: AtomicU64,
    /// Progress of the incoming direction.
    pub receiver: Guarded<Receiver>,
    /// [`EXCLUSIVE`] while a send by reference is in progress, else the number of literal sends in progress.
    sends: AtomicU32,
    /// Bytes sent, for sockets whose kernel keeps no count; [`UNKNOWN`] until it is found out.
    sent_bytes: AtomicU64,
}

/// Value of `End::sent_bytes` before the count is known.
const UNKNOWN: u64 = u64::MAX;
/// Maximum number of large plain receives before references are accepted again.
const MAX_BACKOFF: u64 = 4096;
/// Bit of `End::sends` that is set while references are sent.
const EXCLUSIVE: u32 = 1 << 31;

impl End {
    fn new(stream: Stream, cookie: u64, slot: u32, lane: u32) -> Self {
        Self {
            stream,
            cookie,
            slot,
            lane,
            descriptors: AtomicU32::new(0),
            far: Guarded::new(None),
            is_bound: AtomicBool::new(false),
            is_unpaired: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            accepts_refs: AtomicBool::new(false),
            backoff: AtomicU64::new(0),
            receiver: Guarded::new(Receiver::default()),
            sends: AtomicU32::new(0),
            sent_bytes: AtomicU64::new(UNKNOWN),
        }
    }

    /// Returns the remote end, if it is known.
    #[must_use]
    pub fn remote_end(&self) -> Option<Arc<RemoteEnd>> {
        if !self.is_bound.load(Acquire) { None } else { self.far.lock().clone() }
    }

    /// True if this end accepts references.
    #[inline]
    #[must_use]
    pub fn accepts_refs(&self) -> bool {
        self.accepts_refs.load(Acquire)
    }

    /// Makes the end permanently literal, for a reason outside the stream.
    pub fn end(&self) {
        self.has_ended.store(true, Release);
    }

    /// Makes the end permanently literal and reports `outcome`.
    pub fn end_as(&self, outcome: Outcome) {
        if !self.has_ended.swap(true, AcqRel) {
            self.count_paired();
            outcome::add(outcome);
        }
    }

    /// True if the end is permanently literal.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Acquire)
    }

    /// Counts the end as one whose remote end is unknown, until it is bound.
    fn count_unpaired(&self) {
        self.is_unpaired.store(true, Release);
        outcome::add(Outcome::Unpaired);
    }

    fn count_paired(&self) {
        if self.is_unpaired.swap(false, AcqRel) {
            outcome::remove(Outcome::Unpaired);
        }
    }

    /// Sets the remote end; returns whether one was set before. If that was a different one, two processes have or
    /// had the remote end, and tokens cannot be attributed to either: the end becomes literal.
    fn bind(&self, far: RemoteEnd) -> bool {
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

    /// Starts accepting references at this end.
    pub fn accept_refs(&self, own: &Slot) {
        if !self.has_ended() && !self.accepts_refs.swap(true, Release) {
            own.receiving.accept_refs(self.lane);
        }
    }

    /// Stops accepting references at this end.
    pub fn refuse_refs(&self, own: &Slot) {
        if self.accepts_refs.swap(false, Release) {
            own.receiving.accept_refs(0);
        }
    }

    /// Stops accepting references because none arrive; returns whether it did. The wait before they are accepted
    /// again quadruples each time, unless the sender `pauses_refs` references, and so says when to resume. Ends
    /// that count their bytes themselves never stop, since a sender starts counting only once.
    pub fn stop_accepting_refs(&self, own: &Slot, pauses_refs: bool) -> bool {
        let loses = matches!(self.stream, Stream::Tcp { .. });
        if loses {
            let last = self.backoff.load(Relaxed) >> 32;
            let longer = (last * 4).clamp(1, MAX_BACKOFF);
            let (next, wait) = if pauses_refs { (last.max(1), 0) } else { (longer, longer) };
            self.backoff.store(next << 32 | wait, Relaxed);
            self.refuse_refs(own);
        }
        loses
    }

    /// True if references are to be accepted again. To be asked after each large plain receive.
    pub fn should_resume_refs(&self) -> bool {
        let backoff = self.backoff.load(Relaxed);
        let is_due = backoff as u32 == 0;
        if !is_due {
            self.backoff.store(backoff - 1, Relaxed);
        }
        is_due
    }

    /// True if the end has never stopped accepting references.
    pub fn has_never_stopped(&self) -> bool {
        self.backoff.load(Relaxed) == 0
    }

    /// Acquires the exclusive right to send references; `None` if a send is in progress or the end is literal.
    #[must_use]
    pub fn try_lock_sends(&self) -> Option<SendGuard<'_>> {
        let alone =
            self.sends.compare_exchange(0, EXCLUSIVE, Acquire, Relaxed).ok().map(|_| SendGuard(self))?;
        // Paired fences: either this thread sees that the end has ended, or its ender waits for this send.
        fence(SeqCst);
        (!self.has_ended()).then_some(alone)
    }

    /// Waits for a send by reference in progress. Since the end is permanently literal, no later one starts.
    pub fn await_references(&self) {
        fence(SeqCst);
        while self.sends.load(Acquire) & EXCLUSIVE != 0 {
            // The holder makes only a few system calls, none of which blocks.
            uncopy_sys::thread::pause();
        }
    }

    /// Counts a literal send in, after waiting for a send by reference in progress.
    pub fn begin_literal(&self) {
        loop {
            let sends = self.sends.load(Relaxed);
            if sends & EXCLUSIVE != 0 {
                // The holder makes only a few system calls, none of which blocks.
                uncopy_sys::thread::pause();
            } else if self.sends.compare_exchange(sends, sends + 1, Acquire, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Counts a literal send out.
    pub fn end_literal(&self) {
        self.sends.fetch_sub(1, Release);
    }

    /// Returns the number of bytes sent by this process's count, if it keeps one.
    #[must_use]
    pub fn sent_bytes(&self) -> Option<u64> {
        Some(self.sent_bytes.load(Relaxed)).filter(|bytes| *bytes != UNKNOWN)
    }

    /// Sets the number of bytes sent so far, from the remote end's count.
    pub fn count_from(&self, sent_bytes: u64) {
        self.sent_bytes.store(sent_bytes, Relaxed);
    }

    /// Adds to the number of bytes sent.
    pub fn count_sent(&self, len_bytes: usize) {
        if self.sent_bytes.load(Relaxed) != UNKNOWN {
            self.sent_bytes.fetch_add(len_bytes as u64, Relaxed);
        }
    }
}

/// Exclusive right to send references at an end.
pub struct SendGuard<'a>(&'a End);

impl Drop for SendGuard<'_> {
    fn drop(&mut self) {
        self.0.sends.fetch_and(!EXCLUSIVE, Release);
    }
}

struct Inner {
    by_fd: BTreeMap<ProgramFd, Arc<End>>,
    by_stream: BTreeMap<Key, Arc<End>>,
    free_slots: Vec<u32>,
    /// Slots of closed ends whose remote end may still receive something.
    closed: Vec<(u32, Arc<RemoteEnd>)>,
    /// Number of slots used so far.
    slots: u32,
    /// Number of lanes assigned so far.
    lanes: u32,
}

impl Inner {
    fn put(&mut self, fd: ProgramFd, end: &Arc<End>) {
        end.descriptors.fetch_add(1, Relaxed);
        fdtable::track(Feature::Lanes, fd);
        if let Some(before) = self.by_fd.insert(fd, Arc::clone(end)) {
            before.descriptors.fetch_sub(1, Relaxed);
        }
    }

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

/// Number of descriptors covered by the bit map that is read without a lock.
const QUICK_DESCRIPTORS: usize = 1 << 16;

/// All stream ends of this process.
pub struct Ends {
    inner: Guarded<Inner>,
    /// Bit map of the descriptors that have an end.
    quick: [AtomicU64; QUICK_DESCRIPTORS / 64],
}

impl Ends {
    /// Returns an empty table.
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

    fn bit(&self, fd: ProgramFd) -> Option<(&AtomicU64, u64)> {
        let fd = fd.index()?;
        Some((self.quick.get(fd / 64)?, 1 << (fd % 64)))
    }

    /// Returns the end of a descriptor. Costs one load if there is none.
    #[inline]
    #[must_use]
    pub fn find(&self, fd: ProgramFd) -> Option<Arc<End>> {
        if self.may_have(fd) { self.inner.lock().by_fd.get(&fd).cloned() } else { None }
    }

    /// Adds an end and assigns it a slot. `None` if no slot is left or the descriptor is out of range.
    #[must_use]
    pub fn add(&self, fd: ProgramFd, stream: Stream, cookie: u64, board: &Board) -> Option<Arc<End>> {
        let (word, bit) = self.bit(fd)?;
        let inner = &mut *self.inner.lock();
        if let Some(end) = inner.by_stream.get(&key(stream)).filter(|end| end.cookie == cookie) {
            // The stream is already known through another descriptor of the same socket.
            let end = Arc::clone(end);
            inner.put(fd, &end);
            word.fetch_or(bit, Release);
            return Some(end);
        }
        inner.free_closed(board);
        let slot = inner.free_slots.pop().or_else(|| {
            let unused = inner.slots;
            ((unused as usize) < MAX_SLOTS).then(|| inner.slots += 1).map(|()| unused)
        })?;
        inner.lanes = inner.lanes.wrapping_add(1).max(1);
        board.slots[slot as usize].clear(inner.lanes);
        let end = Arc::new(End::new(stream, cookie, slot, inner.lanes));
        end.count_unpaired();
        inner.put(fd, &end);
        inner.by_stream.insert(key(stream), Arc::clone(&end));
        word.fetch_or(bit, Release);
        Some(end)
    }

    /// True if a descriptor may have an end. Takes no lock.
    #[must_use]
    pub fn may_have(&self, fd: ProgramFd) -> bool {
        self.bit(fd).is_some_and(|(word, bit)| word.load(Acquire) & bit != 0)
    }

    /// Assigns the end of `from` to `to`, a duplicate.
    pub fn duplicate(&self, from: ProgramFd, to: ProgramFd) {
        let Some(end) = self.find(from) else { return };
        let Some((word, bit)) = self.bit(to) else { return };
        self.inner.lock().put(to, &end);
        word.fetch_or(bit, Release);
    }

    /// Removes a closed descriptor whose end satisfies `is_same`. Returns the end if this was its last descriptor.
    #[must_use]
    pub fn remove(&self, fd: ProgramFd, is_same: impl Fn(&End) -> bool) -> Option<Arc<End>> {
        let (word, bit) = self.bit(fd)?;
        if word.load(Acquire) & bit == 0 {
            return None;
        }
        let inner = &mut *self.inner.lock();
        if inner.by_fd.get(&fd).is_some_and(|end| !is_same(end)) {
            return None;
        }
        word.fetch_and(!bit, Release);
        let end = inner.by_fd.remove(&fd)?;
        if end.descriptors.fetch_sub(1, Relaxed) > 1 {
            return None;
        }
        inner.by_stream.remove(&key(end.stream));
        Some(end)
    }

    /// Releases the slot of a closed end, for reuse once the remote end `far`, if any, no longer needs it.
    pub fn release_slot(&self, slot: u32, far: Option<Arc<RemoteEnd>>) {
        let inner = &mut *self.inner.lock();
        match far {
            None => inner.free_slots.push(slot),
            Some(far) => inner.closed.push((slot, far)),
        }
    }

    /// Binds the local end of a stream to a peer's end. Returns the local end if it was not bound before.
    #[must_use]
    pub fn bind(&self, stream: Stream, far: RemoteEnd) -> Option<Arc<End>> {
        let end = Arc::clone(self.inner.lock().by_stream.get(&key(stream.mirrored()))?);
        (!end.bind(far)).then_some(end)
    }

    /// Returns all ends of this process.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<End>> {
        self.inner.lock().by_stream.values().cloned().collect()
    }

    /// Returns all ends with their descriptors.
    #[must_use]
    pub fn with_descriptors(&self) -> Vec<(ProgramFd, Arc<End>)> {
        self.inner.lock().by_fd.iter().map(|(fd, end)| (*fd, Arc::clone(end))).collect()
    }

    /// Unbinds the ends of peers that are gone. Their earlier announcements are still received.
    pub fn unbind(&self, board: &Board) {
        for end in self.all() {
            if end.remote_end().is_some_and(|far| far.peer.is_gone()) {
                end.end();
                if let Some(own) = board.slots.get(end.slot as usize) {
                    end.refuse_refs(own);
                }
            }
        }
    }

    /// True if an end may still receive a reference to memory of `process`, or one that it has announced.
    #[must_use]
    pub fn may_receive_from(&self, process: u64) -> bool {
        self.all().iter().any(|end| {
            let Some(far) = end.remote_end() else { return false };
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
