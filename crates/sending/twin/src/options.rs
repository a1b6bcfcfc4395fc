//! Options of the allocator.

use core::fmt;
use std::os::fd::BorrowedFd;

/// Alignment of every object in bytes, as for C's `malloc`.
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
    /// Pages per pageblock, 1 to 64 (ZCopy §3.2.1: 16).
    pub pageblock_pages: usize,
    /// Objects larger than this many bytes get pages of their own; 16 to 32,768, at most half a pageblock
    /// (ZCopy §3.2.1: 4,096).
    pub large_threshold: usize,
    /// Maximum total size in bytes of pages that objects occupy; 0 for no limit.
    pub memory_cap: usize,
    /// Open descriptor of `/dev/userfaultfd`, for processes that must not open it themselves.
    pub uffd_device: Option<BorrowedFd<'static>>,
}

impl Options {
    /// Returns the default options.
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

/// Reason why options were rejected. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigureError {
    /// The number of pages per pageblock is not 1 to 64.
    PageblockPages(usize),
    /// The threshold is not 16 to 32,768 bytes, or is more than half a pageblock.
    LargeThreshold(usize),
    /// Memory has already been allocated.
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
