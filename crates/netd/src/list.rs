//! What there is, as JSON: for `uncopy net ls` and `uncopy net stats`.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// What a service has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct List {
    /// [`uncopy_core::schema::NET`].
    pub schema: u32,
    /// Process of the service.
    pub pid: u32,
    /// Addresses of its own, each with the bits of its prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Longest packet of the link, bytes.
    pub mtu_bytes: usize,
    /// Whether received and sent bytes are copied once more.
    pub makes_api_copies: bool,
    /// Since when it runs, seconds.
    pub up_s: u64,
    /// What has passed.
    pub traffic: Traffic,
    /// What programs listen at.
    pub listeners: Vec<Listener>,
    /// Connections that programs have.
    pub connections: Vec<Connection>,
}

/// What has passed since the service began.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Packets from the link, a super-packet being one.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets to the link.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that were dropped: malformed, of a wrong checksum, or of no room.
    pub dropped_packets: u64,
    /// Bytes that were copied in this process between TCP and programs.
    pub copied_bytes: u64,
    /// Segments of TCP that were sent again.
    pub retransmissions: u64,
    /// Connections that have begun.
    pub connections: u64,
}

/// What programs listen at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listener {
    /// The address.
    pub address: SocketAddr,
    /// How many sockets.
    pub sockets: usize,
}

/// A connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// The program's address.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// RFC 9293's name of its state.
    pub state: String,
    /// Smoothed round trip, µs.
    pub round_trip_us: u64,
    /// Congestion window, bytes.
    pub congestion_window_bytes: u64,
    /// Whether both ends use explicit congestion notification.
    pub has_ecn: bool,
    /// Sent bytes that the peer has acknowledged.
    pub acknowledged_bytes: u64,
    /// Bytes that wait to be sent or acknowledged.
    pub queued_bytes: u64,
    /// Segments that were sent again.
    pub retransmissions: u64,
    /// Bytes that came and were given to the program.
    pub received_bytes: u64,
    /// Received bytes that the program has not taken.
    pub waiting_bytes: u64,
}
