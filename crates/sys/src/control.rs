//! The pipe by which `uncopy release` and `uncopy profile --pid` reach the handler thread of a running process: a FIFO beside the
//! counters' file, in the directory that only its owner can enter.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use crate::mem::make_private_directory;
use std::ffi::CStr;

/// The reading end; its descriptor is the handler thread's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    fd: i32,
}

impl Control {
    /// Nothing to read from.
    pub const NONE: Self = Self { fd: -1 };

    /// Makes the FIFO (mode 0600), in place of what has its name, and opens it.
    ///
    /// # Errors
    /// EPERM if the directory is not ours alone, or if somebody was faster; else what failed.
    pub fn open(directory: &CStr, path: &CStr) -> Result<Self, Errno> {
        make_private_directory(directory)?;
        // Both ends, so that it never looks closed when a writer goes.
        let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the paths are terminated; the stat buffer is valid; the descriptor is ours.
        unsafe {
            kernel!(Name, libc::unlink(path.as_ptr()));
            check(i64::from(kernel!(Name, libc::mkfifo(path.as_ptr(), 0o600))))?;
            let opened = kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0));
            let fd = check(opened)? as i32;
            let mut found: libc::stat = core::mem::zeroed();
            let known = kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)) == 0;
            if known && found.st_mode & libc::S_IFMT == libc::S_IFIFO && found.st_uid == libc::geteuid() {
                Ok(Self { fd })
            } else {
                kernel!(Close, syscall!(libc::SYS_close, fd));
                Err(Errno(libc::EPERM))
            }
        }
    }

    /// The descriptor's number; -1 if there is none.
    #[must_use]
    pub const fn fd(self) -> i32 {
        self.fd
    }

    /// Takes some of what was written; how many bytes, 0 if there is nothing.
    #[must_use]
    pub fn read(self, bytes: &mut [u8]) -> usize {
        // SAFETY: the buffer is valid for its size.
        let got =
            unsafe { kernel!(Read, syscall!(libc::SYS_read, self.fd, bytes.as_mut_ptr(), bytes.len())) };
        usize::try_from(got).unwrap_or(0)
    }
}
