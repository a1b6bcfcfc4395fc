//! The map of one block's pages: which are views of what, which are empty, which are present.
//!
//! Invariants (`is_valid`): runs are sorted, non-empty and disjoint; neighbours that could be one
//! run are one. A page that no run covers is *present*. So each page is exactly one of present,
//! viewed, empty.
//!
//! `S` is the handle of a segment; the engine's counts references, so every operation that makes
//! a view disappear hands its handle to the caller, who drops it where no lock is held.

extern crate alloc;
use crate::addr::{PAGE_BYTES, PageRange};
use alloc::boxed::Box;
use alloc::vec::Vec;

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

impl<S: Clone> Run<S> {
    /// The state of the run's pages from `start` on.
    fn state(&self, start: u32) -> State<S> {
        match &self.view {
            None => State::Empty,
            Some(view) => State::Viewed(view.skip(start - self.pages.start)),
        }
    }
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

/// What a page is, without what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// See [`State::Present`].
    Present,
    /// See [`State::Empty`].
    Empty,
    /// See [`State::Viewed`].
    Viewed,
}

/// Some of a map's runs, in order.
type Chunk<S> = SmallVec<[Run<S>; 2]>;

/// Runs of one chunk at most: what an insertion moves. A larger chunk becomes two of half as many.
const CHUNK_RUNS: usize = if cfg!(test) { 4 } else { 32 };
/// A chunk that shrinks below this joins a neighbour, if both together are no larger than half a chunk.
const MIN_CHUNK_RUNS: usize = CHUNK_RUNS / 4;

/// The chunks of a map behind the first; none is empty.
#[derive(Clone, Debug)]
struct More<S> {
    /// Each chunk's first page.
    starts: Vec<u32>,
    chunks: Vec<Chunk<S>>,
}

/// The map of a block's pages.
///
/// ```text
/// runs:  | run | run | … |     at most CHUNK_RUNS; all of them in most maps
/// more:  | run | … |  | run | … |  …    by first page: `starts`
/// ```
#[derive(Clone, Debug)]
pub struct PageMap<S> {
    /// The first chunk. A block in use usually has one run, or two: those need no memory of their own.
    runs: Chunk<S>,
    more: Option<Box<More<S>>>,
    views: usize,
    absent_pages: u32,
}

impl<S> Default for PageMap<S> {
    fn default() -> Self {
        Self { runs: SmallVec::new(), more: None, views: 0, absent_pages: 0 }
    }
}

/// Index in `runs` of the first run that ends after `page`.
fn position<S>(runs: &[Run<S>], page: u32) -> usize {
    // All of them, of which there are few: the processor fetches them side by side. A binary search waits for
    // one cache line after the other, each time it guesses wrong.
    runs.iter().map(|run| usize::from(run.pages.end <= page)).sum()
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
        self.absent_pages == 0
    }

    /// Pages that are viewed or empty.
    #[must_use]
    pub fn absent_pages(&self) -> u32 {
        self.absent_pages
    }

    fn chunks(&self) -> usize {
        1 + self.more.as_ref().map_or(0, |more| more.chunks.len())
    }

    /// A chunk by its index; empty if there is none.
    fn chunk(&self, index: usize) -> &[Run<S>] {
        match (index.checked_sub(1), &self.more) {
            (None, _) => &self.runs,
            (Some(index), Some(more)) => more.chunks.get(index).map_or(&[], |chunk| chunk),
            (Some(_), None) => &[],
        }
    }

    fn chunk_mut(&mut self, index: usize) -> &mut Chunk<S> {
        match &mut self.more {
            Some(more) if index > 0 => &mut more.chunks[index - 1],
            _ => &mut self.runs,
        }
    }

    /// Index of the chunk that `page` belongs to: the last one that does not begin after it.
    fn chunk_of(&self, page: u32) -> usize {
        self.more.as_ref().map_or(0, |more| more.starts.partition_point(|start| *start <= page))
    }

    /// The state of `page` and the run of pages around it, within `within`, that continue it.
    ///
    /// `within` must contain `page`. A viewed run's view begins at the returned range's first page.
    #[must_use]
    pub fn at(&self, page: u32, within: PageRange) -> (PageRange, State<S>) {
        let chunk = self.chunk_of(page);
        let runs = self.chunk(chunk);
        let index = position(runs, page);
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

    /// Calls `each` for the runs of equal state that make up `within`, in order; for the present ones with
    /// `None`.
    fn walk<'a>(&'a self, within: PageRange, mut each: impl FnMut(PageRange, Option<&'a Run<S>>)) {
        let mut page = within.start;
        let mut chunk = self.chunk_of(page);
        let mut index = position(self.chunk(chunk), page);
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

    /// The segment that a page is a view of, and the offset in it of the page's first byte. The reference
    /// is the map's own: none is counted.
    #[must_use]
    pub fn target(&self, page: u32) -> Option<(&S, usize)> {
        let runs = self.chunk(self.chunk_of(page));
        let run = runs.get(position(runs, page)).filter(|run| run.pages.start <= page)?;
        let view = run.view.as_ref()?;
        Some((&view.segment, view.offset_bytes + (page - run.pages.start) as usize * PAGE_BYTES))
    }

    /// Calls `each` for the runs of equal state that make up `within`, in order.
    pub fn for_each(&self, within: PageRange, mut each: impl FnMut(PageRange, State<S>)) {
        self.walk(within, |pages, run| each(pages, run.map_or(State::Present, |run| run.state(pages.start))));
    }

    /// The same without the views' targets, which would have to be counted.
    pub fn for_each_kind(&self, within: PageRange, mut each: impl FnMut(PageRange, Kind)) {
        self.walk(within, |pages, run| {
            let kind = match run {
                None => Kind::Present,
                Some(Run { view: None, .. }) => Kind::Empty,
                Some(_) => Kind::Viewed,
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
        let next = runs.get(position(runs, within.start)).or_else(|| self.chunk(chunk + 1).first());
        next.is_none_or(|run| run.pages.start >= within.end)
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
        self.join_chunks(0, self.chunks() - 1);
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
        self.tidy(0);
        debug_assert!(self.is_valid());
    }

    /// Puts `run` (or presence) in place of whatever covers `pages`.
    fn replace(&mut self, pages: PageRange, run: Option<Run<S>>, dropped: &mut Dropped<S>) {
        if pages.is_empty() {
            return;
        }
        let mut chunk = self.chunk_of(pages.start);
        let mut first = position(self.chunk(chunk), pages.start);
        if let Some(more) = &self.more {
            // The chunks that hold what is replaced and the runs on either side of it become one.
            let behind = more.starts[chunk..].iter().take_while(|start| **start <= pages.end).count();
            let before = usize::from(first == 0 && chunk > 0);
            if before + behind > 0 {
                self.join_chunks(chunk - before, chunk + behind);
                chunk -= before;
                first = position(self.chunk(chunk), pages.start);
            }
        }
        let has_more = self.more.is_some();
        let (views, absent_pages) = (&mut self.views, &mut self.absent_pages);
        let runs = match &mut self.more {
            Some(more) if chunk > 0 => &mut more.chunks[chunk - 1],
            _ => &mut self.runs,
        };
        match (runs.get_mut(first), run) {
            // The usual cases: a buffer is used again for a message of the same size,
            (Some(old), Some(new)) if old.pages == pages => {
                *views += usize::from(new.view.is_some());
                if let Some(view) = core::mem::replace(&mut old.view, new.view) {
                    *views -= 1;
                    dropped.push(view.segment);
                }
            }
            // for the first time,
            (next, Some(new)) if next.as_ref().is_none_or(|next| next.pages.start >= pages.end) => {
                *views += usize::from(new.view.is_some());
                *absent_pages += pages.len();
                runs.insert(first, new);
            }
            // or its pages come back.
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
                // What is left of the runs at both ends.
                let before = old.first().filter(|run| run.pages.start < pages.start).map(|run| Run {
                    pages: PageRange::new(run.pages.start, pages.start),
                    view: run.view.clone(),
                });
                let after = old.last().filter(|run| run.pages.end > pages.end).map(|run| Run {
                    pages: PageRange::new(pages.end, run.pages.end),
                    view: run.view.as_ref().map(|view| view.skip(pages.end - run.pages.start)),
                });
                let fresh: SmallVec<[Run<S>; 3]> = [before, run, after].into_iter().flatten().collect();
                for run in &fresh {
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
                runs.insert_many(first, fresh);
            }
        }
        Self::join_around(runs, first, views, dropped);
        if runs.len() > CHUNK_RUNS || runs.len() < MIN_CHUNK_RUNS && has_more {
            self.tidy(chunk);
        } else if first == 0 {
            self.begin_at_first_run(chunk);
        }
    }

    /// Joins the runs next to `index` (at most the three just written and one on either side).
    fn join_around(runs: &mut Chunk<S>, index: usize, views: &mut usize, dropped: &mut Dropped<S>) {
        let mut at = index.saturating_sub(1);
        for _ in 0..4 {
            let Some([left, right]) =
                runs.get(at..at + 2).and_then(|pair| <&[Run<S>; 2]>::try_from(pair).ok())
            else {
                return;
            };
            if !Self::joins(left, right) {
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

    /// Makes the chunks from `first` to `last` one.
    fn join_chunks(&mut self, first: usize, last: usize) {
        let Some(more) = &mut self.more else { return };
        if first >= last {
            return;
        }
        more.starts.drain(first..last);
        let mut joined =
            core::mem::take(if first == 0 { &mut self.runs } else { &mut more.chunks[first - 1] });
        for mut chunk in more.chunks.drain(first..last) {
            joined.append(&mut chunk);
        }
        *self.chunk_mut(first) = joined;
        if self.chunks() == 1 {
            self.more = None;
        }
    }

    /// Gives a chunk that has changed its place and size again.
    fn tidy(&mut self, chunk: usize) {
        let runs = self.chunk(chunk).len();
        if runs < MIN_CHUNK_RUNS && self.more.is_some() {
            let fits = |other: usize| self.chunk(other).len() + runs <= CHUNK_RUNS / 2;
            if runs == 0 || chunk + 1 < self.chunks() && fits(chunk + 1) {
                // An empty last chunk joins the one before it.
                let first = if chunk + 1 < self.chunks() { chunk } else { chunk - 1 };
                self.join_chunks(first, first + 1);
                return self.begin_at_first_run(first);
            } else if chunk > 0 && fits(chunk - 1) {
                return self.join_chunks(chunk - 1, chunk);
            }
        }
        self.begin_at_first_run(chunk);
        if runs <= CHUNK_RUNS {
            return;
        }
        // From the end, so that what is behind moves once.
        let parts = runs.div_ceil(CHUNK_RUNS / 2 + 1);
        for part in (1..parts).rev() {
            let tail: Chunk<S> = self.chunk_mut(chunk).drain(runs * part / parts..).collect();
            let Some(start) = tail.first().map(|run| run.pages.start) else { continue };
            let more =
                self.more.get_or_insert_with(|| Box::new(More { starts: Vec::new(), chunks: Vec::new() }));
            more.starts.insert(chunk, start);
            more.chunks.insert(chunk, tail);
        }
    }

    /// Takes note of the page that a chunk begins with.
    fn begin_at_first_run(&mut self, chunk: usize) {
        if let (Some(more), Some(index)) = (&mut self.more, chunk.checked_sub(1))
            && let Some(run) = more.chunks[index].first()
        {
            more.starts[index] = run.pages.start;
        }
    }

    /// Whether the invariants hold.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let chunks = || (0..self.chunks()).map(|chunk| self.chunk(chunk));
        let runs = || chunks().flatten();
        let more = self.more.as_ref();
        runs().all(|run| !run.pages.is_empty())
            && runs()
                .zip(runs().skip(1))
                .all(|(run, next)| run.pages.end <= next.pages.start && !Self::joins(run, next))
            && self.views == runs().filter(|run| run.view.is_some()).count()
            && self.absent_pages == runs().map(|run| run.pages.len()).sum::<u32>()
            && chunks().all(|chunk| chunk.len() <= CHUNK_RUNS && (!chunk.is_empty() || more.is_none()))
            && more.is_none_or(|more| {
                let starts = more.chunks.iter().filter_map(|chunk| Some(chunk.first()?.pages.start));
                !more.chunks.is_empty() && starts.eq(more.starts.iter().copied())
            })
    }
}

#[cfg(test)]
mod tests;
