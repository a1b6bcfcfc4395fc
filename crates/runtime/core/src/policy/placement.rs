//! Placement of an allocation site's blocks: registered with userfaultfd from the start, or not.
//!
//! Blocks that never take part in I/O stay unregistered, so that their first touch is an ordinary kernel
//! fault and not one that our handler serves.

use core::sync::atomic::{AtomicI8, AtomicU64, Ordering::Relaxed};

/// Number of allocation sites that are told apart.
pub const ALLOCATION_SITES: usize = if cfg!(loom) { 16 } else { 512 };
const PROBES: usize = 4;
/// Maximum of a score; the minimum is its negative.
const MAX_SCORE: i8 = 8;

/// History of each allocation site's blocks, in a fixed table. A site that finds no slot shares one.
pub struct Placement {
    keys: [AtomicU64; ALLOCATION_SITES],
    scores: [AtomicI8; ALLOCATION_SITES],
}

impl Default for Placement {
    fn default() -> Self {
        Self::new()
    }
}

impl Placement {
    /// Returns a table without history.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            keys: [const { AtomicU64::new(0) }; ALLOCATION_SITES],
            scores: [const { AtomicI8::new(0) }; ALLOCATION_SITES],
        }
    }

    /// Returns the slot of an allocation site; `caller` is a return address in the program.
    #[must_use]
    pub fn site(&self, caller: usize, class_index: usize) -> u16 {
        // Never 0, which marks a free slot.
        let key = (caller as u64).wrapping_add((class_index as u64 + 1) << 56);
        let first = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % ALLOCATION_SITES;
        for probe in 0..PROBES {
            let index = (first + probe) % ALLOCATION_SITES;
            let stored = match self.keys[index].load(Relaxed) {
                0 => self.keys[index]
                    .compare_exchange(0, key, Relaxed, Relaxed)
                    .map_or_else(|found| found, |_| key),
                stored => stored,
            };
            if stored == key {
                return index as u16;
            }
        }
        first as u16
    }

    /// Whether the site's next block should be registered from the start.
    #[must_use]
    pub fn prefers_registered(&self, site: u16) -> bool {
        self.score(site) > 0
    }

    /// Whether none of the site's recent blocks held a view.
    #[must_use]
    pub fn holds_no_views(&self, site: u16) -> bool {
        self.score(site) == -MAX_SCORE
    }

    /// Returns the site's score: above 0 if most recent blocks held views.
    #[must_use]
    pub fn score(&self, site: u16) -> i8 {
        self.scores[usize::from(site) % ALLOCATION_SITES].load(Relaxed)
    }

    /// Returns the return address of an allocation site.
    #[must_use]
    pub fn caller(&self, site: u16, class_index: usize) -> usize {
        let key = self.keys[usize::from(site) % ALLOCATION_SITES].load(Relaxed);
        key.wrapping_sub((class_index as u64 + 1) << 56) as usize
    }

    /// Records whether a block held a view at any time before it was freed.
    pub fn record(&self, site: u16, held_a_view: bool) {
        let score = &self.scores[usize::from(site) % ALLOCATION_SITES];
        let old = score.load(Relaxed);
        let new = if held_a_view {
            old.saturating_add(2).min(MAX_SCORE)
        } else {
            old.saturating_sub(1).max(-MAX_SCORE)
        };
        if new != old {
            score.store(new, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_follows_what_blocks_did() {
        let placement = Placement::new();
        let site = placement.site(0x4000, 9);
        assert_ne!(site, placement.site(0x4000, 10));
        assert!(!placement.prefers_registered(site));
        placement.record(site, true);
        assert!(placement.prefers_registered(site));
        for _ in 0..4 {
            placement.record(site, false);
        }
        assert!(!placement.prefers_registered(site));
    }
}
