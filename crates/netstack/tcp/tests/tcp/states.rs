//! Every state and every kind of segment, as a table (RFC 9293, section 3.10.7; RFC 5961; RFC 1337).

use std::sync::Arc;

use crate::common::stream_bytes;
use uncopy_tcp::config::{Config, SECOND_NS, TIME_WAIT_NS};
use uncopy_tcp::connection::{Connection, State};
use uncopy_tcp::payload::{Pieces, SharedBytes};
use uncopy_tcp::segment::{Flags, Header, Segment};

/// Initial sequence numbers of the peer and of this side, so that both streams wrap soon.
const PEER: u32 = u32::MAX - 1;
const OURS: u32 = u32::MAX - 2;

type Tcp = Connection<SharedBytes>;

fn config() -> Arc<Config> {
    let config = Config {
        timestamps: false,
        sack: false,
        window_scaling: false,
        receive_buffer_bytes: 1000,
        ..Config::default()
    };
    Arc::new(config)
}

fn segment(flags: &str, sequence: u32, acknowledgement: u32, len: usize) -> Segment<SharedBytes> {
    let has = |flag| flags.contains(flag);
    let flags = Flags { fin: has('F'), syn: has('S'), rst: has('R'), ack: has('A'), ..Flags::default() };
    let header = Header { sequence, acknowledgement, flags, window: 1000, ..Header::default() };
    let payload = if len > 0 { Pieces::from_iter([stream_bytes(1, 0, len)]) } else { Pieces::new() };
    Segment { header, payload, max_payload_bytes: 0 }
}

/// Returns the flags of the segments that a connection sends.
fn sent(connection: &mut Tcp) -> String {
    let mut texts = Vec::new();
    while let Some(segment) = connection.poll_transmit(SECOND_NS) {
        let Flags { fin, syn, rst, ack, .. } = segment.header.flags;
        let letters = [(syn, 'S'), (fin, 'F'), (rst, 'R'), (ack, 'A')];
        texts
            .push(letters.iter().filter(|(is_set, _)| *is_set).map(|(_, letter)| letter).collect::<String>());
    }
    assert_eq!(connection.violation(), None);
    texts.join(" ")
}

/// Returns a connection in `state`. The next numbers are `PEER + 1` and `OURS + 1`, one more after each FIN.
fn connection(state: State) -> Tcp {
    let mut tcp = match state {
        State::SynReceived => {
            let mut tcp = Tcp::accept(config(), OURS, 0, &segment("S", PEER, 0, 0).header, SECOND_NS);
            assert_eq!(sent(&mut tcp), "SA");
            return tcp;
        }
        _ => Tcp::connect(config(), OURS, 0, SECOND_NS),
    };
    assert_eq!(sent(&mut tcp), "S");
    if state == State::SynSent {
        return tcp;
    }
    let peer = PEER.wrapping_add(1);
    let (ours, after_fin) = (OURS.wrapping_add(1), OURS.wrapping_add(2));
    let deliver = |tcp: &mut Tcp, flags: &str, sequence: u32, acknowledgement: u32| {
        tcp.on_segment(segment(flags, sequence, acknowledgement, 0), SECOND_NS);
        sent(tcp);
    };
    deliver(&mut tcp, "SA", PEER, ours);
    let shut = |tcp: &mut Tcp| {
        tcp.shutdown().unwrap();
        assert_eq!(sent(tcp), "FA");
    };
    match state {
        State::FinWait1 => shut(&mut tcp),
        State::FinWait2 => {
            shut(&mut tcp);
            deliver(&mut tcp, "A", peer, after_fin);
        }
        State::CloseWait => deliver(&mut tcp, "FA", peer, ours),
        State::Closing => {
            shut(&mut tcp);
            deliver(&mut tcp, "FA", peer, ours);
        }
        State::LastAck => {
            deliver(&mut tcp, "FA", peer, ours);
            shut(&mut tcp);
        }
        State::TimeWait => {
            shut(&mut tcp);
            deliver(&mut tcp, "FA", peer, after_fin);
        }
        State::Closed => {
            tcp.abort();
            assert_eq!(sent(&mut tcp), "RA");
        }
        _ => {}
    }
    assert_eq!(tcp.state(), state);
    tcp
}

/// Returns the peer's next sequence number, and the number that acknowledges everything.
fn expected(state: State) -> (u32, u32) {
    let has_peer_fin = matches!(state, State::CloseWait | State::Closing | State::LastAck | State::TimeWait);
    let has_own_fin = matches!(
        state,
        State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck | State::TimeWait
    );
    (PEER.wrapping_add(1 + u32::from(has_peer_fin)), OURS.wrapping_add(1 + u32::from(has_own_fin)))
}

/// Kinds of segments: name, flags, sequence relative to the expected one, acknowledgement relative
/// to all sent, bytes.
const KINDS: [(&str, &str, i32, i32, usize); 16] = [
    ("ack", "A", 0, 0, 0),
    ("data", "A", 0, 0, 10),
    ("data without ack", "", 0, 0, 10),
    ("later data", "A", 5, 0, 10),
    ("old data", "A", -20, 0, 10),
    ("data beyond the window", "A", 2000, 0, 10),
    ("fin", "FA", 0, 0, 0),
    ("data and fin", "FA", 0, 0, 10),
    ("ack of what was not sent", "A", 0, 9, 0),
    ("very old ack", "A", 0, -100_000, 0),
    ("syn", "S", 0, 0, 0),
    ("syn-ack", "SA", 0, 0, 0),
    ("rst in sequence", "R", 0, 0, 0),
    ("rst in sequence with ack", "RA", 0, 0, 0),
    ("rst in the window", "R", 5, 0, 0),
    ("rst outside the window", "R", 2000, 0, 0),
];

/// For each state, in the order of [`KINDS`], the answer (`-` for none) and the next state.
#[rustfmt::skip]
const TABLE: [(State, [(&str, State); 16]); 9] = {
    use State::{Closed, CloseWait, Closing, Established, FinWait1, FinWait2, LastAck, SynReceived, SynSent, TimeWait};
    [
        (SynSent, [
            ("-", SynSent), ("-", SynSent), ("-", SynSent), ("-", SynSent), ("-", SynSent), ("-", SynSent), ("-", SynSent), ("-", SynSent),
            ("R", SynSent), ("R", SynSent), ("SA", SynReceived), ("A", Established),
            ("-", SynSent), ("-", Closed), ("-", SynSent), ("-", SynSent),
        ]),
        (SynReceived, [
            ("-", Established), ("A", Established), ("-", SynReceived), ("A", Established), ("-", SynReceived), ("-", SynReceived),
            ("A", CloseWait), ("A", CloseWait),
            ("R", SynReceived), ("R", SynReceived), ("-", SynReceived), ("-", SynReceived),
            ("-", Closed), ("-", Closed), ("-", SynReceived), ("-", SynReceived),
        ]),
        (Established, [
            ("-", Established), ("A", Established), ("-", Established), ("A", Established), ("A", Established), ("A", Established),
            ("A", CloseWait), ("A", CloseWait),
            ("A", Established), ("A", Established), ("A", Established), ("A", Established),
            ("-", Closed), ("-", Closed), ("A", Established), ("-", Established),
        ]),
        (FinWait1, [
            ("-", FinWait2), ("A", FinWait2), ("-", FinWait1), ("A", FinWait2), ("A", FinWait1), ("A", FinWait1),
            ("A", TimeWait), ("A", TimeWait),
            ("A", FinWait1), ("A", FinWait1), ("A", FinWait1), ("A", FinWait1),
            ("-", Closed), ("-", Closed), ("A", FinWait1), ("-", FinWait1),
        ]),
        (FinWait2, [
            ("-", FinWait2), ("A", FinWait2), ("-", FinWait2), ("A", FinWait2), ("A", FinWait2), ("A", FinWait2),
            ("A", TimeWait), ("A", TimeWait),
            ("A", FinWait2), ("A", FinWait2), ("A", FinWait2), ("A", FinWait2),
            ("-", Closed), ("-", Closed), ("A", FinWait2), ("-", FinWait2),
        ]),
        (CloseWait, [
            ("-", CloseWait), ("A", CloseWait), ("-", CloseWait), ("A", CloseWait), ("A", CloseWait), ("A", CloseWait),
            ("A", CloseWait), ("A", CloseWait),
            ("A", CloseWait), ("A", CloseWait), ("A", CloseWait), ("A", CloseWait),
            ("-", Closed), ("-", Closed), ("A", CloseWait), ("-", CloseWait),
        ]),
        (Closing, [
            ("-", TimeWait), ("A", TimeWait), ("-", Closing), ("A", TimeWait), ("A", Closing), ("A", Closing),
            ("A", TimeWait), ("A", TimeWait),
            ("A", Closing), ("A", Closing), ("A", Closing), ("A", Closing),
            ("-", Closed), ("-", Closed), ("A", Closing), ("-", Closing),
        ]),
        (LastAck, [
            ("-", Closed), ("-", Closed), ("-", LastAck), ("-", Closed), ("A", LastAck), ("A", LastAck),
            ("-", Closed), ("-", Closed),
            ("A", LastAck), ("A", LastAck), ("A", LastAck), ("A", LastAck),
            ("-", Closed), ("-", Closed), ("A", LastAck), ("-", LastAck),
        ]),
        (TimeWait, [
            ("-", TimeWait), ("A", TimeWait), ("-", TimeWait), ("A", TimeWait), ("A", TimeWait), ("A", TimeWait),
            ("A", TimeWait), ("A", TimeWait),
            ("A", TimeWait), ("A", TimeWait), ("A", TimeWait), ("A", TimeWait),
            ("-", TimeWait), ("-", TimeWait), ("-", TimeWait), ("-", TimeWait),
        ]),
    ]
};

#[test]
fn every_state_answers_every_kind_of_segment() {
    let mut wrong = Vec::new();
    for (state, answers) in TABLE {
        for ((name, flags, at, acknowledging, len), (answer, next)) in KINDS.into_iter().zip(answers) {
            let mut tcp = connection(state);
            let (sequence, acknowledgement) = expected(state);
            let sequence = sequence.wrapping_add_signed(at);
            let acknowledgement = acknowledgement.wrapping_add_signed(acknowledging);
            tcp.on_segment(segment(flags, sequence, acknowledgement, len), SECOND_NS);
            let (is, text) = (tcp.state(), sent(&mut tcp));
            let text = if text.is_empty() { "-" } else { &text };
            if (is, text) != (next, answer) {
                wrong.push(format!("{state:?}, {name}: {text} {is:?}, expected {answer} {next:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_closed_connection_answers_all_but_a_reset_by_a_reset() {
    for (name, flags, ..) in KINDS {
        let mut tcp = connection(State::Closed);
        tcp.on_segment(segment(flags, 5, 7, 3), SECOND_NS);
        let is_reset = flags.contains('R');
        assert_eq!(sent(&mut tcp).contains('R'), !is_reset, "{name}");
    }
}

#[test]
fn resets_have_the_numbers_that_the_sender_accepts() {
    let with_ack = segment("A", 100, 7, 3).reset().unwrap();
    assert_eq!((with_ack.sequence, with_ack.flags.ack), (7, false));
    let without = segment("SF", 100, 0, 3).reset().unwrap();
    assert_eq!((without.sequence, without.acknowledgement, without.flags.ack), (0, 105, true));
}

#[test]
fn time_wait_ends_and_a_repeated_fin_begins_it_again() {
    let mut tcp = connection(State::TimeWait);
    let half = SECOND_NS + TIME_WAIT_NS / 2;
    let (sequence, acknowledgement) = expected(State::TimeWait);
    tcp.on_segment(segment("FA", sequence.wrapping_sub(1), acknowledgement, 0), half);
    assert_eq!(sent(&mut tcp), "A");
    tcp.on_timer(SECOND_NS + TIME_WAIT_NS);
    assert_eq!(tcp.state(), State::TimeWait);
    tcp.on_timer(half + TIME_WAIT_NS);
    assert_eq!(tcp.state(), State::Closed);
}

#[test]
fn challenges_are_bounded_in_a_second() {
    let mut tcp = connection(State::Established);
    let answers = (0..100)
        .filter(|_| {
            tcp.on_segment(segment("S", PEER, 0, 0), SECOND_NS);
            !sent(&mut tcp).is_empty()
        })
        .count();
    assert_eq!(answers, 10);
    tcp.on_segment(segment("S", PEER, 0, 0), 3 * SECOND_NS);
    assert_eq!(sent(&mut tcp), "A");
}
