//! Layout and validation of IP packets.

use std::ops::Range;

use etherparse::{IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice};

use crate::checksum::{Sum, pseudo_header};

/// Offset of the checksum in the TCP header, in bytes.
pub const TCP_CHECKSUM_AT: usize = 16;
const MIN_TCP_BYTES: usize = 20;

/// Layout of an IP packet. Positions are byte offsets in the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Whether the packet is IPv6.
    pub is_v6: bool,
    /// Protocol after the IP header; an IPv6 extension header counts as a protocol.
    pub protocol: IpNumber,
    /// Source and destination address.
    pub addresses: Range<usize>,
    /// From the end of the IP header to the end of the packet.
    pub transport: Range<usize>,
    /// Whether the packet is a fragment.
    pub is_fragment: bool,
}

impl Layout {
    /// Parses the IP header at the start of `bytes`, which may omit the rest. `None` if it is invalid.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => {
                let ip = Ipv4HeaderSlice::from_slice(bytes).ok()?;
                let transport = ip.slice().len()..usize::from(ip.total_len());
                (transport.start <= transport.end).then(|| Self {
                    is_v6: false,
                    protocol: ip.protocol(),
                    addresses: 12..20,
                    transport,
                    is_fragment: ip.is_fragmenting_payload(),
                })
            }
            6 => {
                let ip = Ipv6HeaderSlice::from_slice(bytes).ok()?;
                let end = 40 + usize::from(ip.payload_length());
                let (protocol, transport) = (ip.next_header(), 40..end);
                Some(Self { is_v6: true, protocol, addresses: 8..40, transport, is_fragment: false })
            }
            _ => None,
        }
    }

    /// True if a TCP header follows the IP header.
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        self.protocol == IpNumber::TCP && !self.is_fragment && self.transport.len() >= MIN_TCP_BYTES
    }

    /// Returns the sum of the pseudo-header; `bytes` starts with the IP header.
    #[must_use]
    pub fn pseudo_header(&self, bytes: &[u8]) -> Sum {
        pseudo_header(&bytes[self.addresses.clone()], self.protocol.0, self.transport.len())
    }
}

/// Result of validating a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// Complete, and no verified checksum is wrong.
    Valid,
    /// Not IP, an invalid IP header, or truncated.
    Malformed,
    /// At least one verified checksum is wrong.
    BadChecksum,
}

/// Validates a packet. `trusts_checksum` skips the transport checksum. Checksums are verified for TCP,
/// ICMP and ICMPv6, but not in fragments or after extension headers.
#[must_use]
pub fn validate(packet: &[u8], trusts_checksum: bool) -> Validity {
    let Some(layout) = Layout::of(packet) else { return Validity::Malformed };
    let Some(transport) = packet.get(layout.transport.clone()) else { return Validity::Malformed };
    if !layout.is_v6 {
        let mut header = Sum::default();
        header.add(&packet[..layout.transport.start]);
        if !header.is_valid() {
            return Validity::BadChecksum;
        }
    }
    let has_pseudo_header = match (layout.protocol, layout.is_v6) {
        (IpNumber::TCP, _) | (IpNumber::IPV6_ICMP, true) => true,
        (IpNumber::ICMP, false) => false,
        _ => return Validity::Valid,
    };
    if trusts_checksum || layout.is_fragment {
        return Validity::Valid;
    }
    let mut sum = if has_pseudo_header { layout.pseudo_header(packet) } else { Sum::default() };
    sum.add(transport);
    if sum.is_valid() { Validity::Valid } else { Validity::BadChecksum }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn icmp(is_v6: bool, body: &[u8]) -> Vec<u8> {
        let mut packet = if is_v6 {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, 58, 64];
            header[4..6].copy_from_slice(&u16::try_from(body.len() + 8).unwrap().to_be_bytes());
            header.extend((0..32).map(|byte| byte + 0x20));
            header
        } else {
            let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
            header[2..4].copy_from_slice(&u16::try_from(body.len() + 28).unwrap().to_be_bytes());
            let mut sum = Sum::default();
            sum.add(&header);
            header[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
            header
        };
        let at = packet.len();
        packet.extend([8, 0, 0, 0, 1, 2, 3, 4]);
        packet.extend(body);
        let layout = Layout::of(&packet).unwrap();
        let mut sum = if is_v6 { layout.pseudo_header(&packet) } else { Sum::default() };
        sum.add(&packet[at..]);
        packet[at + 2..at + 4].copy_from_slice(&sum.checksum().to_be_bytes());
        packet
    }

    proptest! {
        #[test]
        fn icmp_is_sound_until_a_bit_changes(
            is_v6: bool, body in prop::collection::vec(any::<u8>(), 0..200), at: usize, bit in 0u8..8,
        ) {
            let mut packet = icmp(is_v6, &body);
            prop_assert_eq!(validate(&packet, false), Validity::Valid);
            prop_assert_eq!(validate(&packet[..packet.len() - 1], false), Validity::Malformed);
            let header_bytes = if is_v6 { 40 } else { 20 };
            let at = header_bytes + at % (packet.len() - header_bytes);
            packet[at] ^= 1 << bit;
            prop_assert_eq!(validate(&packet, false), Validity::BadChecksum);
            prop_assert_eq!(validate(&packet, true), Validity::Valid);
        }

        #[test]
        fn arbitrary_bytes_are_validated(mut bytes in prop::collection::vec(any::<u8>(), 0..120), first: Option<bool>, trusts_checksum: bool) {
            if let (Some(is_v6), Some(byte)) = (first, bytes.first_mut()) {
                *byte = if is_v6 { 0x60 } else { 0x45 };
            }
            if validate(&bytes, trusts_checksum) != Validity::Malformed {
                prop_assert!(Layout::of(&bytes).unwrap().transport.end <= bytes.len());
            }
        }
    }

    #[test]
    fn a_wrong_checksum_of_the_ip_header_is_seen_in_every_protocol() {
        let mut packet = icmp(false, b"body");
        packet[9] = 17;
        assert_eq!(validate(&packet, true), Validity::BadChecksum);
    }
}
