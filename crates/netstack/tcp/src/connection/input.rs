//! SEGMENT ARRIVES (RFC 9293, section 3.10.7), with challenge ACKs (RFC 5961) and timestamps (RFC 7323).

use super::state::{Acknowledgement, Connection, State};
use crate::config::{DELAYED_ACK_NS, MAX_TIMESTAMP_AGE_NS, MILLISECOND_NS, TIME_WAIT_NS};
use crate::error::Error;
use crate::payload::{self, Payload};
use crate::receive::Insertion;
use crate::recovery::Phase;
use crate::segment::{Codepoint, Header, Segment};
use crate::sequence::{Position, is_older, nearest_position};

impl<P: Payload> Connection<P> {
    /// Processes a received segment.
    pub fn on_segment(&mut self, mut segment: Segment<P>, now_ns: u64) {
        match self.state {
            State::Closed => self.pending.reset = segment.reset().map(Box::new),
            State::SynSent => self.on_segment_in_syn_sent(&segment, now_ns),
            _ => {
                if self.passes_checks(&mut segment, now_ns) {
                    self.process(segment, now_ns);
                }
            }
        }
    }

    /// Processes a segment in SYN-SENT (section 3.10.7.3).
    fn on_segment_in_syn_sent(&mut self, segment: &Segment<P>, now_ns: u64) {
        let header = &segment.header;
        let ack = nearest_position(self.nxt, header.acknowledgement);
        let is_ours = header.flags.ack && ack > self.initial && ack <= self.nxt;
        if header.flags.ack && !is_ours {
            self.pending.reset = segment.reset().map(Box::new);
            return;
        }
        if header.flags.rst {
            if is_ours {
                self.end(Some(Error::ConnectionRefused));
            }
            return;
        }
        if !header.flags.syn {
            return;
        }
        self.apply_syn(header, now_ns);
        self.received_at_ns = now_ns;
        if is_ours {
            self.acknowledge_handshake(ack, now_ns);
            self.acknowledgement = Acknowledgement::Now;
        } else {
            // Simultaneous open (section 3.5).
            self.state = State::SynReceived;
            self.pending.handshake = true;
        }
    }

    fn acknowledge_handshake(&mut self, ack: Position, now_ns: u64) {
        self.una = ack;
        self.state = State::Established;
        self.recovery.on_acknowledged(ack);
        if let Some((_, at)) = self.timed.take() {
            self.round_trip.measure(now_ns - at, 1);
        }
        self.round_trip.reset_backoff();
        self.retries = 0;
        self.deadlines.retransmit = None;
        self.pending.handshake = false;
        self.events.established = true;
        self.events.writable = true;
        if self.is_send_ended {
            self.state = State::FinWait1;
        }
    }

    /// Applies the checks of section 3.10.7.4 up to the fourth (SYN) and answers a segment that fails.
    fn passes_checks(&mut self, segment: &mut Segment<P>, now_ns: u64) -> bool {
        let next = self.receiver.next();
        let start = nearest_position(next, segment.header.sequence);
        let flags = segment.header.flags;
        let is_own_syn = self.state == State::SynReceived && flags.syn && !flags.rst && start + 1 == next;
        if is_own_syn {
            let ack = nearest_position(self.nxt, segment.header.acknowledgement);
            if !flags.ack || ack != self.nxt {
                // The peer repeats its SYN: repeat the SYN-ACK.
                self.pending.handshake |= self.challenges.admit(now_ns);
                return false;
            }
            segment.header.flags.syn = false;
            segment.header.sequence = segment.header.sequence.wrapping_add(1);
        }
        let flags = segment.header.flags;
        let start = nearest_position(next, segment.header.sequence);
        if self.has_timestamps && !flags.rst {
            let Some(stamps) = segment.header.options.timestamps else {
                // RFC 7323, section 3.2. Old systems omit timestamps in their first segments.
                return false;
            };
            let is_recent = now_ns.saturating_sub(self.peer_clock.recent_at_ns) < MAX_TIMESTAMP_AGE_NS;
            if is_older(stamps.value, self.peer_clock.recent) && is_recent {
                // PAWS (RFC 7323, section 5.3).
                self.answer_unacceptable(segment, now_ns);
                return false;
            }
        }
        let end = start + segment.len();
        let edge = self.receiver.edge();
        let is_acceptable = start <= edge && (end > next || end == start && start >= next);
        if !is_acceptable {
            if !flags.rst {
                self.answer_unacceptable(segment, now_ns);
            }
            return false;
        }
        if flags.rst {
            self.on_reset(start == next, now_ns);
            return false;
        }
        if flags.syn {
            // Challenge ACK (RFC 5961, section 4).
            self.challenge(now_ns);
            return false;
        }
        self.received_at_ns = now_ns;
        self.unanswered_probes = 0;
        if let Some(stamps) = segment.header.options.timestamps
            && self.has_timestamps
            && start <= self.acknowledged
        {
            // RFC 7323, section 4.3. An older timestamp passes only once TS.Recent has expired.
            self.peer_clock.recent = stamps.value;
            self.peer_clock.recent_at_ns = now_ns;
        }
        if self.ecn.is_used && !segment.payload.is_empty() {
            self.update_ecn_echo(&segment.header);
        }
        true
    }

    /// Updates ECE for a data segment (RFC 3168, section 6.1.3). CWR with CE set starts a new indication.
    fn update_ecn_echo(&mut self, header: &Header) {
        let is_marked = header.codepoint == Codepoint::Congestion;
        let was_due = self.ecn.is_echo_due;
        self.ecn.is_echo_due = is_marked || was_due && !header.flags.cwr;
        if header.flags.cwr || is_marked && !was_due {
            // As on Linux: a peer with a tiny window waits for this acknowledgement.
            self.quick_acks = self.quick_acks.max(1);
        }
    }

    fn answer_unacceptable(&mut self, segment: &Segment<P>, now_ns: u64) {
        let start = nearest_position(self.receiver.next(), segment.header.sequence);
        if segment.payload.is_empty() && !segment.header.flags.fin {
            self.challenge(now_ns);
            return;
        }
        if start + payload::len_bytes(&segment.payload) as u64 <= self.receiver.next() {
            // Recorded for a D-SACK block.
            self.receiver.insert(start, segment.payload.clone());
        }
        self.acknowledgement = Acknowledgement::Now;
        if self.state == State::TimeWait && segment.header.flags.fin {
            self.deadlines.time_wait = Some(now_ns + TIME_WAIT_NS);
        }
    }

    /// Processes a RST in the window (RFC 5961, section 3).
    fn on_reset(&mut self, is_exact: bool, now_ns: u64) {
        match self.state {
            // TIME-WAIT ignores RST (RFC 1337).
            State::TimeWait => {}
            _ if !is_exact => self.challenge(now_ns),
            State::SynReceived => self.end(Some(Error::ConnectionRefused)),
            State::CloseWait => self.end(Some(Error::BrokenPipe)),
            State::Closing | State::LastAck if self.is_orphaned => self.end(None),
            _ => self.end(Some(Error::ConnectionReset)),
        }
    }

    /// Applies the checks from the fifth (ACK) on.
    fn process(&mut self, segment: Segment<P>, now_ns: u64) {
        let header = &segment.header;
        if !header.flags.ack {
            return;
        }
        if self.state == State::SynReceived {
            let ack = nearest_position(self.nxt, header.acknowledgement);
            if ack != self.nxt {
                self.pending.reset = segment.reset().map(Box::new);
                return;
            }
            self.acknowledge_handshake(ack, now_ns);
            self.window = u64::from(header.window) << self.send_shift;
            self.max_window = self.max_window.max(self.window);
            self.window_update = (nearest_position(self.receiver.next(), header.sequence), ack);
        }
        let len = segment.len();
        if !self.on_acknowledgement(&segment.header, len, now_ns) || self.state == State::Closed {
            return;
        }
        if self.state == State::TimeWait {
            if len > 0 {
                self.acknowledgement = Acknowledgement::Now;
            }
            return;
        }
        self.on_payload(segment, now_ns);
    }

    /// Processes the acknowledgement. Returns whether to process the segment further.
    fn on_acknowledgement(&mut self, header: &Header, len: u64, now_ns: u64) -> bool {
        let ack = nearest_position(self.una, header.acknowledgement);
        if ack > self.nxt || ack + self.max_window < self.una {
            // Challenge ACK (RFC 5961, section 5).
            self.challenge(now_ns);
            return false;
        }
        let sent = self.sent();
        let blocks = header.options.sack.iter();
        let mut blocks = blocks
            .map(|&(start, end)| nearest_position(sent.start, start)..nearest_position(sent.start, end));
        let has_duplicate = blocks.clone().next().is_some_and(|first| first.end <= ack);
        let newly_sacked = if self.has_sack { self.recovery.on_sack(&mut blocks, sent.clone()) } else { 0 };
        if newly_sacked > 0 || ack > self.una {
            self.acknowledged_at_ns = now_ns;
        }
        let is_bare = ack == self.una && len == 0 && header.options.sack.is_empty();
        let window = u64::from(header.window) << self.send_shift;
        if ack > self.una {
            self.advance(ack, header, now_ns);
        } else if ack == self.una && !sent.is_empty() {
            let is_duplicate =
                if self.has_sack { newly_sacked > 0 } else { len == 0 && window == self.window };
            if is_duplicate {
                self.recovery.on_duplicate();
            }
        }
        self.update_window(header, ack, window);
        let flight = sent.end - sent.start;
        self.begin_recovery_if_lost(flight);
        let is_repaired = self.recovery.has_probe_repaired(ack, has_duplicate, is_bare);
        let is_marked = self.ecn.is_used && header.flags.ece && self.una > self.ecn.reduced;
        if (is_repaired || is_marked) && flight > 0 && self.recovery.phase() == Phase::Open {
            self.reduce_window(flight);
        }
        if self.is_fin_sent() && self.una == self.nxt {
            self.on_fin_acknowledged(now_ns);
        }
        true
    }

    /// Begins fast recovery if a loss is detected; `flight` bytes were in flight before this event.
    pub(super) fn begin_recovery_if_lost(&mut self, flight: u64) {
        if self.recovery.begin_if_lost(self.sent()) {
            self.reduce_window(flight);
            self.pending.retransmission = true;
        }
    }

    /// Reduces the congestion window, and tells an ECN peer by CWR (RFC 3168, section 6.1.2).
    fn reduce_window(&mut self, flight: u64) {
        self.congestion.on_loss(self.flight_bytes(flight));
        self.ecn.reduced = self.nxt;
        self.pending.window_reduced = self.ecn.is_used;
    }

    /// Returns the flight size for window reductions: the whole window if it limited the sender, because
    /// `flight` lacks the bytes acknowledged since (as in Linux; RFC 9438, section 4.6, allows it).
    pub(super) fn flight_bytes(&self, flight: u64) -> u64 {
        if self.is_congestion_limited { self.congestion.window_bytes() } else { flight }
    }

    /// Processes an acknowledgement of new data.
    fn advance(&mut self, ack: Position, header: &Header, now_ns: u64) {
        let flight = self.nxt - self.una;
        let bytes = ack - self.una;
        self.una = ack;
        self.queue.acknowledge(ack);
        self.measure(ack, flight, header, now_ns);
        self.undo_if_spurious(header);
        let phase = self.recovery.phase();
        self.recovery.on_acknowledged(ack);
        self.recovery.mark_head(self.sent());
        let window = self.congestion.window_bytes();
        let is_slow_start = window < self.congestion.threshold_bytes();
        let is_limited = self.is_congestion_limited || is_slow_start && 2 * flight > window;
        // Acknowledgements with ECE do not grow the window (RFC 3168, section 6.1.2).
        let is_echo = self.ecn.is_used && header.flags.ece;
        let is_growing =
            !is_echo && (phase == Phase::Open && is_limited || matches!(phase, Phase::Timeout { .. }));
        if is_growing {
            let round_trip_ns = self.round_trip.smoothed_ns().unwrap_or_default();
            self.congestion.acknowledge(bytes, round_trip_ns, now_ns);
        }
        self.round_trip.reset_backoff();
        self.soft_error = None;
        self.deadlines.retransmit = (self.una < self.nxt).then(|| now_ns + self.round_trip.timeout_ns());
        self.events.writable = true;
    }

    /// Undoes a timeout if its first acknowledgement answers an original segment (Eifel: RFC 3522, 4015).
    fn undo_if_spurious(&mut self, header: &Header) {
        let Some(undo) = self.undo.take() else { return };
        let stamps = header.options.timestamps.filter(|stamps| stamps.echo != 0);
        let is_spurious = stamps.is_some_and(|stamps| is_older(stamps.echo, undo.timestamp));
        if is_spurious && matches!(self.recovery.phase(), Phase::Timeout { .. }) {
            self.congestion = undo.congestion;
            self.recovery.undo_timeout(&self.sent());
        }
    }

    /// Samples the round-trip time (RFC 6298, section 3): by the clock, or by TSecr after retransmissions.
    fn measure(&mut self, ack: Position, flight: u64, header: &Header, now_ns: u64) {
        let samples = flight / (2 * u64::from(self.segment_bytes())).max(1);
        if let Some((end, at)) = self.timed {
            if ack >= end {
                self.round_trip.measure(now_ns - at, 1);
                self.timed = None;
            }
            return;
        }
        if let Some(stamps) = header.options.timestamps
            && self.has_timestamps
            && stamps.echo != 0
        {
            let elapsed = self.timestamp(now_ns).wrapping_sub(stamps.echo);
            if elapsed.cast_signed() >= 0 {
                self.round_trip.measure(u64::from(elapsed.max(1)) * MILLISECOND_NS, samples);
            }
        }
    }

    fn update_window(&mut self, header: &Header, ack: Position, window: u64) {
        let start = nearest_position(self.receiver.next(), header.sequence);
        if ack < self.una || self.window_update > (start, ack) {
            return;
        }
        self.window_update = (start, ack);
        self.window = window;
        self.max_window = self.max_window.max(window);
        if window > 0 {
            self.persist_backoffs = 0;
            if self.una == self.nxt {
                self.deadlines.persist = None;
            }
        }
    }

    fn on_fin_acknowledged(&mut self, now_ns: u64) {
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                if self.is_orphaned {
                    self.deadlines.time_wait = Some(now_ns + TIME_WAIT_NS);
                }
            }
            State::Closing => self.enter_time_wait(now_ns),
            State::LastAck => self.end(None),
            _ => {}
        }
    }

    fn enter_time_wait(&mut self, now_ns: u64) {
        self.state = State::TimeWait;
        self.deadlines =
            super::state::Deadlines { time_wait: Some(now_ns + TIME_WAIT_NS), ..Default::default() };
        self.events.readable = true;
        self.events.closed = true;
    }

    /// Applies the seventh and eighth checks: segment text and FIN.
    fn on_payload(&mut self, segment: Segment<P>, now_ns: u64) {
        let flags = segment.header.flags;
        let len = payload::len_bytes(&segment.payload) as u64;
        if len == 0 && !flags.fin {
            return;
        }
        let can_receive = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        if !can_receive {
            // The FIN was received, so this is a retransmission.
            self.acknowledgement = Acknowledgement::Now;
            return;
        }
        let start = nearest_position(self.receiver.next(), segment.header.sequence);
        let end = start + len;
        if len > 0 && self.is_orphaned && end > self.receiver.next() {
            // Nobody will read the data (RFC 9293, section 3.10.4; RFC 2525, section 2.17).
            self.reset_peer();
            self.end(None);
            return;
        }
        if flags.fin {
            self.receiver.set_fin(end);
        }
        if len > 0 {
            let insertion = self.receiver.insert(start, segment.payload);
            self.schedule_acknowledgement(insertion, len, now_ns);
        }
        if flags.fin {
            self.acknowledgement = Acknowledgement::Now;
        }
        if self.receiver.take_fin() {
            self.acknowledgement = Acknowledgement::Now;
            self.on_fin(now_ns);
        }
    }

    /// Schedules the acknowledgement: immediate if out of order or for every second segment, else
    /// delayed (RFC 5681, section 4.2).
    fn schedule_acknowledgement(&mut self, insertion: Insertion, len: u64, now_ns: u64) {
        let is_regular = insertion == Insertion::InOrder { filled_gap: false };
        if matches!(insertion, Insertion::InOrder { .. }) {
            self.events.readable = true;
            self.peer_segment = self.peer_segment.max(len).min(u64::from(self.segment_bytes()));
        }
        let unacknowledged = self.receiver.next() - self.acknowledged;
        if !is_regular || self.quick_acks > 0 || unacknowledged >= 2 * self.peer_segment {
            self.quick_acks = self.quick_acks.saturating_sub(1);
            self.acknowledgement = Acknowledgement::Now;
        } else if self.acknowledgement == Acknowledgement::None {
            self.acknowledgement = Acknowledgement::Delayed;
            self.deadlines.acknowledge = Some(now_ns + DELAYED_ACK_NS);
        }
    }

    fn on_fin(&mut self, now_ns: u64) {
        self.events.readable = true;
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(now_ns),
            _ => {}
        }
    }
}
