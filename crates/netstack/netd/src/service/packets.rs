//! Packets: from the link to TCP, and from TCP to the link.

use super::Service;
use crate::icmp::{self, IcmpEffect};
use crate::packet_buffer::{PacketBuffer, segment};
use crate::payload::Bytes;
use crate::receive_buffers::COPY_BELOW_BYTES;
use std::io::{self, IoSlice};
use uncopy_tcp::error::Error;
use uncopy_tcp::payload::len_bytes;
use uncopy_tcp::segment::Segment;
use uncopy_tcp::wire::{self, Parsed, Tuple};

const MAX_PACKETS_A_TURN: usize = 64;
/// Maximum number of turns while sending acknowledgements brings more packets.
const MAX_TURNS: usize = 8;
/// Maximum number of parts passed to the link without copying.
const MAX_PARTS: usize = 512;

/// Content of a received packet.
enum PacketKind {
    /// A segment with payload that stays in the buffer.
    Large(Parsed),
    /// A segment with a few copied bytes, or none.
    Small(Parsed, Option<Bytes>),
    /// No segment for a connection.
    Nothing,
}

impl Service {
    /// Receives packets, and more once acknowledgements are sent, so that programs get larger runs.
    pub(super) fn receive_packets(&mut self) -> io::Result<()> {
        for _ in 0..MAX_TURNS {
            let has_payload = self.receive_some()?;
            if !has_payload {
                break;
            }
            self.send_segments()?;
        }
        Ok(())
    }

    /// Receives some packets. Returns whether any payload stayed in a buffer.
    fn receive_some(&mut self) -> io::Result<bool> {
        let max_packet_bytes = self.link.max_packet_bytes();
        let mut has_payload = false;
        for _ in 0..MAX_PACKETS_A_TURN {
            if let Some(full) =
                self.packet_buffer.take_if(|packet_buffer| !packet_buffer.has_room(max_packet_bytes))
            {
                self.process_segments(full);
            }
            if self.packet_buffer.is_none() {
                self.packet_buffer = PacketBuffer::allocate(self.process, max_packet_bytes);
            }
            match self.receive_packet(max_packet_bytes)? {
                None => break,
                Some(was_buffered) => has_payload |= was_buffered,
            }
        }
        self.packet_buffer =
            self.packet_buffer.take().and_then(|packet_buffer| self.process_segments(packet_buffer));
        Ok(has_payload)
    }

    /// Receives a packet. Returns whether its payload stayed in the buffer, or `None` if there is no packet.
    fn receive_packet(&mut self, max_packet_bytes: usize) -> io::Result<Option<bool>> {
        let Some(mut packet_buffer) = self.packet_buffer.take() else {
            return self.receive_headers(max_packet_bytes);
        };
        let packet_space = packet_buffer.packet_space(self.header_bytes);
        let received = self.link.receive(packet_space);
        let kind = match received {
            Ok(Some(packet_bytes)) => self.classify(&packet_space[..packet_bytes]),
            _ => PacketKind::Nothing,
        };
        let was_buffered = matches!(kind, PacketKind::Large(_));
        match kind {
            PacketKind::Large(Parsed { tuple, header, payload }) => {
                self.header_bytes = payload.start;
                if let Some(before) = packet_buffer.record_payload(tuple, header, payload) {
                    self.process_segments(before);
                }
            }
            PacketKind::Small(Parsed { tuple, header, .. }, few) => {
                packet_buffer.discard();
                packet_buffer.record(tuple, header, few);
            }
            PacketKind::Nothing => packet_buffer.discard(),
        }
        self.packet_buffer = Some(packet_buffer);
        Ok(received?.map(|_| was_buffered))
    }

    /// Receives a packet without a buffer: large payloads are dropped, and the peer retransmits them.
    fn receive_headers(&mut self, max_packet_bytes: usize) -> io::Result<Option<bool>> {
        let mut buffer = vec![0; max_packet_bytes];
        let Some(packet_bytes) = self.link.receive(&mut buffer)? else { return Ok(None) };
        match self.classify(&buffer[..packet_bytes]) {
            PacketKind::Large(_) => self.dropped_packets += 1,
            PacketKind::Small(Parsed { tuple, header, .. }, few) => {
                self.process_segment(tuple, segment(header, few))
            }
            PacketKind::Nothing => {}
        }
        Ok(Some(false))
    }

    /// Parses a packet, and applies ICMP messages.
    fn classify(&mut self, packet: &[u8]) -> PacketKind {
        match wire::parse(packet, packet.len()) {
            Ok(parsed) if !self.is_own(parsed.tuple.local.ip()) => PacketKind::Nothing,
            Ok(parsed) if parsed.payload.is_empty() => PacketKind::Small(parsed, None),
            Ok(parsed) if parsed.payload.len() >= COPY_BELOW_BYTES => PacketKind::Large(parsed),
            Ok(parsed) => {
                match Bytes::copy_received(&packet[parsed.payload.clone()], self.settings.memory_bytes) {
                    Some(few) => PacketKind::Small(parsed, Some(few)),
                    None => {
                        self.dropped_packets += 1;
                        PacketKind::Nothing
                    }
                }
            }
            Err(_) => {
                let effect = icmp::parse(packet, |address| self.is_own(address));
                self.apply_icmp(effect);
                PacketKind::Nothing
            }
        }
    }

    /// Passes the recorded segments to TCP. Returns the buffer if it holds no payload.
    fn process_segments(&mut self, packet_buffer: PacketBuffer) -> Option<PacketBuffer> {
        let (segments, left) = packet_buffer.finish();
        for (tuple, segment) in segments {
            self.process_segment(tuple, segment);
        }
        left
    }

    pub(super) fn process_segment(&mut self, tuple: Tuple, segment: Segment<Bytes>) {
        let flags = segment.header.flags;
        if flags.syn && !flags.ack {
            self.remove_gone_listeners(|address| address.port() == tuple.local.port());
        }
        self.stack.on_segment(tuple, segment, self.now_ns());
    }

    fn apply_icmp(&mut self, effect: Option<IcmpEffect>) {
        match effect {
            Some(IcmpEffect::Unreachable(tuple, sequence, error)) => {
                self.stack.on_unreachable(&tuple, sequence, error);
            }
            Some(IcmpEffect::PathMtu(tuple, sequence, mtu)) => {
                let headers = if tuple.local.is_ipv4() { 40 } else { 60 };
                self.stack.on_path_mtu(&tuple, sequence, mtu.saturating_sub(headers));
            }
            Some(IcmpEffect::EchoReply(mut packet)) => _ = self.link.send(&mut packet, &[], usize::MAX),
            None => {}
        }
    }

    pub(super) fn send_segments(&mut self) -> io::Result<()> {
        loop {
            let next = self.unsent.take().or_else(|| self.stack.poll_transmit(self.now_ns()));
            let Some((tuple, segment)) = next else { return Ok(()) };
            if self.is_own(tuple.remote.ip()) {
                self.loopback.push_back((Tuple { local: tuple.remote, remote: tuple.local }, segment));
                continue;
            }
            let mut header = wire::write(&tuple, &segment.header, len_bytes(&segment.payload));
            let mut parts: Vec<IoSlice<'_>> =
                segment.payload.iter().map(|piece| IoSlice::new(piece.as_slice())).collect();
            let joined;
            if parts.len() > MAX_PARTS {
                // The kernel takes at most 1024 parts (IOV_MAX); that many are small.
                joined =
                    segment.payload.iter().flat_map(|piece| piece.as_slice()).copied().collect::<Vec<u8>>();
                parts = vec![IoSlice::new(&joined)];
            }
            let max_bytes = usize::from(segment.max_payload_bytes).max(1);
            match self.link.send(&mut header, &parts, max_bytes) {
                Ok(true) => {}
                Ok(false) => {
                    self.unsent = Some((tuple, segment));
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::HostUnreachable => {
                    let sequence = segment.header.sequence;
                    self.stack.on_unreachable(&tuple, sequence, Error::HostUnreachable);
                }
                // An invalid packet, or the device is down: dropped, as on any network.
                Err(error)
                    if error.kind() == io::ErrorKind::InvalidInput
                        || matches!(
                            error.raw_os_error(),
                            Some(libc::EIO | libc::EINVAL | libc::ENETDOWN)
                        ) =>
                {
                    self.dropped_packets += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
