//! Memory for unit tests, which counts what is done to it. Crash states are tests/crash's concern.

use crate::layout::Superblock;
use crate::memory::{LINE_BYTES, Persistent};
use crate::table::Identity;
use core::cell::{Cell, RefCell};

/// Memory that loses nothing.
#[derive(Debug)]
pub(crate) struct Counted {
    bytes: RefCell<Vec<u8>>,
    pub(crate) fences: Cell<usize>,
    pub(crate) flushed_lines: Cell<usize>,
    pub(crate) streamed_bytes: Cell<usize>,
}

impl Counted {
    pub(crate) fn new(len_bytes: usize) -> Self {
        let bytes = RefCell::new(vec![0; len_bytes]);
        Self { bytes, fences: Cell::new(0), flushed_lines: Cell::new(0), streamed_bytes: Cell::new(0) }
    }

    /// Returns the numbers of fences, flushed lines and streamed bytes since the last call.
    pub(crate) fn take_counts(&self) -> (usize, usize, usize) {
        (self.fences.take(), self.flushed_lines.take(), self.streamed_bytes.take())
    }
}

impl Persistent for Counted {
    fn len_bytes(&self) -> usize {
        self.bytes.borrow().len()
    }

    fn load(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes.borrow()[at..at + into.len()]);
    }

    fn load_word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        self.load(at, &mut word);
        u64::from_ne_bytes(word)
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn store_word(&self, at: usize, value: u64) {
        self.store(at, &value.to_ne_bytes());
    }

    fn stream(&self, at: usize, bytes: &[u8]) {
        self.streamed_bytes.set(self.streamed_bytes.get() + bytes.len());
        self.store(at, bytes);
    }

    fn flush(&self, at: usize, len_bytes: usize) {
        let lines = (at + len_bytes).div_ceil(LINE_BYTES) - at / LINE_BYTES;
        self.flushed_lines.set(self.flushed_lines.get() + if len_bytes == 0 { 0 } else { lines });
    }

    fn fence(&self) {
        self.fences.set(self.fences.get() + 1);
    }
}

/// Returns the superblock of a log with two entries and a ring of this length.
pub(crate) const fn superblock(ring_bytes: usize) -> Superblock {
    let len_bytes = Superblock::min_len_bytes(2) - 4096 + ring_bytes as u64;
    Superblock { log: 77, machine: 1, len_bytes, entries: 2 }
}

pub(crate) fn identity(inode: u64) -> Identity {
    Identity { device: 1, inode, generation: 0, path: b"/a".to_vec() }
}
