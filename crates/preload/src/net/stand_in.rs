//! A socket of the kernel's TCP that is asked in place of one of the service's: whether an option is legal, what it is by default.

use core::ffi::c_int;
use libc::socklen_t;
use uncopy_sys::errno::Errno;
use uncopy_sys::{file, tcp};

/// Such a socket, closed when this is dropped. Nobody else knows it.
pub struct StandIn(c_int);

impl StandIn {
    /// `None`: there is no descriptor left for it.
    pub fn new(is_v6: bool) -> Option<Self> {
        tcp::stream(if is_v6 { libc::AF_INET6 } else { libc::AF_INET }).ok().map(Self)
    }

    /// getsockopt.
    ///
    /// # Safety
    /// As getsockopt.
    pub unsafe fn get(
        &self,
        level: c_int,
        name: c_int,
        value: *mut u8,
        len: *mut socklen_t,
    ) -> Result<(), Errno> {
        // SAFETY: as the caller says.
        unsafe { tcp::any_option(self.0, level, name, value, len) }
    }

    /// setsockopt.
    ///
    /// # Safety
    /// As setsockopt.
    pub unsafe fn set(
        &self,
        level: c_int,
        name: c_int,
        value: *const u8,
        len_bytes: socklen_t,
    ) -> Result<(), Errno> {
        // SAFETY: as the caller says.
        unsafe { tcp::set_any_option(self.0, level, name, value, len_bytes) }
    }

    /// Its descriptor, which stays its own.
    pub const fn fd(&self) -> c_int {
        self.0
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        file::close(self.0);
    }
}
