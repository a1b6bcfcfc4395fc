//! SEGMENT ARRIVES (RFC 9293, section 3.10.7), with RFC 5961's challenges and RFC 7323's timestamps.

use super::state::{Acknowledgement, Connection, State};
use crate::config::{DELAYED_ACK_NS, MAX_TIMESTAMP_AGE_NS, MILLISECOND_NS, TIME_WAIT_NS};
use crate::error::Error;
use crate::payload::{self, Payload};
use crate::receive::Insertion;
use crate::recovery::Phase;
use crate::segment::{Codepoint, Header, Segment};
use crate::sequence::{Position, is_older, near};

impl<P: Payload> Connection<P> {
    /// A segment came.
    pub fn on_segment(&mut self, mut segment: Segment<P>, now_ns: u64) {
        match self.state {
            State::Closed => self.pending.reset = segment.reset().map(Box::new),
            State::SynSent => self.on_segment_in_syn_sent(&segment, now_ns),
            _ => {
                if self.is_to_process(&mut segment, now_ns) {
                    self.process(segment, now_ns);
                }
            }
        }
    }

    /// Section 3.10.7.3.
    fn on_segment_in_syn_sent(&mut self, segment: &Segment<P>, now_ns: u64) {
        let header = &segment.header;
        let ack = near(self.nxt, header.acknowledgement);
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
        self.take_syn(header, now_ns);
        self.received_at_ns = now_ns;
        if is_ours {
            self.acknowledge_handshake(ack, now_ns);
            self.acknowledgement = Acknowledgement::Now;
        } else {
            // Both ends opened at once (section 3.5).
            self.state = State::SynReceived;
            self.pending.handshake = true;
        }
    }

    /// Our SYN has arrived.
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

    /// The checks of section 3.10.7.4 up to the fourth, SYN. What fails one is answered there.
    fn is_to_process(&mut self, segment: &mut Segment<P>, now_ns: u64) -> bool {
        let next = self.receiver.next();
        let start = near(next, segment.header.sequence);
        let flags = segment.header.flags;
        let is_own_syn = self.state == State::SynReceived && flags.syn && !flags.rst && start + 1 == next;
        if is_own_syn {
            let ack = near(self.nxt, segment.header.acknowledgement);
            if !flags.ack || ack != self.nxt {
                // The peer repeats its SYN: so is the answer.
                self.pending.handshake |= self.challenges.admit(now_ns);
                return false;
            }
            segment.header.flags.syn = false;
            segment.header.sequence = segment.header.sequence.wrapping_add(1);
        }
        let flags = segment.header.flags;
        let start = near(next, segment.header.sequence);
        if self.has_timestamps && !flags.rst {
            let Some(stamps) = segment.header.options.timestamps else {
                // RFC 7323, section 3.2. Old systems leave them out of what they send first.
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
            // RFC 5961, section 4.
            self.challenge(now_ns);
            return false;
        }
        self.received_at_ns = now_ns;
        self.unanswered_probes = 0;
        if let Some(stamps) = segment.header.options.timestamps
            && self.has_timestamps
            && start <= self.acknowledged
        {
            // RFC 7323, section 4.3. An old one is here only if it has expired.
            self.peer_clock.recent = stamps.value;
            self.peer_clock.recent_at_ns = now_ns;
        }
        if self.notification.is_used && !segment.payload.is_empty() {
            self.note_congestion(&segment.header);
        }
        true
    }

    /// Data came: whether the peer is to be told of congestion (RFC 3168, section 6.1.3). What has CWR and a mark begins it again.
    fn note_congestion(&mut self, header: &Header) {
        let is_marked = header.codepoint == Codepoint::Congestion;
        let was_due = self.notification.is_echo_due;
        self.notification.is_echo_due = is_marked || was_due && !header.flags.cwr;
        if header.flags.cwr || is_marked && !was_due {
            // As on Linux: the peer's window may be so small that it waits for this acknowledgement.
            self.quick = self.quick.max(1);
        }
    }

    fn answer_unacceptable(&mut self, segment: &Segment<P>, now_ns: u64) {
        let start = near(self.receiver.next(), segment.header.sequence);
        if segment.payload.is_empty() && !segment.header.flags.fin {
            self.challenge(now_ns);
            return;
        }
        if start + payload::len_bytes(&segment.payload) as u64 <= self.receiver.next() {
            // It becomes a duplicate's block.
            self.receiver.insert(start, segment.payload.clone());
        }
        self.acknowledgement = Acknowledgement::Now;
        if self.state == State::TimeWait && segment.header.flags.fin {
            self.deadlines.wait = Some(now_ns + TIME_WAIT_NS);
        }
    }

    /// A RST in the window (RFC 5961, section 3).
    fn on_reset(&mut self, is_exact: bool, now_ns: u64) {
        match self.state {
            // RFC 1337.
            State::TimeWait => {}
            _ if !is_exact => self.challenge(now_ns),
            State::SynReceived => self.end(Some(Error::ConnectionRefused)),
            State::CloseWait => self.end(Some(Error::BrokenPipe)),
            State::Closing | State::LastAck if self.is_released => self.end(None),
            _ => self.end(Some(Error::ConnectionReset)),
        }
    }

    /// The checks from the fifth, ACK, on.
    fn process(&mut self, segment: Segment<P>, now_ns: u64) {
        let header = &segment.header;
        if !header.flags.ack {
            return;
        }
        if self.state == State::SynReceived {
            let ack = near(self.nxt, header.acknowledgement);
            if ack != self.nxt {
                self.pending.reset = segment.reset().map(Box::new);
                return;
            }
            self.acknowledge_handshake(ack, now_ns);
            self.window = u64::from(header.window) << self.send_shift;
            self.max_window = self.max_window.max(self.window);
            self.window_update = (near(self.receiver.next(), header.sequence), ack);
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

    /// Returns whether the segment is to be processed further.
    fn on_acknowledgement(&mut self, header: &Header, len: u64, now_ns: u64) -> bool {
        let ack = near(self.una, header.acknowledgement);
        if ack > self.nxt || ack + self.max_window < self.una {
            // RFC 5961, section 5.
            self.challenge(now_ns);
            return false;
        }
        let sent = self.sent();
        let blocks = header.options.sack.iter();
        let mut blocks = blocks.map(|&(start, end)| near(sent.start, start)..near(sent.start, end));
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
        let is_marked = self.notification.is_used && header.flags.ece && self.una > self.notification.reduced;
        if (is_repaired || is_marked) && flight > 0 && self.recovery.phase() == Phase::Open {
            self.reduce_window(flight);
        }
        if self.is_fin_sent() && self.una == self.nxt {
            self.on_fin_acknowledged(now_ns);
        }
        true
    }

    /// Fast recovery, if a loss is known. `flight` is what was sent and not acknowledged before.
    pub(super) fn begin_recovery_if_lost(&mut self, flight: u64) {
        if self.recovery.begin_if_lost(self.sent()) {
            self.reduce_window(flight);
            self.pending.retransmission = true;
        }
    }

    /// There is congestion. The peer of a connection with ECN is told what was done (RFC 3168, section 6.1.2).
    fn reduce_window(&mut self, flight: u64) {
        self.congestion.on_loss(self.used_bytes(flight));
        self.notification.reduced = self.nxt;
        self.pending.window_reduced = self.notification.is_used;
    }

    /// What is on its way, as the window is reduced by it: all of the window if that is what stopped the sender last. `flight` lacks
    /// what was acknowledged since (RFC 9438, section 4.6, lets the window be used; Linux does).
    pub(super) fn used_bytes(&self, flight: u64) -> u64 {
        if self.is_congestion_limited { self.congestion.window_bytes() } else { flight }
    }

    /// Something new was acknowledged.
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
        // What echoes congestion does not add to the window (RFC 3168, section 6.1.2).
        let is_echo = self.notification.is_used && header.flags.ece;
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

    /// The first acknowledgement after a timeout answers what was sent before it: nothing was lost (Eifel: RFC 3522, 4015).
    fn undo_if_spurious(&mut self, header: &Header) {
        let Some(undo) = self.undo.take() else { return };
        let stamps = header.options.timestamps.filter(|stamps| stamps.echo != 0);
        let is_spurious = stamps.is_some_and(|stamps| is_older(stamps.echo, undo.timestamp));
        if is_spurious && matches!(self.recovery.phase(), Phase::Timeout { .. }) {
            self.congestion = undo.congestion;
            self.recovery.undo_timeout(&self.sent());
        }
    }

    /// RFC 6298, section 3: by the clock where nothing was retransmitted, else by the peer's echo.
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
        let start = near(self.receiver.next(), header.sequence);
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
                if self.is_released {
                    self.deadlines.wait = Some(now_ns + TIME_WAIT_NS);
                }
            }
            State::Closing => self.wait(now_ns),
            State::LastAck => self.end(None),
            _ => {}
        }
    }

    /// TIME-WAIT.
    fn wait(&mut self, now_ns: u64) {
        self.state = State::TimeWait;
        self.deadlines = super::state::Deadlines { wait: Some(now_ns + TIME_WAIT_NS), ..Default::default() };
        self.events.readable = true;
        self.events.closed = true;
    }

    /// The seventh and eighth checks: text and FIN.
    fn on_payload(&mut self, segment: Segment<P>, now_ns: u64) {
        let flags = segment.header.flags;
        let len = payload::len_bytes(&segment.payload) as u64;
        if len == 0 && !flags.fin {
            return;
        }
        let can_receive = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        if !can_receive {
            // Its end has been received; what comes now was sent before, and has come.
            self.acknowledgement = Acknowledgement::Now;
            return;
        }
        let start = near(self.receiver.next(), segment.header.sequence);
        let end = start + len;
        if len > 0 && self.is_released && end > self.receiver.next() {
            // Nobody reads it (RFC 9293, section 3.10.4 and RFC 2525, section 2.17).
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

    /// RFC 5681, section 4.2: at once for what is out of order, else for every second segment, else after a while.
    fn schedule_acknowledgement(&mut self, insertion: Insertion, len: u64, now_ns: u64) {
        let is_regular = insertion == Insertion::InOrder { filled_gap: false };
        if matches!(insertion, Insertion::InOrder { .. }) {
            self.events.readable = true;
            self.peer_segment = self.peer_segment.max(len).min(u64::from(self.segment_bytes()));
        }
        let unacknowledged = self.receiver.next() - self.acknowledged;
        if !is_regular || self.quick > 0 || unacknowledged >= 2 * self.peer_segment {
            self.quick = self.quick.saturating_sub(1);
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
            State::FinWait2 => self.wait(now_ns),
            _ => {}
        }
    }
}
