//! Requests of programs and responses of the service, a few words each. Input is hostile: a message that is
//! incomplete or unknown is rejected.

use crate::address::{self, WORDS};
use std::net::{IpAddr, SocketAddr};

/// Version of everything that programs and the service share.
const VERSION: u64 = 0x756e_636f_7079_4e03;
/// Maximum number of prefixes of a service.
pub const MAX_PREFIXES: usize = 3;

/// A congestion control that the service implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// NewReno, which Linux calls reno.
    Reno,
    /// CUBIC, as RFC 9438 specifies it.
    Cubic,
}

impl Congestion {
    const fn code(self) -> u64 {
        match self {
            Self::Reno => 1,
            Self::Cubic => 2,
        }
    }

    const fn of_code(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::Reno),
            2 => Some(Self::Cubic),
            _ => None,
        }
    }
}

/// Options of a connection or listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// TCP_NODELAY, set or not.
    pub no_delay: bool,
    /// SO_KEEPALIVE: idle time and interval in seconds, number of probes.
    pub keepalive: Option<[u16; 3]>,
    /// SO_LINGER with a time of zero: `close` resets the connection.
    pub resets_on_close: bool,
    /// TCP_CONGESTION of connections that begin later; `None`: the service's default.
    pub congestion: Option<Congestion>,
}

impl Options {
    fn word(self) -> u64 {
        let [idle, interval, probes] = self.keepalive.unwrap_or_default().map(u64::from);
        let bits = u64::from(self.no_delay)
            | u64::from(self.keepalive.is_some()) << 1
            | u64::from(self.resets_on_close) << 2;
        let congestion = self.congestion.map_or(0, Congestion::code);
        bits | congestion << 3 | idle << 16 | interval << 32 | probes << 48
    }

    const fn of_word(word: u64) -> Self {
        let keepalive = [(word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16];
        Self {
            no_delay: word & 1 != 0,
            keepalive: if word & 2 != 0 { Some(keepalive) } else { None },
            resets_on_close: word & 4 != 0,
            congestion: Congestion::of_code(word >> 3 & 3),
        }
    }
}

/// A request to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks for the service's details. [`Response::Service`], with the state table's descriptor.
    Hello,
    /// Binds a socket to an address; port 0: any. [`Response::Address`], with the socket.
    Bind {
        /// Address to bind to.
        address: SocketAddr,
        /// Number of the socket in its name.
        id: u32,
        /// SO_REUSEPORT, set or not.
        is_shared: bool,
    },
    /// Makes a bound socket listen. [`Response::Done`].
    Listen {
        /// Address of the socket.
        address: SocketAddr,
        /// Number of the socket in its name.
        id: u32,
        /// Maximum number of connections that wait to be accepted.
        backlog: u32,
        /// Options of accepted connections.
        options: Options,
    },
    /// Begins a connection with this end of a stream, once the stream is filled. [`Response::Connection`].
    Connect {
        /// Local address; port 0 and the unspecified address: any.
        local: SocketAddr,
        /// Address of the peer.
        remote: SocketAddr,
        /// Initial options of the connection.
        options: Options,
    },
    /// Sets options of a connection. [`Response::Done`].
    SetOptions {
        /// Slot in the state table.
        slot: u32,
        /// Serial number of the connection in this slot.
        serial: u32,
        /// The new values of all options.
        options: Options,
    },
    /// Asks for the details of a connection. [`Response::Info`].
    Info {
        /// Slot in the state table.
        slot: u32,
        /// Serial number of the connection in this slot.
        serial: u32,
    },
    /// Asks for the service's state. [`Response::Done`], with a JSON file.
    List,
    /// Makes a bound socket stop listening. [`Response::Address`], with a socket that replaces it.
    Unlisten {
        /// Address of the socket.
        address: SocketAddr,
        /// Number of the socket in its name.
        id: u32,
    },
    /// Keeps received bytes for [`Request::TakeReceived`] before the stream is shut for reading. [`Response::Done`].
    KeepReceived {
        /// Slot in the state table.
        slot: u32,
        /// Serial number of the connection in this slot.
        serial: u32,
    },
    /// Takes kept bytes of a connection. [`Response::Bytes`], with a file of them if there are any.
    TakeReceived {
        /// Slot in the state table.
        slot: u32,
        /// Serial number of the connection in this slot.
        serial: u32,
        /// Maximum number of bytes.
        max_bytes: u32,
        /// MSG_PEEK: the service keeps the bytes.
        is_peeked: bool,
    },
    /// Passes a new connection to the service, for a process that cannot connect. There is no answer.
    PassConnection,
}

/// A prefix whose addresses the service reaches, and the service's own address in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Address of the service.
    pub service_address: IpAddr,
    /// Length of the prefix, bits.
    pub bits: u8,
}

impl Prefix {
    /// Returns whether the prefix contains an address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = u32::from(self.bits);
        match (self.service_address, address) {
            (IpAddr::V4(own), IpAddr::V4(address)) => {
                (own.to_bits() ^ address.to_bits()).checked_shr(32 - bits.min(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(address)) => {
                (own.to_bits() ^ address.to_bits()).checked_shr(128 - bits.min(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// Details of a connection, for getsockopt(TCP_INFO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// State as Linux numbers it (include/net/tcp_states.h).
    pub state: u8,
    /// Maximum size of sent segments, bytes.
    pub mss: u32,
    /// Smoothed round-trip time, µs.
    pub round_trip_us: u32,
    /// Congestion window, bytes.
    pub window_bytes: u64,
    /// Number of acknowledged bytes.
    pub acknowledged_bytes: u64,
    /// Number of bytes received in order.
    pub received_bytes: u64,
    /// Number of retransmitted segments.
    pub retransmissions: u32,
    /// Number of segments that are believed lost, retransmitted or not.
    pub lost_segments: u32,
    /// Number of retransmitted segments that are not acknowledged yet.
    pub retransmitted_segments: u32,
    /// Number of timeouts since the last acknowledgement.
    pub timeouts: u32,
}

/// A response of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// Success without further details.
    Done,
    /// Failure with this errno.
    Failed(i32),
    /// Details of the service.
    Service {
        /// Identifier of the service.
        service: u64,
        /// Congestion control of connections that choose none.
        congestion: Congestion,
        /// Prefixes that the service reaches; `None` only at the end.
        prefixes: [Option<Prefix>; MAX_PREFIXES],
    },
    /// Address that the socket was bound to.
    Address(SocketAddr),
    /// A connection that was begun.
    Connection {
        /// Slot in the state table.
        slot: u32,
        /// Serial number of the connection in this slot.
        serial: u32,
        /// Local address of the connection.
        local: SocketAddr,
    },
    /// Details of a connection.
    Info(Info),
    /// Number of received bytes in the file that comes with the answer.
    Bytes(u32),
}

/// Words of a message.
pub type Words = Vec<u64>;

const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

impl Request {
    /// Encodes the request as words.
    #[must_use]
    pub fn words(&self) -> Words {
        let with = |head: &[u64], addresses: &[SocketAddr]| {
            let addresses = addresses.iter().flat_map(|address| address::words(*address));
            [VERSION].into_iter().chain(head.iter().copied()).chain(addresses).collect()
        };
        match *self {
            Self::Hello => with(&[1], &[]),
            Self::Bind { address, id, is_shared } => with(&[2, pair(is_shared.into(), id)], &[address]),
            Self::Listen { address, id, backlog, options } => {
                with(&[3, pair(backlog, id), options.word()], &[address])
            }
            Self::Connect { local, remote, options } => with(&[4, options.word()], &[local, remote]),
            Self::SetOptions { slot, serial, options } => with(&[5, pair(slot, serial), options.word()], &[]),
            Self::Info { slot, serial } => with(&[6, pair(slot, serial)], &[]),
            Self::List => with(&[7], &[]),
            Self::PassConnection => with(&[8], &[]),
            Self::Unlisten { address, id } => with(&[9, id.into()], &[address]),
            Self::KeepReceived { slot, serial } => with(&[10, pair(slot, serial)], &[]),
            Self::TakeReceived { slot, serial, max_bytes, is_peeked } => {
                with(&[11, pair(slot, serial), pair(is_peeked.into(), max_bytes)], &[])
            }
        }
    }

    /// Decodes a request; `None`: it is malformed or unknown.
    #[must_use]
    pub fn parse(words: &[u64]) -> Option<Self> {
        let words = words.strip_prefix(&[VERSION])?;
        match words {
            [1] => Some(Self::Hello),
            [2, head, address @ ..] => {
                let (is_shared, id) = halves(*head);
                Some(Self::Bind { address: address::of_words(address)?, id, is_shared: is_shared != 0 })
            }
            [3, head, options, address @ ..] => {
                let (backlog, id) = halves(*head);
                let options = Options::of_word(*options);
                Some(Self::Listen { address: address::of_words(address)?, id, backlog, options })
            }
            [4, options, addresses @ ..] => {
                let (local, remote) = addresses.split_at_checked(WORDS)?;
                let (local, remote) = (address::of_words(local)?, address::of_words(remote)?);
                Some(Self::Connect { local, remote, options: Options::of_word(*options) })
            }
            [5, which, options] => {
                let (slot, serial) = halves(*which);
                Some(Self::SetOptions { slot, serial, options: Options::of_word(*options) })
            }
            [6, which] => {
                let (slot, serial) = halves(*which);
                Some(Self::Info { slot, serial })
            }
            [7] => Some(Self::List),
            [8] => Some(Self::PassConnection),
            [9, id, address @ ..] => {
                Some(Self::Unlisten { address: address::of_words(address)?, id: u32::try_from(*id).ok()? })
            }
            [10, which] => {
                let (slot, serial) = halves(*which);
                Some(Self::KeepReceived { slot, serial })
            }
            [11, which, how] => {
                let ((slot, serial), (is_peeked, max_bytes)) = (halves(*which), halves(*how));
                Some(Self::TakeReceived { slot, serial, max_bytes, is_peeked: is_peeked != 0 })
            }
            _ => None,
        }
    }
}

impl Response {
    /// Encodes the response as words.
    #[must_use]
    pub fn words(&self) -> Words {
        match self {
            Self::Done => vec![VERSION, 0],
            Self::Failed(errno) => vec![VERSION, 1, u64::from(errno.unsigned_abs())],
            Self::Service { service, congestion, prefixes } => {
                let mut words = vec![VERSION, 2, *service, congestion.code()];
                for prefix in prefixes.iter().flatten() {
                    words.extend(address::words(SocketAddr::new(prefix.service_address, prefix.bits.into())));
                }
                words
            }
            Self::Address(address) => [VERSION, 3].into_iter().chain(address::words(*address)).collect(),
            Self::Connection { slot, serial, local } => {
                [VERSION, 4, pair(*slot, *serial)].into_iter().chain(address::words(*local)).collect()
            }
            Self::Info(info) => vec![
                VERSION,
                5,
                pair(info.state.into(), info.mss),
                pair(info.round_trip_us, info.retransmissions),
                info.window_bytes,
                info.acknowledged_bytes,
                info.received_bytes,
                pair(info.lost_segments, info.retransmitted_segments),
                info.timeouts.into(),
            ],
            Self::Bytes(count) => vec![VERSION, 6, (*count).into()],
        }
    }

    /// Decodes a response; `None`: it is malformed or unknown.
    #[must_use]
    pub fn parse(words: &[u64]) -> Option<Self> {
        match words.strip_prefix(&[VERSION])? {
            [0] => Some(Self::Done),
            [1, errno] => i32::try_from(*errno).ok().map(Self::Failed),
            [2, service, congestion, list @ ..] => {
                let congestion = Congestion::of_code(*congestion)?;
                let (list, rest) = list.as_chunks::<WORDS>();
                let mut prefixes = [None; MAX_PREFIXES];
                if !rest.is_empty() || list.len() > prefixes.len() {
                    return None;
                }
                for (prefix, words) in prefixes.iter_mut().zip(list) {
                    let address = address::of_words(words)?;
                    *prefix = Some(Prefix {
                        service_address: address.ip(),
                        bits: u8::try_from(address.port()).ok()?,
                    });
                }
                Some(Self::Service { service: *service, congestion, prefixes })
            }
            [3, address @ ..] => address::of_words(address).map(Self::Address),
            [4, which, local @ ..] => {
                let (slot, serial) = halves(*which);
                Some(Self::Connection { slot, serial, local: address::of_words(local)? })
            }
            [5, first, second, window_bytes, acknowledged_bytes, received_bytes, repair, timeouts] => {
                let (lost_segments, retransmitted_segments) = halves(*repair);
                let ((state, mss), (round_trip_us, retransmissions)) = (halves(*first), halves(*second));
                Some(Self::Info(Info {
                    state: u8::try_from(state).ok()?,
                    mss,
                    round_trip_us,
                    window_bytes: *window_bytes,
                    acknowledged_bytes: *acknowledged_bytes,
                    received_bytes: *received_bytes,
                    retransmissions,
                    lost_segments,
                    retransmitted_segments,
                    timeouts: u32::try_from(*timeouts).ok()?,
                }))
            }
            [6, count] => u32::try_from(*count).ok().map(Self::Bytes),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uncopy_sys::seqpacket::MAX_WORDS;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn what_is_asked_is_understood_and_nothing_else() {
        let keepalive = Options { keepalive: Some([7200, 75, 9]), ..Options::default() };
        let (local, remote) = (address("0.0.0.0:0"), address("[fd00::1]:80"));
        let requests = [
            Request::Hello,
            Request::Bind { address: remote, id: u32::MAX, is_shared: true },
            Request::Listen { address: local, id: 0, backlog: 511, options: Options::default() },
            Request::Connect { local, remote, options: keepalive },
            Request::SetOptions {
                slot: 1,
                serial: 2,
                options: Options {
                    no_delay: true,
                    resets_on_close: true,
                    congestion: Some(Congestion::Cubic),
                    ..keepalive
                },
            },
            Request::Info { slot: u32::MAX, serial: 0 },
            Request::List,
            Request::PassConnection,
            Request::Unlisten { address: local, id: u32::MAX },
            Request::KeepReceived { slot: 1, serial: u32::MAX },
            Request::TakeReceived { slot: u32::MAX, serial: 1, max_bytes: u32::MAX, is_peeked: true },
        ];
        for request in requests {
            let words = request.words();
            assert!(words.len() <= MAX_WORDS);
            assert_eq!(Request::parse(&words), Some(request));
            for len in 0..words.len() {
                assert_eq!(Request::parse(&words[..len]), None);
            }
            assert_eq!(Request::parse(&[&words[..], &[0]].concat()), None);
            assert_eq!(Request::parse(&words[1..]), None, "another version");
        }
    }

    #[test]
    fn what_is_answered_is_understood_and_nothing_else() {
        let prefix =
            |own: &str, bits| Some(Prefix { service_address: own.parse().expect("an address"), bits });
        let prefixes = [prefix("10.0.0.1", 24), prefix("fd00::1", 64), prefix("10.0.1.1", 32)];
        let info = Info {
            state: 1,
            mss: 1460,
            received_bytes: u64::MAX,
            lost_segments: 7,
            timeouts: u32::MAX,
            ..Info::default()
        };
        let answers = [
            Response::Done,
            Response::Failed(libc::EADDRINUSE),
            Response::Service { service: 5, congestion: Congestion::Reno, prefixes },
            Response::Service {
                service: 5,
                congestion: Congestion::Cubic,
                prefixes: [prefixes[0], None, None],
            },
            Response::Address(address("1.2.3.4:5")),
            Response::Connection { slot: 1, serial: 2, local: address("1.2.3.4:5") },
            Response::Info(info),
            Response::Bytes(u32::MAX),
        ];
        for answer in answers {
            let words = answer.words();
            assert!(words.len() <= MAX_WORDS);
            assert_eq!(Response::parse(&words), Some(answer));
            assert_ne!(Response::parse(&words[..words.len() - 1]), Some(answer));
            assert_eq!(Response::parse(&[&words[..], &[1]].concat()), None);
        }
    }

    #[test]
    fn a_prefix_has_the_addresses_that_begin_as_it_does() {
        let prefix = |own: &str, bits| Prefix { service_address: own.parse().expect("an address"), bits };
        let cases = [
            (prefix("10.1.2.3", 24), "10.1.2.200", true),
            (prefix("10.1.2.3", 24), "10.1.3.3", false),
            (prefix("10.1.2.3", 0), "200.1.1.1", true),
            (prefix("10.1.2.3", 32), "10.1.2.2", false),
            (prefix("fd00::1", 64), "fd00::ffff", true),
            (prefix("fd00::1", 128), "fd00::2", false),
            (prefix("fd00::1", 0), "10.1.1.1", false),
        ];
        for (prefix, other, expected) in cases {
            assert_eq!(prefix.contains(other.parse().expect("an address")), expected, "{prefix:?} {other}");
        }
    }
}
