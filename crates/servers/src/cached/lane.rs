//! Sending by lanes: what `libuncopy.so` does for a server that has the twin allocator in itself.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::sync::OnceLock;

/// Shortest part that goes by reference, bytes.
pub const MIN_BYTES: usize = 32 << 10;
/// What [`Lane::send`] gets where nothing was done.
const NO_LANE: isize = -2;

/// A part of a message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// First byte.
    pub address: usize,
    /// Length, bytes.
    pub len: usize,
    /// Tells whether the bytes have changed since they were sent before; zeroes: nothing tells.
    pub stamp: [u64; 2],
}

type AreOn = unsafe extern "C" fn() -> bool;
type Takes = unsafe extern "C" fn(c_int, usize) -> bool;
type Send = unsafe extern "C" fn(c_int, *const Part, usize, c_int) -> isize;

/// The functions of `libuncopy.so`, where it is loaded and streams may become lanes.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    takes: Takes,
    send: Send,
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a terminated name.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol)
}

impl Lane {
    /// Looks for them, once.
    pub fn find() -> Option<Self> {
        static FOUND: OnceLock<Option<Lane>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let [are_on, takes, send] =
                [c"uncopy_lanes_are_on", c"uncopy_lane_takes", c"uncopy_lane_send"].map(symbol);
            // SAFETY: no other library has a function of this name, and it has this signature.
            let are_on = unsafe { std::mem::transmute::<*mut c_void, AreOn>(are_on?) };
            // SAFETY: as above.
            let takes = unsafe { std::mem::transmute::<*mut c_void, Takes>(takes?) };
            // SAFETY: as above.
            let send = unsafe { std::mem::transmute::<*mut c_void, Send>(send?) };
            // SAFETY: it asks for nothing.
            unsafe { are_on() }.then_some(Self { takes, send })
        })
    }

    /// Whether a part of `len` bytes would go by reference now.
    pub fn takes(self, fd: i32, len: usize) -> bool {
        // SAFETY: two numbers.
        unsafe { (self.takes)(fd, len) }
    }

    /// Sends the parts without waiting; `None`: nothing was done.
    pub fn send(self, fd: i32, parts: &[Part]) -> Option<io::Result<usize>> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: so many parts, each of which can be read.
        match unsafe { (self.send)(fd, parts.as_ptr(), parts.len(), flags) } {
            NO_LANE => None,
            sent => Some(usize::try_from(sent).map_err(|_| io::Error::last_os_error())),
        }
    }
}
