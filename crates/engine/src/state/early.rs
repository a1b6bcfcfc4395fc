//! Processes that may not live long, under the policy auto: one that was forked for a connection, a short command. To begin with eliding
//! takes some ms of processor time, most of it for measuring costs, which is several times what such a process needs in all
//! (`uncopy bench apps socat-short`, docs/decisions/061). So it waits until it has received some MiB, which stay as they are,
//! unless it accepts connections itself: servers live long, and a cache may be filled once and read ever after.

use crate::state::policy::POLICY;
use uncopy_core::options::Policy;
use uncopy_sys::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A relay takes ten times as long for so much as to begin takes, `cat` five times. Eliding would have saved a third of that at best.
const DEFAULT_BYTES: usize = 64 << 20;

uncopy_sys::statics! {
    /// What the process is to receive yet before eliding begins, bytes.
    static LEFT_BYTES: AtomicUsize = AtomicUsize::new(0);
    /// The same for one that has just been forked.
    static FIRST_BYTES: AtomicUsize = AtomicUsize::new(0);
}

/// Eliding begins after so many bytes, or the usual number.
pub(crate) fn configure(first_bytes: Option<usize>) {
    let first_bytes = first_bytes.unwrap_or(DEFAULT_BYTES);
    FIRST_BYTES.store(first_bytes, Relaxed);
    LEFT_BYTES.store(first_bytes, Relaxed);
}

/// Whether it is too early for eliding. What is sampled for a recording is sampled at once.
#[inline]
pub(crate) fn is_early() -> bool {
    LEFT_BYTES.load(Relaxed) > 0 && POLICY.mode() == Policy::Auto
}

/// Takes note of what a large input brought.
#[inline]
pub fn note(got_bytes: usize) {
    if LEFT_BYTES.load(Relaxed) > 0 {
        let _ = LEFT_BYTES.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(got_bytes)));
    }
}

/// It is early no longer.
#[inline]
pub fn end() {
    if LEFT_BYTES.load(Relaxed) > 0 {
        LEFT_BYTES.store(0, Relaxed);
    }
}

/// In a forked child of a process in which eliding has not begun.
pub(crate) fn in_child() {
    LEFT_BYTES.store(FIRST_BYTES.load(Relaxed), Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_early_until_so_much_was_received_and_again_in_a_child() {
        configure(Some(100_000));
        assert!(is_early());
        note(60_000);
        assert!(is_early());
        note(60_000);
        assert!(!is_early());
        in_child();
        assert!(is_early());
        end();
        note(1);
        assert!(!is_early());
    }
}
