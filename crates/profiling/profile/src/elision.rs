//! Effect that uncopy would have on a call, by the engine's own rules (`uncopy_core`): whole pages of the
//! destination become views of received bytes, unless copying these pages costs no more than tracking them.
//! Whether the program later touches elided bytes is unknown in a recording without samples.

use crate::memory::Found;
use uncopy_core::addr::{ByteRange, PAGE_BYTES};
use uncopy_core::policy::{Costs, SharedCosts};

/// Default minimum size of calls that the library handles, in bytes.
pub const MIN_SIZE_BYTES: u64 = 16 << 10;
const PAGE: u64 = PAGE_BYTES as u64;

/// Effect that uncopy would have had on a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The copy would have been elided.
    Elide {
        /// Bytes that would not be copied.
        elided_bytes: u64,
        /// Number of views made.
        views: u64,
    },
    /// The bytes were received, but too few are in whole pages.
    TooSmall,
    /// The bytes were not received, or not into a view.
    OwnBytes,
    /// The destination is shared or file-backed memory, which cannot hold views.
    Shared,
}

impl Effect {
    /// Returns the number of bytes that would not have been copied.
    #[must_use]
    pub const fn elided_bytes(&self) -> u64 {
        match self {
            Self::Elide { elided_bytes, .. } => *elided_bytes,
            Self::TooSmall | Self::OwnBytes | Self::Shared => 0,
        }
    }
}

/// The engine's rules with the costs of one machine.
pub struct Elision {
    costs: SharedCosts,
    /// Start and end of mappings that cannot hold views, sorted.
    shared: Vec<(u64, u64)>,
}

impl Elision {
    /// Creates the rules for these costs.
    #[must_use]
    pub fn new(costs: &Costs) -> Self {
        let shared = SharedCosts::new();
        shared.adopt(costs);
        Self { costs: shared, shared: Vec::new() }
    }

    /// Sets the mappings that cannot hold views, as start and end of each.
    pub fn set_shared(&mut self, mut ranges: Vec<(u64, u64)>) {
        ranges.sort_unstable();
        self.shared = ranges;
    }

    fn is_shared(&self, address: u64) -> bool {
        let after = self.shared.partition_point(|(start, _)| *start <= address);
        self.shared[..after].last().is_some_and(|(_, end)| address < *end)
    }

    /// True if copying `bytes` bytes costs more than tracking them.
    fn is_worthwhile(&self, bytes: u64) -> bool {
        usize::try_from(bytes).is_ok_and(|bytes| self.costs.copy_ns(bytes) > self.costs.track_ns())
    }

    /// True if an input to `to` would make a view.
    #[must_use]
    pub fn makes_view(&self, to: u64, len_bytes: u64) -> bool {
        let is_large = len_bytes >= MIN_SIZE_BYTES && whole_pages(to, len_bytes) > PAGE;
        is_large && self.is_worthwhile(len_bytes) && !self.is_shared(to)
    }

    /// Returns the effect on a copy to `to`, where `found` are the known contents of the source.
    #[must_use]
    pub fn effect_of_copy(&self, to: u64, len_bytes: u64, found: &[Found]) -> Effect {
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
            Effect::OwnBytes
        } else if self.is_shared(to) {
            Effect::Shared
        } else if len_bytes >= MIN_SIZE_BYTES && self.is_worthwhile(elidable_bytes) {
            Effect::Elide { elided_bytes: elidable_bytes, views }
        } else {
            Effect::TooSmall
        }
    }
}

/// Returns the size of the whole pages within a range.
fn whole_pages(start: u64, len_bytes: u64) -> u64 {
    let lead = start % PAGE;
    match (usize::try_from(lead), usize::try_from(len_bytes)) {
        // The engine's copy plan counts pages of a block in 32 bits.
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
        assert!(rules.makes_view(0x1010, 256 << 10));
        assert!(!rules.makes_view(0x1010, 16 << 10), "what it could save is less than the account costs");
        let all = rules.effect_of_copy(0x1000, 256 << 10, &[view(0, 256 << 10, true)]);
        assert_eq!(all, Effect::Elide { elided_bytes: 256 << 10, views: 1 });
        let shifted = rules.effect_of_copy(
            0x1010,
            256 << 10,
            &[view(0, 100 << 10, true), view(100 << 10, 156 << 10, true)],
        );
        assert_eq!(shifted, Effect::Elide { elided_bytes: 252 << 10, views: 1 });
        let apart = rules.effect_of_copy(
            0x1000,
            256 << 10,
            &[view(0, 120 << 10, true), view(136 << 10, 120 << 10, true)],
        );
        assert_eq!(apart, Effect::Elide { elided_bytes: 240 << 10, views: 2 });
    }

    #[test]
    fn shared_memory_holds_no_views() {
        let mut rules = Elision::new(&Costs::DEFAULT);
        rules.set_shared(vec![(0x90_0000, 0xA0_0000), (0x10_0000, 0x20_0000)]);
        let source = [view(0, 256 << 10, true)];
        for (to, is_shared) in [(0xF_0000, false), (0x10_0000, true), (0x20_0000, false), (0x98_0000, true)] {
            let expected =
                if is_shared { Effect::Shared } else { Effect::Elide { elided_bytes: 256 << 10, views: 1 } };
            assert_eq!(rules.effect_of_copy(to, 256 << 10, &source), expected, "{to:#x}");
            assert_eq!(rules.makes_view(to, 256 << 10), !is_shared, "{to:#x}");
        }
    }

    #[test]
    fn the_rest_is_told_apart() {
        let rules = Elision::new(&Costs::DEFAULT);
        assert_eq!(rules.effect_of_copy(0x1000, 256 << 10, &[]), Effect::OwnBytes);
        assert_eq!(rules.effect_of_copy(0x1000, 16 << 10, &[view(0, 16 << 10, true)]), Effect::TooSmall);
        assert_eq!(rules.effect_of_copy(0x1000, 256 << 10, &[view(0, 256 << 10, false)]), Effect::TooSmall);
        assert_eq!(rules.effect_of_copy(u64::MAX, u64::MAX, &[]), Effect::OwnBytes);
    }
}
