//! Addresses, pages and fringes.
//!
//! ```text
//!            start                                        end
//!              v                                           v
//!   |......####|##########|##########|##########|##########|####......|
//!          head          whole pages (may hold a view)      tail
//! ```
//!
//! The *fringe* of a buffer is its head and its tail: the bytes outside its whole pages. Other data of the
//! program shares these pages, so the fringe is always copied.

use core::marker::PhantomData;

/// Bytes in a page. The engine refuses to start where the kernel's page size differs.
pub const PAGE_BYTES: usize = 4096;

/// Returns the number of pages that `bytes` occupy, rounded up; `bytes` fits a block.
#[must_use]
pub const fn pages_up(bytes: usize) -> u32 {
    (bytes.div_ceil(PAGE_BYTES)) as u32
}

/// Origins of page numbers, as marker types.
pub mod origin {
    /// The first page of a block of the heap, or of a foreign range.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Block;
    /// The first page of the arena.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Arena;
    /// The first page of a segment.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Segment;
}

/// Pages `start..end`, counted from `Origin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pages<Origin> {
    /// First page of the range.
    pub start: u32,
    /// One past the last page.
    pub end: u32,
    origin: PhantomData<Origin>,
}

/// Pages of a block.
pub type PageRange = Pages<origin::Block>;
/// Pages of the arena.
pub type ArenaPages = Pages<origin::Arena>;
/// Pages of a segment.
pub type SegmentPages = Pages<origin::Segment>;

impl ArenaPages {
    /// Returns the pages at the given indices of a segment that occupies `self`.
    #[must_use]
    pub const fn of_segment(self, pages: SegmentPages) -> Self {
        Self::new(self.start + pages.start, self.start + pages.end)
    }
}

impl<Origin: Copy> Pages<Origin> {
    /// Returns the range `start..end`, which is empty if `end <= start`.
    #[must_use]
    pub const fn new(start: u32, end: u32) -> Self {
        Self { start, end, origin: PhantomData }
    }

    /// Returns the number of pages.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        self.len() as usize * PAGE_BYTES
    }

    /// Returns the offset of the first page, bytes.
    #[must_use]
    pub const fn start_bytes(self) -> usize {
        self.start as usize * PAGE_BYTES
    }

    /// Returns the offset of the end, bytes.
    #[must_use]
    pub const fn end_bytes(self) -> usize {
        self.end as usize * PAGE_BYTES
    }

    /// Returns the pages in both ranges.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// Whether `page` is in the range.
    #[must_use]
    pub const fn contains(self, page: u32) -> bool {
        self.start <= page && page < self.end
    }
}

/// Bytes `start..end`, by offset from the start of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte of the range.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl ByteRange {
    /// Returns the range of `len_bytes` bytes from `start`.
    #[must_use]
    pub const fn at(start: usize, len_bytes: usize) -> Self {
        Self { start, end: start + len_bytes }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Returns the pages that lie wholly in the range, which alone can hold a view.
    #[must_use]
    pub const fn whole_pages(self) -> PageRange {
        let start = pages_up(self.start);
        let end = (self.end / PAGE_BYTES) as u32;
        if end <= start { PageRange::new(start, start) } else { PageRange::new(start, end) }
    }

    /// Returns the pages that hold at least one byte of the range.
    #[must_use]
    pub const fn overlapped_pages(self) -> PageRange {
        PageRange::new((self.start / PAGE_BYTES) as u32, pages_up(self.end))
    }

    /// Returns the bytes in both ranges.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self { start: self.start.max(other.start), end: self.end.min(other.end) }
    }
}

impl From<PageRange> for ByteRange {
    fn from(pages: PageRange) -> Self {
        Self { start: pages.start_bytes(), end: pages.end_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_buffer_inside_one_page_is_all_fringe() {
        assert!(ByteRange::at(100, 3000).whole_pages().is_empty());
        assert!(ByteRange::at(4000, 4000).whole_pages().is_empty());
    }

    #[test]
    fn an_aligned_buffer_has_no_fringe() {
        assert_eq!(ByteRange::at(8192, 8192).whole_pages(), PageRange::new(2, 4));
    }

    proptest! {
        #[test]
        fn whole_pages_and_overlapped_pages_agree_with_counting(start in 0usize..20_000, len in 0usize..20_000) {
            let range = ByteRange::at(start, len);
            for page in 0u32..12 {
                let bytes = ByteRange::from(PageRange::new(page, page + 1));
                let inside = bytes.intersection(range).len();
                prop_assert_eq!(range.whole_pages().contains(page), inside == PAGE_BYTES);
                if len > 0 {
                    prop_assert_eq!(range.overlapped_pages().contains(page), inside > 0);
                }
            }
        }
    }
}
