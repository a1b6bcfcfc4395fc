//! Persistent memory that the caller has mapped.
//!
//! On x86-64: non-temporal stores, the best flush instruction of the processor, and `sfence`. On other machines
//! the crate only compiles: stores are ordered, and nothing is flushed.

use crate::memory::{LINE_BYTES, Persistent};
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

const WORD_BYTES: usize = size_of::<u64>();

/// Way in which lines reach the persistence domain of the platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushing {
    /// Nothing is flushed: the caches are persistent (eADR), or the memory only emulates persistence (tmpfs).
    NotNeeded,
    /// `clwb`: writes a line and keeps it cached.
    Clwb,
    /// `clflushopt`: writes a line and evicts it.
    ClflushOpt,
    /// `clflush`: the same, and waits for earlier ones.
    Clflush,
}

impl Flushing {
    /// Returns what memory needs that is persistent, or only emulates it. See [`Flushing::detect`].
    #[must_use]
    pub fn of(is_persistent: bool) -> Self {
        if is_persistent { Self::detect() } else { Self::NotNeeded }
    }

    /// Returns the best flush instruction of this processor (CPUID, leaf 7). CPUID exits to the hypervisor in a
    /// virtual machine: call this once.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            const CLFLUSHOPT: u32 = 1 << 23;
            const CLWB: u32 = 1 << 24;
            let has_leaf = core::arch::x86_64::__cpuid(0).eax >= 7;
            let features = if has_leaf { core::arch::x86_64::__cpuid_count(7, 0).ebx } else { 0 };
            if features & CLWB != 0 {
                return Self::Clwb;
            }
            if features & CLFLUSHOPT != 0 {
                return Self::ClflushOpt;
            }
        }
        Self::Clflush
    }
}

/// A shared mapping of a file, for example with `MAP_SYNC` on a DAX file system.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len_bytes: usize,
    flushing: Flushing,
}

// SAFETY: `Mapping` only holds an address that is valid in all threads, and accesses memory by atomic operations
// or, in `stream`, under the contract of `Mapping::new`.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`: every access through a shared reference is atomic or serialised by `Mapping::new`'s caller.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes a memory of mapped pages. `None`: the address is null or not aligned to a line, or the length is not
    /// a multiple of a line.
    ///
    /// # Safety
    /// - `base` must be mapped readable and writable for `len_bytes` for as long as the value lives. Readable suffices if
    ///   nothing is stored or streamed.
    /// - This process may access the memory only through values of this type. Other processes may do anything.
    /// - Calls of [`Persistent::stream`] must not run concurrently with other accesses of this process to the same
    ///   bytes, and these must not be accessed again before the calling thread's [`Persistent::fence`].
    #[must_use]
    pub unsafe fn new(base: *mut u8, len_bytes: usize, flushing: Flushing) -> Option<Self> {
        let base = NonNull::new(base)?;
        let is_aligned =
            base.as_ptr().addr().is_multiple_of(LINE_BYTES) && len_bytes.is_multiple_of(LINE_BYTES);
        let fits = isize::try_from(len_bytes).is_ok();
        (is_aligned && fits).then_some(Self { base, len_bytes, flushing })
    }

    /// Returns the address of a range, for system calls that read it; `None`: it is not within the mapping.
    #[must_use]
    pub fn address(&self, at: usize, len_bytes: usize) -> Option<*const u8> {
        let is_within = at.checked_add(len_bytes).is_some_and(|end| end <= self.len_bytes);
        is_within.then(|| self.base.as_ptr().wrapping_add(at).cast_const())
    }

    #[track_caller]
    fn at(&self, at: usize, len_bytes: usize) -> *mut u8 {
        let address = self.address(at, len_bytes);
        address.expect("a range within the mapping").cast_mut()
    }

    #[track_caller]
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(WORD_BYTES), "an aligned word");
        // SAFETY: `at` checked that the word is within the mapping, whose base is aligned to a line, so the word is
        // aligned; the mapping outlives `self`, and this process accesses it concurrently only by atomics.
        unsafe { AtomicU64::from_ptr(self.at(at, WORD_BYTES).cast()) }
    }

    #[track_caller]
    fn byte(&self, at: usize) -> &AtomicU8 {
        // SAFETY: `at` checked that the byte is within the mapping, which outlives `self`; this process accesses it
        // concurrently only by atomics.
        unsafe { AtomicU8::from_ptr(self.at(at, 1)) }
    }
}

/// Splits a range into bytes before the first aligned word, whole words, and the bytes behind the last one.
const fn split_words(at: usize, len_bytes: usize) -> (usize, usize) {
    let head = at.wrapping_neg() % WORD_BYTES;
    let head = if head < len_bytes { head } else { len_bytes };
    (head, (len_bytes - head) / WORD_BYTES)
}

impl Persistent for Mapping {
    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn load(&self, at: usize, into: &mut [u8]) {
        let (head, words) = split_words(at, into.len());
        let (first, rest) = into.split_at_mut(head);
        let (middle, last) = rest.split_at_mut(words * WORD_BYTES);
        for (index, byte) in first.iter_mut().enumerate() {
            *byte = self.byte(at + index).load(Relaxed);
        }
        for (index, word) in middle.chunks_exact_mut(WORD_BYTES).enumerate() {
            let value = self.word(at + head + index * WORD_BYTES).load(Relaxed);
            word.copy_from_slice(&value.to_ne_bytes());
        }
        let end = at + head + words * WORD_BYTES;
        for (index, byte) in last.iter_mut().enumerate() {
            *byte = self.byte(end + index).load(Relaxed);
        }
    }

    fn load_word(&self, at: usize) -> u64 {
        self.word(at).load(Acquire)
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        let (head, words) = split_words(at, bytes.len());
        let (first, rest) = bytes.split_at(head);
        let (middle, last) = rest.split_at(words * WORD_BYTES);
        for (index, byte) in first.iter().enumerate() {
            self.byte(at + index).store(*byte, Relaxed);
        }
        for (index, word) in middle.chunks_exact(WORD_BYTES).enumerate() {
            let mut value = [0; WORD_BYTES];
            value.copy_from_slice(word);
            self.word(at + head + index * WORD_BYTES).store(u64::from_ne_bytes(value), Relaxed);
        }
        let end = at + head + words * WORD_BYTES;
        for (index, byte) in last.iter().enumerate() {
            self.byte(end + index).store(*byte, Relaxed);
        }
    }

    fn store_word(&self, at: usize, value: u64) {
        self.word(at).store(value, Release);
    }

    fn stream(&self, at: usize, bytes: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        let streamed = {
            let edge = (at.wrapping_neg() % LINE_BYTES).min(bytes.len());
            let whole = (bytes.len() - edge) / LINE_BYTES * LINE_BYTES;
            stream_lines(self.at(at + edge, whole), &bytes[edge..edge + whole]);
            edge..edge + whole
        };
        #[cfg(not(target_arch = "x86_64"))]
        let streamed = 0..0;
        // The partial lines at both ends go through the cache.
        for edge in [0..streamed.start, streamed.end..bytes.len()] {
            if !edge.is_empty() {
                self.store(at + edge.start, &bytes[edge.clone()]);
                self.flush(at + edge.start, edge.len());
            }
        }
    }

    fn flush(&self, at: usize, len_bytes: usize) {
        if len_bytes == 0 || self.flushing == Flushing::NotNeeded {
            return;
        }
        let first = at / LINE_BYTES * LINE_BYTES;
        let end = (at + len_bytes).next_multiple_of(LINE_BYTES);
        flush_lines(self.at(first, end - first), end - first, self.flushing);
    }

    fn fence(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: sfence is part of SSE, which every x86-64 processor has; it accesses no memory of its own.
        unsafe {
            core::arch::x86_64::_mm_sfence();
        }
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    }
}

/// Copies whole lines past the cache. `to` has `bytes.len()` bytes and is aligned to a line.
#[cfg(target_arch = "x86_64")]
fn stream_lines(to: *mut u8, bytes: &[u8]) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    for (line, bytes) in bytes.chunks_exact(LINE_BYTES).enumerate() {
        let from = bytes.as_ptr().cast::<__m128i>();
        let to = to.wrapping_add(line * LINE_BYTES).cast::<__m128i>();
        // SAFETY: `from` has 64 readable bytes, a chunk of the slice, in any alignment. The caller checked that `to`
        // has as many lines as `bytes`, mapped and aligned to 64 bytes. By the contract of `Mapping::new` nobody in
        // this process accesses these bytes before `fence` has executed sfence, as the intrinsic requires.
        unsafe {
            _mm_stream_si128(to, _mm_loadu_si128(from));
            _mm_stream_si128(to.add(1), _mm_loadu_si128(from.add(1)));
            _mm_stream_si128(to.add(2), _mm_loadu_si128(from.add(2)));
            _mm_stream_si128(to.add(3), _mm_loadu_si128(from.add(3)));
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn flush_lines(first: *mut u8, len_bytes: usize, flushing: Flushing) {
    use core::arch::asm;
    for line in (0..len_bytes).step_by(LINE_BYTES) {
        let line = first.wrapping_add(line);
        // SAFETY: `line` is within the mapping. The instructions write a cached line to memory and change no byte;
        // `Flushing::detect` returns only those that the processor has. Without `nomem`, the compiler orders
        // earlier stores before them.
        unsafe {
            match flushing {
                Flushing::NotNeeded => {}
                Flushing::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                Flushing::ClflushOpt => {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                Flushing::Clflush => core::arch::x86_64::_mm_clflush(line),
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn flush_lines(_: *mut u8, _: usize, _: Flushing) {
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Lines([u8; 1024]);

    #[test]
    fn every_kind_of_store_is_loaded_again_at_any_alignment() {
        let bytes: Vec<u8> = (0..=255).cycle().take(400).collect();
        let mut kinds = vec![Flushing::NotNeeded, Flushing::Clflush, Flushing::detect()];
        kinds.dedup();
        for flushing in kinds {
            for (at, len) in [(0, 400), (1, 399), (63, 130), (64, 64), (65, 62), (7, 1), (13, 0), (120, 8)] {
                let mut lines = Box::new(Lines([0; 1024]));
                // SAFETY: the 1,024 bytes of `lines` live longer than the mapping, are aligned to 64 bytes, and this
                // thread accesses them only through the mapping.
                let mapping = unsafe { Mapping::new(lines.0.as_mut_ptr(), 1024, flushing) }.expect("aligned");
                let mut wanted = vec![0; 1024];
                for (index, start) in [at, at + 500].into_iter().enumerate() {
                    wanted[start..start + len].copy_from_slice(&bytes[..len]);
                    if index == 0 {
                        mapping.store(start, &bytes[..len]);
                        mapping.flush(start, len);
                    } else {
                        mapping.stream(start, &bytes[..len]);
                    }
                    mapping.fence();
                }
                mapping.store_word(1016, 77);
                wanted[1016..].copy_from_slice(&77u64.to_ne_bytes());
                assert_eq!(mapping.load_word(1016), 77);
                for skip in [0, 3] {
                    let mut found = vec![0; 1024 - skip];
                    mapping.load(skip, &mut found);
                    assert_eq!(found, wanted[skip..], "{flushing:?} at {at}, {len} bytes");
                }
            }
        }
    }

    #[test]
    fn ranges_outside_have_no_address() {
        let mut lines = Box::new(Lines([0; 1024]));
        let base = lines.0.as_mut_ptr();
        // SAFETY: the constructor only compares numbers; the aligned mapping covers `lines`, which lives longer.
        unsafe {
            assert!(Mapping::new(base.wrapping_add(8), 64, Flushing::NotNeeded).is_none());
            assert!(Mapping::new(base, 65, Flushing::NotNeeded).is_none());
            let mapping = Mapping::new(base, 1024, Flushing::NotNeeded).expect("aligned");
            assert!(mapping.address(1000, 24).is_some());
            assert!(mapping.address(1000, 25).is_none());
            assert!(mapping.address(usize::MAX, 2).is_none());
        }
    }
}
