//! What a connection is told when it begins, and bounds that hold for all. Times are in nanoseconds, after Linux's defaults.

/// A millisecond.
pub const MILLISECOND_NS: u64 = 1_000_000;
/// A second.
pub const SECOND_NS: u64 = 1_000 * MILLISECOND_NS;

/// The least timeout (RFC 6298 section 2.4 says one second; Linux and this say 200 ms).
pub const MIN_RTO_NS: u64 = 200 * MILLISECOND_NS;
/// The first timeout, before any round trip is known (RFC 6298, section 2.1).
pub const INITIAL_RTO_NS: u64 = SECOND_NS;
/// The longest timeout (RFC 6298, section 2.5).
pub const MAX_RTO_NS: u64 = 120 * SECOND_NS;
/// How long an acknowledgement is delayed (RFC 9293 section 3.8.6.3: less than 500 ms).
pub const DELAYED_ACK_NS: u64 = 40 * MILLISECOND_NS;
/// What a probe for a lost tail waits for beside two round trips: the peer's delayed acknowledgement, where one segment is on its
/// way (WCDelAckT of RFC 8985, section 7.2).
pub const PROBE_ACK_DELAY_NS: u64 = 200 * MILLISECOND_NS;
/// As above, where more are (`TCP_TIMEOUT_MIN`).
pub const PROBE_SLACK_NS: u64 = 2 * MILLISECOND_NS;
/// The least time that segments are given to overtake one another.
pub const MIN_REORDERING_NS: u64 = MILLISECOND_NS;
/// How long the sender waits before it sends less than a good part of the window (RFC 9293, section 3.8.6.2.1).
pub const OVERRIDE_NS: u64 = 200 * MILLISECOND_NS;
/// TIME-WAIT, and FIN-WAIT-2 after the program has closed.
pub const TIME_WAIT_NS: u64 = 60 * SECOND_NS;
/// How many SYNs are repeated (`tcp_syn_retries`), and SYN-ACKs (`tcp_synack_retries`).
pub const MAX_SYN_RETRIES: u32 = 6;
/// As above.
pub const MAX_SYN_ACK_RETRIES: u32 = 5;
/// How often data is retransmitted, or a window probed, without an answer (`tcp_retries2`).
pub const MAX_RETRIES: u32 = 15;
/// Probes of a window of nothing before a connection is given up that no program has any more (Linux, tcp_orphan_retries): after lost
/// segments the first of them may come late already.
pub const MIN_RELEASED_PROBES: u32 = 8;
/// How many acknowledgements that only answer what is wrong there may be in a second (RFC 5961, section 7).
pub const MAX_CHALLENGES_PER_SECOND: u32 = 10;
/// How long a timestamp of the peer counts (RFC 7323, section 5.5).
pub const MAX_TIMESTAMP_AGE_NS: u64 = 24 * 24 * 3600 * SECOND_NS;
/// How many ranges the scoreboard has at most; what is beyond is retransmitted though it arrived.
pub const MAX_SACKED_RANGES: usize = 1024;
/// The largest segment that is assumed where the peer names none (RFC 9293, section 3.7.1; IPv6: 1220).
pub const DEFAULT_PEER_MSS: u16 = 536;
/// The least segment that is sent; what the peer or an ICMP message asks below it is not believed.
pub const MIN_MSS: u16 = 88;

/// Which congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681 and 6582.
    NewReno,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ecn {
    /// It is not used.
    Off,
    /// A peer that asks for it has it (`tcp_ecn` of 2).
    #[default]
    Accepted,
    /// It is asked for as well (`tcp_ecn` of 1).
    Requested,
}

/// When a silent peer is asked whether it is there (RFC 9293, section 3.8.4).
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    /// After how much silence.
    pub idle_ns: u64,
    /// How long between probes.
    pub interval_ns: u64,
    /// After how many unanswered ones the connection ends.
    pub max_probes: u32,
}

/// The options of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// The largest segment that the link takes: MTU less the fixed headers of IP and TCP.
    pub mss: u16,
    /// How much payload one segment handed to the link may have; it splits what is longer than `mss`.
    pub max_super_payload_bytes: usize,
    /// How many received bytes wait for the program, in order or not.
    pub receive_buffer_bytes: usize,
    /// How many pieces received bytes may lie in: a bound on what one-byte segments cost.
    pub max_receive_pieces: usize,
    /// How many bytes wait to be acknowledged.
    pub send_buffer_bytes: usize,
    /// How many pieces sent bytes may lie in.
    pub max_send_pieces: usize,
    /// Whether windows are scaled (RFC 7323).
    pub window_scaling: bool,
    /// Whether SACK is used (RFC 2018).
    pub sack: bool,
    /// Whether timestamps are used (RFC 7323).
    pub timestamps: bool,
    /// Whether small segments wait for the acknowledgement of what was sent before (RFC 9293, section 3.7.4).
    pub nagle: bool,
    /// Keepalive; off where none.
    pub keepalive: Option<Keepalive>,
    /// Which congestion control.
    pub congestion_control: CongestionControl,
    /// Whether routers may mark packets where they would drop them.
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
