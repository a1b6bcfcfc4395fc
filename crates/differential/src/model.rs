//! The obviously right side: byte arrays in memory that no interposed call touches.

use std::fmt;
use std::sync::OnceLock;

use uncopy_tests::plain::{self, PlainBytes};

use crate::known::Known;

/// Bytes of the pool.
pub const POOL_BYTES: usize = 16 << 20;

/// Random bytes that everything that is received is taken from.
pub fn pool() -> &'static PlainBytes {
    static POOL: OnceLock<PlainBytes> = OnceLock::new();
    POOL.get_or_init(|| {
        let mut pool = PlainBytes::new(POOL_BYTES);
        pool.fill(0, POOL_BYTES, 0x756e_636f_7079, 0);
        pool
    })
}

/// The place in the pool that a number stands for, with room for `len` bytes behind it.
#[must_use]
pub fn pool_place(seed: usize, len: usize) -> usize {
    seed.wrapping_mul(4099) % (POOL_BYTES - len)
}

/// What some bytes must be, as far as that is known.
#[derive(Debug)]
pub struct Mirror {
    bytes: PlainBytes,
    known: Known,
}

/// Bytes that are not what the model says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Offset of the first one.
    pub at: usize,
    /// What it must be.
    pub expected: u8,
    /// What it is.
    pub found: u8,
    /// How many of the checked bytes differ from there on, and how many were checked.
    pub count: (usize, usize),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, expected, found, count: (wrong, checked) } = self;
        write!(f, "offset {at} is {found:#04x}, must be {expected:#04x}; {wrong} of {checked} bytes differ")
    }
}

impl Mirror {
    /// Room for `len` bytes; nothing is known.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { bytes: PlainBytes::new(len), known: Known::new() }
    }

    /// Bytes that it has room for.
    #[must_use]
    pub const fn room(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets `at..at + len`.
    pub fn forget(&mut self, at: usize, len: usize) {
        self.known.remove(at, at + len);
    }

    /// Forgets everything.
    pub fn forget_all(&mut self) {
        self.known = Known::new();
    }

    /// Sets bytes to one value.
    pub fn set(&mut self, at: usize, len: usize, value: u8) {
        assert!(at + len <= self.room(), "range inside the mirror");
        // SAFETY: the range is inside the mapping, which `self` owns.
        unsafe { plain::set(self.bytes.at(at), len, value) };
        self.known.insert(at, at + len);
    }

    /// Takes bytes over from the pool.
    pub fn take_from_pool(&mut self, at: usize, place: usize, len: usize) {
        assert!(place + len <= POOL_BYTES, "range inside the pool");
        // SAFETY: the pool has the range and is never written again.
        unsafe { self.take(at, pool().at(place), len) };
    }

    /// Takes bytes over from memory: they are what they are.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes.
    pub unsafe fn take(&mut self, at: usize, from: *const u8, len: usize) {
        assert!(at + len <= self.room(), "range inside the mirror");
        // SAFETY: `from` is readable, says the caller; the range is inside the mapping.
        unsafe { plain::copy(self.bytes.at(at), from, len) };
        self.known.insert(at, at + len);
    }

    /// Copies from another mirror, with what is known there.
    pub fn copy_from(&mut self, at: usize, other: &Self, from: usize, len: usize) {
        assert!(at + len <= self.room() && from + len <= other.room(), "ranges inside the mirrors");
        // SAFETY: both ranges are inside their mappings, which are different ones.
        unsafe { plain::copy(self.bytes.at(at), other.bytes.at(from), len) };
        let known: Vec<_> = other.known.within(from, from + len).collect();
        self.known.copy(at, &known, from, len);
    }

    /// Copies inside the mirror, as memmove does.
    pub fn move_within(&mut self, at: usize, from: usize, len: usize) {
        assert!(at + len <= self.room() && from + len <= self.room(), "ranges inside the mirror");
        // SAFETY: both ranges are inside the mapping.
        unsafe { plain::shift(self.bytes.at(at), self.bytes.at(from), len) };
        let known: Vec<_> = self.known.within(from, from + len).collect();
        self.known.copy(at, &known, from, len);
    }

    /// Compares `len` bytes at `found` with what must be at `at`, as far as that is known.
    ///
    /// # Safety
    /// `found` must be readable for `len` bytes.
    #[must_use]
    pub unsafe fn difference(&self, found: *const u8, at: usize, len: usize) -> Option<Difference> {
        for (start, end) in self.known.within(at, at + len) {
            // SAFETY: `found` is readable for `len` bytes, says the caller, of which this is a part; the other range is
            // inside the mapping.
            let first =
                unsafe { plain::first_difference(found.add(start - at), self.bytes.at(start), end - start) };
            let Some(first) = first else { continue };
            let wrong = |offset: &usize| {
                // SAFETY: an offset within the part that was just compared, at both places.
                unsafe { found.add(offset - at).read_volatile() != self.bytes.at(*offset).read_volatile() }
            };
            let count = (start + first..end).filter(wrong).count();
            // SAFETY: the first difference, within the part that was just compared, at both places.
            let (found, expected) = unsafe {
                (found.add(start + first - at).read_volatile(), self.bytes.at(start + first).read_volatile())
            };
            return Some(Difference { at: start + first, expected, found, count: (count, end - start) });
        }
        None
    }

    /// Where the model holds byte `at`: to be read by bare system calls only.
    #[must_use]
    pub fn pointer(&self, at: usize) -> *const u8 {
        self.bytes.at(at)
    }
}
