//! Bodies to send, in private memory, and the same bytes in a memory file.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "lengths of messages, structures, options"
)]

use std::io::Write;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::kit::Random;

const PAGE_BYTES: usize = 4096;

pub fn checked(result: isize) -> std::io::Result<usize> {
    usize::try_from(result).map_err(|_| std::io::Error::last_os_error())
}

/// Bodies in private memory and in a memory file.
pub struct Bodies {
    /// Length of each body, bytes.
    pub len: usize,
    count: usize,
    /// Distance between two bodies, bytes: whole pages, as for twin memory's large objects.
    stride: usize,
    mapped: usize,
    pub file: std::fs::File,
}

impl Bodies {
    /// Makes as many bodies of `len` bytes as fit into `set_bytes`, at least one.
    pub fn new(len: usize, set_bytes: usize) -> std::io::Result<Self> {
        let stride = len.next_multiple_of(PAGE_BYTES);
        let count = (set_bytes / stride).max(1);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: without MAP_FIXED, mmap(2) chooses unused addresses, so that no other memory changes.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), stride * count, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let mut file = std::fs::File::from(memfd_create("bodies", MemfdFlags::CLOEXEC)?);
        // SAFETY: the mapping is `stride * count` bytes of readable and writable zeroes, to which no other
        // reference exists. Small pages, as for twin memory.
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

    /// Returns the offset of a message's body; successive messages have bodies in irregular order.
    pub fn offset(&self, message: u64) -> usize {
        (message.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) as usize % self.count * self.stride
    }

    pub fn body(&self, message: u64) -> &[u8] {
        let start = self.mapped + self.offset(message);
        // SAFETY: the range lies in `new`'s mapping, which is never written to again and outlives `self`'s borrow.
        unsafe { std::slice::from_raw_parts(start as *const u8, self.len) }
    }
}

impl Drop for Bodies {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this range, and slices from `of` do not outlive `self`.
        unsafe { libc::munmap(self.mapped as *mut _, self.stride * self.count) };
    }
}
