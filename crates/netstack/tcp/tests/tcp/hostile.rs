//! Hostile peers: floods of segments must not exceed the memory limits.

use std::sync::Arc;

use crate::common::{Link, Random, connected, receive_all, stream_bytes};
use uncopy_tcp::config::{Config, MILLISECOND_NS, SECOND_NS};
use uncopy_tcp::connection::{Connection, Received, State};
use uncopy_tcp::options::Options;
use uncopy_tcp::payload::{Pieces, SharedBytes};
use uncopy_tcp::segment::{Flags, Header, Segment};

const PEER: u32 = u32::MAX - 1000;
const NEXT: u32 = PEER.wrapping_add(1);
const OURS: u32 = 5;

fn segment(sequence: u32, acknowledgement: u32, payload: Option<SharedBytes>) -> Segment<SharedBytes> {
    let flags = Flags { ack: true, ..Flags::default() };
    let header = Header { sequence, acknowledgement, flags, window: 0xffff, ..Header::default() };
    Segment { header, payload: payload.into_iter().collect::<Pieces<_>>(), max_payload_bytes: 0 }
}

/// Returns a connection whose peer's data begins at [`NEXT`], and ours after [`OURS`].
fn established(config: Config) -> Connection<SharedBytes> {
    let mut syn = segment(PEER, 0, None).header;
    syn.flags = Flags { syn: true, ..Flags::default() };
    syn.options = Options { sack_permitted: true, max_segment_size: Some(100), ..Options::default() };
    let mut tcp = Connection::accept(Arc::new(config), OURS, 0, &syn, SECOND_NS);
    while tcp.poll_transmit(SECOND_NS).is_some() {}
    tcp.on_segment(segment(NEXT, OURS + 1, None), SECOND_NS);
    assert_eq!(tcp.state(), State::Established);
    tcp
}

#[test]
fn bytes_out_of_order_are_bounded_in_pieces_and_the_stream_is_whole() {
    let config = Config { max_receive_pieces: 64, receive_buffer_bytes: 60_000, ..Config::default() };
    let mut tcp = established(config);
    let mut random = Random(3);
    let mut at = 0;
    let deliver = |tcp: &mut Connection<SharedBytes>, offset: u64, len: usize| {
        let sequence = NEXT.wrapping_add(offset as u32);
        tcp.on_segment(segment(sequence, OURS + 1, Some(stream_bytes(1, offset, len))), SECOND_NS);
        while tcp.poll_transmit(SECOND_NS).is_some() {}
        assert_eq!(tcp.violation(), None);
        assert!(tcp.received_pieces() <= 64, "{}", tcp.received_pieces());
    };
    while at < 5000 {
        for _ in 0..200 {
            let offset = at + 2 + 2 * random.below(20_000);
            deliver(&mut tcp, offset, 1);
        }
        // The missing bytes find room.
        deliver(&mut tcp, at, 3);
        let before = at;
        while let Received::Piece(piece) = tcp.receive(1000).unwrap() {
            at = crate::common::verify(1, at, &piece);
        }
        assert!(at >= before + 3);
    }
}

#[test]
fn a_peer_that_ignores_the_window_costs_no_more_than_the_window() {
    let config = Config { max_receive_pieces: 100, receive_buffer_bytes: 4000, ..Config::default() };
    let mut tcp = established(config);
    for offset in 0..20_000u64 {
        let sequence = NEXT.wrapping_add(offset as u32);
        tcp.on_segment(segment(sequence, OURS + 1, Some(stream_bytes(1, offset, 1))), SECOND_NS);
        while tcp.poll_transmit(SECOND_NS).is_some() {}
        assert!(tcp.received_pieces() <= 100);
    }
    assert_eq!(tcp.violation(), None);
    assert_eq!(tcp.ready_bytes(), 100, "one byte a piece");
}

#[test]
fn one_byte_a_segment_arrives_whole_within_its_bounds() {
    let config = Config {
        nagle: false,
        max_receive_pieces: 20,
        max_send_pieces: 20,
        send_buffer_bytes: 3000,
        receive_buffer_bytes: 3000,
        ..Config::default()
    };
    let link = Link { delay_ns: MILLISECOND_NS, loss_permille: 20, ..Link::default() };
    let (mut world, [id, peer]) = connected([config.clone(), config], [link.clone(), link]);
    let (mut sent, mut received) = (0, 0);
    let end_ns = world.now_ns + 600 * SECOND_NS;
    while received < 2000 {
        assert!(world.now_ns < end_ns, "{received} of {sent} bytes arrived");
        while sent < 2000 && world.stacks[0].send(id, &stream_bytes(1, sent, 1)).unwrap() == 1 {
            sent += 1;
            world.flush(0);
        }
        let step_ns = world.now_ns + 20 * MILLISECOND_NS;
        world.run_until(step_ns);
        received = receive_all(&mut world, 1, peer, 1, received);
    }
}

#[test]
fn selective_acknowledgements_of_single_bytes_are_bounded() {
    let mut tcp = established(Config { timestamps: false, ..Config::default() });
    // The window is large: slow start has to end first.
    let mut acknowledged = OURS + 1;
    let mut sent = acknowledged;
    tcp.send(&stream_bytes(1, 0, 300_000)).unwrap();
    while sent < OURS + 20_000 {
        while let Some(segment) = tcp.poll_transmit(SECOND_NS) {
            sent = sent.max(segment.header.sequence.wrapping_add(segment.len() as u32));
        }
        let mut ack = segment(NEXT, sent, None);
        if sent - acknowledged > 6000 {
            break;
        }
        acknowledged = sent;
        ack.header.window = 0xffff;
        tcp.on_segment(ack, SECOND_NS);
    }
    let before = tcp.sacked_ranges();
    assert_eq!(before, 0);
    for offset in (1..sent - acknowledged).step_by(2) {
        let mut ack = segment(NEXT, acknowledged, None);
        ack.header.options.sack = [(acknowledged + offset, acknowledged + offset + 1)].into_iter().collect();
        tcp.on_segment(ack, SECOND_NS);
        while tcp.poll_transmit(SECOND_NS).is_some() {}
        assert_eq!(tcp.violation(), None);
    }
    assert_eq!(tcp.sacked_ranges(), uncopy_tcp::config::MAX_SACKED_RANGES);
}
