//! AF_XDP between two network namespaces: a queue of a veth device against the kernel at the other end.
#![cfg(feature = "xdp")]

mod common;

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::{LIMIT, echo_request, in_namespace};
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};
use uncopy_link::device;
use uncopy_link::packet::{Validity, validate};
use uncopy_link::xdp::{MAX_MTU_BYTES, Settings, SetupStep, Xdp, probe};
use uncopy_link::{Link, MAX_PACKET_BYTES};

/// Addresses of the kernel in the other namespace.
const FAR: [&str; 2] = ["10.9.0.1", "fd00:9::1"];
const OURS: [&str; 2] = ["10.9.0.2", "fd00:9::2"];
/// Addresses of the kernel in this namespace, on the device whose queue is taken.
const BESIDE: [&str; 2] = ["10.9.0.3", "fd00:9::3"];

type Work = Box<dyn FnOnce() + Send>;

struct Far(Sender<(Work, Sender<()>)>);

impl Far {
    fn start() -> (Self, i32) {
        let (to, work): (Sender<(Work, Sender<()>)>, Receiver<_>) = channel();
        let (sender, receiver) = channel();
        thread::spawn(move || {
            // SAFETY: CLONE_NEWNET does not unshare the descriptor table or memory, on which other
            // threads could rely.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("the other one was made, too");
            sender.send(gettid().as_raw_nonzero().get()).unwrap();
            for (run, done) in work {
                run();
                let _ = done.send(());
            }
        });
        (Self(to), receiver.recv().unwrap())
    }

    /// Runs `run` in the other namespace, and waits.
    fn run<T: Send + 'static>(&self, run: impl FnOnce() -> T + Send + 'static) -> T {
        let ((sender, receiver), (done, done_receiver)) = (channel(), channel());
        let work: Work = Box::new(move || drop(sender.send(run())));
        self.0.send((work, done)).unwrap();
        done_receiver.recv().expect("it has not panicked");
        receiver.recv().unwrap()
    }
}

fn ip(line: &str) {
    let done = Command::new("ip").args(line.split(' ')).output().expect("iproute2 is there");
    assert!(done.status.success(), "ip {line}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Makes a veth pair, `near` here and `far` in the other namespace.
fn veth() -> Far {
    let (far, thread) = Far::start();
    ip(&format!("link add near type veth peer name far netns {thread}"));
    far.run(|| {
        // As over a cable, packets carry checksums.
        common::write_checksums("far");
        ip("link set lo up");
        for address in FAR {
            let bits = if address.contains(':') { "64 nodad" } else { "24" };
            ip(&format!("address add {address}/{bits} dev far"));
        }
        ip("link set far up");
    });
    for address in BESIDE {
        let bits = if address.contains(':') { "64 nodad" } else { "24" };
        ip(&format!("address add {address}/{bits} dev near"));
    }
    ip("link set near up");
    // Until the kernel has run its work for the carrier (net/core/link_watch.c), it drops what the far device sends.
    far.run(|| {
        common::wait_until("the far device is up", || is_up("far"));
        assert!(device::wait_for_v6_route("far", FAR[1].parse().unwrap()));
    });
    assert!(device::wait_for_v6_route("near", BESIDE[1].parse().unwrap()));
    far
}

/// Returns the state of a device, as iproute2 shows it.
fn shown(device: &str) -> String {
    let done = Command::new("ip").args(["link", "show", device]).output().expect("iproute2 is there");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// True if the device's operational state is up (RFC 2863).
fn is_up(device: &str) -> bool {
    shown(device).contains("state UP")
}

fn own() -> [(IpAddr, u8); 2] {
    [(OURS[0].parse().unwrap(), 24), (OURS[1].parse().unwrap(), 64)]
}

fn open(device: &str, queue: u32) -> Result<Xdp, (SetupStep, Option<i32>)> {
    let settings = Settings { device, queue, own: &own(), routers: &[] };
    Xdp::open(&settings).map_err(|failed| (failed.step, failed.error.raw_os_error()))
}

/// Runs a test with a veth pair, or reports the test as skipped.
fn with_veth(test: &'static str, run: impl FnOnce(Far) + Send + 'static) {
    in_namespace(test, move || match probe() {
        Ok(()) => run(veth()),
        Err(failed) => eprintln!("skipped: {test}: no AF_XDP here ({failed})"),
    });
}

fn address(of: &str, port: u16) -> SocketAddr {
    SocketAddr::new(of.parse().unwrap(), port)
}

/// Returns the first result of `wanted` for a received packet.
fn receive<T>(link: &mut Xdp, wanted: impl FnMut(&[u8]) -> Option<T>) -> T {
    request(link, |_| {}, wanted)
}

/// Sends by `send` now and every second, as an Ethernet may lose packets, until `wanted` has a result for a received
/// packet. Returns that result.
fn request<T>(
    link: &mut Xdp,
    mut send: impl FnMut(&mut Xdp),
    mut wanted: impl FnMut(&[u8]) -> Option<T>,
) -> T {
    let until = Instant::now() + LIMIT;
    let mut send_at = Instant::now();
    let mut room = vec![0; MAX_PACKET_BYTES];
    loop {
        if Instant::now() >= send_at {
            send(link);
            send_at += Duration::from_secs(1);
        }
        while let Some(len) = link.receive(&mut room).expect("receives") {
            if let Some(found) = wanted(&room[..len]) {
                return found;
            }
        }
        assert!(Instant::now() < until, "no such packet came within {LIMIT:?}: {:?}", link.counters());
        common::wait_readable(link.fd(), Duration::from_millis(200));
    }
}

#[test]
fn a_neighbour_finds_us_and_its_packets_arrive() {
    with_veth("a_neighbour_finds_us_and_its_packets_arrive", |far| {
        let mut link = open("near", 0).expect("a link");
        assert_eq!((link.mtu_bytes(), link.max_packet_bytes()), (1500, 1500));
        for family in [0, 1] {
            far.run(move || {
                let socket = UdpSocket::bind(address(FAR[family], 0)).expect("binds");
                socket.send_to(b"datagram", address(OURS[family], 9)).expect("sends");
            });
            receive(&mut link, |packet| packet.ends_with(b"datagram").then_some(()));
        }
        let counters = link.counters();
        assert_eq!((counters.malformed, counters.bad_checksums), (0, 0));
    });
}

#[test]
fn a_neighbour_is_found_and_what_waited_for_it_is_answered() {
    with_veth("a_neighbour_is_found_and_what_waited_for_it_is_answered", |_far| {
        let mut link = open("near", 0).expect("a link");
        for family in [0, 1] {
            // The first packet waits for address resolution.
            for body in [vec![7; 1400], vec![8; 3]] {
                let (mut packet, kind) = echo_request(OURS[family], FAR[family], &body);
                let at = [20, 40][family];
                let (header, payload) = packet.split_at_mut(at);
                let answer = request(
                    &mut link,
                    |link| assert!(link.send(header, &[IoSlice::new(payload)], 0).expect("sends")),
                    |packet| packet.ends_with(&body).then(|| packet.to_vec()),
                );
                assert_eq!((answer[at], &answer[at + 4..at + 8]), (kind, &[1, 2, 3, 4][..]));
                assert_eq!(validate(&answer, false), Validity::Valid);
            }
        }
        let far_away = link.send(&mut echo_to("192.0.2.1"), &[], 0).expect_err("no router");
        assert_eq!(far_away.kind(), io::ErrorKind::InvalidInput);
        let (mut long, _) = echo_request(OURS[0], FAR[0], &[0; 1500]);
        assert_eq!(link.send(&mut long, &[], 0).expect_err("long").kind(), io::ErrorKind::InvalidInput);
    });
}

fn echo_to(to: &str) -> Vec<u8> {
    let (mut packet, _) = echo_request(OURS[0], FAR[0], b"");
    let IpAddr::V4(to) = to.parse().unwrap() else { unreachable!() };
    packet[16..20].copy_from_slice(&to.octets());
    packet
}

#[test]
fn the_kernel_keeps_its_own_addresses_on_the_device() {
    with_veth("the_kernel_keeps_its_own_addresses_on_the_device", |far| {
        let mut link = open("near", 0).expect("a link");
        for family in [0, 1] {
            let socket = UdpSocket::bind(address(BESIDE[family], 0)).expect("binds");
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            let to = socket.local_addr().unwrap();
            far.run(move || {
                let socket = UdpSocket::bind(address(FAR[family], 0)).expect("binds");
                socket.send_to(b"kernel", to).expect("sends");
            });
            let mut room = [0; 100];
            let (len, _) = socket.recv_from(&mut room).expect("the kernel receives");
            assert_eq!(&room[..len], b"kernel");
        }
        assert_eq!(link.receive(&mut [0; 2000]).expect("receives"), None);
        assert_eq!(link.counters().received.packets, 0);
    });
}

#[test]
fn a_packet_whose_checksum_the_device_was_to_write_is_dropped_and_counted() {
    with_veth("a_packet_whose_checksum_the_device_was_to_write_is_dropped_and_counted", |far| {
        let mut link = open("near", 0).expect("a link");
        far.run(|| {
            let socket = UdpSocket::bind(address(FAR[0], 0)).expect("binds");
            // The first datagram resolves the neighbour.
            socket.send_to(b"first", address(OURS[0], 9)).expect("sends");
        });
        receive(&mut link, |packet| packet.ends_with(b"first").then_some(()));
        far.run(|| {
            common::leave_checksums("far");
            let _ = std::net::TcpStream::connect_timeout(&address(OURS[0], 80), Duration::from_millis(50));
        });
        let until = Instant::now() + LIMIT;
        while link.counters().bad_checksums == 0 {
            assert!(Instant::now() < until, "{:?}", link.counters());
            common::wait_readable(link.fd(), Duration::from_millis(200));
            while link.receive(&mut [0; 2000]).expect("receives").is_some() {}
        }
    });
}

/// True if the device has an XDP program, according to iproute2.
fn has_program(device: &str) -> bool {
    shown(device).contains("xdp")
}

#[test]
fn the_program_is_there_as_long_as_the_link_and_nobody_else_gets_the_queue() {
    with_veth("the_program_is_there_as_long_as_the_link_and_nobody_else_gets_the_queue", |_far| {
        assert!(!has_program("near"));
        let link = open("near", 0).expect("a link");
        assert!(has_program("near"));
        assert_eq!(open("near", 0).expect_err("taken"), (SetupStep::Queue, Some(libc::EBUSY)));
        drop(link);
        common::wait_until("the program has gone", || !has_program("near"));
        common::wait_until("the queue is free again", || match open("near", 0) {
            Ok(_) => true,
            refused => {
                assert_eq!(refused.expect_err("not free"), (SetupStep::Queue, Some(libc::EBUSY)));
                false
            }
        });
    });
}

#[test]
fn a_device_that_goes_away_ends_its_link() {
    with_veth("a_device_that_goes_away_ends_its_link", |_far| {
        let mut link = open("near", 0).expect("a link");
        assert_eq!(link.receive(&mut [0; 2000]).expect("receives"), None);
        ip("link delete near");
        assert!(common::wait_readable(link.fd(), LIMIT), "its end is an event");
        let until = Instant::now() + LIMIT;
        while link.receive(&mut [0; 2000]).is_ok() {
            assert!(Instant::now() < until, "it is gone");
            common::wait_readable(link.fd(), Duration::from_millis(200));
        }
    });
}

#[test]
fn what_cannot_be_taken_is_refused_with_the_step() {
    with_veth("what_cannot_be_taken_is_refused_with_the_step", |_far| {
        assert_eq!(open("other", 0).expect_err("none"), (SetupStep::Device, Some(libc::ENODEV)));
        assert_eq!(open("a/b", 0).expect_err("no name"), (SetupStep::Device, None));
        assert_eq!(open("lo", 0).expect_err("no Ethernet"), (SetupStep::Ethernet, Some(libc::EOPNOTSUPP)));
        assert_eq!(open("near", 77).expect_err("no queue"), (SetupStep::Queue, Some(libc::EINVAL)));
        ip(&format!("link set near mtu {}", MAX_MTU_BYTES + 1));
        let too_long = SetupStep::Mtu(MAX_MTU_BYTES + 1);
        assert_eq!(open("near", 0).expect_err("long packets"), (too_long, Some(libc::EMSGSIZE)));
        ip(&format!("link set near mtu {MAX_MTU_BYTES}"));
        drop(open("near", 0).expect("as long as may be"));
        ip("link set near down");
        assert_eq!(open("near", 0).expect_err("down"), (SetupStep::Up, Some(libc::ENETDOWN)));
        ip("link set near up");
        common::drop_privilege();
        let refused = open("near", 0).expect_err("no privilege");
        assert_eq!(refused, (SetupStep::Socket, Some(libc::EPERM)));
    });
}
