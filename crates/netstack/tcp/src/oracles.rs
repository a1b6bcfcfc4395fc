//! Hostile peers that send arbitrary bytes; called by fuzzing (`fuzz/`) and by random tests.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::config::{Config, MILLISECOND_NS, SECOND_NS};
use crate::connection::{Connection, Received, State};
use crate::error::Error;
use crate::options::{MAX_OPTIONS_BYTES, Options};
use crate::payload::{Payload as _, Pieces, SharedBytes, len_bytes};
use crate::segment::{Codepoint, Flags, Header, Segment};
use crate::wire::{self, Tuple};

/// Initial sequence numbers of the peer and of this side, so that both streams wrap soon.
const PEER: u32 = u32::MAX - 200;
const OURS: u32 = u32::MAX - 100;
const MAX_EVENTS: usize = 400;
/// Maximum number of segments in answer to one event; more count as an endless loop.
const MAX_ANSWERS: usize = 200;
const BUFFER_BYTES: usize = 3000;
const MAX_PIECES: usize = 16;

/// Checks that a packet parses within its bounds and is unchanged when written and parsed again.
///
/// # Panics
/// If the check fails.
pub fn packet(data: &[u8]) {
    let Ok(parsed) = wire::parse(data, data.len()) else { return };
    assert!(parsed.payload.start <= parsed.payload.end && parsed.payload.end <= data.len());
    let Tuple { local, remote } = parsed.tuple;
    let mut expected = parsed.header;
    let payload_bytes = parsed.payload.len();
    if payload_bytes > wire::MAX_SUPER_PAYLOAD_BYTES {
        return;
    }
    let written = wire::write(&Tuple { local: remote, remote: local }, &expected, payload_bytes);
    let again = wire::parse(&written, written.len() + payload_bytes).expect("it was written");
    assert_eq!(again.tuple, parsed.tuple);
    assert_eq!(again.payload.len(), payload_bytes);
    // Written options are padded, so SACK blocks may not fit; without ACK, the acknowledgement is
    // not written.
    expected.options.sack.truncate(again.header.options.sack.len());
    expected.acknowledgement = if expected.flags.ack { expected.acknowledgement } else { 0 };
    assert_eq!(again.header, expected);
}

/// The rest of the fuzzer's input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    fn word(&mut self) -> Option<u16> {
        self.bytes(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}

/// Returns the byte at an offset of a stream; the two streams differ.
const fn stream_byte(initial: u32, place: u32) -> u8 {
    (place.wrapping_mul(0x9e37_79b1).wrapping_add(initial) >> 24) as u8
}

fn stream_bytes(initial: u32, place: u32, len: usize) -> SharedBytes {
    let bytes: Vec<u8> = (0..len).map(|at| stream_byte(initial, place.wrapping_add(at as u32))).collect();
    SharedBytes::from(&bytes[..])
}

fn verify(initial: u32, place: u32, piece: &SharedBytes) {
    for (at, byte) in piece.as_slice().iter().enumerate() {
        assert_eq!(*byte, stream_byte(initial, place.wrapping_add(at as u32)), "place {place} + {at}");
    }
}

/// A connection, and its peer's knowledge of it.
struct World {
    tcp: Connection<SharedBytes>,
    now_ns: u64,
    /// The peer's next expected sequence number, and the number that acknowledges everything sent.
    expected: u32,
    acknowledgement: u32,
    sent: u32,
    received: u32,
    /// Whether the peer's numbers begin at [`PEER`].
    knows_peer: bool,
}

impl World {
    fn segment(&self, input: &mut Input<'_>) -> Option<Segment<SharedBytes>> {
        let bits = input.byte()?;
        let flags = Flags {
            fin: bits & 1 != 0,
            // Rarely SYN: most segments reach an existing connection.
            syn: bits & 0x82 == 0x82,
            rst: bits & 0x44 == 0x44,
            psh: bits & 8 != 0,
            ack: bits & 0x10 != 0 || bits & 0x20 != 0,
            ece: bits & 0x20 != 0,
            cwr: bits & 4 != 0,
        };
        // Small steps are the interesting ones; large ones leave the window.
        let step = |word: u16, is_large: bool| {
            let step = i32::from(word.cast_signed());
            if is_large { step } else { step % 64 }
        };
        let (at, of) = (input.word()?, input.word()?);
        let sequence = self.expected.wrapping_add_signed(step(at, at & 0x700 == 0x700));
        let acknowledgement =
            self.acknowledgement.wrapping_sub(step(of, of & 0x100 == 0x100).cast_unsigned());
        let len = usize::from(input.byte()? % 120);
        let window = input.word()?;
        let options_bytes = usize::from(input.byte()?) % (MAX_OPTIONS_BYTES + 1);
        let options = Options::parse(input.bytes(options_bytes)?);
        let codepoint = Codepoint::from_bits(bits >> 3 & 3);
        let header = Header { sequence, acknowledgement, flags, window, options, codepoint };
        let place = sequence.wrapping_sub(PEER.wrapping_add(1)).wrapping_add(u32::from(flags.syn));
        let mut payload = Pieces::new();
        if len > 0 {
            payload.push(stream_bytes(PEER, place, len));
        }
        Some(Segment { header, payload, max_payload_bytes: 0 })
    }

    /// Applies one random event. `None` at the end of the input.
    fn apply_event(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.byte()? % 9 {
            0..=3 => {
                let segment = self.segment(input)?;
                self.tcp.on_segment(segment, self.now_ns);
            }
            4 => {
                self.now_ns += u64::from(input.word()?) * 5 * MILLISECOND_NS;
                self.tcp.on_timer(self.now_ns);
            }
            5 => {
                let piece = stream_bytes(OURS, self.sent, usize::from(input.byte()?) + 1);
                if let Ok(sent_bytes) = self.tcp.send(&piece) {
                    assert!(sent_bytes <= piece.len_bytes());
                    self.sent = self.sent.wrapping_add(sent_bytes as u32);
                }
            }
            6 => {
                let max_bytes = usize::from(input.word()?) + 1;
                if let Ok(Received::Piece(piece)) = self.tcp.receive(max_bytes) {
                    assert!((1..=max_bytes).contains(&piece.len_bytes()));
                    if self.knows_peer {
                        verify(PEER, self.received, &piece);
                    }
                    self.received = self.received.wrapping_add(piece.len_bytes() as u32);
                }
            }
            7 => self.tcp.on_path_mtu(input.word()?),
            _ => match input.byte()? {
                0..=15 => _ = self.tcp.shutdown(),
                16..=23 => self.tcp.close(self.now_ns),
                24..=27 => self.tcp.abort(),
                28..=63 => self.tcp.on_unreachable(Error::HostUnreachable),
                _ => _ = self.tcp.take_error(),
            },
        }
        Some(())
    }

    /// Takes out the segments to send, and verifies them and the connection.
    fn verify(&mut self) {
        self.tcp.take_events();
        let mut answers = 0;
        while let Some(segment) = self.tcp.poll_transmit(self.now_ns) {
            answers += 1;
            assert!(answers <= MAX_ANSWERS, "there is no end of {:?}", segment.header);
            let header = &segment.header;
            let payload_bytes = len_bytes(&segment.payload);
            assert!(payload_bytes == 0 || segment.max_payload_bytes > 0);
            let mut place = header.sequence.wrapping_sub(OURS.wrapping_add(1));
            for piece in &segment.payload {
                verify(OURS, place, piece);
                place = place.wrapping_add(piece.len_bytes() as u32);
            }
            if header.flags.ack && !header.flags.rst {
                self.expected = header.acknowledgement;
            }
            let end = header.sequence.wrapping_add(segment.len() as u32);
            if !header.flags.rst && end.wrapping_sub(self.acknowledgement).cast_signed() > 0 {
                self.acknowledgement = end;
            }
        }
        assert_eq!(self.tcp.violation(), None);
        assert!(self.tcp.received_pieces() <= MAX_PIECES, "{}", self.tcp.received_pieces());
        assert!(self.tcp.ready_bytes() <= BUFFER_BYTES, "{}", self.tcp.ready_bytes());
        assert!(self.tcp.room_bytes() <= BUFFER_BYTES, "{}", self.tcp.room_bytes());
    }
}

/// Drives a connection by `data`, which decides what the peer, the program and the clock do. Checks
/// that the bytes sent and received are those of the streams, that memory is bounded, and that
/// invariants hold after every event.
///
/// # Panics
/// If a check fails.
pub fn connection(data: &[u8]) {
    let mut input = Input(data);
    let Some(mode) = input.byte() else { return };
    let config = Arc::new(Config {
        mss: 300,
        max_super_payload_bytes: 1200,
        receive_buffer_bytes: BUFFER_BYTES,
        send_buffer_bytes: BUFFER_BYTES,
        max_receive_pieces: MAX_PIECES,
        max_send_pieces: MAX_PIECES,
        sack: mode & 1 != 0,
        timestamps: mode & 2 != 0,
        window_scaling: mode & 4 != 0,
        nagle: mode & 8 != 0,
        ..Config::default()
    });
    let mut syn = Header { sequence: PEER, window: 1000, ..Header::default() };
    syn.flags.syn = true;
    syn.options.sack_permitted = mode & 1 != 0;
    syn.options.max_segment_size = Some(200);
    syn.options.window_shift = (mode & 4 != 0).then_some(2);
    let now_ns = SECOND_NS;
    let is_passive = mode & 16 != 0;
    let tcp = if is_passive {
        Connection::accept(config, OURS, 0, &syn, now_ns)
    } else {
        Connection::connect(config, OURS, 0, now_ns)
    };
    let (expected, acknowledgement) = (PEER.wrapping_add(1), OURS.wrapping_add(1));
    let mut world =
        World { tcp, now_ns, expected, acknowledgement, sent: 0, received: 0, knows_peer: is_passive };
    world.verify();
    // Usually starts from an established connection.
    if mode & 0x60 != 0 {
        let mut header =
            if is_passive { Header { sequence: expected, window: 1000, ..Header::default() } } else { syn };
        header.acknowledgement = acknowledgement;
        header.flags.ack = true;
        world.tcp.on_segment(Segment { header, payload: SmallVec::new(), max_payload_bytes: 0 }, now_ns);
        world.verify();
        assert_eq!(world.tcp.state(), State::Established);
        world.knows_peer = true;
    }
    for _ in 0..MAX_EVENTS {
        if world.apply_event(&mut input).is_none() {
            return;
        }
        world.verify();
    }
}

#[cfg(test)]
mod tests {
    use uncopy_core::random::{STEP, splitmix64, test_size};

    fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
        let words = (1..).map(|index: u64| splitmix64(seed.wrapping_add(index.wrapping_mul(STEP))));
        words.flat_map(u64::to_le_bytes).take(len).collect()
    }

    #[test]
    fn hostile_histories_break_no_invariant() {
        for seed in 0..2_000 * test_size() {
            super::connection(&random_bytes(seed << 32, 3000));
        }
    }

    #[test]
    fn packets_with_random_bytes_are_read_as_they_are_written() {
        for seed in 0..3_000 * test_size() {
            let mut data = random_bytes(seed << 32 | 1, 20 + 60);
            let options_words = data[79] % 11;
            data[..12].copy_from_slice(&[0x45, 0, 0, 80, 0, 0, 0, 0, 64, 6, 0, 0]);
            data[32] = (5 + options_words) << 4;
            let words =
                data[..20].chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
            let sum: u32 = words.sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            let folded = (folded & 0xffff) + (folded >> 16);
            data[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
            super::packet(&data);
        }
    }
}
