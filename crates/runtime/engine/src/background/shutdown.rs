//! Ending the handler thread in a process that has no views and will never make any.
//!
//! A program that forbids itself system calls is to run as without uncopy: the filter would apply to the
//! handler thread, too, which would keep the process alive when the filter ends the program's threads.

use crate::arena::pages::ARENA;
use crate::background::{activation, handler};
use crate::state::counters;
use crate::state::phase::{Phase, STATE};
use uncopy_sys::lock::Critical;
use uncopy_sys::thread;

/// Ends the handler thread, if there is one, after [`release_all`](crate::background::release::release_all).
/// The memory that it served is ordinary memory then.
///
/// No lock may be held.
pub fn end_handler() {
    let _critical = Critical::enter();
    let _guard = STATE.activation.guard();
    if STATE.phase() != Phase::Inactive || !thread::has_handler() || !handler::stop() {
        return;
    }
    // A thread that touches the bell's page at this moment is then served by the kernel.
    ARENA.unregister();
    activation::close_uffds();
    counters::close_control();
}
