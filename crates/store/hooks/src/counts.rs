//! Counters of the log.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use uncopy_core::stats::Counter;
use uncopy_engine::background::activation;
use uncopy_engine::state::counters;
use uncopy_store::program as store;
use uncopy_store::program::chunk_pool::optimistic_inputs;

/// Creates the file of the counters, once: the engine, which does so too, may not be needed.
fn publish_counters() {
    static ARE_PUBLISHED: AtomicBool = AtomicBool::new(false);
    if !ARE_PUBLISHED.load(Relaxed) && !ARE_PUBLISHED.swap(true, Relaxed) {
        activation::begin_without_engine();
    }
}

/// Counts a write that went to a mapped log alone, of which records refer to `referenced_bytes`.
pub fn count_append(len_bytes: usize, referenced_bytes: usize) {
    static INPUTS: AtomicU64 = AtomicU64::new(0);
    static MISSES: AtomicU64 = AtomicU64::new(0);
    publish_counters();
    counters::add(Counter::LogAppends, 1);
    counters::add(Counter::LogAppendedBytes, len_bytes);
    counters::add(Counter::LogReferencedBytes, referenced_bytes);
    let (inputs, misses) = optimistic_inputs();
    add_more(Counter::LogOptimisticInputs, &INPUTS, inputs);
    add_more(Counter::LogOptimisticMisses, &MISSES, misses);
}

/// Adds what a number that only grows has more than was `counted` before.
fn add_more(counter: Counter, counted: &AtomicU64, now: u64) {
    if now > counted.load(Relaxed) {
        counters::add(counter, now.saturating_sub(counted.fetch_max(now, Relaxed)) as usize);
    }
}

/// Counts a sync that the log has answered, and the bytes that it made durable.
pub fn count_sync(len_bytes: usize) {
    publish_counters();
    counters::add(Counter::LogSyncs, 1);
    counters::add(Counter::LogBytes, len_bytes);
}

/// Counts the files that have left a mapped log since the last call.
pub fn count_departures() {
    static COUNTED: AtomicU64 = AtomicU64::new(0);
    add_more(Counter::LogDepartures, &COUNTED, store::mapped_departures());
}
