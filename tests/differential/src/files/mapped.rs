//! Mappings of files, accessed by process_vm_readv(2) and process_vm_writev(2), which return EFAULT
//! beyond a file's end instead of raising SIGBUS.

use core::ptr::null_mut;

use libc::{c_int, iovec};

use super::MAPS;
use super::calls::Room;
use super::interpreter::Files;
use super::passing::offset;

const PAGE: usize = 4096;

impl Files<'_> {
    pub(super) fn map(&mut self, place: usize, slot: usize, how: usize, at: usize, len: usize) {
        self.unmap(place);
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
            self.tell(-1, format_args!("mapped"));
        } else {
            self.tell(0, format_args!("mapped"));
            self.maps[place % MAPS] = Some((start as usize, len));
        }
        self.tell_state(fd);
    }

    fn unmap(&mut self, place: usize) {
        if let Some((start, len)) = self.maps[place % MAPS].take() {
            // SAFETY: the mapping is the slot's own, and nothing uses it once removed from `maps`.
            let said = unsafe { libc::munmap(start as *mut libc::c_void, len) };
            self.tell(i64::from(said), format_args!("unmapped"));
        }
    }

    pub(super) fn mapped(&mut self, place: usize, how: usize, at: usize, len: usize, seed: usize) {
        let Some((start, whole)) = self.maps[place % MAPS] else { return };
        let at = at % whole;
        let len = len.min(whole - at);
        let far = iovec { iov_base: (start + at) as *mut libc::c_void, iov_len: len };
        // SAFETY: getpid(2) takes no arguments and cannot fail.
        let own = unsafe { libc::getpid() };
        match how % 6 {
            0 | 1 => {
                let mut room = Room::new(len);
                let near = iovec { iov_base: room.start().cast(), iov_len: room.len() };
                // SAFETY: both vectors describe `len` bytes, of `room` and of the mapping; both
                // live through the call.
                let got = unsafe { libc::process_vm_readv(own, &raw const near, 1, &raw const far, 1, 0) };
                self.tell(got as i64, format_args!("{:016x}", room.digest(got)));
            }
            2 | 3 => {
                let mut room = Room::filled(len, seed);
                let near = iovec { iov_base: room.start().cast(), iov_len: room.len() };
                // SAFETY: both vectors describe `len` bytes, of `room` and of the mapping, which
                // holds no Rust objects; both live through the call.
                let put = unsafe { libc::process_vm_writev(own, &raw const near, 1, &raw const far, 1, 0) };
                self.tell(put as i64, format_args!("stored"));
            }
            4 => {
                const HOW: [c_int; 3] = [libc::MS_SYNC, libc::MS_ASYNC, libc::MS_INVALIDATE];
                let page = (start + at / PAGE * PAGE) as *mut libc::c_void;
                // SAFETY: `page` is a page of this mapping; msync(2) changes no memory.
                let said = unsafe { libc::msync(page, len.max(1), HOW[seed % HOW.len()]) };
                self.tell(i64::from(said), format_args!("synced"));
            }
            _ => self.unmap(place),
        }
    }
}
