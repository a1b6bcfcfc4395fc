//! What the handler threads of userfaultfds have in common: how one is started, and when the fault of a thread that
//! holds the lock of what it touched is believed. How a handler waits, reads and serves is its own.

use crate::errno::Errno;
use crate::last_thread::{self, LastThread, Role};
use crate::messages::Fault;
use crate::sync::Futex;
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::thread;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

/// The start of a handler thread, which its creator waits for. One at a time.
#[derive(Debug)]
pub struct Start {
    /// Threads that have told so far: one that a fork left behind in the parent's copy does not exist.
    told: Futex,
    /// Why the last one has not begun; 0: it has.
    errno: AtomicI32,
    /// The last one has a table of descriptors of its own.
    is_isolated: AtomicBool,
    role: Role,
}

impl Start {
    crate::constant! {
        /// No thread has been started.
        #[must_use]
        pub const fn new(role: Role) -> Self {
            Self { told: Futex::new(0), errno: AtomicI32::new(0), is_isolated: AtomicBool::new(false), role }
        }
    }

    /// Runs `body(argument)` in a thread of its own, and waits until it [tells](Start::tell) that it has what it needs.
    ///
    /// # Errors
    /// What pthread_create says, or the thread.
    pub fn run(&self, body: extern "C" fn(*mut c_void) -> *mut c_void, argument: usize) -> Result<(), Errno> {
        if !thread::ours_may_start() {
            return Err(Errno(libc::EAGAIN));
        }
        let before = self.told.load(Acquire);
        self.is_isolated.store(false, Relaxed);
        last_thread::prepare(self.role);
        let started = thread::spawn(body, argument);
        if started.is_ok() {
            while self.told.load(Acquire) == before {
                self.told.wait(before);
            }
        }
        last_thread::settle(self.role, started.is_ok() && self.is_isolated.load(Relaxed));
        started?;
        match self.errno.load(Relaxed) {
            0 => Ok(()),
            number => Err(Errno(number)),
        }
    }

    /// In the thread: gives it a table of descriptors that holds `kept` (in any order; -1: none) and the end by which it
    /// learns that no thread of the program is left, and the name of its role. False: that was refused, and it shares the
    /// program's table.
    #[must_use]
    pub fn isolate(&self, kept: [i32; 2]) -> (bool, LastThread) {
        let [first, second] = kept;
        let kept = [first, second, last_thread::watched(self.role)];
        let is_isolated = thread::isolate(self.role, kept).is_ok();
        self.is_isolated.store(is_isolated, Relaxed);
        (is_isolated, LastThread::new(self.role, is_isolated))
    }

    /// In the thread: whether it has what it needs to serve, its own table of descriptors for one. Once.
    pub fn tell(&self, result: Result<(), Errno>) {
        self.errno.store(result.err().map_or(0, |errno| errno.0), Relaxed);
        self.told.fetch_add(1, Release);
        self.told.wake(i32::MAX as u32);
    }
}

/// Times that a fault under the faulting thread's own lock must be seen before it is believed.
const MIN_SEEN: u32 = 4;

/// The last fault of a thread that holds the lock of what it touched.
///
/// Such a fault may be an old one: another thread has served the page meanwhile, and the one that waited for
/// it has gone on, taken the lock and given the page up. Zeroes there would be wrong bytes. So the thread is
/// woken; if it does wait, it faults again, and has not given the lock back in between.
#[derive(Debug, Default)]
pub struct OwnersFault {
    /// The fault, and how often the lock had been taken.
    last: Option<(Fault, u32)>,
    seen: u32,
}

impl OwnersFault {
    /// Whether the thread really waits: the fault has been seen often enough. `turns`: how often the lock was taken.
    pub fn is_waiting(&mut self, fault: Fault, turns: u32) -> bool {
        let is_same = self.last.replace((fault, turns)) == Some((fault, turns));
        self.seen = if is_same { self.seen + 1 } else { 1 };
        self.seen >= MIN_SEEN
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    static START: Start = Start::new(Role::Faults);

    extern "C" fn tell(argument: *mut c_void) -> *mut c_void {
        START.tell(if argument.is_null() { Ok(()) } else { Err(Errno::ENOMEM) });
        argument
    }

    #[test]
    fn a_thread_says_whether_it_has_what_it_needs() {
        assert_eq!([0, 1, 0].map(|argument| START.run(tell, argument)), [Ok(()), Err(Errno::ENOMEM), Ok(())]);
    }

    #[test]
    fn a_fault_is_believed_once_nothing_else_came_in_between() {
        let fault = Fault { address: 4096, thread_id: 7 };
        let mut owners = OwnersFault::default();
        assert_eq!([(); 4].map(|()| owners.is_waiting(fault, 1)), [false, false, false, true]);
        assert!(!owners.is_waiting(fault, 2), "the lock was given back in between");
        assert!(!owners.is_waiting(Fault { address: 8192, ..fault }, 2));
    }
}
