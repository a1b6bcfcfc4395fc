//! Models of concurrent hooks, handler and forks, checked by loom.
//!
//! The models run the engine itself: its locks, its reference counts, its handler thread, its fork handlers. Only the
//! primitives (`uncopy_sys::sync`) are loom's, and userfaultfd is simulated on ordinary memory. Each model is run for
//! every order in which its threads' steps can follow one another with a bounded number of preemptions. A deadlock, a
//! data race on a cell, a segment that is never released or a wrong byte in any of them fails it.

mod activation;
mod counters;
mod faults;
mod foreign;
mod forks;
mod segments;
mod upkeep;

use crate::arena::pages::ARENA;
use crate::background::activation::{activate, configure as take_options, ensure_heap};
use crate::range::block::BlockRef;
use crate::range::heap::{Allocation, HEAP};
use crate::state::phase::STATE;
use uncopy_core::addr::{ByteRange, PAGE_BYTES};
use uncopy_core::options::{Options, Policy};
use uncopy_core::page_map::{Dropped, View};
use uncopy_sys::sync::loom;

/// Bound on preemptions in one order (`LOOM_MAX_PREEMPTIONS` overrides it).
const PREEMPTIONS: usize = 2;
/// Bound on preemptions for models with few steps.
const DEEP: usize = 3;
/// Bound on preemptions for models with many steps.
const BROAD: usize = 1;

/// Applies options under which everything is elided.
fn configure() {
    let options = Options { policy: Policy::Always, min_size_bytes: PAGE_BYTES, ..Options::default() };
    take_options(&options);
}

/// Activates the engine and runs `prepare`, in one order only: the steps to be checked come after.
fn active<T>(prepare: impl FnOnce() -> T) -> T {
    loom::stop_exploring();
    configure();
    assert!(ensure_heap());
    assert!(activate(), "active");
    let result = prepare();
    loom::explore();
    result
}

/// Ends a model and its handler.
fn end() {
    loom::stop_exploring();
    if STATE.is_active() {
        ARENA.uffd().close();
    }
}

/// A registered block of at least two pages, all empty.
fn block() -> BlockRef {
    let Allocation { at, .. } = HEAP.allocate_aligned(2 * PAGE_BYTES, 1).expect("a block");
    at
}

/// Makes the block's first `pages` pages a view of a fresh segment whose bytes are `byte`.
fn fill(at: BlockRef, pages: usize, byte: u8) {
    let draft = crate::arena::segment::Draft::new(pages * PAGE_BYTES).expect("a draft");
    // SAFETY: the draft is `pages` pages long, and only this thread uses it.
    unsafe { core::ptr::write_bytes(draft.address() as *mut u8, byte, pages * PAGE_BYTES) };
    let view = View { segment: draft.freeze(0), offset_bytes: 0, site: 0 };
    let mut dropped = Dropped::new();
    let range = ByteRange::at(0, pages * PAGE_BYTES).whole_pages();
    at.lock().change(|map| map.set_viewed(range, view, &mut dropped));
}

/// Copies the first `pages` pages of a block to another one, as memcpy does.
fn copy(from: BlockRef, to: BlockRef, pages: usize) {
    let len_bytes = pages * PAGE_BYTES;
    // SAFETY: both blocks belong to the model, are at least `pages` pages long and do not overlap.
    unsafe {
        if !crate::call::copy::copy(to.base, from.base, len_bytes, 1) {
            uncopy_sys::bytes::copy(to.base as *mut u8, from.base as *const u8, len_bytes);
        }
    }
}
