//! Shared memory of this process: chunks that peers map read-only, divided into runs.
//!
//! Only the lanes' thread makes chunks, since it owns their descriptors. A caller that finds no room requests a
//! chunk and proceeds without shared memory.

use crate::runs::{RunHolders, RunId};
use uncopy_core::addr::{ArenaPages, PAGE_BYTES, pages_up};
use uncopy_core::bounds::MAX_SHARED_BYTES;
use uncopy_core::extents::Extents;
use uncopy_core::random::splitmix64;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Number of pages per chunk.
pub const CHUNK_PAGES: u32 = 1024;
/// Bytes per chunk.
pub const CHUNK_BYTES: usize = CHUNK_PAGES as usize * PAGE_BYTES;
/// Maximum number of chunks of a process.
pub const MAX_CHUNKS: usize = 1024;

/// A run of pages of this process, which only its holder may fill.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// Identity of the run.
    pub id: RunId,
    /// Address of the first page.
    pub address: usize,
    /// Length of the run in pages.
    pub pages: u32,
}

struct Chunk {
    base: usize,
    free: Extents,
}

struct Inner {
    chunks: Vec<Chunk>,
    used_pages: usize,
    ledger: RunHolders,
    /// Runs that logs may refer to although their holders have ended.
    logged: Vec<Logged>,
    /// Number of entries that `logged` has ever had.
    ever_logged: u64,
}

/// Runs of a chunk that a peer held when it ended, and that the records of its log may refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Number of the chunk.
    pub chunk: u32,
    /// Id of the peer.
    pub peer: u64,
    /// Id that holds the runs in place of the peer.
    holder: u64,
}

/// Chunks of this process and the holders of their runs.
pub struct Pool {
    inner: Guarded<Inner>,
    /// True if a chunk was requested.
    is_short: AtomicBool,
    max_bytes: AtomicUsize,
}

impl Inner {
    fn give(&mut self, chunk: u32, pages: ArenaPages) {
        if let Some(chunk) = self.chunks.get_mut(chunk as usize) {
            self.used_pages = self.used_pages.saturating_sub(pages.len() as usize);
            chunk.free.insert(pages);
        }
    }
}

impl Pool {
    /// Returns a pool without memory.
    #[must_use]
    pub const fn new() -> Self {
        let ledger = RunHolders::new();
        let inner = Inner { chunks: Vec::new(), used_pages: 0, ledger, logged: Vec::new(), ever_logged: 0 };
        Self {
            inner: Guarded::new(inner),
            is_short: AtomicBool::new(false),
            max_bytes: AtomicUsize::new(MAX_SHARED_BYTES),
        }
    }

    /// Sets the maximum size of all chunks, bytes.
    pub fn limit(&self, max_bytes: usize) {
        self.max_bytes.store(max_bytes, Relaxed);
    }

    /// Takes a run; `None` if there is no room now.
    #[must_use]
    pub fn alloc(&self, pages: u32) -> Option<Run> {
        if pages == 0 || pages > CHUNK_PAGES {
            return None;
        }
        let inner = &mut *self.inner.lock();
        let found = inner.chunks.iter_mut().enumerate().find_map(|(number, chunk)| {
            let taken = chunk.free.take(pages)?;
            Some((number as u32, taken, chunk.base + taken.start as usize * PAGE_BYTES))
        });
        let (chunk, taken, address) = found?;
        let id = RunId { chunk, page: taken.start };
        inner.ledger.begin(id, pages);
        inner.used_pages += pages as usize;
        Some(Run { id, address, pages })
    }

    /// True if less than half of the maximum is in use; beyond that, none is taken to be kept for long.
    #[must_use]
    pub fn has_headroom(&self) -> bool {
        self.inner.lock().used_pages * PAGE_BYTES < self.max_bytes.load(Relaxed) / 2
    }

    /// Ends this process's own use of a run, which is reused once no peer holds it.
    pub fn end(&self, id: RunId) {
        let inner = &mut *self.inner.lock();
        if let Some(free) = inner.ledger.end(id) {
            inner.give(id.chunk, free);
        }
    }

    /// Releases everything beyond the first `pages` of a run that was not shared.
    pub fn shorten(&self, id: RunId, pages: u32) {
        let inner = &mut *self.inner.lock();
        if let Some(rest) = inner.ledger.shorten(id, pages) {
            inner.give(id.chunk, rest);
        }
    }

    /// Splits a run that was not shared after the first `pages`, and returns the rest, if any.
    #[must_use]
    pub fn split(&self, id: RunId, pages: u32) -> Option<RunId> {
        let inner = &mut *self.inner.lock();
        let rest = inner.ledger.shorten(id, pages)?;
        let behind = RunId { page: rest.start, ..id };
        inner.ledger.begin(behind, rest.len());
        Some(behind)
    }

    /// Counts a reference that is about to be sent to a peer.
    pub fn hold(&self, id: RunId, peer: u64) {
        self.inner.lock().ledger.hold(id, peer);
    }

    /// Counts a reference that a peer has released.
    pub fn release(&self, id: RunId, peer: u64) {
        let inner = &mut *self.inner.lock();
        if let Some(free) = inner.ledger.release(id, peer) {
            inner.give(id.chunk, free);
        }
    }

    /// Counts a reference that a peer has sent on. False if the peer holds none itself.
    pub fn share(&self, id: RunId, from: u64, to: u64) -> bool {
        self.inner.lock().ledger.share(id, from, to)
    }

    /// True if a run is in use.
    #[must_use]
    pub fn is_used(&self, id: RunId) -> bool {
        self.inner.lock().ledger.is_used(id)
    }

    /// Discounts a reference that a peer has not sent on after all.
    pub fn unshare(&self, id: RunId, from: u64, to: u64) {
        let inner = &mut *self.inner.lock();
        if let Some(free) = inner.ledger.unshare(id, from, to) {
            inner.give(id.chunk, free);
        }
    }

    /// Drops everything that a peer held, after its end.
    pub fn forget(&self, peer: u64) {
        let inner = &mut *self.inner.lock();
        for (id, free) in inner.ledger.forget(peer) {
            inner.give(id.chunk, free);
        }
    }

    /// Keeps what a peer that has ended held of a chunk, until [`Pool::release_logged`].
    pub fn keep_logged(&self, chunk: u32, peer: u64) {
        let inner = &mut *self.inner.lock();
        // Another id than any process's, which are random.
        inner.ever_logged += 1;
        let holder = splitmix64(peer ^ splitmix64(inner.ever_logged));
        if inner.ledger.hold_with(chunk, peer, holder) > 0 {
            inner.logged.push(Logged { chunk, peer, holder });
        }
    }

    /// Returns what is kept for logs.
    #[must_use]
    pub fn logged(&self) -> Vec<Logged> {
        self.inner.lock().logged.clone()
    }

    /// Releases what was kept for a log that does not refer to it any more.
    pub fn release_logged(&self, logged: Logged) {
        self.forget(logged.holder);
        self.inner.lock().logged.retain(|other| *other != logged);
    }

    /// Holds bytes of this process, known to peers as `this`, to which a reference has come back; returns their
    /// address. To be released by [`Pool::unclaim`]. `None` if no holder has reported the reference.
    #[must_use]
    pub fn claim(&self, id: RunId, this: u64, offset_bytes: usize, len_bytes: usize) -> Option<usize> {
        let end_bytes =
            offset_bytes.checked_add(len_bytes).filter(|end| len_bytes > 0 && *end <= CHUNK_BYTES)?;
        let pages = ArenaPages::new((offset_bytes / PAGE_BYTES) as u32, pages_up(end_bytes));
        let inner = &mut *self.inner.lock();
        let base = inner.chunks.get(id.chunk as usize)?.base;
        inner.ledger.claim(id, this, pages).then_some(base + offset_bytes)
    }

    /// Releases bytes held by [`Pool::claim`].
    pub fn unclaim(&self, id: RunId, this: u64) {
        let inner = &mut *self.inner.lock();
        if let Some(free) = inner.ledger.unclaim(id, this) {
            inner.give(id.chunk, free);
        }
    }

    /// Requests another chunk. True for the first request that can be fulfilled.
    pub fn request_chunk(&self) -> bool {
        !self.is_short.swap(true, Relaxed)
    }

    /// True if another chunk was requested and is allowed. Clears the request.
    #[must_use]
    pub fn take_chunk_request(&self) -> bool {
        let chunks = self.inner.lock().chunks.len();
        let may = chunks < MAX_CHUNKS && (chunks + 1) * CHUNK_BYTES <= self.max_bytes.load(Relaxed);
        may && self.is_short.swap(false, Relaxed)
    }

    /// Adds a chunk of [`CHUNK_BYTES`] at `base`; returns its number.
    pub fn add_chunk(&self, base: usize) -> u32 {
        let inner = &mut *self.inner.lock();
        let mut free = Extents::new();
        free.insert(ArenaPages::new(0, CHUNK_PAGES));
        inner.chunks.push(Chunk { base, free });
        inner.chunks.len() as u32 - 1
    }

    /// Returns the number of chunks and the number of references that peers hold.
    #[must_use]
    pub fn usage(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.chunks.len(), inner.ledger.holds())
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_used_again_once_nobody_holds_it() {
        let pool = Pool::new();
        assert_eq!(pool.alloc(3), None);
        assert!(pool.request_chunk() && !pool.request_chunk());
        assert!(pool.take_chunk_request() && !pool.take_chunk_request());
        assert_eq!(pool.add_chunk(0x10_0000), 0);
        let run = pool.alloc(CHUNK_PAGES).expect("room");
        assert_eq!((run.address, run.id), (0x10_0000, RunId { chunk: 0, page: 0 }));
        pool.hold(run.id, 5);
        pool.end(run.id);
        assert_eq!(pool.alloc(1), None);
        pool.release(run.id, 5);
        assert_eq!(pool.alloc(CHUNK_PAGES).map(|run| run.address), Some(0x10_0000));
    }

    #[test]
    fn what_is_split_off_is_used_again_by_itself() {
        let pool = Pool::new();
        pool.add_chunk(0x10_0000);
        let run = pool.alloc(CHUNK_PAGES).expect("room");
        let behind = pool.split(run.id, 3).expect("something");
        assert_eq!(behind, RunId { chunk: 0, page: 3 });
        assert_eq!((pool.split(run.id, 3), pool.alloc(1)), (None, None));
        pool.hold(behind, 5);
        pool.end(behind);
        pool.end(run.id);
        assert_eq!((pool.alloc(4), pool.alloc(3)), (None, Some(Run { pages: 3, ..run })));
        pool.release(behind, 5);
        assert_eq!(pool.alloc(CHUNK_PAGES - 3).map(|run| run.id), Some(behind));
    }

    #[test]
    fn what_comes_back_lies_within_its_run() {
        const THIS: u64 = 4;
        let pool = Pool::new();
        pool.add_chunk(0x10_0000);
        let run = pool.alloc(2).expect("room");
        let len_bytes = 2 * PAGE_BYTES;
        assert_eq!(pool.claim(run.id, THIS, 0, len_bytes), None, "no reference to it was announced");
        pool.hold(run.id, 5);
        pool.end(run.id);
        assert!(pool.share(run.id, 5, THIS));
        for (offset_bytes, len_bytes) in
            [(0, 0), (0, len_bytes + 1), (1, len_bytes), (usize::MAX, 2), (CHUNK_BYTES, 1)]
        {
            assert_eq!(pool.claim(run.id, THIS, offset_bytes, len_bytes), None);
        }
        assert_eq!(pool.claim(RunId { chunk: 1, ..run.id }, THIS, 0, 1), None);
        assert_eq!(pool.claim(run.id, THIS, 5, len_bytes - 5), Some(0x10_0005));
        pool.release(run.id, 5);
        assert_eq!(pool.alloc(CHUNK_PAGES), None, "it is held");
        pool.unclaim(run.id, THIS);
        assert!(pool.alloc(CHUNK_PAGES).is_some());
    }

    #[test]
    fn what_a_log_may_refer_to_outlives_its_holder() {
        const PEER: u64 = 5;
        let pool = Pool::new();
        for base in [0x10_0000, 0x90_0000] {
            pool.add_chunk(base);
        }
        let runs = [(); 2].map(|()| pool.alloc(CHUNK_PAGES).expect("room"));
        pool.hold(runs[0].id, PEER);
        pool.hold(runs[0].id, PEER);
        pool.hold(runs[1].id, PEER);
        pool.end(runs[0].id);
        pool.keep_logged(0, PEER);
        pool.keep_logged(0, PEER + 1);
        pool.forget(PEER);
        pool.end(runs[1].id);
        assert_eq!(pool.alloc(1).map(|run| run.id.chunk), Some(1), "no log may refer to that chunk");
        let [logged] = pool.logged()[..] else { panic!("{:?}", pool.logged()) };
        assert_eq!((logged.chunk, logged.peer), (0, PEER));
        pool.release_logged(logged);
        assert_eq!((pool.logged(), pool.alloc(CHUNK_PAGES).map(|run| run.id)), (vec![], Some(runs[0].id)));
    }

    #[test]
    fn what_may_stay_for_long_leaves_half_of_it() {
        let pool = Pool::new();
        pool.limit(CHUNK_BYTES);
        pool.add_chunk(0x10_0000);
        let run = pool.alloc(CHUNK_PAGES).expect("room");
        assert!(!pool.has_headroom());
        pool.shorten(run.id, CHUNK_PAGES / 2 - 1);
        assert!(pool.has_headroom());
        let other = pool.alloc(1).expect("room");
        assert!(!pool.has_headroom());
        pool.end(other.id);
        pool.end(run.id);
        assert!(pool.has_headroom() && pool.alloc(CHUNK_PAGES).is_some(), "all of it is free again");
    }

    #[test]
    fn there_is_no_more_memory_than_is_allowed() {
        let pool = Pool::new();
        pool.limit(CHUNK_BYTES);
        assert!(pool.request_chunk() && pool.take_chunk_request());
        pool.add_chunk(0x10_0000);
        while pool.alloc(1).is_some() {}
        assert!(pool.request_chunk() && !pool.take_chunk_request() && !pool.request_chunk());
    }
}
