//! Work in a forked child, for programs that check themselves.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::plain::errno;
use crate::running::hang_report;

/// Runs `work` in a forked child and waits for it, `limit_ms` milliseconds at most.
///
/// # Panics
/// When the child panics, or hangs: then with every thread's stack on standard error.
pub fn in_child(limit_ms: i32, work: impl FnOnce()) {
    // SAFETY: the child runs `work` and ends by _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: errno {}", errno());
    if pid == 0 {
        let status = i32::from(catch_unwind(AssertUnwindSafe(work)).is_err());
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(status) };
    }
    // SAFETY: pidfd_open takes two integers; the poll structure and the status are valid.
    unsafe {
        let exit = i32::try_from(libc::syscall(libc::SYS_pidfd_open, pid, 0)).expect("descriptor");
        let mut poll = libc::pollfd { fd: exit, events: libc::POLLIN, revents: 0 };
        if libc::poll(&raw mut poll, 1, limit_ms) != 1 {
            eprintln!("{}", hang_report(pid.cast_unsigned()));
            panic!("child {pid} hangs");
        }
        libc::close(exit);
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        assert_eq!(status, 0, "the child ended with wait status {status:#x}");
    }
}
