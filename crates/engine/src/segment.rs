//! Segments: refcounted runs of hidden memory, filled once and immutable from then on.
//!
//! `references = views + calls in progress`. When the last reference goes, the pages go back to
//! the reservoir.

use crate::engine::ENGINE;
use crate::live;
use std::sync::Arc;
use uncopy_core::addr::{PAGE_BYTES, PageRange, pages_up};
use uncopy_core::page_map::SiteId;
use uncopy_core::stats::Counter;
use uncopy_sys::errno::Errno;
use uncopy_sys::uffd::Uffd;

/// A run of hidden memory that a call is still filling. Owned by that call alone.
#[derive(Debug)]
pub struct Draft {
    pages: PageRange,
    /// Pages that were moved out and are absent.
    holes: Vec<PageRange>,
}

impl Draft {
    /// Takes present pages for `len_bytes` bytes.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(uffd: Uffd, len_bytes: usize) -> Result<Self, Errno> {
        let pages = ENGINE.hidden.take_warm(uffd, pages_up(len_bytes).max(1))?;
        live::raise(Counter::SegmentsBytes, Counter::SegmentsPeakBytes, pages.len_bytes());
        Ok(Self { pages, holes: Vec::new() })
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        ENGINE.hidden.address(self.pages.start)
    }

    /// Length, bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.pages.len_bytes()
    }

    /// Gives the pages beyond `len_bytes` back.
    pub fn shorten(&mut self, len_bytes: usize) {
        let end = (self.pages.start + pages_up(len_bytes).max(1)).min(self.pages.end);
        let rest = PageRange::new(end, self.pages.end);
        self.pages.end = end;
        live::subtract(Counter::SegmentsBytes, rest.len_bytes());
        ENGINE.hidden.give_warm(rest);
    }

    /// Records that pages (by index in the run) were moved out.
    pub fn moved_out(&mut self, pages: PageRange) {
        if !pages.is_empty() {
            self.holes.push(PageRange::new(self.pages.start + pages.start, self.pages.start + pages.end));
        }
    }

    /// The pages that were moved out, by index in the run, in order.
    pub fn holes(&self) -> impl Iterator<Item = PageRange> {
        let start = self.pages.start;
        self.holes.iter().map(move |hole| PageRange::new(hole.start - start, hole.end - start))
    }

    /// Makes it a segment: its bytes never change again.
    #[must_use]
    pub fn freeze(self, site: SiteId) -> Segment {
        Segment(Arc::new(Frozen { draft: self, site }))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        live::subtract(Counter::SegmentsBytes, self.pages.len_bytes());
        let mut start = self.pages.start;
        self.holes.sort_unstable_by_key(|hole| hole.start);
        for hole in &self.holes {
            ENGINE.hidden.give_warm(PageRange::new(start, hole.start));
            ENGINE.hidden.give_cold(*hole);
            start = hole.end;
        }
        ENGINE.hidden.give_warm(PageRange::new(start, self.pages.end));
    }
}

#[derive(Debug)]
struct Frozen {
    draft: Draft,
    site: SiteId,
}

/// A reference to a segment.
#[derive(Clone, Debug)]
pub struct Segment(Arc<Frozen>);

impl PartialEq for Segment {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Segment {
    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.draft.address()
    }

    /// The input site that filled it.
    #[must_use]
    pub fn site(&self) -> SiteId {
        self.0.site
    }

    /// The run itself, if this is the only reference: its pages may then be moved out.
    pub fn sole(&mut self) -> Option<&mut Draft> {
        Arc::get_mut(&mut self.0).map(|frozen| &mut frozen.draft)
    }

    /// Whether a view at `offset_bytes` has its pages where the segment has them.
    #[must_use]
    pub const fn is_congruent(offset_bytes: usize) -> bool {
        offset_bytes % PAGE_BYTES == 0
    }
}
