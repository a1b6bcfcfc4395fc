//! The standard allocator traits: collections in twin memory.

use allocator_api2::alloc::{AllocError, Allocator};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;

/// The twin allocator, for collections that take an allocator and for `#[global_allocator]`.
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

// SAFETY: objects have the size and alignment asked for and are nobody else's until they are given back.
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
            // SAFETY: a fresh object of at least so many bytes.
            unsafe { uncopy_sys::bytes::zero(object, layout.size()) };
        }
        object
    }

    unsafe fn dealloc(&self, object: *mut u8, _layout: Layout) {
        // SAFETY: an object of this allocator, which nobody uses any more.
        unsafe { crate::allocator::deallocate(object) };
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if layout.align() <= crate::options::ALIGNMENT {
            // SAFETY: an object of this allocator, the caller's to give up.
            return unsafe { crate::allocator::reallocate(object, new_size) };
        }
        let new = crate::allocator::allocate_aligned(new_size, layout.align());
        if !new.is_null() {
            // SAFETY: both have as many bytes; the old one is the caller's to give up.
            unsafe {
                uncopy_sys::bytes::copy(new, object, layout.size().min(new_size));
                crate::allocator::deallocate(object);
            }
        }
        new
    }
}

// SAFETY: objects have the size and alignment asked for and are nobody else's; every copy of the value is the
// same allocator.
unsafe impl Allocator for Twin {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let object = crate::allocator::allocate_aligned(layout.size(), layout.align());
        let object = NonNull::new(object).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(object, layout.size()))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: a layout may have no bytes here: the twin allocator takes that.
        let object = NonNull::new(unsafe { self.alloc_zeroed(layout) }).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(object, layout.size()))
    }

    unsafe fn deallocate(&self, object: NonNull<u8>, _layout: Layout) {
        // SAFETY: an object of this allocator, which nobody uses any more.
        unsafe { crate::allocator::deallocate(object.as_ptr()) };
    }
}
