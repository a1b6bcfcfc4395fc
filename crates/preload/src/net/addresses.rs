//! Addresses that a program passes, and where it wants some.

use libc::{sockaddr, socklen_t};
use std::net::SocketAddr;
use uncopy_net::address;
use uncopy_sys::readable::{is_readable, writable_bytes};

/// An address that a program passes; `None`: it is none of TCP, or cannot be read.
///
/// # Safety
/// Nobody changes it meanwhile.
pub unsafe fn given(at: *const sockaddr, len_bytes: socklen_t) -> Option<SocketAddr> {
    let len_bytes = (len_bytes as usize).min(address::MAX_BYTES);
    if !is_readable(at as usize, len_bytes) || at.is_null() {
        return None;
    }
    // SAFETY: it can be read, and the caller answers for the rest.
    address::parse(unsafe { core::slice::from_raw_parts(at.cast(), len_bytes) })
}

/// Whether an address that a program passes is of no family.
///
/// # Safety
/// Nobody changes it meanwhile.
pub unsafe fn is_of_no_family(at: *const sockaddr, len_bytes: socklen_t) -> bool {
    let family_bytes = size_of::<libc::sa_family_t>();
    if at.is_null() || (len_bytes as usize) < family_bytes || !is_readable(at as usize, family_bytes) {
        return false;
    }
    // SAFETY: it can be read, and the caller answers for the rest.
    let family = unsafe { at.cast::<libc::sa_family_t>().read_unaligned() };
    i32::from(family) == libc::AF_UNSPEC
}

/// Room for any address (`sockaddr_storage`).
#[repr(align(8))]
pub struct Storage([u8; 128]);

impl Default for Storage {
    fn default() -> Self {
        Self([0; 128])
    }
}

impl Storage {
    /// What the kernel has written.
    pub fn bytes(&self, len_bytes: socklen_t) -> &[u8] {
        &self.0[..(len_bytes as usize).min(self.0.len())]
    }
}

/// Where a program wants an address.
pub struct Room {
    at: *mut u8,
    len_bytes: *mut socklen_t,
}

impl Room {
    /// `None`: it wants none, or cannot have it there, which is the kernel's to say.
    ///
    /// # Safety
    /// What the program passed to accept or getsockname, which may be anything.
    pub unsafe fn of(at: *mut sockaddr, len: *mut socklen_t) -> Option<Self> {
        let len_of_len = size_of::<socklen_t>();
        if at.is_null() || len.is_null() || writable_bytes(len as usize, len_of_len) < len_of_len {
            return None;
        }
        // SAFETY: it can be written.
        let len_bytes = unsafe { len.read_unaligned() } as usize;
        let wanted_bytes = len_bytes.min(size_of::<Storage>());
        // A length that is negative, or more than there is.
        let is_bad =
            len_bytes > i32::MAX as usize || writable_bytes(at as usize, wanted_bytes) < wanted_bytes;
        (!is_bad).then_some(Self { at: at.cast(), len_bytes: len })
    }

    /// Puts an address there as the kernel does: as much as there is room for, and how much it would have been.
    pub fn put(&self, bytes: &[u8]) {
        // SAFETY: both were found to be writable; what is there now is the program's length.
        unsafe {
            let room_bytes = self.len_bytes.read_unaligned() as usize;
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at, bytes.len().min(room_bytes));
            self.len_bytes.write_unaligned(bytes.len() as socklen_t);
        }
    }

    /// The same for one of TCP: with `is_v6` as a socket of IPv6 sees it.
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
            // SAFETY: room for what is said.
            let room = unsafe { Room::of(bytes.as_mut_ptr().cast(), &raw mut len) }.expect("room");
            room.put_address(address, is_v6);
            assert_eq!(len, len_bytes);
            assert!(bytes[room_bytes as usize..].iter().all(|byte| *byte == 0xee));
            if room_bytes >= len_bytes {
                // SAFETY: as many bytes.
                let read = unsafe { given(bytes.as_ptr().cast(), len) };
                assert_eq!(read.map(address::plain), Some(address));
            }
        }
    }

    #[test]
    fn what_cannot_be_written_is_the_kernels_to_refuse() {
        let mut len = 16;
        // SAFETY: nothing is written.
        unsafe {
            assert!(Room::of(core::ptr::null_mut(), &raw mut len).is_none());
            assert!(Room::of(8 as *mut sockaddr, &raw mut len).is_none());
            assert!(Room::of(8 as *mut sockaddr, 8 as *mut socklen_t).is_none());
            len = u32::MAX;
            let mut bytes = [0u8; 16];
            assert!(Room::of(bytes.as_mut_ptr().cast(), &raw mut len).is_none());
            assert!(given(8 as *const sockaddr, 16).is_none());
        }
    }
}
