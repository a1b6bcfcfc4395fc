//! The path: ICMP errors (RFC 5461, 5927), path MTU (RFC 1191, 8201), and delayed old segments (PAWS).

use std::sync::Arc;

use crate::common::{Link, World, connected, receive_all, secret, stream_bytes, tuple};
use uncopy_tcp::config::{Config, MAX_TIMESTAMP_AGE_NS, MILLISECOND_NS, SECOND_NS};
use uncopy_tcp::connection::{Connection, Received, State};
use uncopy_tcp::error::Error;
use uncopy_tcp::options::{Options, Timestamps};
use uncopy_tcp::payload::{Payload, Pieces, SharedBytes};
use uncopy_tcp::segment::{Flags, Header, Segment};
use uncopy_tcp::stack::{Limits, Stack};
use uncopy_tcp::wire::Tuple;

const HEADERS_BYTES: usize = 40;

fn link() -> Link {
    Link { delay_ns: 5 * MILLISECOND_NS, ..Link::default() }
}

fn config() -> Config {
    Config { nagle: false, ..Config::default() }
}

#[test]
fn icmp_error_quoting_a_segment_in_flight_ends_a_handshake() {
    let mut stack: Stack<SharedBytes> = Stack::new(config(), Limits::default(), secret(1));
    let id = stack.connect(tuple(), None, 0).unwrap();
    let (_, syn) = stack.poll_transmit(0).unwrap();
    let sequence = syn.header.sequence;
    let elsewhere = Tuple { local: "10.0.0.1:4001".parse().unwrap(), ..tuple() };
    stack.on_unreachable(&elsewhere, sequence, Error::HostUnreachable);
    for forged in [sequence.wrapping_sub(1), sequence.wrapping_add(1), !sequence] {
        stack.on_unreachable(&tuple(), forged, Error::HostUnreachable);
    }
    assert_eq!(stack.get(id).unwrap().state(), State::SynSent);
    stack.on_unreachable(&tuple(), sequence, Error::HostUnreachable);
    assert_eq!(stack.receive(id, 1).unwrap_err(), Error::HostUnreachable);
    assert_eq!(stack.get(id).unwrap().state(), State::Closed);
}

#[test]
fn later_timeout_reports_the_icmp_error() {
    for is_repaired in [true, false] {
        let (mut world, [id, peer]) = connected([config(), config()], [link(), link()]);
        let before = world.packets;
        world.links[1].is_cut = true;
        world.stacks[0].send(id, &stream_bytes(1, 0, 100)).unwrap();
        let (_, segment) = world.stacks[0].poll_transmit(world.now_ns).unwrap();
        let sequence = segment.header.sequence;
        world.stacks[0].on_unreachable(&tuple(), sequence, Error::NetworkUnreachable);
        world.flush(0);
        world.run_until(world.now_ns + 10 * SECOND_NS);
        assert_eq!(world.stacks[0].get(id).unwrap().state(), State::Established);
        assert!(world.packets > before + 3, "it is repeated all the same");
        if is_repaired {
            world.links[1].is_cut = false;
            world.run_until(world.now_ns + 30 * SECOND_NS);
            assert_eq!(receive_all(&mut world, 1, peer, 1, 0), 100);
            world.links[1].is_cut = true;
            world.stacks[0].send(id, &stream_bytes(1, 100, 100)).unwrap();
            world.flush(0);
        }
        world.run_until(world.now_ns + 3600 * SECOND_NS);
        let error = if is_repaired { Error::TimedOut } else { Error::NetworkUnreachable };
        assert_eq!(world.stacks[0].receive(id, 1).unwrap_err(), error);
    }
}

/// Sends `len` bytes over a path whose MTU shrinks, with ICMP for packets that exceed it.
fn send_through_narrow_path(world: &mut World, side: usize, mut limits: Vec<usize>, len: u64) {
    let ids = [world.ids[0], world.ids[1]];
    let (mut sent, mut received) = (0, 0);
    let end_ns = world.now_ns + 600 * SECOND_NS;
    while received < len {
        assert!(world.now_ns < end_ns, "{received} of {len} bytes arrived");
        if sent < len {
            let piece = stream_bytes(7, sent, (len - sent).min(30_000) as usize);
            sent += world.stacks[side].send(ids[side], &piece).unwrap() as u64;
            world.flush(side);
        }
        if received * 3 > len
            && let Some(limit) = limits.pop()
        {
            world.links[1 - side].max_packet_bytes = limit;
        }
        world.advance(world.next_ns().expect("it goes on"));
        for (from, tuple, sequence) in std::mem::take(&mut world.oversized) {
            let mss = world.links[1 - from].max_packet_bytes - HEADERS_BYTES;
            world.stacks[from].on_path_mtu(&tuple, sequence, mss as u16);
            world.flush(from);
        }
        received = receive_all(world, 1 - side, ids[1 - side], 7, received);
    }
}

#[test]
fn segments_too_long_for_the_path_are_sent_again_smaller() {
    for sack in [true, false] {
        let config = Config { sack, ..config() };
        let (mut world, _) = connected([config.clone(), config], [link(), link()]);
        let start = world.now_ns;
        send_through_narrow_path(&mut world, 0, vec![700, 1300], 2_000_000);
        let elapsed = (world.now_ns - start) / MILLISECOND_NS;
        // Both were repaired within round trips, without a timeout.
        assert!(elapsed < 1000, "{elapsed} ms");
    }
}

#[test]
fn implausible_path_mtu_is_ignored() {
    let (mut world, [id, _]) = connected([config(), config()], [link(), link()]);
    world.links[1].is_cut = true;
    world.stacks[0].send(id, &stream_bytes(1, 0, 5000)).unwrap();
    let (_, first) = world.stacks[0].poll_transmit(world.now_ns).unwrap();
    assert_eq!(first.max_payload_bytes, 1448);
    let sequence = first.header.sequence;
    world.stacks[0].on_path_mtu(&tuple(), sequence.wrapping_sub(1), 500);
    assert!(world.stacks[0].poll_transmit(world.now_ns).is_none());
    world.stacks[0].on_path_mtu(&tuple(), sequence, 1);
    let (_, again) = world.stacks[0].poll_transmit(world.now_ns).unwrap();
    assert_eq!((again.header.sequence, again.max_payload_bytes), (sequence, 88 - 12));
    world.stacks[0].on_path_mtu(&tuple(), sequence, 1400);
    world.stacks[0].send(id, &stream_bytes(1, 5000, 500)).unwrap();
    let (_, next) = world.stacks[0].poll_transmit(world.now_ns).unwrap();
    assert_eq!(next.max_payload_bytes, 88 - 12, "it does not rise again");
}

const PEER: u32 = u32::MAX - 50;
const RECENT: u32 = 10;

fn stamped(sequence: u32, acknowledgement: u32, value: u32, len: usize) -> Segment<SharedBytes> {
    let timestamps = Some(Timestamps { value, echo: 0 });
    let header = Header {
        sequence,
        acknowledgement,
        flags: Flags { ack: true, ..Flags::default() },
        window: 1000,
        options: Options { timestamps, ..Options::default() },
        ..Header::default()
    };
    let payload = if len > 0 { Pieces::from_iter([stream_bytes(1, 0, len)]) } else { Pieces::new() };
    Segment { header, payload, max_payload_bytes: 0 }
}

/// Returns a connection whose peer's latest timestamp is [`RECENT`], just past the wrap.
fn with_timestamps(now_ns: u64) -> Connection<SharedBytes> {
    let mut syn = stamped(PEER, 0, RECENT.wrapping_sub(20), 0).header;
    syn.flags = Flags { syn: true, ..Flags::default() };
    let mut tcp = Connection::accept(Arc::new(config()), 100, 0, &syn, now_ns);
    assert!(tcp.poll_transmit(now_ns).is_some());
    tcp.on_segment(stamped(PEER.wrapping_add(1), 101, RECENT, 0), now_ns);
    assert_eq!(tcp.state(), State::Established);
    assert!(tcp.poll_transmit(now_ns).is_none());
    tcp
}

fn received_bytes(tcp: &mut Connection<SharedBytes>) -> usize {
    match tcp.receive(1000).unwrap() {
        Received::Piece(piece) => piece.len_bytes(),
        _ => 0,
    }
}

#[test]
fn an_old_segment_in_the_window_is_answered_but_not_taken() {
    let mut tcp = with_timestamps(SECOND_NS);
    let next = PEER.wrapping_add(1);
    for old in [RECENT - 1, u32::MAX, RECENT.wrapping_sub(1 << 31).wrapping_add(1)] {
        tcp.on_segment(stamped(next, 101, old, 10), SECOND_NS);
        let answer = tcp.poll_transmit(SECOND_NS).expect("it is answered");
        assert_eq!((answer.header.acknowledgement, received_bytes(&mut tcp)), (next, 0));
        assert_eq!(answer.header.options.timestamps.unwrap().echo, RECENT);
    }
    // A RST is exempt (RFC 7323, section 5.2); a segment without timestamp is dropped (section 3.2).
    let mut bare = stamped(next, 101, RECENT, 10);
    bare.header.options.timestamps = None;
    tcp.on_segment(bare, SECOND_NS);
    assert!(tcp.poll_transmit(SECOND_NS).is_none() && received_bytes(&mut tcp) == 0);
    tcp.on_segment(stamped(next, 101, RECENT, 10), SECOND_NS);
    assert_eq!(received_bytes(&mut tcp), 10);
    let mut reset = stamped(next.wrapping_add(10), 101, RECENT - 1, 0);
    reset.header.flags.rst = true;
    tcp.on_segment(reset, SECOND_NS);
    assert_eq!(tcp.take_error(), Some(Error::ConnectionReset));
}

#[test]
fn a_timestamp_of_an_idle_connection_expires() {
    for (age_ns, taken) in [(MAX_TIMESTAMP_AGE_NS - 1, 0), (MAX_TIMESTAMP_AGE_NS, 10)] {
        let mut tcp = with_timestamps(SECOND_NS);
        let old = RECENT.wrapping_sub(1000);
        let now_ns = SECOND_NS + age_ns;
        tcp.on_segment(stamped(PEER.wrapping_add(1), 101, old, 10), now_ns);
        assert_eq!(received_bytes(&mut tcp), taken);
        // A timestamp older than the new one is old again.
        tcp.on_segment(stamped(PEER.wrapping_add(11), 101, old - 1, 10), now_ns);
        assert_eq!(received_bytes(&mut tcp), 0);
    }
}

#[test]
fn a_later_segment_does_not_make_a_missing_one_old() {
    let mut tcp = with_timestamps(SECOND_NS);
    let next = PEER.wrapping_add(1);
    tcp.on_segment(stamped(next.wrapping_add(10), 101, RECENT + 5, 10), SECOND_NS);
    tcp.on_segment(stamped(next, 101, RECENT + 1, 10), SECOND_NS);
    assert_eq!(received_bytes(&mut tcp) + received_bytes(&mut tcp), 20);
}
