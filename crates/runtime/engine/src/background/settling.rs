//! Settling: views that outlive a fork are put in place.
//!
//! A child that reads a view copies its bytes, and so would each later child: Redis, which forks to save its data,
//! would pay for each save what one copy costs without uncopy. What was not used since before a fork is therefore
//! put in place in the parent, a little in each round of upkeep, and later children share its pages. That is at
//! most the copy that was elided.

use crate::account::books;
use crate::range::block::{BlockRef, Flag};
use crate::range::foreign::FOREIGN;
use crate::range::heap::HEAP;
use crate::range::page_in::{is_alone_and_congruent, make_present};
use crate::state::{clock, counters, limits, recording};
use uncopy_core::addr::PageRange;
use uncopy_core::classes::CLASSES;
use uncopy_core::page_map::Dropped;
use uncopy_core::stats::Counter;

/// Pages put in place in one step, while faults wait: some 60 µs.
const STEP_PAGES: u32 = 64;
/// Blocks visited in one step.
const STEP_BLOCKS: usize = 512;
/// Pages put in place in one round.
const ROUND_PAGES: u32 = if limits::IS_EAGER { 256 } else { 16_384 };

/// A pass over all blocks. Holds numbers only, so a forked child may just forget it.
pub(crate) struct Settling {
    /// Moment at which the last pass that came to its end began.
    done: Option<clock::Moment>,
    /// Moment at which this pass began.
    began: Option<clock::Moment>,
    /// Position of the pass: class and number of the next block.
    next: (usize, u32),
    /// Pages left for this round.
    left_pages: u32,
}

impl Settling {
    pub(crate) const fn new() -> Self {
        Self { done: None, began: None, next: (0, 0), left_pages: 0 }
    }

    /// Whether there may be views that have outlived a fork.
    pub(crate) fn is_due(&self) -> bool {
        clock::has_forked()
            && counters::get(Counter::SegmentsBytes) > 0
            && self.done.is_none_or(clock::Moment::is_before_fork)
    }

    /// Allows a round's work.
    pub(crate) fn begin_round(&mut self) {
        self.left_pages = ROUND_PAGES;
    }

    /// Visits some blocks. Returns true if this round's work is done.
    pub(crate) fn step(&mut self) -> bool {
        self.began.get_or_insert_with(clock::now);
        for _ in 0..STEP_BLOCKS {
            let (class, index) = self.next;
            match HEAP.nth(class, index) {
                Some(at) => {
                    let pages = settle(at);
                    if pages > 0 {
                        // More may be left in this block.
                        self.left_pages = self.left_pages.saturating_sub(pages);
                        return self.left_pages == 0;
                    }
                    self.next.1 += 1;
                }
                None if class + 1 < CLASSES => self.next = (class + 1, 0),
                None => return self.end_pass(),
            }
        }
        false
    }

    fn end_pass(&mut self) -> bool {
        let mut pages = 0;
        FOREIGN.for_each_range(|at| {
            if pages == 0 {
                pages = settle(at);
            }
        });
        if pages > 0 {
            self.left_pages = self.left_pages.saturating_sub(pages);
            return self.left_pages == 0;
        }
        *self = Self { done: self.began, ..Self::new() };
        true
    }
}

/// Puts the first view of a block that outlived a fork in place, or a part of it. Returns the number of pages; 0 if
/// there is none, or another thread holds the block's lock.
fn settle(at: BlockRef) -> u32 {
    if !at.block.has(Flag::REGISTERED) {
        return 0;
    }
    let mut dropped = Dropped::new();
    let Some(mut locked) = at.try_lock().filter(|locked| !locked.is_stale()) else { return 0 };
    let mut found = None;
    if let Some(map) = locked.map() {
        map.for_each_view(|pages, view| {
            let is_wanted = || {
                // Children get these pages without a copy: `page_in::inherited_run`.
                let is_cheap = pages.len() > 1 && is_alone_and_congruent(&locked, view, 0);
                view.segment.last_used().is_before_fork() && !is_cheap && !recording::is_row(view.site)
            };
            if found.is_none() && is_wanted() {
                found = Some((pages, view.clone()));
            }
        });
    }
    let Some((pages, view)) = found else { return 0 };
    let pages = PageRange::new(pages.start, pages.end.min(pages.start + STEP_PAGES));
    books::enter_settled(&view, pages.len_bytes());
    drop(view);
    make_present(&mut locked, pages, &mut dropped);
    let is_done = locked.map().is_none_or(|map| map.is_present(pages));
    if is_done { pages.len() } else { 0 }
}
