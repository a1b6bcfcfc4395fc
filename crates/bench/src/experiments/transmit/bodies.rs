//! What is sent: bodies in private memory, and the same in a file in memory.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths of messages, structures, options"
)]

use std::io::Write;
use std::os::fd::FromRawFd;

use crate::kit::Random;

const PAGE_BYTES: usize = 4096;

pub fn checked(result: isize) -> std::io::Result<usize> {
    usize::try_from(result).map_err(|_| std::io::Error::last_os_error())
}

/// Bodies, in private memory and in a file in memory.
pub struct Bodies {
    /// Length of each, bytes.
    pub len: usize,
    count: usize,
    /// Bytes from one to the next: whole pages, as twin memory's large objects have.
    stride: usize,
    mapped: usize,
    pub file: std::fs::File,
}

impl Bodies {
    /// As many of `len` bytes as `set_bytes` have room for, one at least.
    pub fn new(len: usize, set_bytes: usize) -> std::io::Result<Self> {
        let stride = len.next_multiple_of(PAGE_BYTES);
        let count = (set_bytes / stride).max(1);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping disturbs nothing.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), stride * count, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a terminated name.
        let file = checked(unsafe { libc::memfd_create(c"bodies".as_ptr(), libc::MFD_CLOEXEC) } as isize)?;
        // SAFETY: made just now, and the file's from here on.
        let mut file = unsafe { std::fs::File::from_raw_fd(file as i32) };
        // SAFETY: the mapping is that long, and nobody else knows it yet. Small pages, as twin memory has.
        let bytes = unsafe {
            libc::madvise(mapped, stride * count, libc::MADV_NOHUGEPAGE);
            std::slice::from_raw_parts_mut(mapped.cast::<u8>(), stride * count)
        };
        let pattern = Random::new(7).bytes(stride);
        for (number, body) in bytes.chunks_exact_mut(stride).enumerate() {
            body.copy_from_slice(&pattern);
            body[..len.min(8)].copy_from_slice(&(number as u64).to_le_bytes()[..len.min(8)]);
        }
        file.write_all(bytes)?;
        Ok(Self { len, count, stride, mapped: mapped as usize, file })
    }

    /// Where the body of a message begins: in no order.
    pub fn offset(&self, message: u64) -> usize {
        (message.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) as usize % self.count * self.stride
    }

    pub fn of(&self, message: u64) -> &[u8] {
        let start = self.mapped + self.offset(message);
        // SAFETY: inside the mapping of `new`, which is not written to any more and unmapped when dropped.
        unsafe { std::slice::from_raw_parts(start as *const u8, self.len) }
    }
}

impl Drop for Bodies {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, used by nobody any more.
        unsafe { libc::munmap(self.mapped as *mut _, self.stride * self.count) };
    }
}
