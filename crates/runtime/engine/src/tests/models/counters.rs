//! Counting while the page of counters is exchanged for another.

use super::DEEP;
use crate::state::counters;
use uncopy_core::stats::Counter;
use uncopy_sys::sync::{check_with_tallies, spawn};

#[test]
fn nothing_that_is_counted_is_lost_when_the_counters_are_published() {
    check_with_tallies(DEEP, || {
        let counting = spawn(|| {
            counters::add(Counter::BlocksBytes, 100);
            counters::add(Counter::BlocksBytes, 20);
            counters::subtract(Counter::BlocksBytes, 100);
        });
        let publishing = spawn(counters::publish);
        counters::add_with_peak(Counter::BlocksBytes, Counter::SegmentsPeakBytes, 3);
        counting.join().expect("thread");
        publishing.join().expect("thread");
        assert_eq!(counters::get(Counter::BlocksBytes), 23);
    });
}
