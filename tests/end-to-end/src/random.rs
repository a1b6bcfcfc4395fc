//! Reproducible randomness: one seed decides a whole walk and is printed when it fails.

pub use uncopy_core::random::{splitmix64 as mix, test_size};

/// A random number generator for tests.
#[derive(Clone, Debug)]
pub struct Random(uncopy_testbed::Random);

impl Random {
    /// Makes a generator whose whole sequence follows from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(uncopy_testbed::Random::new(mix(seed ^ 0x5851_f42d_4c95_7f2d)))
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next()
    }

    /// A number in `0..limit`.
    ///
    /// # Panics
    /// When `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        assert!(limit > 0, "an empty range has no random member");
        let product = u128::from(self.next_u64()) * limit as u128;
        usize::try_from(product >> 64).expect("smaller than limit")
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True once in `every` draws, on average.
    pub fn one_in(&mut self, every: usize) -> bool {
        self.below(every) == 0
    }

    /// A random member of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A length in `1..=high`: often a page, threshold or buffer boundary give or take one byte,
    /// else spread evenly over the orders of magnitude.
    pub fn length(&mut self, high: usize) -> usize {
        const BOUNDARIES: &[usize] = &[4096, 8192, 16384, 32768, 65536, 131_072, 262_144, 524_288, 1 << 20];
        let length = match self.below(8) {
            0..=3 => {
                let boundary = self.pick(BOUNDARIES);
                self.pick(&[
                    boundary - 1,
                    boundary,
                    boundary + 1,
                    boundary + 33,
                    2 * boundary - 7,
                    3 * boundary,
                ])
            }
            4 => self.between(1, 64),
            5 => self.between(1, high),
            _ => {
                let magnitude = self.below(usize::BITS as usize - high.leading_zeros() as usize);
                (1 << magnitude) + self.below(1 << magnitude)
            }
        };
        length.clamp(1, high)
    }

    /// A range inside `0..len`, not empty: `(start, length)`.
    pub fn range(&mut self, len: usize) -> (usize, usize) {
        let length = self.length(len);
        let room = len - length;
        let start = match self.below(4) {
            0 => 0,
            1 => room,
            2 => room.min(self.below(room / 4096 + 1) * 4096),
            _ => self.below(room + 1),
        };
        (start, length)
    }
}

/// The seed of a walk: `UNCOPY_TEST_SEED` when set, else `default`.
///
/// # Panics
/// When the variable is not a number.
#[must_use]
pub fn seed(default: u64) -> u64 {
    std::env::var("UNCOPY_TEST_SEED")
        .map_or(default, |text| text.parse().expect("UNCOPY_TEST_SEED is a number"))
}

/// Returns `usual` in tests at most as large as in `make test-all`, and more in larger ones. For
/// scenarios that show nothing when they are shorter.
///
/// # Panics
/// When the number does not fit a `usize`.
#[must_use]
pub fn rounds(usual: usize) -> usize {
    let factor = usize::try_from((test_size() / 10).max(1)).expect("a factor");
    usual.checked_mul(factor).expect("UNCOPY_TEST_SIZE is small enough for the number of rounds")
}

/// Random bytes for the harness (not for programs that check themselves: see `oracle::fill`).
#[must_use]
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    Random::new(seed).0.bytes(len)
}

/// The hexadecimal digits of bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| DIGITS[usize::from(digit)]);
    digits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_lengths_and_ranges_are_in_bounds() {
        let mut random = Random::new(1);
        for high in [1, 2, 4095, 4096, 100_000, 3 << 20] {
            for _ in 0..2000 {
                assert!((1..=high).contains(&random.length(high)));
                let (start, length) = random.range(high);
                assert!(length > 0 && start + length <= high);
            }
        }
    }
}
