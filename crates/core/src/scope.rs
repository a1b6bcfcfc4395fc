//! Which streams may become lanes: what `--lanes` names.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// What is legal, for messages.
pub const LEGAL: &str = "all, off, or a list of unix, tcp, ADDRESS and ADDRESS:PORT, separated by commas";

/// Which streams may become lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope<'a>(&'a str);

/// A word of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Unix,
    Tcp,
    Address(IpAddr, Option<u16>),
}

/// The word of a scope with every stream.
const ALL: &str = "all";
/// The word of the scope with none.
const OFF: &str = "off";

fn part(word: &str) -> Option<Part> {
    if word == "unix" {
        return Some(Part::Unix);
    }
    if word == "tcp" {
        return Some(Part::Tcp);
    }
    if let Ok(address) = word.parse::<SocketAddr>() {
        return (address.port() != 0)
            .then(|| Part::Address(address.ip().to_canonical(), Some(address.port())));
    }
    let bare = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word);
    bare.parse::<IpAddr>().ok().map(|address| Part::Address(address.to_canonical(), None))
}

impl<'a> Scope<'a> {
    /// Every stream.
    pub const ALL: Scope<'static> = Scope(ALL);

    /// What `text` names: `all`, `off`, or `unix`, `tcp`, `ADDRESS` and `ADDRESS:PORT` (IPv6 with a port in brackets) with commas
    /// between them. `None`: nothing legal.
    #[must_use]
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let text = core::str::from_utf8(text).ok()?;
        let is_legal = text == ALL || text == OFF || text.split(',').all(|word| part(word).is_some());
        is_legal.then_some(Self(text))
    }

    /// The text that it was parsed from.
    #[must_use]
    pub const fn text(&self) -> &'a str {
        self.0
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == OFF
    }

    /// Whether streams of UNIX sockets are in it.
    #[must_use]
    pub fn has_unix(&self) -> bool {
        self.0 == ALL || self.parts().any(|part| part == Part::Unix)
    }

    /// Whether a TCP connection is in it one of whose ends has this address, IPv6 or IPv4 mapped into it, and port.
    #[must_use]
    pub fn has_tcp(&self, ip: [u8; 16], port: u16) -> bool {
        let ip = Ipv6Addr::from(ip).to_canonical();
        let has = |part| match part {
            Part::Tcp => true,
            Part::Address(address, only) => address == ip && only.is_none_or(|only| only == port),
            Part::Unix => false,
        };
        self.0 == ALL || self.parts().any(has)
    }

    fn parts(&self) -> impl Iterator<Item = Part> {
        self.0.split(',').filter_map(part)
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
    fn what_is_named_is_in_it_and_nothing_else() {
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
    fn what_is_not_legal_is_refused() {
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
