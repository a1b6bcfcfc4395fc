//! SIGTERM and SIGINT as something that can be waited for.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Blocks the signals that end the server, in this thread and those that it starts, and returns a descriptor that is
/// readable once one has come.
///
/// # Errors
/// As signalfd(2).
pub fn ending() -> io::Result<OwnedFd> {
    // SAFETY: all-zero bytes are a sigset_t, and `set` outlives the calls, which write to it (sigemptyset, sigaddset) or
    // read it; both signals exist; a null old mask is not written to; -1 asks signalfd for a new descriptor.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
