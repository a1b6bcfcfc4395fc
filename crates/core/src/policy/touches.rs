//! Which pages of a site's buffers the program touches anyway: headers, trailers, checksummed prefixes.
//!
//! A touched view costs a fault (microseconds); copying its page beforehand costs a tenth of one. So pages
//! that a site's buffers regularly have touched are learned, by their position from the start of the buffer
//! and from its end, and copied; the rest is elided.
//!
//! ```text
//! position from the start:   0  1  2  3 …                      the last POSITIONS pages
//! buffer:                  | H | C | C |   …   |   |   |   …   | T |
//! position from the end:                                 … 2  1  0
//! ```
//!
//! Each position has a score. A touch raises it, time lowers it; at [`LEARNED`] the page is copied. What is
//! copied does not fault, so nothing tells whether it is still touched: now and then a call elides it all the
//! same, after lowering the scores. That is done ever more rarely while the touches go on.

use crate::addr::PageRange;
use crate::page_map::SiteId;
use crate::policy::sites::SITES;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use smallvec::SmallVec;

/// Pages at each end of a buffer that can be learned.
pub const POSITIONS: u32 = 64;
/// What a touch adds to a score.
const TOUCH: u8 = 4;
/// A page with this score is copied.
const LEARNED: u8 = 8;
/// Most of a score.
const MAX: u8 = 16;
/// Eliding calls after which the scores of pages that are not learned are halved: what is touched in fewer than
/// about one call in so many is not learned. A fault costs as much as copying 40 to 120 pages.
const FADES: u32 = 32;
/// Calls until learned pages are tried again, at first.
const TRIED: u32 = 256;
/// How often that number doubles at most.
const MAX_DOUBLINGS: u32 = 6;
/// Gaps of so many pages between learned ones are copied with them.
const GAP: u32 = 2;

/// Pages of a buffer, by position: bit 0 is the first page, or the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// From the start.
    pub head: u64,
    /// From the end.
    pub tail: u64,
}

/// Runs of pages.
pub type Runs = SmallVec<[PageRange; 4]>;

impl Learned {
    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.head == 0 && self.tail == 0
    }

    /// Whether the page at this position of a buffer is among them.
    fn has(self, from_start: u32, from_end: u32) -> bool {
        let bit = |mask: u64, at: u32| at < POSITIONS && mask >> at & 1 != 0;
        bit(self.head, from_start) || bit(self.tail, from_end)
    }

    /// The runs of learned pages in `pages`, which belong to a buffer that touches `buffer`. Short gaps are
    /// closed: a view of a page or two costs more than it saves.
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
                // Nothing between the two ends is ever learned.
                page = (buffer.end - POSITIONS).min(pages.end);
                continue;
            }
            if self.has(from_start, from_end) {
                match runs.last_mut() {
                    Some(last) if page - last.end <= GAP => last.end = page + 1,
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
    /// Calls since learned pages were last tried.
    calls: AtomicU32,
    doublings: AtomicU32,
    scores: [[AtomicU8; POSITIONS as usize]; 2],
}

/// What is known of every site. Threads that learn at once may lose a touch.
pub struct Touches {
    sites: [Site; SITES],
}

impl Default for Touches {
    fn default() -> Self {
        Self::new()
    }
}

impl Touches {
    /// Nothing.
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

    fn at(&self, site: SiteId) -> &Site {
        &self.sites[usize::from(site) % SITES]
    }

    /// What has been learned, whatever the next call does.
    #[must_use]
    pub fn learned(&self, site: SiteId) -> Learned {
        let site = self.at(site);
        Learned { head: site.head.load(Relaxed), tail: site.tail.load(Relaxed) }
    }

    /// The pages that the next call is to copy. Each call brings the moment nearer at which none are, to see
    /// whether they are still touched.
    #[must_use]
    pub fn to_copy(&self, site: SiteId) -> Learned {
        let at = self.at(site);
        let calls = at.calls.load(Relaxed).wrapping_add(1);
        at.calls.store(calls, Relaxed);
        let learned = self.learned(site);
        if calls.is_multiple_of(FADES) {
            at.fade();
        }
        let doublings = at.doublings.load(Relaxed).min(MAX_DOUBLINGS);
        if learned.is_empty() || calls < TRIED << doublings {
            return learned;
        }
        at.calls.store(0, Relaxed);
        at.doublings.store((doublings + 1).min(MAX_DOUBLINGS), Relaxed);
        at.doubt();
        Learned::default()
    }

    /// Takes note that `pages` of a buffer that touches `buffer` were put in place because the program
    /// touched them.
    pub fn record(&self, site: SiteId, buffer: PageRange, pages: PageRange) {
        let at = self.at(site);
        for page in pages.intersection(buffer).start..pages.intersection(buffer).end {
            at.touch(0, page - buffer.start);
            at.touch(1, buffer.end - 1 - page);
        }
    }
}

impl Site {
    fn mask(&self, end: usize) -> &AtomicU64 {
        if end == 0 { &self.head } else { &self.tail }
    }

    fn touch(&self, end: usize, position: u32) {
        let Some(score) = self.scores[end].get(position as usize) else { return };
        let new = score.load(Relaxed).saturating_add(TOUCH);
        if new < LEARNED {
            score.store(new, Relaxed);
            return;
        }
        score.store(MAX, Relaxed);
        let bit = 1 << position;
        if self.mask(end).fetch_or(bit, Relaxed) & bit == 0 {
            // What is touched has changed: look again soon.
            self.doublings.store(0, Relaxed);
        }
    }

    /// Halves the scores of what is not learned.
    fn fade(&self) {
        for score in self.scores.iter().flatten() {
            let old = score.load(Relaxed);
            if old != 0 && old < LEARNED {
                score.store(old / 2, Relaxed);
            }
        }
    }

    /// Lowers the scores of what is learned, as far as forgetting it.
    fn doubt(&self) {
        for (end, scores) in self.scores.iter().enumerate() {
            let mut kept = 0;
            for (position, score) in scores.iter().enumerate() {
                let old = score.load(Relaxed);
                if old >= LEARNED {
                    score.store(old - TOUCH, Relaxed);
                    kept |= u64::from(old - TOUCH >= LEARNED) << position;
                }
            }
            self.mask(end).store(kept, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: SiteId = 7;
    const BUFFER: PageRange = PageRange::new(10, 210);

    /// Calls that touch `pages`, unless they are copied; returns how many faults that made.
    fn calls(touches: &Touches, count: u32, pages: &[u32]) -> u32 {
        let mut faults = 0;
        for _ in 0..count {
            let copied = touches.to_copy(SITE).runs(BUFFER, BUFFER);
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
        // Of a shorter buffer the same ends.
        let short = PageRange::new(0, 20);
        let runs = touches.learned(SITE).runs(short, short);
        assert_eq!(runs.as_slice(), [PageRange::new(0, 2), PageRange::new(19, 20)]);
        assert!(touches.learned(SITE + 1).is_empty());
    }

    #[test]
    fn what_is_no_longer_touched_is_forgotten() {
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
