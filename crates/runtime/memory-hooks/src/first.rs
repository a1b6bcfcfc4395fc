//! Further names in malloc's family: the program's `realloc` and `free` if another library or the program defines
//! them ahead of this library, glibc's alternative names, and C23's. Calls no hook.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_interpose::slots;

type Pointer = *mut c_void;
type Realloc = unsafe extern "C" fn(Pointer, usize) -> Pointer;
type Free = unsafe extern "C" fn(Pointer);

slots! {
    FREE_SIZED = c"free_sized" if defined: unsafe extern "C" fn(Pointer, usize);
    FREE_ALIGNED_SIZED = c"free_aligned_sized" if defined: unsafe extern "C" fn(Pointer, usize, usize);
    LIBC_FREE = c"__libc_free": Free;
    LIBC_REALLOC = c"__libc_realloc": Realloc;
}

/// Address of the definition ahead of this library's; 0: there is none.
static FIRST_REALLOC: AtomicUsize = AtomicUsize::new(0);
static FIRST_FREE: AtomicUsize = AtomicUsize::new(0);

/// Notes that the program finds this function ahead of this library's.
pub fn found(name: &CStr, address: usize) {
    match name.to_bytes() {
        b"realloc" => FIRST_REALLOC.store(address, Relaxed),
        b"free" => FIRST_FREE.store(address, Relaxed),
        _ => {}
    }
}

/// Returns the program's `realloc`, if it is not this library's. glibc's `reallocarray` calls it.
pub fn realloc() -> Option<Realloc> {
    let address = FIRST_REALLOC.load(Relaxed);
    // SAFETY: the address was noted for the function named `realloc`, which has this signature.
    (address != 0).then(|| unsafe { core::mem::transmute::<usize, Realloc>(address) })
}

/// Returns the program's `free`, if it is not this library's.
pub fn free() -> Option<Free> {
    let address = FIRST_FREE.load(Relaxed);
    // SAFETY: the address was noted for the function named `free`, which has this signature.
    (address != 0).then(|| unsafe { core::mem::transmute::<usize, Free>(address) })
}
