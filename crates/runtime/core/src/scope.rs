//! The set of streams that may become lanes, as `--lanes` names it.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Description of the legal values, for messages.
pub const LEGAL: &str = "all, off, or a list of unix, tcp, ADDRESS and ADDRESS:PORT, separated by commas";

/// A set of streams, as text that has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope<'a>(&'a str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    Unix,
    Tcp,
    Address(IpAddr, Option<u16>),
}

const ALL: &str = "all";
const OFF: &str = "off";

fn parse_element(word: &str) -> Option<Element> {
    if word == "unix" {
        return Some(Element::Unix);
    }
    if word == "tcp" {
        return Some(Element::Tcp);
    }
    if let Ok(address) = word.parse::<SocketAddr>() {
        return (address.port() != 0)
            .then(|| Element::Address(address.ip().to_canonical(), Some(address.port())));
    }
    let bare = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word);
    bare.parse::<IpAddr>().ok().map(|address| Element::Address(address.to_canonical(), None))
}

impl<'a> Scope<'a> {
    /// The set of all streams.
    pub const ALL: Scope<'static> = Scope(ALL);

    /// Parses `all`, `off`, or a list of `unix`, `tcp`, `ADDRESS` and `ADDRESS:PORT` separated by commas.
    /// An IPv6 address with a port is in brackets. `None` if the text is not legal.
    #[must_use]
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let text = core::str::from_utf8(text).ok()?;
        let is_legal =
            text == ALL || text == OFF || text.split(',').all(|word| parse_element(word).is_some());
        is_legal.then_some(Self(text))
    }

    /// Returns the text that was parsed.
    #[must_use]
    pub const fn text(&self) -> &'a str {
        self.0
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == OFF
    }

    /// Whether streams of UNIX sockets are in the set.
    #[must_use]
    pub fn has_unix(&self) -> bool {
        self.0 == ALL || self.elements().any(|element| element == Element::Unix)
    }

    /// Whether a TCP connection with this address at one end is in the set; `ip` may be an IPv4-mapped one.
    #[must_use]
    pub fn has_tcp(&self, ip: [u8; 16], port: u16) -> bool {
        let ip = Ipv6Addr::from(ip).to_canonical();
        let has = |element| match element {
            Element::Tcp => true,
            Element::Address(address, only) => address == ip && only.is_none_or(|only| only == port),
            Element::Unix => false,
        };
        self.0 == ALL || self.elements().any(has)
    }

    fn elements(&self) -> impl Iterator<Item = Element> {
        self.0.split(',').filter_map(parse_element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(last: u8) -> [u8; 16] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last]
    }

    fn scope(text: &str) -> Scope<'_> {
        Scope::parse(text.as_bytes()).expect("legal")
    }

    #[test]
    fn a_scope_contains_the_named_streams_only() {
        assert!(scope("all").has_unix() && scope("all").has_tcp(mapped(1), 80));
        assert!(scope("off").is_empty() && !scope("off").has_unix() && !scope("off").has_tcp(mapped(1), 80));
        assert!(scope("unix").has_unix() && !scope("unix").has_tcp(mapped(1), 80));
        assert!(!scope("tcp").has_unix() && scope("tcp").has_tcp(mapped(9), 1));
        let some = scope("127.0.0.1:6379,127.0.0.2");
        assert!(some.has_tcp(mapped(1), 6379) && !some.has_tcp(mapped(1), 6380));
        assert!(some.has_tcp(mapped(2), 1) && !some.has_tcp(mapped(3), 6379) && !some.has_unix());
    }

    #[test]
    fn addresses_of_ipv6_may_have_brackets_and_mapped_ones_are_those_of_ipv4() {
        let loopback = Ipv6Addr::LOCALHOST.octets();
        for text in ["::1", "[::1]", "[::1]:80", "unix,[::1]:80"] {
            assert!(scope(text).has_tcp(loopback, 80), "{text}");
            assert!(!scope(text).has_tcp(mapped(1), 80), "{text}");
        }
        assert!(!scope("[::1]:80").has_tcp(loopback, 81));
        assert!(scope("::ffff:127.0.0.1").has_tcp(mapped(1), 7));
    }

    #[test]
    fn illegal_scopes_are_refused() {
        for text in [
            "",
            ",",
            "unix,",
            "all,unix",
            "localhost",
            "127.0.0.1:",
            "127.0.0.1:0",
            "127.0.0.1:65536",
            "[::1",
            "on",
        ] {
            assert_eq!(Scope::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Scope::parse(b"\xff"), None);
    }
}
