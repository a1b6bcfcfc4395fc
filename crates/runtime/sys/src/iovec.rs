//! Vectors of byte ranges, as `readv`, `writev`, `vmsplice` and message headers use them.

use crate::readable::is_readable;

/// A range of the program's bytes, laid out as `struct iovec`. The kernel refuses a bad address (EFAULT).
///
/// ```text
/// offset  0                     8
///         │ iov_base: address   │ iov_len: length │
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Address of the first byte.
    pub address: usize,
    /// Length, bytes.
    pub len_bytes: usize,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Part>() == size_of::<libc::iovec>() && align_of::<Part>() == align_of::<libc::iovec>());
    assert!(offset_of!(Part, address) == offset_of!(libc::iovec, iov_base));
    assert!(offset_of!(Part, len_bytes) == offset_of!(libc::iovec, iov_len));
};

/// Maximum number of parts in one call (`UIO_MAXIOV`).
pub const MAX_PARTS: usize = 1024;

impl Part {
    /// An empty range at address 0.
    pub const NONE: Self = Self { address: 0, len_bytes: 0 };
}

/// Returns the `count` parts of a vector of the program's. `None` if the vector cannot be read, is
/// longer than any call accepts or exceeds the address space: the kernel reports these errors. So
/// sums of lengths, and of an address and a length, do not overflow.
///
/// # Safety
/// The vector must not change while the result is in use; the program does not change it during its call.
#[must_use]
pub unsafe fn parts<'a>(vector: *const libc::iovec, count: usize) -> Option<&'a [Part]> {
    let vector = vector.cast::<Part>();
    if count == 0 {
        return Some(&[]);
    }
    let len_bytes = count.checked_mul(size_of::<Part>())?;
    // SAFETY: `vector` is aligned and `is_readable` has found all `count` parts readable; the
    // caller vouches that they do not change.
    let parts = (vector.is_aligned() && is_readable(vector as usize, len_bytes))
        .then(|| unsafe { core::slice::from_raw_parts(vector, count) })?;
    let sum = parts.iter().try_fold(0usize, |sum, part| {
        part.address.checked_add(part.len_bytes)?;
        sum.checked_add(part.len_bytes)
    });
    (sum? <= isize::MAX as usize).then_some(parts)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_vector_of_the_programs_is_read_as_parts() {
        let text = *b"one and two";
        let vector = [(0, 3), (4, 7)].map(|(at, len)| libc::iovec {
            iov_base: text.as_ptr().wrapping_add(at).cast_mut().cast(),
            iov_len: len,
        });
        // SAFETY: the vector is the test's own and does not change.
        let found = unsafe { parts(vector.as_ptr(), 2) }.expect("readable");
        let address = text.as_ptr() as usize;
        assert_eq!(found, [Part { address, len_bytes: 3 }, Part { address: address + 4, len_bytes: 7 }]);
    }

    #[test]
    fn a_vector_that_cannot_be_read_is_none() {
        for (address, count) in [(8, 1), (usize::MAX - 15, 1), (0x1000, usize::MAX / 8)] {
            // SAFETY: no memory is mapped there, so nothing changes it.
            assert!(unsafe { parts(address as *const libc::iovec, count) }.is_none(), "{address:#x}");
        }
        let long =
            [Part { address: 4096, len_bytes: isize::MAX as usize }, Part { address: 4096, len_bytes: 1 }];
        let past_the_end = [Part { address: usize::MAX - 9, len_bytes: 11 }; 2];
        for vector in [long, past_the_end] {
            // SAFETY: the vector is the test's own and does not change.
            assert!(unsafe { parts(vector.as_ptr().cast(), 2) }.is_none(), "{vector:?}");
        }
        // SAFETY: a vector of 0 parts is not read.
        assert_eq!(unsafe { parts(core::ptr::null(), 0) }, Some(&[][..]));
    }
}
