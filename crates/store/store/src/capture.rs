//! Bytes written to a file since its last sync, laid out so that they can be written to the log as they are.

use crate::device::Aligned;
use crate::layout::{Expected, Identity, MAX_EXTENTS, MAX_FRONT_BYTES, seal_record};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_sys::iovec::Part;

/// Maximum number of bytes captured between two syncs of a file.
pub const MAX_BYTES: usize = 4 << 20;
/// Memory limit of all captures together, bytes.
const MAX_MEMORY_BYTES: usize = 48 << 20;
/// Largest buffer that an empty capture keeps while all captures use more than half of the limit, bytes.
const KEPT_BYTES: usize = 256 << 10;

static MEMORY_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Captured writes of one file, in order: where writes overlap, the later one counts.
#[derive(Debug)]
pub struct Capture {
    extents: Vec<(u64, usize)>,
    /// Room for a record's front, followed by the captured bytes.
    buffer: Aligned,
    len_bytes: usize,
    /// True if there were too many bytes or extents, or a write at an unknown offset.
    is_incomplete: bool,
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.free();
    }
}

impl Default for Capture {
    fn default() -> Self {
        Self::NONE
    }
}

impl Capture {
    /// An empty capture without memory.
    pub const NONE: Self =
        Self { extents: Vec::new(), buffer: Aligned::NONE, len_bytes: 0, is_incomplete: false };

    fn free(&mut self) {
        MEMORY_BYTES.fetch_sub(self.buffer.capacity_bytes(), Relaxed);
        self.buffer = Aligned::NONE;
    }

    /// Makes room for `len_bytes` captured bytes. Returns false if the memory limit forbids it.
    fn grow(&mut self, len_bytes: usize) -> bool {
        let (before, needed) = (self.buffer.capacity_bytes(), MAX_FRONT_BYTES + len_bytes);
        if needed > before {
            if MEMORY_BYTES.load(Relaxed) + (needed - before) > MAX_MEMORY_BYTES {
                return false;
            }
            // The power of two leaves room for padding the record to whole granules.
            self.buffer.resize(needed.next_power_of_two());
            MEMORY_BYTES.fetch_add(self.buffer.capacity_bytes() - before, Relaxed);
        }
        true
    }

    /// Empties the capture, which normally keeps its buffer.
    pub fn clear(&mut self) {
        self.extents.clear();
        self.len_bytes = 0;
        self.is_incomplete = false;
        if self.buffer.capacity_bytes() > KEPT_BYTES && MEMORY_BYTES.load(Relaxed) > MAX_MEMORY_BYTES / 2 {
            self.free();
        }
    }

    /// Drops the captured bytes and marks the capture as incomplete.
    pub fn mark_incomplete(&mut self) {
        self.clear();
        self.free();
        self.is_incomplete = true;
    }

    /// Returns whether a write is missing.
    #[must_use]
    pub const fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Returns whether nothing was written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.extents.is_empty() && !self.is_incomplete
    }

    /// Returns the number of captured bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the extents of the captured bytes (offset in the file, length), both in bytes.
    #[must_use]
    pub fn extents(&self) -> &[(u64, usize)] {
        &self.extents
    }

    /// Seals the captured bytes into a record and returns it. `front` and `whole` are the lengths that
    /// [`measure`](crate::layout::measure) returns, bytes.
    ///
    /// # Panics
    /// If `front` and `whole` are not those of these extents.
    pub fn sealed(
        &mut self,
        (front, whole): (usize, usize),
        expected: &Expected,
        time_ns: u64,
        flushed: u64,
        file: &Identity,
    ) -> &[u8] {
        let record = &mut self.buffer[MAX_FRONT_BYTES - front..][..whole];
        record[..front].fill(0);
        record[front + self.len_bytes..].fill(0);
        seal_record(record, expected, time_ns, flushed, file, &self.extents);
        record
    }

    /// Captures the first `len_bytes` bytes of `parts`, which were written at `offset`.
    ///
    /// # Safety
    /// `parts` hold at least `len_bytes` readable bytes.
    pub unsafe fn add(&mut self, offset: u64, parts: &[Part], len_bytes: usize) {
        let continues = self.extents.last().is_some_and(|(at, len)| at + *len as u64 == offset);
        let has_room = continues || self.extents.len() < MAX_EXTENTS;
        if self.is_incomplete || len_bytes == 0 {
            return;
        }
        let end = self.len_bytes + len_bytes;
        if !has_room || end > MAX_BYTES || !self.grow(end) {
            return self.mark_incomplete();
        }
        let mut into = &mut self.buffer[MAX_FRONT_BYTES..][self.len_bytes..end];
        for part in parts {
            let (room, rest) = into.split_at_mut(part.len_bytes.min(into.len()));
            // SAFETY: this function's caller promises that the first `len_bytes` bytes of `parts` can be read,
            // and `room` is no longer than the rest of those.
            room.copy_from_slice(unsafe {
                core::slice::from_raw_parts(part.address as *const u8, room.len())
            });
            into = rest;
            if into.is_empty() {
                break;
            }
        }
        self.len_bytes = end;
        match self.extents.last_mut() {
            Some((_, len)) if continues => *len += len_bytes,
            _ => self.extents.push((offset, len_bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::decode_record;

    fn add(capture: &mut Capture, offset: u64, bytes: &[u8]) {
        let (front, back) = bytes.split_at(bytes.len() / 2);
        let parts = [front, back].map(|part| Part { address: part.as_ptr() as usize, len_bytes: part.len() });
        // SAFETY: `parts` are the two halves of the borrowed slice `bytes`.
        unsafe { capture.add(offset, &parts, bytes.len()) };
    }

    #[test]
    fn writes_that_continue_are_one_extent() {
        let mut capture = Capture::NONE;
        add(&mut capture, 10, b"abc");
        add(&mut capture, 13, b"def");
        add(&mut capture, 11, b"X");
        assert_eq!(capture.extents(), [(10, 6), (11, 1)]);
        let file = Identity { device: 1, inode: 2, generation: 3, path: b"/a".to_vec() };
        let expected = Expected { log: 1, epoch: 1, sequence: 1, granule_bytes: 512 };
        for _ in 0..2 {
            let record = capture.sealed((512, 1024), &expected, 0, 0, &file);
            assert_eq!((&record[512..519], &record[519..]), (&b"abcdefX"[..], &[0; 505][..]));
            assert!(decode_record(record, &expected).is_some());
        }
        capture.clear();
        assert!(capture.is_empty());
    }

    #[test]
    fn what_cannot_be_kept_is_not_forgotten() {
        let mut capture = Capture::default();
        (0..MAX_EXTENTS as u64).for_each(|at| add(&mut capture, at * 2, b"a"));
        assert!(!capture.is_incomplete());
        add(&mut capture, 100_000, b"a");
        assert!(capture.is_incomplete() && !capture.is_empty());
        add(&mut capture, 0, b"a");
        assert!(capture.extents().is_empty());
        capture.clear();
        add(&mut capture, 0, &vec![1; MAX_BYTES]);
        assert!(!capture.is_incomplete());
        add(&mut capture, MAX_BYTES as u64, b"a");
        assert!(capture.is_incomplete());
    }
}
