//! Initialisation when the library is loaded, or when the program that links it starts.

use core::ffi::{c_char, c_int};
use uncopy_capi::sending;
use uncopy_interpose::{environment, first_thread};
use uncopy_sys::ids;
use uncopy_twin::fork;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = start;

extern "C" fn start(_count: c_int, _arguments: *mut *mut c_char, environment: *mut *mut c_char) {
    sending::fill();
    uncopy_interpose::clear_dlerror();
    watch_end();
    // SAFETY: pthread_atfork(3) needs functions that stay callable; this library is never unloaded.
    // Registered before other handlers, ours run last before a fork and first after it.
    let watched =
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_in_parent), Some(after_in_child)) };
    if watched == 0 {
        fork::use_callers_fork_handlers();
    }
    if !ids::is_privileged_start() {
        // SAFETY: the dynamic linker, or the C library's startup code, passes the null-terminated environment
        // to functions in .init_array.
        unsafe { environment::entries(environment) }.for_each(apply_variable);
    }
}

extern "C" fn before_fork() {
    fork::prepare();
}

extern "C" fn after_in_parent() {
    fork::parent();
}

extern "C" fn after_in_child() {
    fork::child();
    uncopy_trials::restart_in_child();
    watch_end();
}

fn watch_end() {
    first_thread::watch(uncopy_twin::has_handler);
}

/// Applies the environment variables that are meaningful without the engine: whether to send by reference.
fn apply_variable(entry: &[u8]) {
    match entry {
        b"UNCOPY_OFF=1" | b"UNCOPY_POLICY=never" => uncopy_twin::switch_off(),
        b"UNCOPY_POLICY=always" => uncopy_transmit::set_break_even(Some(1)),
        _ => {}
    }
}
