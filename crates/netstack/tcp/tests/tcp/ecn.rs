//! Explicit congestion notification (RFC 3168): negotiation, marking, and the effect of a mark.

use std::sync::Arc;

use crate::common::{Link, connected, receive_all, stream_bytes};
use uncopy_tcp::config::{Config, Ecn, MILLISECOND_NS, SECOND_NS};
use uncopy_tcp::connection::{Connection, State};
use uncopy_tcp::payload::{Pieces, SharedBytes};
use uncopy_tcp::segment::{Codepoint, Flags, Header, Segment};

fn links() -> [Link; 2] {
    [(); 2].map(|()| Link { delay_ns: 5 * MILLISECOND_NS, ..Link::default() })
}

fn config(ecn: Ecn) -> Config {
    Config { ecn, ..Config::default() }
}

#[test]
fn ecn_is_used_if_one_end_requests_and_the_other_accepts() {
    use Ecn::{Accepted, Off, Requested};
    for (asking, asked, is_used) in [
        (Off, Requested, false),
        (Accepted, Requested, false),
        (Requested, Off, false),
        (Requested, Accepted, true),
        (Requested, Requested, true),
    ] {
        let (mut world, ids) = connected([config(asking), config(asked)], links());
        for (side, id) in ids.into_iter().enumerate() {
            assert_eq!(
                world.stacks[side].get(id).unwrap().statistics().has_ecn,
                is_used,
                "{asking:?} {asked:?}"
            );
            world.stacks[side].send(id, &stream_bytes(1, 0, 100)).unwrap();
            let (_, segment) = world.stacks[side].poll_transmit(world.now_ns).unwrap();
            assert_eq!(segment.header.codepoint == Codepoint::Capable0, is_used);
        }
    }
}

#[test]
fn marks_reduce_the_window_once_per_round_trip_without_retransmissions() {
    let (mut world, ids) = connected([config(Ecn::Requested), config(Ecn::Accepted)], links());
    let window = |world: &crate::common::World| {
        world.stacks[0].get(ids[0]).unwrap().statistics().congestion_window_bytes
    };
    world.links[1].mark_permille = 1000;
    let before = window(&world);
    world.stacks[0].send(ids[0], &stream_bytes(1, 0, 14_000)).unwrap();
    world.flush(0);
    let mut at = 0;
    while at < 14_000 {
        world.advance(world.next_ns().unwrap());
        at = receive_all(&mut world, 1, ids[1], 1, at);
    }
    world.run_until(world.now_ns + SECOND_NS);
    assert_eq!(world.marked, 10);
    let after = window(&world);
    assert!(after >= before * 6 / 10 && after < before, "{before} {after}");
    // CWR stops ECE: without marks the window grows again.
    world.links[1].mark_permille = 0;
    for _ in 0..20 {
        world.stacks[0].send(ids[0], &stream_bytes(1, at, 20_000)).unwrap();
        world.flush(0);
        world.run_until(world.now_ns + SECOND_NS / 10);
        at = receive_all(&mut world, 1, ids[1], 1, at);
    }
    assert!(window(&world) > after, "{after} {}", window(&world));
    assert_eq!(world.lost, 0);
}

#[test]
fn marked_connection_is_as_fast_as_a_lossy_one_without_losses() {
    let mut received = [0; 2];
    for (is_marked, received) in received.iter_mut().enumerate() {
        let (mut world, ids) = connected([config(Ecn::Requested), config(Ecn::Accepted)], links());
        match is_marked {
            0 => world.links[1].loss_permille = 10,
            _ => world.links[1].mark_permille = 10,
        }
        let end_ns = world.now_ns + 10 * SECOND_NS;
        let mut sent = 0;
        while world.now_ns < end_ns {
            if world.stacks[0].get(ids[0]).unwrap().room_bytes() >= 1 << 16 {
                let piece = stream_bytes(1, sent, 1 << 16);
                sent += world.stacks[0].send(ids[0], &piece).unwrap() as u64;
                world.flush(0);
            }
            world.advance(world.next_ns().unwrap());
            *received = receive_all(&mut world, 1, ids[1], 1, *received);
        }
        assert_eq!(world.lost == 0, is_marked == 1);
    }
    let [lossy, marked] = received;
    assert!(marked > lossy * 8 / 10, "{marked} bytes with marks, {lossy} with losses");
}

const BOTH: Flags = Flags { fin: false, syn: true, rst: false, psh: false, ack: false, ece: true, cwr: true };
const SEGMENT: usize = 1000;

fn header(flags: Flags, sequence: u32, acknowledgement: u32) -> Header {
    Header { sequence, acknowledgement, flags, window: 60_000, ..Header::default() }
}

/// Returns a connection opened by a hand-written SYN: the peer's numbers continue at 101, ours at 501.
fn accepted(ecn: Ecn) -> Connection<SharedBytes> {
    let config = Config { timestamps: false, ..config(ecn) };
    let mut syn = header(BOTH, 100, 0);
    syn.options.max_segment_size = Some(SEGMENT as u16);
    let mut tcp = Connection::accept(Arc::new(config), 500, 0, &syn, 0);
    let answer = tcp.poll_transmit(0).unwrap().header;
    assert_eq!(
        (answer.flags.ece, answer.flags.cwr, answer.codepoint),
        (ecn >= Ecn::Accepted, false, Codepoint::NotCapable)
    );
    tcp.on_segment(Segment::bare(header(Flags { ack: true, ..Flags::default() }, 101, 501)), 0);
    assert_eq!((tcp.state(), tcp.statistics().has_ecn), (State::Established, ecn >= Ecn::Accepted));
    tcp
}

#[test]
fn syn_with_one_ecn_bit_and_simultaneous_syns_do_not_request_ecn() {
    for flags in [Flags { ece: false, ..BOTH }, Flags { cwr: false, ..BOTH }] {
        let config = Arc::new(config(Ecn::Requested));
        let mut tcp: Connection<SharedBytes> =
            Connection::accept(config.clone(), 500, 0, &header(flags, 100, 0), 0);
        assert!(!tcp.statistics().has_ecn && !tcp.poll_transmit(0).unwrap().header.flags.ece);
        let mut tcp: Connection<SharedBytes> = Connection::connect(config, 500, 0, 0);
        assert_eq!(tcp.poll_transmit(0).unwrap().header.flags, BOTH);
        tcp.on_segment(Segment::bare(header(flags, 100, 0)), 0);
        assert_eq!((tcp.state(), tcp.statistics().has_ecn), (State::SynReceived, false));
    }
    // A peer that reflects the bits of a SYN does not support ECN.
    let mut tcp: Connection<SharedBytes> = Connection::connect(Arc::new(config(Ecn::Requested)), 500, 0, 0);
    tcp.on_segment(Segment::bare(header(Flags { ack: true, ..BOTH }, 100, 501)), 0);
    assert_eq!((tcp.state(), tcp.statistics().has_ecn), (State::Established, false));
}

#[test]
fn repeated_syn_does_not_request_ecn() {
    let mut tcp: Connection<SharedBytes> = Connection::connect(Arc::new(config(Ecn::Requested)), 500, 0, 0);
    assert_eq!(tcp.poll_transmit(0).unwrap().header.flags, BOTH);
    tcp.on_timer(3 * SECOND_NS);
    let again = tcp.poll_transmit(3 * SECOND_NS).unwrap().header.flags;
    assert_eq!(again, Flags { ece: false, cwr: false, ..BOTH });
}

#[test]
fn a_mark_is_echoed_until_the_peer_has_reduced_its_window() {
    let mut tcp = accepted(Ecn::Accepted);
    let mut sequence = 101;
    // Returns whether the acknowledgement of a segment with this codepoint and CWR has ECE.
    let mut echoes = |codepoint, cwr, len: usize| {
        let flags = Flags { ack: true, cwr, ..Flags::default() };
        let payload = Pieces::from_iter((len > 0).then(|| stream_bytes(1, 0, len)));
        let header = Header { codepoint, ..header(flags, sequence, 501) };
        sequence += len as u32;
        tcp.on_segment(Segment { header, payload, max_payload_bytes: 0 }, 0);
        tcp.poll_transmit(0).map(|answer| answer.header.flags.ece)
    };
    use Codepoint::{Capable0, Congestion};
    assert_eq!(echoes(Capable0, false, SEGMENT), Some(false));
    assert_eq!(echoes(Congestion, false, 0), None);
    assert_eq!(echoes(Capable0, false, SEGMENT), Some(false), "what has no data is not marked");
    assert_eq!(echoes(Congestion, false, SEGMENT), Some(true));
    assert_eq!(echoes(Capable0, false, SEGMENT), Some(true));
    assert_eq!(echoes(Congestion, true, SEGMENT), Some(true), "marked again");
    assert_eq!(echoes(Capable0, true, SEGMENT), Some(false));
    assert_eq!(echoes(Capable0, false, SEGMENT), Some(false));

    let mut tcp = accepted(Ecn::Off);
    let marked =
        Header { codepoint: Congestion, ..header(Flags { ack: true, ..Flags::default() }, 101, 501) };
    let payload = Pieces::from_iter([stream_bytes(1, 0, SEGMENT)]);
    tcp.on_segment(Segment { header: marked, payload, max_payload_bytes: 0 }, 0);
    assert!(!tcp.poll_transmit(0).unwrap().header.flags.ece, "not agreed upon");
}

#[test]
fn ece_reduces_the_window_once_per_flight_and_does_not_grow_it() {
    let mut tcp = accepted(Ecn::Accepted);
    tcp.send(&stream_bytes(1, 0, 40 * SEGMENT)).unwrap();
    let mut sent = 501;
    let mut flush = |tcp: &mut Connection<SharedBytes>| {
        let mut reductions = Vec::new();
        while let Some(segment) = tcp.poll_transmit(0) {
            assert_eq!(segment.header.codepoint, Codepoint::Capable0);
            if segment.header.flags.cwr {
                reductions.push(segment.header.sequence);
            }
            sent = segment.header.sequence + segment.len() as u32;
        }
        (reductions, sent)
    };
    let acknowledge = |tcp: &mut Connection<SharedBytes>, acknowledgement, ece| {
        let flags = Flags { ack: true, ece, ..Flags::default() };
        tcp.on_segment(Segment::bare(header(flags, 101, acknowledgement)), 0);
        tcp.statistics().congestion_window_bytes
    };
    let (reductions, end) = flush(&mut tcp);
    assert_eq!((reductions, end), (vec![], 501 + 10 * SEGMENT as u32));
    assert_eq!(acknowledge(&mut tcp, 501 + 2 * SEGMENT as u32, false), 12 * SEGMENT as u64);
    let (_, end) = flush(&mut tcp);
    // 12 segments are in flight.
    let window = acknowledge(&mut tcp, 501 + 4 * SEGMENT as u32, true);
    assert_eq!(window, 12 * SEGMENT as u64 * 7 / 10);
    assert_eq!(acknowledge(&mut tcp, end - SEGMENT as u32, true), window);
    let (reductions, _) = flush(&mut tcp);
    assert_eq!(reductions, [end], "the first new data says so");
    assert_eq!(acknowledge(&mut tcp, end, true), window);
    // The segment with CWR was itself marked.
    assert!(acknowledge(&mut tcp, end + SEGMENT as u32, true) < window);
}
