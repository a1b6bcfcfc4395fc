//! Counts the threads inside the engine, so that a fork can wait until none is.
//!
//! libc takes locks of its own, such as malloc's, after the fork handlers have run. A thread that
//! holds one of those may run a signal handler that calls a hook of ours: the fork waits for that
//! thread, so the thread must not wait for the fork. Engine work therefore begins by entering here,
//! and while a fork is under way it continues without the engine.
//!
//! ```text
//! hook   increment its part of the table ──► work ──► decrement       (FORK was set: decrement, no engine)
//! fork   set FORK in all parts, wait until all are 0 ──► locks, libc's locks, the fork itself ──► clear FORK
//! ```
//!
//! The table is divided into parts so that threads do not share a cache line.

use crate::lock::{Critical, thread_id};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::{errno, thread};
use core::cell::Cell;

/// Set in a part of the table while a fork is under way.
const FORK: u32 = 1 << 31;
#[cfg(not(loom))]
const PARTS: usize = 64;
#[cfg(loom)]
const PARTS: usize = 1;

/// Polls, some 70 µs apart, before a hook stops waiting for a fork and continues without the engine.
#[cfg(not(loom))]
const POLLS: u32 = 300;
#[cfg(loom)]
const POLLS: u32 = 1;
/// Polls before the end of a call stops waiting: more, because it must return what it holds.
#[cfg(not(loom))]
const END_POLLS: u32 = 3_000;
#[cfg(loom)]
const END_POLLS: u32 = 1;

#[repr(align(128))]
struct Part(AtomicU32);

struct Table {
    parts: [Part; PARTS],
    /// Number of forks so far: a thread waits only once for each.
    forks: AtomicU32,
}

crate::statics! {
    static TABLE: Table = Table {
        #[cfg(not(loom))]
        parts: [const { Part(AtomicU32::new(0)) }; PARTS],
        #[cfg(loom)]
        parts: core::array::from_fn(|_| Part(AtomicU32::new(0))),
        forks: AtomicU32::new(0),
    };
}

crate::locals! {
    /// Nesting depth of this thread's presences.
    static DEPTH: Cell<u32> = Cell::new(0);
    /// The fork for which this thread has waited in vain.
    static ABANDONED_FORK: Cell<u32> = Cell::new(0);
    /// Whether this thread is at the end of a call and could not enter again.
    static OUTSIDE: Cell<bool> = Cell::new(false);
}

fn own_part() -> &'static AtomicU32 {
    &TABLE.parts[thread_id() as usize % PARTS].0
}

/// Increments the thread's part of the table and its depth, handlers deferred. False during a fork.
fn enter() -> bool {
    let depth = DEPTH.with(Cell::get);
    if depth == 0 {
        let part = own_part();
        if part.fetch_add(1, Ordering::AcqRel) & FORK != 0 {
            part.fetch_sub(1, Ordering::AcqRel);
            return false;
        }
    }
    DEPTH.with(|own| own.set(depth + 1));
    true
}

/// Undoes [`enter`], with signal handlers deferred.
fn leave() {
    let depth = DEPTH.with(Cell::get) - 1;
    DEPTH.with(|own| own.set(depth));
    if depth == 0 {
        own_part().fetch_sub(1, Ordering::AcqRel);
    }
}

/// Repeats, up to `most` times a moment apart, an attempt that failed because a fork is under way.
#[cold]
fn retry_after_fork<T>(most: u32, attempt: impl Fn() -> Option<T>) -> Option<T> {
    let mut tries = 0;
    while wait_for_fork(&mut tries, most) {
        let done = attempt();
        if done.is_some() {
            return done;
        }
    }
    None
}

/// Waits a moment for the fork that is under way. Returns false if the thread has waited enough.
fn wait_for_fork(tries: &mut u32, most: u32) -> bool {
    let fork = TABLE.forks.load(Ordering::Relaxed);
    if *tries == most || ABANDONED_FORK.with(Cell::get) == fork {
        ABANDONED_FORK.with(|waited| waited.set(fork));
        return false;
    }
    *tries += 1;
    let _errno = errno::SavedErrno::new();
    thread::pause();
    true
}

/// Presence of the calling thread in the engine: no fork begins before it is dropped.
pub struct Presence(());

impl Presence {
    /// Enters, if need be after a short wait for a fork. On `None` the fork is still under way: the
    /// caller continues without the engine and must not wait for any of its locks.
    #[inline]
    #[must_use]
    pub fn enter() -> Option<Self> {
        Self::enter_now().or_else(|| retry_after_fork(POLLS, Self::enter_now))
    }

    #[inline]
    fn enter_now() -> Option<Self> {
        // A signal handler that forks between the two increments would wait for its own thread.
        let _critical = Critical::enter_briefly();
        enter().then(|| Self(()))
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let _critical = Critical::enter_briefly();
        leave();
    }
}

/// Engine work of a hook: inside, with signal handlers deferred.
pub struct Section {
    critical: Critical,
    is_outside: Cell<bool>,
}

impl Section {
    /// Begins a section. `None` as for [`Presence::enter`].
    #[inline]
    #[must_use]
    pub fn enter() -> Option<Self> {
        Self::enter_now().or_else(|| retry_after_fork(POLLS, Self::enter_now))
    }

    #[inline]
    fn enter_now() -> Option<Self> {
        let critical = Critical::enter_briefly();
        enter().then(|| Self { critical, is_outside: Cell::new(false) })
    }

    /// Leaves the section for the program's own code or system call, with its signals, from which
    /// the thread may jump away. The section continues afterwards; if a fork prevents that,
    /// [`Section::is_outside`] is true.
    pub fn run_outside<T>(&self, call: impl FnOnce() -> T) -> T {
        if self.is_outside() {
            // Sections of a signal handler are independent of this one.
            OUTSIDE.with(|outside| outside.set(false));
            let result = self.critical.run_outside(call);
            OUTSIDE.with(|outside| outside.set(true));
            return result;
        }
        leave();
        let result = self.critical.run_outside(call);
        if !enter() {
            self.reenter();
        }
        result
    }

    #[cold]
    fn reenter(&self) {
        if retry_after_fork(END_POLLS, || enter().then_some(())).is_none() {
            self.is_outside.set(true);
            OUTSIDE.with(|outside| outside.set(true));
        }
    }

    /// Whether a fork that waits for this very thread keeps it out until the end of the section. No
    /// lock may be taken then; what the section holds must stay where the thread's next call, or a
    /// child, finds it, and is lost if dropped.
    #[inline]
    #[must_use]
    pub fn is_outside(&self) -> bool {
        self.is_outside.get()
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        if self.is_outside.get() {
            OUTSIDE.with(|outside| outside.set(false));
        } else {
            leave();
        }
    }
}

/// Whether the calling thread is at the end of a section that it could not enter again.
#[inline]
#[must_use]
pub fn is_outside() -> bool {
    OUTSIDE.with(Cell::get)
}

/// Prepares a fork: lets no thread enter any more, and waits until only the calling thread is inside.
pub fn begin_fork() {
    TABLE.forks.fetch_add(1, Ordering::Relaxed);
    for part in &TABLE.parts {
        part.0.fetch_or(FORK, Ordering::AcqRel);
    }
    let own = core::ptr::from_ref(own_part());
    let is_inside = DEPTH.with(Cell::get) > 0;
    for part in &TABLE.parts {
        let left = FORK + u32::from(core::ptr::eq(&raw const part.0, own) && is_inside);
        while part.0.load(Ordering::Acquire) != left {
            thread::pause();
        }
    }
}

/// Ends a fork in the parent: threads may enter again.
pub fn end_fork() {
    for part in &TABLE.parts {
        part.0.fetch_and(!FORK, Ordering::AcqRel);
    }
}

/// Ends a fork in the child, where the calling thread is the only one and has a new id.
pub fn end_fork_in_child() {
    for part in &TABLE.parts {
        part.0.store(0, Ordering::Release);
    }
    own_part().store(u32::from(DEPTH.with(Cell::get) > 0), Ordering::Release);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// One test for everything, because a process has a single table.
    #[test]
    fn a_fork_waits_for_those_inside_and_keeps_others_out() {
        let section = Section::enter().expect("no fork");
        let forking = std::thread::spawn(begin_fork);
        // While the other thread waits for this one, nested sections still work.
        while own_part().load(Ordering::Acquire) & FORK == 0 {
            thread::pause();
        }
        assert!(Presence::enter().is_some());
        assert!(!forking.is_finished());
        section.run_outside(|| forking.join().expect("nobody is inside"));
        assert!(section.is_outside());
        drop(section);
        assert!(!is_outside());
        assert!(Section::enter().is_none() && Presence::enter().is_none());
        end_fork();
        let section = Section::enter().expect("the fork is over");
        section.run_outside(|| assert_eq!(own_part().load(Ordering::Acquire), 0));
        assert!(!section.is_outside());
        end_fork_in_child();
        drop(section);
        assert_eq!(own_part().load(Ordering::Acquire), 0);
    }
}
