//! Statistics of streams by outcome, reported to a callback.

use std::sync::OnceLock;
use uncopy_core::streams::Outcome;

static TELL: OnceLock<fn(Outcome, i64)> = OnceLock::new();

/// Sets the callback for changes of the counts; called from any thread, inside a critical section.
pub fn set_callback(tell: fn(Outcome, i64)) {
    let _ = TELL.set(tell);
}

/// Counts a stream with this outcome.
pub(crate) fn add(outcome: Outcome) {
    change(outcome, 1);
}

/// Discounts a stream with this outcome.
pub(crate) fn remove(outcome: Outcome) {
    change(outcome, -1);
}

fn change(outcome: Outcome, by: i64) {
    if let Some(tell) = TELL.get() {
        tell(outcome, by);
    }
}
