//! ICMP (RFC 792, 4443): errors for sent segments, and answers to echo requests.

use std::net::{IpAddr, SocketAddr};
use uncopy_tcp::error::Error;
use uncopy_tcp::wire::Tuple;

/// Effect of an ICMP message.
#[derive(Debug, PartialEq, Eq)]
pub enum IcmpEffect {
    /// The segment with this sequence number did not reach the peer.
    Unreachable(Tuple, u32, Error),
    /// Maximum packet length on the path of this segment, in bytes.
    PathMtu(Tuple, u32, u16),
    /// Echo reply, a whole packet.
    EchoReply(Vec<u8>),
}

const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;
const TCP: u8 = 6;

/// Parses an ICMP packet for a host that is `own`, with verified checksums. `None` if it has no effect.
#[must_use]
pub fn parse(packet: &[u8], own: impl Fn(IpAddr) -> bool) -> Option<IcmpEffect> {
    let ip = Ip::parse(packet)?;
    let message = packet.get(ip.payload_at..ip.end.min(packet.len()))?;
    if !own(ip.destination) || (ip.protocol != ICMP && ip.protocol != ICMP_V6) {
        return None;
    }
    let (kind, code) = (*message.first()?, *message.get(1)?);
    let rest = u32::from_be_bytes(message.get(4..8)?.try_into().ok()?);
    match (ip.protocol, kind) {
        (ICMP, 8) => Some(IcmpEffect::EchoReply(echo(packet, &ip, 0))),
        (ICMP_V6, 128) => Some(IcmpEffect::EchoReply(echo(packet, &ip, 129))),
        (ICMP, 3) if code == 4 => {
            let (tuple, sequence) = quoted(&message[8..])?;
            Some(IcmpEffect::PathMtu(tuple, sequence, rest as u16))
        }
        (ICMP, 3) => {
            let (tuple, sequence) = quoted(&message[8..])?;
            Some(IcmpEffect::Unreachable(tuple, sequence, unreachable_v4(code)))
        }
        (ICMP_V6, 2) => {
            let (tuple, sequence) = quoted(&message[8..])?;
            Some(IcmpEffect::PathMtu(tuple, sequence, u16::try_from(rest).unwrap_or(u16::MAX)))
        }
        (ICMP_V6, 1) => {
            let (tuple, sequence) = quoted(&message[8..])?;
            Some(IcmpEffect::Unreachable(tuple, sequence, unreachable_v6(code)))
        }
        _ => None,
    }
}

/// Maps codes as Linux does (net/ipv4/icmp.c, icmp_err_convert).
const fn unreachable_v4(code: u8) -> Error {
    match code {
        0 | 6 | 9 | 11 => Error::NetworkUnreachable,
        2 | 3 => Error::ConnectionRefused,
        _ => Error::HostUnreachable,
    }
}

/// Maps codes as Linux does (net/ipv6/icmp.c, tab_unreach).
const fn unreachable_v6(code: u8) -> Error {
    match code {
        0 => Error::NetworkUnreachable,
        4 => Error::ConnectionRefused,
        _ => Error::HostUnreachable,
    }
}

struct Ip {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    payload_at: usize,
    /// End of the packet according to its header.
    end: usize,
}

impl Ip {
    fn parse(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => {
                let header: &[u8; 20] = packet.first_chunk()?;
                let payload_at = usize::from(header[0] & 15) * 4;
                let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
                let address = |at: usize| IpAddr::from([0, 1, 2, 3].map(|index| header[at + index]));
                (payload_at >= 20 && fragment == 0).then(|| Self {
                    source: address(12),
                    destination: address(16),
                    protocol: header[9],
                    payload_at,
                    end: u16::from_be_bytes([header[2], header[3]]).into(),
                })
            }
            6 => {
                let header: &[u8; 40] = packet.first_chunk()?;
                let address = |at: usize| {
                    let mut bytes = [0; 16];
                    bytes.copy_from_slice(&header[at..at + 16]);
                    IpAddr::from(bytes)
                };
                Some(Self {
                    source: address(8),
                    destination: address(24),
                    protocol: header[6],
                    payload_at: 40,
                    end: 40 + usize::from(u16::from_be_bytes([header[4], header[5]])),
                })
            }
            _ => None,
        }
    }
}

/// Returns the connection and sequence number of the sent segment quoted in a message.
fn quoted(packet: &[u8]) -> Option<(Tuple, u32)> {
    let ip = Ip::parse(packet).filter(|ip| ip.protocol == TCP)?;
    let tcp: &[u8; 8] = packet.get(ip.payload_at..)?.first_chunk()?;
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let tuple = Tuple {
        local: SocketAddr::new(ip.source, port(0)),
        remote: SocketAddr::new(ip.destination, port(2)),
    };
    Some((tuple, u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])))
}

/// Returns the request with its addresses swapped and the type `kind`; the checksum is adjusted for the type.
fn echo(packet: &[u8], ip: &Ip, kind: u8) -> Vec<u8> {
    let mut reply = packet[..ip.end.min(packet.len())].to_vec();
    let (first, len) = if ip.source.is_ipv4() { (12, 4) } else { (8, 16) };
    let (sources, destinations) = reply[first..first + 2 * len].split_at_mut(len);
    sources.swap_with_slice(destinations);
    let at = ip.payload_at;
    let before = u16::from_be_bytes([reply[at], reply[at + 1]]);
    reply[at] = kind;
    let after = u16::from_be_bytes([reply[at], reply[at + 1]]);
    let sum = u16::from_be_bytes([reply[at + 2], reply[at + 3]]);
    reply[at + 2..at + 4].copy_from_slice(&updated(sum, before, after).to_be_bytes());
    reply
}

/// Returns a checksum updated for one changed word (RFC 1624, equation 3).
fn updated(sum: u16, before: u16, after: u16) -> u16 {
    let mut total = u32::from(!sum) + u32::from(!before) + u32::from(after);
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    !(total as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u16 {
        let words = bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)));
        let mut total: u32 = words.sum();
        while total >> 16 != 0 {
            total = (total & 0xffff) + (total >> 16);
        }
        !(total as u16)
    }

    fn packet(protocol: u8, message: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, (20 + message.len()) as u8, 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend(message);
        packet
    }

    fn segment() -> Vec<u8> {
        let mut segment = packet(TCP, &[0, 80, 1, 0, 0xff, 0, 0, 5]);
        segment[12..20].copy_from_slice(&[10, 0, 0, 2, 10, 0, 9, 9]);
        segment
    }

    const fn is_own(_: IpAddr) -> bool {
        true
    }

    #[test]
    fn echo_reply_reverses_the_request() {
        let mut message = vec![8, 0, 0, 0, 1, 2, 3, 4, b'x', b'y', b'z'];
        let check = sum(&message).to_be_bytes();
        message[2..4].copy_from_slice(&check);
        let Some(IcmpEffect::EchoReply(reply)) = parse(&packet(ICMP, &message), is_own) else {
            panic!("no echo")
        };
        assert_eq!(reply[12..20], [10, 0, 0, 2, 10, 0, 0, 1]);
        assert_eq!((reply[20], &reply[24..], sum(&reply[20..])), (0, &message[4..], 0));
        assert_eq!(parse(&packet(ICMP, &message), |_| false), None, "somebody else's");
    }

    #[test]
    fn quoted_segment_identifies_the_connection() {
        let tuple = Tuple {
            local: "10.0.0.2:80".parse().expect("an address"),
            remote: "10.0.9.9:256".parse().expect("an address"),
        };
        let message = |kind, code, mtu: u8| {
            let mut message = vec![kind, code, 0, 0, 0, 0, 2, mtu];
            message.extend(segment());
            packet(ICMP, &message)
        };
        let refused = IcmpEffect::Unreachable(tuple, 0xff00_0005, Error::ConnectionRefused);
        assert_eq!(parse(&message(3, 3, 0), is_own), Some(refused));
        let mtu = IcmpEffect::PathMtu(tuple, 0xff00_0005, 0x0207);
        assert_eq!(parse(&message(3, 4, 7), is_own), Some(mtu));
        assert_eq!(parse(&message(11, 0, 0), is_own), None, "exceeded on the way");
    }

    #[test]
    fn truncated_packets_are_parsed_within_bounds() {
        let whole = packet(ICMP, &[&[3, 1, 0, 0, 0, 0, 0, 0][..], &segment()].concat());
        for end in 0..whole.len() {
            for value in [0, 4, 15, 0x45, 0x60, 0xff] {
                let mut packet = whole[..end].to_vec();
                let _ = parse(&packet, is_own);
                if let Some(first) = packet.first_mut() {
                    *first = value;
                }
                let _ = parse(&packet, is_own);
            }
        }
        let mut short = packet(ICMP, &[8, 0, 0, 0, 1, 2, 3, 4]);
        short[3] = 21;
        let _ = parse(&short, is_own);
    }
}
