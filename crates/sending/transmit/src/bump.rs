//! Write-once memory for copied parts that are sent along with references.
//!
//! ```text
//! area   │ header 1 │ trailer 1 │ header 2 │ … free … │      each offset is written once;
//!        0                                used        AREA     when full, fresh pages replace all of them
//! ```
//!
//! The kernel may hold a page for any length of time. After `madvise(MADV_DONTNEED)` or a new mapping of
//! private anonymous memory, the process gets fresh pages; the old ones stay with whoever refers to them.

use uncopy_sys::area::Area;
use uncopy_sys::{bytes, readable};

/// Size of the area in bytes. Pages are allocated on first write; a larger area is only renewed less often.
pub const AREA_BYTES: usize = 256 << 10;

/// Memory in which each byte is written once.
#[derive(Debug)]
pub struct Bump {
    area: Option<Area>,
    used_bytes: usize,
}

/// Reason why bytes could not be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// The source is unreadable. The kernel should report the error.
    Unreadable,
    NoMemory,
}

impl Bump {
    /// Returns an area without memory.
    pub const fn new() -> Self {
        Self { area: None, used_bytes: 0 }
    }

    /// Ensures that `len_bytes` bytes (at most [`AREA_BYTES`]) can be appended. Bytes appended before must
    /// already have been passed to the kernel.
    pub fn reserve(&mut self, len_bytes: usize) -> Result<(), AppendError> {
        if self.area.is_some() && AREA_BYTES - self.used_bytes >= len_bytes {
            return Ok(());
        }
        let renewed = match self.area.take() {
            Some(area) => area.renewed(),
            None => Area::new(AREA_BYTES),
        };
        self.area = renewed.ok();
        self.used_bytes = 0;
        if self.area.is_some() { Ok(()) } else { Err(AppendError::NoMemory) }
    }

    /// Copies bytes into the area, for which there must be room, and returns their address.
    pub fn append(&mut self, source: usize, len_bytes: usize) -> Result<usize, AppendError> {
        let Some(area) = &self.area else { return Err(AppendError::NoMemory) };
        if AREA_BYTES - self.used_bytes < len_bytes {
            return Err(AppendError::NoMemory);
        }
        if !readable::is_readable(source, len_bytes) {
            return Err(AppendError::Unreadable);
        }
        let at = area.base() + self.used_bytes;
        self.used_bytes += len_bytes;
        // SAFETY: `is_readable` has just checked the source; the destination is unused space in the area,
        // which nothing else refers to.
        unsafe { bytes::copy(at as *mut u8, source as *const u8, len_bytes) };
        Ok(at)
    }

    /// Unmaps the memory. Used in a forked child, which must not reuse its copy.
    pub fn release(&mut self) {
        if let Some(area) = self.area.take() {
            area.unmap();
        }
        self.used_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_is_written_twice_before_the_pages_are_fresh() {
        let mut bump = Bump::new();
        let text = [7u8; 5000];
        let mut last = 0;
        for round in 0..200 {
            bump.reserve(text.len()).expect("memory");
            let at = bump.append(text.as_ptr() as usize, text.len()).expect("room");
            if at > last {
                // SAFETY: `append` has just written at least one byte at `at`.
                assert_eq!(unsafe { *(at as *const u8) }, 7, "{round}");
            } else {
                assert!(round > 0, "goes back to the start when it is full");
            }
            last = at;
        }
        bump.release();
        assert_eq!(bump.append(text.as_ptr() as usize, 1), Err(AppendError::NoMemory));
    }

    #[test]
    fn bytes_that_cannot_be_read_are_refused() {
        let mut bump = Bump::new();
        bump.reserve(64).expect("memory");
        for len in [1, 7, 8, 64] {
            assert_eq!(bump.append(8, len), Err(AppendError::Unreadable));
            assert_eq!(bump.append(usize::MAX - len + 1, len), Err(AppendError::Unreadable));
        }
        let text = *b"abc";
        assert!(bump.append(text.as_ptr() as usize, 3).is_ok());
    }
}
