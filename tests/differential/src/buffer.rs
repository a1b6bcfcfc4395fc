//! The program's buffers: where their memory comes from, and their expected contents.

use std::ffi::{c_int, c_void};
use std::hint::black_box;

use crate::model::{Difference, Mirror};
use uncopy_core::addr::PAGE_BYTES as PAGE;

/// Longest buffer, bytes.
pub const MAX_BUFFER: usize = 4 << 20;

/// Origin of a buffer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// malloc and its family.
    Heap,
    /// The program's own private anonymous mapping.
    Mapped,
    /// The program's own shared anonymous mapping.
    Shared,
    /// A private mapping of a file.
    FileBacked,
    /// A static variable of the binary.
    Static,
    /// The worker's stack.
    Stack,
}

/// A buffer of the program with the model of its contents.
#[derive(Debug)]
pub struct Buffer {
    start: *mut u8,
    len: usize,
    origin: Origin,
    /// Expected contents of the buffer.
    pub mirror: Mirror,
}

// SAFETY: the memory is reached through the `Buffer` alone and is bound to no thread, so it may
// move to another one with the `Buffer`.
unsafe impl Send for Buffer {}

/// Number of ways in which [`Buffer::allocate`] can allocate.
pub const ALLOCATIONS: usize = 12;

unsafe extern "C" {
    fn valloc(len: usize) -> *mut c_void;
    fn pvalloc(len: usize) -> *mut c_void;
    fn reallocarray(pointer: *mut c_void, count: usize, each: usize) -> *mut c_void;
}

/// Maps memory with a plain mmap(2), private or shared.
fn map(len: usize, flags: c_int, fd: c_int) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: without MAP_FIXED, mmap(2) chooses unused addresses, so no existing mapping changes.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
    assert_ne!(start, libc::MAP_FAILED, "mmap of {len} bytes");
    start.cast()
}

impl Buffer {
    /// Wraps memory that the worker owns, static or on its stack, with unknown contents.
    ///
    /// # Safety
    /// The memory must be valid, and accessed by nobody else, for as long as the buffer exists.
    #[must_use]
    pub unsafe fn from_raw(start: *mut u8, len: usize, origin: Origin) -> Self {
        Self { start, len, origin, mirror: Mirror::new(len) }
    }

    /// Allocates at least one byte with allocation function number `call`.
    ///
    /// # Errors
    /// A description of the failure: the call failed, or its alignment or zeroes are wrong.
    pub fn allocate(call: usize, len: usize, align: usize, mut mirror: Mirror) -> Result<Self, String> {
        let len = len.clamp(1, MAX_BUFFER - PAGE);
        let pages = len.next_multiple_of(PAGE);
        let align = 16usize << (align % 10);
        let mut origin = Origin::Heap;
        let (mut alignment, mut zeroed) = (16, false);
        // SAFETY: these functions accept any size; alignments are powers of two from 16 to 8192.
        let start = unsafe {
            match call % ALLOCATIONS {
                0 | 11 => black_box(libc::malloc as unsafe extern "C" fn(usize) -> *mut c_void)(len),
                1 => {
                    zeroed = true;
                    let call = black_box(libc::calloc as unsafe extern "C" fn(_, _) -> *mut c_void);
                    if len.is_multiple_of(8) { call(len / 8, 8) } else { call(1, len) }
                }
                2 => black_box(libc::realloc as unsafe extern "C" fn(_, _) -> *mut c_void)(
                    std::ptr::null_mut::<c_void>(),
                    len,
                ),
                3 => black_box(reallocarray as unsafe extern "C" fn(_, _, usize) -> *mut c_void)(
                    std::ptr::null_mut::<c_void>(),
                    len,
                    1,
                ),
                4 => {
                    alignment = align;
                    black_box(libc::aligned_alloc as unsafe extern "C" fn(_, _) -> *mut c_void)(
                        align,
                        len.next_multiple_of(align),
                    )
                }
                5 => {
                    alignment = align;
                    let mut pointer = std::ptr::null_mut();
                    let call = black_box(libc::posix_memalign as unsafe extern "C" fn(_, _, _) -> c_int);
                    if call(&raw mut pointer, align, len) == 0 { pointer } else { std::ptr::null_mut() }
                }
                6 => {
                    alignment = align;
                    black_box(libc::memalign as unsafe extern "C" fn(_, _) -> *mut c_void)(align, len)
                }
                7 => {
                    alignment = PAGE;
                    let call: unsafe extern "C" fn(usize) -> *mut c_void =
                        if align > 64 { valloc } else { pvalloc };
                    black_box(call)(len)
                }
                number @ 8..=10 => {
                    (alignment, zeroed) = (PAGE, true);
                    match number {
                        8 => {
                            origin = Origin::Mapped;
                            map(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1).cast()
                        }
                        9 => {
                            origin = Origin::Shared;
                            map(pages, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1).cast()
                        }
                        _ => {
                            origin = Origin::FileBacked;
                            let fd = libc::memfd_create(c"machine".as_ptr(), libc::MFD_CLOEXEC);
                            let size = libc::off_t::try_from(pages).expect("small");
                            assert!(fd >= 0 && libc::ftruncate(fd, size) == 0, "memfd");
                            let start = map(pages, libc::MAP_PRIVATE, fd).cast();
                            libc::close(fd);
                            start
                        }
                    }
                }
                _ => unreachable!("every number is named"),
            }
        };
        let start: *mut u8 = start.cast();
        let len = if origin == Origin::Heap { len } else { pages };
        if start.is_null() {
            return Err(format!("no memory for {len} bytes (call {call}, alignment {alignment})"));
        }
        if !start.addr().is_multiple_of(alignment) {
            return Err(format!("{start:?} is not aligned to {alignment} (call {call}, {len} bytes)"));
        }
        mirror.forget_all();
        if zeroed {
            mirror.set(0, len, 0);
        }
        Ok(Self { start, len, origin, mirror })
    }

    /// Frees the memory and returns the mirror for reuse, or `None` if the memory is the worker's own.
    #[must_use]
    pub fn release(self) -> Option<Mirror> {
        // SAFETY: the memory came from the allocation function that matches `origin`, and `self`,
        // its only owner, is consumed here.
        unsafe {
            match self.origin {
                Origin::Heap => black_box(libc::free as unsafe extern "C" fn(*mut c_void))(self.start.cast()),
                Origin::Static | Origin::Stack => return None,
                Origin::Mapped | Origin::Shared | Origin::FileBacked => {
                    let call = black_box(libc::munmap as unsafe extern "C" fn(_, _) -> c_int);
                    assert_eq!(call(self.start.cast(), self.len.next_multiple_of(PAGE)), 0, "munmap");
                }
            }
        }
        Some(self.mirror)
    }

    /// Resizes the buffer by `realloc` or `reallocarray`.
    ///
    /// # Errors
    /// A description of the failed call.
    pub fn resize(&mut self, call: usize, len: usize) -> Result<(), String> {
        let len = len.clamp(1, MAX_BUFFER - PAGE);
        // SAFETY: `self.start` came from malloc's family and is replaced by the result.
        let start = unsafe {
            let old = self.start.cast::<c_void>();
            if call.is_multiple_of(2) {
                black_box(libc::realloc as unsafe extern "C" fn(_, _) -> *mut c_void)(old, len)
            } else {
                black_box(reallocarray as unsafe extern "C" fn(_, _, usize) -> *mut c_void)(old, len, 1)
            }
        };
        if start.is_null() {
            return Err(format!("realloc from {} to {len} bytes refused", self.len));
        }
        let kept = self.len.min(len);
        self.mirror.forget(kept, self.mirror.capacity() - kept);
        (self.start, self.len) = (start.cast(), len);
        Ok(())
    }

    /// Extends the buffer to the length that `malloc_usable_size` returns.
    ///
    /// # Errors
    /// If that length is less than the one that was asked for.
    pub fn extend_to_usable(&mut self) -> Result<(), String> {
        // SAFETY: `self.start` came from malloc's family and has not been freed.
        let usable = unsafe {
            black_box(libc::malloc_usable_size as unsafe extern "C" fn(_) -> usize)(self.start.cast())
        };
        if usable < self.len {
            return Err(format!("malloc_usable_size says {usable} for {} bytes", self.len));
        }
        self.len = usable.min(MAX_BUFFER);
        Ok(())
    }

    /// Sets another address and length, after the program moved the mapping.
    pub fn set_range(&mut self, start: *mut u8, len: usize) {
        (self.start, self.len) = (start, len);
    }

    /// Returns the origin of the memory.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// Length, bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Always false: a buffer has at least one byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a pointer to byte `at`.
    #[must_use]
    pub fn at(&self, at: usize) -> *mut u8 {
        assert!(at <= self.len, "offset {at} of {}", self.len);
        // SAFETY: `at` is inside the buffer or one past its end, which the assertion above checks.
        unsafe { self.start.add(at) }
    }

    /// Reduces an arbitrary offset and length to a non-empty range inside the buffer.
    #[must_use]
    pub fn range(&self, at: usize, len: usize) -> (usize, usize) {
        let at = at % self.len;
        (at, len.clamp(1, self.len - at))
    }

    /// Returns offset and length of the whole pages within a range, or `None` if there is no such page.
    #[must_use]
    pub fn whole_pages(&self, at: usize, len: usize) -> Option<(usize, usize)> {
        let (at, len) = self.range(at, len);
        let start = (self.start.addr() + at).next_multiple_of(PAGE);
        let end = (self.start.addr() + at + len) / PAGE * PAGE;
        (start < end).then(|| (start - self.start.addr(), end - start))
    }

    /// Compares a range with the model, by plain loads.
    #[must_use]
    pub fn difference(&self, at: usize, len: usize) -> Option<Difference> {
        assert!(at + len <= self.len, "range inside the buffer");
        // SAFETY: the range is inside the buffer, which is readable.
        unsafe { self.mirror.difference(self.at(at), at, len) }
    }
}
