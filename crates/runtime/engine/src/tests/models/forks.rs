//! Forks concurrent with hooks and faults.

use super::{BROAD, DEEP, PREEMPTIONS, active, block, copy, end, fill};
use crate::arena::pages::ARENA;
use crate::life::fork;
use crate::range::heap::{Allocation, HEAP};
use crate::state::counters;
use crate::state::phase::STATE;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::stats::Counter;
use uncopy_sys::lock::thread_id;
use uncopy_sys::sync::{check, spawn};
use uncopy_sys::uffd::load;

/// State that a child inherits: the forking thread holds every lock, and no work is half done.
fn all_is_held() {
    let me = thread_id();
    HEAP.class_locks().for_each(|lock| assert_eq!(lock.owner(), me));
    assert_eq!(ARENA.lock().owner(), me);
    HEAP.for_each_block(|at| {
        assert_eq!(at.block.lock.owner(), me);
    });
}

#[test]
fn a_fork_waits_for_hooks_and_holds_every_lock() {
    check(BROAD, || {
        let (low, high) = active(|| {
            let (low, high) = (block(), block());
            fill(low, 1, 7);
            fill(high, 2, 7);
            (low, high)
        });
        // Each hook takes both locks; the order depends on the addresses, not on the direction.
        let hooks = [spawn(move || copy(low, high, 1)), spawn(move || copy(high, low, 1))];
        fork::prepare();
        all_is_held();
        fork::parent();
        hooks.into_iter().for_each(|hook| hook.join().expect("thread"));
        assert_eq!(load(low.base), 7);
        assert_eq!(load(high.base), 7);
        HEAP.free(low.base);
        HEAP.free(high.base);
        assert_eq!(counters::get(Counter::SegmentsBytes), 0);
        end();
    });
}

#[test]
fn a_fork_among_faults_and_allocations_goes_on() {
    check(BROAD, || {
        let at = active(|| {
            let at = block();
            fill(at, 2, 7);
            at
        });
        let touching = spawn(move || assert_eq!(load(at.base + PAGE_BYTES), 7));
        let allocating = spawn(|| {
            // Refused while a fork is in progress: the program's own allocator then serves the request.
            if let Some(Allocation { at, .. }) = HEAP.allocate_aligned(2 * PAGE_BYTES, 1) {
                HEAP.free(at.base);
            }
        });
        fork::prepare();
        all_is_held();
        fork::parent();
        touching.join().expect("thread");
        allocating.join().expect("thread");
        HEAP.free(at.base);
        assert_eq!(counters::get(Counter::SegmentsBytes), 0);
        end();
    });
}

/// A hook that holds one of libc's locks, for which the fork waits, continues without the engine.
#[test]
fn a_hook_ends_while_a_fork_holds_every_lock() {
    check(PREEMPTIONS, || {
        let (from, to) = active(|| {
            let (from, to) = (block(), block());
            fill(from, 1, 7);
            (from, to)
        });
        fork::prepare();
        let hook = spawn(move || copy(from, to, 1));
        hook.join().expect("thread");
        all_is_held();
        fork::parent();
        assert_eq!(load(from.base), 7);
        assert_eq!(load(to.base), 7);
        HEAP.free(from.base);
        HEAP.free(to.base);
        assert_eq!(counters::get(Counter::SegmentsBytes), 0);
        end();
    });
}

/// libc's locks are taken after the fork handlers have run: a thread that holds one may wait for a page.
#[test]
fn a_page_is_served_while_a_fork_holds_every_lock() {
    check(PREEMPTIONS, || {
        let at = active(|| {
            let at = block();
            fill(at, 2, 7);
            at
        });
        fork::prepare();
        let touching = spawn(move || assert_eq!(load(at.base + PAGE_BYTES), 7));
        touching.join().expect("thread");
        all_is_held();
        fork::parent();
        assert_eq!(load(at.base), 7);
        assert_eq!(load(at.base + PAGE_BYTES), 7);
        HEAP.free(at.base);
        assert_eq!(counters::get(Counter::SegmentsBytes), 0);
        end();
    });
}

#[test]
fn two_threads_that_fork_at_once_take_turns() {
    check(DEEP, || {
        let at = active(|| {
            let at = block();
            fill(at, 2, 7);
            at
        });
        let fork_once = || {
            fork::prepare();
            all_is_held();
            fork::parent();
        };
        let other = spawn(fork_once);
        fork_once();
        other.join().expect("thread");
        assert_eq!(load(at.base), 7);
        HEAP.free(at.base);
        end();
    });
}

/// The child has the maps but no handler; a handler of its own is ready before the program continues.
#[test]
fn a_child_serves_the_faults_of_what_it_inherited() {
    check(1, || {
        let at = active(|| {
            let at = block();
            fill(at, 2, 7);
            at
        });
        fork::prepare();
        fork::child();
        let other = spawn(move || assert_eq!(load(at.base + PAGE_BYTES), 7));
        assert_eq!(load(at.base), 7);
        other.join().expect("thread");
        assert!(STATE.is_active() && ARENA.uffd().fd() > 1, "the parent's is the first");
        HEAP.free(at.base);
        assert_eq!(counters::get(Counter::SegmentsBytes), 0);
        end();
    });
}
