//! Functions of malloc's family that are not malloc's own names: the program's `realloc` and `free` where another library's or the
//! program's stand in front of ours, glibc's second names, and C23's. Knows no hook.

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

/// Addresses of those in front of ours; 0: ours is the first.
static FIRST_REALLOC: AtomicUsize = AtomicUsize::new(0);
static FIRST_FREE: AtomicUsize = AtomicUsize::new(0);

/// Notes that the program finds this function in front of ours.
pub fn found(name: &CStr, address: usize) {
    match name.to_bytes() {
        b"realloc" => FIRST_REALLOC.store(address, Relaxed),
        b"free" => FIRST_FREE.store(address, Relaxed),
        _ => {}
    }
}

/// The program's `realloc`, if it is not ours: glibc's `reallocarray` is made of it.
pub fn realloc() -> Option<Realloc> {
    let address = FIRST_REALLOC.load(Relaxed);
    // SAFETY: the function of that name.
    (address != 0).then(|| unsafe { core::mem::transmute::<usize, Realloc>(address) })
}

/// The program's `free`, if it is not ours.
pub fn free() -> Option<Free> {
    let address = FIRST_FREE.load(Relaxed);
    // SAFETY: the function of that name.
    (address != 0).then(|| unsafe { core::mem::transmute::<usize, Free>(address) })
}
