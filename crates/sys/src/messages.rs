//! What a userfaultfd says and is told: the kernel's, and its stand-in under models.

use crate::errno::Errno;

/// One fault to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Address that was touched.
    pub address: usize,
    /// Kernel id of the thread that waits.
    pub thread_id: u32,
}

/// What a thread that waits wanted of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The page is absent.
    Missing,
    /// The page is write-protected, and the thread writes.
    Protected,
}

/// The program has changed registered mappings. It waits until this is read, and then goes on: pages that
/// are given back vanish after that, pages of a mapping that is gone or moved have vanished before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// First address.
    pub start: usize,
    /// One past the last address.
    pub end: usize,
    /// Where `start` is now, if the mapping was moved.
    pub moved_to: Option<usize>,
}

/// What a userfaultfd reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A thread waits for a page.
    Fault(Fault),
    /// Mappings have changed; only where [`Reports::Changes`] were asked for.
    Change(Change),
}

/// What a userfaultfd is to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reports {
    /// Faults only: for memory whose mappings only we change.
    Faults,
    /// Changes of the mappings too: for memory that the program maps.
    Changes,
    /// Faults, and writes to protected pages (Linux 5.7); pages need not be movable.
    Writes,
}

/// What waiting for messages found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// The first userfaultfd has something to read.
    pub first: bool,
    /// The second has.
    pub second: bool,
    /// The control pipe has.
    pub control: bool,
    /// The descriptor that tells of the program's end has.
    pub program: bool,
    /// The first descriptor is of no use any more.
    pub is_closed: bool,
}

/// How far a placement got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Bytes placed, from the start of the range.
    pub done_bytes: usize,
    /// Why it stopped; `None` if all was placed.
    pub error: Option<Errno>,
}

impl Placed {
    /// Whether every page was placed.
    #[must_use]
    pub const fn is_complete(self) -> bool {
        self.error.is_none()
    }
}
