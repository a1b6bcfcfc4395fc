//! Explicit congestion notification (RFC 3168): who uses it, what is marked, and what a mark costs.
#![allow(missing_docs, reason = "tests")]

mod common;

use common::{Link, connected, receive_all, stream_bytes};
use uncopy_tcp::config::{Config, Ecn, MILLISECOND_NS, SECOND_NS};
use uncopy_tcp::segment::Codepoint;

fn links() -> [Link; 2] {
    [(); 2].map(|()| Link { delay_ns: 5 * MILLISECOND_NS, ..Link::default() })
}

fn config(ecn: Ecn) -> Config {
    Config { ecn, ..Config::default() }
}

#[test]
fn it_is_used_where_one_asks_and_the_other_accepts() {
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
            assert_eq!(world.stacks[side].get(id).unwrap().has_ecn(), is_used, "{asking:?} {asked:?}");
            world.stacks[side].send(id, &stream_bytes(1, 0, 100)).unwrap();
            let (_, segment) = world.stacks[side].poll_transmit(world.now_ns).unwrap();
            assert_eq!(segment.header.codepoint == Codepoint::Capable0, is_used);
        }
    }
}

#[test]
fn a_mark_halves_no_more_than_once_a_round_trip_and_nothing_is_sent_again() {
    let (mut world, ids) = connected([config(Ecn::Requested), config(Ecn::Accepted)], links());
    let window =
        |world: &common::World| world.stacks[0].get(ids[0]).unwrap().statistics().congestion_window_bytes;
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
    // CWR ends the echo: without marks the window grows again.
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
fn a_connection_whose_packets_are_marked_goes_as_fast_as_one_that_loses_them_and_loses_none() {
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
