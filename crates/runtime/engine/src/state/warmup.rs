//! The warm-up under the policy auto, for processes that may be short-lived: one forked for a connection, a short
//! command. Activating costs a few ms of processor time, most of it for measuring costs: several times the total of
//! such a process (`uncopy-bench apps socat-short`, docs/design/processes.md#when-eliding-begins). Eliding therefore
//! begins after a process has received some MiB, which are not elided, or when it accepts connections: servers live
//! long, and a cache may be filled once and then only read.

use crate::state::policy::POLICY;
use uncopy_core::options::Policy;
use uncopy_sys::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Default length of the warm-up. A relay spends ten times the cost of activating on receiving this much,
/// `cat` five times; eliding would have saved a third of that at best.
const DEFAULT_BYTES: usize = 64 << 20;

uncopy_sys::statics! {
    /// Rest of the warm-up, bytes to receive.
    static LEFT_BYTES: AtomicUsize = AtomicUsize::new(0);
    /// Whole warm-up of a process that was just forked, bytes.
    static FIRST_BYTES: AtomicUsize = AtomicUsize::new(0);
}

/// Sets the length of the warm-up; `None`: the default.
pub(crate) fn configure(first_bytes: Option<usize>) {
    let first_bytes = first_bytes.unwrap_or(DEFAULT_BYTES);
    FIRST_BYTES.store(first_bytes, Relaxed);
    LEFT_BYTES.store(first_bytes, Relaxed);
}

/// Whether the warm-up lasts. Sampling for a recording does not wait for its end.
#[inline]
pub(crate) fn is_warming_up() -> bool {
    LEFT_BYTES.load(Relaxed) > 0 && POLICY.mode() == Policy::Auto
}

/// Records the length of a large input.
#[inline]
pub fn count_received(got_bytes: usize) {
    if LEFT_BYTES.load(Relaxed) > 0 {
        let _ = LEFT_BYTES.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(got_bytes)));
    }
}

/// Ends the warm-up at once.
#[inline]
pub fn end() {
    if LEFT_BYTES.load(Relaxed) > 0 {
        LEFT_BYTES.store(0, Relaxed);
    }
}

/// Restarts the warm-up, in a forked child of a process in which eliding has not begun.
pub(crate) fn restart_in_child() {
    LEFT_BYTES.store(FIRST_BYTES.load(Relaxed), Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_early_until_so_much_was_received_and_again_in_a_child() {
        // Other tests of the process need another mode.
        let _turn = crate::state::policy::with_mode(Policy::Auto);
        configure(Some(100_000));
        assert!(is_warming_up());
        count_received(60_000);
        assert!(is_warming_up());
        count_received(60_000);
        assert!(!is_warming_up());
        restart_in_child();
        assert!(is_warming_up());
        end();
        count_received(1);
        assert!(!is_warming_up());
    }
}
