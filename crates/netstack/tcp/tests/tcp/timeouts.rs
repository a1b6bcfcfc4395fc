//! Silent peers and links: retries and errors reported to the program (RFC 9293, section 3.8).

use crate::common::{Link, World, connected, receive_all, secret, stream_bytes, tuple};
use uncopy_tcp::config::{
    Config, Keepalive, MAX_RETRIES, MAX_RTO_NS, MAX_SYN_ACK_RETRIES, MAX_SYN_RETRIES, MILLISECOND_NS,
    SECOND_NS,
};
use uncopy_tcp::connection::{Received, State};
use uncopy_tcp::error::Error;
use uncopy_tcp::stack::{ConnectionId, Limits, Stack};

const HOUR_NS: u64 = 3600 * SECOND_NS;

fn links() -> [Link; 2] {
    [(); 2].map(|()| Link { delay_ns: 5 * MILLISECOND_NS, ..Link::default() })
}

fn configs() -> [Config; 2] {
    [(); 2].map(|()| Config { nagle: false, ..Config::default() })
}

/// Returns the error reported to the program, if any.
fn failure(world: &mut World, id: ConnectionId) -> Option<Error> {
    world.stacks[0].receive(id, 1).err()
}

#[test]
fn a_syn_without_answer_is_repeated_and_times_out() {
    let stacks = configs().map(|config| Stack::new(config, Limits::default(), secret(1)));
    let mut world = World::new(1, stacks, links(), SECOND_NS);
    world.links[1].is_cut = true;
    let id = world.stacks[0].connect(tuple(), None, SECOND_NS).unwrap();
    world.flush(0);
    // 1 + 2 + … + 64 s.
    world.run_until(127 * SECOND_NS);
    assert_eq!(failure(&mut world, id), None);
    world.run_until(129 * SECOND_NS);
    assert_eq!(world.packets, 1 + u64::from(MAX_SYN_RETRIES));
    assert_eq!(failure(&mut world, id), Some(Error::TimedOut));
}

#[test]
fn a_syn_ack_without_answer_is_repeated_and_forgotten() {
    let stacks = configs().map(|config| Stack::new(config, Limits::default(), secret(1)));
    let mut world = World::new(1, stacks, links(), SECOND_NS);
    world.links[0].is_cut = true;
    world.stacks[1].listen(tuple().remote, 4, None).unwrap();
    let id = world.stacks[0].connect(tuple(), None, SECOND_NS).unwrap();
    world.flush(0);
    world.run_until(SECOND_NS + 10 * MILLISECOND_NS);
    // The client vanishes: an abort in SYN-SENT sends no RST.
    world.stacks[0].abort(id);
    world.flush(0);
    assert_eq!((world.packets, world.stacks[1].connections()), (2, 1));
    world.run_until(70 * SECOND_NS);
    assert_eq!(world.packets, 2 + u64::from(MAX_SYN_ACK_RETRIES));
    assert_eq!(world.stacks[1].connections(), 0);
    assert_eq!(world.stacks[1].accept(tuple().remote), None);
}

#[test]
fn data_without_answer_is_repeated_and_times_out() {
    let (mut world, [id, _]) = connected(configs(), links());
    let (start, before) = (world.now_ns, world.packets);
    world.links[1].is_cut = true;
    world.stacks[0].send(id, &stream_bytes(1, 0, 100)).unwrap();
    world.flush(0);
    // 0.2 s doubles nine times up to 120 s. RFC 1122, section 4.2.3.5, requires 100 s; Linux waits 924 s.
    world.run_until(start + 600 * SECOND_NS);
    assert_eq!(failure(&mut world, id), None);
    world.run_until(start + HOUR_NS);
    assert_eq!(failure(&mut world, id), Some(Error::TimedOut));
    assert_eq!(world.stacks[0].send(id, &stream_bytes(1, 0, 1)), Err(Error::BrokenPipe));
    let probes = world.packets - before - 1 - u64::from(MAX_RETRIES);
    assert!(probes <= 1, "{probes} beside retransmissions");
}

#[test]
fn keepalive_ends_silent_peers_and_keeps_answering_ones() {
    let keepalive = Keepalive { idle_ns: 60 * SECOND_NS, interval_ns: 5 * SECOND_NS, max_probes: 4 };
    let [asking, asked] = configs();
    let (mut world, [id, peer]) =
        connected([Config { keepalive: Some(keepalive), ..asking }, asked], links());
    world.run_until(world.now_ns + SECOND_NS);
    let (start, before) = (world.now_ns, world.packets);
    world.run_until(start + 58 * SECOND_NS);
    assert_eq!(world.packets, before);
    world.run_until(start + 61 * SECOND_NS);
    assert_eq!(world.packets, before + 2, "a probe and its answer");
    world.run_until(start + HOUR_NS);
    assert_eq!(world.stacks[0].get(id).unwrap().state(), State::Established);

    let (start, before) = (world.now_ns, world.packets);
    world.links[1].is_cut = true;
    world.run_until(start + 75 * SECOND_NS);
    assert_eq!(failure(&mut world, id), None);
    world.run_until(start + 2 * 60 * SECOND_NS);
    assert_eq!(failure(&mut world, id), Some(Error::TimedOut));
    assert_eq!(world.packets, before + 5, "four probes and a reset");
    assert_eq!(world.stacks[1].get(peer).unwrap().state(), State::Established);
}

/// Returns a connection whose peer does not read: the window is closed, and bytes are queued.
fn with_full_window() -> (World, [ConnectionId; 2]) {
    let [sender, receiver] = configs();
    let receiver = Config { receive_buffer_bytes: 5000, ..receiver };
    let (mut world, ids) = connected([sender, receiver], links());
    world.stacks[0].send(ids[0], &stream_bytes(1, 0, 20_000)).unwrap();
    world.flush(0);
    world.run_until(world.now_ns + SECOND_NS);
    (world, ids)
}

#[test]
fn a_window_that_never_opens_is_probed_ever_more_slowly_as_long_as_the_peer_answers() {
    let (mut world, [id, peer]) = with_full_window();
    let (start, before) = (world.now_ns, world.packets);
    world.run_until(start + 24 * HOUR_NS);
    let probes = (world.packets - before) / 2;
    assert!((700..760).contains(&probes), "{probes}");
    assert_eq!(failure(&mut world, id), None);
    // Reading opens the window, and all bytes arrive.
    let mut at = 0;
    for _ in 0..20 {
        at = receive_all(&mut world, 1, peer, 1, at);
        world.run_until(world.now_ns + SECOND_NS);
    }
    assert_eq!(at, 20_000);
}

#[test]
fn a_window_that_never_opens_is_given_up_when_the_peer_is_silent() {
    let (mut world, [id, _]) = with_full_window();
    let (start, before) = (world.now_ns, world.packets);
    world.links[1].is_cut = true;
    world.run_until(start + 24 * HOUR_NS);
    assert_eq!(failure(&mut world, id), Some(Error::TimedOut));
    assert!(world.packets - before <= 1 + u64::from(MAX_RETRIES));
}

#[test]
fn zero_window_does_not_hold_an_orphaned_connection() {
    let (mut world, [id, peer]) = with_full_window();
    let start = world.now_ns;
    world.stacks[0].close(id, start);
    world.flush(0);
    world.run_until(start + 60 * SECOND_NS);
    assert_eq!(world.stacks[0].connections(), 1, "what was sent is still delivered");
    world.run_until(start + 4 * MAX_RTO_NS);
    assert_eq!(world.stacks[0].connections(), 0);
    let mut at = 0;
    let error = loop {
        match world.stacks[1].receive(peer, usize::MAX) {
            Ok(Received::Piece(piece)) => at = crate::common::verify(1, at, &piece),
            other => break other.err(),
        }
    };
    assert_eq!((at, error), (5000, Some(Error::ConnectionReset)));
}
