//! The parts of a message.

use uncopy_sys::iovec;

/// One part of a message. The addresses are the sender's own; bad ones are the kernel's to refuse (EFAULT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes that may change as soon as the call has returned: the kernel gets a copy.
    Copied {
        /// First byte.
        ptr: *const u8,
        /// Bytes.
        len: usize,
    },
    /// Bytes that nobody changes while the kernel may hold their pages: it may get references. The pages are
    /// private anonymous memory, or mapped read-only.
    Lent {
        /// First byte.
        ptr: *const u8,
        /// Bytes.
        len: usize,
    },
}

impl Part {
    /// First address.
    #[must_use]
    pub fn address(self) -> usize {
        match self {
            Self::Copied { ptr, .. } | Self::Lent { ptr, .. } => ptr as usize,
        }
    }

    /// Bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        match self {
            Self::Copied { len, .. } | Self::Lent { len, .. } => len,
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether it may go by reference.
    #[must_use]
    pub const fn is_lent(self) -> bool {
        matches!(self, Self::Lent { .. })
    }

    /// Without its first `offset` bytes, of which it must have as many.
    #[must_use]
    pub fn from(self, offset: usize) -> Self {
        match self {
            Self::Copied { ptr, len } => Self::Copied { ptr: ptr.wrapping_add(offset), len: len - offset },
            Self::Lent { ptr, len } => Self::Lent { ptr: ptr.wrapping_add(offset), len: len - offset },
        }
    }

    /// At most its first `most` bytes.
    #[must_use]
    pub fn cut(self, most: usize) -> Self {
        match self {
            Self::Copied { ptr, len } => Self::Copied { ptr, len: len.min(most) },
            Self::Lent { ptr, len } => Self::Lent { ptr, len: len.min(most) },
        }
    }

    /// As the kernel takes it.
    #[must_use]
    pub fn iovec(self) -> iovec::Part {
        iovec::Part { address: self.address(), len_bytes: self.len() }
    }
}
