//! Timers of a connection (RFC 9293, section 3.8; RFC 6298, section 5).

use super::state::{Acknowledgement, Connection, Deadlines, State, Undo};
use crate::config::{
    MAX_RETRIES, MAX_RTO_NS, MAX_SYN_ACK_RETRIES, MAX_SYN_RETRIES, MIN_ORPHAN_PROBES, MIN_REORDERING_NS,
    PROBE_ACK_DELAY_NS, PROBE_SLACK_NS, SWS_OVERRIDE_NS,
};
use crate::error::Error;
use crate::payload::Payload;
use crate::recovery::Phase;

impl<P: Payload> Connection<P> {
    /// Returns the earliest deadline, at which [`Connection::on_timer`] must be called.
    pub fn deadline_ns(&self) -> Option<u64> {
        let Deadlines { retransmit, loss, persist, acknowledge, keepalive, time_wait } = self.deadlines;
        [retransmit, loss, persist, acknowledge, keepalive, time_wait].into_iter().flatten().min()
    }

    /// Runs the timers that have expired.
    pub fn on_timer(&mut self, now_ns: u64) {
        let is_due = |deadline: &mut Option<u64>| deadline.take_if(|at| *at <= now_ns).is_some();
        if is_due(&mut self.deadlines.time_wait) {
            self.end(None);
            return;
        }
        if is_due(&mut self.deadlines.acknowledge) {
            self.acknowledgement = Acknowledgement::Now;
            self.quick_acks = 0;
        }
        if is_due(&mut self.deadlines.loss) {
            self.on_loss_timeout(now_ns);
        }
        if is_due(&mut self.deadlines.retransmit) {
            self.on_retransmission_timeout(now_ns);
        }
        if is_due(&mut self.deadlines.persist) {
            self.on_persist_timeout(now_ns);
        }
        if is_due(&mut self.deadlines.keepalive) {
            self.on_keepalive_timeout(now_ns);
        }
    }

    fn on_retransmission_timeout(&mut self, now_ns: u64) {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            let max_retries =
                if self.state == State::SynSent { MAX_SYN_RETRIES } else { MAX_SYN_ACK_RETRIES };
            if self.retries >= max_retries {
                self.time_out();
                return;
            }
            self.retries += 1;
            self.round_trip.back_off();
            self.congestion.on_handshake_loss();
            self.timed = None;
            self.pending.handshake = true;
            return;
        }
        if self.una == self.nxt {
            return;
        }
        if self.round_trip.backoffs() >= MAX_RETRIES {
            self.time_out();
            return;
        }
        let is_first = self.round_trip.backoffs() == 0;
        if is_first {
            let timestamp = self.timestamp(now_ns);
            let congestion = self.congestion.clone();
            self.undo = self.has_timestamps.then(|| Box::new(Undo { timestamp, congestion }));
        }
        let flight = self.nxt - self.una - self.recovery.sacked_bytes();
        self.congestion.on_timeout(self.flight_bytes(flight), is_first);
        self.recovery.on_timeout(self.sent());
        self.ecn.reduced = self.nxt;
        self.pending.window_reduced = self.ecn.is_used;
        self.round_trip.back_off();
        self.timed = None;
        self.pending.retransmission = true;
        self.deadlines.retransmit = Some(now_ns + self.round_trip.timeout_ns());
    }

    /// Handles the probe timeout and the reordering timer of RFC 8985, sections 7.3 and 6.3.
    fn on_loss_timeout(&mut self, now_ns: u64) {
        if self.recovery.has_gap(&self.sent()) {
            self.recovery.mark_gaps_lost();
            self.begin_recovery_if_lost(self.nxt - self.una);
        } else if self.recovery.can_probe_tail(&self.sent()) {
            self.pending.tail = true;
            self.deadlines.retransmit = Some(now_ns + self.round_trip.timeout_ns());
        }
    }

    /// Returns the deadline of the probe or reordering timer (RFC 8985, sections 7.2 and 6.2, step 5).
    fn loss_deadline(&self) -> Option<u64> {
        let retransmit = self.deadlines.retransmit?;
        let round_trip_ns = self.round_trip.smoothed_ns()?;
        if self.recovery.phase() != Phase::Open || self.round_trip.backoffs() > 0 {
            return None;
        }
        if self.recovery.has_gap(&self.sent()) {
            let reordering_ns = (round_trip_ns / 4).max(MIN_REORDERING_NS);
            return Some((self.acknowledged_at_ns + reordering_ns).min(retransmit));
        }
        let is_one = self.nxt - self.una <= u64::from(self.segment_bytes());
        let ack_delay_ns = if is_one { PROBE_ACK_DELAY_NS } else { PROBE_SLACK_NS };
        let at = self.sent_at_ns.max(self.acknowledged_at_ns) + 2 * round_trip_ns + ack_delay_ns;
        self.recovery.can_probe_tail(&self.sent()).then(|| at.min(retransmit))
    }

    /// Handles the persist timer: the peer's window is zero or too small.
    fn on_persist_timeout(&mut self, now_ns: u64) {
        if self.una < self.nxt {
            return;
        }
        if self.window > 0 {
            self.pending.partial = true;
            return;
        }
        if self.unanswered_probes >= MAX_RETRIES {
            self.time_out();
            return;
        }
        let is_late = self.persist_ns() >= MAX_RTO_NS && self.persist_backoffs >= MIN_ORPHAN_PROBES;
        if self.is_orphaned && is_late {
            // As on Linux: a peer that only answers probes must not hold the memory forever (CVE-2008-4609).
            self.reset_peer();
            self.time_out();
            return;
        }
        self.unanswered_probes += 1;
        self.persist_backoffs = (self.persist_backoffs + 1).min(20);
        self.pending.probe = true;
        self.deadlines.persist = Some(now_ns + self.persist_ns());
    }

    fn persist_ns(&self) -> u64 {
        let base = self.round_trip.timeout_ns();
        base.saturating_mul(1 << self.persist_backoffs).min(MAX_RTO_NS)
    }

    fn on_keepalive_timeout(&mut self, now_ns: u64) {
        let Some(keepalive) = self.config.keepalive else { return };
        if self.state < State::Established || self.state == State::TimeWait {
            return;
        }
        let idle_at = self.received_at_ns + keepalive.idle_ns;
        let is_busy = self.una < self.nxt || self.deadlines.persist.is_some();
        if idle_at > now_ns || is_busy {
            self.deadlines.keepalive = Some(idle_at.max(now_ns + keepalive.interval_ns.max(1)));
            return;
        }
        if self.unanswered_probes >= keepalive.max_probes {
            self.reset_peer();
            self.time_out();
            return;
        }
        self.unanswered_probes += 1;
        self.pending.probe = true;
        self.deadlines.keepalive = Some(now_ns + keepalive.interval_ns.max(1));
    }

    fn time_out(&mut self) {
        let error = self.soft_error.unwrap_or(Error::TimedOut);
        self.end(Some(error));
    }

    /// Arms the timers when nothing can be sent now.
    pub(super) fn arm_timers(&mut self, now_ns: u64) {
        if self.state < State::Established || self.state == State::TimeWait {
            return;
        }
        let is_unsent = self.nxt < self.queue.end() + u64::from(self.is_send_ended);
        if self.una < self.nxt {
            self.deadlines.persist = None;
            self.deadlines.retransmit.get_or_insert(now_ns + self.round_trip.timeout_ns());
        } else {
            self.deadlines.retransmit = None;
            if is_unsent && self.deadlines.persist.is_none() {
                let wait_ns = if self.window > 0 { SWS_OVERRIDE_NS } else { self.persist_ns() };
                self.deadlines.persist = Some(now_ns + wait_ns);
            } else if !is_unsent {
                self.deadlines.persist = None;
            }
        }
        self.deadlines.loss = self.loss_deadline();
        if let (Some(keepalive), None) = (self.config.keepalive, self.deadlines.keepalive) {
            self.deadlines.keepalive = Some(now_ns + keepalive.idle_ns);
        }
    }
}
