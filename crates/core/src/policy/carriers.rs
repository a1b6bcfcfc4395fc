//! Allocation sites whose buffers carry large input or output, by caller and size.
//!
//! Only these sites get blocks of the block heap: memory that carries no data stays with the program's own allocator. A site
//! enters when a buffer of it has carried data, and leaves when its blocks turn out to hold no views. It then has to carry
//! much more before it enters again.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Sites that are known at a time. Another one is served by the program's own allocator.
const SITES: usize = 512;
const PROBES: usize = 8;
/// Buffers that must carry data before a site that has left enters again.
const BUFFERS_BEFORE_RETURN: u32 = 4096;

/// An allocation site: the return address in the program, and the power of two below the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteKey(u64);

impl SiteKey {
    /// The site that asks for `len_bytes` and returns to `caller`.
    #[must_use]
    pub const fn new(caller: usize, len_bytes: usize) -> Self {
        let power = if len_bytes == 0 { 0 } else { len_bytes.ilog2() };
        // User addresses have 47 bits, or 56 with five levels of page tables.
        Self((caller as u64 & ((1 << 56) - 1)) | ((power as u64 + 1) << 56))
    }

    /// As a number that is not zero.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The inverse of [`SiteKey::to_bits`].
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// The sites that carry data: a fixed hash table with linear probing, without locks. A lost update is a buffer that does not count.
pub struct Carriers {
    keys: [AtomicU64; SITES],
    /// Buffers that must still carry data before the site counts; 0: it does.
    missing: [AtomicU32; SITES],
}

impl Default for Carriers {
    fn default() -> Self {
        Self::new()
    }
}

impl Carriers {
    /// No site.
    #[must_use]
    pub const fn new() -> Self {
        Self { keys: [const { AtomicU64::new(0) }; SITES], missing: [const { AtomicU32::new(0) }; SITES] }
    }

    fn places(key: SiteKey) -> impl Iterator<Item = usize> {
        let first = (key.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % SITES;
        (0..PROBES).map(move |probe| (first + probe) % SITES)
    }

    fn find(&self, key: SiteKey) -> Option<usize> {
        Self::places(key).find(|place| self.keys[*place].load(Relaxed) == key.0)
    }

    /// Whether buffers of the site carry data.
    #[must_use]
    pub fn contains(&self, key: SiteKey) -> bool {
        self.find(key).is_some_and(|place| self.missing[place].load(Relaxed) == 0)
    }

    /// Notes that a buffer of the site has carried data.
    pub fn carried(&self, key: SiteKey) {
        let place = self.find(key).or_else(|| {
            let claim =
                |place: &usize| self.keys[*place].compare_exchange(0, key.0, Relaxed, Relaxed).is_ok();
            Self::places(key).find(claim)
        });
        if let Some(missing) = place.map(|place| &self.missing[place]) {
            let left = missing.load(Relaxed);
            if left > 0 {
                missing.store(left - 1, Relaxed);
            }
        }
    }

    /// Notes that blocks of the site hold no views.
    pub fn leave(&self, key: SiteKey) {
        if let Some(place) = self.find(key) {
            self.missing[place].store(BUFFERS_BEFORE_RETURN, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_a_caller_and_a_power_of_two() {
        let carriers = Carriers::new();
        carriers.carried(SiteKey::new(0x4000, 100_000));
        assert!(carriers.contains(SiteKey::new(0x4000, 65_536)));
        assert!(!carriers.contains(SiteKey::new(0x4000, 65_535)));
        assert!(!carriers.contains(SiteKey::new(0x4000, 131_072)));
        assert!(!carriers.contains(SiteKey::new(0x4001, 100_000)));
    }

    #[test]
    fn a_site_that_left_must_carry_much_before_it_returns() {
        let carriers = Carriers::new();
        let key = SiteKey::new(0x7fff_0000_1234, 1 << 20);
        carriers.carried(key);
        carriers.leave(key);
        for _ in 1..BUFFERS_BEFORE_RETURN {
            carriers.carried(key);
        }
        assert!(!carriers.contains(key));
        carriers.carried(key);
        assert!(carriers.contains(key));
    }

    #[test]
    fn a_full_table_leaves_further_sites_out() {
        let carriers = Carriers::new();
        let keys: Vec<_> = (1..4 * SITES).map(|site| SiteKey::new(site * 16, 40_000)).collect();
        keys.iter().for_each(|key| carriers.carried(*key));
        let known = keys.iter().filter(|key| carriers.contains(**key)).count();
        assert!((SITES / 2..=SITES).contains(&known), "{known}");
        assert!(!carriers.contains(SiteKey::new(0xdead_0000, 40_000)));
    }
}
