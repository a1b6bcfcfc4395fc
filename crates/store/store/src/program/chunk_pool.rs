//! Memory behind a mapped log in which the program's input may be received, so that records can refer to it.
//!
//! ```text
//! alloc ──► filled by an input ──► bytes do not change ──► no view and no record ──► free
//!              references = views of the engine (one owner) + records that are not retired
//! ```

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use uncopy_core::addr::{ArenaPages, PAGE_BYTES, pages_up};
use uncopy_core::extents::Extents;
use uncopy_mapped::chunks::Pins;
use uncopy_mapped::layout::Lsn;
use uncopy_mapped::record::Reference;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::iovec::Part;

/// Minimum length of bytes that a record refers to. Below, a copy costs less than the extent and the pin.
pub const MIN_REFERENCE_BYTES: usize = 4096;

/// Pages of a run, and the number of its references.
#[derive(Debug)]
struct Held {
    pages: ArenaPages,
    references: u32,
    /// Whether a record has referred to the run.
    is_logged: bool,
}

/// Number of runs that inputs have filled, and of those that no record ever referred to.
static FILLED: AtomicU64 = AtomicU64::new(0);
static MISSED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of inputs that were received into a mapped log, and of those that were released and had never
/// been logged.
#[must_use]
pub fn optimistic_inputs() -> (u64, u64) {
    (FILLED.load(Relaxed), MISSED.load(Relaxed))
}

#[derive(Debug)]
struct Inner {
    free: Extents,
    runs: BTreeMap<u32, Held>,
    pins: Pins,
    is_closed: bool,
}

impl Inner {
    fn release(&mut self, start: u32) {
        let Some(held) = self.runs.get_mut(&start) else { return };
        held.references -= 1;
        if held.references == 0 {
            let pages = held.pages;
            if !held.is_logged {
                MISSED.fetch_add(1, Relaxed);
            }
            self.runs.remove(&start);
            if !self.is_closed {
                self.free.insert(pages);
            }
        }
    }

    /// Returns the first page of the run that a page belongs to.
    fn run_of(&self, page: u32) -> Option<u32> {
        let (start, held) = self.runs.range(..=page).next_back()?;
        (page < held.pages.end).then_some(*start)
    }
}

/// Memory behind a mapped log: chunk 0 of its records.
pub struct ChunkPool {
    base: usize,
    len_bytes: usize,
    inner: Guarded<Inner>,
}

/// A run of pages of the pool, which its owner fills once.
#[derive(Debug)]
pub struct ChunkRun {
    pool: &'static ChunkPool,
    start: u32,
}

impl ChunkRun {
    /// Returns the address of the first byte.
    #[must_use]
    pub const fn address(&self) -> usize {
        self.pool.base + self.start as usize * PAGE_BYTES
    }

    /// Ends the filling of the run by an input: gives back the pages behind the first `len_bytes` bytes.
    pub fn finish(&mut self, len_bytes: usize) {
        FILLED.fetch_add(1, Relaxed);
        let inner = &mut *self.pool.inner.lock();
        if let Some(held) = inner.runs.get_mut(&self.start) {
            let end = (self.start + pages_up(len_bytes).max(1)).min(held.pages.end);
            let rest = ArenaPages::new(end, held.pages.end);
            held.pages = ArenaPages::new(self.start, end);
            if !inner.is_closed {
                inner.free.insert(rest);
            }
        }
    }
}

impl core::fmt::Debug for ChunkPool {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ChunkPool").field("base", &self.base).field("len_bytes", &self.len_bytes).finish()
    }
}

impl Drop for ChunkRun {
    fn drop(&mut self) {
        self.pool.inner.lock().release(self.start);
    }
}

impl ChunkPool {
    /// Returns a pool of `len_bytes` bytes (whole pages) at `base`, all free.
    #[must_use]
    pub fn new(base: usize, len_bytes: usize) -> Self {
        let mut free = Extents::new();
        free.insert(ArenaPages::new(0, u32::try_from(len_bytes / PAGE_BYTES).unwrap_or(u32::MAX)));
        let inner = Inner { free, runs: BTreeMap::new(), pins: Pins::new(), is_closed: false };
        Self { base, len_bytes, inner: Guarded::new(inner) }
    }

    /// Takes a run of at least `len_bytes` bytes; `None`: there is no room now.
    #[must_use]
    pub fn alloc(&'static self, len_bytes: usize) -> Option<ChunkRun> {
        let wanted = pages_up(len_bytes).max(1);
        let inner = &mut *self.inner.lock();
        let pages = inner.free.take(wanted)?;
        inner.runs.insert(pages.start, Held { pages, references: 1, is_logged: false });
        Some(ChunkRun { pool: self, start: pages.start })
    }

    /// Returns how a record refers to bytes; `None`: they do not lie in the pool, or are too few.
    #[must_use]
    pub fn reference(&self, part: Part) -> Option<Reference> {
        let at = part.address.checked_sub(self.base)?;
        let is_within = at.checked_add(part.len_bytes).is_some_and(|end| end <= self.len_bytes);
        let len_bytes = u32::try_from(part.len_bytes).ok()?;
        (is_within && part.len_bytes >= MIN_REFERENCE_BYTES).then_some(Reference {
            chunk: 0,
            at: at as u64,
            len_bytes,
        })
    }

    /// Keeps the bytes of references until the record that ends at `end` is retired. Records come in order.
    pub fn pin(&self, end: Lsn, references: impl Iterator<Item = Reference>) {
        let inner = &mut *self.inner.lock();
        for reference in references {
            let run = inner.run_of((reference.at / PAGE_BYTES as u64) as u32);
            if let Some(held) = run.and_then(|start| inner.runs.get_mut(&start)) {
                held.references += 1;
                held.is_logged = true;
                inner.pins.pin(end, [reference]);
            }
        }
    }

    /// Releases the references of records before `tail`, which are retired. Returns the number of bytes that others
    /// refer to.
    pub fn retire(&self, tail: Lsn) -> u64 {
        let inner = &mut *self.inner.lock();
        while let Some(reference) = inner.pins.release(tail) {
            if let Some(start) = inner.run_of((reference.at / PAGE_BYTES as u64) as u32) {
                inner.release(start);
            }
        }
        inner.pins.bytes()
    }

    /// Returns the length of the pool, bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Takes no more runs from here on. Returns the runs in use: offset and length, bytes.
    pub fn close(&self) -> Vec<(usize, usize)> {
        let inner = &mut *self.inner.lock();
        inner.free = Extents::new();
        inner.is_closed = true;
        let runs = inner.runs.values();
        runs.map(|held| (held.pages.start as usize * PAGE_BYTES, held.pages.len_bytes())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_reused_once_neither_its_owner_nor_a_record_has_it() {
        let pool: &'static ChunkPool = Box::leak(Box::new(ChunkPool::new(1 << 20, 4 * PAGE_BYTES)));
        let mut run = pool.alloc(3 * PAGE_BYTES).expect("room");
        assert!(pool.alloc(2 * PAGE_BYTES).is_none());
        run.finish(2 * PAGE_BYTES);
        let part = Part { address: run.address() + PAGE_BYTES, len_bytes: PAGE_BYTES };
        let reference = pool.reference(part).expect("in the pool");
        assert_eq!((reference.at, reference.len_bytes), (PAGE_BYTES as u64, PAGE_BYTES as u32));
        assert!(pool.reference(Part { address: (1 << 20) - 1, len_bytes: PAGE_BYTES }).is_none());
        assert!(pool.reference(Part { address: 1 << 20, len_bytes: 5 * PAGE_BYTES }).is_none());
        pool.pin(Lsn(64), [reference, reference].into_iter());
        drop(run);
        assert!(pool.alloc(3 * PAGE_BYTES).is_none());
        assert_eq!(pool.retire(Lsn(63)), 2 * PAGE_BYTES as u64);
        assert!(pool.alloc(3 * PAGE_BYTES).is_none());
        assert_eq!(pool.retire(Lsn(64)), 0);
        assert!(pool.alloc(4 * PAGE_BYTES).is_some());
    }
}
