//! Suppression of SIGPIPE for calls that have no flag against it.

use crate::call::syscall;
use crate::errno::SavedErrno;

const SIGPIPE_BIT: u64 = 1 << (libc::SIGPIPE - 1);
/// Length of the kernel's signal set, bytes.
const SET_BYTES: usize = 8;

/// Guard that suppresses SIGPIPE for the calling thread: one that its calls cause is discarded, one
/// that was pending before stays.
pub struct SigpipeGuard {
    /// The mask to restore; `None` if nothing was changed.
    mask: Option<u64>,
    was_pending: bool,
}

fn is_ignored() -> bool {
    // The kernel's structure: handler, flags, restorer, mask.
    let mut action = [0usize; 4];
    // SAFETY: rt_sigaction(2) writes the old action to `action`, laid out as the kernel's.
    let result =
        unsafe { syscall!(libc::SYS_rt_sigaction, libc::SIGPIPE, 0usize, action.as_mut_ptr(), SET_BYTES) };
    result == 0 && action[0] == libc::SIG_IGN
}

fn pending() -> u64 {
    let mut set = 0u64;
    // SAFETY: rt_sigpending(2) writes `SET_BYTES` bytes to `set`, which lives through the call.
    unsafe { syscall!(libc::SYS_rt_sigpending, &raw mut set, SET_BYTES) };
    set
}

impl SigpipeGuard {
    /// Suppresses SIGPIPE, if it is `wanted` and the program does not ignore the signal.
    #[must_use]
    pub fn new(wanted: bool) -> Self {
        let _errno = SavedErrno::new();
        if !wanted || is_ignored() {
            return Self { mask: None, was_pending: false };
        }
        let was_pending = pending() & SIGPIPE_BIT != 0;
        let (block, mut old) = (SIGPIPE_BIT, 0u64);
        // SAFETY: both pointers are to 8-byte sets that live through the call.
        let result = unsafe {
            syscall!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const block, &raw mut old, SET_BYTES)
        };
        Self { mask: (result == 0).then_some(old), was_pending }
    }
}

impl Drop for SigpipeGuard {
    fn drop(&mut self) {
        let Some(mask) = self.mask else { return };
        let _errno = SavedErrno::new();
        if !self.was_pending && pending() & SIGPIPE_BIT != 0 {
            let (set, time) = (SIGPIPE_BIT, [0u64; 2]);
            // SAFETY: the set and the zero timeout live through the call; no signal information is written.
            unsafe {
                syscall!(libc::SYS_rt_sigtimedwait, &raw const set, 0usize, time.as_ptr(), SET_BYTES);
            }
        }
        if mask & SIGPIPE_BIT == 0 {
            let unblock = SIGPIPE_BIT;
            // SAFETY: the set lives through the call; no old set is written.
            unsafe {
                syscall!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const unblock, 0usize, SET_BYTES);
            }
        }
    }
}
