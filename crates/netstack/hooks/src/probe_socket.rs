//! A temporary kernel TCP socket that decides whether an option is legal and what its default is.

use core::ffi::c_int;
use libc::socklen_t;
use uncopy_sys::descriptor::OwnFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::tcp;

/// A kernel socket that only this crate uses.
pub struct ProbeSocket(OwnFd);

impl ProbeSocket {
    /// Makes a socket; `None`: no descriptor is left.
    pub fn new(is_v6: bool) -> Option<Self> {
        tcp::stream(if is_v6 { libc::AF_INET6 } else { libc::AF_INET }).ok().map(Self)
    }

    /// # Safety
    /// `value` and `len` are arguments of getsockopt(2).
    pub unsafe fn get(
        &self,
        level: c_int,
        name: c_int,
        value: *mut u8,
        len: *mut socklen_t,
    ) -> Result<(), Errno> {
        // SAFETY: `value` and `len` are arguments of getsockopt(2), as this function's caller promises.
        unsafe { tcp::raw_option(&self.0, level, name, value, len) }
    }

    /// # Safety
    /// `value` and `len_bytes` are arguments of setsockopt(2).
    pub unsafe fn set(
        &self,
        level: c_int,
        name: c_int,
        value: *const u8,
        len_bytes: socklen_t,
    ) -> Result<(), Errno> {
        // SAFETY: `value` and `len_bytes` are arguments of setsockopt(2), as this function's caller promises.
        unsafe { tcp::set_raw_option(&self.0, level, name, value, len_bytes) }
    }

    pub const fn fd(&self) -> &OwnFd {
        &self.0
    }
}
