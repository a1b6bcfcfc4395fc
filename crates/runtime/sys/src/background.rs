//! Support for a background process: signals and process ends as readable descriptors, low priority.

use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor, OwnFd};
use crate::errno::{Errno, check};

/// Blocks signals in the calling thread and those that it starts; returns a signalfd for them.
///
/// # Errors
/// Errors of signalfd(2).
pub fn signals(numbers: &[i32]) -> Result<OwnFd, Errno> {
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: `set` lives through the calls: sigemptyset and sigaddset fill it, and the kernel
    // reads its first 8 bytes, the size of the kernel's set.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for number in numbers {
            libc::sigaddset(&raw mut set, *number);
        }
        let blocked =
            syscall!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const set, core::ptr::null::<u8>(), 8);
        check(blocked)?;
        OwnFd::from_result(kernel!(Open, syscall!(libc::SYS_signalfd4, usize::MAX, &raw const set, 8, flags)))
    }
}

/// Reads the pending signals; returns their numbers.
#[must_use]
pub fn take_signals(fd: impl Descriptor) -> Vec<i32> {
    let mut taken = Vec::new();
    loop {
        // SAFETY: an all-zero `signalfd_siginfo` is valid, and read(2) writes at most its size.
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

/// Returns a descriptor that becomes readable when a process has ended.
///
/// # Errors
/// Errors of pidfd_open(2): ESRCH if there is no such process.
pub fn watch_process(process: u32) -> Result<OwnFd, Errno> {
    // SAFETY: pidfd_open(2) takes only integers here, and accesses no memory of the process.
    OwnFd::from_result(unsafe { kernel!(Open, syscall!(libc::SYS_pidfd_open, process, 0)) })
}

/// Returns an eventfd, which becomes readable when [`notify`] is called.
///
/// # Errors
/// Errors of eventfd(2).
pub fn notifier() -> Result<OwnFd, Errno> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: eventfd(2) takes only integers here, and accesses no memory of the process.
    OwnFd::from_result(unsafe { kernel!(Open, syscall!(libc::SYS_eventfd2, 0, flags)) })
}

/// Makes a [`notifier`] readable.
pub fn notify(notifier: impl Descriptor) {
    let one = 1u64;
    // SAFETY: write(2) reads the 8 bytes of `one`. A full counter refuses the write, but is readable already.
    unsafe { kernel!(Write, syscall!(libc::SYS_write, notifier, &raw const one, 8)) };
}

/// Whether a notifier was notified since the last call.
#[must_use]
pub fn was_notified(notifier: impl Descriptor) -> bool {
    let mut times = 0u64;
    // SAFETY: read(2) writes at most 8 bytes to `times`, which lives through the call.
    unsafe { kernel!(Read, syscall!(libc::SYS_read, notifier, &raw mut times, 8)) == 8 }
}

/// Lowers the processor and I/O priority of the calling process.
pub fn lower_priority() {
    /// `IOPRIO_WHO_PROCESS`, and `IOPRIO_CLASS_BE` with the lowest level (linux/ioprio.h). Not the
    /// idle class, because programs wait for this process when their log is full.
    const WHO_PROCESS: i32 = 1;
    const LOWEST: i32 = 2 << 13 | 7;
    // SAFETY: setpriority(2) and ioprio_set(2) take only integers, and access no memory of the process.
    unsafe {
        kernel!(Limit, syscall!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 10));
        kernel!(Limit, syscall!(libc::SYS_ioprio_set, WHO_PROCESS, 0, LOWEST));
    }
}
