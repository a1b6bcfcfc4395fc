//! Bytes and calls between the program and the kernel, counted in shards to keep threads apart.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use uncopy_sys::thread;

const SHARDS: usize = 32;

/// Counters on cache lines of their own.
#[repr(align(128))]
struct Shard {
    bytes: AtomicU64,
    calls: AtomicU64,
}

static COUNTERS: [Shard; SHARDS] =
    [const { Shard { bytes: AtomicU64::new(0), calls: AtomicU64::new(0) } }; SHARDS];

/// Number of bytes and calls between the program and the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes.
    pub bytes: u64,
    /// Number of calls so far.
    pub calls: u64,
}

impl Traffic {
    /// Returns the totals so far.
    #[must_use]
    pub fn total() -> Self {
        COUNTERS.iter().fold(Self::default(), |sum, shard| Self {
            bytes: sum.bytes.wrapping_add(shard.bytes.load(Relaxed)),
            calls: sum.calls.wrapping_add(shard.calls.load(Relaxed)),
        })
    }

    /// Returns the difference to an earlier total.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self { bytes: self.bytes.wrapping_sub(before.bytes), calls: self.calls.wrapping_sub(before.calls) }
    }
}

#[inline]
pub(crate) fn add(len_bytes: usize) {
    let shard = &COUNTERS[thread::number() as usize % SHARDS];
    shard.bytes.fetch_add(len_bytes as u64, Relaxed);
    shard.calls.fetch_add(1, Relaxed);
}
