//! What a process in the background needs: signals as events, other processes' ends as events, low priority.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};

/// Blocks signals in the calling thread, and in those that it starts; a descriptor from which they are read.
///
/// # Errors
/// What signalfd says.
pub fn signals(numbers: &[i32]) -> Result<i32, Errno> {
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: an all-zero set is one that sigemptyset fills; the calls touch nothing else. The kernel's sets have 8 bytes.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for number in numbers {
            libc::sigaddset(&raw mut set, *number);
        }
        let blocked =
            syscall!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const set, core::ptr::null::<u8>(), 8);
        check(blocked)?;
        check(kernel!(Open, syscall!(libc::SYS_signalfd4, usize::MAX, &raw const set, 8, flags)))
            .map(|fd| fd as i32)
    }
}

/// Takes what signals came; their numbers.
#[must_use]
pub fn take_signals(fd: i32) -> Vec<i32> {
    let mut taken = Vec::new();
    loop {
        // SAFETY: an all-zero structure is valid; there is room for one.
        let (got, found) = unsafe {
            let mut found: libc::signalfd_siginfo = core::mem::zeroed();
            let got = kernel!(Read, syscall!(libc::SYS_read, fd, &raw mut found, size_of_val(&found)));
            (got, found)
        };
        if got <= 0 {
            return taken;
        }
        taken.push(found.ssi_signo.cast_signed());
    }
}

/// A descriptor that can be read once a process has ended.
///
/// # Errors
/// What pidfd_open says: ESRCH where there is none.
pub fn watch_process(process: u32) -> Result<i32, Errno> {
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Open, syscall!(libc::SYS_pidfd_open, process, 0)) }).map(|fd| fd as i32)
}

/// A descriptor that can be read once somebody has [rung](ring) it.
///
/// # Errors
/// What eventfd says.
pub fn bell() -> Result<i32, Errno> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: touches no memory.
    check(unsafe { kernel!(Open, syscall!(libc::SYS_eventfd2, 0, flags)) }).map(|fd| fd as i32)
}

/// See [`bell`].
pub fn ring(bell: i32) {
    let one = 1u64;
    // SAFETY: eight bytes. A bell that cannot take it has been rung.
    unsafe { kernel!(Write, syscall!(libc::SYS_write, bell, &raw const one, 8)) };
}

/// Whether a bell was rung since this was asked last.
#[must_use]
pub fn was_rung(bell: i32) -> bool {
    let mut times = 0u64;
    // SAFETY: room for eight bytes.
    unsafe { kernel!(Read, syscall!(libc::SYS_read, bell, &raw mut times, 8)) == 8 }
}

/// The calling process does its work when others do not want to.
pub fn be_polite() {
    /// `IOPRIO_WHO_PROCESS`, and `IOPRIO_CLASS_BE` with the lowest level (linux/ioprio.h). Not the idle class: programs wait for what
    /// is digested when their log is full.
    const WHO_PROCESS: i32 = 1;
    const LOWEST: i32 = 2 << 13 | 7;
    // SAFETY: touches no memory.
    unsafe {
        kernel!(Limit, syscall!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 10));
        kernel!(Limit, syscall!(libc::SYS_ioprio_set, WHO_PROCESS, 0, LOWEST));
    }
}
