//! Reading and writing the socket addresses that a program passes to libc.

use libc::{sockaddr, socklen_t};
use std::net::SocketAddr;
use uncopy_net::address;
use uncopy_sys::readable::{is_readable, writable_bytes};

/// Reads an address that a program passes; `None`: it is not one of TCP, or cannot be read.
///
/// # Safety
/// No other thread changes the bytes meanwhile.
pub unsafe fn read_address(at: *const sockaddr, len_bytes: socklen_t) -> Option<SocketAddr> {
    let len_bytes = (len_bytes as usize).min(address::MAX_BYTES);
    if !is_readable(at as usize, len_bytes) || at.is_null() {
        return None;
    }
    // SAFETY: `is_readable` found `len_bytes` readable bytes at `at`, which is not null; the caller promises
    // that no other thread changes them.
    address::parse(unsafe { core::slice::from_raw_parts(at.cast(), len_bytes) })
}

/// Returns whether an address that a program passes has the family AF_UNSPEC.
///
/// # Safety
/// No other thread changes the bytes meanwhile.
pub unsafe fn is_unspecified_family(at: *const sockaddr, len_bytes: socklen_t) -> bool {
    let family_bytes = size_of::<libc::sa_family_t>();
    if at.is_null() || (len_bytes as usize) < family_bytes || !is_readable(at as usize, family_bytes) {
        return false;
    }
    // SAFETY: `is_readable` found the family at `at` readable; the caller promises that it does not change.
    let family = unsafe { at.cast::<libc::sa_family_t>().read_unaligned() };
    i32::from(family) == libc::AF_UNSPEC
}

/// Buffer for any address (`sockaddr_storage`).
#[repr(align(8))]
pub struct AddressStorage([u8; 128]);

impl Default for AddressStorage {
    fn default() -> Self {
        Self([0; 128])
    }
}

impl AddressStorage {
    pub fn bytes(&self, len_bytes: socklen_t) -> &[u8] {
        &self.0[..(len_bytes as usize).min(self.0.len())]
    }
}

/// Buffer in which a program wants an address.
pub struct AddressBuffer {
    at: *mut u8,
    len_bytes: *mut socklen_t,
}

impl AddressBuffer {
    /// Checks a program's buffer; `None`: there is none, or it is invalid, which the kernel reports.
    ///
    /// # Safety
    /// `at` and `len` are arguments of accept(2) or getsockname(2); no other thread unmaps the buffer
    /// meanwhile.
    pub unsafe fn of(at: *mut sockaddr, len: *mut socklen_t) -> Option<Self> {
        let len_of_len = size_of::<socklen_t>();
        if at.is_null() || len.is_null() || writable_bytes(len as usize, len_of_len) < len_of_len {
            return None;
        }
        // SAFETY: `writable_bytes` found that the length at `len` can be written, and so be read.
        let len_bytes = unsafe { len.read_unaligned() } as usize;
        let wanted_bytes = len_bytes.min(size_of::<AddressStorage>());
        // A negative length, or one beyond the writable memory.
        let is_bad =
            len_bytes > i32::MAX as usize || writable_bytes(at as usize, wanted_bytes) < wanted_bytes;
        (!is_bad).then_some(Self { at: at.cast(), len_bytes: len })
    }

    /// Writes an address as the kernel does: cut to the buffer, and with its full length.
    pub fn put(&self, bytes: &[u8]) {
        // SAFETY: `AddressBuffer::of` found that the length, and as many bytes at `at` as it says, can be
        // written; the program keeps both for the duration of its call.
        unsafe {
            let room_bytes = self.len_bytes.read_unaligned() as usize;
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at, bytes.len().min(room_bytes));
            self.len_bytes.write_unaligned(bytes.len() as socklen_t);
        }
    }

    /// Writes a TCP address; `is_v6` maps an IPv4 address into IPv6.
    pub fn put_address(&self, address: SocketAddr, is_v6: bool) {
        let (bytes, len_bytes) = address::write(address, is_v6);
        self.put(&bytes[..len_bytes]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_cut_to_the_room_and_its_length_told() {
        let address: SocketAddr = "10.1.2.3:80".parse().expect("an address");
        for (room_bytes, is_v6, len_bytes) in
            [(16u32, false, 16u32), (6, false, 16), (0, false, 16), (28, true, 28)]
        {
            let mut bytes = [0xee_u8; 40];
            let mut len = room_bytes;
            // SAFETY: `bytes` is longer than any `room_bytes`, and `len` is a local variable.
            let room = unsafe { AddressBuffer::of(bytes.as_mut_ptr().cast(), &raw mut len) }.expect("room");
            room.put_address(address, is_v6);
            assert_eq!(len, len_bytes);
            assert!(bytes[room_bytes as usize..].iter().all(|byte| *byte == 0xee));
            if room_bytes >= len_bytes {
                // SAFETY: `put_address` has written `len` bytes to the local array `bytes`.
                let read = unsafe { read_address(bytes.as_ptr().cast(), len) };
                assert_eq!(read.map(address::canonical), Some(address));
            }
        }
    }

    #[test]
    fn what_cannot_be_written_is_the_kernels_to_refuse() {
        let mut len = 16;
        // SAFETY: `AddressBuffer::of` and `read_address` accept invalid pointers, and nothing else uses the
        // local variables.
        unsafe {
            assert!(AddressBuffer::of(core::ptr::null_mut(), &raw mut len).is_none());
            assert!(AddressBuffer::of(8 as *mut sockaddr, &raw mut len).is_none());
            assert!(AddressBuffer::of(8 as *mut sockaddr, 8 as *mut socklen_t).is_none());
            len = u32::MAX;
            let mut bytes = [0u8; 16];
            assert!(AddressBuffer::of(bytes.as_mut_ptr().cast(), &raw mut len).is_none());
            assert!(read_address(8 as *const sockaddr, 16).is_none());
        }
    }
}
