//! A few pages of private memory that can be replaced while the kernel still refers to the old ones.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};

/// A private mapping. Unmapped by [`Area::unmap`], not when dropped.
#[derive(Debug)]
pub struct Area {
    base: usize,
    len_bytes: usize,
}

fn map(address: usize, len_bytes: usize, fixed: i32) -> Result<usize, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: the mapping replaces nothing, or with MAP_FIXED a mapping that the caller gives up.
    let mapped =
        unsafe { kernel!(Map, syscall!(libc::SYS_mmap, address, len_bytes, protection, flags, -1i32, 0)) };
    check(mapped).map(|address| address as usize)
}

impl Area {
    /// Maps `len_bytes` bytes (whole pages) of zeroes. `errno` is changed.
    ///
    /// # Errors
    /// Errors of mmap(2).
    pub fn new(len_bytes: usize) -> Result<Self, Errno> {
        let base = map(0, len_bytes, 0)?;
        // Small pages, because a huge one would be cleared as a whole. A refusal is not an error.
        // SAFETY: MADV_NOHUGEPAGE changes no byte of the mapping.
        unsafe { kernel!(Advise, syscall!(libc::SYS_madvise, base, len_bytes, libc::MADV_NOHUGEPAGE)) };
        Ok(Self { base, len_bytes })
    }

    /// Returns the area with fresh pages at the same addresses. On an error it is unmapped.
    ///
    /// # Errors
    /// Errors of mmap(2).
    pub fn renewed(self) -> Result<Self, Errno> {
        let (base, len_bytes) = (self.base, self.len_bytes);
        // SAFETY: the range is our own mapping, whose bytes are no longer needed.
        let dropped =
            unsafe { kernel!(Discard, syscall!(libc::SYS_madvise, base, len_bytes, libc::MADV_DONTNEED)) };
        // Locked memory (mlockall) cannot be dropped, but it can be mapped over.
        if check(dropped).is_err() {
            map(base, len_bytes, libc::MAP_FIXED).inspect_err(|_| Self { base, len_bytes }.unmap())?;
        }
        Ok(self)
    }

    /// Address of the first byte.
    #[must_use]
    pub const fn base(&self) -> usize {
        self.base
    }

    /// Unmaps the area's pages.
    pub fn unmap(self) {
        // SAFETY: the caller gives up the mapping with `self`.
        unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, self.base, self.len_bytes)) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;
    use crate::iovec::Part;
    use crate::pipe::Pipe;
    use std::io::Read;
    use std::os::fd::AsFd;

    /// Sending by reference rests on this: dropped pages keep their bytes for the kernel's references.
    #[test]
    fn renewed_pages_leave_the_old_ones_to_the_kernel() {
        let area = Area::new(PAGE_BYTES).expect("memory");
        let base = area.base();
        // SAFETY: the page belongs to the area, which this test alone uses.
        unsafe { (base as *mut u8).write_bytes(1, PAGE_BYTES) };
        let pipe = Pipe::open(13).expect("a pipe");
        assert_eq!(pipe.vmsplice(&[Part { address: base, len_bytes: PAGE_BYTES }]), Ok(PAGE_BYTES));
        let area = area.renewed().expect("memory");
        assert_eq!(area.base(), base);
        // SAFETY: the page belongs to the area, which this test alone uses.
        unsafe {
            assert_eq!(*(base as *const u8), 0);
            (base as *mut u8).write_bytes(2, PAGE_BYTES);
        }
        let (here, mut there) = std::os::unix::net::UnixStream::pair().expect("sockets");
        assert_eq!(pipe.splice_to(here.as_fd(), PAGE_BYTES, false), Ok(PAGE_BYTES));
        let mut read = [0; PAGE_BYTES];
        there.read_exact(&mut read).expect("bytes");
        assert_eq!(read, [1; PAGE_BYTES]);
        pipe.close();
        area.unmap();
    }
}
