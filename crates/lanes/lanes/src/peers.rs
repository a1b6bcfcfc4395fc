//! Linked processes: their boards, their memory, and what this process holds of it.

extern crate alloc;
mod held;

pub use self::held::HeldBytes;
use self::held::Owner;
use crate::board::{Announcement, Board, LinkPart, MAX_RETURNS, Reference, Return, ReturnKind, Slot};
use crate::pool::{CHUNK_BYTES, Pool};
use crate::ranges::Ranges;
use crate::runs::RunId;
use alloc::collections::VecDeque;
use uncopy_sys::clock;
use uncopy_sys::errno::Errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::mem::SharedMemory;
use uncopy_sys::sync::Arc;
use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use uncopy_sys::thread::now_ms;

/// Minimum time, milliseconds, for which memory of a closed link stays mapped: others notice its end later.
const GONE_MS: u64 = 10_000;

/// Whether memory of a peer lies in files to which logs can refer.
static HAS_FILES: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

/// This process's mappings of a peer's memory.
struct Mapped {
    /// Chunks of the peer, by number.
    chunks: Vec<SharedMemory>,
    /// Ranges of the chunks that are held.
    held: Ranges,
}

/// A process linked with this one.
pub struct Peer {
    id: u64,
    board: SharedMemory,
    /// Part of this process's board that is for the peer.
    own: &'static LinkPart,
    /// Index of the part of the peer's board that is for this process.
    theirs: usize,
    mapped: Guarded<Mapped>,
    /// Returns that wait for room on the board.
    queued: Guarded<VecDeque<Return>>,
    is_gone: AtomicBool,
    /// Process id, if it is visible in this PID namespace.
    process: Option<u32>,
    /// True once a large part was sent to the peer.
    is_sent_to: AtomicBool,
    /// Processor time of the peer when it was last read, nanoseconds; 0: never.
    cpu_ns: AtomicU64,
}

impl Peer {
    /// Makes a peer from its greeting: `board` is its board, `theirs` the index of the part that is for this
    /// process, `own` the part of this process's board that is for the peer.
    #[must_use]
    pub fn new(id: u64, board: SharedMemory, theirs: usize, own: &'static LinkPart) -> Self {
        debug_assert!(board.len_bytes() >= size_of::<Board>() && theirs < crate::board::MAX_LINKS);
        let mapped = Guarded::new(Mapped { chunks: Vec::new(), held: Ranges::new() });
        let queued = Guarded::new(VecDeque::new());
        Self {
            id,
            board,
            own,
            theirs,
            mapped,
            queued,
            is_gone: AtomicBool::new(false),
            process: None,
            is_sent_to: AtomicBool::new(false),
            cpu_ns: AtomicU64::new(0),
        }
    }

    /// Sets the process id, if it is visible in this PID namespace.
    #[must_use]
    pub fn with_process(mut self, process: Option<u32>) -> Self {
        self.process = process;
        self
    }

    /// Notes that something large is about to be sent to the peer, whose processor time counts from here on.
    pub fn note_sent_to(&self) {
        if !self.is_sent_to.load(Relaxed) {
            self.is_sent_to.store(true, Relaxed);
        }
    }

    /// Returns the processor time used since the last call, nanoseconds. One caller at a time.
    fn cpu_ns_since(&self) -> u64 {
        let Some(process) = self.process.filter(|_| self.is_sent_to.load(Relaxed)) else { return 0 };
        let now_ns = clock::cpu_ns_of(process);
        let before_ns = self.cpu_ns.swap(now_ns, Relaxed);
        if before_ns == 0 { 0 } else { now_ns.saturating_sub(before_ns) }
    }

    /// Returns the id of the peer.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// True if the link is closed: nothing goes by reference in either direction.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Acquire)
    }

    /// Closes the link. Nothing more is written to the peer's part of the board, which is about to be reused.
    pub fn close(&self) {
        let mut queued = self.queued.lock();
        self.is_gone.store(true, Release);
        queued.clear();
    }

    fn board(&self) -> &Board {
        // SAFETY: the mapping is a page-aligned `Board` that lives as long as `self`; its atomics take any bytes.
        unsafe { &*(self.board.base() as *const Board) }
    }

    /// Returns a slot of the peer's board; `None` if the number is out of range.
    #[must_use]
    pub fn slot(&self, slot: u32) -> Option<&Slot> {
        self.board().slots.get(slot as usize)
    }

    fn their_part(&self) -> &LinkPart {
        &self.board().links[self.theirs]
    }

    /// Adds the peer's next chunk.
    pub fn add_chunk(&self, chunk: SharedMemory) {
        if chunk.inode().is_some() {
            HAS_FILES.store(true, Relaxed);
        }
        let mut mapped = self.mapped.lock();
        mapped.chunks.push(chunk);
        self.own.publish_mapped_chunks(mapped.chunks.len() as u32);
    }

    fn file_of(&self, address: usize, len_bytes: usize) -> Option<(u64, u64)> {
        let mapped = self.mapped.lock();
        mapped.chunks.iter().find_map(|chunk| {
            let at = address.checked_sub(chunk.base())?;
            let is_within = at.checked_add(len_bytes)? <= chunk.len_bytes();
            Some((chunk.inode().filter(|_| is_within)?, at as u64))
        })
    }

    /// Returns the number of the peer's chunks that are mapped.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.mapped.lock().chunks.len() as u32
    }

    /// Holds bytes of the peer's memory. Returns their address and the number by which they are released; `None`
    /// if they lie outside the shared chunks.
    fn hold(&self, reference: &Reference) -> Option<(usize, u32)> {
        let (offset_bytes, len_bytes) = (reference.offset_bytes as usize, reference.len_bytes as usize);
        let is_within = len_bytes > 0 && offset_bytes.checked_add(len_bytes)? <= CHUNK_BYTES;
        let mapped = &mut *self.mapped.lock();
        let base = mapped.chunks.get(reference.chunk as usize).filter(|_| is_within)?.base();
        Some((base + offset_bytes, mapped.held.add(reference.chunk, offset_bytes, len_bytes)))
    }

    /// Writes a return now. False if there is no room, or others wait to be written before it.
    #[must_use]
    fn push_return(&self, returned: &Return) -> bool {
        let mut queued = self.queued.lock();
        self.push_queued(&mut queued);
        !self.is_gone()
            && queued.is_empty()
            && self.own.push_return(returned, self.their_part().returns_read())
    }

    /// Writes a return, or queues it if there is no room.
    fn push_or_queue(&self, returned: Return) {
        let mut queued = self.queued.lock();
        self.push_queued(&mut queued);
        if self.is_gone() {
            return;
        }
        if !queued.is_empty() || !self.own.push_return(&returned, self.their_part().returns_read()) {
            queued.push_back(returned);
        }
    }

    fn push_queued(&self, queued: &mut VecDeque<Return>) {
        let taken = self.their_part().returns_read();
        while let Some(returned) = queued.front() {
            if self.own.push_return(returned, taken) {
                queued.pop_front();
            } else {
                return;
            }
        }
    }

    /// Writes the queued returns. False if some remain for lack of room.
    pub fn flush_returns(&self) -> bool {
        let mut queued = self.queued.lock();
        self.push_queued(&mut queued);
        queued.is_empty()
    }

    /// Applies the peer's returns to the pool, up to the first implausible one or `max_words`. One thread at a
    /// time: the caller holds the lock of all peers.
    fn read_returns(&self, pool: &Pool, max_words: u32) -> Heard {
        for words in 0..max_words {
            let Some(returned) = self.their_part().return_at(self.own.returns_read()) else {
                return Heard { words, deferred: None };
            };
            let id = RunId { chunk: returned.chunk, page: returned.run };
            match returned.kind {
                ReturnKind::Released => pool.release(id, self.id),
                // A return by a peer that does not hold the run is not applied.
                ReturnKind::Shared(to) if !pool.share(id, self.id, to) => {
                    let is_used = pool.is_used(id);
                    return Heard {
                        words,
                        deferred: Some(Deferred { number: self.own.returns_read(), is_used }),
                    };
                }
                ReturnKind::Shared(_) => {}
                ReturnKind::NotShared(to) => pool.unshare(id, self.id, to),
            }
            self.own.mark_return_read();
        }
        Heard { words: max_words, deferred: None }
    }
}

/// Result of reading a peer's returns.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    words: u32,
    /// Next return, if it is implausible unless another peer's return comes first.
    deferred: Option<Deferred>,
}

/// A return that is not applied yet, because the peer is not known to hold the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deferred {
    number: u32,
    /// True if the run is in use, so that another peer's return may make this one plausible.
    is_used: bool,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let unmap = |shared: &mut SharedMemory| core::mem::replace(shared, SharedMemory::NONE).unmap();
        self.mapped.lock().chunks.iter_mut().for_each(unmap);
        unmap(&mut self.board);
    }
}

/// All linked processes, and this process's own memory.
pub struct Peers {
    id: u64,
    /// Shared memory of this process.
    pub pool: Pool,
    all: Guarded<Vec<Arc<Peer>>>,
    /// Closed links, with the time of closing (milliseconds), whose memory may still be received from.
    gone: Guarded<Vec<(u64, Arc<Peer>)>>,
    /// Processor time that peers have used since something large was sent to them, nanoseconds.
    cpu_ns: AtomicU64,
    /// Number of processes that know this one's memory and are not linked yet.
    unlinked: AtomicUsize,
}

impl Peers {
    /// Returns a process without links.
    #[must_use]
    pub const fn new(id: u64) -> Self {
        Self {
            id,
            pool: Pool::new(),
            all: Guarded::new(Vec::new()),
            gone: Guarded::new(Vec::new()),
            cpu_ns: AtomicU64::new(0),
            unlinked: AtomicUsize::new(0),
        }
    }

    /// Returns the processor time that peers have used since something large was sent to them, nanoseconds, as far
    /// as their processes are visible. Makes a system call for each. Never blocks: if another thread is counting,
    /// returns the previous sum.
    pub fn cpu_ns(&self) -> u64 {
        let Some(all) = self.all.try_lock() else { return self.cpu_ns.load(Relaxed) };
        let since_ns: u64 = all.iter().map(|peer| peer.cpu_ns_since()).sum();
        self.cpu_ns.fetch_add(since_ns, Relaxed) + since_ns
    }

    /// Returns the id of this process.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Adds a link. False if there is one with that process already.
    #[must_use]
    pub fn add(&self, peer: Arc<Peer>) -> bool {
        let mut all = self.all.lock();
        let is_new = peer.id != self.id && all.iter().all(|known| known.id != peer.id);
        if is_new {
            all.push(peer);
        }
        is_new
    }

    /// Returns the peer with this id.
    #[must_use]
    pub fn find(&self, id: u64) -> Option<Arc<Peer>> {
        self.all.lock().iter().find(|peer| peer.id == id).cloned()
    }

    /// Removes a closed link: applies the peer's remaining returns, then drops everything that it held, except in the
    /// `logged` chunks.
    pub fn remove(&self, id: u64, logged: &[u32]) {
        let mut all = self.all.lock();
        if let Some(at) = all.iter().position(|peer| peer.id == id) {
            all[at].close();
            self.read_all_returns(&all);
            logged.iter().for_each(|chunk| self.pool.keep_logged(*chunk, id));
            let peer = all.swap_remove(at);
            self.pool.forget(id);
            self.gone.lock().push((now_ms(), peer));
        }
    }

    /// Forgets peers gone for a while, unless their memory is held or, as `awaits` says, may still be received.
    pub fn forget_gone(&self, awaits: impl Fn(u64) -> bool) {
        let is_due = |since_ms: u64| now_ms().wrapping_sub(since_ms) >= GONE_MS;
        let due: Vec<u64> = self
            .gone
            .lock()
            .iter()
            .filter(|(since_ms, _)| is_due(*since_ms))
            .map(|(_, peer)| peer.id)
            .collect();
        let unneeded: Vec<u64> = due.into_iter().filter(|id| !awaits(*id)).collect();
        for id in &unneeded {
            // Others may have reported since that they had sent it a reference.
            if self.find(*id).is_none() {
                self.pool.forget(*id);
            }
        }
        if !unneeded.is_empty() {
            let is_known = |peer: &Arc<Peer>| Arc::strong_count(peer) > 1;
            self.gone.lock().retain(|(_, peer)| is_known(peer) || !unneeded.contains(&peer.id));
        }
    }

    /// Whether memory of peers lies, or lay, in files to which logs can refer.
    #[must_use]
    pub fn has_files(&self) -> bool {
        HAS_FILES.load(Relaxed)
    }

    /// Returns the file that bytes of a peer's memory lie in, by its inode, and their offset there; `None`: they lie in
    /// no file to which logs can refer.
    #[must_use]
    pub fn file_of(&self, address: usize, len_bytes: usize) -> Option<(u64, u64)> {
        self.all.lock().iter().find_map(|peer| peer.file_of(address, len_bytes))
    }

    /// Returns the linked peers, and those that are gone and not forgotten.
    pub(crate) fn known_peers(&self) -> Vec<Arc<Peer>> {
        let linked: Vec<Arc<Peer>> = self.all.lock().clone();
        linked.into_iter().chain(self.gone.lock().iter().map(|(_, peer)| Arc::clone(peer))).collect()
    }

    /// Holds the bytes of an announced reference for as long as the peer is known.
    pub(crate) fn hold_while_known(&self, reference: &Reference) {
        if let Some(owner) = self.find_or_gone(reference.owner) {
            let _ = owner.hold(reference);
        }
    }

    fn find_or_gone(&self, id: u64) -> Option<Arc<Peer>> {
        self.find(id).or_else(|| {
            // Of two links made at the same time, the one closed first has no memory.
            self.gone.lock().iter().rev().find(|(_, peer)| peer.id == id).map(|(_, peer)| Arc::clone(peer))
        })
    }

    /// Applies the returns of all peers, and writes those that waited for room.
    pub fn read_returns(&self) {
        let all = self.all.lock();
        self.read_all_returns(&all);
        for peer in all.iter() {
            peer.flush_returns();
        }
    }

    /// Applies the returns of all peers. A peer may release a reference that another peer has sent it, and be read
    /// before that other peer. So a return is discarded as invalid only if all peers were read twice since without
    /// news, and only one at a time.
    fn read_all_returns(&self, all: &[Arc<Peer>]) {
        // A hostile peer could write returns for ever.
        let mut max_words = MAX_RETURNS * (1 + all.len() as u32);
        let mut before: Vec<Option<Deferred>> = Vec::new();
        while max_words > 0 {
            let heard: Vec<Heard> =
                all.iter().map(|peer| peer.read_returns(&self.pool, max_words.min(MAX_RETURNS))).collect();
            let words: u32 = heard.iter().map(|heard| heard.words).sum();
            let deferred: Vec<Option<Deferred>> = heard.into_iter().map(|heard| heard.deferred).collect();
            let is_vain = |word: &&Option<Deferred>| word.is_some_and(|word| !word.is_used);
            let Some(least) =
                deferred.iter().find(is_vain).or_else(|| deferred.iter().find(|word| word.is_some()))
            else {
                return;
            };
            if words == 0 && deferred == before {
                // A process that is about to be linked may have written what makes the return plausible.
                if self.unlinked.load(Acquire) > 0 {
                    return;
                }
                let at = deferred.iter().position(|word| word == least);
                at.and_then(|at| all.get(at)).into_iter().for_each(|peer| peer.own.mark_return_read());
                before.clear();
            } else {
                before = deferred;
            }
            max_words = max_words.saturating_sub(words.max(1));
        }
    }

    /// Sets the number of processes that may know this one's memory and are not linked with it yet.
    pub fn set_unlinked(&self, unlinked: usize) {
        self.unlinked.store(unlinked, Release);
    }

    /// Resolves an announcement to held bytes, whose hold the sender has counted. `None` if it is invalid.
    #[must_use]
    pub fn resolve(&self, announcement: &Announcement) -> Option<HeldBytes> {
        let reference = &announcement.reference;
        let id = RunId { chunk: reference.chunk, page: reference.run };
        let (chunk_offset_bytes, len_bytes) = (reference.offset_bytes, reference.len_bytes as usize);
        if reference.owner == self.id {
            let claim = || self.pool.claim(id, self.id, chunk_offset_bytes as usize, len_bytes);
            let address = claim().or_else(|| {
                // The sender reported the hold before announcing it, but the report may be unread.
                self.read_returns();
                claim()
            })?;
            return Some(HeldBytes { owner: Owner::This, id, chunk_offset_bytes, address, len_bytes });
        }
        let peer = self.find_or_gone(reference.owner)?;
        let (address, held) = peer.hold(reference)?;
        Some(HeldBytes { owner: Owner::Peer(peer, held), id, chunk_offset_bytes, address, len_bytes })
    }

    /// Releases held bytes.
    pub fn release(&self, held: HeldBytes) {
        match held.owner {
            Owner::Filler => self.pool.end(held.id),
            Owner::This => self.pool.unclaim(held.id, self.id),
            Owner::Peer(peer, number) => {
                peer.mapped.lock().held.remove(number);
                let returned = Return { chunk: held.id.chunk, run: held.id.page, kind: ReturnKind::Released };
                peer.push_or_queue(returned);
            }
        }
    }

    /// Takes a run with `len_bytes` bytes of this process for the caller to fill. `None` if there is no room now.
    #[must_use]
    pub fn alloc(&self, len_bytes: usize) -> Option<HeldBytes> {
        // Memory that peers have just returned is in the caches; memory that was never used is not.
        self.read_returns();
        let run = self.pool.alloc(uncopy_core::addr::pages_up(len_bytes))?;
        Some(HeldBytes::to_fill(run.id, run.address, len_bytes))
    }

    /// Releases everything beyond the first `len_bytes` bytes of a new run that was not shared.
    pub fn shorten(&self, held: &mut HeldBytes, len_bytes: usize) {
        if matches!(held.owner, Owner::Filler) && len_bytes > 0 && len_bytes < held.len_bytes {
            self.pool.shorten(held.id, uncopy_core::addr::pages_up(len_bytes));
            held.len_bytes = len_bytes;
        }
    }

    /// Splits a run that was not shared after the first `pages`, and returns the rest, if any.
    #[must_use]
    pub fn split(&self, held: &mut HeldBytes, pages: u32) -> Option<HeldBytes> {
        let is_own = matches!(held.owner, Owner::Filler);
        let id = is_own.then(|| self.pool.split(held.id, pages)).flatten()?;
        let first_bytes = pages as usize * uncopy_core::addr::PAGE_BYTES;
        let rest_bytes = held.len_bytes - first_bytes;
        held.len_bytes = first_bytes;
        Some(HeldBytes::to_fill(id, held.address + first_bytes, rest_bytes))
    }

    /// Makes a reference to a part of held bytes for a peer, which holds them too from here on. `None` if the peer
    /// has not mapped that memory, or its owner cannot be notified now.
    #[must_use]
    pub fn share(
        &self,
        held: &HeldBytes,
        offset_bytes: usize,
        len_bytes: usize,
        to: &Peer,
    ) -> Option<Reference> {
        let (id, owner) = (held.id, held.owner_id(self.id));
        if let Owner::Peer(owner, _) = &held.owner {
            let is_known = owner.id == to.id || to.knows(owner.id, id.chunk);
            let returned = Return { chunk: id.chunk, run: id.page, kind: ReturnKind::Shared(to.id) };
            if !is_known || owner.is_gone() || !owner.push_return(&returned) {
                return None;
            }
        } else if to.their_part().has_mapped_chunk(id.chunk) {
            self.pool.hold(id, to.id);
        } else {
            return None;
        }
        Some(Reference {
            owner,
            chunk: id.chunk,
            run: id.page,
            offset_bytes: held.chunk_offset_bytes + offset_bytes as u32,
            len_bytes: len_bytes as u32,
        })
    }

    /// Reports sending on a run that is not held, as a hostile peer may.
    #[cfg(test)]
    pub(crate) fn report_shared(&self, owner: &Peer, held: &HeldBytes, to: u64) {
        let returned = Return { chunk: held.id.chunk, run: held.id.page, kind: ReturnKind::Shared(to) };
        assert!(owner.push_return(&returned), "room");
    }

    /// Undoes [`Self::share`] for a reference that was not sent.
    pub fn unshare(&self, held: &HeldBytes, to: &Peer) {
        match &held.owner {
            Owner::Peer(owner, _) => {
                let kind = ReturnKind::NotShared(to.id);
                owner.push_or_queue(Return { chunk: held.id.chunk, run: held.id.page, kind });
            }
            Owner::Filler | Owner::This => self.pool.release(held.id, to.id),
        }
    }
}

impl Peer {
    /// Replaces these slots of the peer's board by private copies, and the rest of the board by zeroes.
    ///
    /// # Errors
    /// The error of the mapping that failed.
    pub(crate) fn detach_board(&self, slots: impl Iterator<Item = u32>) -> Result<(), Errno> {
        let slots = slots.filter_map(|slot| self.slot(slot));
        let offset_bytes = |slot: &Slot| core::ptr::from_ref(slot) as usize - self.board.base();
        self.board.detach(slots.map(|slot| (offset_bytes(slot), size_of::<Slot>())))
    }

    /// Replaces the held ranges of the peer's memory by private copies.
    ///
    /// # Errors
    /// The error of the mapping that failed.
    pub(crate) fn detach_chunks(&self) -> Result<(), Errno> {
        let mapped = &*self.mapped.lock();
        let mut chunks = mapped.chunks.iter().enumerate();
        chunks.try_for_each(|(number, chunk)| chunk.detach(mapped.held.of_chunk(number as u32)))
    }

    /// True if this peer is linked with the process `owner` and has mapped that chunk of its memory.
    fn knows(&self, owner: u64, chunk: u32) -> bool {
        self.board().links.iter().any(|part| part.peer() == owner && part.has_mapped_chunk(chunk))
    }
}
