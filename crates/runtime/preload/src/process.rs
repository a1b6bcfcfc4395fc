//! Creation and end of processes.
//!
//! fork is handled through `pthread_atfork`. Handlers registered first run last before the fork and first after
//! it. This library registers its own before anyone else's: at the first registration by any library, or when it
//! is loaded. So the program's handlers find the engine working.

use crate::exit;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use uncopy_engine::state::phase::Phase;
use uncopy_engine::state::phase::STATE;
use uncopy_interpose::{alias, first_thread, slots};
use uncopy_lanes::process as lanes;
use uncopy_twin::fork as twin;

type Handler = extern "C" fn();
type Register = unsafe extern "C" fn(Option<Handler>, Option<Handler>, Option<Handler>, *mut c_void) -> c_int;

slots! {
    REGISTER = c"__register_atfork": Register;
    FORK = c"_Fork": unsafe extern "C" fn() -> libc::pid_t;
    EXIT = c"_exit": unsafe extern "C" fn(c_int) -> !;
}

extern "C" fn prepare() {
    if exit::is_sealed() {
        return;
    }
    crate::files::before_fork();
    // Lock order: in the engine one may wait for a page of twin memory, in twin memory never for the engine.
    uncopy_engine::life::fork::prepare_with(lanes::prepare_fork);
    twin::prepare();
}

extern "C" fn parent() {
    if exit::is_sealed() {
        return;
    }
    twin::parent();
    uncopy_engine::life::fork::parent();
    lanes::after_fork();
    crate::files::after_fork();
}

extern "C" fn child() {
    if exit::is_sealed() {
        return;
    }
    uncopy_sys::owner::claim_memory();
    watch_end();
    lanes::in_child(true);
    crate::lanes::allow_start_in_child();
    crate::net::in_child();
    twin::child_before_others(true);
    uncopy_engine::life::fork::child();
    uncopy_record::session::in_child();
    // After the others, because it allocates.
    crate::files::in_child();
}

/// Watches for the end of the process, see [`first_thread`]. Called in the first thread.
fn watch_end() {
    first_thread::watch(uncopy_sys::thread::has_library_threads);
}

/// Registers the fork handlers, once, before anyone else's.
pub fn watch_forks() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if !WATCHING.swap(true, Relaxed) {
        watch_end();
        twin::use_callers_fork_handlers();
        // SAFETY: the handlers are functions of this library, which is never unloaded.
        unsafe { REGISTER.call()(Some(prepare), Some(parent), Some(child), core::ptr::null_mut()) };
    }
}

/// Hooks the function that glibc's `pthread_atfork` calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    prepare: Option<Handler>,
    parent: Option<Handler>,
    child: Option<Handler>,
    library: *mut c_void,
) -> c_int {
    watch_forks();
    // SAFETY: the program's own arguments, passed on to libc unchanged.
    unsafe { REGISTER.call()(prepare, parent, child, library) }
}

/// Resources that a forked child, in which no fork handlers run, does not share with its parent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Memory is separate, descriptors are shared (CLONE_FILES).
    OfItsOwnOnly,
    /// Memory and descriptors are separate.
    AndDescriptors,
}

/// Makes a fork in which no handlers run, and does what this library's handlers do. Keeps the `errno` that `fork`
/// leaves.
///
/// Other threads may have held libc's locks when the child was made, so POSIX allows the child of a multithreaded
/// program little before exec. Such a child gets no handler thread, and its memory becomes plain.
pub fn forked(memory: Memory, fork: impl FnOnce() -> i64) -> i64 {
    if exit::is_sealed() {
        return fork();
    }
    // Before any lock is taken, since this allocates from uncopy's own memory.
    let has_threads = STATE.phase() == Phase::Active && uncopy_sys::thread::has_other_threads();
    prepare();
    if memory == Memory::OfItsOwnOnly {
        crate::files::share_descriptors();
        uncopy_sys::last_thread::note_shared_table();
    }
    let result = fork();
    let errno = uncopy_sys::errno::get();
    if result == 0 {
        uncopy_sys::owner::claim_memory();
        lanes::in_child(memory == Memory::AndDescriptors);
        twin::child_before_others(memory == Memory::AndDescriptors);
        uncopy_engine::life::fork::child_without_handlers(has_threads, memory == Memory::AndDescriptors);
        uncopy_record::session::in_child();
        crate::net::in_child();
        if memory == Memory::AndDescriptors {
            crate::files::in_child();
        }
    } else {
        parent();
    }
    uncopy_sys::errno::set(errno);
    result
}

/// Hooks _Fork, which runs no handlers (POSIX).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let real = FORK.call();
    // SAFETY: _Fork takes no arguments; the fork handlers' work is done by `forked`.
    forked(Memory::AndDescriptors, || i64::from(unsafe { real() })) as libc::pid_t
}

/// Hooks _exit, which runs no destructors, to write the counters if requested.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    exit::finish();
    // SAFETY: _exit takes any status and does not return.
    unsafe { EXIT.call()(status) }
}

alias!(_Exit = _exit (status: c_int) -> !);
