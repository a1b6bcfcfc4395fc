//! The FIFO by which `uncopy release` and `uncopy profile --pid` reach the handler thread of a
//! running process. It is beside the counters' file, in a directory that only its owner can enter.

use crate::call::{kernel, syscall};
use crate::errno::Errno;
use crate::private_directory::PrivateDirectory;
use std::ffi::CStr;

/// The read end, in the handler thread's table of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    fd: i32,
}

impl Control {
    /// No FIFO: there is nothing to read.
    pub const NONE: Self = Self { fd: -1 };

    /// Creates the FIFO (mode 0600), replacing a file of that name, and opens it.
    ///
    /// # Errors
    /// EPERM if the directory is not private to its user; EEXIST if another process creates the
    /// name meanwhile; else the error of the failed call.
    pub fn open(directory: &CStr, name: &CStr) -> Result<Self, Errno> {
        let fifo = PrivateDirectory::make(directory)?.create_fifo(name)?;
        Ok(Self { fd: fifo.leave_open() })
    }

    /// The descriptor's number; -1 if there is none.
    #[must_use]
    pub const fn fd(self) -> i32 {
        self.fd
    }

    /// Reads some bytes; returns their number, 0 if there are none.
    #[must_use]
    pub fn read(self, bytes: &mut [u8]) -> usize {
        // SAFETY: read(2) writes at most `bytes.len()` bytes to `bytes`.
        let got =
            unsafe { kernel!(Read, syscall!(libc::SYS_read, self.fd, bytes.as_mut_ptr(), bytes.len())) };
        usize::try_from(got).unwrap_or(0)
    }
}
