//! The JSON document of `uncopy net ls` and `uncopy net stats`.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// State of a service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct List {
    /// Version of the schema, [`uncopy_core::schema::NET`].
    pub schema: u32,
    /// Process ID of the service.
    pub pid: u32,
    /// Own addresses with their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// MTU of the link, in bytes.
    pub mtu_bytes: usize,
    /// Whether bytes are copied between TCP and programs, as the socket API does.
    pub makes_api_copies: bool,
    /// Uptime of the service, in seconds.
    pub up_s: u64,
    /// Traffic since the service began.
    pub traffic: Traffic,
    /// Addresses at which programs listen.
    pub listeners: Vec<Listener>,
    /// Connections that programs have.
    pub connections: Vec<Connection>,
}

/// Traffic since the service began.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Packets received from the link; a super-packet counts as one.
    pub received_packets: u64,
    /// Bytes received from the link.
    pub received_bytes: u64,
    /// Packets sent to the link.
    pub sent_packets: u64,
    /// Bytes sent to the link.
    pub sent_bytes: u64,
    /// Packets dropped: malformed, with a wrong checksum, or for lack of memory.
    pub dropped_packets: u64,
    /// Bytes copied in this process between TCP and programs.
    pub copied_bytes: u64,
    /// Number of TCP segments retransmitted.
    pub retransmissions: u64,
    /// Connections of programs so far.
    pub connections: u64,
}

/// A local address at which programs listen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listener {
    /// Address and port of the sockets.
    pub address: SocketAddr,
    /// Number of listening sockets.
    pub sockets: usize,
}

/// A connection of a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// Address of the program's end.
    pub local: SocketAddr,
    /// Address of the peer's end.
    pub remote: SocketAddr,
    /// State, as named in RFC 9293.
    pub state: String,
    /// Smoothed round-trip time, in µs.
    pub round_trip_us: u64,
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
    /// Bytes taken from TCP for the program.
    pub received_bytes: u64,
    /// Received bytes that the program's stream has not accepted yet.
    pub waiting_bytes: u64,
}
