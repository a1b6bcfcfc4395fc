//! The end of the handler thread in a process that holds no views any more and never will again.
//!
//! A program that forbids itself system calls is to be as it would be without us: a thread of ours would be one that the
//! filter judges, too, and one that keeps the process alive when the filter ends the program's threads.

use crate::arena::pages::ARENA;
use crate::service::{activation, handler};
use crate::state::counters;
use crate::state::phase::{Phase, STATE};
use uncopy_sys::lock::Critical;
use uncopy_sys::thread;

/// Ends the handler thread, if there is one, after [`release_all`](crate::service::release::release_all) has released
/// everything. Whatever it served is ordinary memory then.
///
/// No lock may be held.
pub fn end_handler() {
    let _critical = Critical::enter();
    let _guard = STATE.activation.guard();
    if STATE.phase() != Phase::Inactive || !thread::handler_lives() || !handler::stop() {
        return;
    }
    // Whoever rings the bell of upkeep at this moment waits for nobody.
    ARENA.unregister();
    activation::close_uffds();
    counters::close_control();
}
