//! When bytes that are sent again and again go by reference: after so many sends as copies that these together
//! have cost what lending is going to cost (ski rental, as for moving pages out).
//!
//! What is lent without completions never comes back: its pages go back to the kernel and not to the reservoir,
//! so that the next segment needs fresh ones. That is paid once for a page, however often it is sent.

use super::costs::{Cost, SharedCosts};
use crate::addr::PAGE_BYTES;

/// Giving a page back that the kernel holds, ns: 11.5 µs for 128 pages (`madvise`, MADV_DONTNEED).
const DISCARD_NS: i64 = 90;
/// What the kernel's copy of a page costs beside the copying: the pages that it needs for it, and gives back.
const ROOM_NS: i64 = 60;
/// Sends as copies at most.
const MAX_SENDS: i64 = 4;

/// What giving `pages` pages back to the kernel costs, ns. Fresh ones are charged to the input that needs them.
#[must_use]
pub fn dropped_ns(pages: u32) -> i64 {
    i64::from(pages) * DISCARD_NS
}

/// What losing `pages` resident pages costs in all, ns.
#[must_use]
pub fn lost_ns(costs: &SharedCosts, pages: u32) -> i64 {
    i64::from(pages) * (costs.get(Cost::FillPage) + DISCARD_NS)
}

/// What sending `len_bytes` bytes by reference saves, ns, taken low: the calls that it takes are not among it.
#[must_use]
pub fn saved_ns(costs: &SharedCosts, len_bytes: usize) -> i64 {
    costs.copy_ns(len_bytes) + (len_bytes / PAGE_BYTES) as i64 * ROOM_NS
}

/// How often a part of `len_bytes` bytes is sent as a copy before it is lent; at least once, because most
/// of what is sent is sent once.
#[must_use]
pub fn sends_before(costs: &SharedCosts, len_bytes: usize) -> usize {
    let pages = u32::try_from(len_bytes / PAGE_BYTES).unwrap_or(u32::MAX);
    let saved_ns = saved_ns(costs, len_bytes).max(1);
    let sends = lost_ns(costs, pages) / saved_ns;
    usize::try_from(sends.clamp(1, MAX_SENDS)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Costs;

    #[test]
    fn what_is_sent_once_is_never_lent_and_what_is_sent_for_ever_soon_is() {
        let shared = SharedCosts::new();
        let mut costs = Costs::DEFAULT;
        for fill_ns in [50, 350, 3_000] {
            for copy_ns in [20, 100, 800] {
                costs.set(Cost::FillPage, fill_ns);
                costs.set(Cost::CopyHot, copy_ns);
                shared.adopt(&costs);
                for kib in [16, 64, 512, 4096] {
                    let sends = sends_before(&shared, kib << 10) as i64;
                    assert!((1..=MAX_SENDS).contains(&sends));
                }
            }
        }
    }

    #[test]
    fn dear_pages_are_lent_later_than_cheap_ones() {
        let shared = SharedCosts::new();
        let mut costs = Costs::DEFAULT;
        let mut after = |fill_ns| {
            costs.set(Cost::FillPage, fill_ns);
            shared.adopt(&costs);
            sends_before(&shared, 512 << 10)
        };
        let (cheap, dear) = (after(50), after(3_000));
        assert_eq!(cheap, 1);
        assert!(dear > cheap);
        // What copies have cost by then is about what lending costs, unless that is beyond the most.
        let sends = after(350) as i64;
        let spent_ns = sends * saved_ns(&shared, 512 << 10);
        assert!(spent_ns <= lost_ns(&shared, 128) && spent_ns * 2 > lost_ns(&shared, 128));
    }
}
