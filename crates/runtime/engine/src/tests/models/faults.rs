//! Touching pages while hooks hold, change and free the blocks that contain them.

use super::{DEEP, PREEMPTIONS, active, block, copy, end, fill};
use crate::range::heap::HEAP;
use crate::state::counters;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::stats::Counter;
use uncopy_sys::sync::{check, spawn};
use uncopy_sys::uffd::{load, store};

fn no_segment_is_left() {
    assert_eq!(counters::get(Counter::Views), 0);
    assert_eq!(counters::get(Counter::SegmentsBytes), 0);
}

#[test]
fn a_page_touched_while_a_hook_copies_it_holds_its_bytes() {
    check(PREEMPTIONS, || {
        let (from, to) = active(|| {
            let (from, to) = (block(), block());
            fill(from, 2, 7);
            (from, to)
        });
        let touching = spawn(move || assert_eq!(load(from.base + PAGE_BYTES), 7));
        copy(from, to, 2);
        touching.join().expect("thread");
        assert_eq!(load(to.base), 7);
        assert_eq!(load(to.base + PAGE_BYTES), 7);
        assert_eq!(load(from.base), 7);
        HEAP.free(from.base);
        HEAP.free(to.base);
        no_segment_is_left();
        end();
    });
}

#[test]
fn two_threads_that_touch_the_same_page_both_go_on() {
    check(PREEMPTIONS, || {
        let at = active(|| {
            let at = block();
            fill(at, 2, 7);
            at
        });
        let other = spawn(move || assert_eq!(load(at.base), 7));
        assert_eq!(load(at.base), 7);
        other.join().expect("thread");
        HEAP.free(at.base);
        no_segment_is_left();
        end();
    });
}

/// A view keeps the bytes that were copied although the original is overwritten at the same time.
#[test]
fn a_copy_keeps_its_bytes_when_the_original_is_overwritten_afterwards() {
    check(DEEP, || {
        let (from, to, other) = active(|| {
            let (from, to, other) = (block(), block(), block());
            fill(from, 2, 7);
            copy(from, to, 2);
            (from, to, other)
        });
        let writing = spawn(move || {
            store(from.base, 9);
            assert_eq!(load(from.base), 9);
        });
        copy(to, other, 2);
        writing.join().expect("thread");
        assert_eq!(load(other.base), 7);
        assert_eq!(load(to.base), 7);
        for at in [from, to, other] {
            HEAP.free(at.base);
        }
        no_segment_is_left();
        end();
    });
}

/// The last two views of a segment are served at the same time, one by moving the pages, which the other
/// must not need.
#[test]
fn pages_are_moved_only_for_the_last_reference() {
    check(DEEP, || {
        let (from, to) = active(|| {
            let (from, to) = (block(), block());
            fill(from, 2, 7);
            copy(from, to, 2);
            (from, to)
        });
        let freeing = spawn(move || HEAP.free(from.base));
        let mut dropped = uncopy_core::page_map::Dropped::new();
        crate::range::page_in::make_present(&mut to.lock(), to.all(), &mut dropped);
        drop(dropped);
        assert_eq!(load(to.base), 7);
        assert_eq!(load(to.base + PAGE_BYTES), 7);
        freeing.join().expect("thread");
        HEAP.free(to.base);
        no_segment_is_left();
        end();
    });
}

/// A page that the kernel dropped behind the engine's back faults under the hook's own lock: the handler
/// sees who owns the lock and does not wait for it.
#[test]
fn a_fault_under_the_faulting_threads_own_lock_is_served() {
    check(PREEMPTIONS, || {
        let (lost, at) = active(|| {
            let (lost, at) = (block(), block());
            fill(at, 2, 7);
            store(lost.base, 1);
            uncopy_sys::uffd::set_present(lost.base, PAGE_BYTES, false);
            (lost, at)
        });
        let other = spawn(move || assert_eq!(load(at.base), 7));
        {
            let _locked = lost.lock();
            assert_eq!(load(lost.base), 0, "given back: zeroes");
        }
        other.join().expect("thread");
        HEAP.free(lost.base);
        HEAP.free(at.base);
        no_segment_is_left();
        end();
    });
}

/// A block's lock is held for long while a thread waits for one of its pages: the fault is retried until it
/// can be served.
#[test]
fn a_fault_in_a_block_that_another_thread_holds_waits_and_is_served() {
    check(DEEP, || {
        let (from, to) = active(|| {
            let (from, to) = (block(), block());
            fill(from, 2, 7);
            fill(to, 2, 8);
            (from, to)
        });
        let touching = spawn(move || assert_eq!(load(to.base + PAGE_BYTES), 8));
        {
            let _from = from.lock();
            let _to = to.lock();
        }
        copy(from, to, 1);
        touching.join().expect("thread");
        assert_eq!(load(to.base), 7);
        HEAP.free(from.base);
        HEAP.free(to.base);
        no_segment_is_left();
        end();
    });
}
