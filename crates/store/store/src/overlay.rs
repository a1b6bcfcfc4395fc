//! The final bytes of several overlapping writes to a file.

use std::collections::BTreeMap;

/// A run of a file's bytes that come from one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// Index of the write.
    pub write: usize,
    /// Offset of the run in the bytes of the write.
    pub skip_bytes: usize,
    /// Offset of the run in the file, bytes.
    pub offset: u64,
    /// Length of the run, bytes.
    pub len_bytes: usize,
}

/// Splits consecutive writes (offset in the file, length) into disjoint runs that together are the final
/// content. The runs are sorted by write.
#[must_use]
pub fn final_pieces(writes: &[(u64, usize)]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    // Ranges covered by later writes, start to end; they neither overlap nor touch.
    let mut covered = BTreeMap::<u64, u64>::new();
    for (write, (offset, len_bytes)) in writes.iter().copied().enumerate().rev() {
        let end = offset + len_bytes as u64;
        let (mut first, mut last) = (offset, end);
        let mut at = offset;
        let before = covered.range(..offset).next_back().filter(|(_, end)| **end >= offset);
        let touched: Vec<(u64, u64)> =
            before.into_iter().chain(covered.range(offset..=end)).map(|(from, to)| (*from, *to)).collect();
        for (from, to) in touched {
            if from > at {
                pieces.push(piece(write, offset, at, from));
            }
            at = at.max(to);
            (first, last) = (first.min(from), last.max(to));
            covered.remove(&from);
        }
        if at < end {
            pieces.push(piece(write, offset, at, end));
        }
        if first < last {
            covered.insert(first, last);
        }
    }
    pieces.sort_unstable();
    pieces
}

const fn piece(write: usize, offset: u64, from: u64, to: u64) -> Piece {
    Piece { write, skip_bytes: (from - offset) as usize, offset: from, len_bytes: (to - from) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_written_once_and_is_its_last_writes() {
        // A linear congruential generator: enough to place writes.
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..2000 {
            let writes: Vec<(u64, usize)> =
                (0..random(9)).map(|_| (random(40), random(12) as usize)).collect();
            let mut wanted = [None; 64];
            for (write, (offset, len)) in writes.iter().enumerate() {
                wanted[*offset as usize..*offset as usize + len].fill(Some(write));
            }
            let mut got = [None; 64];
            for piece in final_pieces(&writes) {
                let Piece { write, skip_bytes, offset, len_bytes } = piece;
                assert_eq!(writes[write].0 + skip_bytes as u64, offset, "{writes:?}: {piece:?}");
                for byte in &mut got[offset as usize..offset as usize + len_bytes] {
                    assert_eq!(*byte, None, "{writes:?}: {piece:?}");
                    *byte = Some(write);
                }
            }
            assert_eq!(got, wanted, "{writes:?}");
        }
    }
}
