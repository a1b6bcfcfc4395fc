//! The end of a process's first thread.
//!
//! A process ends when its last thread does, and a handler thread of ours would be that one: a first thread that ends
//! before the others (by `pthread_exit`; in the child of a thread's fork also by a return) has to wait for them.

use core::ffi::c_void;
use std::sync::OnceLock;

/// What says whether there is a handler thread.
type Question = fn() -> bool;

/// The thread-specific datum of a process's first thread, and whom to ask.
static END: OnceLock<(libc::pthread_key_t, Question)> = OnceLock::new();

/// Lets the first thread's end be that of the process if only threads of ours are left then, which `has_handler` is
/// asked about. To be called in the first thread, also in a child's. Always the same function.
pub fn watch(has_handler: Question) {
    let (key, _) = END.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the destructor is a function of this library, which is never unloaded.
        let result = unsafe { libc::pthread_key_create(&mut key, Some(first_thread_ends)) };
        (if result == 0 { key } else { libc::pthread_key_t::MAX }, has_handler)
    });
    // SAFETY: the datum is a number, never dereferenced; a key that does not exist is refused.
    unsafe { libc::pthread_setspecific(*key, core::ptr::without_provenance(1)) };
}

/// Destructor of the datum, which counts the rounds: in the last of them the program's own destructors have run.
extern "C" fn first_thread_ends(round: *mut c_void) {
    const LAST: usize = 4; // PTHREAD_DESTRUCTOR_ITERATIONS (glibc)
    // The handler outlives what it served.
    let Some((key, has_handler)) = END.get() else { return };
    if !has_handler() {
        uncopy_sys::thread::first_ends();
        return;
    }
    if round.addr() < LAST {
        // SAFETY: the datum is a number, never dereferenced, and the key exists: this is its destructor.
        unsafe { libc::pthread_setspecific(*key, core::ptr::without_provenance(round.addr() + 1)) };
        return;
    }
    uncopy_sys::thread::outlast_others();
    // What glibc does in the last thread.
    std::process::exit(0);
}
