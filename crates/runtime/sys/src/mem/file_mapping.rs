//! A file mapped shared, which children do not inherit.

use super::files::map_shared_as;
use super::mapping::replace;
use crate::call::{kernel, syscall};
use crate::descriptor::OwnRef;
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
        Self::with(file, len_bytes, libc::PROT_READ | libc::PROT_WRITE, is_persistent)
    }

    /// Maps a file as [`FileMapping::new`] does, for reading only.
    ///
    /// # Errors
    /// Those of [`FileMapping::new`].
    pub fn to_read(file: OwnRef, len_bytes: usize, is_persistent: bool) -> Result<Self, Errno> {
        Self::with(file, len_bytes, libc::PROT_READ, is_persistent)
    }

    fn with(file: OwnRef, len_bytes: usize, protection: i32, is_persistent: bool) -> Result<Self, Errno> {
        let base = map_shared_as(file, len_bytes, protection, is_persistent)?;
        let mapping = Self { base, len_bytes };
        // A child that drops privileges must not be able to write to its parent's file.
        // SAFETY: the range is the mapping made above, which nothing uses yet.
        let advised = check(unsafe {
            kernel!(Advise, syscall!(libc::SYS_madvise, base, len_bytes, libc::MADV_DONTFORK))
        });
        match advised {
            Ok(_) => Ok(mapping),
            Err(errno) => {
                let _ = mapping.detach(core::iter::empty());
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

    /// Unmaps the file.
    ///
    /// # Safety
    /// Nothing may use the mapping any more.
    pub unsafe fn unmap(&self) {
        // SAFETY: the caller vouches that nothing uses the mapping, which was made by `new`.
        unsafe { super::files::unmap_shared(self.base, self.len_bytes) };
    }

    /// Replaces the mapping by private memory: the `kept` ranges (offset and length, within the mapping) with their bytes,
    /// zeroes elsewhere. Concurrent readers of the kept ranges find their bytes throughout.
    ///
    /// # Errors
    /// Errors of mmap(2) and mremap(2).
    pub fn detach(&self, kept: impl Iterator<Item = (usize, usize)>) -> Result<(), Errno> {
        let fill = |to: usize| {
            for (offset, kept_bytes) in kept {
                debug_assert!(offset + kept_bytes <= self.len_bytes);
                // SAFETY: both mappings are `len_bytes` long, and no other code knows the new one. The users of the kept
                // ranges only read them.
                unsafe {
                    crate::bytes::copy(
                        (to + offset) as *mut u8,
                        (self.base + offset) as *const u8,
                        kept_bytes,
                    );
                }
            }
        };
        // SAFETY: our own mapping of whole pages, of which only the kept ranges are still needed.
        unsafe { replace(self.base, self.len_bytes, fill) }
    }
}
