//! Release: turns every view of the process back into plain memory, for `uncopy release` and before actions
//! of the program that views would not survive.
//!
//! Release is permanent: nothing is elided in this process from then on. Calls in progress find their
//! blocks plain when they return, and copy.

use crate::arena::pages::ARENA;
use crate::arena::segment::Segment;
use crate::range::block::BlockRef;
use crate::range::changes::{CHANGES, SETTLE_TRIES};
use crate::range::directory;
use crate::state::phase::STATE;
use uncopy_core::page_map::Dropped;
use uncopy_sys::lock::Critical;

/// Number of passes over all blocks before [`release_all`] leaves the rest to the handler.
const MAX_ROUNDS: u32 = 8;

/// Ends eliding for good, without a message, for a reason that is not a failure. Returns whether there is a
/// userfaultfd, which still serves the remaining views.
pub(crate) fn retire(why: &str) -> bool {
    let _critical = Critical::enter();
    let _guard = STATE.activation.guard();
    STATE.retire(why);
    ARENA.descriptor().open().is_some()
}

/// Ends eliding as [`retire`] does, but without waiting; false: retry.
pub(crate) fn try_retire(why: &str) -> bool {
    let is_free = STATE.activation.try_lock();
    if is_free {
        STATE.retire(why);
        STATE.activation.unlock();
    }
    is_free
}

/// Releases all views and waits until that is done. False: some bytes could not be placed (no memory);
/// their faults are still served.
///
/// No lock may be held. Not for the handler thread, which never waits for one.
pub fn release_all(why: &str) -> bool {
    if !retire(why) {
        return true;
    }
    let _critical = Critical::enter();
    let mut tries = SETTLE_TRIES;
    (0..MAX_ROUNDS).any(|_| round(|at, dropped| make_plain(at, &mut tries, dropped)))
}

/// Makes a block plain. For a foreign range, changes are not read meanwhile, unless the handler did not
/// follow earlier ones within `tries`.
fn make_plain(at: BlockRef, tries: &mut u32, dropped: &mut Dropped<Segment>) -> bool {
    loop {
        let mut locked = at.lock_for_handler();
        let guard = at.slot.and_then(|_| CHANGES.try_hold_settled());
        if at.slot.is_none() || guard.is_some() || *tries == 0 {
            return locked.make_plain(dropped);
        }
        drop(locked);
        *tries -= 1;
        uncopy_sys::thread::pause();
    }
}

/// Releases all views if uncopy's own data had to come from the reserve. To be called with no lock held.
#[inline]
pub fn release_if_memory_low() {
    if uncopy_sys::alloc::is_low() && STATE.is_active() {
        let why = "the kernel gives no memory for uncopy's own data";
        release_all(why);
        STATE.warn_once(why);
    }
}

/// Makes one pass for the handler thread, after [`try_retire`]; blocks that another thread has locked are
/// left for the next pass. Returns whether nothing is left.
pub(crate) fn try_release_pass() -> bool {
    round(|at, dropped| at.try_lock().is_some_and(|mut locked| locked.make_plain(dropped)))
}

/// Calls `make_plain` for every block. It must lock the block before examining it: a hook may be about to
/// register it.
fn round(mut make_plain: impl FnMut(BlockRef, &mut Dropped<Segment>) -> bool) -> bool {
    let mut is_done = true;
    directory::for_each_block(|at| {
        let mut dropped = Dropped::new();
        is_done &= make_plain(at, &mut dropped);
    });
    is_done
}
