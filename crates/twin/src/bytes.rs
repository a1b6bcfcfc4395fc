//! An owned buffer in twin memory.

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// A buffer in twin memory. What is sent of it may go by reference; writing to it afterwards is as safe as with any
/// other buffer.
#[derive(Debug)]
pub struct Bytes {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the buffer belongs to this value alone.
unsafe impl Send for Bytes {}
// SAFETY: shared references only read.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Zeroes; `None` without memory.
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Option<Self> {
        let start = NonNull::new(crate::allocator::allocate_zeroed(len_bytes))?;
        Some(Self { start, len_bytes })
    }

    /// A copy of `bytes`; `None` without memory.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Option<Self> {
        let start = NonNull::new(crate::allocator::allocate(bytes.len()))?;
        // SAFETY: a fresh object of at least so many bytes.
        unsafe { uncopy_sys::bytes::copy(start.as_ptr(), bytes.as_ptr(), bytes.len()) };
        Some(Self { start, len_bytes: bytes.len() })
    }

    /// Changes the length; new bytes are zeroes. False without memory, nothing has changed then.
    #[must_use]
    pub fn resize(&mut self, len_bytes: usize) -> bool {
        // SAFETY: the object is this value's.
        let Some(start) =
            NonNull::new(unsafe { crate::allocator::reallocate(self.start.as_ptr(), len_bytes.max(1)) })
        else {
            return false;
        };
        if let Some(added) = len_bytes.checked_sub(self.len_bytes) {
            // SAFETY: the object has at least `len_bytes` bytes now.
            unsafe { uncopy_sys::bytes::zero(start.as_ptr().add(self.len_bytes), added) };
        }
        (self.start, self.len_bytes) = (start, len_bytes);
        true
    }

    /// Gives the object up: to be freed with [`crate::allocator::deallocate`].
    #[must_use]
    pub fn into_raw(self) -> *mut u8 {
        core::mem::ManuallyDrop::new(self).start.as_ptr()
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: the object is this value's, and nobody borrows it any more.
        unsafe { crate::allocator::deallocate(self.start.as_ptr()) };
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many initialised bytes, of this value.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: so many initialised bytes, of this value, and borrowed by nobody else.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Bytes {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}
