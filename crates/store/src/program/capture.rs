//! What was written to a file since it was synced last.

use crate::layout::MAX_EXTENTS;
use uncopy_sys::iovec::Part;

/// Bytes that are kept between two syncs, at most.
pub const MAX_BYTES: usize = 4 << 20;

/// What was written, in order: where later writes overlap earlier ones, they lie behind them.
#[derive(Debug, Default)]
pub struct Capture {
    extents: Vec<(u64, usize)>,
    bytes: Vec<u8>,
    /// There was more than can be kept, or something whose place is not known.
    is_incomplete: bool,
}

impl Capture {
    /// Nothing.
    pub const NONE: Self = Self { extents: Vec::new(), bytes: Vec::new(), is_incomplete: false };

    /// Nothing, in place of what there was, whose memory stays.
    pub fn clear(&mut self) {
        self.extents.clear();
        self.bytes.clear();
        self.is_incomplete = false;
    }

    /// Something is missing.
    pub fn give_up(&mut self) {
        self.clear();
        self.bytes = Vec::new();
        self.is_incomplete = true;
    }

    /// Whether something is missing.
    #[must_use]
    pub const fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Whether nothing was written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.extents.is_empty() && !self.is_incomplete
    }

    /// Where it belongs (offset in the file, length).
    #[must_use]
    pub fn extents(&self) -> &[(u64, usize)] {
        &self.extents
    }

    /// The bytes of the extents, one behind the other.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The first `len_bytes` bytes of these parts were written at `offset`.
    ///
    /// # Safety
    /// They can be read.
    pub unsafe fn add(&mut self, offset: u64, parts: &[Part], len_bytes: usize) {
        let continues = self.extents.last().is_some_and(|(at, len)| at + *len as u64 == offset);
        let has_room = continues || self.extents.len() < MAX_EXTENTS;
        if self.is_incomplete || len_bytes == 0 {
            return;
        }
        if !has_room || self.bytes.len() + len_bytes > MAX_BYTES {
            return self.give_up();
        }
        let mut left = len_bytes;
        for part in parts {
            let len = part.len_bytes.min(left);
            // SAFETY: readable, says the caller.
            self.bytes
                .extend_from_slice(unsafe { core::slice::from_raw_parts(part.address as *const u8, len) });
            left -= len;
            if left == 0 {
                break;
            }
        }
        match self.extents.last_mut() {
            Some((_, len)) if continues => *len += len_bytes,
            _ => self.extents.push((offset, len_bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(capture: &mut Capture, offset: u64, bytes: &[u8]) {
        let (front, back) = bytes.split_at(bytes.len() / 2);
        let parts = [front, back].map(|part| Part { address: part.as_ptr() as usize, len_bytes: part.len() });
        // SAFETY: they are slices.
        unsafe { capture.add(offset, &parts, bytes.len()) };
    }

    #[test]
    fn writes_that_continue_are_one_extent() {
        let mut capture = Capture::default();
        add(&mut capture, 10, b"abc");
        add(&mut capture, 13, b"def");
        add(&mut capture, 11, b"X");
        assert_eq!(capture.extents(), [(10, 6), (11, 1)]);
        assert_eq!(capture.bytes(), b"abcdefX");
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
