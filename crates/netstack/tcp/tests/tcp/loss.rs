//! The cost of losses: lost tails, spurious timeouts, and the throughput of a long lossy path.

use crate::common::{Link, World, connected, receive_all, stream_bytes};
use uncopy_tcp::config::{Config, CongestionControl, MILLISECOND_NS, SECOND_NS};
use uncopy_tcp::connection::Received;
use uncopy_tcp::payload::Payload;

const MSS: usize = 1448;
/// Minimum timeout plus a round trip.
const MIN_TIMEOUT_NS: u64 = 210 * MILLISECOND_NS;

fn links(delay_ns: u64) -> [Link; 2] {
    [(); 2].map(|()| Link { delay_ns, ..Link::default() })
}

fn config() -> Config {
    Config { nagle: false, ..Config::default() }
}

/// Sends single segments; those in `lost` are lost the first time.
fn send_segments(world: &mut World, count: u64, lost: std::ops::Range<u64>) {
    for index in 0..count {
        let piece = stream_bytes(1, index * MSS as u64, MSS);
        world.links[1].is_cut = lost.contains(&index);
        assert_eq!(world.stacks[0].send(world.ids[0], &piece), Ok(MSS));
        world.flush(0);
    }
    world.links[1].is_cut = false;
}

/// Returns the time until `bytes` bytes have arrived.
fn time_until(world: &mut World, bytes: u64) -> u64 {
    let (start, mut at) = (world.now_ns, 0);
    while at < bytes {
        world.advance(world.next_ns().expect("it goes on"));
        at = receive_all(world, 1, world.ids[1], 1, at);
    }
    world.now_ns - start
}

#[test]
fn a_lost_tail_costs_no_timeout() {
    for tail in 2..=8 {
        let (mut world, ids) = connected([config(), config()], links(5 * MILLISECOND_NS));
        send_segments(&mut world, 10, 10 - tail..10);
        let elapsed = time_until(&mut world, 10 * MSS as u64);
        assert!(elapsed < 100 * MILLISECOND_NS, "{tail} segments: {} ms", elapsed / MILLISECOND_NS);
        let window = world.stacks[0].get(ids[0]).unwrap().statistics().congestion_window_bytes;
        assert!((2 * MSS as u64..10 * MSS as u64).contains(&window), "{tail} segments: a window of {window}");
    }
}

#[test]
fn a_gap_near_the_end_is_filled_before_a_timeout() {
    for end in 8..10 {
        let (mut world, _) = connected([config(), config()], links(5 * MILLISECOND_NS));
        send_segments(&mut world, 10, 7..end);
        let elapsed = time_until(&mut world, 10 * MSS as u64);
        assert!(elapsed < 50 * MILLISECOND_NS, "{} ms", elapsed / MILLISECOND_NS);
    }
}

#[test]
fn a_retransmission_that_is_lost_costs_no_timeout() {
    let (mut world, ids) = connected([config(), config()], links(5 * MILLISECOND_NS));
    world.links[1].is_cut = true;
    assert_eq!(world.stacks[0].send(ids[0], &stream_bytes(1, 0, MSS)), Ok(MSS));
    world.flush(0);
    world.links[1].is_cut = false;
    assert_eq!(world.stacks[0].send(ids[0], &stream_bytes(1, MSS as u64, 29 * MSS)), Ok(29 * MSS));
    world.flush(0);
    let begun_ns = world.now_ns;
    while world.retransmitted[0] == 0 {
        world.advance(world.next_ns().expect("it goes on"));
    }
    // The retransmission has the lowest sequence number in flight.
    let sequence = |packet: &crate::common::Packet| packet.headers[24..28].to_vec();
    let to_peer = || world.in_flight.values().filter(|(to, _)| *to == 1).map(|(_, packet)| sequence(packet));
    let first = to_peer().min().expect("it was sent again");
    let before = world.in_flight.len();
    world.in_flight.retain(|_, (to, packet)| *to == 0 || sequence(packet) != first);
    assert_eq!(world.in_flight.len(), before - 1);
    time_until(&mut world, 30 * MSS as u64);
    let elapsed = world.now_ns - begun_ns;
    assert!(elapsed < 150 * MILLISECOND_NS, "{} ms", elapsed / MILLISECOND_NS);
    assert_eq!(world.retransmitted[0], 2);
}

#[test]
fn loss_detected_in_a_batch_of_acknowledgements_costs_the_same() {
    let windows = [false, true].map(|batch_arrivals| {
        let (mut world, ids) = connected([config(), config()], links(5 * MILLISECOND_NS));
        send_segments(&mut world, 10, 6..7);
        let more = stream_bytes(1, 10 * MSS as u64, 50 * MSS);
        assert_eq!(world.stacks[0].send(ids[0], &more), Ok(50 * MSS));
        world.flush(0);
        world.batch_arrivals = batch_arrivals;
        world.run_until(world.now_ns + 11 * MILLISECOND_NS);
        let window = world.stacks[0].get(ids[0]).unwrap().statistics().congestion_window_bytes;
        assert_eq!(world.retransmitted[0], 1);
        time_until(&mut world, 60 * MSS as u64);
        window / MSS as u64
    });
    // The initial ten segments and six more, reduced by three tenths.
    assert_eq!(windows, [11, 11]);
}

#[test]
fn the_only_segment_that_is_lost_does_not_cost_the_congestion_window() {
    let (mut world, ids) = connected([config(), config()], links(5 * MILLISECOND_NS));
    send_segments(&mut world, 1, 0..1);
    let elapsed = time_until(&mut world, MSS as u64);
    assert!(elapsed <= MIN_TIMEOUT_NS + 50 * MILLISECOND_NS, "{} ms", elapsed / MILLISECOND_NS);
    world.run_until(world.now_ns + SECOND_NS);
    assert!(world.stacks[0].get(ids[0]).unwrap().statistics().congestion_window_bytes > 6 * MSS as u64);
}

#[test]
fn a_probe_for_a_tail_that_had_arrived_costs_nothing() {
    let (mut world, ids) = connected([config(), config()], links(5 * MILLISECOND_NS));
    let before = world.stacks[0].get(ids[0]).unwrap().statistics().congestion_window_bytes;
    // Acknowledgements are lost until the probe has arrived.
    world.links[0].is_cut = true;
    send_segments(&mut world, 4, 0..0);
    let packets = world.packets;
    world.run_until(world.now_ns + 30 * MILLISECOND_NS);
    assert!(world.packets > packets, "acknowledgements and a probe");
    world.links[0].is_cut = false;
    world.run_until(world.now_ns + SECOND_NS);
    send_segments(&mut world, 4, 0..0);
    world.run_until(world.now_ns + SECOND_NS);
    assert!(world.stacks[0].get(ids[0]).unwrap().statistics().congestion_window_bytes >= before);
}

#[test]
fn spurious_timeout_is_undone() {
    for sack in [true, false] {
        let config = Config { sack, ..config() };
        let (mut world, ids) = connected([config.clone(), config], links(5 * MILLISECOND_NS));
        send_segments(&mut world, 10, 0..0);
        let mut at = 0;
        for _ in 0..10 {
            world.run_until(world.now_ns + 10 * MILLISECOND_NS);
            at = receive_all(&mut world, 1, ids[1], 1, at);
        }
        let before = world.stacks[0].get(ids[0]).unwrap().statistics().congestion_window_bytes;
        // The path's delay grows by half a second.
        world.links[1].delay_ns += 500 * MILLISECOND_NS;
        for index in 10..18 {
            let piece = stream_bytes(1, index * MSS as u64, MSS);
            assert_eq!(world.stacks[0].send(ids[0], &piece), Ok(MSS));
            world.flush(0);
        }
        world.run_until(world.now_ns + 450 * MILLISECOND_NS);
        let during = world.stacks[0].get(ids[0]).unwrap().statistics().congestion_window_bytes;
        assert_eq!(during, MSS as u64, "the timer has expired");
        world.run_until(world.now_ns + 70 * MILLISECOND_NS);
        let after = world.stacks[0].get(ids[0]).unwrap().statistics().congestion_window_bytes;
        assert!(after >= before, "{before} {after}");
        world.run_until(world.now_ns + 3 * SECOND_NS);
        receive_all(&mut world, 1, ids[1], 1, at);
        assert_eq!(world.stacks[0].get(ids[0]).unwrap().statistics().queued_bytes, 0);
    }
}

/// Returns the goodput, in bytes per second, of a connection that always has data to send.
fn goodput(
    control: CongestionControl,
    loss_permille: u64,
    round_trip_ns: u64,
    seconds: u64,
    seed: u64,
) -> f64 {
    let config = Config { congestion_control: control, ..Config::default() };
    let mut paths = links(round_trip_ns / 2);
    // 1 Gbit/s. Only the sender's packets are lost.
    paths[1].byte_ns = 8;
    let (mut world, ids) = connected([config.clone(), config], paths);
    world.random = crate::common::Random(seed);
    world.links[1].loss_permille = loss_permille;
    let piece = stream_bytes(1, 0, 1 << 16);
    let (start, mut received) = (world.now_ns, 0u64);
    while world.now_ns < start + seconds * SECOND_NS {
        while world.stacks[0].send(ids[0], &piece).unwrap() > 0 {}
        world.flush(0);
        world.advance(world.next_ns().expect("it goes on"));
        while let Received::Piece(piece) = world.stacks[1].receive(ids[1], usize::MAX).unwrap() {
            received += piece.len_bytes() as u64;
        }
        world.flush(1);
    }
    received as f64 / seconds as f64
}

/// Returns the larger of AVG_W_cubic and AVG_W_aimd (RFC 9438, section 5), in bytes per second.
fn response(loss: f64, round_trip_s: f64) -> f64 {
    let (beta, growth) = (0.7, 0.4);
    let cubic = (growth * (3.0 + beta) / (4.0 * (1.0 - beta)) * (round_trip_s / loss).powi(3)).powf(0.25);
    let reno = (3.0 / (2.0 * loss)).sqrt();
    cubic.max(reno) * MSS as f64 / round_trip_s
}

#[test]
fn long_lossy_path_reaches_cubic_response_function() {
    let is_long = uncopy_core::random::test_size() > 10;
    let paths = [(10, 50), (10, 10), (20, 50), (1, 50), (1, 200)];
    let (paths, seeds) = if is_long { (&paths[..], 4) } else { (&paths[..1], 2) };
    for &(loss_permille, round_trip_ms) in paths {
        let round_trip_ns = round_trip_ms * MILLISECOND_NS;
        let seconds = 60 * round_trip_ms.div_ceil(50);
        let measured = (1..=seeds)
            .map(|seed| goodput(CongestionControl::Cubic, loss_permille, round_trip_ns, seconds, seed))
            .sum::<f64>()
            / seeds as f64;
        let expected = response(loss_permille as f64 / 1000.0, round_trip_ms as f64 / 1000.0);
        let ratio = measured / expected;
        println!(
            "loss {loss_permille} ‰, {round_trip_ms} ms: {:.2} Mbit/s, {ratio:.2} of CUBIC's response function",
            measured * 8e-6
        );
        assert!(ratio > 0.8, "{ratio}");
    }
}
