//! The send queue: bytes by reference until acknowledged.

use std::collections::VecDeque;
use std::ops::Range;

use crate::payload::{Payload, Pieces};
use crate::sequence::Position;

/// Bytes that the program sent and the peer has not acknowledged.
#[derive(Debug)]
pub struct SendQueue<P> {
    /// Pieces with their first position.
    pieces: VecDeque<(Position, P)>,
    start: Position,
    end: Position,
}

impl<P: Payload> SendQueue<P> {
    /// Returns an empty queue whose first byte will be at `start`.
    pub fn new(start: Position) -> Self {
        Self { pieces: VecDeque::new(), start, end: start }
    }

    /// Appends bytes to the queue.
    pub fn push(&mut self, piece: P) {
        let len = piece.len_bytes() as u64;
        if len > 0 {
            self.pieces.push_back((self.end, piece));
            self.end += len;
        }
    }

    /// Returns the position after the last byte.
    pub fn end(&self) -> Position {
        self.end
    }

    /// Returns the position of the first unacknowledged byte.
    pub fn start(&self) -> Position {
        self.start
    }

    /// Returns the number of bytes in the queue.
    pub fn len_bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Returns the number of pieces in the queue.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Acknowledges everything below `position`. A piece is dropped once all of it is acknowledged.
    pub fn acknowledge(&mut self, position: Position) {
        self.start = position.clamp(self.start, self.end);
        while let Some((first, piece)) = self.pieces.front()
            && first + piece.len_bytes() as u64 <= self.start
        {
            self.pieces.pop_front();
        }
        if self.pieces.is_empty() {
            // Idle connections hold no memory.
            self.pieces.shrink_to_fit();
        }
    }

    /// Returns references to the bytes of `range`, which must lie within the queue.
    pub fn slice(&self, range: Range<Position>) -> Pieces<P> {
        debug_assert!(self.start <= range.start && range.end <= self.end);
        let first =
            self.pieces.partition_point(|(start, piece)| start + piece.len_bytes() as u64 <= range.start);
        let mut slices = Pieces::new();
        for (start, piece) in self.pieces.range(first..) {
            if *start >= range.end {
                break;
            }
            let from = range.start.saturating_sub(*start) as usize;
            let until = ((range.end - start) as usize).min(piece.len_bytes());
            slices.push(if until - from == piece.len_bytes() {
                piece.clone()
            } else {
                piece.slice(from..until)
            });
        }
        slices
    }

    /// True if the invariants hold.
    pub fn is_valid(&self) -> bool {
        let mut at = self.pieces.front().map_or(self.end, |(first, _)| *first);
        let is_contiguous = self.pieces.iter().all(|(start, piece)| {
            let is_next = *start == at;
            at += piece.len_bytes() as u64;
            is_next
        });
        is_contiguous && at == self.end && self.start <= self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::SharedBytes;

    #[test]
    fn any_range_is_the_bytes_that_were_pushed_until_they_are_acknowledged() {
        let text = b"abcdefghij";
        for acknowledged in 0..=10u64 {
            let mut queue = SendQueue::new(100);
            for range in [0..3, 3..3, 3..4, 4..10] {
                queue.push(SharedBytes::from(&text[range]));
            }
            queue.acknowledge(100 + acknowledged);
            assert!(queue.is_valid());
            assert_eq!(queue.len_bytes(), 10 - acknowledged);
            for start in acknowledged..10 {
                for end in start..=10 {
                    let slices = queue.slice(100 + start..100 + end);
                    let bytes: Vec<u8> = slices.iter().flat_map(|piece| piece.as_slice().to_vec()).collect();
                    assert_eq!(bytes, text[start as usize..end as usize]);
                }
            }
        }
    }
}
