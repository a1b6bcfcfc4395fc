//! Objects of any size: which allocator serves them, what becomes of them.

use crate::options::ALIGNMENT;
use crate::pages::{PAGE_BYTES, PAGES, page_of};
use crate::unit::{Id, Kind};
use crate::{large, process, small, start};

#[cold]
fn none() -> *mut u8 {
    uncopy_sys::errno::set(libc::ENOMEM);
    core::ptr::null_mut()
}

#[inline]
fn or_none(object: *mut u8) -> *mut u8 {
    if object.is_null() { none() } else { object }
}

#[inline]
fn is_ready() -> bool {
    process::is_ready() || start::make_ready()
}

/// Memory for `size` bytes, aligned to [`ALIGNMENT`]; null, and `errno` ENOMEM, where there is none. No bytes are one.
#[must_use]
pub fn allocate(size: usize) -> *mut u8 {
    if !is_ready() {
        return none();
    }
    or_none(match small::classes().for_size(size) {
        Some(class) => small::allocate(class),
        None => large::allocate(size, ALIGNMENT, false),
    })
}

/// The same at a multiple of `align`, a power of two (null if it is none).
#[must_use]
pub fn allocate_aligned(size: usize, align: usize) -> *mut u8 {
    if align <= ALIGNMENT {
        return allocate(size);
    }
    if !align.is_power_of_two() || !is_ready() {
        return none();
    }
    or_none(match small::classes().for_aligned(size, align) {
        Some(class) => small::allocate(class),
        None => large::allocate(size, align, false),
    })
}

/// The same as [`allocate`], zeroes.
#[must_use]
pub fn allocate_zeroed(size: usize) -> *mut u8 {
    if !is_ready() {
        return none();
    }
    match small::classes().for_size(size) {
        Some(class) => {
            let object = small::allocate(class);
            if object.is_null() {
                return none();
            }
            // SAFETY: a fresh object of at least so many bytes.
            unsafe { uncopy_sys::bytes::zero(object, size) };
            object
        }
        None => or_none(large::allocate(size, ALIGNMENT, true)),
    }
}

/// The unit of an object.
///
/// # Safety
/// `object` is an object of this allocator.
#[inline]
unsafe fn unit_of(object: *mut u8) -> Id {
    let found = PAGES.unit_at(page_of(object as usize));
    debug_assert!(found.is_some_and(|id| matches!(PAGES.unit(id).kind(), Kind::Small | Kind::Large)));
    // SAFETY: the pages of an object have a unit.
    unsafe { found.unwrap_unchecked() }
}

/// What `realloc` does: null is an object of no bytes, and a null result leaves the object as it was.
///
/// # Safety
/// `object` is null or an object of this allocator, and the caller's.
#[must_use]
pub unsafe fn reallocate(object: *mut u8, size: usize) -> *mut u8 {
    if object.is_null() {
        return allocate(size);
    }
    // SAFETY: `object` is one of this allocator and the caller's, who gives it up where it moves.
    unsafe {
        let old = usable_size(object);
        let id = unit_of(object);
        let stays = match (PAGES.unit(id).kind(), small::classes().for_size(size)) {
            (Kind::Small, Some(class)) => small::classes().bytes(class) as usize == old,
            (Kind::Large, None) => {
                let pages = size.div_ceil(PAGE_BYTES);
                pages == old / PAGE_BYTES || (pages < old / PAGE_BYTES && large::shorten(id, size))
            }
            _ => false,
        };
        if stays {
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

/// Gives an object back. Null is nothing. What the kernel still holds of it stays as it is.
///
/// # Safety
/// `object` is null or an object of this allocator, and nobody uses it any more.
pub unsafe fn deallocate(object: *mut u8) {
    if object.is_null() {
        return;
    }
    // SAFETY: `object` is one of this allocator, and nobody uses it any more.
    unsafe {
        let id = unit_of(object);
        if PAGES.unit(id).kind() == Kind::Small {
            small::deallocate(id, object as usize);
        } else {
            large::deallocate(id);
        }
    }
}

/// Bytes that the object has room for.
///
/// # Safety
/// `object` is an object of this allocator.
#[must_use]
pub unsafe fn usable_size(object: *mut u8) -> usize {
    // SAFETY: `object` is one of this allocator.
    let unit = PAGES.unit(unsafe { unit_of(object) });
    let of_unit = match unit.kind() {
        Kind::Small => unit.size_bytes.load(core::sync::atomic::Ordering::Relaxed) as usize,
        _ => unit.pages.load(core::sync::atomic::Ordering::Relaxed) as usize * PAGE_BYTES,
    };
    debug_assert!(of_unit > 0);
    of_unit
}
