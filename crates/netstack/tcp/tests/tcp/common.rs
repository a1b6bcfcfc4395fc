//! Two stacks joined by unreliable links, with a simulated clock.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "each test uses a part"
)]

use std::collections::{BTreeMap, HashMap};

use uncopy_core::random::{STEP, splitmix64};
use uncopy_tcp::config::{Config, SECOND_NS};
use uncopy_tcp::connection::Received;
use uncopy_tcp::payload::{self, Payload, Pieces, SharedBytes};
use uncopy_tcp::secret::Secret;
use uncopy_tcp::segment::{Codepoint, Segment};
use uncopy_tcp::stack::{ConnectionId, Limits, Stack};
use uncopy_tcp::wire::{self, Tuple};

#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        splitmix64(self.0)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        count > 0 && self.below(count) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Properties of a link in one direction.
#[derive(Clone, Debug, Default)]
pub struct Link {
    pub loss_permille: u64,
    pub duplicate_permille: u64,
    /// Fixed delay of a packet; `jitter_ns` is the maximum random delay on top.
    pub delay_ns: u64,
    pub jitter_ns: u64,
    pub byte_ns: u64,
    /// Share of ECN-capable packets that are marked CE.
    pub mark_permille: u64,
    /// Maximum packet length, beyond which packets are lost; 0 means no limit.
    pub max_packet_bytes: usize,
    pub is_cut: bool,
}

/// A packet in flight: headers, and payload by reference.
pub struct Packet {
    pub headers: Vec<u8>,
    pub payload: Pieces<SharedBytes>,
}

/// Splits a segment into packets, as TSO does.
pub fn split(tuple: &Tuple, segment: &Segment<SharedBytes>) -> Vec<Packet> {
    let total = payload::len_bytes(&segment.payload);
    assert!(total <= wire::MAX_SUPER_PAYLOAD_BYTES);
    let step = usize::from(segment.max_payload_bytes).max(1);
    let mut packets = Vec::new();
    let mut at = 0;
    while at < total || packets.is_empty() {
        let len = step.min(total - at);
        let mut header = segment.header.clone();
        header.sequence = header.sequence.wrapping_add(at as u32);
        let is_last = at + len == total;
        header.flags.fin &= is_last;
        header.flags.psh &= is_last;
        assert!(!header.flags.cwr || total <= step, "CWR is in one packet");
        let mut payload = segment.payload.clone();
        payload::trim_front(&mut payload, at);
        payload::truncate(&mut payload, len);
        // One piece, as a link delivers payload.
        let bytes = payload.iter().map(SharedBytes::as_slice).collect::<Vec<_>>().concat();
        assert_eq!(bytes.len(), len);
        let payload = (len > 0).then(|| SharedBytes::from(&bytes[..])).into_iter().collect();
        packets.push(Packet { headers: wire::write(tuple, &header, len).to_vec(), payload });
        at += len;
    }
    packets
}

/// Marks an IPv4 packet CE, as a router does under congestion.
fn mark(headers: &mut [u8]) {
    headers[1] |= 3;
    headers[10..12].fill(0);
    let words = headers[..20].chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    headers[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}

/// Returns the segment that the receiver of a packet sees.
pub fn join(packet: Packet) -> (Tuple, Segment<SharedBytes>) {
    let total = packet.headers.len() + payload::len_bytes(&packet.payload);
    let parsed = wire::parse(&packet.headers, total).expect("own packets are understood");
    assert_eq!(parsed.payload, packet.headers.len()..total);
    (parsed.tuple, Segment { header: parsed.header, payload: packet.payload, max_payload_bytes: 0 })
}

pub fn stream_byte(stream: u64, at: u64) -> u8 {
    (Random(stream ^ (at / 8)).next() >> (8 * (at % 8))) as u8
}

pub fn stream_bytes(stream: u64, at: u64, len: usize) -> SharedBytes {
    let bytes: Vec<u8> = (at..at + len as u64).map(|at| stream_byte(stream, at)).collect();
    SharedBytes::from(&bytes[..])
}

pub struct World {
    pub now_ns: u64,
    pub random: Random,
    pub stacks: [Stack<SharedBytes>; 2],
    pub links: [Link; 2],
    pub in_flight: BTreeMap<(u64, u64), (usize, Packet)>,
    free_at: [u64; 2],
    /// First and next sequence number that each side has sent per connection.
    sent: HashMap<(usize, Tuple), (u32, u32)>,
    pub retransmitted: [u64; 2],
    pub packets: u64,
    pub lost: u64,
    pub marked: u64,
    /// Segments that exceeded their link: the sending side, the connection, the sequence number.
    pub oversized: Vec<(usize, Tuple, u32)>,
    /// Whether all packets that arrive at one time are processed before anything is sent.
    pub batch_arrivals: bool,
    pub ids: Vec<ConnectionId>,
}

impl World {
    pub fn new(seed: u64, stacks: [Stack<SharedBytes>; 2], links: [Link; 2], now_ns: u64) -> Self {
        let random = Random(seed);
        Self {
            now_ns,
            random,
            stacks,
            links,
            in_flight: BTreeMap::new(),
            free_at: [0; 2],
            sent: HashMap::new(),
            retransmitted: [0; 2],
            packets: 0,
            lost: 0,
            marked: 0,
            oversized: Vec::new(),
            batch_arrivals: false,
            ids: Vec::new(),
        }
    }

    /// Sends the pending segments of `side`, and verifies the stack.
    pub fn flush(&mut self, side: usize) {
        while let Some((tuple, segment)) = self.stacks[side].poll_transmit(self.now_ns) {
            if std::env::var_os("UNCOPY_TEST_NET_PACKETS").is_some() {
                let (header, len) = (&segment.header, payload::len_bytes(&segment.payload));
                println!("{:>12} {side} {len} {header:?}", self.now_ns / 1000);
            }
            let packets = split(&tuple, &segment);
            self.verify_codepoint(side, tuple, &segment, packets.len() as u64);
            for packet in packets {
                let limit = self.links[1 - side].max_packet_bytes;
                if limit > 0 && packet.headers.len() + payload::len_bytes(&packet.payload) > limit {
                    self.packets += 1;
                    self.lost += 1;
                    let sequence = join(packet).1.header.sequence;
                    self.oversized.push((side, tuple, sequence));
                    continue;
                }
                self.transmit(1 - side, packet);
            }
        }
        assert_eq!(self.stacks[side].violation(), None, "side {side}");
    }

    /// Verifies that ECT and CWR appear only on new data (RFC 3168, sections 6.1.1, 6.1.2, 6.1.4
    /// and 6.1.5), and counts retransmissions.
    fn verify_codepoint(&mut self, side: usize, tuple: Tuple, segment: &Segment<SharedBytes>, packets: u64) {
        let header = &segment.header;
        let end = header.sequence.wrapping_add(segment.len() as u32);
        let new = (header.sequence, header.sequence);
        let sent = self.sent.entry((side, tuple)).or_insert(new);
        if header.flags.syn && sent.0 != header.sequence {
            *sent = new;
        }
        let is_first = header.sequence.wrapping_sub(sent.1).cast_signed() >= 0;
        if end.wrapping_sub(sent.1).cast_signed() > 0 {
            sent.1 = end;
        }
        if !is_first && !segment.is_empty() {
            self.retransmitted[side] += packets;
        }
        let is_new_data = is_first && !segment.payload.is_empty();
        let is_capable = header.codepoint == Codepoint::Capable0;
        assert!(is_capable || header.codepoint == Codepoint::NotCapable, "{header:?}");
        assert!(is_new_data || !is_capable, "{header:?}");
        assert!(is_capable || header.flags.syn || !header.flags.cwr, "{header:?}");
    }

    fn transmit(&mut self, to: usize, packet: Packet) {
        self.packets += 1;
        let link = self.links[to].clone();
        if link.is_cut || self.random.below(1000) < link.loss_permille {
            self.lost += 1;
            return;
        }
        let mut packet = packet;
        let is_markable = matches!(packet.headers[1] & 3, 1 | 2);
        if is_markable && self.random.below(1000) < link.mark_permille {
            mark(&mut packet.headers);
            self.marked += 1;
        }
        let bytes = (packet.headers.len() + payload::len_bytes(&packet.payload)) as u64;
        let start = self.free_at[to].max(self.now_ns);
        self.free_at[to] = start + bytes * link.byte_ns;
        let copies = 1 + u64::from(self.random.below(1000) < link.duplicate_permille);
        for _ in 0..copies {
            let at = self.free_at[to] + link.delay_ns + self.random.below(link.jitter_ns.max(1));
            let copy = Packet { headers: packet.headers.clone(), payload: packet.payload.clone() };
            let order = self.random.next() >> 40 | self.packets << 24;
            self.in_flight.insert((at, order), (to, copy));
        }
    }

    /// Returns the time of the next arrival or deadline.
    pub fn next_ns(&self) -> Option<u64> {
        let arrival = self.in_flight.first_key_value().map(|((at, _), _)| *at);
        [arrival, self.stacks[0].deadline_ns(), self.stacks[1].deadline_ns()].into_iter().flatten().min()
    }

    /// Advances the clock to `to_ns`, at most the time of the next event, and processes that event.
    pub fn advance(&mut self, to_ns: u64) {
        self.now_ns = self.now_ns.max(to_ns);
        while let Some(first) = self.in_flight.first_entry()
            && first.key().0 <= self.now_ns
        {
            let (to, packet) = first.remove();
            let (tuple, segment) = join(packet);
            self.stacks[to].on_segment(tuple, segment, self.now_ns);
            if !self.batch_arrivals {
                self.flush(to);
            }
        }
        if self.batch_arrivals {
            (0..2).for_each(|side| self.flush(side));
        }
        for side in 0..2 {
            if self.stacks[side].deadline_ns().is_some_and(|at| at <= self.now_ns) {
                self.stacks[side].on_timer(self.now_ns);
                self.flush(side);
            }
        }
    }

    pub fn run_until(&mut self, to_ns: u64) {
        while let Some(at) = self.next_ns().filter(|at| *at <= to_ns) {
            self.advance(at);
        }
        self.now_ns = self.now_ns.max(to_ns);
    }
}

/// Returns two stacks with a connection that `ids[0]` opened.
pub fn connected(configs: [Config; 2], links: [Link; 2]) -> (World, [ConnectionId; 2]) {
    let stacks = configs.map(|config| Stack::new(config, Limits::default(), secret(1)));
    let mut world = World::new(1, stacks, links, SECOND_NS);
    world.stacks[1].listen(tuple().remote, 4, None).unwrap();
    let first = world.stacks[0].connect(tuple(), None, world.now_ns).unwrap();
    world.flush(0);
    let second = loop {
        if let Some(id) = world.stacks[1].accept(tuple().remote) {
            break id;
        }
        world.advance(world.next_ns().expect("the handshake goes on"));
    };
    world.ids = vec![first, second];
    (world, [first, second])
}

/// Receives and verifies all available bytes. Returns the offset after them.
pub fn receive_all(world: &mut World, side: usize, id: ConnectionId, stream: u64, mut at: u64) -> u64 {
    while let Ok(Received::Piece(piece)) = world.stacks[side].receive(id, usize::MAX) {
        at = verify(stream, at, &piece);
    }
    world.flush(side);
    at
}

pub fn tuple() -> Tuple {
    Tuple { local: "10.0.0.1:4000".parse().unwrap(), remote: "10.0.0.2:80".parse().unwrap() }
}

pub fn secret(seed: u64) -> Secret {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    Secret::new(bytes)
}

/// Returns a time at which the ISN of a connection of `tuple` lies `before` numbers below the wrap.
pub fn time_before_wrap(seed: u64, tuple: &Tuple, before: u32) -> u64 {
    let initial = secret(seed).initial_sequence(tuple, 0);
    u64::from((u32::MAX - before).wrapping_sub(initial)) * 4_000
}

/// Verifies that a piece continues the stream at `at`.
pub fn verify(stream: u64, at: u64, piece: &SharedBytes) -> u64 {
    for (offset, byte) in piece.as_slice().iter().enumerate() {
        let place = at + offset as u64;
        assert_eq!(*byte, stream_byte(stream, place), "byte {place} of stream {stream:x}");
    }
    at + piece.len_bytes() as u64
}
