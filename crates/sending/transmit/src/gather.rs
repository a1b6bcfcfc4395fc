//! Sends by copying: the kernel gathers all parts in one call, exactly as the program's own call would.

use crate::part::Part;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::{self, MAX_PARTS};
use uncopy_sys::socket::{self, Envelope};

/// Number of parts up to which a small array is used.
const SMALL: usize = 32;

/// Sends all parts by `sendmsg`.
pub fn send(fd: ProgramFd, parts: &[Part], flags: i32, envelope: &Envelope) -> Result<usize, Errno> {
    with_iovecs(parts, |iovecs| socket::send(fd, iovecs, flags, envelope))
}

/// Writes all parts by `writev`, for descriptors that are not sockets.
pub fn write(fd: ProgramFd, parts: &[Part]) -> Result<usize, Errno> {
    with_iovecs(parts, |iovecs| socket::write(fd, iovecs))
}

/// Calls `section` with the parts as an array of `struct iovec`.
fn with_iovecs<T>(
    parts: &[Part],
    section: impl FnOnce(&[iovec::Part]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    if parts.len() <= SMALL { with_array::<SMALL, T>(parts, section) } else { with_many(parts, section) }
}

#[cold]
#[inline(never)]
fn with_many<T>(
    parts: &[Part],
    section: impl FnOnce(&[iovec::Part]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    if parts.len() > MAX_PARTS {
        return Err(Errno(libc::EMSGSIZE));
    }
    with_array::<MAX_PARTS, T>(parts, section)
}

fn with_array<const MAX: usize, T>(
    parts: &[Part],
    section: impl FnOnce(&[iovec::Part]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let mut iovecs = [iovec::Part::NONE; MAX];
    for (iovec, part) in iovecs.iter_mut().zip(parts) {
        *iovec = part.iovec();
    }
    section(&iovecs[..parts.len()])
}
