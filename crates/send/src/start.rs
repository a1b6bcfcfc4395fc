//! What happens when the library is loaded, or the program that it was linked into starts.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use uncopy_sys::ids;

static FILLED: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = start;

extern "C" fn start(_count: c_int, _arguments: *mut *mut c_char, environment: *mut *mut c_char) {
    fill_slots();
    // SAFETY: the dynamic linker, or the C library's start, passes the environment, terminated by null.
    if !ids::is_privileged_start() && unsafe { says_off(environment) } {
        uncopy_interface::turn_off();
    }
}

/// Whether the environment holds `UNCOPY_OFF` with a value that means yes.
unsafe fn says_off(environment: *mut *mut c_char) -> bool {
    let mut at = environment;
    // SAFETY: the array ends with null, and every entry is terminated.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            if let Some(value) = CStr::from_ptr(*at).to_bytes().strip_prefix(b"UNCOPY_OFF=") {
                return !matches!(value, b"" | b"0");
            }
            at = at.add(1);
        }
    }
    false
}

/// Looks up libc's functions, where there is a dynamic linker that knows them.
pub fn fill_slots() {
    if !FILLED.load(Relaxed) {
        if ids::has_dynamic_linker() {
            crate::sending::fill();
        }
        FILLED.store(true, Relaxed);
    }
}
