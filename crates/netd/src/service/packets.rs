//! Packets: from the link to TCP, and from TCP to the link.

use super::Service;
use crate::filling::{Filling, segment};
use crate::icmp::{self, Meaning};
use crate::payload::Bytes;
use crate::rooms::MAX_FEW_BYTES;
use std::io::{self, IoSlice};
use uncopy_tcp::error::Error;
use uncopy_tcp::payload::len_bytes;
use uncopy_tcp::segment::Segment;
use uncopy_tcp::wire::{self, Parsed, Tuple};

/// Packets that are received before something else has its turn.
const MAX_PACKETS_A_TURN: usize = 64;
/// How often more is waited for, once acknowledgements are on their way, before anything else has its turn.
const MAX_TURNS: usize = 8;
/// Parts of one packet that are handed to the link as they are.
const MAX_PARTS: usize = 512;

/// What a packet is.
enum Found {
    /// A segment with payload that was not copied.
    Large(Parsed),
    /// A segment with a few bytes or none.
    Small(Parsed, Option<Bytes>),
    /// Nothing of a connection's.
    Nothing,
}

impl Service {
    /// Receives what has come, also what comes once its acknowledgements are on their way: a program gets more at a time then.
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

    /// Receives some packets. Whether there was payload of which no copy was made.
    fn receive_some(&mut self) -> io::Result<bool> {
        let max_packet_bytes = self.link.max_packet_bytes();
        let mut has_payload = false;
        for _ in 0..MAX_PACKETS_A_TURN {
            if let Some(full) = self.filling.take_if(|filling| !filling.has_room(max_packet_bytes)) {
                self.take_all(full);
            }
            if self.filling.is_none() {
                self.filling = Filling::begin(self.process, max_packet_bytes);
            }
            match self.receive_packet(max_packet_bytes)? {
                None => break,
                Some(was_kept) => has_payload |= was_kept,
            }
        }
        self.filling = self.filling.take().and_then(|filling| self.take_all(filling));
        Ok(has_payload)
    }

    /// Receives a packet. Whether its payload was kept; `None`: there is none now.
    fn receive_packet(&mut self, max_packet_bytes: usize) -> io::Result<Option<bool>> {
        let Some(mut filling) = self.filling.take() else { return self.receive_headers(max_packet_bytes) };
        let window = filling.window(self.header_bytes);
        let received = self.link.receive(window);
        let found = match received {
            Ok(Some(packet_bytes)) => self.look(&window[..packet_bytes]),
            _ => Found::Nothing,
        };
        let was_kept = matches!(found, Found::Large(_));
        match found {
            Found::Large(Parsed { tuple, header, payload }) => {
                self.header_bytes = payload.start;
                if let Some(before) = filling.keep(tuple, header, payload) {
                    self.take_all(before);
                }
            }
            Found::Small(Parsed { tuple, header, .. }, few) => {
                filling.pass();
                filling.put(tuple, header, few);
            }
            Found::Nothing => filling.pass(),
        }
        self.filling = Some(filling);
        Ok(received?.map(|_| was_kept))
    }

    /// The same where there is no room: only headers can be kept. TCP sends again what is dropped.
    fn receive_headers(&mut self, max_packet_bytes: usize) -> io::Result<Option<bool>> {
        let mut room = vec![0; max_packet_bytes];
        let Some(packet_bytes) = self.link.receive(&mut room)? else { return Ok(None) };
        match self.look(&room[..packet_bytes]) {
            Found::Large(_) => self.dropped_packets += 1,
            Found::Small(Parsed { tuple, header, .. }, few) => self.take_segment(tuple, segment(header, few)),
            Found::Nothing => {}
        }
        Ok(Some(false))
    }

    /// What a packet is. What others say of packets is obeyed.
    fn look(&mut self, packet: &[u8]) -> Found {
        match wire::parse(packet, packet.len()) {
            Ok(parsed) if !self.is_own(parsed.tuple.local.ip()) => Found::Nothing,
            Ok(parsed) if parsed.payload.is_empty() => Found::Small(parsed, None),
            Ok(parsed) if parsed.payload.len() >= MAX_FEW_BYTES => Found::Large(parsed),
            Ok(parsed) => {
                match Bytes::received(&packet[parsed.payload.clone()], self.settings.memory_bytes) {
                    Some(few) => Found::Small(parsed, Some(few)),
                    None => {
                        self.dropped_packets += 1;
                        Found::Nothing
                    }
                }
            }
            Err(_) => {
                let meaning = icmp::parse(packet, |address| self.is_own(address));
                self.obey(meaning);
                Found::Nothing
            }
        }
    }

    /// Gives TCP what was noted. The room, if it has nothing of it.
    fn take_all(&mut self, filling: Filling) -> Option<Filling> {
        let (segments, left) = filling.finish();
        for (tuple, segment) in segments {
            self.take_segment(tuple, segment);
        }
        left
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
