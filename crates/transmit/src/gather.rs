//! The way that copies: the kernel gathers the parts, in one call, exactly as the program's own call would.

use crate::part::Part;
use uncopy_sys::errno::Errno;
use uncopy_sys::socket::{self, Envelope, MAX_VECTORS, Vector};

/// Parts of most messages.
const FEW: usize = 32;

/// Sends all parts by `sendmsg`.
pub fn send(fd: i32, parts: &[Part], flags: i32, envelope: &Envelope) -> Result<usize, Errno> {
    with_vectors(parts, |vectors| socket::send(fd, vectors, flags, envelope))
}

/// Writes all parts by `writev`: for what is not a socket.
pub fn write(fd: i32, parts: &[Part]) -> Result<usize, Errno> {
    with_vectors(parts, |vectors| socket::write(fd, vectors))
}

/// Calls `section` with the parts as the kernel takes them.
fn with_vectors<T>(parts: &[Part], section: impl FnOnce(&[Vector]) -> Result<T, Errno>) -> Result<T, Errno> {
    if parts.len() <= FEW { fill::<FEW, T>(parts, section) } else { many(parts, section) }
}

#[cold]
#[inline(never)]
fn many<T>(parts: &[Part], section: impl FnOnce(&[Vector]) -> Result<T, Errno>) -> Result<T, Errno> {
    if parts.len() > MAX_VECTORS {
        return Err(Errno(libc::EMSGSIZE));
    }
    fill::<MAX_VECTORS, T>(parts, section)
}

fn fill<const MAX: usize, T>(
    parts: &[Part],
    section: impl FnOnce(&[Vector]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let mut vectors = [Vector { address: 0, len_bytes: 0 }; MAX];
    for (vector, part) in vectors.iter_mut().zip(parts) {
        *vector = part.vector();
    }
    section(&vectors[..parts.len()])
}
