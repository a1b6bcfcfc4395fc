//! A TUN device against the kernel's TCP, each test in its own network namespace.

mod common;

use std::io::{IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{LIMIT, echo_request, in_namespace};
use uncopy_core::random::{STEP, splitmix64};
use uncopy_link::device;
use uncopy_link::packet::{Validity, validate};
use uncopy_link::tun::Tun;
use uncopy_link::{Link, MAX_PACKET_BYTES};
use uncopy_tcp::options::Options;
use uncopy_tcp::segment::{Flags, Header};
use uncopy_tcp::wire::{self, Parsed, Tuple};

const KERNEL: [&str; 2] = ["10.9.0.1", "fd00:9::1"];
const OURS: [&str; 2] = ["10.9.0.2", "fd00:9::2"];

const MTU_BYTES: usize = 4148;

fn networks() -> [(IpAddr, u8); 2] {
    [(KERNEL[0].parse().unwrap(), 24), (KERNEL[1].parse().unwrap(), 64)]
}

fn create(name: &str) -> Tun {
    let link = Tun::open(name, MTU_BYTES).expect("a device");
    device::set_up(name, MTU_BYTES, &networks()).expect("set up");
    link
}

fn address(of: &str, port: u16) -> SocketAddr {
    SocketAddr::new(of.parse().unwrap(), port)
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let words = (1..).map(|index: u64| splitmix64(seed.wrapping_add(index.wrapping_mul(STEP))));
    words.flat_map(u64::to_le_bytes).take(len).collect()
}

/// Returns the first result of `wanted` for a received packet.
fn receive<T>(link: &mut Tun, mut wanted: impl FnMut(&[u8]) -> Option<T>) -> T {
    let until = Instant::now() + LIMIT;
    let mut room = vec![0; MAX_PACKET_BYTES];
    loop {
        while let Some(len) = link.receive(&mut room).expect("receives") {
            if let Some(found) = wanted(&room[..len]) {
                return found;
            }
        }
        assert!(Instant::now() < until, "no such packet came within {LIMIT:?}: {:?}", link.counters());
        common::wait_readable(link.fd(), Duration::from_millis(200));
    }
}

fn receive_tcp(link: &mut Tun, local: SocketAddr) -> (Parsed, Vec<u8>) {
    receive(link, |packet| {
        let parsed = wire::parse(packet, packet.len()).ok().filter(|parsed| parsed.tuple.local == local)?;
        let payload = packet[parsed.payload.clone()].to_vec();
        Some((parsed, payload))
    })
}

fn send(link: &mut Tun, tuple: &Tuple, header: &Header, payload: &[IoSlice<'_>], max: usize) {
    let payload_bytes = payload.iter().map(|part| part.len()).sum();
    let mut packet = wire::write(tuple, header, payload_bytes);
    let until = Instant::now() + LIMIT;
    while !link.send(&mut packet, payload, max).expect("sends") {
        assert!(Instant::now() < until, "the device had no room for {LIMIT:?}");
    }
}

const NONE: Flags =
    Flags { fin: false, syn: false, rst: false, psh: false, ack: false, ece: false, cwr: false };
const SYN: Flags = Flags { syn: true, ..NONE };
const ACK: Flags = Flags { ack: true, ..NONE };

/// Connects to a listener of the kernel by hand. Returns the next sequence and acknowledgement numbers.
fn connect(link: &mut Tun, tuple: &Tuple) -> (u32, u32) {
    let max_segment_size = Some(u16::try_from(link.mtu_bytes() - 60).unwrap());
    let options = Options { max_segment_size, window_shift: Some(8), ..Options::default() };
    let mut header =
        Header { sequence: 0xffff_f000, flags: SYN, window: 65_535, options, ..Header::default() };
    send(link, tuple, &header, &[], 0);
    let (answer, payload) = receive_tcp(link, tuple.local);
    assert_eq!(answer.tuple, *tuple);
    assert_eq!(answer.header.flags, Flags { ack: true, ..SYN });
    assert_eq!(answer.header.acknowledgement, 0xffff_f001);
    assert!(payload.is_empty());
    header = Header {
        sequence: 0xffff_f001,
        acknowledgement: answer.header.sequence.wrapping_add(1),
        flags: ACK,
        window: 60_000,
        ..Header::default()
    };
    send(link, tuple, &header, &[], 0);
    (header.sequence, header.acknowledgement)
}

fn listening(family: usize) -> (TcpListener, Tuple) {
    let listener = TcpListener::bind(address(KERNEL[family], 0)).expect("listens");
    let tuple = Tuple { local: address(OURS[family], 4_000), remote: listener.local_addr().unwrap() };
    (listener, tuple)
}

fn accept(listener: &TcpListener) -> TcpStream {
    common::wait_readable_fd(listener.as_fd(), LIMIT).expect("the kernel has accepted the connection");
    let stream = listener.accept().expect("accepts").0;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    stream
}

#[test]
fn packets_of_kernel_sockets_arrive() {
    in_namespace("packets_of_kernel_sockets_arrive", || {
        let mut link = create("mine");
        let queue_packets = usize::try_from(device::QUEUE_PACKETS).unwrap();
        let seen = device::DeviceSettings { mtu_bytes: 4148, queue_packets, is_tun: true };
        assert_eq!(device::read_settings("mine").expect("it is there"), seen);
        assert!(!device::read_settings("lo").expect("it is there").is_tun);
        assert_eq!((link.mtu_bytes(), link.max_packet_bytes()), (4148, MAX_PACKET_BYTES));
        assert_eq!(link.receive(&mut [0; 5000]).expect("receives"), None, "no noise");
        for family in [0, 1] {
            let socket = UdpSocket::bind(address(KERNEL[family], 0)).expect("binds");
            socket.send_to(b"datagram", address(OURS[family], 9)).expect("sends");
            receive(&mut link, |packet| packet.ends_with(b"datagram").then_some(()));

            // Nothing answers the SYN.
            let (local, remote) = (address(OURS[family], 80), address(KERNEL[family], 0).ip());
            let connecting =
                std::thread::spawn(move || TcpStream::connect_timeout(&local, Duration::from_millis(100)));
            let (syn, payload) = receive_tcp(&mut link, local);
            assert_eq!((syn.tuple.local, syn.tuple.remote.ip()), (local, remote));
            assert_eq!((syn.header.flags, payload.len()), (SYN, 0));
            let headers_bytes = [40, 60][family];
            assert_eq!(syn.header.options.max_segment_size, Some(4148 - headers_bytes));
            assert!(connecting.join().unwrap().is_err());
        }
        let counters = link.counters();
        assert_eq!((counters.malformed, counters.bad_checksums), (0, 0));
    });
}

#[test]
fn an_echo_request_is_answered_with_a_right_checksum() {
    in_namespace("an_echo_request_is_answered_with_a_right_checksum", || {
        let mut link = create("mine");
        for family in [0, 1] {
            let body = bytes(1, 3001);
            let (mut packet, kind) = echo_request(OURS[family], KERNEL[family], &body);
            let at = [20, 40][family];
            let (header, payload) = packet.split_at_mut(at);
            assert!(link.send(header, &[IoSlice::new(payload)], 0).expect("sends"));
            let answer = receive(&mut link, |packet| packet.ends_with(&body).then(|| packet.to_vec()));
            assert_eq!((answer[at], &answer[at + 4..at + 8]), (kind, &[1, 2, 3, 4][..]));
            assert_eq!(validate(&answer, false), Validity::Valid);
        }
    });
}

#[test]
fn a_syn_is_answered_by_a_listener_of_the_kernel() {
    in_namespace("a_syn_is_answered_by_a_listener_of_the_kernel", || {
        let mut link = create("mine");
        for family in [0, 1] {
            let (listener, tuple) = listening(family);
            connect(&mut link, &tuple);
            assert_eq!(accept(&listener).peer_addr().unwrap(), tuple.local);
        }
    });
}

#[test]
fn super_packets_reach_a_socket_of_the_kernel() {
    in_namespace("super_packets_reach_a_socket_of_the_kernel", || {
        let mut link = create("mine");
        for family in [0, 1] {
            let (listener, tuple) = listening(family);
            let (mut sequence, acknowledgement) = connect(&mut link, &tuple);
            let mut stream = accept(&listener);
            // The kernel's initial window is smaller: short segments first, then the largest packets.
            for (len, max) in [(20_480, 1000), (20_480, 4088), (61_440, 4088), (61_440, 1448), (3, 4088)] {
                let payload = bytes(u64::from(sequence), len);
                let (first, rest) = payload.split_at(len / 3);
                let (middle, last) = rest.split_at(rest.len() / 2);
                let parts = [first, middle, &[], last].map(IoSlice::new);
                let header =
                    Header { sequence, acknowledgement, flags: ACK, window: 60_000, ..Header::default() };
                send(&mut link, &tuple, &header, &parts, max);
                let mut received = vec![0; len];
                stream.read_exact(&mut received).expect("the kernel takes it");
                assert!(received == payload, "{len} bytes in segments of {max}");
                sequence = sequence.wrapping_add(u32::try_from(len).unwrap());
                receive(&mut link, |packet| {
                    let parsed = wire::parse(packet, packet.len()).ok()?;
                    (parsed.header.acknowledgement == sequence).then_some(())
                });
            }
        }
        assert_eq!(link.counters().sent_super, 8);
        assert_eq!(link.counters().bad_checksums, 0);
    });
}

#[test]
fn large_writes_of_the_kernel_arrive_as_super_packets() {
    in_namespace("large_writes_of_the_kernel_arrive_as_super_packets", || {
        let mut link = create("mine");
        for family in [0, 1] {
            let (listener, tuple) = listening(family);
            let (sequence, mut acknowledgement) = connect(&mut link, &tuple);
            let mut stream = accept(&listener);
            let wanted = bytes(7, 4 << 20);
            let written = wanted.clone();
            let writer = std::thread::spawn(move || stream.write_all(&written).map(|()| stream));
            let (mut received, before) = (Vec::new(), link.counters().received_super);
            while received.len() < wanted.len() {
                let (parsed, payload) = receive_tcp(&mut link, tuple.local);
                assert!(payload.len() <= MAX_PACKET_BYTES);
                if parsed.header.sequence == acknowledgement {
                    acknowledgement = acknowledgement.wrapping_add(u32::try_from(payload.len()).unwrap());
                    received.extend(payload);
                }
                let header =
                    Header { sequence, acknowledgement, flags: ACK, window: 60_000, ..Header::default() };
                send(&mut link, &tuple, &header, &[], 0);
            }
            assert!(received == wanted);
            assert!(link.counters().received_super > before + 10, "{:?}", link.counters());
            drop(writer.join().unwrap().expect("written"));
        }
    });
}

#[test]
fn what_the_room_is_too_short_for_is_dropped_and_counted() {
    in_namespace("what_the_room_is_too_short_for_is_dropped_and_counted", || {
        let mut link = create("mine");
        let socket = UdpSocket::bind(address(KERNEL[0], 0)).expect("binds");
        socket.send_to(&[1; 1000], address(OURS[0], 9)).expect("sends");
        common::wait_readable(link.fd(), LIMIT);
        assert_eq!(link.receive(&mut [0; 500]).expect("receives"), None);
        assert_eq!(link.counters().malformed, 1);
    });
}

#[test]
fn a_device_goes_away_with_its_link_and_is_refused_with_the_reason() {
    in_namespace("a_device_goes_away_with_its_link_and_is_refused_with_the_reason", || {
        let exists = |name: &str| Path::new(&format!("/proc/thread-self/net/dev_snmp6/{name}")).exists();
        let errno = |name: &str| Tun::open(name, MTU_BYTES).expect_err("refused").raw_os_error();
        let link = create("mine");
        assert!(exists("mine"));
        assert_eq!(errno("mine"), Some(libc::EBUSY));
        assert_eq!(errno("lo"), Some(libc::EINVAL));
        drop(link);
        assert!(!exists("mine"));

        let link = create("again");
        common::set_persistent(link.fd());
        drop(link);
        assert!(exists("again"));
        let link = Tun::open("again", MTU_BYTES).expect("attaches");
        assert_eq!(link.max_packet_bytes(), MAX_PACKET_BYTES);
        device::set_up("again", MTU_BYTES, &networks()).expect("the addresses that it has");
    });
}

#[test]
fn nothing_comes_unasked() {
    in_namespace("nothing_comes_unasked", || {
        let mut link = Tun::open("mine", MTU_BYTES).expect("a device");
        device::set_up("mine", MTU_BYTES, &networks()[..1]).expect("set up");
        let mut both = create("both");
        for link in [&mut link, &mut both] {
            common::wait_readable(link.fd(), Duration::from_millis(100));
            assert_eq!(link.receive(&mut [0; 5000]).expect("receives"), None);
        }
    });
}

#[test]
fn bad_settings_are_refused() {
    in_namespace("bad_settings_are_refused", || {
        let _link = Tun::open("mine", MTU_BYTES).expect("a device");
        let refused = |name: &str, mtu_bytes, networks: &[(IpAddr, u8)]| {
            device::set_up(name, mtu_bytes, networks).expect_err("refused")
        };
        assert_eq!(refused("other", MTU_BYTES, &[]).raw_os_error(), Some(libc::ENODEV));
        assert_eq!(device::read_settings("other").expect_err("none").raw_os_error(), Some(libc::ENODEV));
        assert_eq!(refused("mine", 67, &[]).raw_os_error(), Some(libc::EINVAL));
        let [(v4, _), (v6, _)] = networks();
        for network in [(v4, 33), (v6, 129)] {
            assert_eq!(
                refused("mine", MTU_BYTES, &[network]).raw_os_error(),
                Some(libc::EINVAL),
                "{network:?}"
            );
        }
    });
}

#[test]
fn without_privilege_nothing_is_made() {
    in_namespace("without_privilege_nothing_is_made", || {
        common::drop_privilege();
        let error = Tun::open("mine", MTU_BYTES).expect_err("refused");
        assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)), "{error}");
    });
}
