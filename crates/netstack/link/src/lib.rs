//! Links: transports of IP packets for a TCP in user space.
//!
//! ```text
//!            TCP of our own
//!   send │ headers, payload    ▲ receive, one packet in one buffer
//!   ┌────▼─────────────────────┴────┐
//!   │ pcap ── tun ── device, kernel │
//!   │     ├── xdp ── network        │
//!   │     └── memory ── the peer    │
//!   └───────────────────────────────┘
//! ```
//!
//! A packet may be a super-packet of up to 64 KiB with one IP and TCP header, which the link splits into
//! segments. The link computes and verifies TCP checksums. No link knows connections, and none blocks.
//!
//! | module | what it is |
//! |---|---|
//! | [`tun`], [`device`] | a TUN device, and its configuration |
//! | `xdp` | a queue of an Ethernet device by AF_XDP (feature `xdp`) |
//! | [`memory`] | a pair of links connected to each other |
//! | [`pcap`] | a link that records its packets in a file |
//! | `oracles` | hostile packets, for tests and fuzzing |
//! | [`checksum`], [`packet`], [`split`] | checksums, validation of packets, segments of a super-packet |
#![cfg(target_os = "linux")]
#![deny(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "lengths of one IP packet, and constants of the kernel's structures"
)]

use std::io::{self, IoSlice};
use std::os::fd::RawFd;

pub mod checksum;
pub mod device;
pub mod memory;
#[cfg(any(test, feature = "oracles"))]
pub mod oracles;
pub mod packet;
pub mod pcap;
pub mod split;
pub mod tun;
#[cfg(feature = "xdp")]
pub mod xdp;

/// Maximum length of an IP packet that a link sends or receives, in bytes.
pub const MAX_PACKET_BYTES: usize = 65_535;

/// A transport of IP packets.
pub trait Link {
    /// Returns a descriptor that is readable while a packet can be received; valid as long as the link.
    fn fd(&self) -> RawFd;

    /// Returns the maximum length of an unsegmented packet, in bytes from the IP header on.
    fn mtu_bytes(&self) -> usize;

    /// Returns the maximum length of a received packet: [`MAX_PACKET_BYTES`] with offload, else the MTU.
    fn max_packet_bytes(&self) -> usize;

    /// Receives one IP packet into `room` and returns its length in bytes, or `None` if there is none.
    ///
    /// The packet is complete. Its IPv4, TCP, ICMP and ICMPv6 checksums are right, or the link
    /// vouches for them: then TCP's field may hold anything. Invalid packets, and packets longer
    /// than `room`, are dropped and counted.
    ///
    /// # Errors
    /// The kernel's error once the link is gone.
    fn receive(&mut self, room: &mut [u8]) -> io::Result<Option<usize>>;

    /// Sends `header` (IP and TCP) and `payload` in segments of at most `max_segment_payload_bytes`,
    /// and overwrites the TCP checksum. Returns false, and sends nothing, if there is no room.
    ///
    /// Packets of other protocols are sent unchanged.
    ///
    /// # Errors
    /// `InvalidInput` if the packet is malformed or its IP header has another length; `HostUnreachable`
    /// if the neighbour does not answer; else the kernel's error.
    fn send(
        &mut self,
        header: &mut [u8],
        payload: &[IoSlice<'_>],
        max_segment_payload_bytes: usize,
    ) -> io::Result<bool>;

    /// Returns the traffic counters.
    fn counters(&self) -> Counters;
}

/// Packets, and their bytes from the IP header on. A super-packet counts as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets, each super-packet counting once.
    pub packets: u64,
    /// Bytes from the IP header on.
    pub bytes: u64,
}

impl Traffic {
    /// Counts a packet of this length.
    pub fn count(&mut self, packet_bytes: usize) {
        self.packets += 1;
        self.bytes += packet_bytes as u64;
    }
}

/// Traffic of a link since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets delivered by [`Link::receive`].
    pub received: Traffic,
    /// Packets accepted by [`Link::send`].
    pub sent: Traffic,
    /// Packets dropped as [`packet::Validity::Malformed`], or because they were longer than the buffer.
    pub malformed: u64,
    /// Packets dropped because of a wrong checksum.
    pub bad_checksums: u64,
    /// Packets that [`Link::send`] refused for lack of room.
    pub refused: u64,
    /// Super-packets counted in `received`.
    pub received_super: u64,
    /// Super-packets counted in `sent`.
    pub sent_super: u64,
}
