//! Iterates over the environment as a library finds it at load time.

use core::ffi::{CStr, c_char};

/// Returns the environment's entries, each `NAME=value`, without their NUL terminators.
///
/// # Safety
/// `environment` is null, or points to an array of NUL-terminated strings that ends with a null pointer.
/// Array and strings must stay unchanged while the iterator or an entry is in use.
pub unsafe fn entries<'a>(environment: *mut *mut c_char) -> impl Iterator<Item = &'a [u8]> {
    let mut at = environment;
    core::iter::from_fn(move || {
        // SAFETY: the caller passes an array that ends with null, and `at` stops there, so `at` is within
        // the array. Each entry before the null is a NUL-terminated string that outlives `'a`.
        unsafe {
            if at.is_null() || (*at).is_null() {
                return None;
            }
            let entry = CStr::from_ptr(*at).to_bytes();
            at = at.add(1);
            Some(entry)
        }
    })
}
