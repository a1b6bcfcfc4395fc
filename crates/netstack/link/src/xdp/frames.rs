//! Frames of address resolution: ARP (RFC 826) and IPv6 neighbour discovery (RFC 4861, section 4).

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::IpNumber;

use crate::checksum::pseudo_header;

/// An Ethernet (MAC) address.
pub type Mac = [u8; 6];

/// Length of an Ethernet header, in bytes.
pub const ETHERNET_BYTES: usize = 14;
pub(super) const BROADCAST: Mac = [0xff; 6];
pub(super) const UNSPECIFIED_MAC: Mac = [0; 6];
pub(super) const V4: [u8; 2] = [0x08, 0x00];
pub(super) const ARP: [u8; 2] = [0x08, 0x06];
pub(super) const V6: [u8; 2] = [0x86, 0xdd];
/// Start of every ARP packet: Ethernet, IPv4, and the lengths of their addresses.
pub(super) const ARP_BEGIN: [u8; 6] = [0, 1, 8, 0, 6, 4];
pub(super) const ARP_BYTES: usize = 28;
pub(super) const REQUEST: u8 = 1;
pub(super) const REPLY: u8 = 2;
pub(super) const SOLICITATION: u8 = 135;
pub(super) const ADVERTISEMENT: u8 = 136;
pub(super) const SOURCE_LINK: u8 = 1;
pub(super) const TARGET_LINK: u8 = 2;
pub(super) const OVERRIDES: u8 = 0x20;
pub(super) const IS_SOLICITED: u8 = 0x40;
/// End of the target address in an ICMPv6 message, in bytes.
pub(super) const TARGET_END: usize = 24;

pub(super) fn v6(bytes: &[u8]) -> Ipv6Addr {
    let mut address = [0; 16];
    address.copy_from_slice(bytes);
    address.into()
}

pub(super) fn v4(bytes: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])
}

pub(super) fn mac(bytes: &[u8]) -> Mac {
    let mut address = [0; 6];
    address.copy_from_slice(bytes);
    address
}

pub(super) fn is_unicast(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != UNSPECIFIED_MAC
}

/// Returns the Ethernet address of an IPv6 multicast address (RFC 2464, section 7).
#[must_use]
pub fn multicast(address: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = address.octets();
    [0x33, 0x33, a, b, c, d]
}

pub(super) fn header(own: Mac, to: Mac, is_v6: bool) -> [u8; ETHERNET_BYTES] {
    let mut header = [0; ETHERNET_BYTES];
    header[..6].copy_from_slice(&to);
    header[6..12].copy_from_slice(&own);
    header[12..].copy_from_slice(if is_v6 { &V6 } else { &V4 });
    header
}

pub(super) fn arp(
    own: Mac,
    to: Mac,
    operation: u8,
    from: Ipv4Addr,
    target: Mac,
    address: Ipv4Addr,
) -> Vec<u8> {
    let mut frame = header(own, to, false).to_vec();
    frame[12..].copy_from_slice(&ARP);
    frame.extend(ARP_BEGIN);
    frame.extend([0, operation]);
    frame.extend(own);
    frame.extend(from.octets());
    frame.extend(target);
    frame.extend(address.octets());
    frame
}

pub(super) fn discovery(
    own: Mac,
    kind: u8,
    link: Mac,
    from: Ipv6Addr,
    to: Ipv6Addr,
    target: Ipv6Addr,
    flags: u8,
) -> Vec<u8> {
    const MESSAGE_BYTES: u8 = 32;
    let mut frame = header(own, link, true).to_vec();
    frame.extend([0x60, 0, 0, 0, 0, MESSAGE_BYTES, IpNumber::IPV6_ICMP.0, 255]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend([kind, 0, 0, 0, flags, 0, 0, 0]);
    frame.extend(target.octets());
    frame.extend([if kind == SOLICITATION { SOURCE_LINK } else { TARGET_LINK }, 1]);
    frame.extend(own);
    let at = ETHERNET_BYTES + 40;
    let addresses = ETHERNET_BYTES + 8..at;
    let mut sum = pseudo_header(&frame[addresses], IpNumber::IPV6_ICMP.0, MESSAGE_BYTES.into());
    sum.add(&frame[at..]);
    frame[at + 2..at + 4].copy_from_slice(&sum.checksum().to_be_bytes());
    frame
}

/// Returns the source and target link-layer addresses of the options, or `None` if malformed.
pub(super) fn link_layer_options(mut options: &[u8]) -> Option<[Option<Mac>; 2]> {
    let mut found = [None; 2];
    while !options.is_empty() {
        let len = usize::from(*options.get(1)?) * 8;
        let option = options.get(..len).filter(|option| !option.is_empty())?;
        if matches!(option[0], SOURCE_LINK | TARGET_LINK) && len == 8 {
            found[usize::from(option[0] - SOURCE_LINK)] = Some(mac(&option[2..8]));
        }
        options = &options[len..];
    }
    Some(found)
}
