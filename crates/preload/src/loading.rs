//! `dlclose`: another object may come to lie where one was, and return addresses there mean something else then.

use core::ffi::{c_int, c_void};
use uncopy_interpose::slots;

slots! {
    DLCLOSE = c"dlclose": unsafe extern "C" fn(*mut c_void) -> c_int;
}

/// libc's own calls of it do not come here: see [`uncopy_unwind::forget`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    // Before glibc 2.34 it is in a library of its own, which may have been loaded after this one.
    let Some(real) = DLCLOSE.find() else { return -1 };
    // SAFETY: the program's own handle.
    let result = unsafe { real(handle) };
    uncopy_unwind::forget();
    result
}
