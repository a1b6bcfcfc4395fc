//! References to a segment come and go in several threads; its pages go back once, with the last reference.

use super::{DEEP, PREEMPTIONS, active, end};
use crate::arena::pages::ARENA;
use crate::arena::segment::{Draft, OpenEnd, Segment};
use crate::call::in_flight::{self, CallResources, InProgress, Segments};
use crate::life::fork;
use crate::range::heap::HEAP;
use crate::state::counters;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::stats::Counter;
use uncopy_sys::sync::{check, spawn};

const PAGES: usize = 4;

fn draft() -> Draft {
    Draft::new(PAGES * PAGE_BYTES).expect("a draft")
}

/// Checks that every page of the one segment went back, and none twice.
fn all_is_given_back(resident_bytes: u64) {
    assert_eq!(counters::get(Counter::SegmentsBytes), 0);
    assert_eq!(counters::get(Counter::ReservoirBytes), resident_bytes);
    let pages = (resident_bytes as usize / PAGE_BYTES) as u32;
    let all = ARENA.take_resident(pages).expect("one run of pages").pages;
    assert_eq!(counters::get(Counter::ReservoirBytes), 0, "the run is {all:?}");
}

#[test]
fn the_last_of_several_references_gives_the_pages_back_once() {
    check(DEEP, || {
        let segment = active(|| draft().freeze(0));
        // References of a view that is dropped, of a call that ends, and of an open end that is closed.
        let others: Vec<_> = (0..2)
            .map(|_| {
                let reference = segment.clone();
                spawn(move || drop(reference))
            })
            .collect();
        let open = OpenEnd { segment, filled_bytes: PAGE_BYTES, next_address: 0 };
        open.close();
        others.into_iter().for_each(|other| other.join().expect("thread"));
        all_is_given_back((PAGES * PAGE_BYTES) as u64);
        end();
    });
}

/// Pages may be moved out only by the owner of the only reference.
#[test]
fn of_several_that_drop_a_reference_at_most_one_finds_itself_alone() {
    check(DEEP, || {
        let segment = active(|| draft().freeze(0));
        let mut mine = segment.clone();
        let other = spawn(move || {
            let mut segment = segment;
            let alone = segment.as_unique_draft().is_some();
            // SAFETY: a reference is held, so the segment's bytes are present.
            assert!(unsafe { (segment.address() as *const u8).read_volatile() } == 0);
            alone
        });
        let alone = mine.as_unique_draft().is_some();
        drop(mine);
        let other_alone = other.join().expect("thread");
        assert!(!(alone && other_alone), "both found themselves alone");
        all_is_given_back((PAGES * PAGE_BYTES) as u64);
        end();
    });
}

/// One thread lends a part and drops its reference while another, serving a fault, checks whether it may
/// move the pages. It may not, and the last thread gives back as resident only pages that were not lent.
#[test]
fn what_was_lent_is_neither_moved_nor_resident_again() {
    check(DEEP, || {
        let segment = active(|| draft().freeze(0));
        let mut mine = segment.clone();
        let lending = spawn(move || {
            let pages = segment.lend(PAGE_BYTES, PAGE_BYTES + 1);
            assert_eq!(pages, 2);
        });
        assert!(mine.as_unique_draft().is_none(), "pages that are lent would be moved");
        drop(mine);
        lending.join().expect("thread");
        assert_eq!(counters::get(Counter::SegmentsBytes), 0);
        assert_eq!(counters::get(Counter::DroppedBytes), 2 * PAGE_BYTES as u64);
        assert_eq!(counters::get(Counter::ReservoirBytes), ((PAGES - 2) * PAGE_BYTES) as u64);
        assert!(ARENA.drop_quarantined() && !ARENA.drop_quarantined());
        end();
    });
}

/// Two threads lend different parts at the same time: both are recorded.
#[test]
fn parts_that_are_lent_at_once_are_all_dropped() {
    check(DEEP, || {
        let segment = active(|| draft().freeze(0));
        let lending: Vec<_> = [0, 2]
            .map(|page| {
                let segment = segment.clone();
                spawn(move || segment.lend(page * PAGE_BYTES, PAGE_BYTES))
            })
            .into();
        drop(segment);
        let pages: u32 = lending.into_iter().map(|thread| thread.join().expect("thread")).sum();
        // The page between the two parts counts as well.
        assert_eq!(pages, 3);
        assert_eq!(counters::get(Counter::DroppedBytes), 3 * PAGE_BYTES as u64);
        end();
    });
}

/// Calls begin and end in several threads while the process forks, and one call never returns.
#[test]
fn what_calls_hold_is_given_back_once() {
    check(PREEMPTIONS, || {
        let segment = active(|| draft().freeze(0));
        let hold = |segment: &Segment| {
            let call = InProgress::new(CallResources::Output(Segments::from_iter([segment.clone()])));
            call.run(|| ());
            drop(call);
        };
        let other = {
            let segment = segment.clone();
            spawn(move || hold(&segment))
        };
        let leaving = {
            let segment = segment.clone();
            spawn(move || {
                let call = InProgress::new(CallResources::Output(Segments::from_iter([segment])));
                // A jump leaves the record linked, and the frame is reused.
                call.leave_by_a_jump();
                in_flight::end_of_thread();
            })
        };
        fork::prepare();
        fork::parent();
        hold(&segment);
        drop(segment);
        other.join().expect("thread");
        leaving.join().expect("thread");
        all_is_given_back((PAGES * PAGE_BYTES) as u64);
        end();
    });
}

/// Two inputs may find the same buffer's open end: only one of them gets it.
#[test]
fn an_open_end_goes_to_one_input_only() {
    check(PREEMPTIONS, || {
        let at = active(|| {
            let at = super::block();
            let open =
                OpenEnd { segment: draft().freeze(0), filled_bytes: PAGE_BYTES, next_address: at.base };
            assert!(at.lock().exchange_open(Some(open)).is_none());
            at
        });
        let take = move || match at.lock().exchange_open(None) {
            Some(open) => {
                open.close();
                1
            }
            None => 0,
        };
        let other = spawn(take);
        let freeing = spawn(move || HEAP.free(at.base));
        let mine = take();
        let theirs = other.join().expect("thread");
        freeing.join().expect("thread");
        assert!(mine + theirs <= 1, "taken twice");
        all_is_given_back((PAGES * PAGE_BYTES) as u64);
        end();
    });
}
