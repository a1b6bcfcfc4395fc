//! Messages and results of a userfaultfd, which the kernel and its stand-in under models share.

use crate::errno::Errno;

/// A page fault to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Address of the access.
    pub address: usize,
    /// Kernel id of the waiting thread.
    pub thread_id: u32,
}

/// Kind of access that a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Access to an absent page.
    Missing,
    /// Write to a write-protected page.
    Protected,
}

/// A change of registered mappings by the program, which waits until the message is read. Pages that madvise
/// drops vanish after that; those of an unmapped or moved mapping have vanished before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Address of the first byte.
    pub start: usize,
    /// End of the range (exclusive).
    pub end: usize,
    /// New address of `start`, if the mapping was moved.
    pub moved_to: Option<usize>,
}

/// A message of a userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A thread waits for a page.
    Fault(Fault),
    /// Mappings have changed; only with [`Reports::Changes`].
    Change(Change),
}

/// Kinds of messages that a userfaultfd is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reports {
    /// Faults only, for memory whose mappings the program does not change.
    Faults,
    /// Faults and changes of mappings, for memory that the program maps.
    Changes,
    /// Faults and writes to protected pages (Linux 5.7); pages need not be movable.
    Writes,
}

/// Result of waiting for messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Whether the first userfaultfd is readable.
    pub first: bool,
    /// Whether the second userfaultfd is readable.
    pub second: bool,
    /// Whether the control pipe is readable.
    pub control: bool,
    /// Whether the descriptor that reports the program's end is readable.
    pub program: bool,
    /// Whether the first descriptor is unusable.
    pub is_closed: bool,
}

/// Progress of a placement of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Bytes placed, from the start of the range.
    pub done_bytes: usize,
    /// Error that stopped the placement; `None` if all pages were placed.
    pub error: Option<Errno>,
}

impl Placed {
    /// Whether every page was placed.
    #[must_use]
    pub const fn is_complete(self) -> bool {
        self.error.is_none()
    }
}
