//! Standard allocator traits, for collections in twin memory.

use allocator_api2::alloc::{AllocError, Allocator};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;

/// The twin allocator, for collections with an allocator parameter and as `#[global_allocator]`.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use uncopy_twin::Twin;
///
/// #[global_allocator]
/// static ALLOCATOR: Twin = Twin;
///
/// let everywhere = vec![1u8; 100_000];
/// let mut here: Vec<u8, Twin> = Vec::new_in(Twin);
/// here.extend_from_slice(&everywhere);
/// assert!(uncopy_twin::contains(everywhere.as_ptr() as usize) && uncopy_twin::contains(here.as_ptr() as usize));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Twin;

// SAFETY: the functions return objects of the requested size and alignment that are not shared until freed,
// report failure by null, and do not unwind.
unsafe impl GlobalAlloc for Twin {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        crate::allocator::allocate_aligned(layout.size(), layout.align())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= crate::options::ALIGNMENT {
            return crate::allocator::allocate_zeroed(layout.size());
        }
        let object = crate::allocator::allocate_aligned(layout.size(), layout.align());
        if !object.is_null() {
            // SAFETY: `object` was just allocated with at least `layout.size()` bytes and is not shared yet.
            unsafe { uncopy_sys::bytes::zero(object, layout.size()) };
        }
        object
    }

    unsafe fn dealloc(&self, object: *mut u8, _layout: Layout) {
        // SAFETY: the caller guarantees an object of this allocator that is no longer in use.
        unsafe { crate::allocator::deallocate(object) };
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if layout.align() <= crate::options::ALIGNMENT {
            // SAFETY: the caller guarantees an object of this allocator that nothing else uses.
            return unsafe { crate::allocator::reallocate(object, new_size) };
        }
        let new = crate::allocator::allocate_aligned(new_size, layout.align());
        if !new.is_null() {
            // SAFETY: both objects have at least the number of bytes copied and are distinct; the caller
            // guarantees that the old one is an object of this allocator that nothing else uses.
            unsafe {
                uncopy_sys::bytes::copy(new, object, layout.size().min(new_size));
                crate::allocator::deallocate(object);
            }
        }
        new
    }
}

// SAFETY: objects have the requested size and alignment and are not shared until freed; all values of this
// type denote the same allocator.
unsafe impl Allocator for Twin {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let object = crate::allocator::allocate_aligned(layout.size(), layout.align());
        let object = NonNull::new(object).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(object, layout.size()))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: `GlobalAlloc` forbids zero-sized layouts, but this implementation accepts them.
        let object = NonNull::new(unsafe { self.alloc_zeroed(layout) }).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(object, layout.size()))
    }

    unsafe fn deallocate(&self, object: NonNull<u8>, _layout: Layout) {
        // SAFETY: the caller guarantees an object of this allocator that is no longer in use.
        unsafe { crate::allocator::deallocate(object.as_ptr()) };
    }
}
