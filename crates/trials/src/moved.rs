//! Bytes and calls between the program and the kernel, counted by each thread for itself.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use uncopy_sys::thread;

const SHARDS: usize = 32;

/// Cache lines that no other shard shares.
#[repr(align(128))]
struct Shard {
    bytes: AtomicU64,
    calls: AtomicU64,
}

static SHARD: [Shard; SHARDS] =
    [const { Shard { bytes: AtomicU64::new(0), calls: AtomicU64::new(0) } }; SHARDS];

/// What calls have moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes.
    pub bytes: u64,
    /// Calls.
    pub calls: u64,
}

impl Moved {
    /// All so far.
    #[must_use]
    pub fn so_far() -> Self {
        SHARD.iter().fold(Self::default(), |sum, shard| Self {
            bytes: sum.bytes.wrapping_add(shard.bytes.load(Relaxed)),
            calls: sum.calls.wrapping_add(shard.calls.load(Relaxed)),
        })
    }

    /// What was moved since `before`.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self { bytes: self.bytes.wrapping_sub(before.bytes), calls: self.calls.wrapping_sub(before.calls) }
    }
}

#[inline]
pub(crate) fn add(len_bytes: usize) {
    let shard = &SHARD[thread::number() as usize % SHARDS];
    shard.bytes.fetch_add(len_bytes as u64, Relaxed);
    shard.calls.fetch_add(1, Relaxed);
}
