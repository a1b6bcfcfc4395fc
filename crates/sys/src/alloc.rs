//! The allocator for uncopy's own data: never the program's heap, never its locks.
//!
//! Rust's containers end the process when they get no memory, which must not happen to a program
//! because of us. So this allocator keeps a reserve, part of the library's own image: when the kernel
//! refuses memory, what is asked for comes from there and [`is_low`] says so from then on. The engine
//! then makes no new views and turns those that exist back into plain memory, for which the reserve is
//! large enough: that takes views and segments away and adds a few extents and handles.

use crate::call::{kernel, syscall};
use crate::lock::Lock;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// dlmalloc's mark of memory that is not its own.
const EXTERNAL: u32 = 1;
const RESERVE_BYTES: usize = 1 << 20;

/// The reserve: pages that are never touched, and so take no memory, unless they are needed.
#[repr(C, align(4096))]
struct Reserve(UnsafeCell<[u8; RESERVE_BYTES]>);

// SAFETY: each byte is handed out once, to the heap, which is only touched under its lock.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve(UnsafeCell::new([0; RESERVE_BYTES]));
static RESERVE_USED: AtomicUsize = AtomicUsize::new(0);
static LOW: AtomicBool = AtomicBool::new(false);

/// Whether the kernel has refused memory for uncopy's own data.
#[inline]
#[must_use]
pub fn is_low() -> bool {
    LOW.load(Relaxed)
}

/// Where the heap gets its pages from.
struct Pages;

impl Pages {
    fn in_reserve(pointer: *mut u8) -> bool {
        (pointer as usize).wrapping_sub(RESERVE.0.get() as usize) < RESERVE_BYTES
    }

    fn from_reserve(size: usize) -> *mut u8 {
        LOW.store(true, Relaxed);
        let taken = RESERVE_USED.fetch_update(Relaxed, Relaxed, |used| {
            used.checked_add(size).filter(|used| *used <= RESERVE_BYTES)
        });
        match taken {
            Ok(used) => RESERVE.0.get().cast::<u8>().wrapping_add(used),
            Err(_) => core::ptr::null_mut(),
        }
    }
}

// SAFETY: what is returned is mapped, zero, page-aligned and nobody else's until it is given back.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let _errno = crate::errno::Keep::new();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let mapped =
            unsafe { kernel!(Map, libc::mmap(core::ptr::null_mut(), size, protection, flags, -1, 0)) };
        if mapped == libc::MAP_FAILED {
            // Not to be given back, and not to be joined with a mapping that happens to lie next to it.
            (Self::from_reserve(size.next_multiple_of(self.page_size())), size, EXTERNAL)
        } else {
            (mapped.cast(), size, 0)
        }
    }

    fn remap(&self, pointer: *mut u8, old_size: usize, new_size: usize, can_move: bool) -> *mut u8 {
        if Self::in_reserve(pointer) {
            return core::ptr::null_mut();
        }
        let _errno = crate::errno::Keep::new();
        let flags = if can_move { libc::MREMAP_MAYMOVE } else { 0 };
        // SAFETY: a mapping that `alloc` made; the system call itself, because the library interposes on
        // libc's function.
        let moved = unsafe { kernel!(Remap, syscall!(libc::SYS_mremap, pointer, old_size, new_size, flags)) };
        if moved == -1 { core::ptr::null_mut() } else { moved as *mut u8 }
    }

    fn free_part(&self, pointer: *mut u8, old_size: usize, new_size: usize) -> bool {
        self.free(pointer.wrapping_add(new_size), old_size - new_size)
    }

    fn free(&self, pointer: *mut u8, size: usize) -> bool {
        let _errno = crate::errno::Keep::new();
        // SAFETY: a mapping that `alloc` made, or the end of one, of which nothing is in use.
        !Self::in_reserve(pointer)
            && unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, pointer, size)) } == 0
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

/// A dlmalloc of our own behind a lock of our own.
pub struct Private {
    lock: Lock,
    heap: UnsafeCell<dlmalloc::Dlmalloc<Pages>>,
}

// SAFETY: the heap is only touched under the lock.
unsafe impl Sync for Private {}

impl Default for Private {
    fn default() -> Self {
        Self::new()
    }
}

impl Private {
    /// An allocator that has not asked the kernel for anything yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { lock: Lock::new(), heap: UnsafeCell::new(dlmalloc::Dlmalloc::new_with_allocator(Pages)) }
    }

    /// The lock, to be held across a fork.
    #[must_use]
    pub const fn lock(&self) -> &Lock {
        &self.lock
    }

    fn with<T>(&self, section: impl FnOnce(&mut dlmalloc::Dlmalloc<Pages>) -> T) -> T {
        let _guard = self.lock.guard();
        // SAFETY: under the lock, so this is the only reference.
        section(unsafe { &mut *self.heap.get() })
    }
}

// SAFETY: dlmalloc returns blocks of the asked size and alignment, or null.
unsafe impl GlobalAlloc for Private {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: dlmalloc takes any size and any power-of-two alignment.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if crate::presence::is_outside() {
            return;
        }
        // SAFETY: the caller passes what `alloc` returned for this layout.
        self.with(|heap| unsafe { heap.free(pointer, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as above.
        self.with(|heap| unsafe { heap.realloc(pointer, layout.size(), layout.align(), new_size) })
    }
}
