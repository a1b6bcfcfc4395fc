//! Linked processes: their boards, their memory, and what of it this process holds.

extern crate alloc;
use crate::board::{Announcement, Board, LinkPart, MAX_RETURNS, Reference, Return, Said, Slot};
use crate::pool::{CHUNK_BYTES, Pool};
use crate::ranges::Ranges;
use crate::runs::RunId;
use alloc::collections::VecDeque;
use uncopy_sys::clock;
use uncopy_sys::errno::Errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::mem::Shared;
use uncopy_sys::sync::Arc;
use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use uncopy_sys::thread::now_ms;

/// How long the memory of a process that is gone stays mapped at least, ms: others may not have noticed that it is.
const GONE_MS: u64 = 10_000;

/// What is mapped of a peer's memory.
struct Mapped {
    /// Its chunks, by their numbers.
    chunks: Vec<Shared>,
    /// What this process holds of them.
    held: Ranges,
}

/// A linked process.
pub struct Peer {
    /// What it is known by.
    id: u64,
    /// Its board.
    board: Shared,
    /// The part of this process's board that is for it.
    own: &'static LinkPart,
    /// Index of the part of its board that is for this process.
    theirs: usize,
    /// What this process has mapped of its memory.
    mapped: Guarded<Mapped>,
    /// What it is to be told once there is room.
    unsaid: Guarded<VecDeque<Return>>,
    is_gone: AtomicBool,
    /// Its id among processes, if this one sees it.
    process: Option<u32>,
    /// Something large is sent to it.
    is_sent_to: AtomicBool,
    /// Its processor time when that was looked at last, ns; 0: it was not.
    cpu_ns: AtomicU64,
}

impl Peer {
    /// A process that has sent its greeting: `board` is its board, `theirs` the index of the part that is for this process,
    /// `own` the part of this process's board that is for it.
    #[must_use]
    pub fn new(id: u64, board: Shared, theirs: usize, own: &'static LinkPart) -> Self {
        debug_assert!(board.len_bytes() >= size_of::<Board>() && theirs < crate::board::MAX_LINKS);
        let mapped = Guarded::new(Mapped { chunks: Vec::new(), held: Ranges::new() });
        let unsaid = Guarded::new(VecDeque::new());
        Self {
            id,
            board,
            own,
            theirs,
            mapped,
            unsaid,
            is_gone: AtomicBool::new(false),
            process: None,
            is_sent_to: AtomicBool::new(false),
            cpu_ns: AtomicU64::new(0),
        }
    }

    /// The same, with its id among processes, if this one sees it.
    #[must_use]
    pub fn with_process(mut self, process: Option<u32>) -> Self {
        self.process = process;
        self
    }

    /// Something large is about to be sent to it: what it does with that counts.
    pub fn note_sent_to(&self) {
        if !self.is_sent_to.load(Relaxed) {
            self.is_sent_to.store(true, Relaxed);
        }
    }

    /// Processor time that it has used since this was asked last, ns. One caller at a time.
    fn cpu_ns_since(&self) -> u64 {
        let Some(process) = self.process.filter(|_| self.is_sent_to.load(Relaxed)) else { return 0 };
        let now_ns = clock::cpu_ns_of(process);
        let before_ns = self.cpu_ns.swap(now_ns, Relaxed);
        if before_ns == 0 { 0 } else { now_ns.saturating_sub(before_ns) }
    }

    /// What it is known by.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Whether the link is closed: it sends nothing by reference, and is sent nothing any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Acquire)
    }

    /// The link is closed: it is told nothing more, since the part of the board that was for it is soon another's.
    pub fn close(&self) {
        let mut unsaid = self.unsaid.lock();
        self.is_gone.store(true, Release);
        unsaid.clear();
    }

    fn board(&self) -> &Board {
        // SAFETY: a mapping of at least so many bytes, page-aligned, which lives as long as `self`. All of it is atomic words,
        // for which any bytes are valid.
        unsafe { &*(self.board.base() as *const Board) }
    }

    /// One of its ends; `None`: there is no such slot.
    #[must_use]
    pub fn slot(&self, slot: u32) -> Option<&Slot> {
        self.board().slots.get(slot as usize)
    }

    /// What it tells this process.
    fn tells(&self) -> &LinkPart {
        &self.board().links[self.theirs]
    }

    /// Adds its next chunk.
    pub fn add_chunk(&self, chunk: Shared) {
        let mut mapped = self.mapped.lock();
        mapped.chunks.push(chunk);
        self.own.know_chunks(mapped.chunks.len() as u32);
    }

    /// How many of its chunks are mapped.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.mapped.lock().chunks.len() as u32
    }

    /// Holds bytes of its memory: where they lie, and the number by which they are given up. `None`: they are outside of what it has
    /// shared.
    fn hold(&self, reference: &Reference) -> Option<(usize, u32)> {
        let (offset_bytes, len_bytes) = (reference.offset_bytes as usize, reference.len_bytes as usize);
        let is_within = len_bytes > 0 && offset_bytes.checked_add(len_bytes)? <= CHUNK_BYTES;
        let mapped = &mut *self.mapped.lock();
        let base = mapped.chunks.get(reference.chunk as usize).filter(|_| is_within)?.base();
        Some((base + offset_bytes, mapped.held.add(reference.chunk, offset_bytes, len_bytes)))
    }

    /// Says something now. False: there is no room, or something waits to be said before it.
    #[must_use]
    fn say(&self, said: &Return) -> bool {
        let mut unsaid = self.unsaid.lock();
        self.say_unsaid(&mut unsaid);
        !self.is_gone() && unsaid.is_empty() && self.own.say(said, self.tells().taken())
    }

    /// Says something, later if there is no room now.
    fn say_some_time(&self, said: Return) {
        let mut unsaid = self.unsaid.lock();
        self.say_unsaid(&mut unsaid);
        if self.is_gone() {
            return;
        }
        if !unsaid.is_empty() || !self.own.say(&said, self.tells().taken()) {
            unsaid.push_back(said);
        }
    }

    fn say_unsaid(&self, unsaid: &mut VecDeque<Return>) {
        let taken = self.tells().taken();
        while let Some(said) = unsaid.front() {
            if self.own.say(said, taken) {
                unsaid.pop_front();
            } else {
                return;
            }
        }
    }

    /// Says what there was no room for. False: there still is none for some.
    pub fn say_rest(&self) -> bool {
        let mut unsaid = self.unsaid.lock();
        self.say_unsaid(&mut unsaid);
        unsaid.is_empty()
    }

    /// Takes what it has said about this process's memory. One thread at a time: the caller holds the lock of all peers.
    pub fn hear(&self, pool: &Pool) {
        // A hostile peer could go on for ever.
        for _ in 0..MAX_RETURNS {
            let Some(Return { chunk, run, what }) = self.tells().said(self.own.taken()) else { return };
            let id = RunId { chunk, page: run };
            match what {
                Said::Released => pool.release(id, self.id),
                // What a peer says of what it does not hold is not believed.
                Said::Shared(to) => _ = pool.share(id, self.id, to),
                Said::NotShared(to) => pool.unshare(id, self.id, to),
            }
            self.own.take();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let unmap = |shared: &mut Shared| core::mem::replace(shared, Shared::NONE).unmap();
        self.mapped.lock().chunks.iter_mut().for_each(unmap);
        unmap(&mut self.board);
    }
}

/// Whose memory a held run is.
enum Owner {
    /// This process's, which took the run to fill it.
    Filler,
    /// This process's, to which a reference came back.
    This,
    /// A peer's, and the number by which that is given up.
    Peer(Arc<Peer>, u32),
}

/// Bytes of shared memory that this process holds: they do not change until it is dropped.
pub struct Held {
    owner: Owner,
    id: RunId,
    /// Where it begins in its chunk.
    chunk_offset_bytes: u32,
    address: usize,
    len_bytes: usize,
}

impl Held {
    /// A run of this process's, from its beginning on.
    const fn to_fill(id: RunId, address: usize, len_bytes: usize) -> Self {
        let chunk_offset_bytes = id.page * uncopy_core::addr::PAGE_BYTES as u32;
        Self { owner: Owner::Filler, id, chunk_offset_bytes, address, len_bytes }
    }

    fn owner_id(&self, this: u64) -> u64 {
        match &self.owner {
            Owner::Peer(peer, _) => peer.id,
            Owner::Filler | Owner::This => this,
        }
    }

    /// Address of the first byte.
    #[must_use]
    pub const fn address(&self) -> usize {
        self.address
    }

    /// How many bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

/// The processes that this one is linked with, and its own memory.
pub struct Peers {
    /// What this process is known by.
    id: u64,
    /// This process's memory.
    pub pool: Pool,
    all: Guarded<Vec<Arc<Peer>>>,
    /// Those whose links are closed, since when (ms), and of whose memory something may still be received.
    gone: Guarded<Vec<(u64, Arc<Peer>)>>,
    /// Processor time that peers have used while something large was sent to them, ns.
    cpu_ns: AtomicU64,
}

impl Peers {
    /// A process that is linked with none.
    #[must_use]
    pub const fn new(id: u64) -> Self {
        Self {
            id,
            pool: Pool::new(),
            all: Guarded::new(Vec::new()),
            gone: Guarded::new(Vec::new()),
            cpu_ns: AtomicU64::new(0),
        }
    }

    /// Processor time that peers have used while something large was sent to them, ns, as far as this process sees them: a system
    /// call for each. Waits for nobody: what is not counted now is the next time.
    pub fn cpu_ns(&self) -> u64 {
        let Some(all) = self.all.try_lock() else { return self.cpu_ns.load(Relaxed) };
        let since_ns: u64 = all.iter().map(|peer| peer.cpu_ns_since()).sum();
        self.cpu_ns.fetch_add(since_ns, Relaxed) + since_ns
    }

    /// What this process is known by.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// A new link. False: there is one with this process already.
    #[must_use]
    pub fn add(&self, peer: Arc<Peer>) -> bool {
        let mut all = self.all.lock();
        let is_new = peer.id != self.id && all.iter().all(|known| known.id != peer.id);
        if is_new {
            all.push(peer);
        }
        is_new
    }

    /// The process with this name.
    #[must_use]
    pub fn find(&self, id: u64) -> Option<Arc<Peer>> {
        self.all.lock().iter().find(|peer| peer.id == id).cloned()
    }

    /// A link is closed: what the peer has said is heard to its end, then all that it held is dropped.
    pub fn remove(&self, id: u64) {
        let mut all = self.all.lock();
        if let Some(at) = all.iter().position(|peer| peer.id == id) {
            let peer = all.swap_remove(at);
            peer.close();
            peer.hear(&self.pool);
            self.pool.forget(id);
            self.gone.lock().push((now_ms(), peer));
        }
    }

    /// Forgets those that are gone for a while and of whose memory nothing is held, or received any more, as `awaits` says.
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
        if !unneeded.is_empty() {
            let is_known = |peer: &Arc<Peer>| Arc::strong_count(peer) > 1;
            self.gone.lock().retain(|(_, peer)| is_known(peer) || !unneeded.contains(&peer.id));
        }
    }

    /// Those that are linked, and those that are gone and not forgotten.
    pub(crate) fn known(&self) -> Vec<Arc<Peer>> {
        let linked: Vec<Arc<Peer>> = self.all.lock().clone();
        linked.into_iter().chain(self.gone.lock().iter().map(|(_, peer)| Arc::clone(peer))).collect()
    }

    /// Holds what is announced of a peer's memory as long as that peer is known.
    pub(crate) fn hold_on(&self, reference: &Reference) {
        if let Some(owner) = self.find_or_gone(reference.owner) {
            let _ = owner.hold(reference);
        }
    }

    fn find_or_gone(&self, id: u64) -> Option<Arc<Peer>> {
        self.find(id).or_else(|| {
            // Of two links that were made at the same time, the one that went first has nothing.
            self.gone.lock().iter().rev().find(|(_, peer)| peer.id == id).map(|(_, peer)| Arc::clone(peer))
        })
    }

    /// Hears all peers, and says what there was no room for.
    pub fn hear(&self) {
        for peer in self.all.lock().iter() {
            peer.hear(&self.pool);
            peer.say_rest();
        }
    }

    /// What a peer has announced, held from here on: its sender has counted that. `None`: there is nothing such.
    #[must_use]
    pub fn resolve(&self, announcement: &Announcement) -> Option<Held> {
        let reference = &announcement.reference;
        let id = RunId { chunk: reference.chunk, page: reference.run };
        let (chunk_offset_bytes, len_bytes) = (reference.offset_bytes, reference.len_bytes as usize);
        if reference.owner == self.id {
            let address = self.pool.address(reference.chunk, reference.offset_bytes as usize, len_bytes)?;
            return (len_bytes > 0).then_some(Held {
                owner: Owner::This,
                id,
                chunk_offset_bytes,
                address,
                len_bytes,
            });
        }
        let peer = self.find_or_gone(reference.owner)?;
        let (address, held) = peer.hold(reference)?;
        Some(Held { owner: Owner::Peer(peer, held), id, chunk_offset_bytes, address, len_bytes })
    }

    /// Gives up what was held.
    pub fn release(&self, held: Held) {
        match held.owner {
            Owner::Filler => self.pool.end(held.id),
            Owner::This => self.pool.release(held.id, self.id),
            Owner::Peer(peer, number) => {
                peer.mapped.lock().held.remove(number);
                let said = Return { chunk: held.id.chunk, run: held.id.page, what: Said::Released };
                peer.say_some_time(said);
            }
        }
    }

    /// Takes a run of this process's memory for `len_bytes` bytes, for the caller to fill. `None`: there is no room now.
    #[must_use]
    pub fn take(&self, len_bytes: usize) -> Option<Held> {
        // First what peers have given back: it is in the caches, what was never used is not.
        self.hear();
        let run = self.pool.take(uncopy_core::addr::pages_up(len_bytes))?;
        Some(Held::to_fill(run.id, run.address, len_bytes))
    }

    /// Gives up what lies behind the first `len_bytes` bytes of a run that was taken, and not shared with anybody.
    pub fn shorten(&self, held: &mut Held, len_bytes: usize) {
        if matches!(held.owner, Owner::Filler) && len_bytes > 0 && len_bytes < held.len_bytes {
            self.pool.shorten(held.id, uncopy_core::addr::pages_up(len_bytes));
            held.len_bytes = len_bytes;
        }
    }

    /// Makes what lies behind the first `pages` of a run that was taken, and not shared with anybody, one of its own. `None`: there is nothing.
    #[must_use]
    pub fn split(&self, held: &mut Held, pages: u32) -> Option<Held> {
        let is_own = matches!(held.owner, Owner::Filler);
        let id = is_own.then(|| self.pool.split(held.id, pages)).flatten()?;
        let first_bytes = pages as usize * uncopy_core::addr::PAGE_BYTES;
        let rest_bytes = held.len_bytes - first_bytes;
        held.len_bytes = first_bytes;
        Some(Held::to_fill(id, held.address + first_bytes, rest_bytes))
    }

    /// Prepares a reference to a part of what is held for a peer, which holds it too from here on. `None`: the peer does not
    /// know that memory, or its owner cannot be told just now.
    #[must_use]
    pub fn share(&self, held: &Held, offset_bytes: usize, len_bytes: usize, to: &Peer) -> Option<Reference> {
        let (id, owner) = (held.id, held.owner_id(self.id));
        if let Owner::Peer(owner, _) = &held.owner {
            let is_known = owner.id == to.id || to.knows(owner.id, id.chunk);
            let said = Return { chunk: id.chunk, run: id.page, what: Said::Shared(to.id) };
            if !is_known || owner.is_gone() || !owner.say(&said) {
                return None;
            }
        } else if to.tells().knows_chunk(id.chunk) {
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

    /// What was shared was not sent.
    pub fn unshare(&self, held: &Held, to: &Peer) {
        match &held.owner {
            Owner::Peer(owner, _) => {
                let what = Said::NotShared(to.id);
                owner.say_some_time(Return { chunk: held.id.chunk, run: held.id.page, what });
            }
            Owner::Filler | Owner::This => self.pool.release(held.id, to.id),
        }
    }
}

impl Peer {
    /// Makes its board this process's own, as far as these slots of it are concerned, zeroes elsewhere.
    ///
    /// # Errors
    /// What memory for it does not get.
    pub(crate) fn detach_board(&self, slots: impl Iterator<Item = u32>) -> Result<(), Errno> {
        let slots = slots.filter_map(|slot| self.slot(slot));
        let offset_bytes = |slot: &Slot| core::ptr::from_ref(slot) as usize - self.board.base();
        self.board.detach(slots.map(|slot| (offset_bytes(slot), size_of::<Slot>())))
    }

    /// The same of its memory: what is held of it stays.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn detach_chunks(&self) -> Result<(), Errno> {
        let mapped = &*self.mapped.lock();
        let mut chunks = mapped.chunks.iter().enumerate();
        chunks.try_for_each(|(number, chunk)| chunk.detach(mapped.held.of_chunk(number as u32)))
    }

    /// Whether it is linked with the process `owner` and has mapped that chunk of its memory.
    fn knows(&self, owner: u64, chunk: u32) -> bool {
        self.board().links.iter().any(|part| part.peer() == owner && part.knows_chunk(chunk))
    }
}
