//! Our stack against smoltcp, over a link that loses, duplicates and delays. Neither end knows the other.

use std::collections::{BTreeMap, VecDeque};

use crate::common::{Packet, Random, join, secret, split, stream_bytes, time_before_wrap, tuple, verify};
use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use uncopy_core::random::test_size;
use uncopy_tcp::config::{Config, MILLISECOND_NS, SECOND_NS};
use uncopy_tcp::connection::{Received, State};
use uncopy_tcp::payload::{self, Payload, Pieces, SharedBytes};
use uncopy_tcp::stack::{ConnectionId, Limits, Stack};
use uncopy_tcp::wire;

const MTU: usize = 1500;
const MAX_HISTORY_NS: u64 = 3600 * SECOND_NS;

/// The device of smoltcp: packets sent, and packets to receive.
#[derive(Default)]
struct Ends {
    sent: VecDeque<Vec<u8>>,
    arrived: VecDeque<Vec<u8>>,
}

struct Arrived(Vec<u8>);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, use_bytes: F) -> R {
        use_bytes(&self.0)
    }
}

struct Sending<'a>(&'a mut VecDeque<Vec<u8>>);

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, use_bytes: F) -> R {
        let mut bytes = vec![0; len];
        let result = use_bytes(&mut bytes);
        self.0.push_back(bytes);
        result
    }
}

impl Device for Ends {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Sending<'a>;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        // Both ends compute the checksum of the IPv4 header.
        let mut checksum = ChecksumCapabilities::ignored();
        checksum.ipv4 = smoltcp::phy::Checksum::Both;
        capabilities.checksum = checksum;
        capabilities
    }

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Sending<'_>)> {
        Some((Arrived(self.arrived.pop_front()?), Sending(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.sent))
    }
}

/// Returns a packet of smoltcp as a link delivers it.
fn received(bytes: &[u8]) -> Packet {
    let parsed = wire::parse(bytes, bytes.len()).expect("smoltcp's packets are understood");
    let payload = &bytes[parsed.payload.clone()];
    let payload =
        (!payload.is_empty()).then(|| SharedBytes::from(payload)).into_iter().collect::<Pieces<_>>();
    Packet { headers: bytes[..parsed.payload.start].to_vec(), payload }
}

struct Peer {
    ends: Ends,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

impl Peer {
    fn new(seed: u64, buffer_bytes: usize, now: Instant) -> Self {
        let mut ends = Ends::default();
        let mut config = InterfaceConfig::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut ends, now);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(IpAddress::v4(10, 0, 0, 2), 24)).expect("room for one")
        });
        let mut sockets = SocketSet::new(Vec::new());
        let buffer = || SocketBuffer::new(vec![0; buffer_bytes]);
        let handle = sockets.add(Socket::new(buffer(), buffer()));
        Self { ends, interface, sockets, handle }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }
}

fn run(seed: u64) -> u64 {
    let mut random = Random(seed);
    let amounts = [random.below(300_000), random.below(300_000)];
    let is_client = random.one_in(2);
    let buffer_bytes = random.pick(&[2_000, 20_000, 200_000]);
    let loss_permille = random.pick(&[0, 10, 50, 150]);
    let (delay_ns, mut jitter_ns) =
        (random.pick(&[10_000, 5 * MILLISECOND_NS]), random.pick(&[1, 3 * MILLISECOND_NS]));
    if buffer_bytes == 2_000 {
        // An ACK more than a window old is rejected (RFC 5961, section 5.2), and smoltcp does not
        // always retransmit.
        jitter_ns = 1;
    }
    let config = Config {
        receive_buffer_bytes: random.pick(&[3_000, 50_000, 500_000]),
        send_buffer_bytes: random.pick(&[3_000, 500_000]),
        sack: !random.one_in(4),
        nagle: random.one_in(2),
        ..Config::default()
    };
    let tuple = tuple();
    // smoltcp 0.12 overflows when SACK blocks wrap (`iter_data` in `ack_reply`): wrap only without SACK.
    let before = if config.sack { 1_000_000_000 } else { 30_000 };
    let start_ns = time_before_wrap(seed, &tuple, before);
    let mut now_ns = start_ns;
    let instant = |now_ns: u64| Instant::from_micros((now_ns / 1000) as i64);
    let mut stack: Stack<SharedBytes> = Stack::new(config, Limits::default(), secret(seed));
    let mut peer = Peer::new(seed, buffer_bytes, instant(now_ns));
    let mut id: Option<ConnectionId> = None;
    if is_client {
        peer.socket().listen(80).unwrap();
        id = Some(stack.connect(tuple, None, now_ns).unwrap());
    } else {
        stack.listen(tuple.local, 4, None).unwrap();
        let Peer { interface, sockets, handle, .. } = &mut peer;
        let socket = sockets.get_mut::<Socket<'_>>(*handle);
        socket.connect(interface.context(), (IpAddress::v4(10, 0, 0, 1), 4000), 80).unwrap();
    }
    let mut in_flight: BTreeMap<(u64, u64), (bool, Packet)> = BTreeMap::new();
    let (mut sent, mut read) = ([0u64; 2], [0u64; 2]);
    let (mut packets, mut is_shut, mut is_ended, mut is_peer_shut, mut is_closed) =
        (0u64, false, false, false, false);
    let mut buffer = vec![0; 70_000];
    loop {
        // The peer's program sends and receives.
        let socket = peer.socket();
        if socket.can_recv() {
            let len = socket.recv_slice(&mut buffer).unwrap();
            read[1] = verify(seed, read[1], &SharedBytes::from(&buffer[..len]));
        }
        if socket.may_send() {
            let len = (amounts[1] - sent[1]).min(10_000) as usize;
            if len > 0 && socket.can_send() {
                sent[1] += socket.send_slice(stream_bytes(!seed, sent[1], len).as_slice()).unwrap() as u64;
            } else if len == 0 && !is_peer_shut {
                socket.close();
                is_peer_shut = true;
            }
        }
        // Our program sends and receives.
        if id.is_none() {
            id = stack.accept(tuple.local);
        }
        if let Some(id) = id.filter(|_| !is_closed)
            && stack.get(id).is_some_and(|connection| connection.state() >= State::Established)
        {
            while let Received::Piece(piece) = stack.receive(id, 100_000).expect("it does not break") {
                read[0] = verify(!seed, read[0], &piece);
            }
            is_ended = is_ended || matches!(stack.receive(id, 1), Ok(Received::End));
            let room = stack.get(id).map_or(0, |connection| connection.room_bytes() as u64);
            let len = (amounts[0] - sent[0]).min(20_000).min(room);
            if len > 0 {
                let piece = stream_bytes(seed, sent[0], len as usize);
                assert_eq!(stack.send(id, &piece).unwrap(), piece.len_bytes());
                sent[0] += len;
            } else if sent[0] == amounts[0] && !is_shut {
                stack.shutdown(id).unwrap();
                is_shut = true;
            }
            if is_shut && is_ended {
                stack.close(id, now_ns);
                is_closed = true;
            }
        }
        // The link carries the packets.
        let Peer { ends, interface, sockets, .. } = &mut peer;
        interface.poll(instant(now_ns), ends, sockets);
        let mut new: Vec<(bool, Packet)> =
            ends.sent.drain(..).map(|bytes| (false, received(&bytes))).collect();
        while let Some((tuple, segment)) = stack.poll_transmit(now_ns) {
            new.extend(split(&tuple, &segment).into_iter().map(|packet| (true, packet)));
        }
        assert_eq!(stack.violation(), None);
        for (is_for_peer, packet) in new {
            packets += 1;
            if std::env::var_os("UNCOPY_TEST_NET_PACKETS").is_some() {
                let len = payload::len_bytes(&packet.payload);
                let header = wire::parse(&packet.headers, packet.headers.len() + len)
                    .expect("it was understood")
                    .header;
                println!("{:>12} {is_for_peer} {len} {header:?}", now_ns / 1000);
            }
            // smoltcp 0.12 does not always retransmit, and does not probe a window whose update was lost.
            let is_losable = is_for_peer && !packet.payload.is_empty();
            if !is_losable || random.below(1000) >= loss_permille {
                in_flight
                    .insert((now_ns + delay_ns + random.below(jitter_ns), packets), (is_for_peer, packet));
            }
        }
        if is_closed && stack.connections() == 0 && in_flight.is_empty() {
            break;
        }
        // Time of the next event.
        let poll =
            peer.interface.poll_at(instant(now_ns), &peer.sockets).map(|at| at.total_micros() as u64 * 1000);
        let next = [in_flight.first_key_value().map(|((at, _), _)| *at), stack.deadline_ns(), poll];
        // Both programs poll again after a while.
        let tick = (!is_closed || !is_peer_shut).then_some(now_ns + MILLISECOND_NS);
        let next = next.into_iter().chain([tick]).flatten().min().expect("something is due");
        // smoltcp's clock has microseconds.
        now_ns = next.max(now_ns + 1000);
        assert!(now_ns - start_ns < MAX_HISTORY_NS, "it does not end: {sent:?} of {amounts:?}, {read:?}");
        while let Some(first) = in_flight.first_entry()
            && first.key().0 <= now_ns
        {
            let (is_for_peer, packet) = first.remove();
            if is_for_peer {
                let payload = packet.payload.iter().flat_map(|piece| piece.as_slice().to_vec());
                peer.ends.arrived.push_back(packet.headers.iter().copied().chain(payload).collect());
            } else {
                let (tuple, segment) = join(packet);
                stack.on_segment(tuple, segment, now_ns);
            }
        }
        if stack.deadline_ns().is_some_and(|at| at <= now_ns) {
            stack.on_timer(now_ns);
        }
    }
    assert_eq!(read, [amounts[1], amounts[0]]);
    packets
}

#[test]
fn streams_to_and_from_smoltcp_arrive_whole() {
    let wanted = 3_000 * test_size();
    let first = std::env::var("UNCOPY_TEST_NET_SEED").map_or(1, |text| text.parse().expect("a number"));
    let started = std::time::Instant::now();
    let (mut packets, mut seed) = (0u64, first);
    while packets < wanted {
        let outcome = std::panic::catch_unwind(|| run(seed));
        packets += outcome.unwrap_or_else(|_| panic!("run this again: UNCOPY_TEST_NET_SEED={seed}"));
        if std::env::var_os("UNCOPY_TEST_NET_TRACE").is_some() {
            println!("seed {seed}: {packets} packets so far");
        }
        seed += 1;
    }
    println!("{packets} segments, {} connections, {:.1} s", seed - first, started.elapsed().as_secs_f64());
}
