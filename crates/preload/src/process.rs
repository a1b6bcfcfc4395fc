//! Processes that come and go.
//!
//! fork is served through `pthread_atfork`, registered when the library is loaded: handlers
//! registered first run last before the fork and first after it, so that the program's own handlers
//! find the engine working.

use core::ffi::c_int;

slots! {
    FORK = c"_Fork": unsafe extern "C" fn() -> libc::pid_t;
    EXIT = c"_exit": unsafe extern "C" fn(c_int) -> !;
}

extern "C" fn prepare() {
    uncopy_engine::fork::prepare();
}

extern "C" fn parent() {
    uncopy_engine::fork::parent();
}

extern "C" fn child() {
    uncopy_engine::fork::child();
}

/// Registers the fork handlers.
pub fn watch_forks() {
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

/// `_Fork` runs no handlers (POSIX): we do what ours would.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let real = FORK.call();
    prepare();
    // SAFETY: as libc's.
    let result = unsafe { real() };
    if result == 0 {
        child();
    } else {
        parent();
    }
    result
}

/// Exits that run no destructors still write the counters that were asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    crate::start::finish();
    // SAFETY: as libc's.
    unsafe { EXIT.call()(status) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: as libc's.
    unsafe { _exit(status) }
}
