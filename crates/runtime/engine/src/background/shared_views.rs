//! Views of memory that other processes share are temporary, because the owner needs it back. Their bytes
//! are placed when they were not used for a while, and before a fork, whose child must not use that memory.

use crate::arena::segment::{Segment, SharedBytes};
use crate::range::block::{BlockRef, Flag, Locked};
use crate::range::directory;
use crate::range::page_in::make_present;
use crate::state::clock;
use smallvec::SmallVec;
use uncopy_core::addr::PageRange;
use uncopy_core::page_map::Dropped;

/// Views that were not used for more rounds of upkeep than this are placed.
const AGE: u32 = 2;

/// Places the bytes of views of shared memory that were not used for a while.
pub(crate) fn place_idle_views(locked: &mut Locked) {
    let round = clock::now().round();
    put_in_place(locked, |segment| round.wrapping_sub(segment.last_used().round()) > AGE);
}

/// Places the bytes of all views of shared memory. No other thread may be in the engine, and the handler
/// must be waiting.
pub(crate) fn place_all_views() {
    if SharedBytes::count() > 0 {
        directory::for_each_block(|at: BlockRef| put_in_place(&mut at.lock_for_handler(), |_| true));
    }
}

fn put_in_place(locked: &mut Locked, is_wanted: impl Fn(&Segment) -> bool) {
    if SharedBytes::count() == 0 || !locked.at.block.has(Flag::REGISTERED) {
        return;
    }
    let mut found: SmallVec<[PageRange; 8]> = SmallVec::new();
    if let Some(map) = locked.map() {
        map.for_each_view(|pages, view| {
            if view.segment.shared().is_some() && is_wanted(&view.segment) {
                found.push(pages);
            }
        });
    }
    let mut dropped = Dropped::new();
    for pages in found {
        make_present(locked, pages, &mut dropped);
    }
}
