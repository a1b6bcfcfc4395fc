//! Messages whose echo can be checked byte for byte, at little enough cost to check every one.
//!
//! A message is random bytes in lines of 64. Before each use, one word of every line is overwritten with a stamp
//! computed from the message's number and the index of the line:
//!
//! ```text
//! line  │ word 0 │ word 1 │ … │ word (number mod 8) = stamp(number) + line │ … │ word 7 │
//! ```
//!
//! Invariant: two messages with consecutive numbers differ in every whole line, so bytes of an earlier message, or
//! from another offset, cannot pass for those of this message.

use crate::kit::random::Random;

/// Bytes between stamps: one cache line.
const LINE_BYTES: usize = 64;
/// Bytes of a stamp.
const WORD_BYTES: usize = 8;

/// The first byte at which an echo differs from what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset in the message, bytes.
    pub offset_bytes: usize,
    /// The byte that was sent; `None` past the message's end.
    pub sent: Option<u8>,
    /// The byte that came back; `None` past the echo's end.
    pub received: Option<u8>,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hex = |byte: Option<u8>| byte.map_or_else(|| "nothing".into(), |byte| format!("0x{byte:02x}"));
        let Self { offset_bytes, sent, received } = *self;
        write!(f, "byte {offset_bytes} is {} where {} was sent", hex(received), hex(sent))
    }
}

/// Compares a received echo with the message that was sent.
///
/// # Errors
/// The first [`Mismatch`].
pub fn compare(sent: &[u8], received: &[u8]) -> Result<(), Mismatch> {
    if sent == received {
        return Ok(());
    }
    let shorter = sent.len().min(received.len());
    let offset_bytes = sent.iter().zip(received).position(|(left, right)| left != right).unwrap_or(shorter);
    Err(Mismatch {
        offset_bytes,
        sent: sent.get(offset_bytes).copied(),
        received: received.get(offset_bytes).copied(),
    })
}

/// A message that differs at each use.
#[derive(Debug)]
pub struct Pattern {
    bytes: Vec<u8>,
    number: u64,
}

impl Pattern {
    /// Creates a message of `len_bytes` random bytes.
    #[must_use]
    pub fn new(len_bytes: usize, seed: u64) -> Self {
        Self { bytes: Random::new(seed).bytes(len_bytes), number: 0 }
    }

    /// Stamps the next number into every line and returns the message.
    pub fn advance(&mut self) -> &[u8] {
        self.number = self.number.wrapping_add(1);
        let word = usize::try_from(self.number % 8).unwrap_or(0) * WORD_BYTES;
        let mut stamp = Random::new(self.number).next();
        let mut lines = self.bytes.chunks_exact_mut(LINE_BYTES);
        for line in &mut lines {
            line[word..word + WORD_BYTES].copy_from_slice(&stamp.to_le_bytes());
            stamp = stamp.wrapping_add(1);
        }
        // Every byte after the last whole line is overwritten.
        for (byte, stamp) in lines.into_remainder().iter_mut().zip(stamp.to_le_bytes().iter().cycle()) {
            *byte = byte.wrapping_add(stamp | 1);
        }
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_anywhere_is_found_at_its_offset() {
        let mut pattern = Pattern::new(4096 + 37, 1);
        let sent = pattern.advance().to_vec();
        assert_eq!(compare(&sent, &sent.clone()), Ok(()));
        for offset_bytes in [0, 1, 63, 64, 2048, 4095, 4096, 4096 + 36] {
            for bit in [1u8, 0x80] {
                let mut echo = sent.clone();
                echo[offset_bytes] ^= bit;
                let mismatch = compare(&sent, &echo).expect_err("a bit was flipped");
                assert_eq!(mismatch.offset_bytes, offset_bytes);
                assert_eq!(mismatch.sent, Some(sent[offset_bytes]));
                assert_eq!(mismatch.received, Some(echo[offset_bytes]));
            }
        }
    }

    #[test]
    fn a_short_or_long_echo_differs_where_one_of_them_ends() {
        let sent = Pattern::new(100, 1).advance().to_vec();
        let short = compare(&sent, &sent[..60]).expect_err("too short");
        assert_eq!((short.offset_bytes, short.received), (60, None));
        let long = compare(&sent[..60], &sent).expect_err("too long");
        assert_eq!((long.offset_bytes, long.sent), (60, None));
        assert!(long.to_string().contains("nothing was sent"), "{long}");
    }

    #[test]
    fn every_line_differs_from_the_message_before_and_from_every_other_line() {
        let mut pattern = Pattern::new(64 * 200 + 5, 9);
        let mut before = pattern.advance().to_vec();
        for _ in 0..20 {
            let message = pattern.advance().to_vec();
            for (line, (new, old)) in message.chunks(64).zip(before.chunks(64)).enumerate() {
                assert_ne!(new, old, "line {line} did not change");
            }
            let mut lines: Vec<&[u8]> = message.chunks_exact(64).collect();
            lines.sort_unstable();
            lines.dedup();
            assert_eq!(lines.len(), 200);
            before = message;
        }
    }

    #[test]
    fn tiny_messages_change_too() {
        let mut pattern = Pattern::new(1, 3);
        let first = pattern.advance().to_vec();
        assert_ne!(first, pattern.advance());
        assert!(Pattern::new(0, 3).advance().is_empty());
    }
}
