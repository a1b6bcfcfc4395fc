//! What a fork needs.
//!
//! Almost nothing: in a child the registration with userfaultfd and the protection do not exist, and what says so
//! (page states, phase, locks, lanes' owners) reads as zeroes there. What may be in flight of the child's pages is
//! replaced by the kernel's own copy-on-write when the child writes, because after a fork no page is exclusive and the
//! kernel's reference counts as one more. But the lists must be whole, and no page may be absent for a moment while
//! the child's copy is made: so a fork waits for whoever is at work. A child that was forked without handlers (`_Fork`,
//! `clone`) by a program with threads may find the lists broken; POSIX lets it allocate nothing.

use crate::process;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use uncopy_sys::last_thread::{self, Role};
use uncopy_sys::lock::{Critical, Lock, forget_thread_id};
use uncopy_sys::thread::number;

struct Held {
    /// Only one fork at a time.
    lock: Lock,
    /// Number of the thread that forks plus one: it is the same in the child.
    by: AtomicU32,
    critical: UnsafeCell<Option<Critical>>,
}

// SAFETY: the cell is only touched by the thread that holds the lock.
unsafe impl Sync for Held {}

static HELD: Held = Held { lock: Lock::new(), by: AtomicU32::new(0), critical: UnsafeCell::new(None) };
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

/// Registers the handlers, unless the caller's own call them.
pub(crate) fn watch() {
    if !IS_WATCHED.swap(true, Relaxed) {
        // SAFETY: the handlers are functions of a library that is not unloaded while it is in use.
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    }
}

/// The caller has fork handlers of its own that call [`prepare`], [`parent`] and [`child`]. Before the first allocation.
pub fn is_watched_by_caller() {
    IS_WATCHED.store(true, Relaxed);
}

/// Before a fork: waits until nobody is at work, and keeps it so.
pub fn prepare() {
    let critical = Critical::enter();
    HELD.lock.lock();
    HELD.by.store(number() + 1, Relaxed);
    process::lock_all();
    // SAFETY: under the lock.
    unsafe { *HELD.critical.get() = Some(critical) };
}

/// After a fork, in the parent, also if it failed.
pub fn parent() {
    if HELD.by.load(Relaxed) == number() + 1 {
        finish();
    }
}

/// After a fork, in the child, before anything of the program runs.
pub fn child() {
    forget_thread_id();
    child_before_others(true);
}

/// The same where others have handlers too, which still need the number that the thread had in the parent: they have it
/// forgotten. `has_own_descriptors`: they are not shared with the parent.
pub fn child_before_others(has_own_descriptors: bool) {
    parent();
    last_thread::in_child(Role::Twin, has_own_descriptors);
    if process::is_ready() {
        process::close_inherited();
    }
}

fn finish() {
    process::unlock_all();
    HELD.by.store(0, Relaxed);
    // SAFETY: under the lock.
    let critical = unsafe { (*HELD.critical.get()).take() };
    HELD.lock.unlock();
    drop(critical);
}
