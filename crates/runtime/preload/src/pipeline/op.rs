//! Description of a call that passes through the pipeline.

use core::ffi::{c_int, c_void};
use libc::msghdr;
use uncopy_record::Transfer;
use uncopy_store::program::Place;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::iovec::{self, MAX_PARTS, Part};

/// A call of the program that moves bytes.
pub struct Op {
    /// Function and descriptor, as recorded.
    pub transfer: Transfer,
    /// Buffers of the program.
    pub buffers: Buffers,
    /// Flags with which `send` or `recv` does on a stream what this call does; `None` if they cannot.
    pub stream: Option<c_int>,
    /// Flags that the program passed to a send, if it is made with others so that it raises no signal.
    pub asked: Option<c_int>,
    /// Place in a file that the call reads or writes; `None`: no file, or a place unknown to a log.
    pub at: Option<Place>,
    /// Return address of a receive in the program.
    pub caller: usize,
    /// Header of a recvmsg, readable; otherwise null.
    pub header: *mut msghdr,
}

impl Op {
    /// Returns the description of a call that is not for streams and has no file position.
    pub const fn new(transfer: Transfer, buffers: Buffers) -> Self {
        Self {
            transfer,
            buffers,
            stream: None,
            asked: None,
            at: None,
            caller: 0,
            header: core::ptr::null_mut(),
        }
    }

    /// Returns the descriptor of the call.
    pub const fn fd(&self) -> ProgramFd {
        self.transfer.fd
    }
}

/// Buffers as the program named them. A vector is examined only by stages that need it; the kernel validates it.
#[derive(Clone, Copy)]
pub enum Buffers {
    /// A single buffer of the program.
    One([Part; 1]),
    /// A vector and its number of parts.
    Vector(*const libc::iovec, usize),
    /// Buffers of a message whose header was not examined.
    Unseen(*const msghdr),
}

impl Buffers {
    /// Returns a single buffer.
    pub fn one(address: *const c_void, len_bytes: usize) -> Self {
        Self::One([Part { address: address as usize, len_bytes }])
    }

    /// Returns a vector of `count` parts.
    pub fn vector(vector: *const libc::iovec, count: c_int) -> Self {
        // The kernel reports the same error for a negative count as for one that is too large.
        Self::Vector(vector, usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Returns the parts; `None` if they were not examined, are not aligned, or cannot be read.
    #[inline(always)]
    pub fn parts(&self) -> Option<&[Part]> {
        match self {
            Self::One(part) => Some(part),
            // SAFETY: the program does not change its vector during the call; `parts` checks the rest.
            Self::Vector(vector, count) if *count <= MAX_PARTS => unsafe { iovec::parts(*vector, *count) },
            Self::Vector(..) | Self::Unseen(_) => None,
        }
    }

    /// Returns the vector that the kernel has read, and its number of parts.
    ///
    /// # Safety
    /// The call has succeeded.
    pub unsafe fn read_by_kernel(&self) -> (*const Part, usize) {
        match self {
            Self::One(part) => (part.as_ptr(), 1),
            Self::Vector(vector, count) => (vector.cast(), *count),
            // SAFETY: the caller guarantees that the call has succeeded, so the kernel has just read the header.
            Self::Unseen(message) => unsafe {
                ((**message).msg_iov.cast_const().cast(), (**message).msg_iovlen)
            },
        }
    }

    /// Returns the total length of the buffers, bytes; `None` if the parts cannot be examined.
    pub fn len_bytes(&self) -> Option<usize> {
        Some(self.parts()?.iter().fold(0, |sum, part| sum.saturating_add(part.len_bytes)))
    }
}
