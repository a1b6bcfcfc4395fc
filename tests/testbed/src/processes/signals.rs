//! Termination signals, turned into a descriptor that can be waited for.
//!
//! The handler only writes the signal's number to a pipe, so it may run in any thread and interrupt any call.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use crate::processes::wait;

/// The pipe's write end; -1 before [`Requests::install`].
static PIPE_WRITE_END: AtomicI32 = AtomicI32::new(-1);

/// Signals that ask a program to terminate.
pub const TERMINATION_SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

extern "C" fn on_signal(signal: libc::c_int) {
    // SAFETY: the address of this thread's errno is valid for the thread's whole life.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the address is this thread's errno, which only this thread reads and writes.
    let kept = unsafe { *errno };
    let byte = u8::try_from(signal).unwrap_or(0);
    // SAFETY: write is async-signal-safe; the byte lives on this stack; the pipe does not block,
    // and where it is full a request is waiting already.
    unsafe { libc::write(PIPE_WRITE_END.load(Ordering::Relaxed), (&raw const byte).cast(), 1) };
    // SAFETY: the address is this thread's errno, which only this thread reads and writes.
    unsafe { *errno = kept };
}

/// The read end of the pipe that the handler writes to.
#[derive(Debug)]
pub struct Requests {
    read_end: OwnedFd,
}

impl Requests {
    /// Installs the handler for [`TERMINATION_SIGNALS`], leaving a SIGHUP alone that is ignored (`nohup`).
    ///
    /// # Errors
    /// When no pipe can be made.
    pub fn install() -> io::Result<Self> {
        let mut ends = [-1; 2];
        // SAFETY: pipe2 writes two descriptors to the array of two.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: pipe2 succeeded, so this is an open descriptor that nothing else owns.
        let read_end = unsafe { OwnedFd::from_raw_fd(ends[0]) };
        // The write end stays open until the process ends: the handler may run at any time.
        PIPE_WRITE_END.store(ends[1], Ordering::Relaxed);
        for signal in TERMINATION_SIGNALS {
            if signal == libc::SIGHUP && is_ignored(signal) {
                continue;
            }
            // SAFETY: all-zero is a valid sigaction: no flags, empty mask, default handler.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESTART;
            // SAFETY: the action is initialised and its handler is async-signal-safe.
            if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { read_end })
    }

    /// Waits for a signal; `None` when `timeout` passed without one (`None`: waits for ever).
    ///
    /// # Errors
    /// When polling fails.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<i32>> {
        if !wait::until_readable(&self.read_end, timeout)? {
            return Ok(None);
        }
        let mut byte = 0u8;
        // SAFETY: one byte is read into one byte.
        let got = unsafe { libc::read(self.read_end.as_raw_fd(), (&raw mut byte).cast(), 1) };
        Ok((got == 1).then_some(i32::from(byte)))
    }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: all-zero is a valid sigaction to be overwritten.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null action only asks; the old one is written to `action`.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}
