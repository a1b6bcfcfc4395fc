//! Links: what carries IP packets for a TCP in user space.
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
//! A packet may be a super-packet: one IP header, one TCP header, and up to 64 KiB, which the link splits into segments. TCP's
//! checksum, which covers the payload, is the link's both ways. Nothing here knows connections, or waits.
//!
//! | module | what it is |
//! |---|---|
//! | [`tun`], [`device`] | a TUN device, and its settings |
//! | `xdp` | a queue of an Ethernet device by AF_XDP, with the feature of that name |
//! | [`memory`] | two links that are each other's peer |
//! | [`pcap`] | a link whose packets are written to a file |
//! | `oracles` | hostile packets, for tests and fuzzing |
//! | [`checksum`], [`packet`], [`split`] | sums, whether a packet is whole, segments of a super-packet |
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

/// The longest IP packet that a link takes or hands over, bytes.
pub const MAX_PACKET_BYTES: usize = 65_535;

/// Carries IP packets.
pub trait Link {
    /// Readable when a packet can be received. The link's own; it stays open as long as the link.
    fn fd(&self) -> RawFd;

    /// The longest packet that goes over it in one piece, bytes from the IP header on.
    fn mtu_bytes(&self) -> usize;

    /// The longest packet that [`Link::receive`] hands over, bytes: [`MAX_PACKET_BYTES`] with offload, else the MTU.
    fn max_packet_bytes(&self) -> usize;

    /// Receives one IP packet into `room` and says its length in bytes; `None`: there is none now.
    ///
    /// It is whole, and the checksums of IPv4, TCP, ICMP and ICMPv6 are right, or the link says that they need no verification;
    /// then the field of TCP is not the checksum. What is wrong is dropped and counted, and so is what `room` is too short for.
    ///
    /// # Errors
    /// What the kernel says when the link is no longer there.
    fn receive(&mut self, room: &mut [u8]) -> io::Result<Option<usize>>;

    /// Sends one packet: `header` (IP and TCP), then the parts of `payload`, in segments of `max_segment_payload_bytes` at
    /// most. The link writes TCP's checksum, whatever stood there. `false`: it has no room now, and nothing was sent.
    ///
    /// A packet of another protocol goes as it is.
    ///
    /// # Errors
    /// `InvalidInput` if it is not a packet or its IP header gives another length; `HostUnreachable` if its neighbour does not answer;
    /// else what the kernel says.
    fn send(
        &mut self,
        header: &mut [u8],
        payload: &[IoSlice<'_>],
        max_segment_payload_bytes: usize,
    ) -> io::Result<bool>;

    /// What has passed.
    fn counters(&self) -> Counters;
}

/// Packets, a super-packet being one, and their bytes from the IP header on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Traffic {
    /// Counts a packet.
    pub fn count(&mut self, packet_bytes: usize) {
        self.packets += 1;
        self.bytes += packet_bytes as u64;
    }
}

/// What has passed a link since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handed over.
    pub received: Traffic,
    /// Taken.
    pub sent: Traffic,
    /// Dropped: shorter than the IP header says, not IP at all, or longer than the room.
    pub malformed: u64,
    /// Dropped: a checksum was wrong.
    pub bad_checksums: u64,
    /// Not taken, as there was no room.
    pub refused: u64,
    /// Received super-packets, among `received`.
    pub received_super: u64,
    /// Sent super-packets, among `sent`.
    pub sent_super: u64,
}
