//! Turning every view of the process back into plain memory: `uncopy release`, and whatever the program
//! is about to do that views would not survive.
//!
//! It is for good: nothing is elided in this process from then on. Calls that are under way when it begins
//! find their blocks plain when they come back, and copy.

use crate::range::block::{BlockRef, Locked};
use crate::service::activation::ENGINE;
use uncopy_core::page_map::Dropped;
use uncopy_sys::lock::Critical;

/// Rounds over all blocks that [`release_all`] makes before it leaves the rest to the fault service.
const MAX_ROUNDS: u32 = 8;

/// Releases everything and returns when it is done. False: some views could not be written back (no
/// memory); they go on being served.
///
/// No lock may be held. Not for the handler thread, which never waits for one.
pub fn release_all(why: &str) -> bool {
    if !ENGINE.retire(why) {
        return true;
    }
    let _critical = Critical::enter();
    let _undoing = ENGINE.foreign.begin_undo();
    (0..MAX_ROUNDS).any(|_| round(|at| Some(at.lock_for_service())))
}

/// One round for the handler thread, after [`crate::service::activation::Engine::retire`]: blocks that another
/// thread holds are left for the next one. Returns whether nothing is left.
pub(crate) fn round_without_waiting() -> bool {
    round(BlockRef::try_lock)
}

fn round(lock: impl Fn(BlockRef) -> Option<Locked>) -> bool {
    let mut is_done = true;
    ENGINE.for_each_block(|at| {
        // Locked before it is looked at: a hook may be about to register it.
        let mut dropped = Dropped::new();
        is_done &= lock(at).is_some_and(|mut locked| locked.make_plain(&mut dropped));
    });
    is_done
}
