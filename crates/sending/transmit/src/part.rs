//! Parts of a message.

use uncopy_sys::iovec;

/// One part of a message. The addresses need not be valid: the kernel reports bad ones (EFAULT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes that may change as soon as the call has returned, so the kernel gets a copy.
    Copied {
        /// Address of the first byte.
        ptr: *const u8,
        /// Length in bytes.
        len: usize,
    },
    /// Bytes that stay unchanged while the kernel may hold their pages, so the kernel may get references. The
    /// pages are private anonymous memory, or mapped read-only.
    Lent {
        /// Address of the first byte.
        ptr: *const u8,
        /// Length in bytes.
        len: usize,
    },
}

impl Part {
    /// Returns the address of the first byte.
    #[must_use]
    pub fn address(self) -> usize {
        match self {
            Self::Copied { ptr, .. } | Self::Lent { ptr, .. } => ptr as usize,
        }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        match self {
            Self::Copied { len, .. } | Self::Lent { len, .. } => len,
        }
    }

    /// True if the part has no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// True if the part may go by reference.
    #[must_use]
    pub const fn is_lent(self) -> bool {
        matches!(self, Self::Lent { .. })
    }

    /// Returns the part without its first `offset` bytes. `offset` must not exceed the length.
    #[must_use]
    pub fn from(self, offset: usize) -> Self {
        match self {
            Self::Copied { ptr, len } => Self::Copied { ptr: ptr.wrapping_add(offset), len: len - offset },
            Self::Lent { ptr, len } => Self::Lent { ptr: ptr.wrapping_add(offset), len: len - offset },
        }
    }

    /// Returns at most the first `max_bytes` bytes of the part.
    #[must_use]
    pub fn cut(self, max_bytes: usize) -> Self {
        match self {
            Self::Copied { ptr, len } => Self::Copied { ptr, len: len.min(max_bytes) },
            Self::Lent { ptr, len } => Self::Lent { ptr, len: len.min(max_bytes) },
        }
    }

    /// Converts the part to a `struct iovec`.
    #[must_use]
    pub fn iovec(self) -> iovec::Part {
        iovec::Part { address: self.address(), len_bytes: self.len() }
    }
}
