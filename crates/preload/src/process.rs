//! Processes that come and go.
//!
//! fork is served through `pthread_atfork`: handlers registered first run last before the fork and first
//! after it, so ours are registered before anyone else's, at the first registration that any library
//! makes or when this one is loaded. The program's own handlers then find the engine working.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use uncopy_engine::engine::{ENGINE, Phase};

type Handler = extern "C" fn();
type Register = unsafe extern "C" fn(Option<Handler>, Option<Handler>, Option<Handler>, *mut c_void) -> c_int;

slots! {
    REGISTER = c"__register_atfork": Register;
    PTHREAD_EXIT = c"pthread_exit": unsafe extern "C" fn(*mut c_void) -> !;
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
    crate::start::own_process();
    uncopy_engine::fork::child();
}

/// Registers the fork handlers, once, before anyone else's.
pub fn watch_forks() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if !WATCHING.swap(true, Relaxed) {
        // SAFETY: the handlers are functions of this library, which is never unloaded.
        unsafe { REGISTER.call()(Some(prepare), Some(parent), Some(child), core::ptr::null_mut()) };
    }
}

/// What `pthread_atfork` comes down to (glibc).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    prepare: Option<Handler>,
    parent: Option<Handler>,
    child: Option<Handler>,
    library: *mut c_void,
) -> c_int {
    watch_forks();
    // SAFETY: the caller's promise.
    unsafe { REGISTER.call()(prepare, parent, child, library) }
}

/// What a child that runs no fork handlers has to itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Its memory, not its descriptors (CLONE_FILES).
    OfItsOwnOnly,
    /// Its memory and its descriptors.
    AndDescriptors,
}

/// A fork that runs no handlers: we do what ours would. The `errno` that `fork` leaves is kept.
///
/// Other threads may have held libc's locks when the child was made, which is why POSIX lets the child of
/// a program with threads do little before it executes another: it does without a handler thread of its
/// own, as plain memory.
pub fn forked(memory: Memory, fork: impl FnOnce() -> i64) -> i64 {
    // Before anything is locked: it allocates from uncopy's own memory.
    let has_threads = ENGINE.phase() == Phase::Active && uncopy_sys::thread::others_live();
    prepare();
    let result = fork();
    let errno = uncopy_sys::errno::get();
    if result == 0 {
        crate::start::own_process();
        uncopy_engine::fork::child_without_handlers(has_threads, memory == Memory::AndDescriptors);
    } else {
        parent();
    }
    uncopy_sys::errno::set(errno);
    result
}

/// `_Fork` runs no handlers (POSIX).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let real = FORK.call();
    // SAFETY: as libc's.
    forked(Memory::AndDescriptors, || i64::from(unsafe { real() })) as libc::pid_t
}

/// A program ends when its last thread does, and our handler thread would be that one: a main thread that
/// ends before the others waits for them here, and then ends the program as the last one would have.
///
/// Its cleanup handlers and thread-specific data are left alone in that case.
///
/// libc's function unwinds the stack (glibc), as cancellation does through every hook. Neither type says
/// `C-unwind`: with `panic = "abort"` the compiler would end the process where such a call unwinds; without, it
/// leaves nothing in the way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_exit(result: *mut c_void) -> ! {
    let is_main = uncopy_sys::lock::thread_id() == std::process::id();
    if is_main && ENGINE.phase() != Phase::Inactive && ENGINE.min_size_bytes() != usize::MAX {
        while uncopy_sys::thread::others_live() {
            uncopy_sys::thread::doze();
        }
        std::process::exit(0);
    }
    // SAFETY: as libc's.
    unsafe { PTHREAD_EXIT.call()(result) }
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
