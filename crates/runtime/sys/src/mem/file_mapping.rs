//! A file mapped shared, which children do not inherit.

use super::mapping::map;
use crate::call::{kernel, syscall};
use crate::descriptor::{Descriptor as _, OwnRef};
use crate::errno::{Errno, check};

/// A shared mapping of a whole file. Not unmapped when dropped: see [`FileMapping::detach`].
#[derive(Debug)]
pub struct FileMapping {
    base: usize,
    len_bytes: usize,
}

impl FileMapping {
    /// Maps the first `len_bytes` bytes (whole pages) of a file. With `is_persistent`, stores are persistent once their
    /// lines are flushed (MAP_SYNC, Linux 4.15): the file system must use DAX.
    ///
    /// Accesses behind the end of the file raise SIGBUS.
    ///
    /// # Errors
    /// EOPNOTSUPP if the file is not on persistent memory; other errors of mmap(2) and madvise(2).
    pub fn new(file: OwnRef, len_bytes: usize, is_persistent: bool) -> Result<Self, Errno> {
        let flags = if is_persistent { libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC } else { libc::MAP_SHARED };
        let base = map(len_bytes, libc::PROT_READ | libc::PROT_WRITE, flags, file.number())?;
        let mapping = Self { base, len_bytes };
        // A child that drops privileges must not be able to write to its parent's file.
        // SAFETY: the range is the mapping made above, which nothing uses yet.
        let advised = check(unsafe {
            kernel!(Advise, syscall!(libc::SYS_madvise, base, len_bytes, libc::MADV_DONTFORK))
        });
        match advised {
            Ok(_) => Ok(mapping),
            Err(errno) => {
                mapping.detach();
                Err(errno)
            }
        }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub const fn address(&self) -> usize {
        self.base
    }

    /// Returns the length, bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Replaces the mapping by inaccessible addresses, which nothing else is mapped at afterwards.
    pub fn detach(&self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the range is a mapping of this value, so nothing else is replaced. Later accesses by its users fault
        // instead of reaching the file.
        unsafe {
            kernel!(
                Map,
                syscall!(libc::SYS_mmap, self.base, self.len_bytes, libc::PROT_NONE, flags, -1i32, 0)
            )
        };
    }
}
