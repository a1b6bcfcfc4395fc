//! Segments to send: retransmissions first, then new data, then bare acknowledgements.

use std::ops::Range;

use super::state::{Acknowledgement, Connection, State, bare};
use crate::config::Ecn;
use crate::options::{Options, Timestamps};
use crate::payload::{self, Payload};
use crate::segment::{Codepoint, Flags, Header, Segment};
use crate::sequence::{Position, sequence_number};

impl<P: Payload> Connection<P> {
    /// Returns the next segment to send. Must be called until `None` after every event.
    pub fn poll_transmit(&mut self, now_ns: u64) -> Option<Segment<P>> {
        if let Some(header) = self.pending.reset.take() {
            return bare(*header);
        }
        match self.state {
            State::Closed => return None,
            State::SynSent | State::SynReceived => return self.poll_handshake(now_ns),
            State::TimeWait => {}
            _ => {
                if let Some(range) = self.next_range(now_ns) {
                    return Some(self.emit(range, now_ns));
                }
                self.pending.partial = false;
                self.arm_timers(now_ns);
            }
        }
        if std::mem::take(&mut self.pending.probe) {
            // A sequence number below the window forces an answer, as in Linux (RFC 9293, section 3.8.4).
            return bare(self.header(self.una - 1, now_ns));
        }
        if self.acknowledgement == Acknowledgement::Now {
            return bare(self.header(self.nxt, now_ns));
        }
        None
    }

    fn poll_handshake(&mut self, now_ns: u64) -> Option<Segment<P>> {
        if !std::mem::take(&mut self.pending.handshake) {
            self.acknowledgement = Acknowledgement::None;
            return None;
        }
        let is_answer = self.state == State::SynReceived;
        let is_again = self.retries > 0 || self.deadlines.retransmit.is_some();
        self.retransmissions += u64::from(is_again);
        let mut header = self.header(self.initial, now_ns);
        // A repeated SYN avoids ECN, which middleboxes may drop (RFC 3168, section 6.1.1.1).
        let asks = !is_answer && self.config.ecn == Ecn::Requested && self.retries == 0;
        let ece = asks || is_answer && self.ecn.is_used;
        header.flags = Flags { syn: true, ack: is_answer, ece, cwr: asks, ..Flags::default() };
        // The window of a SYN is not scaled (RFC 7323, section 2.2).
        if is_answer {
            header.window = self.receiver.announce(0, self.segment_bytes());
        } else {
            header.acknowledgement = 0;
            header.window = self.config.receive_buffer_bytes.min(0xffff) as u16;
        }
        let scaling =
            self.config.window_scaling && (!is_answer || self.receive_shift > 0 || self.send_shift > 0);
        header.options = Options {
            max_segment_size: Some(self.config.mss),
            window_shift: scaling.then_some(self.receive_shift),
            sack_permitted: self.has_sack,
            timestamps: self.timestamps(now_ns),
            ..Options::default()
        };
        if self.retries == 0 && self.timed.is_none() {
            self.timed = Some((self.nxt, now_ns));
        }
        self.deadlines.retransmit = Some(now_ns + self.round_trip.timeout_ns());
        bare(header)
    }

    fn timestamps(&self, now_ns: u64) -> Option<Timestamps> {
        let echo = if self.state == State::SynSent { 0 } else { self.peer_clock.recent };
        self.has_timestamps.then(|| Timestamps { value: self.timestamp(now_ns), echo })
    }

    /// Returns a header that acknowledges all received bytes and announces the window.
    fn header(&mut self, sequence: Position, now_ns: u64) -> Header {
        let is_synchronized = self.state >= State::Established;
        let window = if is_synchronized {
            self.receiver.announce(self.receive_shift, self.segment_bytes())
        } else {
            0
        };
        let max_blocks = Options::max_sack_blocks(self.has_timestamps);
        let sack = if is_synchronized && self.has_sack && self.receiver.has_sack_blocks() {
            self.receiver.sack_blocks(max_blocks)
        } else {
            Default::default()
        };
        self.acknowledgement = Acknowledgement::None;
        self.deadlines.acknowledge = None;
        self.acknowledged = self.receiver.next();
        Header {
            sequence: sequence_number(sequence),
            acknowledgement: sequence_number(self.receiver.next()),
            flags: Flags { ack: true, ece: self.ecn.is_echo_due, ..Flags::default() },
            window,
            options: Options { sack, timestamps: self.timestamps(now_ns), ..Options::default() },
            codepoint: Codepoint::NotCapable,
        }
    }

    /// Returns the maximum payload of one segment for the link: a whole number of packets.
    fn super_bytes(&self) -> u64 {
        let segment = u64::from(self.segment_bytes());
        (self.config.max_super_payload_bytes as u64 / segment).max(1) * segment
    }

    fn next_range(&mut self, now_ns: u64) -> Option<Range<Position>> {
        let segment = u64::from(self.segment_bytes());
        let sent = self.sent();
        if sent.is_empty() && now_ns.saturating_sub(self.sent_at_ns) > self.round_trip.timeout_ns() {
            self.congestion.restart();
        }
        if std::mem::take(&mut self.pending.tail) && self.recovery.can_probe_tail(&sent) {
            return Some(self.tail_probe());
        }
        if let Some(lost) = self.recovery.lost_head(&sent) {
            // No window check: at least as many bytes have left the network.
            return Some(lost.start..lost.end.min(lost.start + segment));
        }
        let pipe = self.recovery.pipe_bytes(&sent);
        let room = self.congestion.window_bytes().saturating_sub(pipe);
        let is_forced = std::mem::take(&mut self.pending.retransmission);
        let room_segments = (room / segment).max(u64::from(is_forced || pipe == 0));
        let budget = (room_segments * segment).min(self.super_bytes());
        self.is_congestion_limited = budget == 0;
        if budget == 0 {
            return None;
        }
        if let Some(lost) = self.recovery.next_lost(&sent) {
            return Some(lost.start..lost.end.min(lost.start + budget));
        }
        if is_forced && room < segment {
            return None;
        }
        let budget = if self.pending.window_reduced { segment } else { budget };
        if let Some(range) = self.next_unsent(budget) {
            return Some(range);
        }
        let suspect = self.recovery.next_speculative(&sent)?;
        Some(suspect.start..suspect.end.min(suspect.start + segment))
    }

    /// Returns the range of a tail loss probe: new data, else the last segment (RFC 8985, section 7.3).
    fn tail_probe(&mut self) -> Range<Position> {
        let segment = u64::from(self.segment_bytes());
        let unsent = self.next_unsent(segment);
        let is_retransmission = unsent.is_none();
        let range = unsent.unwrap_or(self.una.max(self.nxt.saturating_sub(segment))..self.nxt);
        self.recovery.on_tail_probe(range.end, is_retransmission);
        range
    }

    /// Returns new data and the FIN, as far as the windows, Nagle's algorithm and silly window
    /// avoidance permit (RFC 9293, sections 3.7.4 and 3.8.6.2.1).
    fn next_unsent(&mut self, budget: u64) -> Option<Range<Position>> {
        let segment = u64::from(self.segment_bytes());
        let start = self.nxt;
        let end = self.queue.end();
        let edge = (self.una + self.window).max(start);
        if start > end {
            return None;
        }
        let usable = (edge - start).min(budget);
        let len = usable.min(end - start);
        let is_all = len == end - start;
        let is_idle = self.una == self.nxt;
        let takes_fin = self.is_send_ended && is_all && edge > start + len;
        let takes_partial = if is_all {
            !self.config.nagle || is_idle || takes_fin
        } else {
            // The window ends here: send at least half of the maximum window, until the override timeout.
            usable < budget && is_idle && (2 * usable >= self.max_window || self.pending.partial)
        };
        let len = if takes_partial { len } else { len / segment * segment };
        let takes_fin = takes_fin && start + len == end;
        if len == 0 && !takes_fin {
            return None;
        }
        Some(start..start + len + u64::from(takes_fin))
    }

    /// Returns the segment for a range, which may end with the FIN.
    fn emit(&mut self, range: Range<Position>, now_ns: u64) -> Segment<P> {
        let end = self.queue.end();
        let is_retransmission = range.start < self.nxt;
        let mut header = self.header(range.start, now_ns);
        header.flags.fin = range.end > end;
        header.flags.psh = range.end >= end && range.start < end;
        let payload = self.queue.slice(range.start.min(end)..range.end.min(end));
        let max_payload_bytes = self.mss - header.options.len_bytes() as u16;
        if is_retransmission {
            let packets = payload::len_bytes(&payload).div_ceil(max_payload_bytes.into()).max(1);
            self.retransmissions += packets as u64;
            self.timed = None;
            self.recovery.on_retransmitted(range.end);
            if range.start == self.una {
                self.recovery.mark_head(self.sent());
                self.deadlines.retransmit = Some(now_ns + self.round_trip.timeout_ns());
            }
        } else {
            self.timed.get_or_insert((range.end, now_ns));
            if self.ecn.is_used && !payload.is_empty() {
                // Retransmissions and segments without data are not ECT (RFC 3168, sections 6.1.4 and 6.1.5).
                header.codepoint = Codepoint::Capable0;
                // CWR is set only on segments of one packet, so that links need not handle it when splitting.
                let is_one = payload::len_bytes(&payload) <= max_payload_bytes.into();
                header.flags.cwr = is_one && std::mem::take(&mut self.pending.window_reduced);
            }
        }
        self.nxt = self.nxt.max(range.end);
        self.sent_at_ns = now_ns;
        self.deadlines.persist = None;
        self.deadlines.retransmit.get_or_insert(now_ns + self.round_trip.timeout_ns());
        Segment { header, payload, max_payload_bytes }
    }
}
