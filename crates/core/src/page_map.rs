//! The map of one block's pages: which are views of what, which are empty, which are present.
//!
//! Invariants (`is_valid`): runs are sorted, non-empty and disjoint; neighbours that could be one
//! run are one. A page that no run covers is *present*. So each page is exactly one of present,
//! viewed, empty.
//!
//! `S` is the handle of a segment; the engine's counts references, so every operation that makes
//! a view disappear hands its handle to the caller, who drops it where no lock is held.

use crate::addr::{PAGE_BYTES, PageRange};

use smallvec::SmallVec;

/// Number of the call site that made a view: who is charged when it is touched.
pub type SiteId = u16;

/// A view's target: the bytes of `segment` from `offset_bytes` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View<S> {
    /// The segment.
    pub segment: S,
    /// Offset in the segment of the view's first byte. Any value: it need not be page-aligned.
    pub offset_bytes: usize,
    /// Who made the view.
    pub site: SiteId,
}

impl<S: Clone> View<S> {
    /// The view of what follows after `pages` pages.
    fn skip(&self, pages: u32) -> Self {
        Self { offset_bytes: self.offset_bytes + pages as usize * PAGE_BYTES, ..self.clone() }
    }
}

/// A run of pages that are deliberately absent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run<S> {
    pages: PageRange,
    /// `None`: empty; reads as zeroes.
    view: Option<View<S>>,
}

/// What a page is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State<S> {
    /// The kernel holds the page's bytes.
    Present,
    /// Absent; reads as zeroes.
    Empty,
    /// Absent; stands for a segment's bytes.
    Viewed(View<S>),
}

/// Handles of views that an operation removed. Drop it where no lock is held.
pub type Dropped<S> = SmallVec<[S; 6]>;

/// The map of a block's pages.
#[derive(Clone, Debug)]
pub struct PageMap<S> {
    /// A block in use usually has one run, or two: those need no memory of their own.
    runs: SmallVec<[Run<S>; 2]>,
    views: usize,
}

impl<S> Default for PageMap<S> {
    fn default() -> Self {
        Self { runs: SmallVec::new(), views: 0 }
    }
}

impl<S: Clone + PartialEq> PageMap<S> {
    /// A map in which every page is present.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of views.
    #[must_use]
    pub fn views(&self) -> usize {
        self.views
    }

    /// Whether every page is present.
    #[must_use]
    pub fn is_all_present(&self) -> bool {
        self.runs.is_empty()
    }

    /// Pages that are viewed or empty.
    #[must_use]
    pub fn absent_pages(&self) -> u32 {
        self.runs.iter().map(|run| run.pages.len()).sum()
    }

    /// Index of the first run that ends after `page`.
    fn position(&self, page: u32) -> usize {
        // Most maps hold a handful of runs, where a scan beats a binary search.
        if self.runs.len() <= 8 {
            self.runs.iter().take_while(|run| run.pages.end <= page).count()
        } else {
            self.runs.partition_point(|run| run.pages.end <= page)
        }
    }

    /// The state of `page` and the run of pages around it, within `within`, that continue it.
    ///
    /// `within` must contain `page`. A viewed run's view begins at the returned range's first page.
    #[must_use]
    pub fn at(&self, page: u32, within: PageRange) -> (PageRange, State<S>) {
        let index = self.position(page);
        match self.runs.get(index) {
            Some(run) if run.pages.start <= page => {
                let pages = run.pages.intersection(within);
                let state = match &run.view {
                    None => State::Empty,
                    Some(view) => State::Viewed(view.skip(pages.start - run.pages.start)),
                };
                (pages, state)
            }
            next => {
                let start = if index == 0 { 0 } else { self.runs[index - 1].pages.end };
                let end = next.map_or(u32::MAX, |run| run.pages.start);
                (PageRange::new(start, end).intersection(within), State::Present)
            }
        }
    }

    /// The segment that a page is a view of, and the offset in it of the page's first byte. The reference
    /// is the map's own: none is counted.
    #[must_use]
    pub fn target(&self, page: u32) -> Option<(&S, usize)> {
        let run = self.runs.get(self.position(page)).filter(|run| run.pages.start <= page)?;
        let view = run.view.as_ref()?;
        Some((&view.segment, view.offset_bytes + (page - run.pages.start) as usize * PAGE_BYTES))
    }

    /// Calls `each` for the runs of equal state that make up `within`, in order.
    pub fn for_each(&self, within: PageRange, mut each: impl FnMut(PageRange, State<S>)) {
        let mut page = within.start;
        while page < within.end {
            let (pages, state) = self.at(page, PageRange::new(page, within.end));
            each(pages, state);
            page = pages.end;
        }
    }

    /// Whether every page of `within` is present.
    #[must_use]
    pub fn is_present(&self, within: PageRange) -> bool {
        within.is_empty()
            || self.runs.get(self.position(within.start)).is_none_or(|run| run.pages.start >= within.end)
    }

    /// Makes `pages` present.
    pub fn set_present(&mut self, pages: PageRange, dropped: &mut Dropped<S>) {
        self.replace(pages, None, dropped);
        debug_assert!(self.is_valid());
    }

    /// Makes `pages` empty.
    pub fn set_empty(&mut self, pages: PageRange, dropped: &mut Dropped<S>) {
        self.replace(pages, Some(Run { pages, view: None }), dropped);
        debug_assert!(self.is_valid());
    }

    /// Makes `pages` a view.
    pub fn set_viewed(&mut self, pages: PageRange, view: View<S>, dropped: &mut Dropped<S>) {
        self.replace(pages, Some(Run { pages, view: Some(view) }), dropped);
        debug_assert!(self.is_valid());
    }

    /// Makes every view empty: what happens to a block's pages when it is freed.
    pub fn empty_all_views(&mut self, dropped: &mut Dropped<S>) {
        for run in &mut self.runs {
            if let Some(view) = run.view.take() {
                dropped.push(view.segment);
            }
        }
        self.views = 0;
        self.runs.dedup_by(|next, run| {
            let joins = run.pages.end == next.pages.start;
            if joins {
                run.pages.end = next.pages.end;
            }
            joins
        });
        debug_assert!(self.is_valid());
    }

    /// Puts `run` (or presence) in place of whatever covers `pages`.
    fn replace(&mut self, pages: PageRange, run: Option<Run<S>>, dropped: &mut Dropped<S>) {
        if pages.is_empty() {
            return;
        }
        let first = self.position(pages.start);
        // The usual case: a buffer is used again for a message of the same size.
        if let (Some(old), Some(new)) = (self.runs.get_mut(first), &run)
            && old.pages == pages
            && old.view.is_some()
            && new.view.is_some()
        {
            let replaced = core::mem::replace(&mut old.view, run.and_then(|run| run.view));
            dropped.extend(replaced.map(|view| view.segment));
            self.join_around(first, dropped);
            return;
        }
        let mut last = first;
        while self.runs.get(last).is_some_and(|run| run.pages.start < pages.end) {
            last += 1;
        }
        // What is left of the runs at both ends.
        let before = self.runs[first..last]
            .first()
            .filter(|run| run.pages.start < pages.start)
            .map(|run| Run { pages: PageRange::new(run.pages.start, pages.start), view: run.view.clone() });
        let after = self.runs[first..last].last().filter(|run| run.pages.end > pages.end).map(|run| Run {
            pages: PageRange::new(pages.end, run.pages.end),
            view: run.view.as_ref().map(|view| view.skip(pages.end - run.pages.start)),
        });
        let fresh: SmallVec<[Run<S>; 3]> = [before, run, after].into_iter().flatten().collect();
        self.views += fresh.iter().filter(|run| run.view.is_some()).count();
        for old in self.runs.drain(first..last) {
            if let Some(view) = old.view {
                self.views -= 1;
                dropped.push(view.segment);
            }
        }
        self.runs.insert_many(first, fresh);
        self.join_around(first, dropped);
    }

    /// Joins the runs next to `index` (at most the three just written and one on either side).
    fn join_around(&mut self, index: usize, dropped: &mut Dropped<S>) {
        let mut at = index.saturating_sub(1);
        for _ in 0..4 {
            let Some([left, right]) =
                self.runs.get(at..at + 2).and_then(|pair| <&[Run<S>; 2]>::try_from(pair).ok())
            else {
                return;
            };
            if !Self::joins(left, right) {
                at += 1;
                continue;
            }
            let right = self.runs.remove(at + 1);
            self.runs[at].pages.end = right.pages.end;
            if let Some(view) = right.view {
                self.views -= 1;
                dropped.push(view.segment);
            }
        }
    }

    fn joins(left: &Run<S>, right: &Run<S>) -> bool {
        left.pages.end == right.pages.start
            && match (&left.view, &right.view) {
                (None, None) => true,
                (Some(view), Some(next)) => {
                    view.segment == next.segment
                        && view.site == next.site
                        && view.offset_bytes + left.pages.len_bytes() == next.offset_bytes
                }
                _ => false,
            }
    }

    /// Whether the invariants hold.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.runs.iter().all(|run| !run.pages.is_empty())
            && self
                .runs
                .windows(2)
                .all(|pair| pair[0].pages.end <= pair[1].pages.start && !Self::joins(&pair[0], &pair[1]))
            && self.views == self.runs.iter().filter(|run| run.view.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: u32 = 24;

    #[derive(Clone, Debug)]
    enum Operation {
        Present(PageRange),
        Empty(PageRange),
        View(PageRange, u8, usize, SiteId),
        FreeAll,
    }

    fn range() -> impl Strategy<Value = PageRange> {
        (0..PAGES, 0..=PAGES).prop_map(|(a, b)| PageRange::new(a.min(b), a.max(b)))
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            range().prop_map(Operation::Present),
            range().prop_map(Operation::Empty),
            (range(), 0u8..3, 0usize..3, 0u16..2).prop_map(|(pages, segment, offset, site)| Operation::View(
                pages,
                segment,
                offset * 45,
                site
            )),
            Just(Operation::FreeAll),
        ]
    }

    proptest! {
        #[test]
        fn random_operations_agree_with_one_state_per_page(operations in prop::collection::vec(operation(), 1..60)) {
            let mut map = PageMap::new();
            let mut model: Vec<State<u8>> = (0..PAGES).map(|_| State::Present).collect();
            for operation in operations {
                let before = map.views();
                let mut dropped = Dropped::new();
                let mut added = 0;
                match operation {
                    Operation::Present(pages) => {
                        map.set_present(pages, &mut dropped);
                        for page in pages.start..pages.end { model[page as usize] = State::Present; }
                    }
                    Operation::Empty(pages) => {
                        map.set_empty(pages, &mut dropped);
                        for page in pages.start..pages.end { model[page as usize] = State::Empty; }
                    }
                    Operation::View(pages, segment, offset_bytes, site) => {
                        let view = View { segment, offset_bytes, site };
                        map.set_viewed(pages, view.clone(), &mut dropped);
                        added = usize::from(!pages.is_empty());
                        for page in pages.start..pages.end {
                            model[page as usize] = State::Viewed(view.skip(page - pages.start));
                        }
                    }
                    Operation::FreeAll => {
                        map.empty_all_views(&mut dropped);
                        for state in &mut model {
                            if matches!(state, State::Viewed(_)) { *state = State::Empty; }
                        }
                    }
                }
                prop_assert!(map.is_valid());
                // Each removed view hands over its handle; a split clones one more.
                prop_assert!(dropped.len() <= before + added + 2);
                let mut pages_seen = 0;
                map.for_each(PageRange::new(0, PAGES), |pages, state| {
                    for page in pages.start..pages.end {
                        let expected = &model[page as usize];
                        let got = match &state {
                            State::Viewed(view) => State::Viewed(view.skip(page - pages.start)),
                            other => other.clone(),
                        };
                        assert_eq!(&got, expected, "page {page}");
                        pages_seen += 1;
                    }
                });
                prop_assert_eq!(pages_seen, PAGES);
                for page in 0..PAGES {
                    let expected = match &model[page as usize] {
                        State::Viewed(view) => Some((&view.segment, view.offset_bytes)),
                        _ => None,
                    };
                    prop_assert_eq!(map.target(page), expected);
                    let one = PageRange::new(page, page + 1);
                    prop_assert_eq!(map.is_present(one), model[page as usize] == State::Present);
                }
                let absent = model.iter().filter(|state| **state != State::Present).count();
                prop_assert_eq!(map.absent_pages() as usize, absent);
            }
        }

        #[test]
        fn references_equal_views(operations in prop::collection::vec(operation(), 1..60)) {
            use std::sync::Arc;
            let segments: Vec<Arc<u8>> = (0..3).map(Arc::new).collect();
            let mut map = PageMap::new();
            for operation in operations {
                let mut dropped = Dropped::new();
                match operation {
                    Operation::Present(pages) => map.set_present(pages, &mut dropped),
                    Operation::Empty(pages) => map.set_empty(pages, &mut dropped),
                    Operation::View(pages, segment, offset_bytes, site) => {
                        let segment = Arc::clone(&segments[usize::from(segment)]);
                        map.set_viewed(pages, View { segment, offset_bytes, site }, &mut dropped);
                    }
                    Operation::FreeAll => map.empty_all_views(&mut dropped),
                }
                drop(dropped);
                let references: usize = segments.iter().map(|segment| Arc::strong_count(segment) - 1).sum();
                prop_assert_eq!(references, map.views());
            }
        }
    }

    #[test]
    fn a_touch_in_the_middle_splits_a_view() {
        let mut map = PageMap::new();
        let mut dropped = Dropped::new();
        map.set_viewed(PageRange::new(2, 10), View { segment: 'a', offset_bytes: 45, site: 0 }, &mut dropped);
        map.set_present(PageRange::new(5, 6), &mut dropped);
        assert_eq!(map.views(), 2);
        let (pages, state) = map.at(7, PageRange::new(0, 12));
        assert_eq!(pages, PageRange::new(6, 10));
        assert_eq!(state, State::Viewed(View { segment: 'a', offset_bytes: 45 + 4 * PAGE_BYTES, site: 0 }));
    }
}
