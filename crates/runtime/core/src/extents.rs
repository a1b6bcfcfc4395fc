//! Free extents of the arena: runs of free pages, allocated best fit and merged when freed.
//!
//! Invariant (`is_valid`): extents are disjoint, not adjacent, not empty, and the same in both indexes.

extern crate alloc;
use crate::addr::ArenaPages;
use alloc::collections::{BTreeMap, BTreeSet};

/// A set of runs of free pages, indexed by start and by length.
#[derive(Clone, Debug, Default)]
pub struct Extents {
    by_start: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
    pages: usize,
}

impl Extents {
    /// Returns a set without free pages.
    #[must_use]
    pub const fn new() -> Self {
        Self { by_start: BTreeMap::new(), by_len: BTreeSet::new(), pages: 0 }
    }

    /// Returns the number of free pages.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.pages
    }

    /// Returns the length of the longest extent, pages.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.by_len.last().map_or(0, |(len, _)| *len)
    }

    /// Adds `pages`, none of which may be free already, and merges them with adjacent extents.
    pub fn insert(&mut self, pages: ArenaPages) {
        if pages.is_empty() {
            return;
        }
        self.pages += pages.len() as usize;
        let mut joined = pages;
        if let Some((&start, &end)) = self.by_start.range(..=pages.start).next_back() {
            debug_assert!(end <= pages.start, "page freed twice");
            if end == pages.start {
                self.remove_extent(ArenaPages::new(start, end));
                joined.start = start;
            }
        }
        if let Some(&end) = self.by_start.get(&pages.end) {
            self.remove_extent(ArenaPages::new(pages.end, end));
            joined.end = end;
        }
        self.by_start.insert(joined.start, joined.end);
        self.by_len.insert((joined.len(), joined.start));
        debug_assert!(
            self.by_start.range(..joined.start).next_back().is_none_or(|(_, end)| *end < joined.start)
        );
    }

    fn remove_extent(&mut self, pages: ArenaPages) {
        self.by_start.remove(&pages.start);
        self.by_len.remove(&(pages.len(), pages.start));
    }

    /// Takes `len` pages from the shortest extent that has them; `None` if there is none.
    pub fn take(&mut self, len: u32) -> Option<ArenaPages> {
        let &(found_len, start) = self.by_len.range((len, 0)..).next()?;
        Some(self.carve(ArenaPages::new(start, start + found_len), len))
    }

    /// Takes the longest extent, or the first `at_most` pages of it.
    pub fn take_longest(&mut self, at_most: u32) -> Option<ArenaPages> {
        let &(found_len, start) = self.by_len.last()?;
        Some(self.carve(ArenaPages::new(start, start + found_len), found_len.min(at_most)))
    }

    /// Takes the shortest extent if it has fewer than `below` pages.
    pub fn take_shortest(&mut self, below: u32) -> Option<ArenaPages> {
        let &(len, start) = self.by_len.first().filter(|(len, _)| *len < below)?;
        Some(self.carve(ArenaPages::new(start, start + len), len))
    }

    /// Iterates over the extents from the longest to the shortest.
    pub fn longest_first(&self) -> impl Iterator<Item = ArenaPages> {
        self.by_len.iter().rev().map(|&(len, start)| ArenaPages::new(start, start + len))
    }

    /// Returns the extent that begins at `page`.
    #[must_use]
    pub fn starting_at(&self, page: u32) -> Option<ArenaPages> {
        self.by_start.get(&page).map(|&end| ArenaPages::new(page, end))
    }

    /// Returns the extent whose last page is the one before `page`.
    #[must_use]
    pub fn ending_at(&self, page: u32) -> Option<ArenaPages> {
        let (&start, &end) = self.by_start.range(..page).next_back()?;
        (end == page).then_some(ArenaPages::new(start, end))
    }

    /// Takes the pages `part` from the extent `extent`.
    ///
    /// # Panics
    /// If `extent` is not an extent of the set or does not contain `part`, in builds with debug assertions.
    pub fn take_part(&mut self, extent: ArenaPages, part: ArenaPages) {
        debug_assert!(self.by_start.get(&extent.start) == Some(&extent.end), "no such extent");
        debug_assert!(!part.is_empty() && part.intersection(extent) == part, "outside the extent");
        self.remove_extent(extent);
        for rest in [ArenaPages::new(extent.start, part.start), ArenaPages::new(part.end, extent.end)] {
            if !rest.is_empty() {
                self.by_start.insert(rest.start, rest.end);
                self.by_len.insert((rest.len(), rest.start));
            }
        }
        self.pages -= part.len() as usize;
    }

    /// Takes the first `len` pages of an extent.
    fn carve(&mut self, extent: ArenaPages, len: u32) -> ArenaPages {
        let taken = ArenaPages::new(extent.start, extent.start + len);
        self.take_part(extent, taken);
        taken
    }

    /// Whether the invariants hold.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let mut previous_end = None;
        let mut pages = 0;
        for (&start, &end) in &self.by_start {
            if start >= end || previous_end.is_some_and(|previous| previous >= start) {
                return false;
            }
            if !self.by_len.contains(&(end - start, start)) {
                return false;
            }
            pages += (end - start) as usize;
            previous_end = Some(end);
        }
        pages == self.pages && self.by_start.len() == self.by_len.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    extern crate std;

    proptest! {
        #[test]
        fn pages_are_handed_out_once_and_come_back(steps in prop::collection::vec((any::<bool>(), 1u32..20, any::<prop::sample::Index>()), 1..120)) {
            const PAGES: u32 = 200;
            let mut extents = Extents::new();
            extents.insert(ArenaPages::new(0, PAGES));
            let mut held: Vec<ArenaPages> = Vec::new();
            for (take, len, which) in steps {
                if take {
                    let free_run = extents.longest();
                    match extents.take(len) {
                        Some(pages) => {
                            prop_assert_eq!(pages.len(), len);
                            prop_assert!(held.iter().all(|other| other.intersection(pages).is_empty()));
                            held.push(pages);
                        }
                        None => prop_assert!(free_run < len),
                    }
                } else if !held.is_empty() {
                    let pages = held.swap_remove(which.index(held.len()));
                    extents.insert(pages);
                }
                prop_assert!(extents.is_valid());
                let held_pages: u32 = held.iter().map(|pages| pages.len()).sum();
                prop_assert_eq!(extents.pages() + held_pages as usize, PAGES as usize);
            }
            for pages in held { extents.insert(pages); }
            prop_assert_eq!(extents.longest(), PAGES);
        }
    }

    #[test]
    fn neighbours_are_found_and_parts_taken() {
        let mut extents = Extents::new();
        extents.insert(ArenaPages::new(10, 20));
        extents.insert(ArenaPages::new(30, 60));
        assert_eq!(extents.starting_at(10), Some(ArenaPages::new(10, 20)));
        assert_eq!((extents.starting_at(11), extents.ending_at(19)), (None, None));
        assert_eq!(extents.ending_at(20), Some(ArenaPages::new(10, 20)));
        assert!(extents.longest_first().map(|extent| extent.start).eq([30, 10]));
        for part in [ArenaPages::new(30, 32), ArenaPages::new(58, 60), ArenaPages::new(40, 41)] {
            let extent = extents.longest_first().find(|extent| part.intersection(*extent) == part);
            extents.take_part(extent.expect("there"), part);
            assert!(extents.is_valid());
        }
        assert!(extents.longest_first().map(|extent| (extent.start, extent.end)).eq([
            (41, 58),
            (10, 20),
            (32, 40)
        ]));
    }

    #[test]
    fn the_shortest_extent_that_fits_is_used() {
        let mut extents = Extents::new();
        extents.insert(ArenaPages::new(0, 100));
        extents.insert(ArenaPages::new(200, 210));
        assert_eq!(extents.take(10), Some(ArenaPages::new(200, 210)));
        assert_eq!(extents.take_longest(4), Some(ArenaPages::new(0, 4)));
        assert_eq!(extents.take(97), None);
        assert_eq!(extents.take_shortest(96), None);
        assert_eq!(extents.take_shortest(97), Some(ArenaPages::new(4, 100)));
    }
}
