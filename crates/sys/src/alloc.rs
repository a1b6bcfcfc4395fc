//! The allocator for uncopy's own data: never the program's heap, never its locks.

use crate::lock::Lock;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;

/// A dlmalloc of our own behind a lock of our own.
pub struct Private {
    lock: Lock,
    heap: UnsafeCell<dlmalloc::Dlmalloc>,
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
        Self { lock: Lock::new(), heap: UnsafeCell::new(dlmalloc::Dlmalloc::new()) }
    }

    /// The lock, to be held across a fork.
    #[must_use]
    pub const fn lock(&self) -> &Lock {
        &self.lock
    }

    fn with<T>(&self, section: impl FnOnce(&mut dlmalloc::Dlmalloc) -> T) -> T {
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
        // SAFETY: the caller passes what `alloc` returned for this layout.
        self.with(|heap| unsafe { heap.free(pointer, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as above.
        self.with(|heap| unsafe { heap.realloc(pointer, layout.size(), layout.align(), new_size) })
    }
}
