//! Pages of a site's buffers that the program touches: headers, trailers, checksummed prefixes.
//!
//! A touch of a viewed page costs a fault: 4.2 to 12.4 µs. Copying the page in advance costs 0.1 µs if it is
//! cached, 0.45 µs from memory (docs/design/policy.md#costs). So a fault costs as much as copying 10 to 120
//! pages. Pages that are often touched are learned, by distance from the start and the end of the buffer, and
//! copied.
//!
//! ```text
//! position from the start:   0  1  2  3 …                      the last POSITIONS pages
//! buffer:                  | H | C | C |   …   |   |   |   …   | T |
//! position from the end:                                 … 2  1  0
//!
//! H: header, C: checksummed prefix, T: trailer
//! ```
//!
//! Each position has a score, which touches raise and calls lower. At [`LEARNED_SCORE`] the page is copied. A
//! copied page does not fault, so from time to time a call lowers the scores and elides the page after all.
//! The intervals grow while the touches go on.

use crate::addr::PageRange;
use crate::page_map::SiteId;
use crate::policy::sites::SITES;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use smallvec::SmallVec;

/// Number of pages at each end of a buffer that can be learned: at most 64, the bits of a mask.
pub const POSITIONS: u32 = 64;
const _: () = assert!(POSITIONS <= u64::BITS);
/// Increment of a score for a touch.
const TOUCH_SCORE: u8 = 4;
/// Score from which a page is copied.
const LEARNED_SCORE: u8 = 8;
const MAX_SCORE: u8 = 16;
/// Number of calls after which scores below [`LEARNED_SCORE`] are halved, so that pages touched in fewer calls
/// than about one in this many are not learned: copying them in every call would cost about as much as the faults.
const FADE_CALLS: u32 = 32;
/// Number of calls until learned pages are elided for a test, at first.
const TEST_CALLS: u32 = 256;
/// Maximum number of doublings of that interval.
const MAX_DOUBLINGS: u32 = 6;
/// Longest gap between learned pages that is copied with them, pages.
const MAX_GAP_PAGES: u32 = 2;

/// Learned pages of a buffer, by position: bit 0 is the first or the last page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// Pages counted from the start.
    pub head: u64,
    /// Pages counted from the end.
    pub tail: u64,
}

/// Page ranges: inline room for 4, no limit.
pub type Runs = SmallVec<[PageRange; 4]>;

impl Learned {
    /// Whether no page is learned.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.head == 0 && self.tail == 0
    }

    /// Whether the page at these distances from start and end is learned.
    fn contains(self, from_start: u32, from_end: u32) -> bool {
        let bit = |mask: u64, position: u32| position < POSITIONS && mask >> position & 1 != 0;
        bit(self.head, from_start) || bit(self.tail, from_end)
    }

    /// Returns the runs of learned pages in `pages`, which belong to a buffer that overlaps the pages `buffer`.
    /// Short gaps are closed, because a view of one or two pages costs more than it saves.
    #[must_use]
    pub fn runs(self, buffer: PageRange, pages: PageRange) -> Runs {
        let mut runs = Runs::new();
        if self.is_empty() {
            return runs;
        }
        let mut page = pages.start;
        while page < pages.end {
            let (from_start, from_end) = (page - buffer.start, buffer.end - 1 - page);
            if from_start >= POSITIONS && from_end >= POSITIONS {
                // Nothing between the two ends is learned.
                page = (buffer.end - POSITIONS).min(pages.end);
                continue;
            }
            if self.contains(from_start, from_end) {
                match runs.last_mut() {
                    Some(last) if page - last.end <= MAX_GAP_PAGES => last.end = page + 1,
                    _ => runs.push(PageRange::new(page, page + 1)),
                }
            }
            page += 1;
        }
        runs
    }
}

struct Site {
    head: AtomicU64,
    tail: AtomicU64,
    /// Number of calls since learned pages were last elided for a test.
    calls: AtomicU32,
    doublings: AtomicU32,
    scores: [[AtomicU8; POSITIONS as usize]; 2],
}

/// Learned pages of all sites. A touch may be lost if two threads learn at once.
pub struct Touches {
    sites: [Site; SITES],
}

impl Default for Touches {
    fn default() -> Self {
        Self::new()
    }
}

impl Touches {
    /// Returns a table without learned pages.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sites: [const {
                Site {
                    head: AtomicU64::new(0),
                    tail: AtomicU64::new(0),
                    calls: AtomicU32::new(0),
                    doublings: AtomicU32::new(0),
                    scores: [const { [const { AtomicU8::new(0) }; POSITIONS as usize] }; 2],
                }
            }; SITES],
        }
    }

    fn slot(&self, site: SiteId) -> &Site {
        &self.sites[usize::from(site) % SITES]
    }

    /// Returns the learned pages.
    #[must_use]
    pub fn learned(&self, site: SiteId) -> Learned {
        let site = self.slot(site);
        Learned { head: site.head.load(Relaxed), tail: site.tail.load(Relaxed) }
    }

    /// Counts a call and returns the pages that it must copy: none if it is time for a test.
    #[must_use]
    pub fn begin_call(&self, site: SiteId) -> Learned {
        let slot = self.slot(site);
        let calls = slot.calls.load(Relaxed).wrapping_add(1);
        slot.calls.store(calls, Relaxed);
        let learned = self.learned(site);
        if calls.is_multiple_of(FADE_CALLS) {
            slot.fade();
        }
        let doublings = slot.doublings.load(Relaxed).min(MAX_DOUBLINGS);
        if learned.is_empty() || calls < TEST_CALLS << doublings {
            return learned;
        }
        slot.calls.store(0, Relaxed);
        slot.doublings.store((doublings + 1).min(MAX_DOUBLINGS), Relaxed);
        slot.lower_learned();
        Learned::default()
    }

    /// Records that `pages`, of a buffer that overlaps the pages `buffer`, were put in place because of faults.
    pub fn record(&self, site: SiteId, buffer: PageRange, pages: PageRange) {
        let slot = self.slot(site);
        for page in pages.intersection(buffer).start..pages.intersection(buffer).end {
            slot.touch(0, page - buffer.start);
            slot.touch(1, buffer.end - 1 - page);
        }
    }
}

impl Site {
    fn mask(&self, end: usize) -> &AtomicU64 {
        if end == 0 { &self.head } else { &self.tail }
    }

    fn touch(&self, end: usize, position: u32) {
        let Some(score) = self.scores[end].get(position as usize) else { return };
        let new = score.load(Relaxed).saturating_add(TOUCH_SCORE);
        if new < LEARNED_SCORE {
            score.store(new, Relaxed);
            return;
        }
        score.store(MAX_SCORE, Relaxed);
        let bit = 1 << position;
        if self.mask(end).fetch_or(bit, Relaxed) & bit == 0 {
            // A newly touched position: test again soon.
            self.doublings.store(0, Relaxed);
        }
    }

    /// Halves the scores of positions that are not learned.
    fn fade(&self) {
        for score in self.scores.iter().flatten() {
            let old = score.load(Relaxed);
            if old != 0 && old < LEARNED_SCORE {
                score.store(old / 2, Relaxed);
            }
        }
    }

    /// Lowers the scores of learned positions, some of which are then forgotten.
    fn lower_learned(&self) {
        for (end, scores) in self.scores.iter().enumerate() {
            let mut learned = 0;
            for (position, score) in scores.iter().enumerate() {
                let old = score.load(Relaxed);
                if old >= LEARNED_SCORE {
                    score.store(old - TOUCH_SCORE, Relaxed);
                    learned |= u64::from(old - TOUCH_SCORE >= LEARNED_SCORE) << position;
                }
            }
            self.mask(end).store(learned, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: SiteId = 7;
    const BUFFER: PageRange = PageRange::new(10, 210);

    /// Makes calls that touch `pages`, and returns the number of faults on pages that were not copied.
    fn calls(touches: &Touches, count: u32, pages: &[u32]) -> u32 {
        let mut faults = 0;
        for _ in 0..count {
            let copied = touches.begin_call(SITE).runs(BUFFER, BUFFER);
            for page in pages {
                if !copied.iter().any(|run| run.start <= *page && *page < run.end) {
                    faults += 1;
                    touches.record(SITE, BUFFER, PageRange::new(*page, page + 1));
                }
            }
        }
        faults
    }

    #[test]
    fn headers_and_trailers_are_learned_and_rarely_tried_again() {
        let touches = Touches::new();
        let faults = calls(&touches, 10_000, &[10, 11, 209]);
        assert!(faults < 3 * 20, "{faults}");
        let runs = touches.learned(SITE).runs(BUFFER, BUFFER);
        assert_eq!(runs.as_slice(), [PageRange::new(10, 12), PageRange::new(209, 210)]);
        // The same ends are learned for a shorter buffer.
        let short = PageRange::new(0, 20);
        let runs = touches.learned(SITE).runs(short, short);
        assert_eq!(runs.as_slice(), [PageRange::new(0, 2), PageRange::new(19, 20)]);
        assert!(touches.learned(SITE + 1).is_empty());
    }

    #[test]
    fn pages_no_longer_touched_are_forgotten() {
        let touches = Touches::new();
        calls(&touches, 1_000, &[10]);
        assert!(!touches.learned(SITE).is_empty());
        calls(&touches, 100_000, &[]);
        assert!(touches.learned(SITE).is_empty());
    }

    #[test]
    fn rare_touches_and_the_middle_of_long_buffers_are_not_learned() {
        let touches = Touches::new();
        for _ in 0..100 {
            calls(&touches, 99, &[]);
            calls(&touches, 1, &[12]);
        }
        calls(&touches, 1_000, &[100]);
        assert!(touches.learned(SITE).is_empty());
    }

    #[test]
    fn short_gaps_are_copied_and_only_the_asked_pages_are_returned() {
        let learned = Learned { head: 0b1_0010_1001, tail: 0 };
        let runs = learned.runs(BUFFER, BUFFER);
        assert_eq!(runs.as_slice(), [PageRange::new(10, 19)]);
        let runs = learned.runs(BUFFER, PageRange::new(12, 14));
        assert_eq!(runs.as_slice(), [PageRange::new(13, 14)]);
        assert!(learned.runs(BUFFER, PageRange::new(150, 210)).is_empty());
    }
}
