//! An owned buffer in twin memory.

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::io;

/// A byte buffer in twin memory, which may be sent by reference and written to afterwards as usual.
///
/// ```
/// use std::io::Read;
/// use uncopy_twin::Buffer;
///
/// let mut file = std::fs::File::open("/proc/self/exe")?;
/// let mut page = Buffer::zeroed(100_000)?;
/// file.read_exact(&mut page)?;
/// assert_eq!(page[1..4], *b"ELF");
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the buffer owns its object, and objects may be freed by any thread.
unsafe impl Send for Buffer {}
// SAFETY: shared references only allow reading.
unsafe impl Sync for Buffer {}

fn owned(start: *mut u8) -> io::Result<NonNull<u8>> {
    NonNull::new(start).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl Buffer {
    /// Creates a buffer of `len_bytes` zero bytes.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::OutOfMemory`].
    pub fn zeroed(len_bytes: usize) -> io::Result<Self> {
        let start = owned(crate::allocator::allocate_zeroed(len_bytes))?;
        Ok(Self { start, len_bytes })
    }

    /// Creates a buffer with a copy of `bytes`.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::OutOfMemory`].
    pub fn copy_of(bytes: &[u8]) -> io::Result<Self> {
        let start = owned(crate::allocator::allocate(bytes.len()))?;
        // SAFETY: the object was just allocated with `bytes.len()` bytes or more, and does not overlap
        // `bytes`.
        unsafe { uncopy_sys::bytes::copy(start.as_ptr(), bytes.as_ptr(), bytes.len()) };
        Ok(Self { start, len_bytes: bytes.len() })
    }

    /// Changes the length; new bytes are zero.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::OutOfMemory`]; the buffer is unchanged then.
    pub fn resize(&mut self, len_bytes: usize) -> io::Result<()> {
        // SAFETY: this value owns the object, and `&mut self` excludes other references.
        let start = owned(unsafe { crate::allocator::reallocate(self.start.as_ptr(), len_bytes.max(1)) })?;
        if let Some(added) = len_bytes.checked_sub(self.len_bytes) {
            // SAFETY: the object now has at least `len_bytes` bytes, and nothing else refers to it.
            unsafe { uncopy_sys::bytes::zero(start.as_ptr().add(self.len_bytes), added) };
        }
        (self.start, self.len_bytes) = (start, len_bytes);
        Ok(())
    }

    /// Returns the object, which must be freed with [`crate::deallocate`].
    #[must_use]
    pub fn into_raw(self) -> *mut u8 {
        core::mem::ManuallyDrop::new(self).start.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: this value owns the object, and no borrows remain.
        unsafe { crate::allocator::deallocate(self.start.as_ptr()) };
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the object has `len_bytes` initialised bytes, lives as long as `self`, and cannot change.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the object has `len_bytes` initialised bytes, lives as long as `self`, and is not shared.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}
