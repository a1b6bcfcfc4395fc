//! Parsing and writing the headers of a packet: IPv4 or IPv6, then TCP.
//!
//! A packet may be a super-packet of up to 64 KiB. The checksum of the IPv4 header is written and verified
//! here. That of TCP covers the payload, which is not read here: the field stays 0, and the link fills it in.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    IpEcn, IpNumber, Ipv4Header, Ipv4HeaderSlice, Ipv6FlowLabel, Ipv6Header, Ipv6HeaderSlice, TcpHeader,
    TcpHeaderSlice,
};
use smallvec::SmallVec;

use crate::options::{MAX_OPTIONS_BYTES, Options};
use crate::segment::{Codepoint, Flags, Header};

/// Maximum length of the headers written: IPv6, TCP and all options.
pub const MAX_HEADER_BYTES: usize = 40 + 20 + MAX_OPTIONS_BYTES;
const MAX_IPV4_BYTES: usize = 0xffff;
const HOP_LIMIT: u8 = 64;

/// Both endpoints of a connection, seen from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Endpoint of this side.
    pub local: SocketAddr,
    /// Endpoint of the peer.
    pub remote: SocketAddr,
}

/// Why a packet is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// Neither IPv4 nor IPv6, truncated, or with a wrong header checksum.
    MalformedIp,
    /// An IP fragment; fragments are not reassembled.
    Fragment,
    /// Another protocol, or an IPv6 extension header.
    OtherProtocol,
    /// A truncated TCP header, or port 0.
    MalformedTcp,
    /// An address that no connection can have (RFC 9293, section 3.9.2.3; RFC 1122, section 4.2.3.10).
    BadAddress,
}

/// Parsed headers of a packet.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// Destination (`local`) and source (`remote`).
    pub tuple: Tuple,
    /// TCP header of the packet, with its options.
    pub header: Header,
    /// Range of the payload in the packet.
    pub payload: std::ops::Range<usize>,
}

/// Parses the headers, which `bytes` must contain, of a packet of `packet_bytes`.
///
/// # Errors
///
/// Returns the reason if the packet is not a whole TCP segment between two hosts.
pub fn parse(bytes: &[u8], packet_bytes: usize) -> Result<Parsed, Reject> {
    let (source, destination, codepoint, tcp_at, end) = match bytes.first().map(|first| first >> 4) {
        Some(4) => {
            let ip = Ipv4HeaderSlice::from_slice(bytes).map_err(|_| Reject::MalformedIp)?;
            if ip.is_fragmenting_payload() {
                return Err(Reject::Fragment);
            }
            if ip.protocol() != IpNumber::TCP {
                return Err(Reject::OtherProtocol);
            }
            let header = ip.to_header();
            if header.calc_header_checksum() != ip.header_checksum() {
                return Err(Reject::MalformedIp);
            }
            let at = ip.slice().len();
            let codepoint = Codepoint::from_bits(ip.slice()[1]);
            let end = usize::from(ip.total_len());
            (IpAddr::from(ip.source()), IpAddr::from(ip.destination()), codepoint, at, end)
        }
        Some(6) => {
            let ip = Ipv6HeaderSlice::from_slice(bytes).map_err(|_| Reject::MalformedIp)?;
            if ip.next_header() != IpNumber::TCP {
                return Err(Reject::OtherProtocol);
            }
            let end = 40 + usize::from(ip.payload_length());
            // The traffic class spans two bytes; its low bits are bits 4 and 5 of the second.
            let codepoint = Codepoint::from_bits(ip.slice()[1] >> 4);
            (IpAddr::from(ip.source()), IpAddr::from(ip.destination()), codepoint, 40, end)
        }
        _ => return Err(Reject::MalformedIp),
    };
    if end > packet_bytes || tcp_at > end {
        return Err(Reject::MalformedIp);
    }
    let tcp = &bytes[tcp_at..end.min(bytes.len())];
    let tcp = TcpHeaderSlice::from_slice(tcp).map_err(|_| Reject::MalformedTcp)?;
    let (source_port, destination_port) = (tcp.source_port(), tcp.destination_port());
    if source_port == 0 || destination_port == 0 {
        return Err(Reject::MalformedTcp);
    }
    if !is_host(source) || !is_host(destination) {
        return Err(Reject::BadAddress);
    }
    let header = Header {
        sequence: tcp.sequence_number(),
        acknowledgement: tcp.acknowledgment_number(),
        flags: Flags {
            fin: tcp.fin(),
            syn: tcp.syn(),
            rst: tcp.rst(),
            psh: tcp.psh(),
            ack: tcp.ack(),
            ece: tcp.ece(),
            cwr: tcp.cwr(),
        },
        window: tcp.window_size(),
        options: Options::parse(tcp.options()),
        codepoint,
    };
    let tuple = Tuple {
        local: SocketAddr::new(destination, destination_port),
        remote: SocketAddr::new(source, source_port),
    };
    Ok(Parsed { tuple, header, payload: tcp_at + tcp.slice().len()..end })
}

fn is_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || is_broadcast)
}

/// IP and TCP headers, sent in front of the payload.
pub type HeaderBytes = SmallVec<[u8; 128]>;

/// Writes the IP and TCP headers, with the TCP checksum field 0.
///
/// # Panics
///
/// If the payload exceeds an IP packet, or the addresses belong to different families.
pub fn write(tuple: &Tuple, header: &Header, payload_bytes: usize) -> HeaderBytes {
    let mut tcp = TcpHeader::new(tuple.local.port(), tuple.remote.port(), header.sequence, header.window);
    tcp.acknowledgment_number = if header.flags.ack { header.acknowledgement } else { 0 };
    tcp.fin = header.flags.fin;
    tcp.syn = header.flags.syn;
    tcp.rst = header.flags.rst;
    tcp.psh = header.flags.psh;
    tcp.ack = header.flags.ack;
    tcp.ece = header.flags.ece;
    tcp.cwr = header.flags.cwr;
    let mut buffer = [0; MAX_OPTIONS_BYTES];
    let len = header.options.write(&mut buffer);
    tcp.set_options_raw(&buffer[..len]).expect("options are 40 bytes at most");
    let tcp_bytes = u16::try_from(tcp.header_len() + payload_bytes).expect("payload fits an IP packet");
    let mut bytes = HeaderBytes::new();
    match (tuple.local.ip(), tuple.remote.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut ip =
                Ipv4Header::new(tcp_bytes, HOP_LIMIT, IpNumber::TCP, source.octets(), destination.octets())
                    .expect("payload fits an IP packet");
            ip.dont_fragment = true;
            ip.ecn = IpEcn::try_new(header.codepoint as u8).expect("two bits");
            ip.header_checksum = ip.calc_header_checksum();
            bytes.extend_from_slice(&ip.to_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let ip = Ipv6Header {
                traffic_class: header.codepoint as u8,
                flow_label: Ipv6FlowLabel::ZERO,
                payload_length: tcp_bytes,
                next_header: IpNumber::TCP,
                hop_limit: HOP_LIMIT,
                source: source.octets(),
                destination: destination.octets(),
            };
            bytes.extend_from_slice(&ip.to_bytes());
        }
        _ => panic!("one family at both ends"),
    }
    bytes.extend_from_slice(&tcp.to_bytes());
    bytes
}

/// Maximum payload of a super-packet, for either family.
pub const MAX_SUPER_PAYLOAD_BYTES: usize = MAX_IPV4_BYTES - MAX_HEADER_BYTES;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tuple(is_v6: bool) -> Tuple {
        let (local, remote) =
            if is_v6 { ("[fd00::1]:80", "[fd00::2]:9") } else { ("10.0.0.1:80", "10.0.0.2:9") };
        Tuple { local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    proptest! {
        #[test]
        fn written_headers_parse_back(
            is_v6: bool, sequence: u32, acknowledgement: u32, window: u16, bits: u8, field in 0u8..4,
            payload_bytes in 0..=MAX_SUPER_PAYLOAD_BYTES, max_segment_size: Option<u16>,
        ) {
            let flags = Flags {
                fin: bits & 1 != 0, syn: bits & 2 != 0, rst: bits & 4 != 0, psh: bits & 8 != 0, ack: bits & 16 != 0,
                ece: bits & 32 != 0, cwr: bits & 64 != 0,
            };
            let acknowledgement = if flags.ack { acknowledgement } else { 0 };
            let options = Options { max_segment_size, ..Options::default() };
            let codepoint = Codepoint::from_bits(field);
            let header = Header { sequence, acknowledgement, flags, window, options, codepoint };
            let bytes = write(&tuple(is_v6), &header, payload_bytes);
            let total = bytes.len() + payload_bytes;
            let parsed = parse(&bytes, total).unwrap();
            prop_assert_eq!(parsed.header, header);
            prop_assert_eq!(parsed.payload, bytes.len()..total);
            let Tuple { local, remote } = tuple(is_v6);
            prop_assert_eq!(parsed.tuple, Tuple { local: remote, remote: local });
            for short in 0..bytes.len() {
                prop_assert!(parse(&bytes[..short], total).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_parse_within_bounds(mut bytes in prop::collection::vec(any::<u8>(), 0..120), is_v6: bool, fix: bool) {
            if let (true, Some(first)) = (fix, bytes.first_mut()) {
                *first = if is_v6 { 0x60 } else { 0x45 };
            }
            if let Ok(parsed) = parse(&bytes, bytes.len()) {
                prop_assert!(parsed.payload.end <= bytes.len() && parsed.payload.start <= parsed.payload.end);
            }
        }

        #[test]
        fn one_changed_byte_never_leads_outside_the_packet(at in 0usize..60, value: u8, is_v6: bool) {
            let mut bytes = write(&tuple(is_v6), &Header::default(), 0);
            let at = at % bytes.len();
            bytes[at] = value;
            if let Ok(parsed) = parse(&bytes, bytes.len()) {
                prop_assert!(parsed.payload.end <= bytes.len());
            }
        }
    }
}
