//! A 64-bit checksum that depends on every byte and its offset: strong enough to detect bytes that changed on the way,
//! and cheap enough not to hide the other costs of a server. Not cryptographic.

/// Words mixed side by side, so that the processor need not wait for each multiplication.
const PARALLEL_SUMS: usize = 4;
/// Bytes of a word.
const WORD_BYTES: usize = 8;
/// Odd multiplier with well-mixed bits. Multiplication by an odd number is a bijection modulo 2^64.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the checksum of `bytes`.
#[must_use]
pub fn of(bytes: &[u8]) -> u64 {
    let mut partials = [1u64, 2, 3, 4];
    let mut blocks = bytes.chunks_exact(PARALLEL_SUMS * WORD_BYTES);
    for block in &mut blocks {
        for (partial, word) in partials.iter_mut().zip(block.chunks_exact(WORD_BYTES)) {
            // `chunks_exact` yields exactly `WORD_BYTES` bytes, so the conversion cannot fail.
            let word = word.try_into().map_or(0, u64::from_le_bytes);
            *partial = (*partial ^ word).wrapping_mul(MULTIPLIER).rotate_left(29);
        }
    }
    let rest = blocks.remainder().iter().map(|byte| u64::from(*byte));
    let sum = partials.into_iter().chain(rest).fold(bytes.len() as u64, |sum, word| {
        let sum = (sum ^ word).wrapping_mul(MULTIPLIER);
        sum ^ (sum >> 31)
    });
    sum.wrapping_mul(MULTIPLIER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::random::Random;

    #[test]
    fn every_byte_and_its_offset_count() {
        let bytes = Random::new(3).bytes(75);
        let original = of(&bytes);
        assert_eq!(of(&bytes.clone()), original);
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert_ne!(of(&wrong), original, "byte {at}");
            assert_ne!(of(&bytes[..at]), original, "{at} bytes");
        }
        for at in 1..bytes.len() {
            let mut swapped = bytes.clone();
            swapped.swap(at - 1, at);
            assert!(swapped == bytes || of(&swapped) != original, "bytes {at} and before");
        }
        let partials = [&bytes[8..16], &bytes[..8], &bytes[16..]].concat();
        assert_ne!(of(&partials), original);
        assert_ne!(of(&[]), of(&[0]));
    }
}
