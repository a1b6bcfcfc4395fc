//! Memory is given back while hooks use the rest of it. The model's thread does the handler's work in a
//! round of upkeep.

use super::{DEEP, PREEMPTIONS, active, block, copy, end};
use crate::arena::segment::Draft;
use crate::background::compaction::Compaction;
use crate::range::block::BlockRef;
use crate::range::heap::HEAP;
use crate::state::counters;
use uncopy_core::addr::{PAGE_BYTES, PageRange};
use uncopy_core::page_map::{Dropped, View};
use uncopy_core::stats::Counter;
use uncopy_sys::sync::{check, spawn};
use uncopy_sys::uffd::load;

const PAGES: usize = 4;

/// Makes the block's first page a view of the second page of a segment whose bytes are 7.
fn view_a_part(at: BlockRef) {
    let draft = Draft::new(PAGES * PAGE_BYTES).expect("a draft");
    // SAFETY: the draft is `PAGES` pages long, and only this thread uses it.
    unsafe { core::ptr::write_bytes(draft.address() as *mut u8, 7, PAGES * PAGE_BYTES) };
    let view = View { segment: draft.freeze(0), offset_bytes: PAGE_BYTES, site: 0 };
    at.lock().change(|map| map.set_viewed(PageRange::new(0, 1), view, &mut Dropped::new()));
}

fn compact(blocks: &[BlockRef]) {
    let mut compaction = Compaction::new();
    blocks.iter().for_each(|at| {
        compaction.scan_block(*at);
    });
    compaction.choose();
    while !compaction.release() {}
    compaction.end();
}

#[test]
fn a_part_that_is_copied_while_the_rest_goes_keeps_its_bytes() {
    check(PREEMPTIONS, || {
        let (from, to) = active(|| {
            let (from, to) = (block(), block());
            view_a_part(from);
            (from, to)
        });
        let copying = spawn(move || copy(from, to, 1));
        compact(&[from, to]);
        copying.join().expect("thread");
        assert_eq!((load(from.base), load(to.base)), (7, 7));
        HEAP.free(from.base);
        HEAP.free(to.base);
        assert_eq!(counters::get(Counter::SegmentsBytes), 0);
        end();
    });
}

#[test]
fn pages_go_back_once_whoever_is_first() {
    check(1, || {
        let at = active(|| {
            let at = block();
            view_a_part(at);
            at
        });
        let freeing = spawn(move || HEAP.free(at.base));
        // A page that goes back twice is noticed where free pages are joined.
        compact(&[at]);
        freeing.join().expect("thread");
        assert_eq!(counters::get(Counter::SegmentsBytes), 0);
        end();
    });
}

#[test]
fn a_free_block_that_becomes_bare_is_handed_out_once() {
    check(DEEP, || {
        let class = active(|| {
            let at = block();
            HEAP.free(at.base);
            // Makes the free block old, so that `take_old` finds it.
            let class = uncopy_core::classes::Class::for_len(at.bytes()).expect("a class").index();
            HEAP.surplus_blocks(class);
            class
        });
        let allocating = spawn(|| (block(), block()));
        if let Some(mut taken) = HEAP.take_old(class, true) {
            HEAP.make_bare(&mut taken);
            while !HEAP.put_back(taken) {
                uncopy_sys::thread::pause();
            }
        }
        let mine = block();
        let (first, second) = allocating.join().expect("thread");
        assert!(first.base != second.base && first.base != mine.base && second.base != mine.base);
        end();
    });
}
