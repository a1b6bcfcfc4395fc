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
    /// Received bytes, in order or not, that the program has not taken.
    pub ready_bytes: u64,
}

impl<P: Payload> Connection<P> {
    /// What is known of it.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            state: self.state,
            segment_bytes: self.segment_bytes(),
            round_trip_ns: self.round_trip.smoothed_ns().unwrap_or(0),
            congestion_window_bytes: self.congestion.window_bytes(),
            has_ecn: self.notification.is_used,
            acknowledged_bytes: self.una.saturating_sub(self.initial + 1),
            queued_bytes: self.queue.len_bytes(),
            ready_bytes: self.receiver.ready_bytes(),
        }
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
