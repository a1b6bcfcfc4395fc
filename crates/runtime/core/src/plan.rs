//! Plans a copy: which pages of the destination become views, which become empty, which bytes are copied.
//!
//! The source is a list of pieces: bytes of segments, zeroes, or plain memory. A whole page of the
//! destination that one piece of a segment fills becomes a view of the segment. A page that one piece of
//! zeroes fills becomes empty. Every other byte is copied. An overlapping `memmove` in one block is no
//! special case, because its pieces are read before anything changes: a view that moves by 45 bytes is the
//! same view with its offset raised by 45.

use crate::addr::{ByteRange, PAGE_BYTES, PageRange};
use crate::policy::Learned;

use smallvec::SmallVec;

/// The pieces of a source, in order.
pub type Pieces<S> = SmallVec<[Piece<S>; 6]>;
/// The steps of a plan, in order.
pub type Steps<S> = SmallVec<[Step<S>; 8]>;

/// A run of the source's bytes, by where they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<S> {
    /// Bytes in the program's own memory.
    Plain {
        /// Length in bytes.
        len_bytes: usize,
    },
    /// Bytes that are all zero.
    Zeroes {
        /// Length in bytes.
        len_bytes: usize,
    },
    /// Bytes of a segment.
    Segment {
        /// Segment with the bytes.
        segment: S,
        /// Offset of the first byte in the segment.
        offset_bytes: usize,
        /// Length in bytes.
        len_bytes: usize,
    },
}

impl<S> Piece<S> {
    /// Returns the length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        match self {
            Self::Plain { len_bytes } | Self::Zeroes { len_bytes } | Self::Segment { len_bytes, .. } => {
                *len_bytes
            }
        }
    }
}

/// A step of a copy, in pages or bytes of the destination's block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<S> {
    /// Make the pages a view.
    View {
        /// Pages of the destination.
        pages: PageRange,
        /// Segment with the bytes.
        segment: S,
        /// Offset in the segment of the first page's first byte.
        offset_bytes: usize,
    },
    /// Make the pages empty.
    Empty {
        /// Pages of the destination.
        pages: PageRange,
    },
    /// Copy the pages and leave them present, because the program is known to touch them.
    Touched {
        /// Pages of the destination.
        pages: PageRange,
    },
    /// Copy the bytes.
    Bytes {
        /// Bytes of the destination.
        range: ByteRange,
    },
}

/// Plans the copy of `pieces` to the block's bytes from `start` on.
///
/// A run of fewer than `min_pages` pages does not become a view or empty; its bytes are copied. The steps
/// are in order and cover the destination exactly once, and no two `Bytes` steps are adjacent.
#[must_use]
pub fn plan<S: Clone>(start: usize, pieces: &[Piece<S>], min_pages: u32) -> Steps<S> {
    let mut steps = Steps::new();
    let mut at = start;
    for piece in pieces {
        let range = ByteRange::at(at, piece.len_bytes());
        let pages = range.whole_pages();
        at = range.end;
        let step = match piece {
            _ if pages.len() < min_pages.max(1) => None,
            Piece::Plain { .. } => None,
            Piece::Zeroes { .. } => Some(Step::Empty { pages }),
            Piece::Segment { segment, offset_bytes, .. } => Some(Step::View {
                pages,
                segment: segment.clone(),
                offset_bytes: offset_bytes + (pages.start as usize * PAGE_BYTES - range.start),
            }),
        };
        match step {
            None => push_bytes(&mut steps, range),
            Some(step) => {
                push_bytes(&mut steps, ByteRange { start: range.start, end: pages.start_bytes() });
                steps.push(step);
                push_bytes(&mut steps, ByteRange { start: pages.end_bytes(), end: range.end });
            }
        }
    }
    steps
}

fn push_bytes<S>(steps: &mut Steps<S>, range: ByteRange) {
    if range.is_empty() {
        return;
    }
    if let Some(Step::Bytes { range: last }) = steps.last_mut()
        && last.end == range.start
    {
        last.end = range.end;
        return;
    }
    steps.push(Step::Bytes { range });
}

/// Returns the number of bytes that the plan does not copy.
#[must_use]
pub fn elided_bytes<S>(steps: &[Step<S>]) -> usize {
    steps
        .iter()
        .map(|step| match step {
            Step::View { pages, .. } | Step::Empty { pages } => pages.len_bytes(),
            Step::Bytes { .. } | Step::Touched { .. } => 0,
        })
        .sum()
}

/// Returns the plan with the pages in `learned` copied instead of viewed. The destination overlaps the
/// pages `buffer`.
#[must_use]
pub fn with_touched<S: Clone>(steps: Steps<S>, buffer: PageRange, learned: Learned) -> Steps<S> {
    if learned.is_empty() {
        return steps;
    }
    let mut new_steps = Steps::new();
    for step in steps {
        let Step::View { pages, segment, offset_bytes } = step else {
            new_steps.push(step);
            continue;
        };
        let view = |start: u32, end: u32| {
            let skip_bytes = (start - pages.start) as usize * PAGE_BYTES;
            let (pages, segment) = (PageRange::new(start, end), segment.clone());
            (start < end).then_some(Step::View { pages, segment, offset_bytes: offset_bytes + skip_bytes })
        };
        let mut at = pages.start;
        for run in learned.runs(buffer, pages) {
            new_steps.extend(view(at, run.start));
            new_steps.push(Step::Touched { pages: run });
            at = run.end;
        }
        new_steps.extend(view(at, pages.end));
    }
    new_steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece() -> impl Strategy<Value = Piece<u8>> {
        prop_oneof![
            (1usize..20_000).prop_map(|len_bytes| Piece::Plain { len_bytes }),
            (1usize..20_000).prop_map(|len_bytes| Piece::Zeroes { len_bytes }),
            (0u8..3, 0usize..5_000, 1usize..40_000).prop_map(|(segment, offset_bytes, len_bytes)| {
                Piece::Segment { segment, offset_bytes, len_bytes }
            }),
        ]
    }

    /// Returns the source's byte at `index`, as a piece of one byte.
    fn source(pieces: &[Piece<u8>], index: usize) -> Piece<u8> {
        let mut at = 0;
        for piece in pieces {
            if index < at + piece.len_bytes() {
                return match piece {
                    Piece::Segment { segment, offset_bytes, .. } => Piece::Segment {
                        segment: *segment,
                        offset_bytes: offset_bytes + index - at,
                        len_bytes: 1,
                    },
                    Piece::Zeroes { .. } => Piece::Zeroes { len_bytes: 1 },
                    Piece::Plain { .. } => Piece::Plain { len_bytes: 1 },
                };
            }
            at += piece.len_bytes();
        }
        unreachable!("index past the source")
    }

    proptest! {
        #[test]
        fn steps_cover_the_destination_once_and_views_hold_the_source_bytes(
            start in 0usize..10_000, pieces in prop::collection::vec(piece(), 1..6), min_pages in 1u32..4
        ) {
            let total: usize = pieces.iter().map(Piece::len_bytes).sum();
            let mut at = start;
            let mut previous_was_bytes = false;
            for step in plan(start, &pieces, min_pages) {
                let range = match &step {
                    Step::View { pages, .. } | Step::Empty { pages } => ByteRange::from(*pages),
                    Step::Bytes { range } => *range,
                    Step::Touched { .. } => unreachable!("nothing was learned"),
                };
                prop_assert_eq!(range.start, at);
                prop_assert!(!range.is_empty());
                at = range.end;
                // Check the first, the last and a middle byte of the step.
                for probe in [range.start, (range.start + range.end) / 2, range.end - 1] {
                    let byte = source(&pieces, probe - start);
                    match &step {
                        Step::View { segment, offset_bytes, pages } => {
                            prop_assert!(pages.len() >= min_pages);
                            let expected = Piece::Segment { segment: *segment, offset_bytes: offset_bytes + probe - range.start, len_bytes: 1 };
                            prop_assert_eq!(byte, expected);
                        }
                        Step::Empty { .. } => prop_assert_eq!(byte, Piece::Zeroes { len_bytes: 1 }),
                        Step::Bytes { .. } | Step::Touched { .. } => {}
                    }
                }
                let is_bytes = matches!(step, Step::Bytes { .. });
                prop_assert!(!(is_bytes && previous_was_bytes));
                previous_was_bytes = is_bytes;
            }
            prop_assert_eq!(at, start + total);
        }
    }

    #[test]
    fn learned_pages_are_taken_out_of_views() {
        let pieces = [Piece::Segment { segment: 's', offset_bytes: 0, len_bytes: 10 * PAGE_BYTES }];
        let learned = Learned { head: 0b11, tail: 0b1000 };
        let steps = with_touched(plan(100, &pieces, 1), PageRange::new(0, 11), learned);
        let view = |start, end| Step::View {
            pages: PageRange::new(start, end),
            segment: 's',
            offset_bytes: start as usize * PAGE_BYTES - 100,
        };
        assert_eq!(
            steps.as_slice(),
            [
                Step::Bytes { range: ByteRange { start: 100, end: PAGE_BYTES } },
                Step::Touched { pages: PageRange::new(1, 2) },
                view(2, 7),
                Step::Touched { pages: PageRange::new(7, 8) },
                view(8, 10),
                Step::Bytes { range: ByteRange { start: 10 * PAGE_BYTES, end: 10 * PAGE_BYTES + 100 } },
            ]
        );
        assert_eq!(elided_bytes(&steps), 7 * PAGE_BYTES);
        let all = Learned { head: u64::MAX, tail: 0 };
        assert_eq!(elided_bytes(&with_touched(plan(0, &pieces, 1), PageRange::new(0, 10), all)), 0);
        assert_eq!(with_touched(plan(0, &pieces, 1), PageRange::new(0, 10), Learned::default()).len(), 1);
    }

    #[test]
    fn a_shift_by_45_bytes_is_a_shift_of_the_offset() {
        let pieces = [Piece::Segment { segment: 's', offset_bytes: 45, len_bytes: 8 * PAGE_BYTES }];
        let steps = plan(0, &pieces, 1);
        assert_eq!(
            steps.as_slice(),
            [Step::View { pages: PageRange::new(0, 8), segment: 's', offset_bytes: 45 }]
        );
        assert_eq!(elided_bytes(&steps), 8 * PAGE_BYTES);
    }
}
