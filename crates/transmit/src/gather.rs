//! The way that copies: the kernel gathers the parts, in one call, exactly as the program's own call would.

use crate::part::Part;
use uncopy_sys::errno::Errno;
use uncopy_sys::iovec::{self, MAX_PARTS};
use uncopy_sys::socket::{self, Envelope};

/// Parts of most messages.
const FEW: usize = 32;

/// Sends all parts by `sendmsg`.
pub fn send(fd: i32, parts: &[Part], flags: i32, envelope: &Envelope) -> Result<usize, Errno> {
    with_iovecs(parts, |iovecs| socket::send(fd, iovecs, flags, envelope))
}

/// Writes all parts by `writev`: for what is not a socket.
pub fn write(fd: i32, parts: &[Part]) -> Result<usize, Errno> {
    with_iovecs(parts, |iovecs| socket::write(fd, iovecs))
}

/// Calls `section` with the parts as the kernel takes them.
fn with_iovecs<T>(
    parts: &[Part],
    section: impl FnOnce(&[iovec::Part]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    if parts.len() <= FEW { fill::<FEW, T>(parts, section) } else { many(parts, section) }
}

#[cold]
#[inline(never)]
fn many<T>(parts: &[Part], section: impl FnOnce(&[iovec::Part]) -> Result<T, Errno>) -> Result<T, Errno> {
    if parts.len() > MAX_PARTS {
        return Err(Errno(libc::EMSGSIZE));
    }
    fill::<MAX_PARTS, T>(parts, section)
}

fn fill<const MAX: usize, T>(
    parts: &[Part],
    section: impl FnOnce(&[iovec::Part]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let mut iovecs = [iovec::Part::NONE; MAX];
    for (iovec, part) in iovecs.iter_mut().zip(parts) {
        *iovec = part.iovec();
    }
    section(&iovecs[..parts.len()])
}
