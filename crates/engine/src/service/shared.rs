//! Views of memory that other processes share are not for keeps: its owner wants it back. Their bytes are put in place when
//! nobody has used them for a while, and before a fork, of which that memory has no part.

use crate::arena::segment::{Segment, Shared};
use crate::range::block::{BlockRef, Flag, Locked};
use crate::range::directory;
use crate::range::page_in::make_present;
use crate::state::limits;
use smallvec::SmallVec;
use uncopy_core::addr::PageRange;
use uncopy_core::page_map::Dropped;

/// Views that were not used for more rounds of upkeep than this are put in place.
const AGE: u32 = 2;

/// Puts views of shared memory in place that nobody has used for a while.
pub(crate) fn put_old_in_place(locked: &mut Locked) {
    let round = limits::round();
    put_in_place(locked, |segment| round.wrapping_sub(segment.used_at()) > AGE);
}

/// Puts all views of shared memory in place. Nobody is at work in the engine, and the handler waits.
pub(crate) fn put_all_in_place() {
    if Shared::count() > 0 {
        directory::for_each_block(|at: BlockRef| put_in_place(&mut at.lock_for_service(), |_| true));
    }
}

fn put_in_place(locked: &mut Locked, is_wanted: impl Fn(&Segment) -> bool) {
    if Shared::count() == 0 || !locked.at.block.has(Flag::REGISTERED) {
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
