//! Unusual handshakes: simultaneous open, SYN floods, reuse of TIME-WAIT, ephemeral ports.

use std::collections::HashSet;
use std::net::SocketAddr;

use crate::common::{Link, World, connected, receive_all, secret, stream_bytes, tuple};
use uncopy_tcp::config::{Config, MILLISECOND_NS, SECOND_NS};
use uncopy_tcp::connection::State;
use uncopy_tcp::error::Error;
use uncopy_tcp::options::{Options, Timestamps};
use uncopy_tcp::payload::SharedBytes;
use uncopy_tcp::secret::COOKIE_TICK_NS;
use uncopy_tcp::segment::{Flags, Header, Segment};
use uncopy_tcp::stack::{Limits, Stack};
use uncopy_tcp::wire::Tuple;

fn link() -> Link {
    Link { delay_ns: 5 * MILLISECOND_NS, ..Link::default() }
}

fn seen_by_peer(tuple: Tuple) -> Tuple {
    Tuple { local: tuple.remote, remote: tuple.local }
}

#[test]
fn both_ends_open_at_once_and_have_one_connection() {
    for loss_permille in [0, 100, 300] {
        for seed in 0..200 {
            let config = Config {
                sack: seed % 2 == 0,
                timestamps: seed % 3 == 0,
                window_scaling: seed % 5 != 0,
                ..Config::default()
            };
            let stacks = [(); 2].map(|()| Stack::new(config.clone(), Limits::default(), secret(seed)));
            let link = Link { loss_permille, ..link() };
            let mut world = World::new(seed, stacks, [link.clone(), link], SECOND_NS);
            let first = world.stacks[0].connect(tuple(), None, SECOND_NS).unwrap();
            let second = world.stacks[1].connect(seen_by_peer(tuple()), None, SECOND_NS).unwrap();
            let ids = [first, second];
            for (side, id) in ids.into_iter().enumerate() {
                world.stacks[side].send(id, &stream_bytes(side as u64, 0, 5000)).unwrap();
                world.flush(side);
            }
            world.run_until(400 * SECOND_NS);
            for (side, id) in ids.into_iter().enumerate() {
                let at = receive_all(&mut world, side, id, 1 - side as u64, 0);
                assert_eq!(at, 5000, "side {side}, seed {seed}");
                world.stacks[side].shutdown(id).unwrap();
                world.flush(side);
            }
            world.run_until(5000 * SECOND_NS);
            for (side, id) in ids.into_iter().enumerate() {
                let state = world.stacks[side].get(id).unwrap().state();
                let now_ns = world.now_ns;
                world.stacks[side].close(id, now_ns);
                world.flush(side);
                assert_eq!(world.stacks[side].connections(), 0, "side {side}, seed {seed}, {state:?}");
            }
        }
    }
}

/// Returns two stacks whose server is in TIME-WAIT.
fn waiting(config: &Config) -> World {
    let (mut world, ids) = connected([config.clone(), config.clone()], [link(), link()]);
    for side in [1, 0] {
        let now_ns = world.now_ns;
        world.stacks[side].close(ids[side], now_ns);
        world.flush(side);
        world.run_until(now_ns + SECOND_NS);
    }
    assert_eq!((world.stacks[0].connections(), world.stacks[1].connections()), (0, 1));
    world
}

#[test]
fn a_syn_takes_over_a_connection_in_time_wait() {
    for timestamps in [true, false] {
        let mut world = waiting(&Config { timestamps, ..Config::default() });
        let id = world.stacks[0].connect(tuple(), None, world.now_ns).unwrap();
        world.stacks[0].send(id, &stream_bytes(3, 0, 1000)).unwrap();
        world.flush(0);
        world.run_until(world.now_ns + SECOND_NS);
        let peer = world.stacks[1].accept(tuple().remote).expect("it was taken over");
        assert_eq!(world.stacks[1].connections(), 1);
        assert_eq!(receive_all(&mut world, 1, peer, 3, 0), 1000);
    }
}

#[test]
fn an_old_syn_does_not_take_over_a_connection_in_time_wait() {
    for timestamps in [true, false] {
        let mut world = waiting(&Config { timestamps, ..Config::default() });
        let stamps = timestamps.then_some(Timestamps { value: 0, echo: 0 });
        // Timestamp and sequence number below those of both streams.
        let offset = secret(1).timestamp_offset(tuple().local.ip(), tuple().remote.ip());
        let stamps = stamps.map(|stamps| Timestamps { value: offset, ..stamps });
        let header = Header {
            sequence: secret(1).initial_sequence(&tuple(), SECOND_NS).wrapping_sub(5),
            flags: Flags { syn: true, ..Flags::default() },
            options: Options { timestamps: stamps, ..Options::default() },
            ..Header::default()
        };
        world.stacks[1].on_segment(seen_by_peer(tuple()), Segment::bare(header), world.now_ns);
        let (_, answer) = world.stacks[1].poll_transmit(world.now_ns).expect("it is answered");
        assert!(answer.header.flags.ack && !answer.header.flags.syn && !answer.header.flags.rst);
        assert_eq!(world.stacks[1].connections(), 1);
        world.run_until(world.now_ns + 61 * SECOND_NS);
        assert_eq!(world.stacks[1].connections(), 0);
    }
}

fn stack(limits: Limits) -> Stack<SharedBytes> {
    Stack::new(Config::default(), limits, secret(9))
}

#[test]
fn local_ports_are_chosen_once_until_exhausted() {
    let mut stack = stack(Limits::default());
    let (local, remote) = (tuple().local.ip(), tuple().remote);
    stack.listen(SocketAddr::new(local, 50_000), 4, None).unwrap();
    stack.listen("0.0.0.0:50001".parse().unwrap(), 4, None).unwrap();
    let mut ports = HashSet::new();
    let mut ids = Vec::new();
    while let Some(port) = stack.choose_port(local, remote) {
        assert!(ports.insert(port), "port {port} is given twice");
        let tuple = Tuple { local: SocketAddr::new(local, port), remote };
        ids.push(stack.connect(tuple, None, 0).unwrap());
        assert_eq!(stack.connect(tuple, None, 0), Err(Error::AddressInUse));
    }
    assert_eq!(ports.len(), 16_384 - 2);
    assert!(!ports.contains(&50_000) && !ports.contains(&50_001), "others may connect to these");
    // The ports are free for another peer, and a closed connection frees its port.
    assert!(stack.choose_port(local, "10.0.0.3:80".parse().unwrap()).is_some());
    let freed = stack.tuple(ids[100]).unwrap().local.port();
    stack.abort(ids[100]);
    while stack.poll_transmit(0).is_some() {}
    assert_eq!(stack.choose_port(local, remote), Some(freed));
}

#[test]
fn connections_are_bounded() {
    let mut stack = stack(Limits { max_connections: 3, ..Limits::default() });
    let at = |port| Tuple { local: SocketAddr::new(tuple().local.ip(), port), ..tuple() };
    assert!((1..=3).all(|port| stack.connect(at(port), None, 0).is_ok()));
    assert_eq!(stack.connect(at(4), None, 0), Err(Error::NoBuffers));
    assert_eq!(stack.connections(), 3);
}

fn syn_from(port: u16) -> (Tuple, Segment<SharedBytes>) {
    let flags = Flags { syn: true, ..Flags::default() };
    let header = Header { sequence: u32::from(port), flags, window: 1000, ..Header::default() };
    (Tuple { local: tuple().remote, remote: ([10, 0, 9, 9], port).into() }, Segment::bare(header))
}

#[test]
fn syn_flood_is_bounded_and_connections_still_succeed() {
    for (max_half_open, backlog, kept) in [(1024, 16, 16), (8, 16, 8)] {
        let limits = [Limits::default(), Limits { max_half_open, ..Limits::default() }];
        let stacks = limits.map(|limits| Stack::new(Config::default(), limits, secret(1)));
        let mut world = World::new(1, stacks, [link(), link()], SECOND_NS);
        world.stacks[1].listen(tuple().remote, backlog, None).unwrap();
        for port in 1..20_000 {
            let (tuple, syn) = syn_from(port);
            world.stacks[1].on_segment(tuple, syn, world.now_ns);
            while world.stacks[1].poll_transmit(world.now_ns).is_some() {}
            assert!(world.stacks[1].connections() <= kept);
        }
        assert_eq!(world.stacks[1].violation(), None);
        for (count, port) in (5000..5000 + backlog as u16).enumerate() {
            let local = SocketAddr::new(tuple().local.ip(), port);
            let id = world.stacks[0].connect(Tuple { local, ..tuple() }, None, world.now_ns).unwrap();
            // Data sent with the last ACK of the handshake, or arriving before it, is not lost.
            world.stacks[0].send(id, &stream_bytes(1, 0, 5000)).unwrap();
            world.flush(0);
            // Half-open connections do not time out meanwhile.
            world.run_until(world.now_ns + 20 * MILLISECOND_NS);
            assert_eq!(world.stacks[0].get(id).unwrap().state(), State::Established);
            assert_eq!(world.stacks[1].connections(), kept + count + 1);
        }
        for _ in 0..backlog {
            let id = world.stacks[1].accept(tuple().remote).expect("it is established");
            assert_eq!(receive_all(&mut world, 1, id, 1, 0), 5000);
        }
    }
}

#[test]
fn an_acknowledgement_is_no_cookie_unless_there_was_one() {
    let mut server = stack(Limits::default());
    server.listen(tuple().remote, 1, None).unwrap();
    let mut cookies = [0; 2];
    let acknowledge = |server: &mut Stack<SharedBytes>, sequence: u32, acknowledgement: u32, now_ns| {
        let flags = Flags { ack: true, ..Flags::default() };
        let header = Header { sequence, acknowledgement, flags, window: 1000, ..Header::default() };
        server.on_segment(syn_from(2).0, Segment::bare(header), now_ns);
        let is_reset = server.poll_transmit(now_ns).is_some_and(|(_, segment)| segment.header.flags.rst);
        (is_reset, server.connections())
    };
    let guessed = secret(9).cookie(&syn_from(2).0, 2, 536, 0).wrapping_add(1);
    assert_eq!(acknowledge(&mut server, 3, guessed, 0), (true, 0), "no cookie was sent");
    for (port, cookie) in (1..).zip(&mut cookies) {
        let (tuple, syn) = syn_from(port);
        server.on_segment(tuple, syn, 0);
        *cookie = server.poll_transmit(0).unwrap().1.header.sequence;
    }
    let good = cookies[1].wrapping_add(1);
    assert_eq!(acknowledge(&mut server, 3, cookies[1], 0), (true, 1), "another number");
    assert_eq!(acknowledge(&mut server, 4, good, 0), (true, 1), "of another peer's number");
    assert_eq!(acknowledge(&mut server, 3, good, 2 * COOKIE_TICK_NS), (true, 1), "too late");
    assert_eq!(acknowledge(&mut server, 3, good, 0), (false, 2));
}

#[test]
fn resets_that_wait_are_bounded() {
    let mut stack = stack(Limits::default());
    for port in 1..10_000 {
        let tuple = Tuple { remote: SocketAddr::new(tuple().remote.ip(), port), ..tuple() };
        stack.on_segment(tuple, Segment::bare(Header::default()), 0);
    }
    assert_eq!(std::iter::from_fn(|| stack.poll_transmit(0)).count(), 256);
    assert_eq!(stack.connections(), 0);
}

#[test]
fn removed_listener_resets_unaccepted_connections() {
    let (mut world, _) = connected([Config::default(), Config::default()], [link(), link()]);
    let local = SocketAddr::new(tuple().local.ip(), 4001);
    let id = world.stacks[0].connect(Tuple { local, ..tuple() }, None, world.now_ns).unwrap();
    world.flush(0);
    world.run_until(world.now_ns + SECOND_NS);
    assert_eq!(world.stacks[0].get(id).unwrap().state(), State::Established);
    world.stacks[1].unlisten(tuple().remote);
    world.flush(1);
    world.run_until(world.now_ns + SECOND_NS);
    assert_eq!(world.stacks[0].take_error(id), Some(Error::ConnectionReset));
    assert_eq!(world.stacks[1].connections(), 1);
}
