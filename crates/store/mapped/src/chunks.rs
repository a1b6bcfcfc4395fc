//! Chunks of persistent memory that records refer to, and what keeps them from being reused.

use crate::layout::Lsn;
use crate::memory::{LINE_BYTES, Persistent};
use crate::record::{Reference, Source};
use std::collections::{BTreeMap, VecDeque};

/// Chunks that records may refer to, by stable numbers.
pub trait Chunks {
    /// Memory of a chunk.
    type Memory<'a>: Persistent
    where
        Self: 'a;

    /// Returns the memory of a chunk; `None`: there is no such chunk.
    fn memory(&self, chunk: u32) -> Option<Self::Memory<'_>>;

    /// Whether a range lies within a chunk. Numbers and offsets may come from damaged memory.
    fn has(&self, chunk: u32, at: u64, len_bytes: usize) -> bool {
        let end = at.checked_add(len_bytes as u64);
        let memory = self.memory(chunk).filter(|_| chunk != u32::MAX);
        memory.zip(end).is_some_and(|(memory, end)| end <= memory.len_bytes() as u64)
    }
}

/// Chunks numbered from 0. An empty slice is a log without references.
impl<M: Persistent> Chunks for [M] {
    type Memory<'a>
        = &'a M
    where
        M: 'a;

    fn memory(&self, chunk: u32) -> Option<&M> {
        self.get(chunk as usize)
    }
}

/// The end of a memory, from `at` on, as a chunk: for logs whose file goes on behind them.
#[derive(Debug)]
pub struct Rest<'a, M> {
    memory: &'a M,
    at: usize,
}

impl<'a, M: Persistent> Rest<'a, M> {
    /// Returns the memory from `at` on, a multiple of a line's length.
    ///
    /// # Panics
    /// If `at` is not within the memory, or in the middle of a line.
    #[must_use]
    pub fn new(memory: &'a M, at: usize) -> Self {
        assert!(at <= memory.len_bytes() && at.is_multiple_of(LINE_BYTES), "a line of the memory");
        Self { memory, at }
    }
}

impl<M: Persistent> Persistent for Rest<'_, M> {
    fn len_bytes(&self) -> usize {
        self.memory.len_bytes() - self.at
    }

    fn load(&self, at: usize, into: &mut [u8]) {
        self.memory.load(self.at + at, into);
    }

    fn load_word(&self, at: usize) -> u64 {
        self.memory.load_word(self.at + at)
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        self.memory.store(self.at + at, bytes);
    }

    fn store_word(&self, at: usize, value: u64) {
        self.memory.store_word(self.at + at, value);
    }

    fn stream(&self, at: usize, bytes: &[u8]) {
        self.memory.stream(self.at + at, bytes);
    }

    fn flush(&self, at: usize, len_bytes: usize) {
        self.memory.flush(self.at + at, len_bytes);
    }

    fn fence(&self) {
        self.memory.fence();
    }
}

/// Copies bytes out of the log's memory or a chunk. Returns false if the chunk does not have them.
///
/// # Panics
/// If an inline source is not within `memory`.
#[must_use]
pub fn load<M: Persistent, C: Chunks + ?Sized>(
    memory: &M,
    chunks: &C,
    source: Source,
    into: &mut [u8],
) -> bool {
    match source {
        Source::Inline(at) => memory.load(at, into),
        Source::Chunk { chunk, at } => {
            let Some(memory) = chunks.memory(chunk).filter(|_| chunks.has(chunk, at, into.len())) else {
                return false;
            };
            memory.load(at as usize, into);
        }
    }
    true
}

/// References of records that are not retired. The bytes of a reference may change only once
/// [`Pins::release`] has returned it (rule 7).
#[derive(Debug, Default)]
pub struct Pins {
    /// References with the end of their record, in the order of the records.
    queue: VecDeque<(Lsn, Reference)>,
    /// Number of references to each chunk.
    chunks: BTreeMap<u32, usize>,
    bytes: u64,
}

impl Pins {
    /// Returns pins of no records.
    #[must_use]
    pub const fn new() -> Self {
        Self { queue: VecDeque::new(), chunks: BTreeMap::new(), bytes: 0 }
    }

    /// Pins the references of a record, which ends at `end`. Records must come in order.
    pub fn pin(&mut self, end: Lsn, references: impl IntoIterator<Item = Reference>) {
        for reference in references {
            self.bytes += u64::from(reference.len_bytes);
            *self.chunks.entry(reference.chunk).or_insert(0) += 1;
            self.queue.push_back((end, reference));
        }
    }

    /// Returns the next reference whose record is retired, and unpins it. `tail` is what
    /// [`Log::release`](crate::log::Log::release) returned.
    pub fn release(&mut self, tail: Lsn) -> Option<Reference> {
        self.queue.front().filter(|(end, _)| *end <= tail)?;
        let (_, reference) = self.queue.pop_front()?;
        self.bytes -= u64::from(reference.len_bytes);
        if let Some(count) = self.chunks.get_mut(&reference.chunk) {
            *count -= 1;
            if *count == 0 {
                self.chunks.remove(&reference.chunk);
            }
        }
        Some(reference)
    }

    /// Whether a record that is not retired refers to the chunk.
    #[must_use]
    pub fn is_pinned(&self, chunk: u32) -> bool {
        self.chunks.contains_key(&chunk)
    }

    /// Returns the number of bytes that records refer to; bytes with several references count several times.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_pinned_until_its_last_record_is_retired() {
        let reference = |chunk| Reference { chunk, at: 0, len_bytes: 100 };
        let mut pins = Pins::new();
        pins.pin(Lsn(64), [reference(1), reference(2)]);
        pins.pin(Lsn(128), [reference(1)]);
        assert_eq!((pins.bytes(), pins.release(Lsn(63))), (300, None));
        assert_eq!(pins.release(Lsn(64)), Some(reference(1)));
        assert!(pins.is_pinned(1));
        assert_eq!(pins.release(Lsn(64)), Some(reference(2)));
        assert!(!pins.is_pinned(2));
        assert_eq!((pins.release(Lsn(127)), pins.release(Lsn(128))), (None, Some(reference(1))));
        assert_eq!((pins.is_pinned(1), pins.bytes()), (false, 0));
    }
}
