//! Numbers that others cannot foresee, from the caller's secret: initial sequence numbers (RFC 6528), where timestamps
//! begin (RFC 7323, section 7.1), ports (RFC 6056), and the hashes of the table of connections.

use std::hash::{BuildHasher, Hash, Hasher};
use std::net::IpAddr;

use siphasher::sip::{SipHasher13, SipHasher24};

use crate::wire::Tuple;

/// The clock of initial sequence numbers ticks every 4 µs (RFC 9293, section 3.4.1).
const INITIAL_TICK_NS: u64 = 4_000;

/// Sixteen random bytes of the caller.
#[derive(Clone)]
pub struct Secret([u8; 16]);

impl Secret {
    /// From random bytes.
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    fn hash(&self, purpose: u8, value: impl Hash) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        (purpose, value).hash(&mut hasher);
        hasher.finish()
    }

    /// ISN = M + F(connection, secret).
    pub fn initial_sequence(&self, tuple: &Tuple, now_ns: u64) -> u32 {
        ((now_ns / INITIAL_TICK_NS) as u32).wrapping_add(self.hash(1, tuple) as u32)
    }

    /// What is added to the clock in timestamps: one number for two hosts, so that PAWS holds across their connections.
    pub fn timestamp_offset(&self, local: IpAddr, remote: IpAddr) -> u32 {
        self.hash(2, (local, remote)) as u32
    }

    /// Where the search for a local port begins.
    pub fn port_offset(&self, local: IpAddr, remote: std::net::SocketAddr) -> u16 {
        self.hash(3, (local, remote)) as u16
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret")
    }
}

impl BuildHasher for Secret {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_numbers_grow_with_time_and_differ_by_connection_and_secret() {
        let tuple = |port| Tuple { local: ([10, 0, 0, 1], port).into(), remote: ([10, 0, 0, 2], 9).into() };
        let secret = Secret::new([7; 16]);
        let first = secret.initial_sequence(&tuple(80), 0);
        assert_eq!(secret.initial_sequence(&tuple(80), 4_000_000).wrapping_sub(first), 1000);
        assert_ne!(secret.initial_sequence(&tuple(81), 0), first);
        assert_ne!(Secret::new([8; 16]).initial_sequence(&tuple(80), 0), first);
    }
}
