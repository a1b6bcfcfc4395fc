//! Settling: views that children read are put in place in the parent.
//!
//! A child that reads a view copies its bytes, and so would each later child: Redis, which forks to save its data,
//! would pay for each save what one copy costs without uncopy. So once children have read views, the parent puts those
//! in place that it has not used since before its last fork, a little in each round of upkeep, and later children
//! share its pages. That is at most the copy that was elided.

use crate::account::books;
use crate::range::block::{BlockRef, Flag};
use crate::range::foreign::FOREIGN;
use crate::range::heap::HEAP;
use crate::range::page_in::make_present;
use crate::state::{children, clock, counters, limits, recording};
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
    /// Pages that children had read when the last pass began that came to its end.
    done_pages: u64,
    /// Pages that children had read when this pass began.
    begun_pages: Option<u64>,
    /// Position of the pass: class and number of the next block.
    next: (usize, u32),
    /// Pages left for this round.
    left_pages: u32,
}

impl Settling {
    pub(crate) const fn new() -> Self {
        Self { done_pages: 0, begun_pages: None, next: (0, 0), left_pages: 0 }
    }

    /// Returns the state in a forked child, whose parent settles what it has read.
    pub(crate) fn in_child() -> Self {
        Self { done_pages: children::pages_read(), ..Self::new() }
    }

    /// Whether children have read views since the last pass.
    pub(crate) fn is_due(&self) -> bool {
        clock::has_forked()
            && children::pages_read() != self.done_pages
            && counters::get(Counter::SegmentsBytes) > 0
    }

    /// Allows a round's work.
    pub(crate) fn begin_round(&mut self) {
        self.left_pages = ROUND_PAGES;
    }

    /// Visits some blocks. Returns true if this round's work is done.
    pub(crate) fn step(&mut self) -> bool {
        if uncopy_sys::alloc::is_low() {
            return true;
        }
        self.begun_pages.get_or_insert_with(children::pages_read);
        for _ in 0..STEP_BLOCKS {
            let (class, index) = self.next;
            match HEAP.nth(class, index) {
                Some(at) => {
                    let pages = settle(at);
                    if pages > 0 {
                        // More may be left in this block.
                        return self.spend(pages);
                    }
                    self.next.1 += 1;
                }
                None if class + 1 < CLASSES => self.next = (class + 1, 0),
                None => return self.end_pass(),
            }
        }
        false
    }

    /// Visits the foreign ranges, once no block of the heap is left.
    fn end_pass(&mut self) -> bool {
        let mut pages = 0;
        FOREIGN.for_each_range(|at| {
            if pages == 0 {
                pages = settle(at);
            }
        });
        if pages > 0 {
            return self.spend(pages);
        }
        *self = Self { done_pages: self.begun_pages.unwrap_or(self.done_pages), ..Self::new() };
        true
    }

    fn spend(&mut self, pages: u32) -> bool {
        self.left_pages = self.left_pages.saturating_sub(pages);
        self.left_pages == 0
    }
}

/// Puts the first view of a block that was not used since before a fork in place, or a part of it. Returns the number
/// of pages; 0 if there is none, or another thread holds the block's lock.
fn settle(at: BlockRef) -> u32 {
    if !at.block.has(Flag::REGISTERED) {
        return 0;
    }
    let mut dropped = Dropped::new();
    let Some(mut locked) = at.try_lock().filter(|locked| !locked.is_stale()) else { return 0 };
    let mut found = None;
    if let Some(map) = locked.map() {
        map.for_each_view(|pages, view| {
            // A touch of a recorded view is to be seen as one.
            if found.is_none() && view.segment.last_used().is_before_fork() && !recording::is_row(view.site) {
                found = Some((pages, view.site));
            }
        });
    }
    let Some((pages, site)) = found else { return 0 };
    let pages = PageRange::new(pages.start, pages.end.min(pages.start + STEP_PAGES));
    make_present(&mut locked, pages, &mut dropped);
    if locked.map().is_some_and(|map| !map.is_present(pages)) {
        return 0;
    }
    books::enter_settled(site, pages.len_bytes());
    pages.len()
}
