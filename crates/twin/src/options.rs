//! What can be set before the first allocation.

use core::fmt;
use std::os::fd::BorrowedFd;

/// Alignment of every object, bytes: that of C's `malloc`.
pub const ALIGNMENT: usize = 16;

/// Options of the twin allocator, see [`crate::configure`].
///
/// ```
/// let mut options = uncopy_twin::Options::new();
/// options.memory_cap = 1 << 30;
/// uncopy_twin::configure(options)?;
/// # Ok::<_, uncopy_twin::ConfigureError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Pages of a pageblock, 1 to 64 (ZCopy §3.2.1: 16).
    pub pageblock_pages: usize,
    /// Objects of more bytes have pages of their own; 16 to 32,768, at most half a pageblock (ZCopy §3.2.1: 4,096).
    pub large_threshold: usize,
    /// Largest total of pages that objects take, bytes; 0: no limit but the machine's.
    pub memory_cap: usize,
    /// An open `/dev/userfaultfd`, for processes that must not open it themselves.
    pub uffd_device: Option<BorrowedFd<'static>>,
}

impl Options {
    /// The defaults.
    #[must_use]
    pub const fn new() -> Self {
        Self { pageblock_pages: 16, large_threshold: 4096, memory_cap: 0, uffd_device: None }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// Why options were not taken. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigureError {
    /// Pages of a pageblock: 1 to 64.
    PageblockPages(usize),
    /// The threshold: 16 to 32,768 bytes, and at most half a pageblock.
    LargeThreshold(usize),
    /// Something has been allocated already.
    InUse,
}

impl fmt::Display for ConfigureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PageblockPages(pages) => write!(f, "a pageblock has 1 to 64 pages, not {pages}"),
            Self::LargeThreshold(bytes) => write!(
                f,
                "the threshold of large objects is 16 to 32768 bytes and at most half a pageblock, not {bytes}"
            ),
            Self::InUse => f.write_str("the twin allocator is in use already"),
        }
    }
}

impl std::error::Error for ConfigureError {}
