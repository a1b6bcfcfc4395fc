//! Byte copies that bypass the hooks.
//!
//! Inside `libuncopy.so` a plain `ptr::copy` would call the library's own `memmove`.

use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

type Memmove = unsafe extern "C" fn(*mut u8, *const u8, usize) -> *mut u8;

static MEMMOVE: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets libc's own memmove.
///
/// # Safety
/// `memmove` must conform to the C standard and must not be interposed.
pub unsafe fn set_memmove(memmove: Memmove) {
    MEMMOVE.store(memmove as *mut (), Relaxed);
}

/// Copies `len_bytes` bytes; the ranges may overlap.
///
/// # Safety
/// `source` must be readable and `destination` writable for `len_bytes`. Pages may be absent: their
/// faults are served during the copy, so the engine's rules about locks apply.
pub unsafe fn copy(destination: *mut u8, source: *const u8, len_bytes: usize) {
    #[cfg(loom)]
    crate::uffd::touch(&[(source as usize, len_bytes), (destination as usize, len_bytes)]);
    let memmove = MEMMOVE.load(Relaxed);
    if memmove.is_null() {
        // SAFETY: the caller vouches that the source is readable and the destination writable.
        unsafe { core::ptr::copy(source, destination, len_bytes) };
        return;
    }
    // SAFETY: only `set_memmove` stores here, and it stores a `Memmove`.
    let memmove: Memmove = unsafe { core::mem::transmute::<*mut (), Memmove>(memmove) };
    // SAFETY: memmove requires a readable source and a writable destination, for which the caller
    // vouches; they may overlap.
    unsafe { memmove(destination, source, len_bytes) };
}

/// Fills `len_bytes` bytes with zeroes.
///
/// # Safety
/// `destination` must be writable for `len_bytes`.
pub unsafe fn zero(destination: *mut u8, len_bytes: usize) {
    #[cfg(loom)]
    crate::uffd::touch(&[(destination as usize, len_bytes)]);
    // SAFETY: the caller vouches that the range is writable. memset is not interposed.
    unsafe { core::ptr::write_bytes(destination, 0, len_bytes) };
}

/// Whether two ranges hold the same bytes.
///
/// # Safety
/// Both ranges must be readable for `len_bytes`.
#[must_use]
pub unsafe fn equal(left: *const u8, right: *const u8, len_bytes: usize) -> bool {
    #[cfg(loom)]
    crate::uffd::touch(&[(left as usize, len_bytes), (right as usize, len_bytes)]);
    // SAFETY: the caller vouches that both ranges are readable. memcmp is not interposed.
    unsafe { libc::memcmp(left.cast(), right.cast(), len_bytes) == 0 }
}
