//! A room that the payload of packets of one connection is read into, each behind the one before, as far as those end at pages: so much of
//! a stream can be handed on by one reference, and takes one view in a buffer of the program's (docs/decisions/060).
//!
//! ```text
//! room   ┌ head ─┬───────────────────────┬───────────────────────┬─────────────┐
//!        │       │ payload               │ payload               │             │
//!        └───────┴───────────────────────┴───────────────────────┴─────────────┘
//!                                      ▲ next packet: its headers lie over the end of the payload before,
//!                                        which is put back before anybody sees it
//! ```

use crate::payload::Bytes;
use crate::rooms::Room;
use smallvec::SmallVec;
use std::ops::Range;
use uncopy_core::addr::{PAGE_BYTES, pages_up};
use uncopy_lanes::process::Process;
use uncopy_tcp::segment::{Header, Segment};
use uncopy_tcp::wire::Tuple;

/// A room's length where there is so much, bytes.
const ROOM_BYTES: usize = 1 << 20;
/// The page in front of a room's first payload: headers end where it does.
const HEAD_BYTES: usize = PAGE_BYTES;
/// Headers of IP and TCP, at most.
const MAX_HEADER_BYTES: usize = 120;

/// Payload of a segment.
enum Arrived {
    /// A few bytes, which were copied out, or none.
    Few(Option<Bytes>),
    /// Bytes of the room.
    There(Range<usize>),
}

/// A received segment.
pub fn segment(header: Header, payload: Option<Bytes>) -> Segment<Bytes> {
    let mut segment = Segment::bare(header);
    segment.payload.extend(payload);
    segment
}

/// Such a room, and what TCP has not been given yet.
pub struct Filling {
    room: Room,
    /// Where the next payload belongs.
    next: usize,
    /// Of which connection there is payload, and which sequence number comes next.
    stream: Option<(Tuple, u32)>,
    segments: Vec<(Tuple, Header, Arrived)>,
    /// What the headers of the packet in the window lie over.
    covered: SmallVec<[u8; 128]>,
}

impl Filling {
    /// A new room, which takes a packet of `max_packet_bytes` at least. `None`: there is none now.
    pub fn begin(process: &'static Process, max_packet_bytes: usize) -> Option<Self> {
        let shared = process.take(ROOM_BYTES).map(Room::Shared);
        let room = shared.or_else(|| Room::take(process, HEAD_BYTES + max_packet_bytes))?;
        Some(Self::of(room, HEAD_BYTES))
    }

    fn of(room: Room, next: usize) -> Self {
        Self { room, next, stream: None, segments: Vec::new(), covered: SmallVec::new() }
    }

    /// Whether it takes another packet.
    pub fn has_room(&mut self, max_packet_bytes: usize) -> bool {
        (self.stream.is_none() || matches!(self.room, Room::Shared(_)))
            && self.room.bytes().len().saturating_sub(self.next) >= max_packet_bytes
    }

    /// Where a packet is read to whose headers are expected to have `header_bytes`. To be [uncovered](Self::uncover) afterwards.
    pub fn window(&mut self, header_bytes: usize) -> &mut [u8] {
        let begin = self.next - header_bytes.min(MAX_HEADER_BYTES);
        let bytes = self.room.bytes();
        self.covered = SmallVec::from_slice(&bytes[begin..self.next]);
        &mut bytes[begin..]
    }

    /// Puts back what a packet's headers lie over. Its payload, in bytes from its beginning, stays in the room; where it is.
    fn uncover(&mut self, payload: Range<usize>) -> Range<usize> {
        let begin = self.next - self.covered.len();
        let mut range = begin + payload.start..begin + payload.end;
        let bytes = self.room.bytes();
        if range.start < self.next {
            bytes.copy_within(range.clone(), self.next);
            range = self.next..self.next + range.len();
        }
        bytes[begin..self.next].copy_from_slice(&self.covered);
        range
    }

    /// The packet that was read to the window has no payload that the room is to keep.
    pub fn pass(&mut self) {
        self.uncover(0..0);
    }

    /// Notes a segment whose payload the room does not have.
    pub fn put(&mut self, tuple: Tuple, header: Header, few: Option<Bytes>) {
        self.segments.push((tuple, header, Arrived::Few(few)));
    }

    /// Notes the segment that was read to the window, with its payload, in bytes from the packet's beginning. Where the room has that of
    /// something else, the rest of it becomes another one, and this one is returned.
    pub fn keep(&mut self, tuple: Tuple, header: Header, payload: Range<usize>) -> Option<Self> {
        let range = self.uncover(payload);
        let sequence_end = header.sequence.wrapping_add(range.len() as u32);
        let before = self
            .stream
            .replace((tuple, sequence_end))
            .and_then(|stream| (stream != (tuple, header.sequence)).then(|| self.cut(stream)).flatten());
        let begin = before.as_ref().map_or(0, |before| before.next);
        let range = range.start - begin..range.end - begin;
        self.next = pages_up(range.end) as usize * PAGE_BYTES;
        self.segments.push((tuple, header, Arrived::There(range)));
        before
    }

    /// Keeps only what lies behind what is noted, and returns the rest.
    fn cut(&mut self, stream: (Tuple, u32)) -> Option<Self> {
        let behind = self.room.split_off((self.next / PAGE_BYTES) as u32)?;
        let mut before = Self::of(std::mem::replace(&mut self.room, behind), self.next);
        before.stream = Some(stream);
        before.segments = std::mem::take(&mut self.segments);
        Some(before)
    }

    /// What was noted, in order; and the room, if it has nothing of it.
    pub fn finish(mut self) -> (Vec<(Tuple, Segment<Bytes>)>, Option<Self>) {
        let noted = std::mem::take(&mut self.segments);
        let (filled, left) = match self.stream {
            Some(_) => (Some(self.room.filled(self.next)), None),
            None => (None, Some(self)),
        };
        let piece = |payload| match payload {
            Arrived::Few(bytes) => bytes,
            Arrived::There(range) => filled.as_ref().map(|filled| filled.part(range)),
        };
        let segments =
            noted.into_iter().map(|(tuple, header, payload)| (tuple, segment(header, piece(payload))));
        (segments.collect(), left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::HeapRoom;

    fn tuple(port: u16) -> Tuple {
        Tuple { local: ([10, 0, 0, 2], 80).into(), remote: ([10, 0, 0, 1], port).into() }
    }

    /// A room of the heap, so that nothing is cut off.
    fn filling() -> Filling {
        Filling::of(Room::Heap(HeapRoom::new(ROOM_BYTES).expect("room")), HEAD_BYTES)
    }

    /// Reads a packet whose headers are taken to have 52 bytes.
    fn read(filling: &mut Filling, sequence: usize, header_bytes: usize, payload: &[u8]) {
        let window = filling.window(52);
        window[..header_bytes].fill(0xee);
        window[header_bytes..header_bytes + payload.len()].copy_from_slice(payload);
        let header = Header { sequence: sequence as u32, ..Header::default() };
        let range = header_bytes..header_bytes + payload.len();
        assert!(filling.keep(tuple(1), header, range).is_none());
    }

    fn pieces(filling: Filling) -> Vec<Bytes> {
        let (segments, left) = filling.finish();
        assert!(left.is_none());
        segments.into_iter().flat_map(|(_, segment)| segment.payload).collect()
    }

    #[test]
    fn payloads_lie_behind_each_other_and_headers_over_nothing() {
        let mut filling = filling();
        let payloads = [1u8, 2, 3].map(|byte| vec![byte; 3 * PAGE_BYTES]);
        for (index, payload) in payloads.iter().enumerate() {
            read(&mut filling, index * payload.len(), 52, payload);
            filling.window(52)[..40].fill(0xdd);
            filling.pass();
            filling.put(tuple(2), Header::default(), None);
        }
        let pieces = pieces(filling);
        assert!(pieces.iter().map(Bytes::as_slice).eq(payloads.iter().map(Vec::as_slice)));
        assert!(pieces.windows(2).all(|two| {
            let [one, next] = [two[0].part(), two[1].part()];
            one.address + one.len_bytes == next.address
        }));
    }

    #[test]
    fn headers_of_any_length_leave_every_payload_whole() {
        for lengths in [[52, 40, 120], [120, 20, 52], [20, 120, 120]] {
            let mut filling = filling();
            let payloads: Vec<Vec<u8>> = (2..5).map(|byte| vec![byte; 5000 * usize::from(byte)]).collect();
            let mut sequence = 0;
            for (payload, header_bytes) in payloads.iter().zip(lengths) {
                read(&mut filling, sequence, header_bytes, payload);
                sequence += payload.len();
            }
            let pieces = pieces(filling);
            assert!(pieces.iter().map(Bytes::as_slice).eq(payloads.iter().map(Vec::as_slice)), "{lengths:?}");
        }
    }

    #[test]
    fn a_room_of_which_nothing_was_kept_is_used_on() {
        let mut filling = filling();
        filling.window(52)[..40].fill(0xee);
        filling.pass();
        filling.put(tuple(1), Header::default(), Some(Bytes::copy_of(b"few")));
        let (segments, left) = filling.finish();
        assert_eq!((segments.len(), segments[0].1.payload[0].as_slice()), (1, &b"few"[..]));
        assert!(left.is_some_and(|mut left| left.has_room(65_535)));
    }
}
