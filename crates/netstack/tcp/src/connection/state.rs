//! The state of a connection, its beginning and end, and its invariants.

use std::ops::Range;
use std::sync::Arc;

use crate::config::{
    Config, DEFAULT_PEER_MSS, Ecn, MAX_CHALLENGES_PER_SECOND, MILLISECOND_NS, MIN_MSS, SECOND_NS,
};
use crate::congestion::Congestion;
use crate::error::Error;
use crate::options::{MAX_WINDOW_SHIFT, Options};
use crate::payload::Payload;
use crate::receive::Receiver;
use crate::recovery::Recovery;
use crate::rtt::RoundTrip;
use crate::segment::{Flags, Header, Segment};
use crate::send::SendQueue;
use crate::sequence::{Position, first_position, sequence_number};

/// The states of RFC 9293, section 3.3.2. LISTEN is implemented by the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the RFC's names")]
pub enum State {
    Closed,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

/// Changes since the last [`Connection::take_events`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// The handshake has completed.
    pub established: bool,
    /// Bytes, the end of the stream, or an error can be received.
    pub readable: bool,
    /// The send buffer has room again.
    pub writable: bool,
    /// The connection has ended.
    pub closed: bool,
}

/// Outcome of one [`Connection::receive`].
#[derive(Clone, Debug)]
pub enum Received<P> {
    /// The next bytes in order.
    Piece(P),
    /// Nothing to receive yet.
    Pending,
    /// The peer has ended its stream.
    End,
}

/// When the next acknowledgement is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acknowledgement {
    None,
    Delayed,
    Now,
}

/// Rate limit of challenge ACKs (RFC 5961, section 7).
#[derive(Debug, Default)]
pub(super) struct Challenges {
    second: u64,
    count: u32,
}

impl Challenges {
    /// Counts a challenge ACK; returns whether it may be sent.
    pub fn admit(&mut self, now_ns: u64) -> bool {
        let second = now_ns / SECOND_NS;
        if self.second != second {
            *self = Self { second, count: 0 };
        }
        self.count += 1;
        self.count <= MAX_CHALLENGES_PER_SECOND
    }
}

/// Deadlines of the timers, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// Retransmission timeout (RFC 6298).
    pub retransmit: Option<u64>,
    /// Tail loss probe or reordering timer (RFC 8985).
    pub loss: Option<u64>,
    /// Window probes, and the override timeout of RFC 9293, section 3.8.6.2.1.
    pub persist: Option<u64>,
    pub acknowledge: Option<u64>,
    pub keepalive: Option<u64>,
    /// TIME-WAIT, and FIN-WAIT-2 after the program has closed.
    pub time_wait: Option<u64>,
}

/// The peer's timestamp clock (RFC 7323).
#[derive(Debug, Default)]
pub(super) struct PeerClock {
    /// TS.Recent of RFC 7323.
    pub recent: u32,
    pub recent_at_ns: u64,
}

/// State of explicit congestion notification (RFC 3168, section 6.1).
#[derive(Debug, Default)]
pub(super) struct EcnState {
    /// Whether both ends use ECN.
    pub is_used: bool,
    /// Whether ECE is set on acknowledgements, until the peer answers with CWR.
    pub is_echo_due: bool,
    /// SND.NXT at the last window reduction; ECE below it causes no further one.
    pub reduced: Position,
}

/// Pending transmissions other than data.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub handshake: bool,
    pub probe: bool,
    /// Whether a segment shorter than sender silly window avoidance allows may be sent.
    pub partial: bool,
    /// Whether the first retransmission of a recovery may exceed the congestion window.
    pub retransmission: bool,
    /// A tail loss probe (RFC 8985).
    pub tail: bool,
    /// CWR, to be set on the next new data.
    pub window_reduced: bool,
    pub reset: Option<Box<Header>>,
}

/// State to restore if a timeout proves spurious (RFC 3522, 4015).
#[derive(Debug)]
pub(super) struct Undo {
    /// TSval of the first retransmission.
    pub timestamp: u32,
    pub congestion: Congestion,
}

/// One TCP connection, on one side.
#[derive(Debug)]
pub struct Connection<P> {
    pub(super) config: Arc<Config>,
    pub(super) state: State,
    pub(super) is_passive: bool,
    /// Whether the program has closed the connection, so that nobody reads.
    pub(super) is_orphaned: bool,
    pub(super) error: Option<Error>,
    pub(super) soft_error: Option<Error>,
    pub(super) events: Events,

    /// ISS, the initial send sequence number.
    pub(super) initial: Position,
    pub(super) una: Position,
    /// SND.NXT, the position after the highest one sent.
    pub(super) nxt: Position,
    pub(super) queue: SendQueue<P>,
    pub(super) is_send_ended: bool,
    /// SND.WND, in bytes.
    pub(super) window: u64,
    pub(super) max_window: u64,
    /// SND.WL1 and SND.WL2 of RFC 9293.
    pub(super) window_update: (Position, Position),
    pub(super) send_shift: u8,
    pub(super) mss: u16,
    pub(super) has_timestamps: bool,
    pub(super) has_sack: bool,
    pub(super) timestamp_offset: u32,
    pub(super) round_trip: RoundTrip,
    /// The position that is timed, and its send time; never of a retransmission (Karn's algorithm).
    pub(super) timed: Option<(Position, u64)>,
    pub(super) recovery: Recovery,
    pub(super) congestion: Congestion,
    /// Whether the congestion window last stopped the sender.
    pub(super) is_congestion_limited: bool,
    pub(super) sent_at_ns: u64,
    /// Time when new data was last acknowledged, by SACK or cumulatively.
    pub(super) acknowledged_at_ns: u64,
    pub(super) undo: Option<Box<Undo>>,
    pub(super) ecn: EcnState,
    pub(super) retransmissions: u64,

    pub(super) receiver: Receiver<P>,
    pub(super) receive_shift: u8,
    pub(super) peer_clock: PeerClock,
    pub(super) acknowledgement: Acknowledgement,
    /// Last.ACK.sent of RFC 7323.
    pub(super) acknowledged: Position,
    /// Estimated size of the peer's segments.
    pub(super) peer_segment: u64,
    /// Number of segments still acknowledged immediately, to speed up the peer's slow start.
    pub(super) quick_acks: u8,
    pub(super) received_at_ns: u64,

    pub(super) deadlines: Deadlines,
    pub(super) retries: u32,
    pub(super) unanswered_probes: u32,
    pub(super) persist_backoffs: u32,
    pub(super) challenges: Challenges,
    pub(super) pending: Pending,
}

const QUICK_ACKNOWLEDGEMENTS: u8 = 16;

impl<P: Payload> Connection<P> {
    fn new(config: Arc<Config>, state: State, initial: u32, timestamp_offset: u32, now_ns: u64) -> Self {
        let initial = first_position(initial);
        let receive_shift = if config.window_scaling { window_shift(config.receive_buffer_bytes) } else { 0 };
        let mss = config.mss.min(DEFAULT_PEER_MSS);
        Self {
            state,
            is_passive: false,
            is_orphaned: false,
            error: None,
            soft_error: None,
            events: Events::default(),
            initial,
            una: initial,
            nxt: initial + 1,
            queue: SendQueue::new(initial + 1),
            is_send_ended: false,
            window: 0,
            max_window: 0,
            window_update: (0, 0),
            send_shift: 0,
            mss,
            has_timestamps: config.timestamps,
            has_sack: config.sack,
            timestamp_offset,
            round_trip: RoundTrip::default(),
            timed: None,
            recovery: Recovery::new(initial, config.sack, mss),
            congestion: Congestion::new(config.congestion_control, mss),
            is_congestion_limited: false,
            sent_at_ns: now_ns,
            acknowledged_at_ns: now_ns,
            undo: None,
            ecn: EcnState::default(),
            retransmissions: 0,
            receiver: Receiver::new(
                first_position(0),
                config.receive_buffer_bytes,
                config.max_receive_pieces,
            ),
            receive_shift,
            peer_clock: PeerClock::default(),
            acknowledgement: Acknowledgement::None,
            acknowledged: first_position(0),
            peer_segment: 1,
            quick_acks: QUICK_ACKNOWLEDGEMENTS,
            received_at_ns: now_ns,
            deadlines: Deadlines::default(),
            retries: 0,
            unanswered_probes: 0,
            persist_backoffs: 0,
            challenges: Challenges::default(),
            pending: Pending { handshake: true, ..Pending::default() },
            config,
        }
    }

    /// Opens a connection actively with ISS `initial` (RFC 6528); `timestamp_offset` hides the host's clock.
    pub fn connect(config: Arc<Config>, initial: u32, timestamp_offset: u32, now_ns: u64) -> Self {
        Self::new(config, State::SynSent, initial, timestamp_offset, now_ns)
    }

    /// Opens a connection passively, in answer to a SYN.
    pub fn accept(
        config: Arc<Config>,
        initial: u32,
        timestamp_offset: u32,
        syn: &Header,
        now_ns: u64,
    ) -> Self {
        let mut connection = Self::new(config, State::SynReceived, initial, timestamp_offset, now_ns);
        connection.is_passive = true;
        connection.apply_syn(syn, now_ns);
        connection
    }

    /// Opens a connection passively after a SYN cookie: like [`Connection::accept`], but the
    /// SYN-ACK has been sent, and the window that it announced is recorded.
    pub fn accept_by_cookie(config: Arc<Config>, cookie: u32, syn: &Header, now_ns: u64) -> Self {
        let mut connection = Self::accept(config, cookie, 0, syn, now_ns);
        connection.pending.handshake = false;
        let segment = connection.segment_bytes();
        connection.receiver.announce(0, segment);
        connection
    }

    pub(super) fn apply_syn(&mut self, syn: &Header, now_ns: u64) {
        let next = first_position(syn.sequence) + 1;
        self.receiver = Receiver::new(next, self.config.receive_buffer_bytes, self.config.max_receive_pieces);
        self.acknowledged = next;
        let Options { max_segment_size, window_shift, sack_permitted, timestamps, .. } = syn.options;
        match window_shift {
            Some(shift) if self.config.window_scaling => self.send_shift = shift,
            _ => self.receive_shift = 0,
        }
        // A SYN requests ECN by both bits, a SYN-ACK accepts by ECE alone (RFC 3168, section
        // 6.1.1). In a simultaneous open, ECN stays off.
        let Flags { ack: is_answer, ece, cwr, .. } = syn.flags;
        let required = if is_answer { Ecn::Requested } else { Ecn::Accepted };
        self.ecn = EcnState {
            is_used: self.config.ecn >= required && ece && cwr != is_answer && is_answer != self.is_passive,
            reduced: self.initial,
            ..EcnState::default()
        };
        self.has_sack = self.config.sack && sack_permitted;
        self.has_timestamps = self.config.timestamps && timestamps.is_some();
        if let Some(stamps) = timestamps {
            self.peer_clock = PeerClock { recent: stamps.value, recent_at_ns: now_ns };
        }
        self.mss = max_segment_size.unwrap_or(DEFAULT_PEER_MSS).max(MIN_MSS).min(self.config.mss);
        self.window = u64::from(syn.window);
        self.max_window = self.window;
        self.window_update = (next - 1, self.una);
        let segment = self.segment_bytes();
        self.recovery = Recovery::new(self.initial, self.has_sack, segment);
        self.congestion.set_mss(segment, true);
        if self.retries > 0 {
            self.congestion.on_handshake_loss();
        }
    }

    /// Handles ICMP unreachable: ends a handshake, else sets the error that a later timeout reports
    /// (RFC 5461, section 4; RFC 9293, section 3.9.2.2).
    pub fn on_unreachable(&mut self, error: Error) {
        match self.state {
            State::Closed => {}
            State::SynSent | State::SynReceived => self.end(Some(error)),
            _ => self.soft_error = Some(error),
        }
    }

    /// Reduces the MSS after ICMP "packet too big" (RFC 1191, 8201) and retransmits data in flight.
    pub fn on_path_mtu(&mut self, mss: u16) {
        let mss = mss.max(MIN_MSS);
        if mss >= self.mss {
            return;
        }
        self.mss = mss;
        let segment = self.segment_bytes();
        self.congestion.set_mss(segment, false);
        self.recovery.set_mss(segment);
        if self.state >= State::Established && self.una < self.nxt {
            self.recovery.on_timeout(self.sent());
            self.timed = None;
            self.undo = None;
        }
    }

    /// Ends TIME-WAIT early, so that a new connection can reuse the addresses.
    pub fn expire(&mut self) {
        if self.state == State::TimeWait {
            self.end(None);
        }
    }

    /// True if `sequence` is in flight; ICMP messages with another one are forged or late (RFC
    /// 5927, section 4).
    pub fn is_in_flight(&self, sequence: u32) -> bool {
        (self.una..self.nxt).contains(&crate::sequence::nearest_position(self.una, sequence))
    }

    pub(super) fn end(&mut self, error: Option<Error>) {
        self.state = State::Closed;
        self.error = error;
        self.deadlines = Deadlines::default();
        self.acknowledgement = Acknowledgement::None;
        self.pending = Pending { reset: self.pending.reset.take(), ..Pending::default() };
        self.queue = SendQueue::new(self.nxt);
        self.una = self.nxt;
        self.recovery = Recovery::new(self.nxt, self.has_sack, self.mss);
        if self.is_orphaned {
            self.receiver.discard();
        }
        self.events = Events { readable: true, writable: true, closed: true, ..self.events };
    }

    pub(super) fn reset_peer(&mut self) {
        self.pending.reset = Some(Box::new(Header {
            sequence: sequence_number(self.nxt),
            acknowledgement: sequence_number(self.receiver.next()),
            flags: Flags { rst: true, ack: true, ..Flags::default() },
            ..Header::default()
        }));
    }

    /// Sends a challenge ACK, subject to the rate limit.
    pub(super) fn challenge(&mut self, now_ns: u64) {
        if self.challenges.admit(now_ns) {
            self.acknowledgement = Acknowledgement::Now;
        }
    }

    /// Returns the positions in flight or lost: SND.UNA..SND.NXT.
    pub(super) fn sent(&self) -> Range<Position> {
        self.una..self.nxt
    }

    pub(super) fn is_fin_sent(&self) -> bool {
        self.is_send_ended && self.nxt > self.queue.end()
    }

    /// Returns the maximum payload of a packet, in bytes.
    pub(super) fn segment_bytes(&self) -> u16 {
        self.mss - if self.has_timestamps { 12 } else { 0 }
    }

    /// Returns TSval: milliseconds plus an offset (RFC 7323, section 4.1).
    pub(super) fn timestamp(&self, now_ns: u64) -> u32 {
        ((now_ns / MILLISECOND_NS) as u32).wrapping_add(self.timestamp_offset)
    }

    /// True if `syn` may replace this connection in TIME-WAIT (RFC 6191, section 2; RFC 9293, section 3.6.1).
    pub fn is_replaceable_by(&self, syn: &Header) -> bool {
        let is_newer = match syn.options.timestamps {
            Some(stamps) if self.has_timestamps && stamps.value != self.peer_clock.recent => {
                crate::sequence::is_older(self.peer_clock.recent, stamps.value)
            }
            _ => crate::sequence::nearest_position(self.receiver.next(), syn.sequence) > self.receiver.next(),
        };
        self.state == State::TimeWait && is_newer
    }

    /// Returns the sequence number of SND.NXT: a connection that replaces this one must begin above it.
    pub fn last_sequence(&self) -> u32 {
        sequence_number(self.nxt)
    }

    /// Returns the first invariant that does not hold.
    pub fn violation(&self) -> Option<&'static str> {
        let rules = [
            (self.una <= self.nxt, "SND.UNA ≤ SND.NXT"),
            (self.queue.is_valid(), "the send queue is contiguous"),
            (self.nxt <= self.queue.end() + 1, "no more was sent than there was"),
            (
                self.una <= self.initial + 1 || self.queue.start() == self.una.min(self.queue.end()),
                "the queue begins at SND.UNA",
            ),
            (self.queue.len_bytes() <= self.config.send_buffer_bytes as u64, "the send buffer is bounded"),
            (self.queue.pieces() <= self.config.max_send_pieces, "pieces to send are bounded"),
            (self.receiver.is_valid(), "the receiver is valid"),
            (self.recovery.is_valid(&self.sent()), "the scoreboard is valid"),
            (self.acknowledged <= self.receiver.next(), "no more is acknowledged than was received"),
            (
                self.congestion.window_bytes() >= u64::from(self.segment_bytes()),
                "the congestion window is a segment",
            ),
            (self.state != State::Closed || self.deadline_ns().is_none(), "nothing is due when it is over"),
            (self.state != State::TimeWait || self.deadlines.time_wait.is_some(), "TIME-WAIT ends"),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map(|(_, rule)| rule)
    }

    /// True if work is left but no timer is armed: the connection hangs if nothing can be sent now.
    pub fn is_stalled(&self) -> bool {
        let is_unfinished = match self.state {
            State::Closed => false,
            State::SynSent | State::SynReceived => true,
            _ => self.una < self.nxt || self.nxt < self.queue.end() + u64::from(self.is_send_ended),
        };
        is_unfinished && self.deadlines.retransmit.is_none() && self.deadlines.persist.is_none()
    }
}

/// Returns the minimum shift with which a window of `bytes` fits the window field.
fn window_shift(bytes: usize) -> u8 {
    (0..MAX_WINDOW_SHIFT).find(|shift| bytes >> shift <= 0xffff).unwrap_or(MAX_WINDOW_SHIFT)
}

pub(super) fn bare<P: Payload>(header: Header) -> Option<Segment<P>> {
    Some(Segment::bare(header))
}
