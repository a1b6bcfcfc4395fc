//! Handlers that run before and after fork(2).
//!
//! Little is needed: a child has no userfaultfd registration and no protection, and the state that records
//! them (page states, phase, locks, owners of caches) reads as zero there. Pages that may be in flight are
//! replaced by the kernel's own copy-on-write when the child writes, because no page is exclusive after a
//! fork and the kernel's reference counts as one more. But the lists must be consistent, and no page may be
//! absent when the child's memory is copied, so a fork waits for all threads at work. A child forked without
//! handlers (`_Fork`, `clone`) from a multithreaded program may find the lists inconsistent; POSIX does not
//! allow such a child to allocate.

use crate::process;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use uncopy_sys::last_thread::{self, Role};
use uncopy_sys::lock::{Critical, Lock, forget_thread_id};
use uncopy_sys::thread::number;

struct ForkState {
    lock: Lock,
    /// Number of the forking thread plus one; the same in the child.
    forking_thread: AtomicU32,
    critical: UnsafeCell<Option<Critical>>,
}

// SAFETY: only the thread that holds `lock` accesses the cell.
unsafe impl Sync for ForkState {}

static FORK: ForkState =
    ForkState { lock: Lock::new(), forking_thread: AtomicU32::new(0), critical: UnsafeCell::new(None) };
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

extern "C" fn before() {
    prepare();
}

extern "C" fn after_in_parent() {
    parent();
}

extern "C" fn after_in_child() {
    child();
}

/// Registers the handlers, unless the caller's own handlers call this module.
pub(crate) fn register_handlers() {
    if !IS_WATCHED.swap(true, Relaxed) {
        // SAFETY: pthread_atfork(3) needs functions that stay callable; a library that contains them must not
        // be unloaded while the allocator is in use.
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    }
}

/// Declares that the caller's own fork handlers call [`prepare`], [`parent`] and [`child`]. Must be called
/// before the first allocation.
pub fn use_callers_fork_handlers() {
    IS_WATCHED.store(true, Relaxed);
}

/// Before a fork: acquires all locks.
pub fn prepare() {
    let critical = Critical::enter();
    FORK.lock.lock();
    FORK.forking_thread.store(number() + 1, Relaxed);
    process::lock_all();
    // SAFETY: this thread holds `HELD.lock`, which guards the cell.
    unsafe { *FORK.critical.get() = Some(critical) };
}

/// After a fork or a failed fork, in the parent: releases all locks.
pub fn parent() {
    if FORK.forking_thread.load(Relaxed) == number() + 1 {
        finish();
    }
}

/// After a fork, in the child, before any of the program's code: releases all locks and resets the state.
pub fn child() {
    forget_thread_id();
    child_before_others(true);
}

/// Like [`child`], if other handlers still need the thread's number of the parent, and reset it themselves.
/// `has_own_descriptors` tells that descriptors are not shared with the parent.
pub fn child_before_others(has_own_descriptors: bool) {
    parent();
    last_thread::reset_in_child(Role::Twin, has_own_descriptors);
    if process::is_ready() {
        process::close_inherited();
    }
}

fn finish() {
    process::unlock_all();
    FORK.forking_thread.store(0, Relaxed);
    // SAFETY: this thread holds `HELD.lock`, which guards the cell.
    let critical = unsafe { (*FORK.critical.get()).take() };
    FORK.lock.unlock();
    drop(critical);
}
