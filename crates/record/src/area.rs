//! The mapping that the file of a recording lies in: one range of addresses for the whole life of the process, in
//! which one file takes the place of another.
//!
//! A thread that was stopped in the middle of an event so never writes anywhere else, whatever has begun or ended since.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use uncopy_core::recording::FILE_BYTES;

/// The words of a recording.
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

    /// The word at an offset, which is cut to what there is.
    #[inline]
    pub fn word(self, offset: usize) -> &'static AtomicU64 {
        let offset = if offset <= FILE_BYTES - 8 { offset & !7 } else { 0 };
        // SAFETY: the promise of `new`; inside the mapping and aligned, and every word of it is atomic to everybody.
        unsafe { &*((self.base + offset) as *const AtomicU64) }
    }

    /// Writes text into words from `offset` on, the last filled up with zeroes.
    pub fn write_text(self, offset: usize, text: &[u8]) {
        for (index, chunk) in text.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.word(offset + 8 * index).store(u64::from_ne_bytes(bytes), Relaxed);
        }
    }
}
