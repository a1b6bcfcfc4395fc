//! The reference side: byte arrays in memory that no interposed call touches.

use std::fmt;
use std::sync::OnceLock;

use uncopy_tests::oracle::{self, OracleBytes};

use crate::known_ranges::KnownRanges;

/// Size of the pool, in bytes.
pub const POOL_BYTES: usize = 16 << 20;

/// Returns the pool: random bytes, from which all received data is taken.
pub fn pool() -> &'static OracleBytes {
    static POOL: OnceLock<OracleBytes> = OnceLock::new();
    POOL.get_or_init(|| {
        let mut pool = OracleBytes::new(POOL_BYTES);
        pool.fill(0, POOL_BYTES, 0x756e_636f_7079, 0);
        pool
    })
}

/// Returns the pool offset for `seed`, with at least `len` bytes behind it.
#[must_use]
pub fn pool_offset(seed: usize, len: usize) -> usize {
    seed.wrapping_mul(4099) % (POOL_BYTES - len)
}

/// Expected bytes of one object, with the ranges that are known.
#[derive(Debug)]
pub struct Mirror {
    bytes: OracleBytes,
    known: KnownRanges,
}

/// A difference between memory and model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Offset of the first byte that differs.
    pub at: usize,
    /// Expected value of that byte.
    pub expected: u8,
    /// Actual value of that byte.
    pub found: u8,
    /// Number of bytes that differ from there on, and number of bytes checked.
    pub count: (usize, usize),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, expected, found, count: (wrong, checked) } = self;
        write!(f, "offset {at} is {found:#04x}, must be {expected:#04x}; {wrong} of {checked} bytes differ")
    }
}

impl Mirror {
    /// Returns a mirror of `len` bytes, all unknown.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { bytes: OracleBytes::new(len), known: KnownRanges::new() }
    }

    /// Returns the capacity in bytes.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Marks `at..at + len` as unknown.
    pub fn forget(&mut self, at: usize, len: usize) {
        self.known.remove(at, at + len);
    }

    /// Marks all bytes as unknown.
    pub fn forget_all(&mut self) {
        self.known = KnownRanges::new();
    }

    /// Sets bytes to one value, and marks them as known.
    pub fn set(&mut self, at: usize, len: usize, value: u8) {
        assert!(at + len <= self.capacity(), "range inside the mirror");
        // SAFETY: the range is inside the mapping, which `self` owns.
        unsafe { oracle::set(self.bytes.at(at), len, value) };
        self.known.insert(at, at + len);
    }

    /// Copies bytes from the pool, and marks them as known.
    pub fn copy_from_pool(&mut self, at: usize, pool_offset: usize, len: usize) {
        assert!(pool_offset + len <= POOL_BYTES, "range inside the pool");
        // SAFETY: the pool has the range (asserted above) and is never written again.
        unsafe { self.copy_from_memory(at, pool().at(pool_offset), len) };
    }

    /// Copies bytes from memory as they are, and marks them as known.
    ///
    /// # Safety
    /// `from` must be valid for reads of `len` bytes.
    pub unsafe fn copy_from_memory(&mut self, at: usize, from: *const u8, len: usize) {
        assert!(at + len <= self.capacity(), "range inside the mirror");
        // SAFETY: the caller guarantees that `from` is valid for reads of `len` bytes; the
        // destination is inside the mapping (asserted above).
        unsafe { oracle::copy(self.bytes.at(at), from, len) };
        self.known.insert(at, at + len);
    }

    /// Copies bytes from another mirror, together with their known ranges.
    pub fn copy_from(&mut self, at: usize, other: &Self, from: usize, len: usize) {
        assert!(at + len <= self.capacity() && from + len <= other.capacity(), "ranges inside the mirrors");
        // SAFETY: both ranges are inside their mappings, which are different ones.
        unsafe { oracle::copy(self.bytes.at(at), other.bytes.at(from), len) };
        let known: Vec<_> = other.known.within(from, from + len).collect();
        self.known.copy(at, &known, from, len);
    }

    /// Copies inside the mirror, where the ranges may overlap, as memmove(3) does.
    pub fn move_within(&mut self, at: usize, from: usize, len: usize) {
        assert!(at + len <= self.capacity() && from + len <= self.capacity(), "ranges inside the mirror");
        // SAFETY: both ranges are inside the mapping; `oracle::copy_overlapping` allows them to overlap.
        unsafe { oracle::copy_overlapping(self.bytes.at(at), self.bytes.at(from), len) };
        let known: Vec<_> = self.known.within(from, from + len).collect();
        self.known.copy(at, &known, from, len);
    }

    /// Compares `len` bytes at `found` with the known bytes of the model from `at` on.
    ///
    /// # Safety
    /// `found` must be valid for reads of `len` bytes.
    #[must_use]
    pub unsafe fn difference(&self, found: *const u8, at: usize, len: usize) -> Option<Difference> {
        for (start, end) in self.known.within(at, at + len) {
            // SAFETY: the range is part of the `len` bytes at `found` that the caller guarantees to
            // be readable; the other range is inside the mapping.
            let first =
                unsafe { oracle::first_difference(found.add(start - at), self.bytes.at(start), end - start) };
            let Some(first) = first else { continue };
            let wrong = |offset: &usize| {
                // SAFETY: `offset` lies within the part just compared, which is readable on both sides.
                unsafe { found.add(offset - at).read_volatile() != self.bytes.at(*offset).read_volatile() }
            };
            let count = (start + first..end).filter(wrong).count();
            // SAFETY: the difference lies within the part just compared, readable on both sides.
            let (found, expected) = unsafe {
                (found.add(start + first - at).read_volatile(), self.bytes.at(start + first).read_volatile())
            };
            return Some(Difference { at: start + first, expected, found, count: (count, end - start) });
        }
        None
    }

    /// Returns the model's address of byte `at`, to be read by bare system calls only.
    #[must_use]
    pub fn pointer(&self, at: usize) -> *const u8 {
        self.bytes.at(at)
    }
}
