//! The map of a block's pages: each is present, empty, or a view of a segment's bytes.
//!
//! Invariants (`is_valid`): runs are sorted, disjoint and not empty, and adjacent runs that could be one
//! are merged. A page that no run covers is *present*.
//!
//! `S` is the handle of a segment. The engine's handle counts references, so every operation that removes a
//! view passes the view's handle to the caller, who drops it where no lock is held.

extern crate alloc;
use crate::addr::{PAGE_BYTES, PageRange};
use alloc::boxed::Box;
use alloc::vec::Vec;

use smallvec::SmallVec;

/// Number of the call site that made a view. A fault on the view is charged to that site.
pub type SiteId = u16;

/// Target of a view: the bytes of `segment` from `offset_bytes` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View<S> {
    /// Segment with the bytes.
    pub segment: S,
    /// Offset in the segment of the view's first byte; it need not be page-aligned.
    pub offset_bytes: usize,
    /// Call site that made the view.
    pub site: SiteId,
}

impl<S: Clone> View<S> {
    /// Returns the view that begins `pages` pages later.
    fn skip(&self, pages: u32) -> Self {
        Self { offset_bytes: self.offset_bytes + pages as usize * PAGE_BYTES, ..self.clone() }
    }
}

/// A run of absent pages.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run<S> {
    pages: PageRange,
    /// Target of a view, or `None` for empty pages, which read as zeroes.
    view: Option<View<S>>,
}

impl<S: Clone> Run<S> {
    /// Returns the state of the run's pages from `start` on.
    fn state(&self, start: u32) -> State<S> {
        match &self.view {
            None => State::Empty,
            Some(view) => State::Viewed(view.skip(start - self.pages.start)),
        }
    }
}

/// State of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State<S> {
    /// Present: the kernel holds the page's bytes.
    Present,
    /// Absent, and reads as zeroes.
    Empty,
    /// Absent, and stands for a segment's bytes.
    Viewed(View<S>),
}

/// Handles of the views that an operation removed, to be dropped where no lock is held.
pub type Dropped<S> = SmallVec<[S; 6]>;

/// State of a page without its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// See [`State::Present`].
    Present,
    /// See [`State::Empty`].
    Empty,
    /// See [`State::Viewed`].
    Viewed,
}

type Chunk<S> = SmallVec<[Run<S>; 2]>;

/// Maximum number of runs in a chunk, which bounds what an insertion moves. A larger chunk is split.
const CHUNK_RUNS: usize = if cfg!(test) { 4 } else { 32 };
/// A chunk with fewer runs is merged with a neighbour if both together have at most half of `CHUNK_RUNS`.
const MIN_CHUNK_RUNS: usize = CHUNK_RUNS / 4;

/// The chunks after the first one. None is empty.
#[derive(Clone, Debug)]
struct Overflow<S> {
    /// First page of each chunk.
    starts: Vec<u32>,
    chunks: Vec<Chunk<S>>,
}

/// The map of a block's pages.
///
/// ```text
/// runs:      | run | run | … |     at most CHUNK_RUNS; all of them in most maps
/// overflow:  | run | … |  | run | … |  …    by first page: `starts`
/// ```
#[derive(Clone, Debug)]
pub struct PageMap<S> {
    /// The first chunk. A block in use usually has one or two runs, which need no heap memory.
    runs: Chunk<S>,
    overflow: Option<Box<Overflow<S>>>,
    views: usize,
    absent_pages: u32,
}

impl<S> Default for PageMap<S> {
    fn default() -> Self {
        Self { runs: SmallVec::new(), overflow: None, views: 0, absent_pages: 0 }
    }
}

/// Returns the index in `runs` of the first run that ends after `page`.
fn run_index<S>(runs: &[Run<S>], page: u32) -> usize {
    // A linear scan: the processor fetches the few runs in parallel. A binary search waits for one cache
    // line after the other whenever the branch predictor is wrong.
    runs.iter().map(|run| usize::from(run.pages.end <= page)).sum()
}

impl<S: Clone + PartialEq> PageMap<S> {
    /// Returns a map in which every page is present.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of views.
    #[must_use]
    pub fn views(&self) -> usize {
        self.views
    }

    /// Whether every page is present.
    #[must_use]
    pub fn is_all_present(&self) -> bool {
        self.absent_pages == 0
    }

    /// Returns the number of pages that are viewed or empty.
    #[must_use]
    pub fn absent_pages(&self) -> u32 {
        self.absent_pages
    }

    fn chunks(&self) -> usize {
        1 + self.overflow.as_ref().map_or(0, |overflow| overflow.chunks.len())
    }

    /// Returns a chunk by index, empty if there is none.
    fn chunk(&self, index: usize) -> &[Run<S>] {
        match (index.checked_sub(1), &self.overflow) {
            (None, _) => &self.runs,
            (Some(index), Some(overflow)) => overflow.chunks.get(index).map_or(&[], |chunk| chunk),
            (Some(_), None) => &[],
        }
    }

    fn chunk_mut(&mut self, index: usize) -> &mut Chunk<S> {
        match &mut self.overflow {
            Some(overflow) if index > 0 => &mut overflow.chunks[index - 1],
            _ => &mut self.runs,
        }
    }

    /// Returns the index of the chunk that `page` belongs to: the last one that begins at or before the page.
    fn chunk_of(&self, page: u32) -> usize {
        self.overflow.as_ref().map_or(0, |overflow| overflow.starts.partition_point(|start| *start <= page))
    }

    /// Returns the state of `page`, and the run of pages within `within` around it that share this state.
    ///
    /// `within` must contain `page`. A returned view begins at the first page of the returned range.
    #[must_use]
    pub fn at(&self, page: u32, within: PageRange) -> (PageRange, State<S>) {
        let chunk = self.chunk_of(page);
        let runs = self.chunk(chunk);
        let index = run_index(runs, page);
        if let Some(run) = runs.get(index).filter(|run| run.pages.start <= page) {
            let pages = run.pages.intersection(within);
            return (pages, run.state(pages.start));
        }
        let start = if index > 0 {
            runs[index - 1].pages.end
        } else {
            chunk.checked_sub(1).and_then(|chunk| self.chunk(chunk).last()).map_or(0, |run| run.pages.end)
        };
        let next = runs.get(index).or_else(|| self.chunk(chunk + 1).first());
        let end = next.map_or(u32::MAX, |run| run.pages.start);
        (PageRange::new(start, end).intersection(within), State::Present)
    }

    /// Calls `each` for the runs of equal state in `within`, in order, with `None` for present pages.
    fn walk<'a>(&'a self, within: PageRange, mut each: impl FnMut(PageRange, Option<&'a Run<S>>)) {
        let mut page = within.start;
        let mut chunk = self.chunk_of(page);
        let mut index = run_index(self.chunk(chunk), page);
        while page < within.end {
            let next = self.chunk(chunk).get(index);
            if next.is_none() && chunk + 1 < self.chunks() {
                chunk += 1;
                index = 0;
                continue;
            }
            let start = next.map_or(u32::MAX, |run| run.pages.start).min(within.end);
            if page < start {
                each(PageRange::new(page, start), None);
                page = start;
            }
            if let Some(run) = next.filter(|run| run.pages.start < within.end) {
                let pages = run.pages.intersection(within);
                each(pages, Some(run));
                page = pages.end;
                index += 1;
            }
        }
    }

    /// Returns the segment that `page` is a view of, and the offset in it of the page's first byte. The
    /// reference is the map's own: the handle is not cloned.
    #[must_use]
    pub fn target(&self, page: u32) -> Option<(&S, usize)> {
        let runs = self.chunk(self.chunk_of(page));
        let run = runs.get(run_index(runs, page)).filter(|run| run.pages.start <= page)?;
        let view = run.view.as_ref()?;
        Some((&view.segment, view.offset_bytes + (page - run.pages.start) as usize * PAGE_BYTES))
    }

    /// Calls `each` for the runs of equal state that make up `within`, in order.
    pub fn for_each(&self, within: PageRange, mut each: impl FnMut(PageRange, State<S>)) {
        self.walk(within, |pages, run| each(pages, run.map_or(State::Present, |run| run.state(pages.start))));
    }

    /// Calls `each` as [`PageMap::for_each`] does, with kinds only, so that no handle is cloned.
    pub fn for_each_kind(&self, within: PageRange, mut each: impl FnMut(PageRange, PageKind)) {
        self.walk(within, |pages, run| {
            let kind = match run {
                None => PageKind::Present,
                Some(Run { view: None, .. }) => PageKind::Empty,
                Some(_) => PageKind::Viewed,
            };
            each(pages, kind);
        });
    }

    /// Calls `each` for every view with its pages, in order.
    pub fn for_each_view(&self, mut each: impl FnMut(PageRange, &View<S>)) {
        for run in (0..self.chunks()).flat_map(|chunk| self.chunk(chunk)) {
            if let Some(view) = &run.view {
                each(run.pages, view);
            }
        }
    }

    /// Whether every page of `within` is present.
    #[must_use]
    pub fn is_present(&self, within: PageRange) -> bool {
        if within.is_empty() {
            return true;
        }
        let chunk = self.chunk_of(within.start);
        let runs = self.chunk(chunk);
        let next = runs.get(run_index(runs, within.start)).or_else(|| self.chunk(chunk + 1).first());
        next.is_none_or(|run| run.pages.start >= within.end)
    }

    /// Makes the pages `pages` present.
    pub fn set_present(&mut self, pages: PageRange, dropped: &mut Dropped<S>) {
        self.replace(pages, None, dropped);
        debug_assert!(self.is_valid());
    }

    /// Makes the pages `pages` empty.
    pub fn set_empty(&mut self, pages: PageRange, dropped: &mut Dropped<S>) {
        self.replace(pages, Some(Run { pages, view: None }), dropped);
        debug_assert!(self.is_valid());
    }

    /// Makes `pages` a view.
    pub fn set_viewed(&mut self, pages: PageRange, view: View<S>, dropped: &mut Dropped<S>) {
        self.replace(pages, Some(Run { pages, view: Some(view) }), dropped);
        debug_assert!(self.is_valid());
    }

    /// Makes every view empty, as when a block is freed.
    pub fn empty_all_views(&mut self, dropped: &mut Dropped<S>) {
        self.merge_chunks(0, self.chunks() - 1);
        for run in &mut self.runs {
            if let Some(view) = run.view.take() {
                dropped.push(view.segment);
            }
        }
        self.views = 0;
        self.runs.dedup_by(|next, run| {
            let can_merge = run.pages.end == next.pages.start;
            if can_merge {
                run.pages.end = next.pages.end;
            }
            can_merge
        });
        self.rebalance(0);
        debug_assert!(self.is_valid());
    }

    /// Replaces whatever covers `pages` with `run`, or makes the pages present.
    fn replace(&mut self, pages: PageRange, run: Option<Run<S>>, dropped: &mut Dropped<S>) {
        if pages.is_empty() {
            return;
        }
        let mut chunk = self.chunk_of(pages.start);
        let mut first = run_index(self.chunk(chunk), pages.start);
        if let Some(overflow) = &self.overflow {
            // Merge the chunks that hold the replaced runs and the run on either side.
            let following = overflow.starts[chunk..].iter().take_while(|start| **start <= pages.end).count();
            let before = usize::from(first == 0 && chunk > 0);
            if before + following > 0 {
                self.merge_chunks(chunk - before, chunk + following);
                chunk -= before;
                first = run_index(self.chunk(chunk), pages.start);
            }
        }
        let has_overflow = self.overflow.is_some();
        let (views, absent_pages) = (&mut self.views, &mut self.absent_pages);
        let runs = match &mut self.overflow {
            Some(overflow) if chunk > 0 => &mut overflow.chunks[chunk - 1],
            _ => &mut self.runs,
        };
        match (runs.get_mut(first), run) {
            // Fast paths: a buffer is reused for a message of the same size,
            (Some(old), Some(new)) if old.pages == pages => {
                *views += usize::from(new.view.is_some());
                if let Some(view) = core::mem::replace(&mut old.view, new.view) {
                    *views -= 1;
                    dropped.push(view.segment);
                }
            }
            // is used for the first time,
            (next, Some(new)) if next.as_ref().is_none_or(|next| next.pages.start >= pages.end) => {
                *views += usize::from(new.view.is_some());
                *absent_pages += pages.len();
                runs.insert(first, new);
            }
            // or becomes present again.
            (Some(old), None) if old.pages == pages => {
                *absent_pages -= pages.len();
                if let Some(view) = runs.remove(first).view {
                    *views -= 1;
                    dropped.push(view.segment);
                }
            }
            (_, run) => {
                let covered = runs[first..].iter().take_while(|run| run.pages.start < pages.end).count();
                let old = &runs[first..first + covered];
                // The parts of the first and last run that lie outside `pages`.
                let before = old.first().filter(|run| run.pages.start < pages.start).map(|run| Run {
                    pages: PageRange::new(run.pages.start, pages.start),
                    view: run.view.clone(),
                });
                let after = old.last().filter(|run| run.pages.end > pages.end).map(|run| Run {
                    pages: PageRange::new(pages.end, run.pages.end),
                    view: run.view.as_ref().map(|view| view.skip(pages.end - run.pages.start)),
                });
                let new_runs: SmallVec<[Run<S>; 3]> = [before, run, after].into_iter().flatten().collect();
                for run in &new_runs {
                    *views += usize::from(run.view.is_some());
                    *absent_pages += run.pages.len();
                }
                for old in runs.drain(first..first + covered) {
                    *absent_pages -= old.pages.len();
                    if let Some(view) = old.view {
                        *views -= 1;
                        dropped.push(view.segment);
                    }
                }
                runs.insert_many(first, new_runs);
            }
        }
        Self::merge_around(runs, first, views, dropped);
        if runs.len() > CHUNK_RUNS || runs.len() < MIN_CHUNK_RUNS && has_overflow {
            self.rebalance(chunk);
        } else if first == 0 {
            self.update_start(chunk);
        }
    }

    /// Merges the runs next to `index`: at most the three just written and one on either side.
    fn merge_around(runs: &mut Chunk<S>, index: usize, views: &mut usize, dropped: &mut Dropped<S>) {
        let mut at = index.saturating_sub(1);
        for _ in 0..4 {
            let Some([left, right]) =
                runs.get(at..at + 2).and_then(|pair| <&[Run<S>; 2]>::try_from(pair).ok())
            else {
                return;
            };
            if !Self::can_merge(left, right) {
                at += 1;
                continue;
            }
            let right = runs.remove(at + 1);
            runs[at].pages.end = right.pages.end;
            if let Some(view) = right.view {
                *views -= 1;
                dropped.push(view.segment);
            }
        }
    }

    fn can_merge(left: &Run<S>, right: &Run<S>) -> bool {
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

    fn merge_chunks(&mut self, first: usize, last: usize) {
        let Some(overflow) = &mut self.overflow else { return };
        if first >= last {
            return;
        }
        overflow.starts.drain(first..last);
        let mut merged =
            core::mem::take(if first == 0 { &mut self.runs } else { &mut overflow.chunks[first - 1] });
        for mut chunk in overflow.chunks.drain(first..last) {
            merged.append(&mut chunk);
        }
        *self.chunk_mut(first) = merged;
        if self.chunks() == 1 {
            self.overflow = None;
        }
    }

    /// Merges or splits a chunk whose number of runs has changed, and updates its start.
    fn rebalance(&mut self, chunk: usize) {
        let runs = self.chunk(chunk).len();
        if runs < MIN_CHUNK_RUNS && self.overflow.is_some() {
            let fits_with = |other: usize| self.chunk(other).len() + runs <= CHUNK_RUNS / 2;
            if runs == 0 || chunk + 1 < self.chunks() && fits_with(chunk + 1) {
                // An empty last chunk is merged with the one before it.
                let first = if chunk + 1 < self.chunks() { chunk } else { chunk - 1 };
                self.merge_chunks(first, first + 1);
                return self.update_start(first);
            } else if chunk > 0 && fits_with(chunk - 1) {
                return self.merge_chunks(chunk - 1, chunk);
            }
        }
        self.update_start(chunk);
        if runs <= CHUNK_RUNS {
            return;
        }
        // Split from the end, so that each run moves once.
        let parts = runs.div_ceil(CHUNK_RUNS / 2 + 1);
        for part in (1..parts).rev() {
            let tail: Chunk<S> = self.chunk_mut(chunk).drain(runs * part / parts..).collect();
            let Some(start) = tail.first().map(|run| run.pages.start) else { continue };
            let overflow = self
                .overflow
                .get_or_insert_with(|| Box::new(Overflow { starts: Vec::new(), chunks: Vec::new() }));
            overflow.starts.insert(chunk, start);
            overflow.chunks.insert(chunk, tail);
        }
    }

    fn update_start(&mut self, chunk: usize) {
        if let (Some(overflow), Some(index)) = (&mut self.overflow, chunk.checked_sub(1))
            && let Some(run) = overflow.chunks[index].first()
        {
            overflow.starts[index] = run.pages.start;
        }
    }

    /// Whether the invariants hold.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let chunks = || (0..self.chunks()).map(|chunk| self.chunk(chunk));
        let runs = || chunks().flatten();
        let overflow = self.overflow.as_ref();
        runs().all(|run| !run.pages.is_empty())
            && runs()
                .zip(runs().skip(1))
                .all(|(run, next)| run.pages.end <= next.pages.start && !Self::can_merge(run, next))
            && self.views == runs().filter(|run| run.view.is_some()).count()
            && self.absent_pages == runs().map(|run| run.pages.len()).sum::<u32>()
            && chunks().all(|chunk| chunk.len() <= CHUNK_RUNS && (!chunk.is_empty() || overflow.is_none()))
            && overflow.is_none_or(|overflow| {
                let starts = overflow.chunks.iter().filter_map(|chunk| Some(chunk.first()?.pages.start));
                !overflow.chunks.is_empty() && starts.eq(overflow.starts.iter().copied())
            })
    }
}

#[cfg(test)]
mod tests;
