//! Memory and input/output that no interposed call ever touches: the oracle's side.
//!
//! Oracle bytes live in mappings made by the bare system call, are copied by `rep movsb`, compared
//! by `repe cmpsq`, and filled by a loop of volatile stores, so that neither the allocator nor
//! `memcpy` nor `read` of the program under test has a hand in them.

use std::arch::asm;

use crate::random::mix;

/// A private anonymous mapping of its own, zeroed.
#[derive(Debug)]
pub struct OracleBytes {
    start: *mut u8,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and is reached only through `&self`/`&mut self`
// or raw pointers whose users promise exclusion.
unsafe impl Send for OracleBytes {}
// SAFETY: what `&self` allows only gives pointers; their users promise exclusion.
unsafe impl Sync for OracleBytes {}

impl OracleBytes {
    /// Maps at least `len` bytes, zeroed.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let len = len.max(1).next_multiple_of(4096);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: an anonymous mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe { libc::syscall(libc::SYS_mmap, 0usize, len, protection, flags, -1, 0usize) };
        let start = usize::try_from(start).unwrap_or_else(|_| panic!("mmap of {len} bytes failed"));
        Self { start: std::ptr::with_exposed_provenance_mut(start), len }
    }

    /// Returns a pointer to the first byte.
    #[must_use]
    pub const fn pointer(&self) -> *mut u8 {
        self.start
    }

    /// Size in bytes, a multiple of the page size.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Always false: there is at least one page.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Pointer to byte `at`.
    ///
    /// # Panics
    /// When `at` is past the end.
    #[must_use]
    pub fn at(&self, at: usize) -> *mut u8 {
        assert!(at <= self.len, "offset {at} of {}", self.len);
        // SAFETY: `at` is inside the mapping or one past its end.
        unsafe { self.start.add(at) }
    }

    /// A range of the bytes.
    ///
    /// # Panics
    /// When the range is not inside.
    #[must_use]
    pub fn slice(&self, at: usize, len: usize) -> &[u8] {
        assert!(at + len <= self.len, "range inside");
        // SAFETY: the range is inside the mapping, which is initialised (zeroed) and outlives `self`.
        unsafe { std::slice::from_raw_parts(self.start.add(at), len) }
    }

    /// Fills `at..at + len` with the stream `seed` from its byte `skip` on.
    ///
    /// # Panics
    /// When the range is not inside.
    pub fn fill(&mut self, at: usize, len: usize, seed: u64, skip: usize) {
        assert!(at + len <= self.len, "range inside");
        // SAFETY: the range is inside the mapping, which `self` owns.
        unsafe { fill(self.start.add(at), len, seed, skip) }
    }
}

impl Drop for OracleBytes {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nobody else unmaps it.
        unsafe { libc::syscall(libc::SYS_munmap, self.start, self.len) };
    }
}

/// Copies bytes without calling anything. The ranges may overlap only if `destination` is below
/// `source`.
///
/// # Safety
/// `source` must be readable and `destination` writable for `len` bytes.
pub unsafe fn copy(destination: *mut u8, source: *const u8, len: usize) {
    // SAFETY: the caller promises both ranges; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") destination => _, inout("rsi") source => _,
            options(nostack, preserves_flags));
    }
}

/// Copies bytes within overlapping ranges, as memmove does, without calling anything.
///
/// # Safety
/// As [`copy`].
pub unsafe fn copy_overlapping(destination: *mut u8, source: *const u8, len: usize) {
    if destination.addr().wrapping_sub(source.addr()) >= len {
        // SAFETY: the destination does not begin inside the source; the caller promises the ranges.
        unsafe { copy(destination, source, len) }
    } else if len > 0 {
        // SAFETY: the caller promises the ranges; copying from the last byte down is right when the
        // destination begins inside the source; the direction flag is cleared again.
        unsafe {
            asm!("std", "rep movsb", "cld", inout("rcx") len => _,
                inout("rdi") destination.add(len - 1) => _, inout("rsi") source.add(len - 1) => _,
                options(nostack));
        }
    }
}

/// Sets bytes without calling anything.
///
/// # Safety
/// The range must be writable.
pub unsafe fn set(start: *mut u8, len: usize, value: u8) {
    // SAFETY: the caller promises the range; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") start => _, in("al") value,
            options(nostack, preserves_flags));
    }
}

/// Offset of the first byte that differs, without calling anything.
///
/// # Safety
/// Both ranges must be readable for `len` bytes.
#[must_use]
pub unsafe fn first_difference(left: *const u8, right: *const u8, len: usize) -> Option<usize> {
    let mut reached = left;
    // SAFETY: the caller promises both ranges; whole words lie inside them. The first instruction
    // sets the zero flag, which a count of 0 leaves in place.
    unsafe {
        asm!("cmp rcx, rcx", "repe cmpsq", inout("rcx") len / 8 => _, inout("rdi") reached,
            inout("rsi") right => _, options(nostack, readonly));
    }
    // Either every word is equal, or the last one that was reached is not.
    let first = (reached.addr() - left.addr()).saturating_sub(8);
    // SAFETY: offsets are below `len`, and the caller promises `len` readable bytes on both sides.
    (first..len).find(|at| unsafe { left.add(*at).read_volatile() != right.add(*at).read_volatile() })
}

/// Byte `index` of the stream `seed`.
#[must_use]
pub const fn stream_byte(seed: u64, index: usize) -> u8 {
    stream_word(seed, index / 8).to_le_bytes()[index % 8]
}

const fn stream_word(seed: u64, index: usize) -> u64 {
    mix(seed.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Writes the stream `seed`, from its byte `skip` on, by volatile stores.
///
/// # Safety
/// The range must be writable.
pub unsafe fn fill(start: *mut u8, len: usize, seed: u64, skip: usize) {
    let mut at = 0;
    while at < len {
        let index = skip + at;
        if index.is_multiple_of(8) && len - at >= 8 {
            // SAFETY: eight bytes are left in the caller's range.
            unsafe { write_word(start.add(at), stream_word(seed, index / 8)) };
            at += 8;
        } else {
            // SAFETY: one byte is left in the caller's range.
            unsafe { start.add(at).write_volatile(stream_byte(seed, index)) };
            at += 1;
        }
    }
}

/// Offset of the first byte that is not the stream `seed`'s, from its byte `skip` on.
///
/// # Safety
/// The range must be readable.
#[must_use]
pub unsafe fn stream_difference(start: *const u8, len: usize, seed: u64, skip: usize) -> Option<usize> {
    let mut expected = [0u8; 2048];
    let mut at = 0;
    while at < len {
        let now = expected.len().min(len - at);
        // SAFETY: the array has room for `now` bytes; the caller promises the range.
        let wrong = unsafe {
            fill(expected.as_mut_ptr(), now, seed, skip + at);
            first_difference(start.add(at), expected.as_ptr(), now)
        };
        if let Some(offset) = wrong {
            return Some(at + offset);
        }
        at += now;
    }
    None
}

/// Stores a word at any alignment with one instruction.
///
/// # Safety
/// Eight bytes must be writable.
unsafe fn write_word(start: *mut u8, word: u64) {
    // SAFETY: the caller promises eight writable bytes; x86 stores at any alignment.
    unsafe {
        asm!("mov [{start}], {word}", start = in(reg) start, word = in(reg) word, options(nostack, preserves_flags))
    }
}

/// Result of a call that moves bytes: their number, or errno.
pub type CallResult = Result<usize, i32>;

/// Turns a return value of libc into an [`CallResult`].
///
/// # Errors
/// errno.
pub fn call_result(returned: isize) -> CallResult {
    usize::try_from(returned).map_err(|_| errno())
}

/// `write` by the bare system call.
///
/// # Errors
/// errno.
///
/// # Safety
/// `start` must be readable for `len` bytes.
pub unsafe fn raw_write(fd: i32, start: *const u8, len: usize) -> CallResult {
    // SAFETY: the caller promises that `start` is readable for `len` bytes; write(2) only reads them.
    usize::try_from(unsafe { libc::syscall(libc::SYS_write, fd, start, len) }).map_err(|_| errno())
}

/// `read` by the bare system call.
///
/// # Errors
/// errno.
///
/// # Safety
/// `start` must be writable for `len` bytes.
pub unsafe fn raw_read(fd: i32, start: *mut u8, len: usize) -> CallResult {
    // SAFETY: the caller promises that `start` is writable for `len` bytes.
    usize::try_from(unsafe { libc::syscall(libc::SYS_read, fd, start, len) }).map_err(|_| errno())
}

/// The calling thread's errno.
#[must_use]
pub fn errno() -> i32 {
    // SAFETY: glibc's errno location is valid in every thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
pub fn set_errno(value: i32) {
    // SAFETY: glibc's errno location is valid in every thread.
    unsafe { *libc::__errno_location() = value };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found_at_every_offset() {
        let mut left = OracleBytes::new(4096);
        let mut right = OracleBytes::new(4096);
        left.fill(0, 100, 5, 0);
        right.fill(0, 100, 5, 0);
        for len in [0, 1, 7, 8, 9, 64, 99] {
            // SAFETY: the ranges are inside the mappings.
            assert_eq!(unsafe { first_difference(left.pointer(), right.pointer(), len) }, None);
        }
        for wrong in 0..100 {
            // SAFETY: `wrong` is below the length of the mapping, which only this test uses.
            unsafe { *right.at(wrong) ^= 1 };
            // SAFETY: the ranges are inside the mappings.
            assert_eq!(unsafe { first_difference(left.pointer(), right.pointer(), 100) }, Some(wrong));
            // SAFETY: `wrong` is below the length of the mapping, which only this test uses.
            unsafe { *right.at(wrong) ^= 1 };
        }
    }

    #[test]
    fn stream_bytes_are_independent_of_chunking() {
        let mut at_once = OracleBytes::new(4096);
        let mut parts = OracleBytes::new(4096);
        at_once.fill(0, 1000, 9, 3);
        let mut at = 0;
        for len in [1, 2, 7, 8, 100, 13, 869] {
            parts.fill(at, len, 9, 3 + at);
            at += len;
        }
        // SAFETY: the ranges are inside the mappings.
        assert_eq!(unsafe { first_difference(at_once.pointer(), parts.pointer(), 1000) }, None);
    }

    #[test]
    fn overlapping_copies_work_in_both_directions() {
        for (from, to) in [(10, 25), (25, 10), (10, 10)] {
            let mut bytes = OracleBytes::new(4096);
            bytes.fill(0, 200, 4, 0);
            // SAFETY: the ranges are inside the mapping.
            unsafe { copy_overlapping(bytes.at(to), bytes.at(from), 100) };
            for index in 0..100 {
                // SAFETY: the offset is inside the mapping.
                assert_eq!(unsafe { *bytes.at(to + index) }, stream_byte(4, from + index));
            }
        }
    }
}
