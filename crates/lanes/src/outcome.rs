//! What becomes of streams, told to whoever keeps account of it.

use std::sync::OnceLock;
use uncopy_core::streams::Outcome;

static TELL: OnceLock<fn(Outcome, i64)> = OnceLock::new();

/// `tell` is told from here on how many streams more, or fewer, have an outcome: from any thread, inside a critical section.
pub fn tell_by(tell: fn(Outcome, i64)) {
    let _ = TELL.set(tell);
}

/// A stream more has this outcome.
pub(crate) fn add(outcome: Outcome) {
    change(outcome, 1);
}

/// One fewer.
pub(crate) fn remove(outcome: Outcome) {
    change(outcome, -1);
}

fn change(outcome: Outcome, by: i64) {
    if let Some(tell) = TELL.get() {
        tell(outcome, by);
    }
}
