//! The end of a process's first thread.
//!
//! A process ends with its last thread, which our handler thread would be. So a first thread that ends
//! before the others (by `pthread_exit`, or by a return in the child of another thread's fork) waits for
//! them, then exits the process.

use core::ffi::c_void;
use std::sync::OnceLock;

type HasHandler = fn() -> bool;

/// Key of the first thread's thread-specific value, and the function that reports threads of ours.
static FIRST_THREAD: OnceLock<(libc::pthread_key_t, HasHandler)> = OnceLock::new();

/// Ends the process once its first thread, the calling one, has ended and only our threads are left.
///
/// Call this in the first thread of the process and of each forked child, always with the same
/// `has_handler`. It is asked when the first thread ends.
pub fn watch(has_handler: HasHandler) {
    let (key, _) = FIRST_THREAD.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is writable. The destructor stays callable because this library is never unloaded.
        let result = unsafe { libc::pthread_key_create(&mut key, Some(first_thread_ends)) };
        (if result == 0 { key } else { libc::pthread_key_t::MAX }, has_handler)
    });
    // SAFETY: nothing dereferences the value, a number. pthread_setspecific(3) refuses a key that does not
    // exist.
    unsafe { libc::pthread_setspecific(*key, core::ptr::without_provenance(1)) };
}

/// Destructor of the first thread's value, which is the number of the destructor round. The program's own
/// destructors have run by the last round.
extern "C" fn first_thread_ends(round: *mut c_void) {
    const MAX_ROUNDS: usize = 4; // PTHREAD_DESTRUCTOR_ITERATIONS (glibc)
    // Without threads of ours this thread ends as usual, and none may be started after it.
    let Some((key, has_handler)) = FIRST_THREAD.get() else { return };
    if !has_handler() {
        uncopy_sys::thread::forbid_library_threads();
        return;
    }
    if round.addr() < MAX_ROUNDS {
        // SAFETY: the key exists, since this is its destructor. Nothing dereferences the value, a number.
        unsafe { libc::pthread_setspecific(*key, core::ptr::without_provenance(round.addr() + 1)) };
        return;
    }
    uncopy_sys::thread::wait_for_other_threads();
    // glibc does the same when the last thread ends.
    std::process::exit(0);
}
