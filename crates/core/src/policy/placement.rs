//! Where the blocks of an allocation site are placed: with blocks that hold views or apart from them.
//!
//! Blocks that never take part in I/O stay unregistered, so that their first touch is an ordinary
//! kernel fault and not one that our handler serves.

use core::sync::atomic::{AtomicI8, AtomicU64, Ordering::Relaxed};

/// Allocation sites that are told apart.
pub const ALLOCATION_SITES: usize = if cfg!(loom) { 16 } else { 512 };
const PROBES: usize = 4;
/// Most and least of a score.
const MAX: i8 = 8;
/// Blocks whose edges are filled beforehand for each one at whose edge the program faulted.
const EDGES_FOR_A_FAULT: i8 = 32;

/// What the blocks of each allocation site did. A fixed table: a site that finds no place shares one.
pub struct Placement {
    keys: [AtomicU64; ALLOCATION_SITES],
    scores: [AtomicI8; ALLOCATION_SITES],
    /// Blocks whose first and last page are still to be filled beforehand.
    edges: [AtomicI8; ALLOCATION_SITES],
}

impl Default for Placement {
    fn default() -> Self {
        Self::new()
    }
}

impl Placement {
    /// No history.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            keys: [const { AtomicU64::new(0) }; ALLOCATION_SITES],
            scores: [const { AtomicI8::new(0) }; ALLOCATION_SITES],
            edges: [const { AtomicI8::new(0) }; ALLOCATION_SITES],
        }
    }

    /// The place of an allocation site; `caller` is a return address in the program.
    #[must_use]
    pub fn site(&self, caller: usize, class_index: usize) -> u16 {
        // Never 0, which is a place that nobody has.
        let key = (caller as u64).wrapping_add((class_index as u64 + 1) << 56);
        let first = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % ALLOCATION_SITES;
        for probe in 0..PROBES {
            let index = (first + probe) % ALLOCATION_SITES;
            let held = match self.keys[index].load(Relaxed) {
                0 => {
                    self.keys[index].compare_exchange(0, key, Relaxed, Relaxed).map_or_else(|is| is, |_| key)
                }
                held => held,
            };
            if held == key {
                return index as u16;
            }
        }
        first as u16
    }

    /// Whether this site's next block should be one that can hold views at once.
    #[must_use]
    pub fn prefers_registered(&self, site: u16) -> bool {
        self.score(site) > 0
    }

    /// Whether none of its last blocks, as far as is remembered, held a view.
    #[must_use]
    pub fn holds_no_views(&self, site: u16) -> bool {
        self.score(site) == -MAX
    }

    /// How far its blocks held views (above 0) or did not.
    #[must_use]
    pub fn score(&self, site: u16) -> i8 {
        self.scores[usize::from(site) % ALLOCATION_SITES].load(Relaxed)
    }

    /// The return address of an allocation site.
    #[must_use]
    pub fn caller(&self, site: u16, class_index: usize) -> usize {
        let key = self.keys[usize::from(site) % ALLOCATION_SITES].load(Relaxed);
        key.wrapping_sub((class_index as u64 + 1) << 56) as usize
    }

    /// Records whether a block held a view between its allocation and its release.
    pub fn record(&self, site: u16, held_a_view: bool) {
        let score = &self.scores[usize::from(site) % ALLOCATION_SITES];
        let old = score.load(Relaxed);
        let new = if held_a_view { old.saturating_add(2).min(MAX) } else { old.saturating_sub(1).max(-MAX) };
        if new != old {
            score.store(new, Relaxed);
        }
    }

    /// Takes note that the program touched the first or the last page of a block of this site, which was absent.
    pub fn touched_an_edge(&self, site: u16) {
        let edges = &self.edges[usize::from(site) % ALLOCATION_SITES];
        edges.store(edges.load(Relaxed).saturating_add(EDGES_FOR_A_FAULT), Relaxed);
    }

    /// Whether to fill the edges of this site's next block beforehand: a page costs a tenth of a fault. Now and
    /// then it says no, to see whether they are still touched.
    #[must_use]
    pub fn fills_edges(&self, site: u16) -> bool {
        let edges = &self.edges[usize::from(site) % ALLOCATION_SITES];
        let left = edges.load(Relaxed);
        if left > 0 {
            edges.store(left - 1, Relaxed);
        }
        left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_filled_while_now_and_then_one_is_touched() {
        let placement = Placement::new();
        let site = placement.site(0x4000, 9);
        assert!(!placement.fills_edges(site));
        placement.touched_an_edge(site);
        let filled = (0..1000).take_while(|_| placement.fills_edges(site)).count();
        assert_eq!(filled, EDGES_FOR_A_FAULT as usize);
        for _ in 0..100 {
            placement.touched_an_edge(site);
        }
        assert!((0..1000).take_while(|_| placement.fills_edges(site)).count() <= i8::MAX as usize);
    }

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
