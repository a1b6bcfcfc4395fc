//! Models of what hooks, the fault service and forks do at the same time, checked by loom.
//!
//! What runs here is the engine itself: its locks, its reference counts, its handler thread, its fork
//! handlers. Only the primitives (`uncopy_sys::sync`) are loom's, and userfaultfd is simulated on
//! ordinary memory. Each model is run for every order in which its threads' steps can follow one another
//! with a bounded number of preemptions; a deadlock, a data race on a cell, a segment that is never
//! released or a wrong byte in any of them fails it.

mod activation;
mod counters;
mod faults;
mod foreign;
mod forks;
mod segments;
mod upkeep;

use crate::arena::pages::ARENA;
use crate::range::block::BlockRef;
use crate::range::heap::{Allocation, HEAP};
use crate::service::activation::{activate, configure as take_options, ensure_heap};
use crate::state::phase::STATE;
use uncopy_core::addr::{ByteRange, PAGE_BYTES};
use uncopy_core::options::{Options, Policy};
use uncopy_core::page_map::{Dropped, View};
use uncopy_sys::sync::loom;

/// Preemptions in one order, at most (`LOOM_MAX_PREEMPTIONS` overrides it).
const PREEMPTIONS: usize = 2;
/// The same for models with few steps.
const DEEP: usize = 3;
/// The same for models with many steps.
const BROAD: usize = 1;

/// Takes the options; everything is elided.
fn configure() {
    let options = Options { policy: Policy::Always, min_size_bytes: PAGE_BYTES, ..Options::default() };
    take_options(&options);
}

/// Brings the engine to work, and runs `prepare` with it, in one order only: what is to be checked comes after.
fn active<T>(prepare: impl FnOnce() -> T) -> T {
    loom::stop_exploring();
    configure();
    assert!(ensure_heap());
    assert!(activate(), "active");
    let result = prepare();
    loom::explore();
    result
}

/// The end of a model: the handler ends.
fn end() {
    loom::stop_exploring();
    if STATE.is_active() {
        ARENA.uffd().close();
    }
}

/// A registered block of two pages and more that is all empty.
fn block() -> BlockRef {
    let Allocation { at, .. } = HEAP.allocate_aligned(2 * PAGE_BYTES, 1).expect("a block");
    at
}

/// Makes the block's first `pages` pages a view of a fresh segment whose bytes are `byte`.
fn fill(at: BlockRef, pages: usize, byte: u8) {
    let draft = crate::arena::segment::Draft::new(pages * PAGE_BYTES).expect("a draft");
    // SAFETY: the draft is ours and as long.
    unsafe { core::ptr::write_bytes(draft.address() as *mut u8, byte, pages * PAGE_BYTES) };
    let view = View { segment: draft.freeze(0), offset_bytes: 0, site: 0 };
    let mut dropped = Dropped::new();
    let range = ByteRange::at(0, pages * PAGE_BYTES).whole_pages();
    at.lock().change(|map| map.set_viewed(range, view, &mut dropped));
}

/// Copies the first `pages` pages of a block to another one, as memcpy does.
fn copy(from: BlockRef, to: BlockRef, pages: usize) {
    let len_bytes = pages * PAGE_BYTES;
    // SAFETY: both blocks are the model's and long enough.
    unsafe {
        if !crate::call::copy::copy(to.base, from.base, len_bytes, 1) {
            uncopy_sys::bytes::copy(to.base as *mut u8, from.base as *const u8, len_bytes);
        }
    }
}
