//! What is known of a connection, and options that change while it lives.

use super::state::{Connection, State};
use crate::config::Config;
use crate::payload::Payload;
use std::sync::Arc;

/// What is known of a connection (TCP_INFO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// The state.
    pub state: State,
    /// How much payload a packet has at most.
    pub segment_bytes: u16,
    /// Smoothed round trip; 0: not known yet.
    pub round_trip_ns: u64,
    /// Congestion window, bytes.
    pub congestion_window_bytes: u64,
    /// Whether both ends use explicit congestion notification.
    pub has_ecn: bool,
    /// Sent bytes that the peer has acknowledged.
    pub acknowledged_bytes: u64,
    /// Sent bytes that it has not, and bytes that wait to be sent.
    pub queued_bytes: u64,
    /// Segments that were sent again, SYNs among them.
    pub retransmissions: u64,
    /// Segments that are believed lost, sent again or not.
    pub lost_segments: u64,
    /// Segments that were sent again and are not acknowledged yet.
    pub retransmitted_segments: u64,
    /// Timeouts since something was acknowledged last.
    pub timeouts: u32,
    /// Received bytes, in order or not, that the program has not taken.
    pub ready_bytes: u64,
}

impl<P: Payload> Connection<P> {
    /// What is known of it.
    pub fn statistics(&self) -> Statistics {
        let segment = u64::from(self.segment_bytes());
        let (lost_bytes, retransmitted_bytes) = self.recovery.repair_bytes(&self.sent());
        Statistics {
            state: self.state,
            segment_bytes: self.segment_bytes(),
            round_trip_ns: self.round_trip.smoothed_ns().unwrap_or(0),
            congestion_window_bytes: self.congestion.window_bytes(),
            has_ecn: self.notification.is_used,
            acknowledged_bytes: self.una.saturating_sub(self.initial + 1),
            queued_bytes: self.queue.len_bytes(),
            retransmissions: self.retransmissions,
            lost_segments: lost_bytes.div_ceil(segment),
            retransmitted_segments: retransmitted_bytes.div_ceil(segment),
            timeouts: self.round_trip.backoffs(),
            ready_bytes: self.receiver.ready_bytes(),
        }
    }

    /// How many segments were sent again.
    pub fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    /// Changes Nagle's algorithm or keepalive; the rest stays as it began.
    pub fn configure(&mut self, change: impl FnOnce(&mut Config)) {
        let mut config = Config::clone(&self.config);
        change(&mut config);
        let Config { nagle, keepalive, .. } = config;
        let own = Arc::make_mut(&mut self.config);
        (own.nagle, own.keepalive) = (nagle, keepalive);
        // What is due is found anew.
        self.deadlines.keepalive = None;
    }
}
