//! A buffer that receives packets such that payload of one connection is contiguous, as far as it
//! ends at pages: one reference then passes on much of the stream, as one view in the program's
//! buffer (docs/design/tcp.md#payload-of-one-stream-lies-together).
//!
//! ```text
//! buffer ┌ head ─┬───────────────────────┬───────────────────────┬─────────────┐
//!        │       │ payload               │ payload               │             │
//!        └───────┴───────────────────────┴───────────────────────┴─────────────┘
//!                                      ▲ next packet: its headers overwrite the end of the previous payload,
//!                                        which is restored before anybody reads it
//! ```

use crate::payload::Bytes;
use crate::receive_buffers::Buffer;
use smallvec::SmallVec;
use std::ops::Range;
use uncopy_core::addr::{PAGE_BYTES, pages_up};
use uncopy_lanes::process::Process;
use uncopy_tcp::segment::{Header, Segment};
use uncopy_tcp::wire::Tuple;

/// Preferred length of a buffer, in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// Space in front of the first payload, for its headers, in bytes.
const HEAD_BYTES: usize = PAGE_BYTES;
const MAX_HEADER_BYTES: usize = 120;

/// Payload of a received segment.
enum Content {
    /// A few bytes that were copied out, or none.
    Copied(Option<Bytes>),
    InBuffer(Range<usize>),
}

/// Returns a received segment.
pub fn segment(header: Header, payload: Option<Bytes>) -> Segment<Bytes> {
    let mut segment = Segment::bare(header);
    segment.payload.extend(payload);
    segment
}

/// A buffer being filled, and the segments that TCP has not processed.
pub struct PacketBuffer {
    buffer: Buffer,
    /// Offset of the next payload.
    next: usize,
    /// Connection of the buffer's payload, and its next sequence number.
    stream: Option<(Tuple, u32)>,
    segments: Vec<(Tuple, Header, Content)>,
    /// Bytes that the headers in the packet space overwrite.
    overwritten: SmallVec<[u8; 128]>,
}

impl PacketBuffer {
    /// Returns a new buffer for at least one packet of `max_packet_bytes`, or `None` if no memory is free.
    pub fn allocate(process: &'static Process, max_packet_bytes: usize) -> Option<Self> {
        let shared = process.alloc_shared(BUFFER_BYTES).map(Buffer::Shared);
        let buffer = shared.or_else(|| Buffer::allocate(process, HEAD_BYTES + max_packet_bytes))?;
        Some(Self::of(buffer, HEAD_BYTES))
    }

    fn of(buffer: Buffer, next: usize) -> Self {
        Self { buffer, next, stream: None, segments: Vec::new(), overwritten: SmallVec::new() }
    }

    /// True if the buffer has room for another packet.
    pub fn has_room(&mut self, max_packet_bytes: usize) -> bool {
        (self.stream.is_none() || matches!(self.buffer, Buffer::Shared(_)))
            && self.buffer.bytes().len().saturating_sub(self.next) >= max_packet_bytes
    }

    /// Returns the space for a packet with the expected headers; [restore](Self::restore) it afterwards.
    pub fn packet_space(&mut self, header_bytes: usize) -> &mut [u8] {
        let begin = self.next - header_bytes.min(MAX_HEADER_BYTES);
        let bytes = self.buffer.bytes();
        self.overwritten = SmallVec::from_slice(&bytes[begin..self.next]);
        &mut bytes[begin..]
    }

    /// Restores the bytes under the headers. Returns the range of `payload`, which is relative to the packet.
    fn restore(&mut self, payload: Range<usize>) -> Range<usize> {
        let begin = self.next - self.overwritten.len();
        let mut range = begin + payload.start..begin + payload.end;
        let bytes = self.buffer.bytes();
        if range.start < self.next {
            bytes.copy_within(range.clone(), self.next);
            range = self.next..self.next + range.len();
        }
        bytes[begin..self.next].copy_from_slice(&self.overwritten);
        range
    }

    /// Discards the packet in the packet space.
    pub fn discard(&mut self) {
        self.restore(0..0);
    }

    /// Records a segment whose payload is not in the buffer.
    pub fn record(&mut self, tuple: Tuple, header: Header, few: Option<Bytes>) {
        self.segments.push((tuple, header, Content::Copied(few)));
    }

    /// Records the segment in the packet space; `payload` is relative to the packet. If it belongs to another
    /// stream than the previous payload, the buffer is split, and the earlier part is returned.
    pub fn record_payload(&mut self, tuple: Tuple, header: Header, payload: Range<usize>) -> Option<Self> {
        let range = self.restore(payload);
        let sequence_end = header.sequence.wrapping_add(range.len() as u32);
        let before = self
            .stream
            .replace((tuple, sequence_end))
            .and_then(|stream| (stream != (tuple, header.sequence)).then(|| self.split(stream)).flatten());
        let begin = before.as_ref().map_or(0, |before| before.next);
        let range = range.start - begin..range.end - begin;
        self.next = pages_up(range.end) as usize * PAGE_BYTES;
        self.segments.push((tuple, header, Content::InBuffer(range)));
        before
    }

    /// Keeps the unused rest of the buffer and returns the part with the recorded segments.
    fn split(&mut self, stream: (Tuple, u32)) -> Option<Self> {
        let behind = self.buffer.split_off((self.next / PAGE_BYTES) as u32)?;
        let mut before = Self::of(std::mem::replace(&mut self.buffer, behind), self.next);
        before.stream = Some(stream);
        before.segments = std::mem::take(&mut self.segments);
        Some(before)
    }

    /// Returns the recorded segments in order, and the buffer itself if it holds no payload.
    pub fn finish(mut self) -> (Vec<(Tuple, Segment<Bytes>)>, Option<Self>) {
        let recorded = std::mem::take(&mut self.segments);
        let (filled, left) = match self.stream {
            Some(_) => (Some(self.buffer.freeze(self.next)), None),
            None => (None, Some(self)),
        };
        let piece = |payload| match payload {
            Content::Copied(bytes) => bytes,
            Content::InBuffer(range) => filled.as_ref().map(|filled| filled.slice(range)),
        };
        let segments =
            recorded.into_iter().map(|(tuple, header, payload)| (tuple, segment(header, piece(payload))));
        (segments.collect(), left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::HeapBuffer;

    fn tuple(port: u16) -> Tuple {
        Tuple { local: ([10, 0, 0, 2], 80).into(), remote: ([10, 0, 0, 1], port).into() }
    }

    /// Returns a heap buffer, which is never split.
    fn packet_buffer() -> PacketBuffer {
        PacketBuffer::of(Buffer::Heap(HeapBuffer::new(BUFFER_BYTES).expect("room")), HEAD_BYTES)
    }

    /// Receives a packet whose headers are expected to have 52 bytes.
    fn read(packet_buffer: &mut PacketBuffer, sequence: usize, header_bytes: usize, payload: &[u8]) {
        let packet_space = packet_buffer.packet_space(52);
        packet_space[..header_bytes].fill(0xee);
        packet_space[header_bytes..header_bytes + payload.len()].copy_from_slice(payload);
        let header = Header { sequence: sequence as u32, ..Header::default() };
        let range = header_bytes..header_bytes + payload.len();
        assert!(packet_buffer.record_payload(tuple(1), header, range).is_none());
    }

    fn pieces(packet_buffer: PacketBuffer) -> Vec<Bytes> {
        let (segments, left) = packet_buffer.finish();
        assert!(left.is_none());
        segments.into_iter().flat_map(|(_, segment)| segment.payload).collect()
    }

    #[test]
    fn payloads_are_contiguous_and_headers_overwrite_nothing() {
        let mut packet_buffer = packet_buffer();
        let payloads = [1u8, 2, 3].map(|byte| vec![byte; 3 * PAGE_BYTES]);
        for (index, payload) in payloads.iter().enumerate() {
            read(&mut packet_buffer, index * payload.len(), 52, payload);
            packet_buffer.packet_space(52)[..40].fill(0xdd);
            packet_buffer.discard();
            packet_buffer.record(tuple(2), Header::default(), None);
        }
        let pieces = pieces(packet_buffer);
        assert!(pieces.iter().map(Bytes::as_slice).eq(payloads.iter().map(Vec::as_slice)));
        assert!(pieces.windows(2).all(|two| {
            let [one, next] = [two[0].part(), two[1].part()];
            one.address + one.len_bytes == next.address
        }));
    }

    #[test]
    fn headers_of_any_length_leave_every_payload_whole() {
        for lengths in [[52, 40, 120], [120, 20, 52], [20, 120, 120]] {
            let mut packet_buffer = packet_buffer();
            let payloads: Vec<Vec<u8>> = (2..5).map(|byte| vec![byte; 5000 * usize::from(byte)]).collect();
            let mut sequence = 0;
            for (payload, header_bytes) in payloads.iter().zip(lengths) {
                read(&mut packet_buffer, sequence, header_bytes, payload);
                sequence += payload.len();
            }
            let pieces = pieces(packet_buffer);
            assert!(pieces.iter().map(Bytes::as_slice).eq(payloads.iter().map(Vec::as_slice)), "{lengths:?}");
        }
    }

    #[test]
    fn buffer_without_payload_is_reused() {
        let mut packet_buffer = packet_buffer();
        packet_buffer.packet_space(52)[..40].fill(0xee);
        packet_buffer.discard();
        packet_buffer.record(tuple(1), Header::default(), Some(Bytes::copy_of(b"few")));
        let (segments, left) = packet_buffer.finish();
        assert_eq!((segments.len(), segments[0].1.payload[0].as_slice()), (1, &b"few"[..]));
        assert!(left.is_some_and(|mut left| left.has_room(65_535)));
    }
}
