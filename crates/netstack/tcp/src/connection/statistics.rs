//! Statistics of a connection, and options that may change during its life.

use super::state::{Connection, State};
use crate::config::Config;
use crate::payload::Payload;
use std::sync::Arc;

/// Statistics of a connection, as TCP_INFO has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// State of the connection.
    pub state: State,
    /// Maximum payload of a packet, in bytes.
    pub segment_bytes: u16,
    /// Smoothed round-trip time, or 0 before the first sample.
    pub round_trip_ns: u64,
    /// Congestion window, in bytes.
    pub congestion_window_bytes: u64,
    /// Whether both ends use ECN.
    pub has_ecn: bool,
    /// Bytes that the peer has acknowledged.
    pub acknowledged_bytes: u64,
    /// Bytes in the send queue: unacknowledged or not yet sent.
    pub queued_bytes: u64,
    /// Number of segments retransmitted, including SYNs.
    pub retransmissions: u64,
    /// Number of segments considered lost, retransmitted or not.
    pub lost_segments: u64,
    /// Number of segments retransmitted and not yet acknowledged.
    pub retransmitted_segments: u64,
    /// Number of consecutive retransmission timeouts.
    pub timeouts: u32,
    /// Bytes ready to be received, in order.
    pub ready_bytes: u64,
}

impl<P: Payload> Connection<P> {
    /// Returns a snapshot of the statistics.
    pub fn statistics(&self) -> Statistics {
        let segment = u64::from(self.segment_bytes());
        let (lost_bytes, retransmitted_bytes) = self.recovery.lost_and_retransmitted_bytes(&self.sent());
        Statistics {
            state: self.state,
            segment_bytes: self.segment_bytes(),
            round_trip_ns: self.round_trip.smoothed_ns().unwrap_or(0),
            congestion_window_bytes: self.congestion.window_bytes(),
            has_ecn: self.ecn.is_used,
            acknowledged_bytes: self.una.saturating_sub(self.initial + 1),
            queued_bytes: self.queue.len_bytes(),
            retransmissions: self.retransmissions,
            lost_segments: lost_bytes.div_ceil(segment),
            retransmitted_segments: retransmitted_bytes.div_ceil(segment),
            timeouts: self.round_trip.backoffs(),
            ready_bytes: self.receiver.ready_bytes(),
        }
    }

    /// Returns the number of segments retransmitted.
    pub fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    /// Changes `nagle` and `keepalive`; changes of other options are ignored.
    pub fn configure(&mut self, change: impl FnOnce(&mut Config)) {
        let mut config = Config::clone(&self.config);
        change(&mut config);
        let Config { nagle, keepalive, .. } = config;
        let own = Arc::make_mut(&mut self.config);
        (own.nagle, own.keepalive) = (nagle, keepalive);
        // The next `arm_timers` computes the deadline with the new interval.
        self.deadlines.keepalive = None;
    }
}
