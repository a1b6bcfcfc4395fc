//! Copy plans compared with a copy byte by byte.

use super::bytes::Bytes;
use crate::addr::{ByteRange, PAGE_BYTES};
use crate::plan::{Piece, Step, elided_bytes, plan as plan_steps, with_touched};
use crate::policy::Learned;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Byte {
    Unset,
    /// Byte of plain memory, at this offset of the source.
    Plain(usize),
    Zero,
    Segment(u8, usize),
}

/// Plans the copy of pieces that `data` describes, and executes the plan byte by byte.
///
/// # Panics
/// If a byte of the destination is wrong, covered twice, or not covered.
pub fn plan(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let start = bytes.below(3 * 4096) as usize;
    let min_pages = bytes.below(4);
    let mut pieces: Vec<Piece<u8>> = Vec::new();
    let mut source: Vec<Byte> = Vec::new();
    while !bytes.is_empty() && pieces.len() < 12 {
        let len_bytes = 1 + bytes.below(5 * 4096) as usize;
        let at = source.len();
        match bytes.below(3) {
            0 => {
                pieces.push(Piece::Plain { len_bytes });
                source.extend((at..at + len_bytes).map(Byte::Plain));
            }
            1 => {
                pieces.push(Piece::Zeroes { len_bytes });
                source.extend(std::iter::repeat_n(Byte::Zero, len_bytes));
            }
            _ => {
                let segment = bytes.below(3).to_le_bytes()[0];
                let offset_bytes = bytes.below(8192) as usize;
                pieces.push(Piece::Segment { segment, offset_bytes, len_bytes });
                source.extend((0..len_bytes).map(|index| Byte::Segment(segment, offset_bytes + index)));
            }
        }
    }
    let mut mask = || u64::from(bytes.below(1 << 16));
    let learned = Learned { head: mask(), tail: mask() };
    let buffer = ByteRange::at(start, source.len()).overlapped_pages();
    let steps = with_touched(plan_steps(start, &pieces, min_pages), buffer, learned);
    let mut found = vec![Byte::Unset; source.len()];
    let mut put = |range: ByteRange, byte: &dyn Fn(usize) -> Byte| {
        assert!(range.start >= start && range.end <= start + source.len(), "{range:?} is outside");
        for at in range.start..range.end {
            assert_eq!(found[at - start], Byte::Unset, "byte {at} is covered twice");
            found[at - start] = byte(at);
        }
    };
    let mut elided = 0;
    for step in &steps {
        match step {
            Step::Bytes { range } => put(*range, &|at| source[at - start]),
            Step::Touched { pages } => {
                put(ByteRange::from(*pages), &|at| source[at - start]);
            }
            Step::Empty { pages } => {
                elided += pages.len_bytes();
                assert!(pages.len() >= min_pages.max(1));
                put(ByteRange::from(*pages), &|_| Byte::Zero);
            }
            Step::View { pages, segment, offset_bytes } => {
                elided += pages.len_bytes();
                assert!(!pages.is_empty());
                let first = pages.start as usize * PAGE_BYTES;
                put(ByteRange::from(*pages), &|at| Byte::Segment(*segment, offset_bytes + at - first));
            }
        }
    }
    assert_eq!(found, source);
    assert_eq!(elided_bytes(&steps), elided);
}
