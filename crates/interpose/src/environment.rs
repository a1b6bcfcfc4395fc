//! The environment as a library finds it when it is loaded.

use core::ffi::{CStr, c_char};

/// The entries, each `NAME=value`, without their terminators.
///
/// # Safety
/// A null pointer, or an array of terminated strings that ends with null and stays as it is while the iterator and
/// what it gives are in use.
pub unsafe fn entries<'a>(environment: *mut *mut c_char) -> impl Iterator<Item = &'a [u8]> {
    let mut at = environment;
    core::iter::from_fn(move || {
        // SAFETY: the array ends with null, and every entry is terminated.
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
