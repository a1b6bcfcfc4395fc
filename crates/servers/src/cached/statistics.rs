//! Counters, a set for each thread, and what `stats` tells.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[$doc])* $variant,)*
        }

        impl Counter {
            /// All of them, in the order in which `stats` tells them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name in `stats`; that of memcached where that has it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

counters! {
    /// Keys asked for.
    Gets => "cmd_get",
    /// Values sent to be stored.
    Sets => "cmd_set",
    /// Flushes.
    Flushes => "cmd_flush",
    /// Expiry times changed, or tried to.
    Touches => "cmd_touch",
    /// Meta commands.
    Metas => "cmd_meta",
    /// Keys found.
    GetHits => "get_hits",
    /// Keys not found.
    GetMisses => "get_misses",
    /// Deletions of what was not there.
    DeleteMisses => "delete_misses",
    /// Deletions.
    DeleteHits => "delete_hits",
    /// Increments of what was not there.
    IncrementMisses => "incr_misses",
    /// Increments.
    IncrementHits => "incr_hits",
    /// Decrements of what was not there.
    DecrementMisses => "decr_misses",
    /// Decrements.
    DecrementHits => "decr_hits",
    /// Versions compared with what was not there.
    CasMisses => "cas_misses",
    /// Versions that matched.
    CasHits => "cas_hits",
    /// Versions that did not.
    CasBad => "cas_badval",
    /// Expiry times changed.
    TouchHits => "touch_hits",
    /// Expiry times of what was not there.
    TouchMisses => "touch_misses",
    /// Values refused for their length.
    TooLarge => "store_too_large",
    /// Values refused for want of memory.
    NoMemory => "store_no_memory",
    /// Bytes received.
    BytesRead => "bytes_read",
    /// Bytes sent.
    BytesWritten => "bytes_written",
    /// Datagrams received.
    Datagrams => "udp_requests",
    /// Datagrams that could not be sent.
    DatagramsDropped => "udp_dropped",
    /// Connections closed because they were idle for too long.
    IdleKicks => "idle_kicks",
    /// Connections closed because they did not read while memory was short.
    StalledKicks => "stalled_kicks",
    /// Messages whose large values were not copied by us.
    Referenced => "messages_by_reference",
}

/// The counters of one thread, which alone changes them.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counters([AtomicU64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counters {
    /// One more.
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// `amount` more. Only by the thread that they belong to.
    pub fn add(&self, counter: Counter, amount: u64) {
        let cell = &self.0[counter as usize];
        cell.store(cell.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    /// The value of one.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Relaxed)
    }
}

/// The sum over all threads.
pub fn total(threads: &[Counters], counter: Counter) -> u64 {
    threads.iter().map(|counters| counters.get(counter)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_up_under_names_of_their_own() {
        let threads = [Counters::default(), Counters::default()];
        threads[0].count(Counter::Gets);
        threads[1].add(Counter::Gets, 4);
        assert_eq!((total(&threads, Counter::Gets), total(&threads, Counter::Sets)), (5, 0));
        let mut names: Vec<_> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Counter::ALL.len());
    }
}
