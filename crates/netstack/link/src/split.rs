//! Splitting a super-packet into segments, as a network device with TSO does.

use std::io::{self, IoSlice};

use crate::checksum::Sum;
use crate::packet::{Layout, TCP_CHECKSUM_AT};
use crate::{Counters, MAX_PACKET_BYTES};

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// A packet to send, with validated lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Layout of the IP header.
    pub layout: Layout,
    /// Length of the packet, in bytes.
    pub packet_bytes: usize,
    /// Length of the payload, in bytes.
    pub payload_bytes: usize,
    /// Number of segments to send.
    pub segments: usize,
}

impl Outgoing {
    /// Counts the packet as sent, or as refused if there was no room. Returns `has_room`.
    pub fn count(&self, counters: &mut Counters, has_room: bool) -> bool {
        if has_room {
            counters.sent.count(self.packet_bytes);
            counters.sent_super += u64::from(self.is_super());
        } else {
            counters.refused += 1;
        }
        has_room
    }

    /// Validates a packet; see [`Link::send`](crate::Link::send).
    ///
    /// # Errors
    /// `InvalidInput` if the packet is malformed or its IP header has another length.
    pub fn new(header: &[u8], payload: &[IoSlice<'_>], max_segment_payload_bytes: usize) -> io::Result<Self> {
        let payload_bytes = payload.iter().map(|part| part.len()).sum();
        let packet_bytes = header.len() + payload_bytes;
        let layout = Layout::of(header)
            .filter(|layout| layout.transport.end == packet_bytes && packet_bytes <= MAX_PACKET_BYTES)
            .ok_or_else(|| invalid("the IP header does not say how long the packet is"))?;
        if !layout.is_tcp() {
            return Ok(Self { layout, packet_bytes, payload_bytes, segments: 1 });
        }
        let words = header.get(layout.transport.start + 12).map_or(0, |byte| byte >> 4);
        if words < 5 || header.len() != layout.transport.start + usize::from(words) * 4 {
            return Err(invalid("the TCP header does not end where the payload begins"));
        }
        if payload_bytes > 0 && max_segment_payload_bytes == 0 {
            return Err(invalid("segments without payload"));
        }
        let segments = payload_bytes.div_ceil(max_segment_payload_bytes.max(1)).max(1);
        Ok(Self { layout, packet_bytes, payload_bytes, segments })
    }

    /// True if the packet has more than one segment.
    #[must_use]
    pub fn is_super(&self) -> bool {
        self.segments > 1
    }

    /// Returns the offset of the TCP checksum in the packet.
    #[must_use]
    pub fn checksum_at(&self) -> usize {
        self.layout.transport.start + TCP_CHECKSUM_AT
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Writer of a packet's segments, with all checksums. FIN and PSH are set on the last segment only.
pub struct Segments<'packet> {
    outgoing: &'packet Outgoing,
    header: &'packet [u8],
    payload: &'packet [IoSlice<'packet>],
    max_payload_bytes: usize,
    /// Number of payload bytes before the next segment.
    done_bytes: usize,
    /// Number of bytes consumed of the first part of `payload`.
    done_of_part_bytes: usize,
    index: usize,
}

impl<'packet> Segments<'packet> {
    /// Returns the segments of a packet that [`Outgoing::new`] has validated.
    #[must_use]
    pub fn new(
        outgoing: &'packet Outgoing,
        header: &'packet [u8],
        payload: &'packet [IoSlice<'packet>],
        max_payload_bytes: usize,
    ) -> Self {
        Self { outgoing, header, payload, max_payload_bytes, done_bytes: 0, done_of_part_bytes: 0, index: 0 }
    }

    /// Returns the maximum length of a segment, in bytes from the IP header on.
    #[must_use]
    pub fn max_bytes(&self) -> usize {
        let payload_bytes = self.outgoing.payload_bytes;
        self.header.len()
            + if self.outgoing.is_super() { self.max_payload_bytes.min(payload_bytes) } else { payload_bytes }
    }

    /// Writes the next segment to the start of `room` and returns its length in bytes; `None` at the end.
    ///
    /// # Panics
    /// If `room` is shorter than [`Segments::max_bytes`].
    pub fn next_into(&mut self, room: &mut [u8]) -> Option<usize> {
        if self.index == self.outgoing.segments {
            return None;
        }
        let header_bytes = self.header.len();
        let left_bytes = self.outgoing.payload_bytes - self.done_bytes;
        let payload_bytes = left_bytes.min(self.max_bytes() - header_bytes);
        let segment = &mut room[..header_bytes + payload_bytes];
        segment[..header_bytes].copy_from_slice(self.header);
        self.copy_payload(&mut segment[header_bytes..]);
        self.finish(segment, payload_bytes == left_bytes);
        self.done_bytes += payload_bytes;
        self.index += 1;
        Some(segment.len())
    }

    fn copy_payload(&mut self, mut into: &mut [u8]) {
        while let ([part, rest @ ..], false) = (self.payload, into.is_empty()) {
            let from = &part[self.done_of_part_bytes..];
            let len = from.len().min(into.len());
            let (here, later) = into.split_at_mut(len);
            here.copy_from_slice(&from[..len]);
            into = later;
            self.done_of_part_bytes += len;
            if self.done_of_part_bytes == part.len() {
                (self.payload, self.done_of_part_bytes) = (rest, 0);
            }
        }
    }

    /// Writes the header fields that differ by segment. Sequence number and IPv4 identification wrap.
    fn finish(&self, segment: &mut [u8], is_last: bool) {
        let layout = &self.outgoing.layout;
        if !layout.is_tcp() {
            return;
        }
        let len = segment.len() as u16;
        if layout.is_v6 {
            segment[4..6].copy_from_slice(&(len - 40).to_be_bytes());
        } else {
            let identification = u16::from_be_bytes([segment[4], segment[5]]).wrapping_add(self.index as u16);
            segment[2..4].copy_from_slice(&len.to_be_bytes());
            segment[4..6].copy_from_slice(&identification.to_be_bytes());
            segment[10..12].fill(0);
            let mut sum = Sum::default();
            sum.add(&segment[..layout.transport.start]);
            segment[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
        }
        let tcp = &mut segment[layout.transport.start..];
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let sequence = sequence.wrapping_add(self.done_bytes as u32);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        tcp[13] &= !(if is_last { 0 } else { FIN | PSH } | if self.index == 0 { 0 } else { CWR });
        write_tcp_checksum(segment);
    }
}

/// Writes the checksum into a complete TCP packet.
///
/// # Panics
/// If the packet is not TCP.
pub fn write_tcp_checksum(packet: &mut [u8]) {
    let layout = Layout::of(packet).filter(Layout::is_tcp).expect("a TCP packet");
    let at = layout.transport.start + TCP_CHECKSUM_AT;
    packet[at..at + 2].fill(0);
    let mut sum = layout.pseudo_header(packet);
    sum.add(&packet[layout.transport]);
    packet[at..at + 2].copy_from_slice(&sum.checksum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uncopy_tcp::segment::{Flags, Header};
    use uncopy_tcp::wire::{self, Tuple};

    use super::*;
    use crate::packet::{Validity, validate};

    proptest! {
        #[test]
        fn segments_put_together_are_the_packet(
            is_v6: bool, sequence: u32, fin: bool, psh: bool, max_payload_bytes in 1usize..5000,
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..6),
        ) {
            let (local, remote) =
                if is_v6 { ("[fd00::1]:80", "[fd00::2]:9") } else { ("10.0.0.1:80", "10.0.0.2:9") };
            let tuple = Tuple { local: local.parse().unwrap(), remote: remote.parse().unwrap() };
            let flags = Flags { fin, psh, ack: true, ..Flags::default() };
            let whole = Header { sequence, flags, window: 77, ..Header::default() };
            let payload = parts.concat();
            let header = wire::write(&tuple, &whole, payload.len());
            let parts: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
            let outgoing = Outgoing::new(&header, &parts, max_payload_bytes).unwrap();
            let mut segments = Segments::new(&outgoing, &header, &parts, max_payload_bytes);
            let mut room = vec![0; segments.max_bytes()];
            let (mut received, mut count) = (Vec::new(), 0);
            while let Some(len) = segments.next_into(&mut room) {
                let packet = &room[..len];
                prop_assert_eq!(validate(packet, false), Validity::Valid);
                let parsed = wire::parse(packet, len).unwrap();
                prop_assert_eq!(parsed.header.sequence, sequence.wrapping_add(u32::try_from(received.len()).unwrap()));
                received.extend_from_slice(&packet[parsed.payload.clone()]);
                count += 1;
                let is_last = received.len() == payload.len();
                prop_assert!(is_last || parsed.payload.len() == max_payload_bytes);
                let wanted = Flags { fin: fin && is_last, psh: psh && is_last, ..flags };
                prop_assert_eq!(parsed.header.flags, wanted);
            }
            prop_assert_eq!(count, outgoing.segments);
            prop_assert_eq!(received, payload);
        }
    }

    #[test]
    fn malformed_packets_are_refused() {
        let tuple = Tuple { local: "10.0.0.1:80".parse().unwrap(), remote: "10.0.0.2:9".parse().unwrap() };
        let header = wire::write(&tuple, &Header::default(), 5);
        let refused = |header: &[u8], payload: &[u8], max| {
            Outgoing::new(header, &[IoSlice::new(payload)], max)
                .is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput)
        };
        assert!(!refused(&header, b"bytes", 5));
        assert!(refused(&header, b"byte", 5), "another length");
        assert!(refused(&header, b"bytes", 0), "no segments");
        assert!(refused(&header[..30], &[0; 15], 5), "a part of a header");
        assert!(refused(&[], &[], 5), "nothing");
        assert!(refused(&[&header[..], b"by"].concat(), b"tes", 5), "payload in the header");
    }
}
