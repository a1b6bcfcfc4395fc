//! Mappings of files, accessed by process_vm_readv(2) and process_vm_writev(2), which return EFAULT
//! beyond a file's end instead of raising SIGBUS.

use core::ptr::null_mut;

use libc::{c_int, iovec};

use super::MAPS;
use super::calls::AlignedBuffer;
use super::interpreter::FilesInterpreter;
use super::passing::offset;

const PAGE: usize = 4096;

impl FilesInterpreter<'_> {
    pub(super) fn map(&mut self, index: usize, slot: usize, how: usize, at: usize, len: usize) {
        self.unmap(index);
        let fd = self.fd(slot);
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let (protection, kind) = match how % 5 {
            0 | 1 => (both, libc::MAP_SHARED),
            2 => (libc::PROT_READ, libc::MAP_SHARED),
            3 => (both, libc::MAP_SHARED_VALIDATE),
            _ => (both, libc::MAP_PRIVATE),
        };
        let len = len.next_multiple_of(PAGE);
        // SAFETY: without MAP_FIXED, mmap(2) chooses unused addresses, so no existing mapping changes.
        let start = unsafe { libc::mmap(null_mut(), len, protection, kind, fd, offset(at / PAGE * PAGE)) };
        if start == libc::MAP_FAILED {
            self.trace_result(-1, format_args!("mapped"));
        } else {
            self.trace_result(0, format_args!("mapped"));
            self.maps[index % MAPS] = Some((start as usize, len));
        }
        self.trace_descriptor(fd);
    }

    fn unmap(&mut self, index: usize) {
        if let Some((start, len)) = self.maps[index % MAPS].take() {
            // SAFETY: the mapping is the slot's own, and nothing uses it once removed from `maps`.
            let returned = unsafe { libc::munmap(start as *mut libc::c_void, len) };
            self.trace_result(i64::from(returned), format_args!("unmapped"));
        }
    }

    pub(super) fn mapped(&mut self, index: usize, how: usize, at: usize, len: usize, seed: usize) {
        let Some((start, map_len)) = self.maps[index % MAPS] else { return };
        let at = at % map_len;
        let len = len.min(map_len - at);
        let remote = iovec { iov_base: (start + at) as *mut libc::c_void, iov_len: len };
        // SAFETY: getpid(2) takes no arguments and cannot fail.
        let own = unsafe { libc::getpid() };
        match how % 6 {
            0 | 1 => {
                let mut buffer = AlignedBuffer::new(len);
                let local = iovec { iov_base: buffer.start().cast(), iov_len: buffer.len() };
                // SAFETY: both vectors describe `len` bytes, of `buffer` and of the mapping; both
                // live through the call.
                let got =
                    unsafe { libc::process_vm_readv(own, &raw const local, 1, &raw const remote, 1, 0) };
                self.trace_result(got as i64, format_args!("{:016x}", buffer.digest(got)));
            }
            2 | 3 => {
                let mut buffer = AlignedBuffer::filled(len, seed);
                let local = iovec { iov_base: buffer.start().cast(), iov_len: buffer.len() };
                // SAFETY: both vectors describe `len` bytes, of `buffer` and of the mapping, which
                // holds no Rust objects; both live through the call.
                let written =
                    unsafe { libc::process_vm_writev(own, &raw const local, 1, &raw const remote, 1, 0) };
                self.trace_result(written as i64, format_args!("stored"));
            }
            4 => {
                const HOW: [c_int; 3] = [libc::MS_SYNC, libc::MS_ASYNC, libc::MS_INVALIDATE];
                let page = (start + at / PAGE * PAGE) as *mut libc::c_void;
                // SAFETY: `page` is a page of this mapping; msync(2) changes no memory.
                let returned = unsafe { libc::msync(page, len.max(1), HOW[seed % HOW.len()]) };
                self.trace_result(i64::from(returned), format_args!("synced"));
            }
            _ => self.unmap(index),
        }
    }
}
