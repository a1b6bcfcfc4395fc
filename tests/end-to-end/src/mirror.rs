//! Buffers of the program under test, each with a mirror that holds the expected bytes.
//!
//! Every operation is done twice: on the buffer through the interposed calls, on the mirror by
//! `oracle`. `Buffer::check` compares them.

use libc::iovec;

use crate::calls::CopyCall;
use crate::oracle::{self, OracleBytes};
use crate::random::Random;

/// Origin of a buffer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `malloc`.
    Malloc,
    /// `calloc`.
    Calloc,
    /// `posix_memalign` to 64 KiB.
    Aligned,
    /// `mmap`, private and anonymous.
    Mapped,
    /// `mmap`, shared and anonymous: must never hold a view.
    Shared,
    /// A private mapping of a memory file: must never hold a view.
    PrivateFile,
    /// `.bss`.
    Static,
    /// Memory owned by something else: a part of a mapping, of the stack, of another buffer.
    Borrowed,
}

impl Origin {
    /// Memory of the allocator.
    pub const HEAP: &'static [Self] = &[Self::Malloc, Self::Calloc, Self::Aligned];
    /// Every origin that can be requested; `.bss` has only one buffer.
    pub const ALLOCATED: &'static [Self] =
        &[Self::Malloc, Self::Calloc, Self::Aligned, Self::Mapped, Self::Shared, Self::PrivateFile];
}

/// Size of the one `.bss` buffer.
pub const STATIC_BYTES: usize = 4 << 20;

#[repr(align(4096))]
struct StaticBytes(std::cell::UnsafeCell<[u8; STATIC_BYTES]>);
// SAFETY: reached only through the one `Buffer` of `Origin::Static` that a program makes.
unsafe impl Sync for StaticBytes {}
static STATIC: StaticBytes = StaticBytes(std::cell::UnsafeCell::new([0; STATIC_BYTES]));

/// Memory under test and its expected content.
#[derive(Debug)]
pub struct Buffer {
    start: *mut u8,
    len: usize,
    origin: Origin,
    mirror: OracleBytes,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Buffer {}
// SAFETY: methods with `&self` only read the memory; users of the raw pointers must synchronize themselves.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `len` bytes and makes the mirror equal: zeroes for `calloc` and mappings, which is
    /// checked; other memory is overwritten with zeroes.
    ///
    /// # Panics
    /// When there is no memory, or memory that must be zero is not.
    #[must_use]
    pub fn new(origin: Origin, len: usize) -> Self {
        // SAFETY: allocation of fresh memory; a null pointer is refused below.
        let start: *mut u8 = unsafe {
            match origin {
                Origin::Malloc => libc::malloc(len).cast(),
                Origin::Calloc => libc::calloc(len.div_ceil(8), 8).cast(),
                Origin::Aligned => {
                    let mut start = std::ptr::null_mut();
                    assert_eq!(libc::posix_memalign(&raw mut start, 65536, len), 0);
                    assert_eq!(start.addr() % 65536, 0, "alignment");
                    start.cast()
                }
                Origin::Mapped => map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
                Origin::Shared => map(len, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
                Origin::PrivateFile => {
                    let file = libc::memfd_create(c"uncopy-test".as_ptr(), 0);
                    let size = i64::try_from(len).expect("small");
                    assert!(file >= 0 && libc::ftruncate(file, size) == 0, "memory file");
                    let start = map(len, libc::MAP_PRIVATE, file);
                    libc::close(file);
                    start
                }
                Origin::Static => {
                    assert!(len <= STATIC_BYTES, "size of the static buffer");
                    STATIC.0.get().cast()
                }
                Origin::Borrowed => panic!("memory that is lent is there already"),
            }
        };
        assert!(!start.is_null(), "no memory for {len} bytes");
        let mut buffer = Self { start, len, origin, mirror: OracleBytes::new(len) };
        if matches!(origin, Origin::Malloc | Origin::Aligned | Origin::Static) {
            buffer.set(0, len, 0);
        } else {
            buffer.check(0, len, "memory that must be zero");
        }
        buffer
    }

    /// Makes a buffer over memory of another owner, with its current content.
    ///
    /// # Safety
    /// `len` bytes from `start` on must be readable and writable, and used by nobody else, while the buffer
    /// lives.
    #[must_use]
    pub unsafe fn over(start: *mut u8, len: usize) -> Self {
        let mirror = OracleBytes::new(len);
        // SAFETY: the caller promises `len` readable bytes at `start`; the mirror has as many.
        unsafe { oracle::copy(mirror.pointer(), start, len) };
        Self { start, len, origin: Origin::Borrowed, mirror }
    }

    /// Allocates memory and makes it a copy of a part of `source` without touching it otherwise.
    ///
    /// # Panics
    /// When there is no memory or the range is not inside.
    #[must_use]
    pub fn copy_of(call: CopyCall, source: &Self, from: usize, len: usize) -> Self {
        // SAFETY: allocation of fresh memory; a null pointer is refused below.
        let start: *mut u8 = unsafe { libc::malloc(len) }.cast();
        assert!(!start.is_null(), "no memory for {len} bytes");
        let mut copy = Self { start, len, origin: Origin::Malloc, mirror: OracleBytes::new(len) };
        copy.copy_from(call, 0, source, from, len);
        copy
    }

    /// Allocates memory and copies these bytes there by `memcpy`.
    ///
    /// # Panics
    /// When there is no memory.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let len = bytes.len();
        // SAFETY: allocation of fresh memory; a null pointer is refused below.
        let start: *mut u8 = unsafe { libc::malloc(len) }.cast();
        assert!(!start.is_null(), "no memory for {len} bytes");
        let mut copy = Self { start, len, origin: Origin::Malloc, mirror: OracleBytes::new(len) };
        // SAFETY: the memory is as long as the bytes.
        unsafe { CopyCall::Memcpy.copy(start, bytes.as_ptr(), len) };
        copy.note_received(0, bytes);
        copy
    }

    /// Size in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the size is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Origin of the buffer's memory.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// Pointer to byte `at` of the memory under test.
    ///
    /// # Panics
    /// When `at` is past the end.
    #[must_use]
    pub fn at(&self, at: usize) -> *mut u8 {
        assert!(at <= self.len, "offset {at} of {}", self.len);
        // SAFETY: `at` is inside the memory or one past its end.
        unsafe { self.start.add(at) }
    }

    /// Pointer to byte `at` of the mirror.
    #[must_use]
    pub fn mirror_at(&self, at: usize) -> *mut u8 {
        self.mirror.at(at)
    }

    /// A range of the mirror.
    ///
    /// # Panics
    /// When the range is not inside.
    #[must_use]
    pub fn mirror(&self, at: usize, len: usize) -> &[u8] {
        self.mirror.slice(at, len)
    }

    /// A part of a vector call.
    ///
    /// # Panics
    /// When the range is not inside.
    #[must_use]
    pub fn part(&self, at: usize, len: usize) -> iovec {
        assert!(at + len <= self.len, "range inside");
        iovec { iov_base: self.at(at).cast(), iov_len: len }
    }

    /// Records that the kernel put the bytes of `source` at `at`.
    ///
    /// # Panics
    /// When the bytes pass the end.
    pub fn note_received(&mut self, at: usize, source: &[u8]) {
        assert!(at + source.len() <= self.len, "range inside");
        // SAFETY: the range is inside the mirror, which only this value writes.
        unsafe { oracle::copy(self.mirror.at(at), source.as_ptr(), source.len()) };
    }

    /// Records that the kernel put `len` bytes of the stream `seed`, from its byte `skip` on, at
    /// `at`.
    pub fn note_received_stream(&mut self, at: usize, len: usize, seed: u64, skip: usize) {
        self.mirror.fill(at, len, seed, skip);
    }

    /// Stores bytes of a stream, one instruction for each.
    ///
    /// # Panics
    /// When the range is not inside.
    pub fn store(&mut self, at: usize, len: usize, seed: u64) {
        assert!(at + len <= self.len, "range inside");
        // SAFETY: the range is inside the memory.
        unsafe { oracle::fill(self.at(at), len, seed, 0) };
        self.mirror.fill(at, len, seed, 0);
    }

    /// Stores the given bytes, one instruction for each.
    ///
    /// # Panics
    /// When the range is not inside.
    pub fn store_bytes(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len, "range inside");
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: the range is inside the memory.
            unsafe { self.at(at + index).write_volatile(*byte) };
        }
        self.note_received(at, bytes);
    }

    /// `memset`.
    ///
    /// # Panics
    /// When the range is not inside.
    pub fn set(&mut self, at: usize, len: usize, value: u8) {
        assert!(at + len <= self.len, "range inside");
        // SAFETY: the range is inside the memory and inside the mirror.
        unsafe {
            std::hint::black_box(libc::memset as unsafe extern "C" fn(_, _, _) -> *mut libc::c_void)(
                self.at(at).cast(),
                i32::from(value),
                len,
            );
            oracle::set(self.mirror.at(at), len, value);
        }
    }

    /// Copies from another buffer.
    ///
    /// # Panics
    /// When a range is not inside.
    pub fn copy_from(&mut self, call: CopyCall, at: usize, source: &Self, from: usize, len: usize) {
        assert!(at + len <= self.len && from + len <= source.len, "ranges inside");
        // SAFETY: both ranges are inside and of different memory.
        unsafe {
            call.copy(self.at(at), source.at(from), len);
            oracle::copy(self.mirror.at(at), source.mirror.at(from), len);
        }
    }

    /// Copies within the buffer; the ranges may overlap.
    ///
    /// # Panics
    /// When a range is not inside or `call` does not allow overlaps.
    pub fn copy_within(&mut self, call: CopyCall, to: usize, from: usize, len: usize) {
        assert!(to + len <= self.len && from + len <= self.len, "ranges inside");
        assert!(CopyCall::OVERLAPPING.contains(&call), "{call:?} does not allow overlaps");
        // SAFETY: both ranges end within `self.len`, as asserted, the length of memory and mirror.
        unsafe {
            call.copy(self.at(to), self.at(from), len);
            oracle::copy_overlapping(self.mirror.at(to), self.mirror.at(from), len);
        }
    }

    /// `realloc` (for memory of the allocator, not from `posix_memalign`: that one is freed and
    /// allocated again). The part that is new is overwritten with zeroes.
    ///
    /// # Panics
    /// When there is no memory.
    pub fn resize(&mut self, len: usize) {
        assert!(Origin::HEAP.contains(&self.origin), "{:?} cannot be resized", self.origin);
        // SAFETY: the memory comes from the allocator and is used no more through the old pointer.
        self.start = unsafe { libc::realloc(self.start.cast(), len) }.cast();
        assert!(!self.start.is_null(), "no memory for {len} bytes");
        let kept = len.min(self.len);
        let mirror = OracleBytes::new(len);
        // SAFETY: `kept` bytes are inside both mirrors.
        unsafe { oracle::copy(mirror.pointer(), self.mirror.pointer(), kept) };
        self.mirror = mirror;
        self.len = len;
        self.set(kept, len - kept, 0);
    }

    /// Fails unless the range equals the mirror.
    ///
    /// # Panics
    /// With the offset of the first wrong byte, the bytes there, and `what`.
    pub fn check(&self, at: usize, len: usize, what: &str) {
        assert!(at + len <= self.len, "range inside");
        // SAFETY: the range is inside the memory and the mirror.
        let wrong = unsafe { oracle::first_difference(self.at(at), self.mirror.at(at), len) };
        if let Some(offset) = wrong {
            let first = at + offset;
            let shown = (self.len - first).min(16);
            // SAFETY: the ranges are inside the memory and the mirror.
            let (found, expected) = unsafe {
                (
                    std::slice::from_raw_parts(self.at(first), shown),
                    std::slice::from_raw_parts(self.mirror.at(first), shown),
                )
            };
            panic!(
                "{what}: byte {first} of {:?} buffer {:p} (+{:#x} in its page) of {} bytes is wrong \
                 (checked {at}+{len}): found {found:02x?}, must be {expected:02x?}",
                self.origin,
                self.start,
                self.at(first).addr() % 4096,
                self.len,
            );
        }
    }

    /// Checks the whole buffer.
    pub fn check_all(&self, what: &str) {
        self.check(0, self.len, what);
    }

    /// Checks a range by reading a few bytes only: touches few pages.
    pub fn check_sparsely(&self, random: &mut Random, what: &str) {
        for _ in 0..3 {
            let at = random.below(self.len);
            self.check(at, random.between(1, 64).min(self.len - at), what);
        }
    }
}

/// Memory management calls on a buffer that is a mapping of its own.
impl Buffer {
    /// `madvise(MADV_DONTNEED)`: the range reads as zeroes.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn discard(&mut self, at: usize, len: usize) {
        assert!(self.origin == Origin::Mapped && at + len <= self.len, "a mapping's range");
        // SAFETY: the range is inside the mapping, which this value owns.
        assert_eq!(unsafe { libc::madvise(self.at(at).cast(), len, libc::MADV_DONTNEED) }, 0, "madvise");
        self.zero_mirror(at, len);
    }

    /// Makes the range read-only, reads it, and makes it writable again.
    ///
    /// # Panics
    /// When the kernel refuses or the bytes are wrong.
    pub fn protect_temporarily(&self, at: usize, len: usize) {
        assert!(self.origin == Origin::Mapped && at + len <= self.len, "a mapping's range");
        // SAFETY: the range is inside the mapping; nothing writes to it while it is read-only.
        unsafe {
            assert_eq!(libc::mprotect(self.at(at).cast(), len, libc::PROT_READ), 0, "mprotect");
            self.check(at, len, "a read-only range");
            assert_eq!(libc::mprotect(self.at(at).cast(), len, libc::PROT_READ | libc::PROT_WRITE), 0);
        }
    }

    /// `mremap` to `len` bytes, which may move it; new bytes are zeroes. Nothing happens to a range
    /// that earlier calls have split into several mappings.
    ///
    /// # Panics
    /// When the kernel refuses for another reason.
    pub fn move_mapping(&mut self, len: usize) {
        assert_eq!(self.origin, Origin::Mapped, "a mapping");
        // SAFETY: the mapping is this value's; the old address is used no more.
        let start = unsafe { libc::mremap(self.start.cast(), self.len, len, libc::MREMAP_MAYMOVE) };
        if start == libc::MAP_FAILED {
            assert_eq!(oracle::errno(), libc::EFAULT, "mremap");
            return;
        }
        self.start = start.cast();
        let kept = len.min(self.len);
        let mirror = OracleBytes::new(len);
        // SAFETY: `kept` bytes are inside both mirrors.
        unsafe { oracle::copy(mirror.pointer(), self.mirror.pointer(), kept) };
        // The bytes between the old end and the end of its last page were never written.
        self.mirror = mirror;
        self.len = len;
    }

    /// Maps fresh memory over the range, which then reads as zeroes.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn map_over(&mut self, at: usize, len: usize) {
        assert!(self.origin == Origin::Mapped && at + len <= self.len, "a mapping's range");
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let start: *mut libc::c_void = self.at(at).cast();
        // SAFETY: the range is inside the mapping, which this value owns.
        let mapped = unsafe { libc::mmap(start, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_eq!(mapped, start, "mmap with MAP_FIXED");
        self.zero_mirror(at, len);
    }

    fn zero_mirror(&mut self, at: usize, len: usize) {
        assert!(at + len <= self.len, "range inside");
        // SAFETY: the range is inside the mirror.
        unsafe { oracle::set(self.mirror.at(at), len, 0) };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the memory came from the allocator or from mmap and is used no more.
        unsafe {
            match self.origin {
                Origin::Malloc | Origin::Calloc | Origin::Aligned => libc::free(self.start.cast()),
                Origin::Mapped | Origin::Shared | Origin::PrivateFile => {
                    libc::munmap(self.start.cast(), self.len);
                }
                Origin::Static | Origin::Borrowed => {}
            }
        }
    }
}

/// Maps `len` bytes through libc.
///
/// # Safety
/// `flags` must not hold `MAP_FIXED`.
unsafe fn map(len: usize, flags: i32, fd: i32) -> *mut u8 {
    // SAFETY: a mapping at an address of the kernel's choice disturbs nothing.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    assert_ne!(start, libc::MAP_FAILED, "mmap of {len} bytes");
    start.cast()
}
