//! Work in a forked child, for programs that check themselves.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::pid_t;

use crate::oracle::errno;
use crate::running::hang_report;
use crate::scratch::HANG_LIMIT;

/// Runs `work` in a child made by `fork`, which ends with status 1 when `work` panics; returns its process id.
///
/// # Panics
/// When the fork fails.
pub fn fork_child_by(fork: unsafe extern "C" fn() -> pid_t, work: impl FnOnce()) -> pid_t {
    // SAFETY: the child runs `work` and ends by _exit.
    let pid = unsafe { std::hint::black_box(fork)() };
    assert!(pid >= 0, "fork: errno {}", errno());
    if pid == 0 {
        let status = i32::from(catch_unwind(AssertUnwindSafe(work)).is_err());
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(status) };
    }
    pid
}

/// Runs `work` in a child, as [`fork_child_by`].
pub fn fork_child(work: impl FnOnce()) -> pid_t {
    fork_child_by(libc::fork, work)
}

/// Waits for a child; returns its wait status.
///
/// # Panics
/// When there is no such child, or when it hangs; every thread's stack is then printed on standard error.
#[must_use]
pub fn wait(pid: pid_t) -> c_int {
    let limit_ms = c_int::try_from(HANG_LIMIT.as_millis()).expect("minutes");
    let mut status = 0;
    // SAFETY: pidfd_open(2) takes two integers, poll(2) one valid structure; the descriptor is this
    // function's alone. `status` is an int on this stack that waitpid(2) may write.
    unsafe {
        let exit = c_int::try_from(libc::syscall(libc::SYS_pidfd_open, pid, 0)).expect("descriptor");
        let mut poll = libc::pollfd { fd: exit, events: libc::POLLIN, revents: 0 };
        if libc::poll(&raw mut poll, 1, limit_ms) != 1 {
            eprintln!("{}", hang_report(pid.cast_unsigned()));
            panic!("child {pid} hangs");
        }
        libc::close(exit);
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid, "waitpid");
    }
    status
}

/// Runs `work` in a forked child and waits for it.
///
/// # Panics
/// When the child panics, or hangs.
pub fn in_child(work: impl FnOnce()) {
    let status = wait(fork_child(work));
    assert_eq!(status, 0, "the child ended with wait status {status:#x}");
}
