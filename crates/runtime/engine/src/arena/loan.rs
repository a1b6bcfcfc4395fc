//! The sends of a segment, and the pages of it that the kernel may hold for good.
//!
//! Nothing reports when a part that went by reference without completions is no longer in flight. Its pages
//! are therefore *lent* for as long as the segment lives:
//!
//! ```text
//! sent as a copy ──► sent often enough ──► lent ──► last reference gone ──► quarantined ──► given back to the kernel
//!       (policy::loans)                     │                                (arena)           nonresident
//!                                           └── moved into a block, or resident again: never
//! ```
//!
//! The bytes of a lent page that were not sent may still be filled by a later input: the kernel refers to a
//! page, an offset and a length, and no reader goes beyond that.
//!
//! Both runs of pages are hulls: pages between two parts count as part of them. The error is on the safe
//! side: at worst a page is dropped needlessly.

use uncopy_core::addr::{PAGE_BYTES, Pages, SegmentPages, pages_up};
use uncopy_sys::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A run of pages that only grows, numbered from the segment's first page.
///
/// Relaxed ordering is enough: whoever adds holds a reference to the segment, and whoever acts on the run
/// has the last reference, or knows every other.
#[derive(Debug)]
struct Hull(AtomicU64);

impl Hull {
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    const fn unpack(word: u64) -> SegmentPages {
        SegmentPages::new((word >> 32) as u32, word as u32)
    }

    fn get(&self) -> SegmentPages {
        Self::unpack(self.0.load(Relaxed))
    }

    /// Adds pages; returns the number of pages that the hull has gained.
    fn add(&self, pages: SegmentPages) -> u32 {
        let mut word = self.0.load(Relaxed);
        loop {
            let old = Self::unpack(word);
            let hull = if old.is_empty() {
                pages
            } else {
                SegmentPages::new(old.start.min(pages.start), old.end.max(pages.end))
            };
            if hull == old || hull.is_empty() {
                return 0;
            }
            let new = u64::from(hull.start) << 32 | u64::from(hull.end);
            match self.0.compare_exchange(word, new, Relaxed, Relaxed) {
                Ok(_) => return hull.len() - old.len(),
                Err(other) => word = other,
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct SendHistory {
    lent: Hull,
    sent: Hull,
    sent_bytes: AtomicUsize,
}

const fn overlapped(offset_bytes: usize, len_bytes: usize) -> SegmentPages {
    SegmentPages::new((offset_bytes / PAGE_BYTES) as u32, pages_up(offset_bytes + len_bytes))
}

impl SendHistory {
    pub(crate) fn new() -> Self {
        Self { lent: Hull::new(), sent: Hull::new(), sent_bytes: AtomicUsize::new(0) }
    }

    /// Records a part that was sent.
    pub(crate) fn count(&self, offset_bytes: usize, len_bytes: usize) {
        self.sent.add(overlapped(offset_bytes, len_bytes));
        self.sent_bytes.fetch_add(len_bytes, Relaxed);
    }

    /// Whether a part has been sent. An estimate: everything sent of the segment counts as sent equally often.
    pub(crate) fn was_sent_before(&self, offset_bytes: usize, len_bytes: usize) -> bool {
        let (sent, part) = (self.sent.get(), overlapped(offset_bytes, len_bytes));
        // The first and the last page are seldom sent whole.
        let whole_bytes = (sent.len() as usize).saturating_sub(2) * PAGE_BYTES;
        let is_within = !sent.is_empty() && sent.intersection(part) == part;
        is_within && self.sent_bytes.load(Relaxed) >= whole_bytes.max(len_bytes)
    }

    /// Records that a part is about to be lent. Returns the number of pages that were not lent before.
    pub(crate) fn lend(&self, offset_bytes: usize, len_bytes: usize) -> u32 {
        self.lent.add(overlapped(offset_bytes, len_bytes))
    }

    /// The pages that may be in flight.
    pub(crate) fn lent(&self) -> SegmentPages {
        self.lent.get()
    }
}

/// Splits `pages` into the parts before, within and after the lent pages.
pub(crate) fn split<Origin: Copy>(pages: Pages<Origin>, lent: Pages<Origin>) -> [(Pages<Origin>, bool); 3] {
    let within = pages.intersection(lent);
    if within.is_empty() {
        let none = Pages::new(pages.end, pages.end);
        return [(pages, false), (none, true), (none, false)];
    }
    let before = Pages::new(pages.start, within.start);
    let after = Pages::new(within.end, pages.end);
    [(before, false), (within, true), (after, false)]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MESSAGE: usize = 20 * PAGE_BYTES;

    #[test]
    fn one_message_in_many_sends_counts_once() {
        let sends = SendHistory::new();
        let lead = 45;
        for step in 0..10 {
            let offset_bytes = lead + step * MESSAGE / 10;
            assert!(!sends.was_sent_before(offset_bytes, MESSAGE - step * MESSAGE / 10), "step {step}");
            sends.count(offset_bytes, MESSAGE / 10);
        }
        assert!(sends.was_sent_before(lead, MESSAGE));
        assert!(!sends.was_sent_before(lead, MESSAGE + PAGE_BYTES), "more than was ever sent");
    }

    #[test]
    fn lent_pages_only_grow_and_split_what_is_given_back() {
        let sends = SendHistory::new();
        assert!(sends.lent().is_empty());
        assert_eq!(sends.lend(5 * PAGE_BYTES + 1, PAGE_BYTES), 2);
        assert_eq!(sends.lend(5 * PAGE_BYTES, 10), 0);
        assert_eq!(sends.lend(2 * PAGE_BYTES, 1), 3);
        assert_eq!(sends.lent(), SegmentPages::new(2, 7));
        let lens =
            |start, end| split(SegmentPages::new(start, end), sends.lent()).map(|(part, _)| part.len());
        assert_eq!(lens(0, 10), [2, 5, 3]);
        assert_eq!(lens(3, 5), [0, 2, 0]);
        assert_eq!(lens(0, 4), [2, 2, 0]);
        assert_eq!(lens(8, 9), [1, 0, 0]);
        assert_eq!(lens(0, 2), [2, 0, 0]);
    }
}
