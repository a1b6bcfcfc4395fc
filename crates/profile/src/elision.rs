//! What uncopy would do with a call: the rules of the engine, applied to what a recording says.
//!
//! The rules are the engine's own (`uncopy_core`): whole pages of the destination become views of what was received,
//! and a call is left alone where copying those pages costs no more than keeping account of them. Whether a
//! program then touches what was elided, a recording without samples does not tell.

use crate::memory::Found;
use uncopy_core::addr::{ByteRange, PAGE_BYTES};
use uncopy_core::policy::{Costs, SharedCosts};

/// The smallest size that the library looks at unless it is told otherwise, bytes.
pub const MIN_SIZE_BYTES: u64 = 16 << 10;
const PAGE: u64 = PAGE_BYTES as u64;

/// What a copy would have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Would {
    /// So many bytes would not have been copied, by so many views.
    Elide {
        /// Bytes.
        elided_bytes: u64,
        /// Views.
        views: u64,
    },
    /// Received bytes, but too few of them in whole pages to pay.
    TooSmall,
    /// Not received, or not into a view.
    OwnBytes,
    /// Into memory that others share or that a file backs, which can hold no views.
    Shared,
}

impl Would {
    /// Bytes that would not have been copied.
    #[must_use]
    pub const fn elided_bytes(&self) -> u64 {
        match self {
            Self::Elide { elided_bytes, .. } => *elided_bytes,
            Self::TooSmall | Self::OwnBytes | Self::Shared => 0,
        }
    }
}

/// The rules, with the costs of one machine.
pub struct Elision {
    costs: SharedCosts,
    /// Start and end of the mappings that can hold no views, in order.
    shared: Vec<(u64, u64)>,
}

impl Elision {
    /// With these costs.
    #[must_use]
    pub fn new(costs: &Costs) -> Self {
        let shared = SharedCosts::new();
        shared.adopt(costs);
        Self { costs: shared, shared: Vec::new() }
    }

    /// Says which mappings can hold no views: start and end of each.
    pub fn set_shared(&mut self, mut ranges: Vec<(u64, u64)>) {
        ranges.sort_unstable();
        self.shared = ranges;
    }

    fn is_shared(&self, address: u64) -> bool {
        let after = self.shared.partition_point(|(start, _)| *start <= address);
        self.shared[..after].last().is_some_and(|(_, end)| address < *end)
    }

    /// Whether copying so many bytes costs more than keeping account of them.
    fn pays(&self, bytes: u64) -> bool {
        usize::try_from(bytes).is_ok_and(|bytes| self.costs.copy_ns(bytes) > self.costs.track_ns())
    }

    /// Whether what an input puts at `to` would be a view.
    #[must_use]
    pub fn input(&self, to: u64, len_bytes: u64) -> bool {
        let is_large = len_bytes >= MIN_SIZE_BYTES && whole_pages(to, len_bytes) > PAGE;
        is_large && self.pays(len_bytes) && !self.is_shared(to)
    }

    /// What a copy to `to` would be, `found` being what lies at its source.
    #[must_use]
    pub fn copy(&self, to: u64, len_bytes: u64, found: &[Found]) -> Would {
        let (mut elidable_bytes, mut views) = (0, 0);
        let mut run: Option<(u64, u64)> = None;
        let mut finish = |run: Option<(u64, u64)>| {
            let bytes = run.map_or(0, |(start, end)| whole_pages(to.saturating_add(start), end - start));
            elidable_bytes += bytes;
            views += u64::from(bytes > 0);
        };
        for (at, len, content) in found.iter().filter(|(_, _, content)| content.is_view) {
            debug_assert!(content.is_received, "a view of what was never received");
            run = match run {
                Some((start, end)) if end == *at => Some((start, at + len)),
                before => {
                    finish(before);
                    Some((*at, at + len))
                }
            };
        }
        finish(run);
        let received_bytes: u64 =
            found.iter().filter(|(_, _, content)| content.is_received).map(|(_, len, _)| len).sum();
        if received_bytes * 2 < len_bytes.min(MIN_SIZE_BYTES) {
            Would::OwnBytes
        } else if self.is_shared(to) {
            Would::Shared
        } else if len_bytes >= MIN_SIZE_BYTES && self.pays(elidable_bytes) {
            Would::Elide { elided_bytes: elidable_bytes, views }
        } else {
            Would::TooSmall
        }
    }
}

/// Bytes of the pages that lie wholly within a range.
fn whole_pages(start: u64, len_bytes: u64) -> u64 {
    let lead = start % PAGE;
    match (usize::try_from(lead), usize::try_from(len_bytes)) {
        // The plan of the engine counts pages of a block in 32 bits.
        (Ok(lead), Ok(len)) if len < 1 << 40 => ByteRange::at(lead, len).whole_pages().len_bytes() as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Content;

    fn view(at: u64, len: u64, is_view: bool) -> Found {
        let content = Content { operation: 0, offset: at, step: 0, is_received: true, is_view, site: 0 };
        (at, len, content)
    }

    #[test]
    fn whole_pages_of_what_was_received_are_elided() {
        let rules = Elision::new(&Costs::DEFAULT);
        assert!(rules.input(0x1010, 256 << 10));
        assert!(!rules.input(0x1010, 16 << 10), "what it could save is less than the account costs");
        let all = rules.copy(0x1000, 256 << 10, &[view(0, 256 << 10, true)]);
        assert_eq!(all, Would::Elide { elided_bytes: 256 << 10, views: 1 });
        let shifted =
            rules.copy(0x1010, 256 << 10, &[view(0, 100 << 10, true), view(100 << 10, 156 << 10, true)]);
        assert_eq!(shifted, Would::Elide { elided_bytes: 252 << 10, views: 1 });
        let apart =
            rules.copy(0x1000, 256 << 10, &[view(0, 120 << 10, true), view(136 << 10, 120 << 10, true)]);
        assert_eq!(apart, Would::Elide { elided_bytes: 240 << 10, views: 2 });
    }

    #[test]
    fn shared_memory_holds_no_views() {
        let mut rules = Elision::new(&Costs::DEFAULT);
        rules.set_shared(vec![(0x90_0000, 0xA0_0000), (0x10_0000, 0x20_0000)]);
        let source = [view(0, 256 << 10, true)];
        for (to, is_shared) in [(0xF_0000, false), (0x10_0000, true), (0x20_0000, false), (0x98_0000, true)] {
            let expected =
                if is_shared { Would::Shared } else { Would::Elide { elided_bytes: 256 << 10, views: 1 } };
            assert_eq!(rules.copy(to, 256 << 10, &source), expected, "{to:#x}");
            assert_eq!(rules.input(to, 256 << 10), !is_shared, "{to:#x}");
        }
    }

    #[test]
    fn the_rest_is_told_apart() {
        let rules = Elision::new(&Costs::DEFAULT);
        assert_eq!(rules.copy(0x1000, 256 << 10, &[]), Would::OwnBytes);
        assert_eq!(rules.copy(0x1000, 16 << 10, &[view(0, 16 << 10, true)]), Would::TooSmall);
        assert_eq!(rules.copy(0x1000, 256 << 10, &[view(0, 256 << 10, false)]), Would::TooSmall);
        assert_eq!(rules.copy(u64::MAX, u64::MAX, &[]), Would::OwnBytes);
    }
}
