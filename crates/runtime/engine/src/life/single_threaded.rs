//! Calls that only a single-threaded process may make, or that should apply to every thread: the handler
//! thread ends before such a call and is started again after it.
//!
//! No view may be touched meanwhile: the caller is the only thread, no signal handler of the program runs,
//! and the call reads and writes no memory of the program.

use crate::arena::pages::ARENA;
use crate::background::{handler, release};
use crate::life::fork;
use crate::range::changes::CHANGES;
use crate::state::counters;
use crate::state::phase::STATE;
use uncopy_core::stats::Counter;
use uncopy_sys::lock::Critical;
use uncopy_sys::{errno, ids, thread};

const REASON: &str = "the handler thread could not be started again in another namespace";

/// Makes `call` without a handler thread in the process if the program has only one thread; otherwise
/// unchanged. Preserves the `errno` that `call` leaves.
///
/// If no handler thread can be started afterwards (a call has put later processes into another pid
/// namespace, where this process cannot create threads), every view is turned into plain memory.
pub fn without_handler<T>(call: impl FnOnce() -> T) -> T {
    let main = ARENA.descriptor().open();
    let Some(main) = main.filter(|_| thread::has_handler() && !thread::has_other_threads()) else {
        return call();
    };
    let critical = Critical::enter();
    if !handler::stop() {
        drop(critical);
        return call();
    }
    counters::close_control();
    let user = ids::effective_user();
    let result = call();
    let errno = errno::get();
    counters::unpublish_if_user_changed(user);
    let is_needed = STATE.is_active() || counters::get(Counter::Views) > 0;
    if is_needed && handler::start(main, CHANGES.open()).is_err() {
        let is_released = release::release_all(REASON);
        main.close_if_ours();
        if !is_released {
            fork::fill_all_views();
        }
    }
    drop(critical);
    errno::set(errno);
    result
}
