//! Socket addresses, in the kernel's format and as words of a message.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Maximum size of an address in the kernel's format (`sockaddr_in6`), bytes.
pub const MAX_BYTES: usize = 28;
/// Number of words of an address in a message.
pub const WORDS: usize = 3;

/// Parses an address in the kernel's format; `None`: it has another family, or is too short.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let port = u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]);
    match family {
        libc::AF_INET => {
            // Like the kernel, require a whole structure and ignore its padding.
            let ip: [u8; 4] = bytes.get(4..16)?[..4].try_into().ok()?;
            Some(SocketAddr::new(Ipv4Addr::from(ip).into(), port))
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            Some(SocketAddr::new(Ipv6Addr::from(ip).into(), port))
        }
        _ => None,
    }
}

/// Encodes an address in the kernel's format and returns its length. `as_v6` maps an IPv4 address into IPv6.
#[must_use]
pub fn write(address: SocketAddr, as_v6: bool) -> ([u8; MAX_BYTES], usize) {
    let mut bytes = [0; MAX_BYTES];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let (family, len_bytes) = match address.ip() {
        IpAddr::V4(ip) if !as_v6 => {
            bytes[4..8].copy_from_slice(&ip.octets());
            (libc::AF_INET, 16)
        }
        IpAddr::V4(ip) => {
            let mapped = if ip.is_unspecified() { Ipv6Addr::UNSPECIFIED } else { ip.to_ipv6_mapped() };
            bytes[8..24].copy_from_slice(&mapped.octets());
            (libc::AF_INET6, MAX_BYTES)
        }
        IpAddr::V6(ip) => {
            bytes[8..24].copy_from_slice(&ip.octets());
            (libc::AF_INET6, MAX_BYTES)
        }
    };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    (bytes, len_bytes)
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Maps an IPv4 address into IPv6.
#[must_use]
pub fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Encodes an address as words: the IP address, an IPv4 one mapped into IPv6, then the port and a bit for IPv4.
#[must_use]
pub fn words(address: SocketAddr) -> [u64; WORDS] {
    let (ip, is_v4) = match address.ip() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), true),
        IpAddr::V6(ip) => (ip, false),
    };
    let ip = u128::from(ip);
    [(ip >> 64) as u64, ip as u64, u64::from(address.port()) | u64::from(is_v4) << 16]
}

/// Decodes an address from [`words`]; `None`: they are malformed.
#[must_use]
pub fn of_words(words: &[u64]) -> Option<SocketAddr> {
    let [high, low, rest] = *words else { return None };
    let ip = Ipv6Addr::from(u128::from(high) << 64 | u128::from(low));
    let port = rest as u16;
    match rest >> 16 {
        0 => Some(SocketAddrV6::new(ip, port, 0, 0).into()),
        1 => ip.to_ipv4_mapped().map(|ip| SocketAddr::new(ip.into(), port)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_same_after_every_way() {
        for text in ["10.1.2.3:80", "0.0.0.0:0", "[fd00::7]:65535", "[::]:1", "[::ffff:10.1.2.3]:5"] {
            let address: SocketAddr = text.parse().expect("an address");
            let (bytes, len_bytes) = write(address, false);
            assert_eq!(parse(&bytes[..len_bytes]), Some(address));
            assert_eq!(of_words(&words(address)), Some(address));
            assert_eq!(canonical(canonical(address)), canonical(address));
            assert_eq!(canonical(mapped(address)), canonical(address));
        }
        let (bytes, len_bytes) = write("10.1.2.3:80".parse().expect("an address"), true);
        assert_eq!(parse(&bytes[..len_bytes]).map(canonical), "10.1.2.3:80".parse().ok());
    }

    #[test]
    fn what_is_no_address_is_none() {
        for len_bytes in 0..24 {
            assert_eq!(
                parse(
                    &[10, 0, 0, 80, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7][..len_bytes]
                ),
                None
            );
        }
        assert_eq!(parse(&[1; 28]), None);
        assert_eq!(of_words(&[0, 5, 1 << 16]), None, "not mapped");
        assert_eq!(of_words(&[0, 5, 2 << 16]), None);
        assert_eq!(of_words(&[0, 5]), None);
    }
}
