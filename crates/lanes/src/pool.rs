//! This process's own shared memory: chunks that peers map read-only, divided into runs.
//!
//! The lanes' thread makes chunks, because descriptors are its own; whoever finds no room asks for one and does without
//! meanwhile.

use crate::runs::{Ledger, RunId};
use uncopy_core::addr::{ArenaPages, PAGE_BYTES};
use uncopy_core::bounds::MAX_SHARED_BYTES;
use uncopy_core::extents::Extents;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Pages of a chunk.
pub const CHUNK_PAGES: u32 = 1024;
/// Bytes of a chunk.
pub const CHUNK_BYTES: usize = CHUNK_PAGES as usize * PAGE_BYTES;
/// Chunks of a process, at most.
pub const MAX_CHUNKS: usize = 1024;

/// A run of pages of this process's that its holder alone may fill.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// What it is known by.
    pub id: RunId,
    /// Address of its first page.
    pub address: usize,
    /// Its pages.
    pub pages: u32,
}

struct Chunk {
    base: usize,
    free: Extents,
}

struct Inner {
    chunks: Vec<Chunk>,
    /// Pages of runs that somebody needs.
    used_pages: usize,
    ledger: Ledger,
}

/// The chunks and who holds what of them.
pub struct Pool {
    inner: Guarded<Inner>,
    /// Somebody has found no room.
    is_short: AtomicBool,
    /// Bytes that chunks may have, all together.
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
    /// No memory.
    #[must_use]
    pub const fn new() -> Self {
        let inner = Inner { chunks: Vec::new(), used_pages: 0, ledger: Ledger::new() };
        Self {
            inner: Guarded::new(inner),
            is_short: AtomicBool::new(false),
            max_bytes: AtomicUsize::new(MAX_SHARED_BYTES),
        }
    }

    /// How much there may be.
    pub fn limit(&self, max_bytes: usize) {
        self.max_bytes.store(max_bytes, Relaxed);
    }

    /// Takes a run; `None`: there is no room now.
    #[must_use]
    pub fn take(&self, pages: u32) -> Option<Run> {
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

    /// Whether less than half of what there may be is used: what may stay for long must leave room for what is sent.
    #[must_use]
    pub fn is_roomy(&self) -> bool {
        self.inner.lock().used_pages * PAGE_BYTES < self.max_bytes.load(Relaxed) / 2
    }

    /// Gives a run up; it is used again once no peer holds it.
    pub fn end(&self, id: RunId) {
        let inner = &mut *self.inner.lock();
        if let Some(free) = inner.ledger.end(id) {
            inner.give(id.chunk, free);
        }
    }

    /// Gives up what lies behind the first `pages` of a run, of which nobody else knows.
    pub fn shorten(&self, id: RunId, pages: u32) {
        let inner = &mut *self.inner.lock();
        if let Some(rest) = inner.ledger.shorten(id, pages) {
            inner.give(id.chunk, rest);
        }
    }

    /// Makes what lies behind the first `pages` of a run, of which nobody else knows, a run of its own. `None`: there is nothing there.
    #[must_use]
    pub fn split(&self, id: RunId, pages: u32) -> Option<RunId> {
        let inner = &mut *self.inner.lock();
        let rest = inner.ledger.shorten(id, pages)?;
        let behind = RunId { page: rest.start, ..id };
        inner.ledger.begin(behind, rest.len());
        Some(behind)
    }

    /// A reference to a run is about to go to a peer.
    pub fn hold(&self, id: RunId, peer: u64) {
        self.inner.lock().ledger.hold(id, peer);
    }

    /// A peer holds a run once less.
    pub fn release(&self, id: RunId, peer: u64) {
        let inner = &mut *self.inner.lock();
        if let Some(free) = inner.ledger.release(id, peer) {
            inner.give(id.chunk, free);
        }
    }

    /// A peer has sent a reference on. Whether it is to be believed.
    pub fn share(&self, id: RunId, from: u64, to: u64) -> bool {
        self.inner.lock().ledger.share(id, from, to)
    }

    /// A peer has not sent the reference on after all.
    pub fn unshare(&self, id: RunId, from: u64, to: u64) {
        let inner = &mut *self.inner.lock();
        if let Some(free) = inner.ledger.unshare(id, from, to) {
            inner.give(id.chunk, free);
        }
    }

    /// A peer has ended.
    pub fn forget(&self, peer: u64) {
        let inner = &mut *self.inner.lock();
        for (id, free) in inner.ledger.forget(peer) {
            inner.give(id.chunk, free);
        }
    }

    /// Where bytes of this process's own lie that a peer sends back to it; `None`: there are none such.
    #[must_use]
    pub fn address(&self, chunk: u32, offset_bytes: usize, len_bytes: usize) -> Option<usize> {
        let is_within = offset_bytes.checked_add(len_bytes)? <= CHUNK_BYTES;
        let inner = self.inner.lock();
        let base = inner.chunks.get(chunk as usize)?.base;
        is_within.then_some(base + offset_bytes)
    }

    /// Somebody has found no room: another chunk is wanted. Whether nobody had before, since one could be had.
    pub fn want_chunk(&self) -> bool {
        !self.is_short.swap(true, Relaxed)
    }

    /// Whether another chunk is wanted, and may be had. Asks once.
    #[must_use]
    pub fn wants_chunk(&self) -> bool {
        let chunks = self.inner.lock().chunks.len();
        let may = chunks < MAX_CHUNKS && (chunks + 1) * CHUNK_BYTES <= self.max_bytes.load(Relaxed);
        may && self.is_short.swap(false, Relaxed)
    }

    /// Adds a chunk of [`CHUNK_BYTES`] at `base`; its number.
    pub fn add_chunk(&self, base: usize) -> u32 {
        let inner = &mut *self.inner.lock();
        let mut free = Extents::new();
        free.insert(ArenaPages::new(0, CHUNK_PAGES));
        inner.chunks.push(Chunk { base, free });
        inner.chunks.len() as u32 - 1
    }

    /// Chunks, and how often peers hold runs of them.
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
        assert_eq!(pool.take(3), None);
        assert!(pool.want_chunk() && !pool.want_chunk());
        assert!(pool.wants_chunk() && !pool.wants_chunk());
        assert_eq!(pool.add_chunk(0x10_0000), 0);
        let run = pool.take(CHUNK_PAGES).expect("room");
        assert_eq!((run.address, run.id), (0x10_0000, RunId { chunk: 0, page: 0 }));
        pool.hold(run.id, 5);
        pool.end(run.id);
        assert_eq!(pool.take(1), None);
        pool.release(run.id, 5);
        assert_eq!(pool.take(CHUNK_PAGES).map(|run| run.address), Some(0x10_0000));
    }

    #[test]
    fn what_is_split_off_is_used_again_by_itself() {
        let pool = Pool::new();
        pool.add_chunk(0x10_0000);
        let run = pool.take(CHUNK_PAGES).expect("room");
        let behind = pool.split(run.id, 3).expect("something");
        assert_eq!(behind, RunId { chunk: 0, page: 3 });
        assert_eq!((pool.split(run.id, 3), pool.take(1)), (None, None));
        pool.hold(behind, 5);
        pool.end(behind);
        pool.end(run.id);
        assert_eq!((pool.take(4), pool.take(3)), (None, Some(Run { pages: 3, ..run })));
        pool.release(behind, 5);
        assert_eq!(pool.take(CHUNK_PAGES - 3).map(|run| run.id), Some(behind));
    }

    #[test]
    fn what_lies_outside_of_a_chunk_has_no_address() {
        let pool = Pool::new();
        pool.add_chunk(0x10_0000);
        assert_eq!(pool.address(0, CHUNK_BYTES - 1, 1), Some(0x10_0000 + CHUNK_BYTES - 1));
        assert_eq!(pool.address(0, CHUNK_BYTES - 1, 2), None);
        assert_eq!(pool.address(0, usize::MAX, 2), None);
        assert_eq!(pool.address(1, 0, 1), None);
    }

    #[test]
    fn what_may_stay_for_long_leaves_half_of_it() {
        let pool = Pool::new();
        pool.limit(CHUNK_BYTES);
        pool.add_chunk(0x10_0000);
        let run = pool.take(CHUNK_PAGES).expect("room");
        assert!(!pool.is_roomy());
        pool.shorten(run.id, CHUNK_PAGES / 2 - 1);
        assert!(pool.is_roomy());
        let other = pool.take(1).expect("room");
        assert!(!pool.is_roomy());
        pool.end(other.id);
        pool.end(run.id);
        assert!(pool.is_roomy() && pool.take(CHUNK_PAGES).is_some(), "all of it is free again");
    }

    #[test]
    fn there_is_no_more_memory_than_is_allowed() {
        let pool = Pool::new();
        pool.limit(CHUNK_BYTES);
        assert!(pool.want_chunk() && pool.wants_chunk());
        pool.add_chunk(0x10_0000);
        while pool.take(1).is_some() {}
        assert!(pool.want_chunk() && !pool.wants_chunk() && !pool.want_chunk());
    }
}
