//! Allocation sites whose buffers carry large input or output.
//!
//! Only these sites get blocks; other allocations stay with the program's own allocator. A site is added
//! when one of its buffers has carried data, and removed when its blocks turn out to hold no views. To be
//! added again, it must then carry much more.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Maximum number of sites. The program's own allocator serves the others.
const SITES: usize = 512;
const PROBES: usize = 8;
/// Number of buffers that must carry data before a removed site is added again.
const BUFFERS_BEFORE_RETURN: u32 = 4096;

/// An allocation site: a return address in the program, and the length's power of two, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteKey(u64);

impl SiteKey {
    /// Returns the site of an allocation of `len_bytes` that returns to `caller`.
    #[must_use]
    pub const fn new(caller: usize, len_bytes: usize) -> Self {
        let power = if len_bytes == 0 { 0 } else { len_bytes.ilog2() };
        // User addresses have 47 bits, or 56 with five levels of page tables.
        Self((caller as u64 & ((1 << 56) - 1)) | ((power as u64 + 1) << 56))
    }

    /// Returns the site as a number that is not zero.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the site with this number: the inverse of [`SiteKey::to_bits`].
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// Set of sites that carry data: a fixed hash table with linear probing, without locks. A buffer is not
/// counted if two threads update its site at once.
pub struct Carriers {
    keys: [AtomicU64; SITES],
    /// Number of buffers that must still carry data before the site is in the set.
    missing: [AtomicU32; SITES],
}

impl Default for Carriers {
    fn default() -> Self {
        Self::new()
    }
}

impl Carriers {
    /// Returns an empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { keys: [const { AtomicU64::new(0) }; SITES], missing: [const { AtomicU32::new(0) }; SITES] }
    }

    fn slots(key: SiteKey) -> impl Iterator<Item = usize> {
        let first = (key.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % SITES;
        (0..PROBES).map(move |probe| (first + probe) % SITES)
    }

    fn find(&self, key: SiteKey) -> Option<usize> {
        Self::slots(key).find(|slot| self.keys[*slot].load(Relaxed) == key.0)
    }

    /// Whether buffers of the site carry data.
    #[must_use]
    pub fn contains(&self, key: SiteKey) -> bool {
        self.find(key).is_some_and(|slot| self.missing[slot].load(Relaxed) == 0)
    }

    /// Counts a buffer of the site that has carried data.
    pub fn record_carried(&self, key: SiteKey) {
        let slot = self.find(key).or_else(|| {
            let claim = |slot: &usize| self.keys[*slot].compare_exchange(0, key.0, Relaxed, Relaxed).is_ok();
            Self::slots(key).find(claim)
        });
        if let Some(missing) = slot.map(|slot| &self.missing[slot]) {
            let left = missing.load(Relaxed);
            if left > 0 {
                missing.store(left - 1, Relaxed);
            }
        }
    }

    /// Removes a site whose blocks hold no views.
    pub fn remove(&self, key: SiteKey) {
        if let Some(slot) = self.find(key) {
            self.missing[slot].store(BUFFERS_BEFORE_RETURN, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_a_caller_and_a_power_of_two() {
        let carriers = Carriers::new();
        carriers.record_carried(SiteKey::new(0x4000, 100_000));
        assert!(carriers.contains(SiteKey::new(0x4000, 65_536)));
        assert!(!carriers.contains(SiteKey::new(0x4000, 65_535)));
        assert!(!carriers.contains(SiteKey::new(0x4000, 131_072)));
        assert!(!carriers.contains(SiteKey::new(0x4001, 100_000)));
    }

    #[test]
    fn a_site_that_left_must_carry_much_before_it_returns() {
        let carriers = Carriers::new();
        let key = SiteKey::new(0x7fff_0000_1234, 1 << 20);
        carriers.record_carried(key);
        carriers.remove(key);
        for _ in 1..BUFFERS_BEFORE_RETURN {
            carriers.record_carried(key);
        }
        assert!(!carriers.contains(key));
        carriers.record_carried(key);
        assert!(carriers.contains(key));
    }

    #[test]
    fn a_full_table_leaves_further_sites_out() {
        let carriers = Carriers::new();
        let keys: Vec<_> = (1..4 * SITES).map(|site| SiteKey::new(site * 16, 40_000)).collect();
        keys.iter().for_each(|key| carriers.record_carried(*key));
        let known = keys.iter().filter(|key| carriers.contains(**key)).count();
        assert!((SITES / 2..=SITES).contains(&known), "{known}");
        assert!(!carriers.contains(SiteKey::new(0xdead_0000, 40_000)));
    }
}
