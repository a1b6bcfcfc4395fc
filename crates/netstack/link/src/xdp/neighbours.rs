//! Neighbour table of an Ethernet: ARP (RFC 826; RFC 1122, section 2.3.2) and IPv6 neighbour
//! discovery (RFC 4861).
//!
//! The table does no input or output: received frames go in, answers and requests come out. A
//! neighbour is valid for [`REACHABLE_TIME`], then asked again while in use, and forgotten [`EXPIRY_TIME`] after
//! its last message. One packet per unresolved neighbour is held, the last. The table learns only
//! from requests for own addresses and from answers to own requests.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use std::time::Duration;

use etherparse::IpNumber;

use super::frames::{
    self, ADVERTISEMENT, ARP, ARP_BEGIN, ARP_BYTES, BROADCAST, ETHERNET_BYTES, IS_SOLICITED, Mac, OVERRIDES,
    REPLY, REQUEST, SOLICITATION, TARGET_END, UNSPECIFIED_MAC, V4, V6, is_unicast, link_layer_options, mac,
    multicast, v4, v6,
};
use super::program::solicited_node;
use crate::packet::{Layout, Validity, validate};

/// Time for which a neighbour's address is valid without a new request.
pub const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// Time since its last message after which a neighbour is forgotten.
pub const EXPIRY_TIME: Duration = Duration::from_secs(90);
/// Minimum interval between requests (RFC 1122, section 2.3.2.1; RetransTimer of RFC 4861).
pub const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// Time since the first unanswered request after which a neighbour is unreachable; Linux too asks three times.
pub const UNREACHABLE_TIME: Duration = Duration::from_secs(3);
/// Maximum number of neighbours: the least recently asked or heard one is evicted.
pub const MAX_NEIGHBOURS: usize = 1024;

/// Next hop of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The next hop has this link-layer address.
    Resolved(Mac),
    /// The next hop has been asked for its address; [`Neighbours::hold`] can keep a frame meanwhile.
    Unresolved(IpAddr),
    /// The next hop does not answer.
    Unreachable,
    /// The address is in no network, and there is no router.
    NoRoute,
}

#[derive(Debug, Default)]
struct Neighbour {
    mac: Option<Mac>,
    heard: Duration,
    asked: Option<Duration>,
    /// Time of the first unanswered request.
    unanswered: Option<Duration>,
    held: Option<Vec<u8>>,
}

impl Neighbour {
    fn last_activity(&self) -> Duration {
        self.asked.map_or(self.heard, |asked| asked.max(self.heard))
    }
}

/// The own addresses and the known neighbours.
#[derive(Debug)]
pub struct Neighbours {
    mac: Mac,
    own: Vec<(IpAddr, u8)>,
    routers: Vec<IpAddr>,
    known: HashMap<IpAddr, Neighbour>,
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
    /// Returns the table of a host: its `mac`, its addresses with prefix lengths, and its routers.
    #[must_use]
    pub fn new(mac: Mac, own: &[(IpAddr, u8)], routers: &[IpAddr]) -> Self {
        Self { mac, own: own.to_vec(), routers: routers.to_vec(), known: HashMap::new() }
    }

    /// Returns the number of neighbours.
    #[must_use]
    pub fn neighbour_count(&self) -> usize {
        self.known.len()
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.own.iter().any(|(own, _)| *own == address)
    }

    fn is_on_link(&self, address: IpAddr) -> bool {
        let is_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        is_local || self.own.iter().any(|(own, bits)| is_in(address, *own, *bits))
    }

    /// Processes a received frame. Returns the range of an IP packet for this host, without Ethernet
    /// padding; messages of address resolution are handled here, and frames to send are added to `out`.
    pub fn receive(&mut self, frame: &[u8], now: Duration, out: &mut Vec<Vec<u8>>) -> Option<Range<usize>> {
        let (header, body) = frame.split_at_checked(ETHERNET_BYTES)?;
        let kind = [header[12], header[13]];
        if kind == ARP {
            self.on_arp(body, now, out);
            return None;
        }
        if kind != V4 && kind != V6 {
            return None;
        }
        let layout = Layout::of(body).filter(|layout| layout.is_v6 == (kind == V6));
        // The link counts it as malformed.
        let Some(layout) = layout.filter(|layout| layout.transport.end <= body.len()) else {
            return Some(ETHERNET_BYTES..frame.len());
        };
        let packet = &body[..layout.transport.end];
        if layout.is_v6
            && layout.protocol == IpNumber::IPV6_ICMP
            && matches!(packet.get(40), Some(&(SOLICITATION | ADVERTISEMENT)))
        {
            self.on_discovery(packet, mac(&header[6..12]), now, out);
            return None;
        }
        (header[..6] == self.mac).then_some(ETHERNET_BYTES..ETHERNET_BYTES + packet.len())
    }

    fn on_arp(&mut self, body: &[u8], now: Duration, out: &mut Vec<Vec<u8>>) {
        let Some(arp) = body.get(..ARP_BYTES).filter(|arp| arp[..6] == ARP_BEGIN && arp[6] == 0) else {
            return;
        };
        let (sender, from, target) = (mac(&arp[8..14]), v4(&arp[14..18]), v4(&arp[24..28]));
        if !self.is_own(target.into()) || !is_unicast(sender) || sender == self.mac {
            return;
        }
        match arp[7] {
            REQUEST => {
                if !from.is_unspecified() {
                    self.learn(from.into(), sender, now, true, out);
                }
                out.push(frames::arp(self.mac, sender, REPLY, target, sender, from));
            }
            REPLY => self.learn(from.into(), sender, now, false, out),
            _ => {}
        }
    }

    /// Processes a message of neighbour discovery (RFC 4861, sections 7.1 and 7.2).
    fn on_discovery(&mut self, packet: &[u8], sender: Mac, now: Duration, out: &mut Vec<Vec<u8>>) {
        const MAX_HOPS: u8 = 255;
        let message = &packet[40..];
        if packet[7] != MAX_HOPS || message.len() < TARGET_END || message[1] != 0 {
            return;
        }
        if validate(packet, false) != Validity::Valid {
            return;
        }
        let (source, target) = (v6(&packet[8..24]), v6(&message[8..TARGET_END]));
        let Some([at_source, at_target]) = link_layer_options(&message[TARGET_END..]) else { return };
        if message[0] == SOLICITATION {
            // Duplicate address detection (RFC 4862) has no source address, and must not have the option.
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
            if is_unicast(link) || source.is_unspecified() {
                out.push(frames::discovery(self.mac, ADVERTISEMENT, link, target, to, target, flags));
            }
        } else if let Some(link) = at_target {
            let known = self.known.get(&target.into()).and_then(|neighbour| neighbour.mac);
            if message[4] & OVERRIDES != 0 || known.is_none_or(|known| known == link) {
                self.learn(target.into(), link, now, false, out);
            }
        }
    }

    /// Records a neighbour's address and releases the frame held for it. An unknown one is added if
    /// `adds_unknown`.
    fn learn(
        &mut self,
        address: IpAddr,
        link: Mac,
        now: Duration,
        adds_unknown: bool,
        out: &mut Vec<Vec<u8>>,
    ) {
        if !is_unicast(link) || link == self.mac || self.is_own(address) || !self.is_on_link(address) {
            return;
        }
        if !self.known.contains_key(&address) {
            if !adds_unknown {
                return;
            }
            self.make_room();
        }
        let neighbour = self.known.entry(address).or_default();
        (neighbour.mac, neighbour.heard) = (Some(link), now);
        (neighbour.asked, neighbour.unanswered) = (None, None);
        if let Some(mut frame) = neighbour.held.take() {
            frame[..6].copy_from_slice(&link);
            out.push(frame);
        }
    }

    fn make_room(&mut self) {
        if self.known.len() < MAX_NEIGHBOURS {
            return;
        }
        let oldest = self
            .known
            .iter()
            .min_by_key(|(_, neighbour)| neighbour.last_activity())
            .map(|(address, _)| *address);
        if let Some(oldest) = oldest {
            self.known.remove(&oldest);
        }
    }

    /// Returns the next hop for an address. A request that this requires is added to `out`.
    pub fn route(&mut self, to: IpAddr, now: Duration, out: &mut Vec<Vec<u8>>) -> Route {
        let hop = if self.is_on_link(to) {
            to
        } else {
            match self.routers.iter().find(|router| router.is_ipv4() == to.is_ipv4()) {
                Some(router) => *router,
                None => return Route::NoRoute,
            }
        };
        let Some(own) = self.own.iter().map(|(own, _)| *own).find(|own| own.is_ipv4() == hop.is_ipv4())
        else {
            return Route::NoRoute;
        };
        if !self.known.contains_key(&hop) {
            self.make_room();
        }
        let neighbour = self.known.entry(hop).or_default();
        if neighbour.mac.is_some() && now.saturating_sub(neighbour.heard) >= EXPIRY_TIME {
            (neighbour.mac, neighbour.asked) = (None, None);
        }
        let is_old = neighbour.mac.is_none() || now.saturating_sub(neighbour.heard) >= REACHABLE_TIME;
        let link = neighbour.mac;
        let silence = neighbour.unanswered.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        // After some time of `Unreachable`, packets are held again.
        if silence >= 2 * UNREACHABLE_TIME {
            neighbour.unanswered = None;
        }
        if is_old && neighbour.asked.is_none_or(|asked| now.saturating_sub(asked) >= REQUEST_INTERVAL) {
            neighbour.asked = Some(now);
            neighbour.unanswered.get_or_insert(now);
            out.push(self.request(own, hop, link));
        }
        match link {
            Some(link) => Route::Resolved(link),
            None if (UNREACHABLE_TIME..2 * UNREACHABLE_TIME).contains(&silence) => Route::Unreachable,
            None => Route::Unresolved(hop),
        }
    }

    /// Holds a frame until the neighbour's address is known, replacing the previous one.
    pub fn hold(&mut self, neighbour: IpAddr, frame: Vec<u8>) {
        if let Some(neighbour) = self.known.get_mut(&neighbour).filter(|_| frame.len() >= ETHERNET_BYTES) {
            neighbour.held = Some(frame);
        }
    }

    /// Returns the Ethernet header of a frame from this host.
    #[must_use]
    pub fn header(&self, to: Mac, is_v6: bool) -> [u8; ETHERNET_BYTES] {
        frames::header(self.mac, to, is_v6)
    }

    fn request(&self, own: IpAddr, hop: IpAddr, link: Option<Mac>) -> Vec<u8> {
        match (own, hop) {
            (IpAddr::V4(own), IpAddr::V4(hop)) => {
                frames::arp(self.mac, link.unwrap_or(BROADCAST), REQUEST, own, UNSPECIFIED_MAC, hop)
            }
            (IpAddr::V6(own), IpAddr::V6(hop)) => {
                let to = if link.is_some() { hop } else { solicited_node(hop) };
                frames::discovery(self.mac, SOLICITATION, link.unwrap_or(multicast(to)), own, to, hop, 0)
            }
            _ => unreachable!("addresses of one family"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::checksum::pseudo_header;
    use std::net::Ipv4Addr;

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

    /// Returns the route of a packet, and the frames that this sends.
    fn request_route(table: &mut Neighbours, to: &str, now: Duration) -> (Route, Vec<Vec<u8>>) {
        let mut out = Vec::new();
        (table.route(address(to), now, &mut out), out)
    }

    fn receive_frame(table: &mut Neighbours, frame: &[u8], now: Duration) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        assert_eq!(table.receive(frame, now, &mut out), None);
        out
    }

    #[test]
    fn held_packet_is_sent_once_the_neighbour_answers() {
        for (one, other) in [("10.9.0.2", "10.9.0.1"), ("fd09::2", "fd09::1")] {
            let (mut ours, mut theirs) = (ours(), theirs());
            let (route, asked) = request_route(&mut ours, other, seconds(5));
            assert_eq!((route, asked.len()), (Route::Unresolved(address(other)), 1));
            ours.hold(address(other), vec![1; 20]);
            ours.hold(address(other), vec![2; 20]);
            let answers = receive_frame(&mut theirs, &asked[0], seconds(5));
            assert_eq!(answers.len(), 1);
            assert_eq!(answers[0][..6], OURS);
            // The neighbour has learned our address from the request.
            assert_eq!(request_route(&mut theirs, one, seconds(5)), (Route::Resolved(OURS), vec![]));
            let sent = receive_frame(&mut ours, &answers[0], seconds(5));
            assert_eq!(sent, [[&THEIRS[..], &[2; 14]].concat()], "the last that waited");
            assert_eq!(request_route(&mut ours, other, seconds(6)), (Route::Resolved(THEIRS), vec![]));
        }
    }

    #[test]
    fn requests_are_rate_limited_and_known_neighbours_are_refreshed() {
        for other in ["10.9.0.1", "fd09::1"] {
            let (mut ours, mut theirs) = (ours(), theirs());
            let asked = |ours: &mut Neighbours, now| request_route(ours, other, now).1;
            let first = asked(&mut ours, seconds(1));
            assert_eq!(first.len(), 1);
            assert!(asked(&mut ours, seconds(1) + REQUEST_INTERVAL / 2).is_empty());
            assert_eq!(asked(&mut ours, seconds(2)), first);
            let answer = receive_frame(&mut theirs, &first[0], seconds(2)).remove(0);
            receive_frame(&mut ours, &answer, seconds(2));
            let again = request_route(&mut ours, other, seconds(2) + REACHABLE_TIME);
            assert_eq!((again.0, again.1.len()), (Route::Resolved(THEIRS), 1));
            assert_eq!(again.1[0][..6], THEIRS, "the neighbour itself is asked");
            assert_eq!(receive_frame(&mut theirs, &again.1[0], seconds(2) + REACHABLE_TIME).len(), 1);
            let forgotten = request_route(&mut ours, other, seconds(2) + EXPIRY_TIME);
            assert_eq!((forgotten.0, &forgotten.1), (Route::Unresolved(address(other)), &first));
        }
    }

    #[test]
    fn silent_neighbour_is_given_up_and_asked_again() {
        for other in ["10.9.0.1", "fd09::1"] {
            let (mut ours, mut theirs) = (ours(), theirs());
            let unknown = Route::Unresolved(address(other));
            for (at, expected) in [
                (1, unknown),
                (2, unknown),
                (3, unknown),
                (4, Route::Unreachable),
                (6, Route::Unreachable),
                (7, unknown),
                (10, Route::Unreachable),
            ] {
                let (route, asked) = request_route(&mut ours, other, seconds(at));
                assert_eq!((route, asked.len()), (expected, 1), "at {at} s");
            }
            let request = request_route(&mut ours, other, seconds(11)).1.remove(0);
            let answer = receive_frame(&mut theirs, &request, seconds(11)).remove(0);
            receive_frame(&mut ours, &answer, seconds(11));
            assert_eq!(request_route(&mut ours, other, seconds(12)).0, Route::Resolved(THEIRS));
        }
    }

    #[test]
    fn off_link_packets_go_to_the_router_if_there_is_one() {
        let mut ours = ours();
        assert_eq!(
            request_route(&mut ours, "192.0.2.1", seconds(1)).0,
            Route::Unresolved(address("10.9.0.254"))
        );
        assert_eq!(request_route(&mut ours, "2001:db8::1", seconds(1)), (Route::NoRoute, vec![]));
        assert_eq!(request_route(&mut ours, "fe80::1", seconds(1)).0, Route::Unresolved(address("fe80::1")));
    }

    #[test]
    fn unsolicited_or_foreign_addresses_are_not_learned() {
        let (mut ours, mut theirs) = (ours(), theirs());
        // An answer that nobody asked for.
        for frame in [
            frames::arp(
                theirs.mac,
                OURS,
                REPLY,
                "10.9.0.1".parse().unwrap(),
                OURS,
                "10.9.0.2".parse().unwrap(),
            ),
            frames::discovery(
                theirs.mac,
                ADVERTISEMENT,
                OURS,
                v6(&[0xfd; 16]),
                v6(&[0xfd; 16]),
                "fd09::1".parse().unwrap(),
                OVERRIDES,
            ),
            // A request for another host's address.
            frames::arp(
                theirs.mac,
                BROADCAST,
                REQUEST,
                "10.9.0.1".parse().unwrap(),
                UNSPECIFIED_MAC,
                "10.9.0.3".parse().unwrap(),
            ),
        ] {
            assert!(receive_frame(&mut ours, &frame, seconds(1)).is_empty());
        }
        assert!(ours.known.is_empty());
        // A sender with an address of another network, or our own, is answered but not learned.
        for from in ["192.0.2.1", "10.9.0.2"] {
            let frame = frames::arp(
                theirs.mac,
                BROADCAST,
                REQUEST,
                from.parse().unwrap(),
                UNSPECIFIED_MAC,
                "10.9.0.2".parse().unwrap(),
            );
            assert_eq!(receive_frame(&mut ours, &frame, seconds(1)).len(), 1);
            assert!(ours.known.is_empty(), "{from}");
        }
        // A hop limit other than 255 (the message was routed), and a wrong checksum.
        let asked = request_route(&mut theirs, "fd09::2", seconds(1)).1.remove(0);
        for at in [ETHERNET_BYTES + 7, ETHERNET_BYTES + 42] {
            let mut frame = asked.clone();
            frame[at] ^= 1;
            assert!(receive_frame(&mut ours, &frame, seconds(1)).is_empty());
        }
        assert!(ours.known.is_empty());
        assert_eq!(receive_frame(&mut ours, &asked, seconds(1)).len(), 1);
    }

    #[test]
    fn an_answer_that_does_not_override_changes_nothing_known() {
        let (mut ours, mut theirs) = (ours(), theirs());
        let asked = request_route(&mut ours, "fd09::1", seconds(1)).1.remove(0);
        receive_frame(&mut ours, &receive_frame(&mut theirs, &asked, seconds(1))[0], seconds(1));
        let other = Neighbours::new(OTHERS, &[(address("fd09::1"), 64)], &[]);
        let (target, to) = ("fd09::1".parse().unwrap(), "fd09::2".parse().unwrap());
        for (flags, expected) in [(IS_SOLICITED, THEIRS), (IS_SOLICITED | OVERRIDES, OTHERS)] {
            let frame = frames::discovery(other.mac, ADVERTISEMENT, OURS, target, to, target, flags);
            receive_frame(&mut ours, &frame, seconds(1));
            assert_eq!(request_route(&mut ours, "fd09::1", seconds(1)).0, Route::Resolved(expected));
        }
    }

    #[test]
    fn duplicate_address_probes_are_answered() {
        let (mut ours, theirs) = (ours(), theirs());
        let probe = frames::arp(
            theirs.mac,
            BROADCAST,
            REQUEST,
            Ipv4Addr::UNSPECIFIED,
            UNSPECIFIED_MAC,
            "10.9.0.2".parse().unwrap(),
        );
        assert_eq!(receive_frame(&mut ours, &probe, seconds(1)).len(), 1);
        let target: Ipv6Addr = "fd09::2".parse().unwrap();
        let mut probe = frames::discovery(
            theirs.mac,
            SOLICITATION,
            multicast(solicited_node(target)),
            Ipv6Addr::UNSPECIFIED,
            solicited_node(target),
            target,
            0,
        );
        assert!(receive_frame(&mut ours, &probe, seconds(1)).is_empty(), "it says where it is, and must not");
        // The same message without the option.
        probe.truncate(probe.len() - 8);
        probe[ETHERNET_BYTES + 5] -= 8;
        let at = ETHERNET_BYTES + 40;
        probe[at + 2..at + 4].fill(0);
        let mut sum = pseudo_header(&probe[ETHERNET_BYTES + 8..at], 58, 24);
        sum.add(&probe[at..]);
        probe[at + 2..at + 4].copy_from_slice(&sum.checksum().to_be_bytes());
        let answers = receive_frame(&mut ours, &probe, seconds(1));
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0][..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert!(ours.known.is_empty());
    }

    #[test]
    fn a_flood_of_questions_is_bounded() {
        let own = [(address("10.0.0.1"), 8)];
        let mut ours = Neighbours::new(OURS, &own, &[]);
        let theirs = theirs();
        for number in 2..10_000u32 {
            let from = Ipv4Addr::from(0x0a00_0000 + number);
            let frame = frames::arp(
                theirs.mac,
                BROADCAST,
                REQUEST,
                from,
                UNSPECIFIED_MAC,
                "10.0.0.1".parse().unwrap(),
            );
            receive_frame(&mut ours, &frame, Duration::from_millis(number.into()));
        }
        assert_eq!(ours.known.len(), MAX_NEIGHBOURS);
        assert_eq!(
            request_route(&mut ours, &Ipv4Addr::from(0x0a00_0000 + 9_999).to_string(), seconds(10)).0,
            Route::Resolved(THEIRS)
        );
    }

    #[test]
    fn ethernet_padding_and_frames_for_other_hosts_are_dropped() {
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
        fn arbitrary_frames_are_handled(
            kind in 0usize..4, body in prop::collection::vec(any::<u8>(), 0..120), keep: bool, at: usize, byte: u8,
        ) {
            let (mut ours, mut theirs) = (ours(), theirs());
            let real = request_route(&mut theirs, if kind & 1 == 0 { "10.9.0.2" } else { "fd09::2" }, seconds(1)).1.remove(0);
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
