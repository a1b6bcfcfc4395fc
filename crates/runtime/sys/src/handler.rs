//! Common parts of the handler threads of userfaultfds: starting one, and deciding when a fault of a thread
//! that holds the lock of the block it touched is real. Waiting, reading and serving differ.

use crate::errno::Errno;
use crate::last_thread::{self, LastThread, Role};
use crate::messages::Fault;
use crate::sync::Futex;
use crate::sync::atomic::Ordering::{Acquire, Release};
use crate::thread;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

/// The start of a handler thread, for which its creator waits. One start at a time.
#[derive(Debug)]
pub struct HandlerStart {
    /// Number of threads that have reported so far, also those that a forked child does not have.
    report_count: Futex,
    /// Error of the last thread's start; 0 if it started.
    errno: AtomicI32,
    /// Whether the last thread has its own table of descriptors.
    is_isolated: AtomicBool,
    role: Role,
}

impl HandlerStart {
    crate::constant! {
        /// Returns the state before any start.
        #[must_use]
        pub const fn new(role: Role) -> Self {
            Self { report_count: Futex::new(0), errno: AtomicI32::new(0), is_isolated: AtomicBool::new(false), role }
        }
    }

    /// Runs `body(argument)` in a new thread, and waits until that thread [reports](HandlerStart::report)
    /// whether it has all that it needs.
    ///
    /// # Errors
    /// The error of pthread_create(3), or of the new thread.
    pub fn run(&self, body: extern "C" fn(*mut c_void) -> *mut c_void, argument: usize) -> Result<(), Errno> {
        if !thread::may_start_library_threads() {
            return Err(Errno(libc::EAGAIN));
        }
        let before = self.report_count.load(Acquire);
        self.is_isolated.store(false, Relaxed);
        last_thread::prepare(self.role);
        let started = thread::spawn(body, argument);
        if started.is_ok() {
            while self.report_count.load(Acquire) == before {
                self.report_count.wait(before);
            }
        }
        last_thread::finish_start(self.role, started.is_ok() && self.is_isolated.load(Relaxed));
        started?;
        match self.errno.load(Relaxed) {
            0 => Ok(()),
            number => Err(Errno(number)),
        }
    }

    /// Gives the calling handler thread its name and its own table of descriptors, which holds
    /// `kept` (in any order; -1 for none) and the watched end of its role's pipe. False if that was
    /// refused and the thread shares the program's table.
    #[must_use]
    pub fn isolate(&self, kept: [i32; 2]) -> (bool, LastThread) {
        let [first, second] = kept;
        let kept = [first, second, last_thread::watched(self.role)];
        let is_isolated = thread::isolate(self.role, kept).is_ok();
        self.is_isolated.store(is_isolated, Relaxed);
        (is_isolated, LastThread::new(self.role, is_isolated))
    }

    /// Reports, once and from the new thread, whether it has all that it needs to serve.
    pub fn report(&self, result: Result<(), Errno>) {
        self.errno.store(result.err().map_or(0, |errno| errno.0), Relaxed);
        self.report_count.fetch_add(1, Release);
        self.report_count.wake(i32::MAX as u32);
    }
}

/// Number of times that a fault under the faulting thread's own lock must be seen to count.
const MIN_SEEN: u32 = 4;

/// The last fault of a thread that holds the lock of the block it touched.
///
/// Such a fault may be stale: another thread has served the page, and the one that waited has
/// continued, taken the lock and dropped the page. Filling in zeroes would then corrupt data. So
/// the thread is woken; if it is really waiting, it faults again without having released the lock.
#[derive(Debug, Default)]
pub struct OwnersFault {
    /// The fault, and the number of times the lock had been taken.
    last: Option<(Fault, u32)>,
    seen: u32,
}

impl OwnersFault {
    /// Whether the thread is really waiting: the fault has been seen often enough. `turns` is the
    /// number of times the lock was taken.
    pub fn is_waiting(&mut self, fault: Fault, turns: u32) -> bool {
        let is_same = self.last.replace((fault, turns)) == Some((fault, turns));
        self.seen = if is_same { self.seen + 1 } else { 1 };
        self.seen >= MIN_SEEN
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    static START: HandlerStart = HandlerStart::new(Role::Faults);

    extern "C" fn tell(argument: *mut c_void) -> *mut c_void {
        START.report(if argument.is_null() { Ok(()) } else { Err(Errno::ENOMEM) });
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
