//! The receiving half of a connection: reassembly by reference, the window, and SACK blocks.
//!
//! ```text
//!            ready (in order)         reassembly (out of order)
//! ─────────┬──────────────────┬──────┬────────┬───────────┬──────────►
//!        read               next            gaps         edge
//! ```
//!
//! Bounds: `edge - next + ready_bytes ≤ max_bytes`, and at most `max_pieces` pieces, at most half
//! of them out of order, so that the missing bytes always find room.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use smallvec::SmallVec;

use crate::options::MAX_SACK_BLOCKS;
use crate::payload::{self, Payload, Pieces};
use crate::ranges::Ranges;
use crate::sequence::{Position, sequence_number};

const MAX_WINDOW_FIELD: u64 = 0xffff;

/// Result of inserting a segment's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// Bytes became ready to read.
    InOrder {
        /// Whether bytes beyond had been waiting for these.
        filled_gap: bool,
    },
    /// Bytes are kept until the gap before them is filled.
    OutOfOrder,
    /// All bytes were received before, or lie outside the window.
    Nothing,
    /// No room: the peer must retransmit the bytes.
    Dropped,
}

/// Receive buffer of a connection.
#[derive(Debug)]
pub struct Receiver<P> {
    next: Position,
    edge: Position,
    ready: VecDeque<P>,
    ready_bytes: u64,
    reassembly: BTreeMap<Position, P>,
    ranges: Ranges,
    /// Starts of the most recently received segments, latest first (RFC 2018, section 4).
    recent: SmallVec<[Position; MAX_SACK_BLOCKS]>,
    duplicate: Option<Range<Position>>,
    fin: Option<Position>,
    max_bytes: u64,
    max_pieces: usize,
}

impl<P: Payload> Receiver<P> {
    /// Returns a receiver that expects `next`, the position after the peer's SYN.
    pub fn new(next: Position, max_bytes: usize, max_pieces: usize) -> Self {
        Self {
            next,
            edge: next,
            ready: VecDeque::new(),
            ready_bytes: 0,
            reassembly: BTreeMap::new(),
            ranges: Ranges::default(),
            recent: SmallVec::new(),
            duplicate: None,
            fin: None,
            max_bytes: max_bytes as u64,
            max_pieces: max_pieces.max(4),
        }
    }

    /// Returns RCV.NXT, the next position expected.
    pub fn next(&self) -> Position {
        self.next
    }

    /// Returns the right edge of the window, which never moves back (RFC 7323, section 2.4).
    pub fn edge(&self) -> Position {
        self.edge
    }

    /// Returns the number of bytes that can be read.
    pub fn ready_bytes(&self) -> u64 {
        self.ready_bytes
    }

    /// Returns the number of pieces kept, in order or not.
    pub fn pieces(&self) -> usize {
        self.ready.len() + self.reassembly.len()
    }

    /// True if bytes are missing below received ones.
    pub fn has_gap(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Removes and returns the next piece in order.
    pub fn read(&mut self) -> Option<P> {
        let piece = self.ready.pop_front()?;
        if self.ready.is_empty() {
            // Idle connections hold no memory.
            self.ready.shrink_to_fit();
        }
        self.ready_bytes -= piece.len_bytes() as u64;
        Some(piece)
    }

    /// Puts back the unused rest of the last piece read.
    pub fn unread(&mut self, piece: P) {
        if piece.len_bytes() > 0 {
            self.ready_bytes += piece.len_bytes() as u64;
            self.ready.push_front(piece);
        }
    }

    /// Drops all received bytes, in order or not.
    pub fn discard(&mut self) {
        self.ready.clear();
        self.ready_bytes = 0;
        self.reassembly.clear();
        self.ranges.clear();
    }

    /// Inserts the payload that begins at `start`.
    pub fn insert(&mut self, start: Position, mut pieces: Pieces<P>) -> Insertion {
        let end = start + payload::len_bytes(&pieces) as u64;
        if start < self.next {
            if start < end {
                self.duplicate = Some(start..end.min(self.next));
            }
            payload::trim_front(&mut pieces, (self.next - start) as usize);
        }
        let start = start.max(self.next);
        let limit = self.fin.map_or(self.edge, |fin| fin.min(self.edge));
        if end > limit {
            payload::truncate(&mut pieces, limit.saturating_sub(start) as usize);
        }
        pieces.retain(|piece| piece.len_bytes() > 0);
        let end = start + payload::len_bytes(&pieces) as u64;
        if start >= end {
            return Insertion::Nothing;
        }
        if start > self.next {
            return self.insert_beyond(start..end, pieces);
        }
        if self.pieces() + pieces.len() > self.max_pieces {
            return Insertion::Dropped;
        }
        for piece in pieces {
            self.append(piece);
        }
        let filled_gap = self.has_gap();
        self.join();
        Insertion::InOrder { filled_gap }
    }

    fn append(&mut self, piece: P) {
        self.next += piece.len_bytes() as u64;
        self.ready_bytes += piece.len_bytes() as u64;
        self.ready.push_back(piece);
    }

    /// Moves pieces that have become contiguous from `reassembly` to `ready`.
    fn join(&mut self) {
        while let Some(first) = self.reassembly.first_entry()
            && *first.key() <= self.next
        {
            let (start, piece) = first.remove_entry();
            let known = (self.next - start) as usize;
            if known < piece.len_bytes() {
                self.append(if known > 0 { piece.new_part(known..piece.len_bytes()) } else { piece });
            }
        }
        self.ranges.remove_below(self.next);
        let next = self.next;
        self.recent.retain(|start| *start > next);
    }

    fn insert_beyond(&mut self, range: Range<Position>, pieces: Pieces<P>) -> Insertion {
        let mut added = 0;
        let mut start = range.start;
        let mut missing: SmallVec<[(Position, P); 2]> = SmallVec::new();
        for piece in pieces {
            let end = start + piece.len_bytes() as u64;
            let mut at = start;
            while let Some(gap) = self.ranges.first_gap(at..end) {
                let part = (gap.start - start) as usize..(gap.end - start) as usize;
                missing.push((gap.start, piece.new_part(part)));
                added += 1;
                at = gap.end;
            }
            start = end;
        }
        if added == 0 {
            self.duplicate = Some(range.clone());
            self.note_recent(range.start);
            return Insertion::Nothing;
        }
        if self.reassembly.len() + added > self.max_pieces / 2 || self.pieces() + added > self.max_pieces {
            return Insertion::Dropped;
        }
        self.reassembly.extend(missing);
        self.ranges.insert(range.clone());
        self.note_recent(range.start);
        Insertion::OutOfOrder
    }

    fn note_recent(&mut self, start: Position) {
        let here = self.ranges.find(start);
        self.recent.retain(|other| here.as_ref().is_none_or(|here| !here.contains(other)));
        self.recent.truncate(MAX_SACK_BLOCKS - 1);
        self.recent.insert(0, start);
    }

    /// Returns the SACK blocks to send: a duplicate (RFC 2883), then the latest ranges (RFC 2018, section 4).
    pub fn sack_blocks(&mut self, max_blocks: usize) -> SmallVec<[(u32, u32); MAX_SACK_BLOCKS]> {
        let mut blocks: SmallVec<[(u32, u32); MAX_SACK_BLOCKS]> = SmallVec::new();
        let mut push = |range: &Range<Position>| {
            let block = (sequence_number(range.start), sequence_number(range.end));
            if blocks.len() < max_blocks && !blocks.contains(&block) {
                blocks.push(block);
            }
        };
        if let Some(duplicate) = self.duplicate.take() {
            push(&duplicate);
        }
        self.recent.iter().filter_map(|&start| self.ranges.find(start)).for_each(|range| push(&range));
        self.ranges.as_slice().iter().take(MAX_SACK_BLOCKS).for_each(push);
        blocks
    }

    /// True if SACK blocks must be sent.
    pub fn has_sack_blocks(&self) -> bool {
        self.duplicate.is_some() || self.has_gap()
    }

    /// Records the end of the peer's stream; later calls have no effect.
    pub fn set_fin(&mut self, position: Position) {
        let known = self.ranges.end().unwrap_or(self.next);
        if self.fin.is_none() && position >= known.max(self.next) && position <= self.edge.max(self.next) {
            self.fin = Some(position);
        }
    }

    /// Consumes the FIN and returns true if everything before it has been received.
    pub fn take_fin(&mut self) -> bool {
        let is_here = self.fin == Some(self.next);
        if is_here {
            self.next += 1;
            self.edge = self.edge.max(self.next);
        }
        is_here
    }

    /// Returns the possible right edge, unmoved if the step is too small (RFC 9293, section 3.8.6.2.2).
    fn edge_candidate(&self, shift: u8, mss: u16) -> Position {
        let is_full = self.pieces() >= self.max_pieces;
        let free = if is_full { 0 } else { self.max_bytes.saturating_sub(self.ready_bytes) };
        let field = (free >> shift).min(MAX_WINDOW_FIELD);
        let candidate = self.next + (field << shift);
        let step = (self.max_bytes / 2).min(u64::from(mss));
        if candidate >= self.edge + step.max(1) { candidate } else { self.edge }
    }

    /// True if a window update is due: the window can grow by half the buffer, or from less than `mss`.
    pub fn is_update_due(&self, shift: u8, mss: u16) -> bool {
        let candidate = self.edge_candidate(shift, mss);
        let left = self.edge - self.next;
        candidate > self.edge && (left < u64::from(mss) || candidate - self.edge >= self.max_bytes / 2)
    }

    /// Moves the right edge and returns the window field for a header.
    pub fn announce(&mut self, shift: u8, mss: u16) -> u16 {
        self.edge = self.edge_candidate(shift, mss);
        ((self.edge - self.next) >> shift).min(MAX_WINDOW_FIELD) as u16
    }

    /// True if the invariants hold.
    pub fn is_valid(&self) -> bool {
        let ready: usize = self.ready.iter().map(Payload::len_bytes).sum();
        let kept: usize = self.reassembly.values().map(Payload::len_bytes).sum();
        let starts = self.reassembly.iter().map(|(start, piece)| (*start, start + piece.len_bytes() as u64));
        let is_apart = starts.is_sorted_by(|left, right| left.1 <= right.0);
        self.ranges.is_valid()
            && is_apart
            && ready as u64 == self.ready_bytes
            && kept as u64 == self.ranges.bytes()
            && self.reassembly.keys().all(|&start| start > self.next)
            && self.ranges.end().is_none_or(|end| end <= self.edge)
            && self.pieces() <= self.max_pieces
            && self.next <= self.edge
            && self.edge - self.next + self.ready_bytes <= self.max_bytes + 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::payload::SharedBytes;
    use crate::sequence::first_position;

    const STREAM: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";

    fn receiver(max_bytes: usize, max_pieces: usize) -> Receiver<SharedBytes> {
        let mut receiver = Receiver::new(first_position(u32::MAX - 3), max_bytes, max_pieces);
        receiver.announce(0, 1);
        receiver
    }

    fn insert(receiver: &mut Receiver<SharedBytes>, range: Range<usize>) -> Insertion {
        let start = first_position(u32::MAX - 3) + range.start as u64;
        receiver.insert(start, Pieces::from_iter([SharedBytes::from(&STREAM[range])]))
    }

    proptest! {
        #[test]
        fn segments_in_any_order_are_the_stream(
            segments in prop::collection::vec((0usize..36, 0usize..9), 0..60), reads in any::<u64>(), max_pieces in 4usize..30,
        ) {
            let mut receiver = receiver(STREAM.len(), max_pieces);
            let mut read = Vec::new();
            let all = (0..36).step_by(3).map(|start| (start, 3));
            for (index, (start, len)) in segments.into_iter().chain(all.clone()).chain(all).enumerate() {
                insert(&mut receiver, start..(start + len).min(STREAM.len()));
                prop_assert!(receiver.is_valid());
                let blocks = receiver.sack_blocks(4);
                prop_assert!(blocks.iter().all(|(start, end)| start != end));
                if reads >> (index % 64) & 1 == 1 || index > 60 {
                    read.extend(receiver.read().map(|piece| piece.as_slice().to_vec()).unwrap_or_default());
                }
            }
            while let Some(piece) = receiver.read() {
                read.extend_from_slice(piece.as_slice());
            }
            prop_assert!(STREAM.starts_with(&read));
            prop_assert!(!receiver.has_gap() || read.len() < STREAM.len());
        }
    }

    #[test]
    fn the_latest_range_is_the_first_block_and_a_duplicate_comes_before_it() {
        let mut receiver = receiver(36, 30);
        insert(&mut receiver, 4..6);
        insert(&mut receiver, 10..12);
        insert(&mut receiver, 7..8);
        let at = |index: u32| (u32::MAX - 3).wrapping_add(index);
        assert_eq!(receiver.sack_blocks(4)[..], [(at(7), at(8)), (at(10), at(12)), (at(4), at(6))]);
        assert_eq!(insert(&mut receiver, 10..11), Insertion::Nothing);
        assert_eq!(receiver.sack_blocks(3)[..], [(at(10), at(11)), (at(10), at(12)), (at(7), at(8))]);
        assert_eq!(insert(&mut receiver, 0..4), Insertion::InOrder { filled_gap: true });
        assert_eq!(receiver.sack_blocks(4)[..], [(at(10), at(12)), (at(7), at(8))]);
    }

    #[test]
    fn one_byte_segments_are_bounded_and_missing_bytes_find_room() {
        let mut receiver = receiver(36, 8);
        let kept = (1..36)
            .step_by(2)
            .filter(|&at| insert(&mut receiver, at..at + 1) == Insertion::OutOfOrder)
            .count();
        assert_eq!(kept, 4);
        assert_eq!(insert(&mut receiver, 0..1), Insertion::InOrder { filled_gap: true });
        assert!(receiver.is_valid());
    }

    #[test]
    fn the_window_opens_by_a_good_part_or_not_at_all() {
        let mut receiver = Receiver::new(first_position(0), 10, 8);
        assert_eq!(receiver.announce(0, 4), 10);
        let start = receiver.next();
        receiver.insert(
            start,
            Pieces::from_iter([SharedBytes::from(&STREAM[..3]), SharedBytes::from(&STREAM[3..10])]),
        );
        assert_eq!(receiver.announce(0, 4), 0);
        receiver.read();
        assert!(!receiver.is_update_due(0, 4));
        assert_eq!(receiver.announce(0, 4), 0);
        receiver.read();
        assert!(receiver.is_update_due(0, 4));
        assert_eq!(receiver.announce(0, 4), 10);
    }
}
