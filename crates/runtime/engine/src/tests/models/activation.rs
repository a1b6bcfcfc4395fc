//! A thread that sees one part of the engine published sees all of it.

use super::{DEEP, active, block, configure, end};
use crate::arena::pages::ARENA;
use crate::background::activation;
use crate::range::heap::HEAP;
use crate::state::gate::{HEAP_BASE, HEAP_LEN_BYTES, is_in_heap};
use crate::state::phase::STATE;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_sys::sync::atomic::Ordering::Relaxed;
use uncopy_sys::sync::{check, spawn};

#[test]
fn a_hook_that_sees_the_engine_active_finds_all_of_it() {
    check(DEEP, || {
        configure();
        let activating = spawn(|| {
            assert!(activation::ensure_heap());
            let at = block();
            assert!(activation::activate(), "active");
            at.lock().register().expect("registered");
        });
        // The steps of every hook: examine the gate, then the heap, then the engine.
        if STATE.is_active() {
            let uffd = ARENA.uffd();
            assert!(HEAP.is_reserved());
            assert_ne!(ARENA.address(0), 0, "the arena is reserved");
            uffd.register(ARENA.address(0), PAGE_BYTES).expect("an open userfaultfd");
        }
        activating.join().expect("thread");
        end();
    });
}

#[test]
fn two_hooks_that_need_the_engine_at_once_get_the_same_one() {
    check(DEEP, || {
        configure();
        let other = spawn(|| {
            assert!(activation::ensure_heap());
            {
                assert!(activation::activate());
                ARENA.uffd().fd()
            }
        });
        assert!(activation::ensure_heap());
        let fd = {
            assert!(activation::activate());
            ARENA.uffd().fd()
        };
        assert_eq!(other.join().expect("thread"), fd);
        assert_eq!(fd, 1, "opened once");
        end();
    });
}

/// No address below the heap may appear to be in it, also while it is being reserved.
#[test]
fn no_address_outside_the_heap_is_ever_found_in_it() {
    check(DEEP, || {
        configure();
        let reserving = spawn(|| {
            assert!(activation::ensure_heap());
            let _ = block();
        });
        assert!(!is_in_heap(PAGE_BYTES), "a static variable");
        assert!(HEAP.find(PAGE_BYTES).is_none(), "a static variable");
        let base = HEAP_BASE.load(Relaxed);
        assert!(HEAP_LEN_BYTES.load(Relaxed) == 0 || base != 0 || !is_in_heap(base.wrapping_sub(1)));
        reserving.join().expect("thread");
        end();
    });
}

#[test]
fn two_threads_never_get_the_same_block() {
    check(DEEP, || {
        let (first, second) = active(|| (block(), block()));
        HEAP.free(first.base);
        let other = spawn(move || {
            HEAP.free(second.base);
            block()
        });
        let mine = block();
        let theirs = other.join().expect("thread");
        assert_ne!(mine.base, theirs.base);
        end();
    });
}
