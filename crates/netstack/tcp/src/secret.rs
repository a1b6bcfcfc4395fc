//! Unpredictable numbers derived from the caller's secret: initial sequence numbers (RFC 6528),
//! timestamp offsets (RFC 7323, section 7.1), ports (RFC 6056), and the hashes of the connection table.

use std::hash::{BuildHasher, Hash, Hasher};
use std::net::IpAddr;

use siphasher::sip::{SipHasher13, SipHasher24};

use crate::config::SECOND_NS;
use crate::wire::Tuple;

/// Tick of the clock for initial sequence numbers (RFC 9293, section 3.4.1).
const INITIAL_TICK_NS: u64 = 4_000;

/// Tick of cookies, and the minimum time for which a cookie is valid.
pub const COOKIE_TICK_NS: u64 = 64 * SECOND_NS;
/// The MSS values that a cookie can encode: of IPv4 and IPv6, tunnels, PPPoE, jumbo frames and loopback.
const COOKIE_SIZES: [u16; 8] = [88, 536, 1220, 1360, 1440, 1460, 8_940, 65_483];

/// Sixteen random bytes from the caller.
#[derive(Clone)]
pub struct Secret([u8; 16]);

impl Secret {
    /// Returns a secret made of random bytes.
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    fn hash(&self, purpose: u8, value: impl Hash) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        (purpose, value).hash(&mut hasher);
        hasher.finish()
    }

    /// Returns ISN = M + F(connection, secret) (RFC 6528, section 3).
    pub fn initial_sequence(&self, tuple: &Tuple, now_ns: u64) -> u32 {
        ((now_ns / INITIAL_TICK_NS) as u32).wrapping_add(self.hash(1, tuple) as u32)
    }

    /// Returns the offset of timestamps: one per pair of hosts, so that PAWS holds across connections.
    pub fn timestamp_offset(&self, local: IpAddr, remote: IpAddr) -> u32 {
        self.hash(2, (local, remote)) as u32
    }

    /// Returns a SYN cookie, an ISN that replaces per-connection state (RFC 4987, section 3.6).
    ///
    /// ```text
    /// 31      27 26   24 23                                  0
    /// ┌─────────┬───────┬────────────────────────────────────┐
    /// │ ticks   │ size  │ hash(connection, peer's ISN, both) │
    /// └─────────┴───────┴────────────────────────────────────┘
    /// ```
    pub fn cookie(&self, tuple: &Tuple, peer_initial: u32, mss: u16, now_ns: u64) -> u32 {
        let size = COOKIE_SIZES.partition_point(|&size| size <= mss).saturating_sub(1);
        self.cookie_of(tuple, peer_initial, size as u32, now_ns / COOKIE_TICK_NS)
    }

    fn cookie_of(&self, tuple: &Tuple, peer_initial: u32, size: u32, ticks: u64) -> u32 {
        let hash = self.hash(4, (tuple, peer_initial, size, ticks)) as u32;
        (ticks as u32) << 27 | size << 24 | hash & 0x00ff_ffff
    }

    /// Returns the peer's MSS if `cookie` is valid for the current or the previous tick.
    pub fn cookie_mss(&self, tuple: &Tuple, peer_initial: u32, cookie: u32, now_ns: u64) -> Option<u16> {
        let size = cookie >> 24 & 7;
        let ticks = now_ns / COOKIE_TICK_NS;
        [ticks, ticks.saturating_sub(1)]
            .into_iter()
            .any(|ticks| self.cookie_of(tuple, peer_initial, size, ticks) == cookie)
            .then(|| COOKIE_SIZES[size as usize])
    }

    /// Returns the offset at which the search for a local port begins (RFC 6056, section 3.3.3).
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
    fn a_cookie_is_good_for_one_connection_and_two_ticks() {
        let tuple = |port| Tuple { local: ([10, 0, 0, 1], port).into(), remote: ([10, 0, 0, 2], 9).into() };
        let secret = Secret::new([7; 16]);
        for (mss, kept) in [(1, 88), (88, 88), (535, 88), (1400, 1360), (1460, 1460), (u16::MAX, 65_483)] {
            let cookie = secret.cookie(&tuple(80), 5, mss, 0);
            let read = |port, peer, cookie, now_ns| secret.cookie_mss(&tuple(port), peer, cookie, now_ns);
            assert_eq!(read(80, 5, cookie, 0), Some(kept));
            assert_eq!(read(80, 5, cookie, 2 * COOKIE_TICK_NS - 1), Some(kept));
            assert_eq!(read(80, 5, cookie, 2 * COOKIE_TICK_NS), None);
            assert_eq!(read(81, 5, cookie, 0), None);
            assert_eq!(read(80, 6, cookie, 0), None);
            assert!((0..32).all(|bit| read(80, 5, cookie ^ 1 << bit, 0).is_none()));
        }
    }

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
