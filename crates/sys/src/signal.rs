//! SIGPIPE, held back for calls that have no flag against it.

use crate::call::syscall;
use crate::errno::Keep;

const SIGPIPE_BIT: u64 = 1 << (libc::SIGPIPE - 1);
/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;

/// Until dropped, the calling thread gets no SIGPIPE: what its calls cause is taken away. One that was pending before
/// stays.
pub struct Quiet {
    /// The mask to restore; `None`: nothing was done.
    mask: Option<u64>,
    was_pending: bool,
}

/// Whether the program ignores SIGPIPE.
fn is_ignored() -> bool {
    // The kernel's structure: handler, flags, restorer, mask.
    let mut action = [0usize; 4];
    // SAFETY: room for the kernel's structure; nothing is set.
    let asked =
        unsafe { syscall!(libc::SYS_rt_sigaction, libc::SIGPIPE, 0usize, action.as_mut_ptr(), SET_BYTES) };
    asked == 0 && action[0] == libc::SIG_IGN
}

fn pending() -> u64 {
    let mut set = 0u64;
    // SAFETY: room for the set.
    unsafe { syscall!(libc::SYS_rt_sigpending, &raw mut set, SET_BYTES) };
    set
}

impl Quiet {
    /// Holds SIGPIPE back, if it is `wanted` and the program does not ignore it.
    #[must_use]
    pub fn new(wanted: bool) -> Self {
        let _errno = Keep::new();
        if !wanted || is_ignored() {
            return Self { mask: None, was_pending: false };
        }
        let was_pending = pending() & SIGPIPE_BIT != 0;
        let (block, mut old) = (SIGPIPE_BIT, 0u64);
        // SAFETY: both point to sets.
        let result = unsafe {
            syscall!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const block, &raw mut old, SET_BYTES)
        };
        Self { mask: (result == 0).then_some(old), was_pending }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let Some(mask) = self.mask else { return };
        let _errno = Keep::new();
        if !self.was_pending && pending() & SIGPIPE_BIT != 0 {
            let (set, time) = (SIGPIPE_BIT, [0u64; 2]);
            // SAFETY: a set, no information wanted, no time to wait.
            unsafe {
                syscall!(libc::SYS_rt_sigtimedwait, &raw const set, 0usize, time.as_ptr(), SET_BYTES);
            }
        }
        if mask & SIGPIPE_BIT == 0 {
            let unblock = SIGPIPE_BIT;
            // SAFETY: a set; the old one is not wanted.
            unsafe {
                syscall!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const unblock, 0usize, SET_BYTES);
            }
        }
    }
}
