//! The mapping of the recording's file: one address range, in which one file replaces another.
//!
//! Because the range never moves, a thread that was preempted while writing an event cannot write outside it,
//! even if recordings have ended or begun since.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use uncopy_core::recording::FILE_BYTES;

/// The mapped words of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    base: usize,
}

impl Area {
    /// # Safety
    /// `base` must be the address of a mapping of [`FILE_BYTES`] that is readable and writable from here on.
    pub const unsafe fn new(base: usize) -> Self {
        Self { base }
    }

    /// Returns the word at byte offset `offset`, rounded down to a multiple of 8. Offsets past the end of the
    /// file return the first word.
    #[inline]
    pub fn word(self, offset: usize) -> &'static AtomicU64 {
        let offset = if offset <= FILE_BYTES - 8 { offset & !7 } else { 0 };
        // SAFETY: `offset` is a multiple of 8 and at most FILE_BYTES - 8, so the word is aligned and lies
        // inside the mapping, which [`Area::new`] requires to stay readable and writable. All accesses to the
        // mapping are atomic.
        unsafe { &*((self.base + offset) as *const AtomicU64) }
    }

    /// Writes `text` into the words from byte offset `offset` on, padding the last word with zeroes.
    pub fn write_text(self, offset: usize, text: &[u8]) {
        for (index, chunk) in text.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.word(offset + 8 * index).store(u64::from_ne_bytes(bytes), Relaxed);
        }
    }
}
