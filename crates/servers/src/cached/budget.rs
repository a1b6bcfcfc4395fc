//! How much memory the cache may use, and how much it does: `used = values in the store + values that responses still
//! need + metadata of items`; values that clients are still sending are counted apart, so that nobody's data are
//! evicted for a value that never comes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What an item costs besides its value and its key, bytes: the entry, its place in the table, its share of the
/// value's own bookkeeping. An estimate.
pub const ITEM_OVERHEAD_BYTES: usize = 160;

/// The account of one cache.
#[derive(Debug)]
pub struct Budget {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
    arriving_bytes: AtomicUsize,
    refusals: AtomicU64,
}

impl Budget {
    /// A budget of `limit_bytes` for the store and as much again for values that are still arriving.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            used_bytes: AtomicUsize::new(0),
            arriving_bytes: AtomicUsize::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    /// What the store may use, bytes.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// What is used, bytes.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Relaxed)
    }

    /// Whether `bytes` more would be too much.
    pub fn is_exceeded_by(&self, bytes: usize) -> bool {
        self.used_bytes().saturating_add(bytes) > self.limit_bytes
    }

    /// Counts `bytes` as used.
    pub fn charge(&self, bytes: usize) {
        self.used_bytes.fetch_add(bytes, Relaxed);
    }

    /// Gives back what was charged.
    pub fn release(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Relaxed);
    }

    /// Counts `bytes` that a client announced, unless too many are arriving already.
    #[must_use]
    pub fn expect(&self, bytes: usize) -> bool {
        let before = self.arriving_bytes.fetch_add(bytes, Relaxed);
        let fits = before.saturating_add(bytes) <= self.limit_bytes;
        if !fits {
            self.arriving_bytes.fetch_sub(bytes, Relaxed);
            self.refuse();
        }
        fits
    }

    /// What was announced has arrived, or will not.
    pub fn expect_no_more(&self, bytes: usize) {
        self.arriving_bytes.fetch_sub(bytes, Relaxed);
    }

    /// Notes that something was refused for want of memory.
    pub fn refuse(&self) {
        self.refusals.fetch_add(1, Relaxed);
    }

    /// How often something was refused.
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_does_not_count_as_used_and_has_a_limit_of_its_own() {
        let budget = Budget::new(100);
        assert!(budget.expect(60));
        assert!(!budget.expect(41) && !budget.expect(usize::MAX));
        assert_eq!((budget.used_bytes(), budget.refusals()), (0, 2));
        assert!(budget.expect(40));
        budget.expect_no_more(100);
        assert!(budget.expect(100));
        budget.charge(70);
        assert!(budget.is_exceeded_by(31) && !budget.is_exceeded_by(30) && budget.is_exceeded_by(usize::MAX));
        budget.release(70);
        assert_eq!(budget.used_bytes(), 0);
    }
}
