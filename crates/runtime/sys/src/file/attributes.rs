//! Extended attributes of open files (xattr(7)).

use super::link_of;
use crate::call::{kernel, syscall};
use crate::descriptor::Descriptor;
use crate::errno::{Errno, check};
use core::ffi::CStr;

/// Sets an extended attribute (xattr(7)).
///
/// # Errors
/// Errors of fsetxattr(2).
pub fn set_attribute(fd: impl Descriptor, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    let (from, len) = (value.as_ptr(), value.len());
    // SAFETY: `name` is NUL-terminated, `value` has `len` bytes, and fsetxattr(2) only reads both.
    check(unsafe { kernel!(Name, syscall!(libc::SYS_fsetxattr, fd, name.as_ptr(), from, len, 0)) }).map(drop)
}

/// Reads an extended attribute into `into`; returns its length, bytes.
///
/// # Errors
/// Errors of fgetxattr(2): ENODATA if there is none, ERANGE if `into` is too short.
pub fn attribute(fd: impl Descriptor, name: &CStr, into: &mut [u8]) -> Result<usize, Errno> {
    let (to, room) = (into.as_mut_ptr(), into.len());
    // SAFETY: `name` is NUL-terminated, and fgetxattr(2) writes at most `room` bytes to `into`.
    check(unsafe { kernel!(Stat, syscall!(libc::SYS_fgetxattr, fd, name.as_ptr(), to, room)) })
        .map(|len| len as usize)
}

/// Whether a file, which may be open with `O_PATH`, has an extended attribute.
///
/// # Errors
/// Errors of getxattr(2): EACCES if permissions forbid the query.
pub fn has_attribute(fd: impl Descriptor, name: &CStr) -> Result<bool, Errno> {
    let (link, nowhere) = (link_of(fd)?, core::ptr::null_mut::<u8>());
    // SAFETY: `link` and `name` are NUL-terminated; with size 0 getxattr(2) writes no value.
    match check(unsafe {
        kernel!(Stat, syscall!(libc::SYS_getxattr, link.as_ptr(), name.as_ptr(), nowhere, 0usize))
    }) {
        Ok(_) => Ok(true),
        Err(Errno(libc::ENODATA | libc::EOPNOTSUPP)) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Removes an extended attribute, if there is one.
///
/// # Errors
/// Errors of fremovexattr(2).
pub fn remove_attribute(fd: impl Descriptor, name: &CStr) -> Result<(), Errno> {
    // SAFETY: `name` is NUL-terminated and lives through the call; fremovexattr(2) only reads it.
    match check(unsafe { kernel!(Name, syscall!(libc::SYS_fremovexattr, fd, name.as_ptr())) }) {
        Ok(_) | Err(Errno(libc::ENODATA)) => Ok(()),
        Err(errno) => Err(errno),
    }
}
