//! Entry points of the allocator: selects the allocator for small or for large objects.

use crate::options::ALIGNMENT;
use crate::pages::{PAGE_BYTES, PAGES, page_of};
use crate::unit::{Id, Kind};
use crate::{large, process, small, start};

#[cold]
fn out_of_memory() -> *mut u8 {
    uncopy_sys::errno::set(libc::ENOMEM);
    core::ptr::null_mut()
}

#[inline]
fn or_out_of_memory(object: *mut u8) -> *mut u8 {
    if object.is_null() { out_of_memory() } else { object }
}

#[inline]
fn is_ready() -> bool {
    process::is_ready() || start::initialise()
}

/// Returns `size` bytes aligned to [`ALIGNMENT`], or null with `errno` ENOMEM. Size 0 counts as 1.
#[must_use]
pub fn allocate(size: usize) -> *mut u8 {
    if !is_ready() {
        return out_of_memory();
    }
    or_out_of_memory(match small::classes().for_size(size) {
        Some(class) => small::allocate(class),
        None => large::allocate(size, ALIGNMENT, false),
    })
}

/// Like [`allocate`], at a multiple of `align`. Returns null if `align` is not a power of two.
#[must_use]
pub fn allocate_aligned(size: usize, align: usize) -> *mut u8 {
    if align <= ALIGNMENT {
        return allocate(size);
    }
    if !align.is_power_of_two() || !is_ready() {
        return out_of_memory();
    }
    or_out_of_memory(match small::classes().for_aligned(size, align) {
        Some(class) => small::allocate(class),
        None => large::allocate(size, align, false),
    })
}

/// Like [`allocate`], with all bytes zero.
#[must_use]
pub fn allocate_zeroed(size: usize) -> *mut u8 {
    if !is_ready() {
        return out_of_memory();
    }
    match small::classes().for_size(size) {
        Some(class) => {
            let object = small::allocate(class);
            if object.is_null() {
                return out_of_memory();
            }
            // SAFETY: `object` was just allocated with at least `size` bytes and is not shared yet.
            unsafe { uncopy_sys::bytes::zero(object, size) };
            object
        }
        None => or_out_of_memory(large::allocate(size, ALIGNMENT, true)),
    }
}

/// Returns the unit of an object.
///
/// # Safety
/// `object` must be an object of this allocator.
#[inline]
unsafe fn unit_of(object: *mut u8) -> Id {
    let found = PAGES.unit_at(page_of(object as usize));
    debug_assert!(found.is_some_and(|id| matches!(PAGES.unit(id).kind(), Kind::Small | Kind::Large)));
    // SAFETY: the caller guarantees an object, whose pages belong to a unit while it is allocated.
    unsafe { found.unwrap_unchecked() }
}

/// Changes the size of an object, like realloc(3): null is allowed; on failure the object is unchanged.
///
/// # Safety
/// `object` must be null or an object of this allocator that only the caller uses.
#[must_use]
pub unsafe fn reallocate(object: *mut u8, size: usize) -> *mut u8 {
    if object.is_null() {
        return allocate(size);
    }
    // SAFETY: `object` is not null, so the caller guarantees an object of this allocator that nothing else
    // uses. `copy` stays within the size of both objects, and the old one is not used after `deallocate`.
    unsafe {
        let old = usable_size(object);
        let id = unit_of(object);
        let fits_in_place = match (PAGES.unit(id).kind(), small::classes().for_size(size)) {
            (Kind::Small, Some(class)) => small::classes().bytes(class) as usize == old,
            (Kind::Large, None) => {
                let pages = size.div_ceil(PAGE_BYTES);
                pages == old / PAGE_BYTES || (pages < old / PAGE_BYTES && large::shrink(id, size))
            }
            _ => false,
        };
        if fits_in_place {
            return object;
        }
        let new = allocate(size);
        if !new.is_null() {
            uncopy_sys::bytes::copy(new, object, old.min(size));
            deallocate(object);
        }
        new
    }
}

/// Frees an object; null is allowed. Pages that the kernel still holds keep their contents.
///
/// # Safety
/// `object` must be null or an object of this allocator that is no longer in use.
pub unsafe fn deallocate(object: *mut u8) {
    if object.is_null() {
        return;
    }
    // SAFETY: `object` is not null, so the caller guarantees an unused object of this allocator.
    unsafe {
        let id = unit_of(object);
        if PAGES.unit(id).kind() == Kind::Small {
            small::deallocate(id, object as usize);
        } else {
            large::deallocate(id);
        }
    }
}

/// Returns the usable size of an object in bytes.
///
/// # Safety
/// `object` must be an object of this allocator.
#[must_use]
pub unsafe fn usable_size(object: *mut u8) -> usize {
    // SAFETY: the caller guarantees an object of this allocator.
    let unit = PAGES.unit(unsafe { unit_of(object) });
    let size_bytes = match unit.kind() {
        Kind::Small => unit.size_bytes.load(core::sync::atomic::Ordering::Relaxed) as usize,
        _ => unit.pages.load(core::sync::atomic::Ordering::Relaxed) as usize * PAGE_BYTES,
    };
    debug_assert!(size_bytes > 0);
    size_bytes
}
