//! Who has which address on an Ethernet: ARP (RFC 826, 1122 section 2.3.2) and IPv6's neighbour discovery (RFC 4861).
//!
//! Without input and output: frames go in, and frames that answer or ask come out. A neighbour is believed for [`FRESH`], then asked
//! again while it is still used; it is forgotten [`STALE`] after its last word. Of what is sent to one that has not answered yet, the last
//! packet waits. Nothing is learned but from questions for an own address and from answers to own questions.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::time::Duration;

use etherparse::IpNumber;

use super::program::solicited_node;
use crate::checksum::pseudo_header;
use crate::packet::{Layout, Verdict, verdict};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// The header of an Ethernet frame, bytes.
pub const ETHERNET_BYTES: usize = 14;
/// How long a neighbour is believed.
pub const FRESH: Duration = Duration::from_secs(30);
/// How long after its last word it is used.
pub const STALE: Duration = Duration::from_secs(90);
/// How often one is asked at most (RFC 1122, section 2.3.2.1; RetransTimer of RFC 4861).
pub const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// How long after the first question that it has not answered a neighbour is given up: as long as Linux asks, three times.
pub const SILENCE: Duration = Duration::from_secs(3);
/// Neighbours that are known, at most: the one that was heard of longest ago makes room.
pub const MAX_NEIGHBOURS: usize = 1024;

const BROADCAST: Mac = [0xff; 6];
const NOBODY: Mac = [0; 6];
const V4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
const V6: [u8; 2] = [0x86, 0xdd];
/// Ethernet, IPv4, and the lengths of their addresses.
const ARP_BEGIN: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_BYTES: usize = 28;
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
const OVERRIDES: u8 = 0x20;
const IS_SOLICITED: u8 = 0x40;
/// Of ICMPv6 to the target's end, bytes.
const TARGET_END: usize = 24;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To this host.
    To(Mac),
    /// To a neighbour that has not said where it is: it was asked, and [`Neighbours::hold`] keeps a frame for it.
    Unknown(IpAddr),
    /// To a neighbour that does not answer.
    Silent,
    /// It is in no network, and there is no router.
    Nowhere,
}

#[derive(Debug, Default)]
struct Neighbour {
    mac: Option<Mac>,
    heard: Duration,
    asked: Option<Duration>,
    /// When it was first asked what it has not answered.
    unanswered: Option<Duration>,
    waiting: Option<Vec<u8>>,
}

impl Neighbour {
    /// When something last happened to it.
    fn last(&self) -> Duration {
        self.asked.map_or(self.heard, |asked| asked.max(self.heard))
    }
}

/// The own addresses, and neighbours.
#[derive(Debug)]
pub struct Neighbours {
    mac: Mac,
    own: Vec<(IpAddr, u8)>,
    routers: Vec<IpAddr>,
    known: HashMap<IpAddr, Neighbour>,
}

fn v6(bytes: &[u8]) -> Ipv6Addr {
    let mut address = [0; 16];
    address.copy_from_slice(bytes);
    address.into()
}

fn v4(bytes: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])
}

fn mac(bytes: &[u8]) -> Mac {
    let mut address = [0; 6];
    address.copy_from_slice(bytes);
    address
}

/// Whether one host can have it.
fn is_host(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != NOBODY
}

/// The frames for a multicast address of IPv6 (RFC 2464, section 7).
#[must_use]
pub fn multicast(address: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = address.octets();
    [0x33, 0x33, a, b, c, d]
}

fn is_in(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            (address.to_bits() ^ network.to_bits()).checked_shr(32 - u32::from(bits)).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            (address.to_bits() ^ network.to_bits()).checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

impl Neighbours {
    /// Of a host whose device is `mac`, with its addresses, the bits of their networks' prefixes, and the routers to all others.
    #[must_use]
    pub fn new(mac: Mac, own: &[(IpAddr, u8)], routers: &[IpAddr]) -> Self {
        Self { mac, own: own.to_vec(), routers: routers.to_vec(), known: HashMap::new() }
    }

    /// How many neighbours are kept.
    #[must_use]
    pub fn known(&self) -> usize {
        self.known.len()
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.own.iter().any(|(own, _)| *own == address)
    }

    fn is_near(&self, address: IpAddr) -> bool {
        let is_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        is_local || self.own.iter().any(|(own, bits)| is_in(address, *own, *bits))
    }

    /// Where in a frame the IP packet is, if it is one for this host; without what Ethernet has put behind it. What is about neighbours
    /// is done here, and frames that are to be sent go to `out`.
    pub fn receive(&mut self, frame: &[u8], now: Duration, out: &mut Vec<Vec<u8>>) -> Option<Range<usize>> {
        let (header, body) = frame.split_at_checked(ETHERNET_BYTES)?;
        let kind = [header[12], header[13]];
        if kind == ARP {
            self.hear_arp(body, now, out);
            return None;
        }
        if kind != V4 && kind != V6 {
            return None;
        }
        let layout = Layout::of(body).filter(|layout| layout.is_v6 == (kind == V6));
        // What is no packet is for the link to count.
        let Some(layout) = layout.filter(|layout| layout.transport.end <= body.len()) else {
            return Some(ETHERNET_BYTES..frame.len());
        };
        let packet = &body[..layout.transport.end];
        if layout.is_v6
            && layout.protocol == IpNumber::IPV6_ICMP
            && matches!(packet.get(40), Some(&(SOLICITATION | ADVERTISEMENT)))
        {
            self.hear_discovery(packet, mac(&header[6..12]), now, out);
            return None;
        }
        (header[..6] == self.mac).then_some(ETHERNET_BYTES..ETHERNET_BYTES + packet.len())
    }

    fn hear_arp(&mut self, body: &[u8], now: Duration, out: &mut Vec<Vec<u8>>) {
        let Some(arp) = body.get(..ARP_BYTES).filter(|arp| arp[..6] == ARP_BEGIN && arp[6] == 0) else {
            return;
        };
        let (sender, from, target) = (mac(&arp[8..14]), v4(&arp[14..18]), v4(&arp[24..28]));
        if !self.is_own(target.into()) || !is_host(sender) || sender == self.mac {
            return;
        }
        match arp[7] {
            REQUEST => {
                if !from.is_unspecified() {
                    self.learn(from.into(), sender, now, true, out);
                }
                out.push(self.arp(sender, REPLY, target, sender, from));
            }
            REPLY => self.learn(from.into(), sender, now, false, out),
            _ => {}
        }
    }

    /// RFC 4861, sections 7.1 and 7.2.
    fn hear_discovery(&mut self, packet: &[u8], sender: Mac, now: Duration, out: &mut Vec<Vec<u8>>) {
        const MAX_HOPS: u8 = 255;
        let message = &packet[40..];
        if packet[7] != MAX_HOPS || message.len() < TARGET_END || message[1] != 0 {
            return;
        }
        if verdict(packet, false) != Verdict::Sound {
            return;
        }
        let (source, target) = (v6(&packet[8..24]), v6(&message[8..TARGET_END]));
        let Some([at_source, at_target]) = links(&message[TARGET_END..]) else { return };
        if message[0] == SOLICITATION {
            // Somebody who has no address yet asks whether it may take this one (RFC 4862): it says no link address.
            if !self.is_own(target.into()) || (source.is_unspecified() && at_source.is_some()) {
                return;
            }
            if let Some(link) = at_source {
                self.learn(source.into(), link, now, true, out);
            }
            const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            let (to, link, flags) = if source.is_unspecified() {
                (ALL_NODES, multicast(ALL_NODES), OVERRIDES)
            } else {
                (source, at_source.unwrap_or(sender), OVERRIDES | IS_SOLICITED)
            };
            if is_host(link) || source.is_unspecified() {
                out.push(self.discovery(ADVERTISEMENT, link, target, to, target, flags));
            }
        } else if let Some(link) = at_target {
            let known = self.known.get(&target.into()).and_then(|neighbour| neighbour.mac);
            if message[4] & OVERRIDES != 0 || known.is_none_or(|known| known == link) {
                self.learn(target.into(), link, now, false, out);
            }
        }
    }

    /// A neighbour has said where it is: what waits for it goes. One that was not asked is kept if `is_welcome`.
    fn learn(&mut self, address: IpAddr, link: Mac, now: Duration, is_welcome: bool, out: &mut Vec<Vec<u8>>) {
        if !is_host(link) || link == self.mac || self.is_own(address) || !self.is_near(address) {
            return;
        }
        if !self.known.contains_key(&address) {
            if !is_welcome {
                return;
            }
            self.make_room();
        }
        let neighbour = self.known.entry(address).or_default();
        (neighbour.mac, neighbour.heard) = (Some(link), now);
        (neighbour.asked, neighbour.unanswered) = (None, None);
        if let Some(mut frame) = neighbour.waiting.take() {
            frame[..6].copy_from_slice(&link);
            out.push(frame);
        }
    }

    fn make_room(&mut self) {
        if self.known.len() < MAX_NEIGHBOURS {
            return;
        }
        let oldest =
            self.known.iter().min_by_key(|(_, neighbour)| neighbour.last()).map(|(address, _)| *address);
        if let Some(oldest) = oldest {
            self.known.remove(&oldest);
        }
    }

    /// Where packets to an address go. If somebody has to be asked for that, the question goes to `out`.
    pub fn route(&mut self, to: IpAddr, now: Duration, out: &mut Vec<Vec<u8>>) -> Route {
        let hop = if self.is_near(to) {
            to
        } else {
            match self.routers.iter().find(|router| router.is_ipv4() == to.is_ipv4()) {
                Some(router) => *router,
                None => return Route::Nowhere,
            }
        };
        let Some(own) = self.own.iter().map(|(own, _)| *own).find(|own| own.is_ipv4() == hop.is_ipv4())
        else {
            return Route::Nowhere;
        };
        if !self.known.contains_key(&hop) {
            self.make_room();
        }
        let neighbour = self.known.entry(hop).or_default();
        if neighbour.mac.is_some() && now.saturating_sub(neighbour.heard) >= STALE {
            (neighbour.mac, neighbour.asked) = (None, None);
        }
        let is_old = neighbour.mac.is_none() || now.saturating_sub(neighbour.heard) >= FRESH;
        let link = neighbour.mac;
        let silence = neighbour.unanswered.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        // For a while whoever sends is told, then it is waited for again.
        if silence >= SILENCE + ASK_INTERVAL {
            neighbour.unanswered = None;
        }
        if is_old && neighbour.asked.is_none_or(|asked| now.saturating_sub(asked) >= ASK_INTERVAL) {
            neighbour.asked = Some(now);
            neighbour.unanswered.get_or_insert(now);
            out.push(self.question(own, hop, link));
        }
        match link {
            Some(link) => Route::To(link),
            None if (SILENCE..SILENCE + ASK_INTERVAL).contains(&silence) => Route::Silent,
            None => Route::Unknown(hop),
        }
    }

    /// Keeps a frame until the neighbour has said where it is, in place of what it waits for now.
    pub fn hold(&mut self, neighbour: IpAddr, frame: Vec<u8>) {
        if let Some(neighbour) = self.known.get_mut(&neighbour).filter(|_| frame.len() >= ETHERNET_BYTES) {
            neighbour.waiting = Some(frame);
        }
    }

    /// The header of a frame from this host.
    #[must_use]
    pub fn header(&self, to: Mac, is_v6: bool) -> [u8; ETHERNET_BYTES] {
        let mut header = [0; ETHERNET_BYTES];
        header[..6].copy_from_slice(&to);
        header[6..12].copy_from_slice(&self.mac);
        header[12..].copy_from_slice(if is_v6 { &V6 } else { &V4 });
        header
    }

    fn question(&self, own: IpAddr, hop: IpAddr, link: Option<Mac>) -> Vec<u8> {
        match (own, hop) {
            (IpAddr::V4(own), IpAddr::V4(hop)) => {
                self.arp(link.unwrap_or(BROADCAST), REQUEST, own, NOBODY, hop)
            }
            (IpAddr::V6(own), IpAddr::V6(hop)) => {
                let to = if link.is_some() { hop } else { solicited_node(hop) };
                self.discovery(SOLICITATION, link.unwrap_or(multicast(to)), own, to, hop, 0)
            }
            _ => unreachable!("addresses of one family"),
        }
    }

    fn arp(&self, to: Mac, operation: u8, from: Ipv4Addr, target: Mac, address: Ipv4Addr) -> Vec<u8> {
        let mut frame = self.header(to, false).to_vec();
        frame[12..].copy_from_slice(&ARP);
        frame.extend(ARP_BEGIN);
        frame.extend([0, operation]);
        frame.extend(self.mac);
        frame.extend(from.octets());
        frame.extend(target);
        frame.extend(address.octets());
        frame
    }

    fn discovery(
        &self,
        kind: u8,
        link: Mac,
        from: Ipv6Addr,
        to: Ipv6Addr,
        target: Ipv6Addr,
        flags: u8,
    ) -> Vec<u8> {
        const MESSAGE_BYTES: u8 = 32;
        let mut frame = self.header(link, true).to_vec();
        frame.extend([0x60, 0, 0, 0, 0, MESSAGE_BYTES, IpNumber::IPV6_ICMP.0, 255]);
        frame.extend(from.octets());
        frame.extend(to.octets());
        frame.extend([kind, 0, 0, 0, flags, 0, 0, 0]);
        frame.extend(target.octets());
        frame.extend([if kind == SOLICITATION { SOURCE_LINK } else { TARGET_LINK }, 1]);
        frame.extend(self.mac);
        let at = ETHERNET_BYTES + 40;
        let addresses = ETHERNET_BYTES + 8..at;
        let mut sum = pseudo_header(&frame[addresses], IpNumber::IPV6_ICMP.0, MESSAGE_BYTES.into());
        sum.add(&frame[at..]);
        frame[at + 2..at + 4].copy_from_slice(&sum.checksum().to_be_bytes());
        frame
    }
}

/// The link addresses of source and target among options; `None`: they are malformed.
fn links(mut options: &[u8]) -> Option<[Option<Mac>; 2]> {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OURS: Mac = [2, 0, 0, 0, 0, 1];
    const THEIRS: Mac = [2, 0, 0, 0, 0, 2];
    const OTHERS: Mac = [2, 0, 0, 0, 0, 3];

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn ours() -> Neighbours {
        let own = [(address("10.9.0.2"), 24), (address("fd09::2"), 64)];
        Neighbours::new(OURS, &own, &[address("10.9.0.254")])
    }

    fn theirs() -> Neighbours {
        Neighbours::new(THEIRS, &[(address("10.9.0.1"), 24), (address("fd09::1"), 64)], &[])
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// What one says when it wants to send.
    fn asks(who: &mut Neighbours, to: &str, now: Duration) -> (Route, Vec<Vec<u8>>) {
        let mut out = Vec::new();
        (who.route(address(to), now, &mut out), out)
    }

    fn hears(who: &mut Neighbours, frame: &[u8], now: Duration) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        assert_eq!(who.receive(frame, now, &mut out), None);
        out
    }

    #[test]
    fn two_hosts_find_each_other_and_what_waits_goes_then() {
        for (one, other) in [("10.9.0.2", "10.9.0.1"), ("fd09::2", "fd09::1")] {
            let (mut ours, mut theirs) = (ours(), theirs());
            let (route, asked) = asks(&mut ours, other, seconds(5));
            assert_eq!((route, asked.len()), (Route::Unknown(address(other)), 1));
            ours.hold(address(other), vec![1; 20]);
            ours.hold(address(other), vec![2; 20]);
            let answers = hears(&mut theirs, &asked[0], seconds(5));
            assert_eq!(answers.len(), 1);
            assert_eq!(answers[0][..6], OURS);
            // Who was asked knows who has asked.
            assert_eq!(asks(&mut theirs, one, seconds(5)), (Route::To(OURS), vec![]));
            let sent = hears(&mut ours, &answers[0], seconds(5));
            assert_eq!(sent, [[&THEIRS[..], &[2; 14]].concat()], "the last that waited");
            assert_eq!(asks(&mut ours, other, seconds(6)), (Route::To(THEIRS), vec![]));
        }
    }

    #[test]
    fn nobody_is_asked_more_than_once_a_second_and_the_known_again_after_a_while() {
        for other in ["10.9.0.1", "fd09::1"] {
            let (mut ours, mut theirs) = (ours(), theirs());
            let asked = |ours: &mut Neighbours, now| asks(ours, other, now).1;
            let first = asked(&mut ours, seconds(1));
            assert_eq!(first.len(), 1);
            assert!(asked(&mut ours, seconds(1) + ASK_INTERVAL / 2).is_empty());
            assert_eq!(asked(&mut ours, seconds(2)), first);
            let answer = hears(&mut theirs, &first[0], seconds(2)).remove(0);
            hears(&mut ours, &answer, seconds(2));
            let again = asks(&mut ours, other, seconds(2) + FRESH);
            assert_eq!((again.0, again.1.len()), (Route::To(THEIRS), 1));
            assert_eq!(again.1[0][..6], THEIRS, "the neighbour itself is asked");
            assert_eq!(hears(&mut theirs, &again.1[0], seconds(2) + FRESH).len(), 1);
            let forgotten = asks(&mut ours, other, seconds(2) + STALE);
            assert_eq!((forgotten.0, &forgotten.1), (Route::Unknown(address(other)), &first));
        }
    }

    #[test]
    fn who_does_not_answer_is_given_up_and_asked_again() {
        for other in ["10.9.0.1", "fd09::1"] {
            let (mut ours, mut theirs) = (ours(), theirs());
            let unknown = Route::Unknown(address(other));
            for (at, expected) in [
                (1, unknown),
                (2, unknown),
                (3, unknown),
                (4, Route::Silent),
                (5, unknown),
                (8, Route::Silent),
            ] {
                let (route, asked) = asks(&mut ours, other, seconds(at));
                assert_eq!((route, asked.len()), (expected, 1), "at {at} s");
            }
            let question = asks(&mut ours, other, seconds(9)).1.remove(0);
            let answer = hears(&mut theirs, &question, seconds(9)).remove(0);
            hears(&mut ours, &answer, seconds(9));
            assert_eq!(asks(&mut ours, other, seconds(10)).0, Route::To(THEIRS));
        }
    }

    #[test]
    fn what_is_far_goes_to_the_router_if_there_is_one() {
        let mut ours = ours();
        assert_eq!(asks(&mut ours, "192.0.2.1", seconds(1)).0, Route::Unknown(address("10.9.0.254")));
        assert_eq!(asks(&mut ours, "2001:db8::1", seconds(1)), (Route::Nowhere, vec![]));
        assert_eq!(asks(&mut ours, "fe80::1", seconds(1)).0, Route::Unknown(address("fe80::1")));
    }

    #[test]
    fn nothing_is_learned_unasked_or_of_others() {
        let (mut ours, mut theirs) = (ours(), theirs());
        // An answer that was not asked for.
        for frame in [
            theirs.arp(OURS, REPLY, "10.9.0.1".parse().unwrap(), OURS, "10.9.0.2".parse().unwrap()),
            theirs.discovery(
                ADVERTISEMENT,
                OURS,
                v6(&[0xfd; 16]),
                v6(&[0xfd; 16]),
                "fd09::1".parse().unwrap(),
                OVERRIDES,
            ),
            // Questions for somebody else.
            theirs.arp(BROADCAST, REQUEST, "10.9.0.1".parse().unwrap(), NOBODY, "10.9.0.3".parse().unwrap()),
        ] {
            assert!(hears(&mut ours, &frame, seconds(1)).is_empty());
        }
        assert!(ours.known.is_empty());
        // Who has another network's address, or ours, is answered and not believed.
        for from in ["192.0.2.1", "10.9.0.2"] {
            let frame =
                theirs.arp(BROADCAST, REQUEST, from.parse().unwrap(), NOBODY, "10.9.0.2".parse().unwrap());
            assert_eq!(hears(&mut ours, &frame, seconds(1)).len(), 1);
            assert!(ours.known.is_empty(), "{from}");
        }
        // Another hop limit than 255 has come through a router; a wrong checksum.
        let asked = asks(&mut theirs, "fd09::2", seconds(1)).1.remove(0);
        for at in [ETHERNET_BYTES + 7, ETHERNET_BYTES + 42] {
            let mut frame = asked.clone();
            frame[at] ^= 1;
            assert!(hears(&mut ours, &frame, seconds(1)).is_empty());
        }
        assert!(ours.known.is_empty());
        assert_eq!(hears(&mut ours, &asked, seconds(1)).len(), 1);
    }

    #[test]
    fn an_answer_that_does_not_override_changes_nothing_known() {
        let (mut ours, mut theirs) = (ours(), theirs());
        let asked = asks(&mut ours, "fd09::1", seconds(1)).1.remove(0);
        hears(&mut ours, &hears(&mut theirs, &asked, seconds(1))[0], seconds(1));
        let other = Neighbours::new(OTHERS, &[(address("fd09::1"), 64)], &[]);
        let (target, to) = ("fd09::1".parse().unwrap(), "fd09::2".parse().unwrap());
        for (flags, expected) in [(IS_SOLICITED, THEIRS), (IS_SOLICITED | OVERRIDES, OTHERS)] {
            let frame = other.discovery(ADVERTISEMENT, OURS, target, to, target, flags);
            hears(&mut ours, &frame, seconds(1));
            assert_eq!(asks(&mut ours, "fd09::1", seconds(1)).0, Route::To(expected));
        }
    }

    #[test]
    fn who_asks_whether_an_address_is_free_is_told_that_it_is_not() {
        let (mut ours, theirs) = (ours(), theirs());
        let probe =
            theirs.arp(BROADCAST, REQUEST, Ipv4Addr::UNSPECIFIED, NOBODY, "10.9.0.2".parse().unwrap());
        assert_eq!(hears(&mut ours, &probe, seconds(1)).len(), 1);
        let target: Ipv6Addr = "fd09::2".parse().unwrap();
        let mut probe = theirs.discovery(
            SOLICITATION,
            multicast(solicited_node(target)),
            Ipv6Addr::UNSPECIFIED,
            solicited_node(target),
            target,
            0,
        );
        assert!(hears(&mut ours, &probe, seconds(1)).is_empty(), "it says where it is, and must not");
        // Without the option.
        probe.truncate(probe.len() - 8);
        probe[ETHERNET_BYTES + 5] -= 8;
        let at = ETHERNET_BYTES + 40;
        probe[at + 2..at + 4].fill(0);
        let mut sum = pseudo_header(&probe[ETHERNET_BYTES + 8..at], 58, 24);
        sum.add(&probe[at..]);
        probe[at + 2..at + 4].copy_from_slice(&sum.checksum().to_be_bytes());
        let told = hears(&mut ours, &probe, seconds(1));
        assert_eq!(told.len(), 1);
        assert_eq!(told[0][..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert!(ours.known.is_empty());
    }

    #[test]
    fn a_flood_of_questions_is_bounded() {
        let own = [(address("10.0.0.1"), 8)];
        let mut ours = Neighbours::new(OURS, &own, &[]);
        let theirs = theirs();
        for number in 2..10_000u32 {
            let from = Ipv4Addr::from(0x0a00_0000 + number);
            let frame = theirs.arp(BROADCAST, REQUEST, from, NOBODY, "10.0.0.1".parse().unwrap());
            hears(&mut ours, &frame, Duration::from_millis(number.into()));
        }
        assert_eq!(ours.known.len(), MAX_NEIGHBOURS);
        assert_eq!(
            asks(&mut ours, &Ipv4Addr::from(0x0a00_0000 + 9_999).to_string(), seconds(10)).0,
            Route::To(THEIRS)
        );
    }

    #[test]
    fn a_packet_is_without_what_ethernet_puts_behind_it_and_for_this_host() {
        let mut ours = ours();
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2];
        packet.extend([0; 40 - 20 + 6]);
        let mut frame = theirs().header(OURS, false).to_vec();
        frame.extend(packet);
        let mut out = Vec::new();
        assert_eq!(ours.receive(&frame, seconds(1), &mut out), Some(14..42));
        frame[..6].copy_from_slice(&BROADCAST);
        assert_eq!(ours.receive(&frame, seconds(1), &mut out), None);
        assert_eq!(ours.receive(&frame[..13], seconds(1), &mut out), None);
        assert!(out.is_empty());
    }

    proptest! {
        #[test]
        fn any_frame_has_an_outcome(
            kind in 0usize..4, body in prop::collection::vec(any::<u8>(), 0..120), keep: bool, at: usize, byte: u8,
        ) {
            let (mut ours, mut theirs) = (ours(), theirs());
            let real = asks(&mut theirs, if kind & 1 == 0 { "10.9.0.2" } else { "fd09::2" }, seconds(1)).1.remove(0);
            let mut frame = if keep { real } else { [theirs.header(OURS, kind & 1 == 1).to_vec(), body].concat() };
            let at = at % frame.len();
            frame[at] = byte;
            let mut out = Vec::new();
            if let Some(range) = ours.receive(&frame, seconds(1), &mut out) {
                prop_assert!(range.start == ETHERNET_BYTES && range.end <= frame.len());
            }
            prop_assert!(out.len() <= 1 && ours.known.len() <= 1);
        }
    }
}
