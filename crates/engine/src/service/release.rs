//! Turning every view of the process back into plain memory: `uncopy release`, and whatever the program
//! is about to do that views would not survive.
//!
//! It is for good: nothing is elided in this process from then on. Calls that are under way when it begins
//! find their blocks plain when they come back, and copy.

use crate::arena::pages::ARENA;
use crate::range::block::{BlockRef, Locked};
use crate::range::changes::CHANGES;
use crate::range::directory;
use crate::state::phase::STATE;
use uncopy_core::page_map::Dropped;
use uncopy_sys::lock::Critical;

/// Rounds over all blocks that [`release_all`] makes before it leaves the rest to the fault service.
const MAX_ROUNDS: u32 = 8;

/// Ends elision for good, without a message: for a reason that is not a failure. Returns whether there is a
/// userfaultfd, which goes on serving what views there are.
pub(crate) fn retire(why: &str) -> bool {
    let _critical = Critical::enter();
    let _guard = STATE.activation.guard();
    STATE.retire(why);
    ARENA.descriptor().open().is_some()
}

/// The same for a thread that never waits: false if it must be tried again.
pub(crate) fn try_retire(why: &str) -> bool {
    let is_free = STATE.activation.try_lock();
    if is_free {
        STATE.retire(why);
        STATE.activation.unlock();
    }
    is_free
}

/// Releases everything and returns when it is done. False: some views could not be written back (no
/// memory); they go on being served.
///
/// No lock may be held. Not for the handler thread, which never waits for one.
pub fn release_all(why: &str) -> bool {
    if !retire(why) {
        return true;
    }
    let _critical = Critical::enter();
    let _undoing = CHANGES.begin_undo();
    (0..MAX_ROUNDS).any(|_| round(|at| Some(at.lock_for_service())))
}

/// Turns everything back into plain memory where uncopy's own data had to come from the reserve. Called
/// where no lock is held.
#[inline]
pub fn release_if_low() {
    if uncopy_sys::alloc::is_low() && STATE.is_active() {
        let why = "the kernel gives no memory for uncopy's own data";
        release_all(why);
        STATE.say_once(why);
    }
}

/// One round for the handler thread, after [`try_retire`]: blocks that another thread holds are left for the next one.
/// Returns whether nothing is left.
pub(crate) fn round_without_waiting() -> bool {
    round(BlockRef::try_lock)
}

fn round(lock: impl Fn(BlockRef) -> Option<Locked>) -> bool {
    let mut is_done = true;
    directory::for_each_block(|at| {
        // Locked before it is looked at: a hook may be about to register it.
        let mut dropped = Dropped::new();
        is_done &= lock(at).is_some_and(|mut locked| locked.make_plain(&mut dropped));
    });
    is_done
}
