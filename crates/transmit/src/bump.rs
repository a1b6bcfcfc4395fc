//! Ordinary bytes that go along with references: copied once to where nothing is ever written again.
//!
//! ```text
//! area   │ header 1 │ trailer 1 │ header 2 │ … free … │      each offset is written once;
//!        0                                used        AREA     at the end the pages are dropped, and fresh ones begin
//! ```
//!
//! The kernel may hold a page of it for as long as it likes. That the process gets fresh pages afterwards is
//! what `madvise(MADV_DONTNEED)` and a new mapping do on private anonymous memory: the old ones stay with whoever
//! refers to them.

use uncopy_sys::area::Area;
use uncopy_sys::{bytes, readable};

/// Bytes of the area. Pages appear when they are first written to; a larger one only takes longer to go
/// round.
pub const AREA_BYTES: usize = 256 << 10;

/// Memory each byte of which is written once.
#[derive(Debug)]
pub struct Bump {
    area: Option<Area>,
    used_bytes: usize,
}

/// Why bytes could not be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// They cannot be read: the kernel is to say so.
    Unreadable,
    /// There is no memory.
    NoMemory,
}

impl Bump {
    /// One that has no memory yet.
    pub const fn new() -> Self {
        Self { area: None, used_bytes: 0 }
    }

    /// Sees to it that `len_bytes` bytes (at most [`AREA_BYTES`]) can be appended. What was appended before must
    /// have been handed to the kernel.
    pub fn make_room(&mut self, len_bytes: usize) -> Result<(), Refusal> {
        if self.area.is_some() && AREA_BYTES - self.used_bytes >= len_bytes {
            return Ok(());
        }
        let renewed = match self.area.take() {
            Some(area) => area.renewed(),
            None => Area::new(AREA_BYTES),
        };
        self.area = renewed.ok();
        self.used_bytes = 0;
        if self.area.is_some() { Ok(()) } else { Err(Refusal::NoMemory) }
    }

    /// Appends bytes for which there is room; their address.
    pub fn append(&mut self, source: usize, len_bytes: usize) -> Result<usize, Refusal> {
        let Some(area) = &self.area else { return Err(Refusal::NoMemory) };
        if AREA_BYTES - self.used_bytes < len_bytes {
            return Err(Refusal::NoMemory);
        }
        if !readable::is_readable(source, len_bytes) {
            return Err(Refusal::Unreadable);
        }
        let at = area.base() + self.used_bytes;
        self.used_bytes += len_bytes;
        // SAFETY: the source was readable just now, the room is the area's own and written to by nobody else.
        unsafe { bytes::copy(at as *mut u8, source as *const u8, len_bytes) };
        Ok(at)
    }

    /// Gives the memory up: in a child, whose copy of it is of no use.
    pub fn forget(&mut self) {
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
            bump.make_room(text.len()).expect("memory");
            let at = bump.append(text.as_ptr() as usize, text.len()).expect("room");
            if at > last {
                // SAFETY: the bytes were appended, and those behind them belong to the area or were not asked for.
                assert_eq!(unsafe { *(at as *const u8) }, 7, "{round}");
            } else {
                assert!(round > 0, "goes back to the start when it is full");
            }
            last = at;
        }
        bump.forget();
        assert_eq!(bump.append(text.as_ptr() as usize, 1), Err(Refusal::NoMemory));
    }

    #[test]
    fn bytes_that_cannot_be_read_are_refused() {
        let mut bump = Bump::new();
        bump.make_room(64).expect("memory");
        for len in [1, 7, 8, 64] {
            assert_eq!(bump.append(8, len), Err(Refusal::Unreadable));
            assert_eq!(bump.append(usize::MAX - len + 1, len), Err(Refusal::Unreadable));
        }
        let text = *b"abc";
        assert!(bump.append(text.as_ptr() as usize, 3).is_ok());
    }
}
