//! Questions of programs and the service's answers: messages of a link, a few words each. What comes is hostile:
//! nothing is taken that is not whole and known.

use crate::address::{self, WORDS};
use std::net::{IpAddr, SocketAddr};

/// The version of everything that programs and service share.
const VERSION: u64 = 0x756e_636f_7079_4e03;
/// Prefixes that a service has, at most.
pub const MAX_PREFIXES: usize = 3;

/// A congestion control that a service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// NewReno, which Linux calls reno.
    Reno,
    /// CUBIC.
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

/// What a program sets at a connection that it begins, or sets later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// TCP_NODELAY.
    pub no_delay: bool,
    /// SO_KEEPALIVE: idle time, interval (seconds), probes.
    pub keepalive: Option<[u16; 3]>,
    /// SO_LINGER of no time: `close` resets.
    pub resets: bool,
    /// TCP_CONGESTION, for connections that begin from here on; `None`: the service's own.
    pub congestion: Option<Congestion>,
}

impl Options {
    fn word(self) -> u64 {
        let [idle, interval, probes] = self.keepalive.unwrap_or_default().map(u64::from);
        let bits =
            u64::from(self.no_delay) | u64::from(self.keepalive.is_some()) << 1 | u64::from(self.resets) << 2;
        let congestion = self.congestion.map_or(0, Congestion::code);
        bits | congestion << 3 | idle << 16 | interval << 32 | probes << 48
    }

    const fn of_word(word: u64) -> Self {
        let keepalive = [(word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16];
        Self {
            no_delay: word & 1 != 0,
            keepalive: if word & 2 != 0 { Some(keepalive) } else { None },
            resets: word & 4 != 0,
            congestion: Congestion::of_code(word >> 3 & 3),
        }
    }
}

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Who the service is: [`Answer::Service`], with its board.
    Hello,
    /// An address for a socket, port 0: any. [`Answer::Address`], with the socket.
    Bind {
        /// The address.
        address: SocketAddr,
        /// The socket's number in its name.
        id: u32,
        /// SO_REUSEPORT.
        is_shared: bool,
    },
    /// The bound socket listens. [`Answer::Done`].
    Listen {
        /// Its address.
        address: SocketAddr,
        /// Its number in its name.
        id: u32,
        /// Connections that wait to be accepted.
        backlog: u32,
        /// What its connections begin with.
        options: Options,
    },
    /// A connection, with the service's end of its stream. [`Answer::Connection`]; it begins once the stream is filled.
    Connect {
        /// The program's address; port 0, unspecified: any.
        local: SocketAddr,
        /// The peer's.
        remote: SocketAddr,
        /// What it begins with.
        options: Options,
    },
    /// Options of a connection. [`Answer::Done`].
    Set {
        /// Its place on the board.
        slot: u32,
        /// Its serial number.
        serial: u32,
        /// All of them.
        options: Options,
    },
    /// What is known of a connection. [`Answer::Info`].
    Info {
        /// Its place on the board.
        slot: u32,
        /// Its serial number.
        serial: u32,
    },
    /// What the service has: [`Answer::Done`], and with it a file of JSON.
    List,
    /// The bound socket listens no more. [`Answer::Address`], with another socket in its place.
    Unlisten {
        /// Its address.
        address: SocketAddr,
        /// Its number in its name.
        id: u32,
    },
    /// The program shuts its stream for reading: received bytes are kept for [`Question::Take`] from here on. [`Answer::Done`].
    Keep {
        /// Its place on the board.
        slot: u32,
        /// Its serial number.
        serial: u32,
    },
    /// Takes received bytes of a connection that keeps them. [`Answer::Bytes`], with a file of them if there are any.
    Take {
        /// Its place on the board.
        slot: u32,
        /// Its serial number.
        serial: u32,
        /// How many bytes, at most.
        max_bytes: u32,
        /// MSG_PEEK: the bytes stay.
        is_peeked: bool,
    },
    /// Another link comes with this one, for somebody who cannot make one. Nothing is answered.
    Link,
}

/// A prefix whose addresses belong to the service, and the service's own address in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The service's own address.
    pub own: IpAddr,
    /// Bits of the prefix.
    pub bits: u8,
}

impl Prefix {
    /// Whether an address is in it.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        let bits = u32::from(self.bits);
        match (self.own, address) {
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

/// What getsockopt(TCP_INFO) tells of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// The state, as Linux numbers them (include/net/tcp_states.h).
    pub state: u8,
    /// Largest segment that is sent, bytes.
    pub mss: u32,
    /// Smoothed round trip, µs.
    pub round_trip_us: u32,
    /// Congestion window, bytes.
    pub window_bytes: u64,
    /// Bytes that were acknowledged.
    pub acknowledged_bytes: u64,
    /// Bytes that were received in order.
    pub received_bytes: u64,
    /// Segments that were sent again.
    pub retransmissions: u32,
    /// Segments that are believed lost, sent again or not.
    pub lost_segments: u32,
    /// Segments that were sent again and are not acknowledged yet.
    pub retransmitted_segments: u32,
    /// Timeouts since something was acknowledged last.
    pub timeouts: u32,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Done,
    /// It was not: an errno.
    Failed(i32),
    /// The service.
    Service {
        /// Its number.
        service: u64,
        /// The congestion control of connections that choose none.
        congestion: Congestion,
        /// Its prefixes; those behind the first `None` are none.
        prefixes: [Option<Prefix>; MAX_PREFIXES],
    },
    /// An address.
    Address(SocketAddr),
    /// A connection.
    Connection {
        /// Its place on the board.
        slot: u32,
        /// Its serial number.
        serial: u32,
        /// The program's address.
        local: SocketAddr,
    },
    /// What is known of a connection.
    Info(Info),
    /// How many received bytes come with this.
    Bytes(u32),
}

/// A message's words.
pub type Words = Vec<u64>;

const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

impl Question {
    /// As it is sent.
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
            Self::Set { slot, serial, options } => with(&[5, pair(slot, serial), options.word()], &[]),
            Self::Info { slot, serial } => with(&[6, pair(slot, serial)], &[]),
            Self::List => with(&[7], &[]),
            Self::Link => with(&[8], &[]),
            Self::Unlisten { address, id } => with(&[9, id.into()], &[address]),
            Self::Keep { slot, serial } => with(&[10, pair(slot, serial)], &[]),
            Self::Take { slot, serial, max_bytes, is_peeked } => {
                with(&[11, pair(slot, serial), pair(is_peeked.into(), max_bytes)], &[])
            }
        }
    }

    /// What these words ask; `None`: nothing that is known.
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
                Some(Self::Set { slot, serial, options: Options::of_word(*options) })
            }
            [6, which] => {
                let (slot, serial) = halves(*which);
                Some(Self::Info { slot, serial })
            }
            [7] => Some(Self::List),
            [8] => Some(Self::Link),
            [9, id, address @ ..] => {
                Some(Self::Unlisten { address: address::of_words(address)?, id: u32::try_from(*id).ok()? })
            }
            [10, which] => {
                let (slot, serial) = halves(*which);
                Some(Self::Keep { slot, serial })
            }
            [11, which, how] => {
                let ((slot, serial), (is_peeked, max_bytes)) = (halves(*which), halves(*how));
                Some(Self::Take { slot, serial, max_bytes, is_peeked: is_peeked != 0 })
            }
            _ => None,
        }
    }
}

impl Answer {
    /// As it is sent.
    #[must_use]
    pub fn words(&self) -> Words {
        match self {
            Self::Done => vec![VERSION, 0],
            Self::Failed(errno) => vec![VERSION, 1, u64::from(errno.unsigned_abs())],
            Self::Service { service, congestion, prefixes } => {
                let mut words = vec![VERSION, 2, *service, congestion.code()];
                for prefix in prefixes.iter().flatten() {
                    words.extend(address::words(SocketAddr::new(prefix.own, prefix.bits.into())));
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

    /// What these words answer; `None`: nothing that is known.
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
                    *prefix = Some(Prefix { own: address.ip(), bits: u8::try_from(address.port()).ok()? });
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
    use uncopy_sys::link::MAX_WORDS;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn what_is_asked_is_understood_and_nothing_else() {
        let keepalive = Options { keepalive: Some([7200, 75, 9]), ..Options::default() };
        let (local, remote) = (address("0.0.0.0:0"), address("[fd00::1]:80"));
        let questions = [
            Question::Hello,
            Question::Bind { address: remote, id: u32::MAX, is_shared: true },
            Question::Listen { address: local, id: 0, backlog: 511, options: Options::default() },
            Question::Connect { local, remote, options: keepalive },
            Question::Set {
                slot: 1,
                serial: 2,
                options: Options {
                    no_delay: true,
                    resets: true,
                    congestion: Some(Congestion::Cubic),
                    ..keepalive
                },
            },
            Question::Info { slot: u32::MAX, serial: 0 },
            Question::List,
            Question::Link,
            Question::Unlisten { address: local, id: u32::MAX },
            Question::Keep { slot: 1, serial: u32::MAX },
            Question::Take { slot: u32::MAX, serial: 1, max_bytes: u32::MAX, is_peeked: true },
        ];
        for question in questions {
            let words = question.words();
            assert!(words.len() <= MAX_WORDS);
            assert_eq!(Question::parse(&words), Some(question));
            for len in 0..words.len() {
                assert_eq!(Question::parse(&words[..len]), None);
            }
            assert_eq!(Question::parse(&[&words[..], &[0]].concat()), None);
            assert_eq!(Question::parse(&words[1..]), None, "another version");
        }
    }

    #[test]
    fn what_is_answered_is_understood_and_nothing_else() {
        let prefix = |own: &str, bits| Some(Prefix { own: own.parse().expect("an address"), bits });
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
            Answer::Done,
            Answer::Failed(libc::EADDRINUSE),
            Answer::Service { service: 5, congestion: Congestion::Reno, prefixes },
            Answer::Service {
                service: 5,
                congestion: Congestion::Cubic,
                prefixes: [prefixes[0], None, None],
            },
            Answer::Address(address("1.2.3.4:5")),
            Answer::Connection { slot: 1, serial: 2, local: address("1.2.3.4:5") },
            Answer::Info(info),
            Answer::Bytes(u32::MAX),
        ];
        for answer in answers {
            let words = answer.words();
            assert!(words.len() <= MAX_WORDS);
            assert_eq!(Answer::parse(&words), Some(answer));
            assert_ne!(Answer::parse(&words[..words.len() - 1]), Some(answer));
            assert_eq!(Answer::parse(&[&words[..], &[1]].concat()), None);
        }
    }

    #[test]
    fn a_prefix_has_the_addresses_that_begin_as_it_does() {
        let prefix = |own: &str, bits| Prefix { own: own.parse().expect("an address"), bits };
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
            assert_eq!(prefix.has(other.parse().expect("an address")), expected, "{prefix:?} {other}");
        }
    }
}
