//! Options of a connection, and bounds common to all. Times are in nanoseconds; defaults follow Linux.

/// One millisecond, in nanoseconds.
pub const MILLISECOND_NS: u64 = 1_000_000;
/// One second, in nanoseconds.
pub const SECOND_NS: u64 = 1_000 * MILLISECOND_NS;

/// Minimum retransmission timeout: 200 ms as in Linux (RFC 6298, section 2.4, says one second).
pub const MIN_RTO_NS: u64 = 200 * MILLISECOND_NS;
/// Retransmission timeout before the first round-trip sample (RFC 6298, section 2.1).
pub const INITIAL_RTO_NS: u64 = SECOND_NS;
/// Maximum retransmission timeout (RFC 6298, section 2.5).
pub const MAX_RTO_NS: u64 = 120 * SECOND_NS;
/// Delay of a delayed acknowledgement (RFC 9293, section 3.8.6.3: less than 500 ms).
pub const DELAYED_ACK_NS: u64 = 40 * MILLISECOND_NS;
/// Time that a tail loss probe waits beyond two round trips while one segment is in flight: the peer's
/// delayed acknowledgement (WCDelAckT of RFC 8985, section 7.2).
pub const PROBE_ACK_DELAY_NS: u64 = 200 * MILLISECOND_NS;
/// Time that a tail loss probe waits beyond two round trips with more in flight (`TCP_TIMEOUT_MIN`).
pub const PROBE_SLACK_NS: u64 = 2 * MILLISECOND_NS;
/// Minimum reordering window before a gap counts as lost.
pub const MIN_REORDERING_NS: u64 = MILLISECOND_NS;
/// Override timeout of the sender's silly window avoidance (RFC 9293, section 3.8.6.2.1).
pub const SWS_OVERRIDE_NS: u64 = 200 * MILLISECOND_NS;
/// Duration of TIME-WAIT, and of FIN-WAIT-2 once the program has closed.
pub const TIME_WAIT_NS: u64 = 60 * SECOND_NS;
/// Maximum number of SYN retransmissions (`tcp_syn_retries`).
pub const MAX_SYN_RETRIES: u32 = 6;
/// Maximum number of SYN-ACK retransmissions (`tcp_synack_retries`).
pub const MAX_SYN_ACK_RETRIES: u32 = 5;
/// Maximum number of unanswered retransmissions or window probes (`tcp_retries2`).
pub const MAX_RETRIES: u32 = 15;
/// Zero-window probes before an orphaned connection is given up (`tcp_orphan_retries`). A minimum
/// is needed because after losses already the first probe may use the maximum timeout.
pub const MIN_ORPHAN_PROBES: u32 = 8;
/// Maximum number of challenge ACKs per connection and second (RFC 5961, section 7).
pub const MAX_CHALLENGES_PER_SECOND: u32 = 10;
/// Age after which the peer's last timestamp is invalid (RFC 7323, section 5.5).
pub const MAX_TIMESTAMP_AGE_NS: u64 = 24 * 24 * 3600 * SECOND_NS;
/// Maximum number of ranges on the scoreboard; bytes reported beyond that are retransmitted needlessly.
pub const MAX_SACKED_RANGES: usize = 1024;
/// MSS assumed if the peer announces none (RFC 9293, section 3.7.1; IPv6: 1220).
pub const DEFAULT_PEER_MSS: u16 = 536;
/// Minimum MSS; smaller values from the peer or ICMP are raised to it.
pub const MIN_MSS: u16 = 88;

/// Algorithm of congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// RFC 9438, the default.
    #[default]
    Cubic,
    /// NewReno (RFC 5681 and 6582).
    NewReno,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ecn {
    /// ECN is not used.
    Off,
    /// ECN is accepted if the peer requests it (`tcp_ecn` = 2).
    #[default]
    Accepted,
    /// ECN is also requested on outgoing connections (`tcp_ecn` = 1).
    Requested,
}

/// Keepalive parameters (RFC 9293, section 3.8.4).
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    /// Idle time before the first probe (`TCP_KEEPIDLE`).
    pub idle_ns: u64,
    /// Interval between probes (`TCP_KEEPINTVL`).
    pub interval_ns: u64,
    /// Unanswered probes before the connection ends (`TCP_KEEPCNT`).
    pub max_probes: u32,
}

/// The options of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// Largest segment that the link takes: MTU minus the fixed headers of IP and TCP.
    pub mss: u16,
    /// Maximum payload of one segment handed to the link, which splits segments longer than `mss`.
    pub max_super_payload_bytes: usize,
    /// Size of the receive buffer, for bytes in order and out of order.
    pub receive_buffer_bytes: usize,
    /// Maximum number of pieces in the receive buffer: bounds the cost of one-byte segments.
    pub max_receive_pieces: usize,
    /// Size of the send buffer, for bytes not yet acknowledged.
    pub send_buffer_bytes: usize,
    /// Maximum number of pieces in the send buffer.
    pub max_send_pieces: usize,
    /// Whether window scaling is used (RFC 7323).
    pub window_scaling: bool,
    /// Whether SACK is used (RFC 2018).
    pub sack: bool,
    /// Whether timestamps are used (RFC 7323).
    pub timestamps: bool,
    /// Whether Nagle's algorithm delays small segments (RFC 9293, section 3.7.4).
    pub nagle: bool,
    /// Keepalive parameters; `None` disables keepalive.
    pub keepalive: Option<Keepalive>,
    /// Algorithm of congestion control.
    pub congestion_control: CongestionControl,
    /// Use of explicit congestion notification.
    pub ecn: Ecn,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mss: 1460,
            max_super_payload_bytes: crate::wire::MAX_SUPER_PAYLOAD_BYTES,
            receive_buffer_bytes: 4 << 20,
            max_receive_pieces: 4096,
            send_buffer_bytes: 4 << 20,
            max_send_pieces: 4096,
            window_scaling: true,
            sack: true,
            timestamps: true,
            nagle: true,
            keepalive: None,
            congestion_control: CongestionControl::Cubic,
            ecn: Ecn::default(),
        }
    }
}
