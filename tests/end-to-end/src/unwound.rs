//! Threads that glibc unwinds, because they are cancelled or end themselves (pthreads(7)).

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

unsafe extern "C-unwind" {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
}

/// First function of a thread. When it is unwound, no object with a destructor may be alive in its frames.
pub type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// A thread that can be unwound, not joined yet.
#[derive(Debug)]
pub struct Thread(libc::pthread_t);

impl Thread {
    /// Starts a thread.
    ///
    /// # Panics
    /// When there can be no further thread.
    ///
    /// # Safety
    /// `start` may be called with `argument` by another thread.
    #[must_use]
    pub unsafe fn start(start: Start, argument: *mut c_void) -> Self {
        let mut thread: libc::pthread_t = 0;
        // SAFETY: the two types differ in what may happen while unwinding only, and glibc unwinds threads that are cancelled
        // or end themselves.
        let start = unsafe { std::mem::transmute::<Start, extern "C" fn(*mut c_void) -> *mut c_void>(start) };
        // SAFETY: the caller promises that the call is allowed; `thread` is filled.
        assert_eq!(unsafe { libc::pthread_create(&raw mut thread, null(), start, argument) }, 0);
        Self(thread)
    }

    /// Waits for the end of the thread, and returns its result.
    ///
    /// # Panics
    /// When the thread cannot be joined.
    #[must_use]
    pub fn join(self) -> *mut c_void {
        let mut result = null_mut();
        // SAFETY: the thread was started by `start` and is joined once.
        assert_eq!(unsafe { libc::pthread_join(self.0, &raw mut result) }, 0);
        result
    }

    /// Cancels the thread, and waits until it is.
    ///
    /// # Panics
    /// When the thread ends in another way.
    pub fn cancel(self) {
        // SAFETY: the thread was started by `start` and was not joined.
        assert_eq!(unsafe { pthread_cancel(self.0) }, 0);
        assert_eq!(self.join().addr(), usize::MAX, "PTHREAD_CANCELED");
    }
}
