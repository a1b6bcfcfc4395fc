//! Who is at work inside the engine, so that a fork can wait until nobody is.
//!
//! libc takes locks of its own, malloc's among them, after the fork handlers have run. A thread that holds
//! one of those may run a signal handler whose copy is a hook of ours: the fork waits for that thread. So
//! that thread must not wait for the fork. Whoever begins engine work enters here first, and while a fork is
//! under way goes on without the engine.
//!
//! ```text
//! hook   one more in its part of the table ──► work ──► one less       (the mark was there: one less, plain)
//! fork   mark every part, wait until all are empty ──► locks, libc's locks, the fork itself ──► unmark
//! ```
//!
//! The table is in parts so that threads do not share a cache line.

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

/// Polls, some 70 µs apart, before a hook abandons waiting for a fork and goes on without the engine.
#[cfg(not(loom))]
const POLLS: u32 = 300;
#[cfg(loom)]
const POLLS: u32 = 1;
/// Polls before the end of a call abandons waiting: longer, because what it holds can only be given back inside.
#[cfg(not(loom))]
const END_POLLS: u32 = 3_000;
#[cfg(loom)]
const END_POLLS: u32 = 1;

#[repr(align(128))]
struct Part(AtomicU32);

struct Table {
    parts: [Part; PARTS],
    /// Forks so far: a thread waits only once for each.
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
    /// Presences of this thread, one inside the other.
    static DEPTH: Cell<u32> = Cell::new(0);
    /// The fork that this thread has waited for in vain.
    static WAITED: Cell<u32> = Cell::new(0);
    /// This thread is at the end of a call and could not enter any more.
    static OUTSIDE: Cell<bool> = Cell::new(false);
}

fn own_part() -> &'static AtomicU32 {
    &TABLE.parts[thread_id() as usize % PARTS].0
}

/// One more in the table and in the thread's own count. With the program's handlers kept away.
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

/// The contrary, in the same way.
fn leave() {
    let depth = DEPTH.with(Cell::get) - 1;
    DEPTH.with(|own| own.set(depth));
    if depth == 0 {
        own_part().fetch_sub(1, Ordering::AcqRel);
    }
}

/// Attempts again, a moment apart, what a fork that is under way has refused, so many times at most.
#[cold]
fn after_a_fork<T>(most: u32, attempt: impl Fn() -> Option<T>) -> Option<T> {
    let mut tries = 0;
    while waits(&mut tries, most) {
        let done = attempt();
        if done.is_some() {
            return done;
        }
    }
    None
}

/// Whether to look again, after a moment, at a fork that is under way.
fn waits(tries: &mut u32, most: u32) -> bool {
    let fork = TABLE.forks.load(Ordering::Relaxed);
    if *tries == most || WAITED.with(Cell::get) == fork {
        WAITED.with(|waited| waited.set(fork));
        return false;
    }
    *tries += 1;
    let _errno = errno::Keep::new();
    thread::pause();
    true
}

/// The calling thread is inside: no fork begins before it has left.
pub struct Presence(());

impl Presence {
    /// Enters, after a fork that is under way if that does not take long. `None`: it does; go on without
    /// the engine, and do not wait for any of its locks.
    #[inline]
    #[must_use]
    pub fn enter() -> Option<Self> {
        Self::enter_now().or_else(|| after_a_fork(POLLS, Self::enter_now))
    }

    #[inline]
    fn enter_now() -> Option<Self> {
        // A handler that forks between the two counts would wait for its own thread.
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

/// Engine work of a hook: inside, with the program's handlers kept away.
pub struct Section {
    critical: Critical,
    is_outside: Cell<bool>,
}

impl Section {
    /// Begins it. `None` as for [`Presence::enter`].
    #[inline]
    #[must_use]
    pub fn enter() -> Option<Self> {
        Self::enter_now().or_else(|| after_a_fork(POLLS, Self::enter_now))
    }

    #[inline]
    fn enter_now() -> Option<Self> {
        let critical = Critical::enter_briefly();
        enter().then(|| Self { critical, is_outside: Cell::new(false) })
    }

    /// Runs the program's own code or system call: outside, with its signals, from which the thread may
    /// jump away. Afterwards the section goes on; if a fork does not let it, [`Section::is_outside`] says so.
    pub fn leave_for<T>(&self, call: impl FnOnce() -> T) -> T {
        if self.is_outside() {
            // A signal handler's own sections are none of this one's business.
            OUTSIDE.with(|outside| outside.set(false));
            let result = self.critical.leave_for(call);
            OUTSIDE.with(|outside| outside.set(true));
            return result;
        }
        leave();
        let result = self.critical.leave_for(call);
        if !enter() {
            self.come_back();
        }
        result
    }

    #[cold]
    fn come_back(&self) {
        if after_a_fork(END_POLLS, || enter().then_some(())).is_none() {
            self.is_outside.set(true);
            OUTSIDE.with(|outside| outside.set(true));
        }
    }

    /// Whether a fork that waits for this very thread keeps it out until the end of the section: no lock
    /// may be taken. What the section holds must stay where the thread's next call, or a child, finds it;
    /// what is dropped all the same is lost.
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

/// Before a fork: lets nobody in any more and waits until nobody but the calling thread is inside.
pub fn close() {
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

/// After a fork, in the parent.
pub fn open() {
    for part in &TABLE.parts {
        part.0.fetch_and(!FORK, Ordering::AcqRel);
    }
}

/// After a fork, in the child, where the calling thread is the only one and has a new id.
pub fn open_in_child() {
    for part in &TABLE.parts {
        part.0.store(0, Ordering::Release);
    }
    own_part().store(u32::from(DEPTH.with(Cell::get) > 0), Ordering::Release);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// All in one test: there is one table in a process.
    #[test]
    fn a_fork_waits_for_those_inside_and_keeps_others_out() {
        let section = Section::enter().expect("no fork");
        let forking = std::thread::spawn(close);
        // While the other thread waits for this one, work within work goes on.
        while own_part().load(Ordering::Acquire) & FORK == 0 {
            thread::pause();
        }
        assert!(Presence::enter().is_some());
        assert!(!forking.is_finished());
        section.leave_for(|| forking.join().expect("nobody is inside"));
        assert!(section.is_outside());
        drop(section);
        assert!(!is_outside());
        assert!(Section::enter().is_none() && Presence::enter().is_none());
        open();
        let section = Section::enter().expect("the fork is over");
        section.leave_for(|| assert_eq!(own_part().load(Ordering::Acquire), 0));
        assert!(!section.is_outside());
        open_in_child();
        drop(section);
        assert_eq!(own_part().load(Ordering::Acquire), 0);
    }
}
