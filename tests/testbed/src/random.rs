//! Bytes that differ from place to place and follow from a seed: the generator splitmix64 (public
//! domain, by Sebastiano Vigna). They are not secrets.

use uncopy_core::random::{STEP, splitmix64};

/// A random number generator, splitmix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Makes a generator whose whole sequence follows from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        splitmix64(self.0)
    }

    /// Returns `len_bytes` random bytes.
    #[must_use]
    pub fn bytes(&mut self, len_bytes: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len_bytes.next_multiple_of(8));
        while bytes.len() < len_bytes {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len_bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_follow_from_the_seed_and_have_any_length() {
        assert_eq!(Random::new(5).bytes(13), Random::new(5).bytes(16)[..13]);
        assert_ne!(Random::new(5).bytes(13), Random::new(6).bytes(13));
        assert!(Random::new(5).bytes(0).is_empty());
    }
}
