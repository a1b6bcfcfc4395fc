//! Packets: from the link to TCP, and from TCP to the link.

use super::Service;
use crate::icmp::{self, Meaning};
use crate::payload::Bytes;
use crate::rooms::{MAX_FEW_BYTES, Room};
use std::io::{self, IoSlice};
use uncopy_tcp::error::Error;
use uncopy_tcp::payload::len_bytes;
use uncopy_tcp::segment::Segment;
use uncopy_tcp::wire::{self, Tuple};

/// Packets that are received before something else has its turn.
const MAX_PACKETS_A_TURN: usize = 64;
/// Bytes of the page in front of payload: headers end where it does.
const HEAD_BYTES: usize = uncopy_core::addr::PAGE_BYTES;
/// Parts of one packet that are handed to the link as they are.
const MAX_PARTS: usize = 512;

impl Service {
    pub(super) fn receive_packets(&mut self) -> io::Result<()> {
        let max_bytes = HEAD_BYTES + self.link.max_packet_bytes();
        for _ in 0..MAX_PACKETS_A_TURN {
            let taken = self.packet_room.take().or_else(|| Room::take(self.process, max_bytes));
            let mut spare = Vec::new();
            let (mut room, begin) = match taken {
                Some(room) => (Some(room), HEAD_BYTES - self.header_bytes),
                None => {
                    // Only headers can be kept: TCP sends again what is dropped.
                    spare.resize(max_bytes, 0);
                    (None, 0)
                }
            };
            let bytes = room.as_mut().map_or(&mut spare[..], Room::bytes);
            let Some(packet_bytes) = self.link.receive(&mut bytes[begin..])? else {
                self.packet_room = room;
                return Ok(());
            };
            let packet = &bytes[begin..begin + packet_bytes];
            match wire::parse(packet, packet_bytes) {
                Ok(parsed)
                    if self.settings.prefixes.iter().any(|prefix| prefix.own == parsed.tuple.local.ip()) =>
                {
                    let payload = begin + parsed.payload.start..begin + parsed.payload.end;
                    let piece = match room {
                        _ if payload.len() < MAX_FEW_BYTES => {
                            let few = &bytes[payload.clone()];
                            let max_bytes = self.settings.memory_bytes;
                            let piece = if few.is_empty() { None } else { Bytes::received(few, max_bytes) };
                            self.packet_room = room;
                            if piece.is_none() && !payload.is_empty() {
                                self.dropped_packets += 1;
                                continue;
                            }
                            piece
                        }
                        Some(room) => {
                            self.header_bytes = parsed.payload.start.min(HEAD_BYTES);
                            Some(room.filled(payload.end).part(payload.clone()))
                        }
                        None => {
                            self.dropped_packets += 1;
                            continue;
                        }
                    };
                    let mut segment = Segment::bare(parsed.header);
                    segment.payload.extend(piece);
                    self.take_segment(parsed.tuple, segment);
                }
                Ok(_) => self.packet_room = room,
                Err(_) => {
                    let meaning = icmp::parse(packet, |address| {
                        self.settings.prefixes.iter().any(|prefix| prefix.own == address)
                    });
                    self.packet_room = room;
                    self.obey(meaning);
                }
            }
        }
        Ok(())
    }

    pub(super) fn take_segment(&mut self, tuple: Tuple, segment: Segment<Bytes>) {
        let flags = segment.header.flags;
        if flags.syn && !flags.ack {
            self.forget_listeners(|address| address.port() == tuple.local.port());
        }
        self.stack.on_segment(tuple, segment, self.now_ns());
    }

    fn obey(&mut self, meaning: Option<Meaning>) {
        match meaning {
            Some(Meaning::Unreachable(tuple, sequence, error)) => {
                self.stack.on_unreachable(&tuple, sequence, error);
            }
            Some(Meaning::PathMtu(tuple, sequence, mtu)) => {
                let headers = if tuple.local.is_ipv4() { 40 } else { 60 };
                self.stack.on_path_mtu(&tuple, sequence, mtu.saturating_sub(headers));
            }
            Some(Meaning::Echo(mut packet)) => _ = self.link.send(&mut packet, &[], usize::MAX),
            None => {}
        }
    }

    pub(super) fn send_segments(&mut self) -> io::Result<()> {
        loop {
            let next = self.unsent.take().or_else(|| self.stack.poll_transmit(self.now_ns()));
            let Some((tuple, segment)) = next else { return Ok(()) };
            if self.is_own(tuple.remote.ip()) {
                self.looped.push_back((Tuple { local: tuple.remote, remote: tuple.local }, segment));
                continue;
            }
            let mut header = wire::write(&tuple, &segment.header, len_bytes(&segment.payload));
            let mut parts: Vec<IoSlice<'_>> =
                segment.payload.iter().map(|piece| IoSlice::new(piece.as_slice())).collect();
            let joined;
            if parts.len() > MAX_PARTS {
                // The kernel takes 1024 (IOV_MAX); they are small then.
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
                // No packet, or the device is down: lost, as on any network.
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
