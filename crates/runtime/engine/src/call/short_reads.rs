//! Short reads: call sites with large buffers that receive little, such as datagrams, requests and protocols with
//! small messages. Their inputs skip the engine, except for one in a while and after a large one.

use crate::state::policy::POLICY;
use crate::state::{gate, warmup};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use uncopy_core::options::Policy;

/// Number of short reads in a row after which the next one is expected to be short.
const SHORT_IN_A_ROW: u8 = 16;
/// Number of short reads in a row after which one is examined all the same.
const EXAMINE_AFTER: u8 = 128;
/// Number of counters; call sites that share a counter are treated as one.
const COUNTERS: usize = 256;

/// Number of short reads in a row, for each site.
static SHORT_READS: [AtomicU8; COUNTERS] = [const { AtomicU8::new(0) }; COUNTERS];

fn counter(caller: usize) -> &'static AtomicU8 {
    // Call instructions are several bytes long.
    &SHORT_READS[(caller >> 2 ^ caller >> 11) % COUNTERS]
}

/// Whether an input of this call site is likely to be short, so that it should skip the engine.
#[inline]
#[must_use]
pub fn is_likely(caller: usize) -> bool {
    let short_reads = counter(caller).load(Relaxed);
    (SHORT_IN_A_ROW..EXAMINE_AFTER).contains(&short_reads) && POLICY.mode() == Policy::Auto
}

/// Records the length of an input of this call site with a large buffer.
#[inline]
pub fn record(caller: usize, got_bytes: usize) {
    warmup::count_received(got_bytes);
    let counter = counter(caller);
    let short_reads = counter.load(Relaxed);
    let next = next(short_reads, got_bytes >= gate::min_engine_bytes());
    if next != short_reads {
        // Updates lost between threads are inputs that do not count.
        counter.store(next, Relaxed);
    }
}

const fn next(short_reads: u8, is_large: bool) -> u8 {
    match short_reads {
        _ if is_large => 0,
        EXAMINE_AFTER.. => SHORT_IN_A_ROW,
        short_reads => short_reads + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_brings_much_is_enough_to_look_again() {
        let is_likely = |short_reads| (SHORT_IN_A_ROW..EXAMINE_AFTER).contains(&short_reads);
        let first = (0..SHORT_IN_A_ROW).fold(0, |short_reads, _| next(short_reads, false));
        assert!(is_likely(first) && !is_likely(first - 1));
        let all =
            core::iter::successors(Some(first), |short_reads| Some(next(*short_reads, false))).take(1000);
        assert!(
            (5..15).contains(&all.filter(|short_reads| !is_likely(*short_reads)).count()),
            "now and then"
        );
        assert_eq!(next(first, true), 0);
    }
}
