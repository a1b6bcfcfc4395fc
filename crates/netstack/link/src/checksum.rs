//! The Internet checksum: the complement of a ones'-complement sum of 16-bit words (RFC 1071).
//!
//! Sums are computed in native byte order, four bytes at a time, and swapped at the end (RFC 1071,
//! section 2).

/// A running sum over consecutive parts of any length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    words: u64,
    is_odd: bool,
}

impl Sum {
    /// Adds the bytes that follow those added before.
    pub fn add(&mut self, bytes: &[u8]) {
        let part = fold(sum(bytes));
        self.words += u64::from(if self.is_odd { part.swap_bytes() } else { part });
        self.is_odd ^= !bytes.len().is_multiple_of(2);
    }

    /// Returns the uncomplemented sum as a big-endian field holds it: for a pseudo-header the value
    /// that checksum offload expects, and 0xffff for data that includes its own valid checksum.
    #[must_use]
    pub fn folded(self) -> u16 {
        u16::from_be(fold(self.words))
    }

    /// Returns the complement of the sum: the checksum field.
    #[must_use]
    pub fn checksum(self) -> u16 {
        !self.folded()
    }

    /// True if the summed data includes its own valid checksum.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.folded() == 0xffff
    }
}

/// Returns the sum in native byte order. Fewer than 2^32 words of four bytes cannot overflow.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum::<u64>()
        + u64::from(u32::from_ne_bytes(last))
}

fn fold(mut words: u64) -> u16 {
    while words > 0xffff {
        words = (words & 0xffff) + (words >> 16);
    }
    words as u16
}

/// Returns the sum of a pseudo-header (RFC 9293, section 3.1; RFC 8200, section 8.1). `addresses`
/// are the source and destination, adjacent as in the IP header.
///
/// # Panics
/// If the length exceeds 32 bits.
#[must_use]
pub fn pseudo_header(addresses: &[u8], protocol: u8, len_bytes: usize) -> Sum {
    let mut sum = Sum::default();
    sum.add(addresses);
    sum.add(&u32::try_from(len_bytes).expect("an IP packet").to_be_bytes());
    sum.add(&[0, protocol]);
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) * 256 + u32::from(*pair.get(1).unwrap_or(&0));
            if sum > 0xffff {
                sum = sum - 0x1_0000 + 1;
            }
        }
        u16::try_from(sum).unwrap()
    }

    /// Returns the sum of `bytes`, added in parts that are split at `cuts`.
    fn of_parts(bytes: &[u8], cuts: &[usize]) -> Sum {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut sum = Sum::default();
        for pair in cuts.windows(2) {
            sum.add(&bytes[pair[0]..pair[1]]);
        }
        sum
    }

    proptest! {
        #[test]
        fn sums_of_any_parts_are_as_the_naive_one(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xff), Just(0)], 0..3000),
            cuts in prop::collection::vec(any::<usize>(), 0..6),
        ) {
            prop_assert_eq!(of_parts(&bytes, &cuts).folded(), naive(&bytes));
        }

        #[test]
        fn checksummed_data_is_valid_until_a_bit_flips(
            mut bytes in prop::collection::vec(any::<u8>(), 2..2000), at: usize, bit in 0u8..8,
        ) {
            let field = at % (bytes.len() / 2) * 2;
            bytes[field..field + 2].fill(0);
            let checksum = of_parts(&bytes, &[]).checksum();
            bytes[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
            prop_assert!(of_parts(&bytes, &[at]).is_valid());
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert!(!of_parts(&bytes, &[]).is_valid());
        }

        #[test]
        fn pseudo_headers_are_those_of_the_standards(
            source: [u8; 16], destination: [u8; 16], protocol: u8, len_bytes: u16,
        ) {
            let [high, low] = len_bytes.to_be_bytes();
            let v4 = [&source[..4], &destination[..4], &[0, protocol, high, low]].concat();
            let v6 = [&source[..], &destination[..], &[0, 0, high, low, 0, 0, 0, protocol]].concat();
            let len_bytes = usize::from(len_bytes);
            prop_assert_eq!(pseudo_header(&v4[..8], protocol, len_bytes).folded(), naive(&v4));
            prop_assert_eq!(pseudo_header(&v6[..32], protocol, len_bytes).folded(), naive(&v6));
        }
    }

    #[test]
    fn the_example_of_rfc_1071_is_right() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(of_parts(&bytes, &[3]).folded(), 0xddf2);
    }

    #[test]
    fn the_longest_packet_does_not_overflow() {
        assert_eq!(of_parts(&[0xff; 65_535], &[]).folded(), naive(&[0xff; 65_535]));
    }
}
