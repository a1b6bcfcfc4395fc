//! The pipe by which `uncopy release` and `uncopy profile --pid` reach the handler thread of a running process: a FIFO beside the
//! counters' file, in the directory that only its owner can enter.

use crate::call::{kernel, syscall};
use crate::directory::PrivateDirectory;
use crate::errno::Errno;
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
    pub fn open(directory: &CStr, name: &CStr) -> Result<Self, Errno> {
        let fd = PrivateDirectory::make(directory)?.create_fifo(name)?;
        Ok(Self { fd })
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
