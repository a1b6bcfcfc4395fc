//! Cancellation of threads (pthreads(7)). A thread that is cancelled in libc's `write` or `fsync` while it has a lock of
//! these crates never releases it: the unwinding runs no code here.

use core::ffi::c_int;
use uncopy_interpose::slots;

/// State in which requests stay pending: `PTHREAD_CANCEL_DISABLE` in glibc's pthread.h, which libc lacks.
const DISABLE: c_int = 1;

slots! {
    SET_CANCEL_STATE = c"pthread_setcancelstate" if defined: unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
    TEST_CANCEL = c"pthread_testcancel" if defined: unsafe extern "C" fn();
}

/// Ends the thread if its cancellation was requested, as a cancellation point of libc does. The caller has no lock, and
/// nothing to drop.
#[inline(always)]
pub fn test() {
    // Before glibc 2.34 a program may be linked without libpthread, and then lacks the function, and threads.
    if let Some(test_cancel) = TEST_CANCEL.find() {
        // SAFETY: the function takes no arguments. It unwinds frames that have nothing to drop.
        unsafe { test_cancel() };
    }
}

/// Makes a call in which the thread is not cancelled. A request that comes meanwhile takes effect at the next
/// cancellation point.
pub fn deferred<T>(call: impl FnOnce() -> T) -> T {
    let Some(set_state) = SET_CANCEL_STATE.find() else { return call() };
    let mut before = 0;
    // SAFETY: the function stores the state before into `before`, which lives through the call.
    unsafe { set_state(DISABLE, &raw mut before) };
    let result = call();
    // SAFETY: a state that the function has returned; a null pointer is allowed (glibc stores nothing).
    unsafe { set_state(before, core::ptr::null_mut()) };
    result
}
