//! What a connection knows, and what its program does with it.

use std::ops::Range;
use std::sync::Arc;

use crate::config::{
    Config, DEFAULT_PEER_MSS, Ecn, MAX_CHALLENGES_PER_SECOND, MILLISECOND_NS, MIN_MSS, SECOND_NS,
    TIME_WAIT_NS,
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
use crate::sequence::{Position, first_position, number};

/// The states of RFC 9293, section 3.3.2. LISTEN is the stack's.
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

/// What has changed since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// The handshake is done.
    pub established: bool,
    /// Bytes, the end of the stream or an error can be received.
    pub readable: bool,
    /// There is room for bytes again.
    pub writable: bool,
    /// The connection is over.
    pub closed: bool,
}

/// What [`Connection::receive`] found.
#[derive(Clone, Debug)]
pub enum Received<P> {
    /// The next bytes.
    Piece(P),
    /// Nothing yet.
    Pending,
    /// The peer has ended its stream.
    End,
}

/// When an acknowledgement is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acknowledgement {
    None,
    Delayed,
    Now,
}

/// Acknowledgements that only answer what is wrong: how many in which second (RFC 5961, section 7).
#[derive(Debug, Default)]
pub(super) struct Challenges {
    second: u64,
    count: u32,
}

impl Challenges {
    /// Whether one more may be sent.
    pub fn admit(&mut self, now_ns: u64) -> bool {
        let second = now_ns / SECOND_NS;
        if self.second != second {
            *self = Self { second, count: 0 };
        }
        self.count += 1;
        self.count <= MAX_CHALLENGES_PER_SECOND
    }
}

/// When what is due, by kind.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// RTO.
    pub retransmit: Option<u64>,
    /// A tail or what was overtaken seems lost (RFC 8985).
    pub loss: Option<u64>,
    /// Window probes, and the override of RFC 9293, section 3.8.6.2.1.
    pub persist: Option<u64>,
    pub acknowledge: Option<u64>,
    pub keepalive: Option<u64>,
    /// TIME-WAIT, and FIN-WAIT-2 without a program.
    pub wait: Option<u64>,
}

/// The peer's timestamps (RFC 7323).
#[derive(Debug, Default)]
pub(super) struct PeerClock {
    /// TS.Recent.
    pub recent: u32,
    pub recent_at_ns: u64,
}

/// Explicit congestion notification (RFC 3168, section 6.1).
#[derive(Debug, Default)]
pub(super) struct Notification {
    /// Both ends use it.
    pub is_used: bool,
    /// The peer is told of congestion until it answers by CWR.
    pub is_echo_due: bool,
    /// What had been sent when the window was reduced last: it is reduced once for all that.
    pub reduced: Position,
}

/// What this side is about to send beside data.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub handshake: bool,
    pub probe: bool,
    /// Less than a good part of the window may be sent.
    pub partial: bool,
    /// The first retransmission of a recovery, whatever is on its way.
    pub retransmission: bool,
    /// A tail loss probe.
    pub tail: bool,
    /// CWR, with the next data that is not a retransmission.
    pub window_reduced: bool,
    pub reset: Option<Box<Header>>,
}

/// What a timeout took, until it is known whether it was spurious (RFC 3522, 4015).
#[derive(Debug)]
pub(super) struct Undo {
    /// TSval of the first retransmission.
    pub timestamp: u32,
    pub congestion: Congestion,
}

/// A connection.
#[derive(Debug)]
pub struct Connection<P> {
    pub(super) config: Arc<Config>,
    pub(super) state: State,
    pub(super) is_passive: bool,
    /// The program has closed it: nobody reads.
    pub(super) is_released: bool,
    pub(super) error: Option<Error>,
    pub(super) soft_error: Option<Error>,
    pub(super) events: Events,

    /// ISS.
    pub(super) initial: Position,
    pub(super) una: Position,
    /// SND.NXT, the highest position that was sent.
    pub(super) nxt: Position,
    pub(super) queue: SendQueue<P>,
    pub(super) is_send_ended: bool,
    /// SND.WND, in bytes.
    pub(super) window: u64,
    pub(super) max_window: u64,
    /// SND.WL1 and SND.WL2.
    pub(super) window_update: (Position, Position),
    pub(super) send_shift: u8,
    pub(super) mss: u16,
    pub(super) has_timestamps: bool,
    pub(super) has_sack: bool,
    pub(super) timestamp_offset: u32,
    pub(super) round_trip: RoundTrip,
    /// A byte that is being timed, and since when (Karn: never a retransmitted one).
    pub(super) timed: Option<(Position, u64)>,
    pub(super) recovery: Recovery,
    pub(super) congestion: Congestion,
    /// Whether the congestion window was what stopped the sender.
    pub(super) is_congestion_limited: bool,
    pub(super) sent_at_ns: u64,
    /// When something new was acknowledged, selectively or not.
    pub(super) acknowledged_at_ns: u64,
    pub(super) undo: Option<Box<Undo>>,
    pub(super) notification: Notification,
    /// Segments that were sent again.
    pub(super) retransmissions: u64,

    pub(super) receiver: Receiver<P>,
    pub(super) receive_shift: u8,
    pub(super) peer_clock: PeerClock,
    pub(super) acknowledgement: Acknowledgement,
    /// Last.ACK.sent.
    pub(super) acknowledged: Position,
    /// The size of the peer's segments, as far as they show it.
    pub(super) peer_segment: u64,
    /// How many segments are acknowledged at once, while the peer's slow start lasts.
    pub(super) quick: u8,
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
            is_released: false,
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
            notification: Notification::default(),
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
            quick: QUICK_ACKNOWLEDGEMENTS,
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

    /// Begins a connection: active OPEN. `initial` is ISS (RFC 6528); `timestamp_offset` hides this host's clock.
    pub fn connect(config: Arc<Config>, initial: u32, timestamp_offset: u32, now_ns: u64) -> Self {
        Self::new(config, State::SynSent, initial, timestamp_offset, now_ns)
    }

    /// Answers a SYN: passive OPEN.
    pub fn accept(
        config: Arc<Config>,
        initial: u32,
        timestamp_offset: u32,
        syn: &Header,
        now_ns: u64,
    ) -> Self {
        let mut connection = Self::new(config, State::SynReceived, initial, timestamp_offset, now_ns);
        connection.is_passive = true;
        connection.take_syn(syn, now_ns);
        connection
    }

    /// As [`Connection::accept`], where the answer was a cookie: the number of a SYN-ACK that has been sent. It is announced
    /// again what window that had.
    pub fn accept_by_cookie(config: Arc<Config>, cookie: u32, syn: &Header, now_ns: u64) -> Self {
        let mut connection = Self::accept(config, cookie, 0, syn, now_ns);
        connection.pending.handshake = false;
        let segment = connection.segment_bytes();
        connection.receiver.announce(0, segment);
        connection
    }

    /// What the peer's SYN says.
    pub(super) fn take_syn(&mut self, syn: &Header, now_ns: u64) {
        let next = first_position(syn.sequence) + 1;
        self.receiver = Receiver::new(next, self.config.receive_buffer_bytes, self.config.max_receive_pieces);
        self.acknowledged = next;
        let Options { max_segment_size, window_shift, sack_permitted, timestamps, .. } = syn.options;
        match window_shift {
            Some(shift) if self.config.window_scaling => self.send_shift = shift,
            _ => self.receive_shift = 0,
        }
        // A SYN asks by both bits, a SYN-ACK answers by one (RFC 3168, section 6.1.1). Where both ends ask at once nobody answers.
        let Flags { ack: is_answer, ece, cwr, .. } = syn.flags;
        let least = if is_answer { Ecn::Requested } else { Ecn::Accepted };
        self.notification = Notification {
            is_used: self.config.ecn >= least && ece && cwr != is_answer && is_answer != self.is_passive,
            reduced: self.initial,
            ..Notification::default()
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
            self.congestion.lose_handshake();
        }
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether a SYN began it.
    pub fn is_passive(&self) -> bool {
        self.is_passive
    }

    /// Whether it is over, and nothing is left to send.
    pub fn is_finished(&self) -> bool {
        self.state == State::Closed && self.pending.reset.is_none()
    }

    /// What has changed since this was called last.
    pub fn take_events(&mut self) -> Events {
        std::mem::take(&mut self.events)
    }

    /// Why the connection ended, once (SO_ERROR).
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// How many bytes [`Connection::send`] takes.
    pub fn room_bytes(&self) -> usize {
        if self.queue.pieces() >= self.config.max_send_pieces {
            return 0;
        }
        self.config.send_buffer_bytes.saturating_sub(self.queue.len_bytes() as usize)
    }

    /// Takes bytes to send, as many as there is room for, and returns how many.
    ///
    /// # Errors
    ///
    /// Why the connection ended, once; EPIPE after that, and after [`Connection::shutdown`].
    pub fn send(&mut self, piece: &P) -> Result<usize, Error> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.is_send_ended || self.state == State::Closed {
            return Err(Error::BrokenPipe);
        }
        let len = piece.len_bytes().min(self.room_bytes());
        match len {
            0 => {}
            _ if len < piece.len_bytes() => self.queue.push(piece.slice(0..len)),
            _ => self.queue.push(piece.clone()),
        }
        Ok(len)
    }

    /// Takes received bytes out, `max_bytes` at most.
    ///
    /// # Errors
    ///
    /// Why the connection ended, once.
    pub fn receive(&mut self, max_bytes: usize) -> Result<Received<P>, Error> {
        let Some(mut piece) = self.receiver.read() else {
            return match self.error.take() {
                Some(error) => Err(error),
                None if self.is_receive_ended() => Ok(Received::End),
                None => Ok(Received::Pending),
            };
        };
        if piece.len_bytes() > max_bytes {
            self.receiver.unread(piece.slice(max_bytes..piece.len_bytes()));
            piece = piece.slice(0..max_bytes);
        }
        let can_receive = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        if can_receive && self.receiver.is_update_due(self.receive_shift, self.segment_bytes()) {
            self.acknowledgement = Acknowledgement::Now;
        }
        Ok(Received::Piece(piece))
    }

    /// How many bytes can be received.
    pub fn ready_bytes(&self) -> usize {
        self.receiver.ready_bytes() as usize
    }

    /// How many pieces received bytes lie in, in order or not.
    pub fn kept_pieces(&self) -> usize {
        self.receiver.pieces()
    }

    /// How many ranges the scoreboard has.
    pub fn sacked_ranges(&self) -> usize {
        self.recovery.sacked_ranges()
    }

    fn is_receive_ended(&self) -> bool {
        !matches!(
            self.state,
            State::SynSent | State::SynReceived | State::Established | State::FinWait1 | State::FinWait2
        )
    }

    /// Ends this side's stream when all of it has been sent: CLOSE of RFC 9293, section 3.10.4, and `shutdown(SHUT_WR)`.
    ///
    /// # Errors
    ///
    /// If there is no connection.
    pub fn shutdown(&mut self) -> Result<(), Error> {
        match self.state {
            State::Closed => return Err(Error::NotConnected),
            State::SynSent => self.end(None),
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            // In SYN-RECEIVED it ends when it is established.
            _ => {}
        }
        self.is_send_ended = true;
        Ok(())
    }

    /// The program has no more use for it (`close`). What was not received is lost, and the peer is told so by RST
    /// (RFC 2525, section 2.17); what was sent is still delivered.
    pub fn close(&mut self, now_ns: u64) {
        self.is_released = true;
        if self.receiver.ready_bytes() > 0 && self.state != State::Closed {
            self.abort();
            return;
        }
        self.receiver.discard();
        let _ = self.shutdown();
        if self.state == State::FinWait2 {
            self.deadlines.wait = Some(now_ns + TIME_WAIT_NS);
        }
    }

    /// ABORT of RFC 9293, section 3.10.5: RST, and nothing more is delivered (`SO_LINGER` of 0).
    pub fn abort(&mut self) {
        self.is_released = true;
        if !matches!(self.state, State::Closed | State::SynSent | State::TimeWait) {
            self.reset_peer();
        }
        self.end(Some(Error::ConnectionAborted));
    }

    /// ICMP says that the peer cannot be reached: it ends a handshake, else it is what a later timeout is called
    /// (RFC 5461, section 4; RFC 9293, section 3.9.2.2).
    pub fn on_unreachable(&mut self, error: Error) {
        match self.state {
            State::Closed => {}
            State::SynSent | State::SynReceived => self.end(Some(error)),
            _ => self.soft_error = Some(error),
        }
    }

    /// ICMP says that packets may have `mss` bytes after the fixed headers at most (RFC 1191, 8201). What was sent is sent again.
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

    /// Ends TIME-WAIT: a new connection takes its place.
    pub fn expire(&mut self) {
        if self.state == State::TimeWait {
            self.end(None);
        }
    }

    /// Whether a number is one of what is on its way: an ICMP message that quotes another is forged or late (RFC 5927, section 4).
    pub fn is_in_flight(&self, sequence: u32) -> bool {
        (self.una..self.nxt).contains(&crate::sequence::near(self.una, sequence))
    }

    /// The connection is over.
    pub(super) fn end(&mut self, error: Option<Error>) {
        self.state = State::Closed;
        self.error = error;
        self.deadlines = Deadlines::default();
        self.acknowledgement = Acknowledgement::None;
        self.pending = Pending { reset: self.pending.reset.take(), ..Pending::default() };
        self.queue = SendQueue::new(self.nxt);
        self.una = self.nxt;
        self.recovery = Recovery::new(self.nxt, self.has_sack, self.mss);
        if self.is_released {
            self.receiver.discard();
        }
        self.events = Events { readable: true, writable: true, closed: true, ..self.events };
    }

    /// A RST in sequence will be sent.
    pub(super) fn reset_peer(&mut self) {
        self.pending.reset = Some(Box::new(Header {
            sequence: number(self.nxt),
            acknowledgement: number(self.receiver.next()),
            flags: Flags { rst: true, ack: true, ..Flags::default() },
            ..Header::default()
        }));
    }

    /// Answers with an acknowledgement, unless there were too many.
    pub(super) fn challenge(&mut self, now_ns: u64) {
        if self.challenges.admit(now_ns) {
            self.acknowledgement = Acknowledgement::Now;
        }
    }

    /// What is on its way or lost.
    pub(super) fn sent(&self) -> Range<Position> {
        self.una..self.nxt
    }

    /// Whether the FIN was sent.
    pub(super) fn is_fin_sent(&self) -> bool {
        self.is_send_ended && self.nxt > self.queue.end()
    }

    /// How much payload a packet has at most.
    pub(super) fn segment_bytes(&self) -> u16 {
        self.mss - if self.has_timestamps { 12 } else { 0 }
    }

    /// TSval (RFC 7323, section 4.1): milliseconds.
    pub(super) fn timestamp(&self, now_ns: u64) -> u32 {
        ((now_ns / MILLISECOND_NS) as u32).wrapping_add(self.timestamp_offset)
    }

    /// Whether a SYN may take a connection in TIME-WAIT over (RFC 6191, section 2; RFC 9293, section 3.6.1).
    pub fn is_replaceable_by(&self, syn: &Header) -> bool {
        let is_newer = match syn.options.timestamps {
            Some(stamps) if self.has_timestamps && stamps.value != self.peer_clock.recent => {
                crate::sequence::is_older(self.peer_clock.recent, stamps.value)
            }
            _ => crate::sequence::near(self.receiver.next(), syn.sequence) > self.receiver.next(),
        };
        self.state == State::TimeWait && is_newer
    }

    /// The highest sequence number that was sent: a connection that takes this one's place begins above it.
    pub fn last_sequence(&self) -> u32 {
        number(self.nxt)
    }

    /// Which invariant does not hold.
    pub fn violation(&self) -> Option<&'static str> {
        let ends = [
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
            (self.state != State::TimeWait || self.deadlines.wait.is_some(), "TIME-WAIT ends"),
        ];
        ends.into_iter().find(|(holds, _)| !holds).map(|(_, what)| what)
    }

    /// Whether, when nothing can be sent at this moment, something will happen without the peer: no connection is forgotten.
    pub fn is_forgotten(&self) -> bool {
        let is_unfinished = match self.state {
            State::Closed => false,
            State::SynSent | State::SynReceived => true,
            _ => self.una < self.nxt || self.nxt < self.queue.end() + u64::from(self.is_send_ended),
        };
        is_unfinished && self.deadlines.retransmit.is_none() && self.deadlines.persist.is_none()
    }
}

/// The least shift with which a window of so many bytes fits its field.
fn window_shift(bytes: usize) -> u8 {
    (0..MAX_WINDOW_SHIFT).find(|shift| bytes >> shift <= 0xffff).unwrap_or(MAX_WINDOW_SHIFT)
}

/// A segment without payload.
pub(super) fn bare<P: Payload>(header: Header) -> Option<Segment<P>> {
    Some(Segment::bare(header))
}
