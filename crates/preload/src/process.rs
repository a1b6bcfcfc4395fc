//! Processes that come and go.
//!
//! fork is served through `pthread_atfork`: handlers registered first run last before the fork and first
//! after it, so ours are registered before anyone else's, at the first registration that any library
//! makes or when this one is loaded. The program's own handlers then find the engine working.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::OnceLock;
use uncopy_engine::engine::{ENGINE, Phase};
use uncopy_hooks::slots;

type Handler = extern "C" fn();
type Register = unsafe extern "C" fn(Option<Handler>, Option<Handler>, Option<Handler>, *mut c_void) -> c_int;

slots! {
    REGISTER = c"__register_atfork": Register;
    FORK = c"_Fork": unsafe extern "C" fn() -> libc::pid_t;
    EXIT = c"_exit": unsafe extern "C" fn(c_int) -> !;
}

extern "C" fn prepare() {
    if crate::start::is_sealed() {
        return;
    }
    uncopy_engine::fork::prepare();
}

extern "C" fn parent() {
    if crate::start::is_sealed() {
        return;
    }
    uncopy_engine::fork::parent();
}

extern "C" fn child() {
    if crate::start::is_sealed() {
        return;
    }
    crate::start::own_process();
    watch_end();
    uncopy_engine::fork::child();
}

/// The thread-specific datum of a process's first thread.
static END: OnceLock<libc::pthread_key_t> = OnceLock::new();

/// A process ends when its last thread does, and our handler thread would be that one: a first thread that ends
/// before the others (by `pthread_exit`; in the child of a thread's fork also by a return) has to wait for them.
/// Called in the first thread.
fn watch_end() {
    let key = *END.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the destructor is a function of this library, which is never unloaded.
        let result = unsafe { libc::pthread_key_create(&mut key, Some(first_thread_ends)) };
        if result == 0 { key } else { libc::pthread_key_t::MAX }
    });
    // SAFETY: the datum is a number, never dereferenced; a key that does not exist is refused.
    unsafe { libc::pthread_setspecific(key, core::ptr::without_provenance(1)) };
}

/// Destructor of the datum, which counts the rounds: in the last of them the program's own destructors have run.
extern "C" fn first_thread_ends(round: *mut c_void) {
    const LAST: usize = 4; // PTHREAD_DESTRUCTOR_ITERATIONS (glibc)
    // The handler outlives what it served.
    if ENGINE.uffd_so_far().is_none() {
        return;
    }
    if round.addr() < LAST
        && let Some(key) = END.get()
    {
        // SAFETY: as above.
        unsafe { libc::pthread_setspecific(*key, core::ptr::without_provenance(round.addr() + 1)) };
        return;
    }
    while uncopy_sys::thread::others_live() {
        uncopy_sys::thread::doze();
    }
    // What glibc does in the last thread.
    std::process::exit(0);
}

/// Registers the fork handlers, once, before anyone else's.
pub fn watch_forks() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if !WATCHING.swap(true, Relaxed) {
        watch_end();
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
    if crate::start::is_sealed() {
        return fork();
    }
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
