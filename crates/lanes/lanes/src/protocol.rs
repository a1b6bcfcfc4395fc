//! Messages between two linked processes: a kind and a few words each, on one SEQPACKET socket.
//!
//! Both ends have checked that the other has the same user (SO_PEERCRED). Input is untrusted all the same:
//! [`Message::parse`] accepts only complete, known messages.

use uncopy_core::scope::Scope;

/// First word of a greeting; its last byte is the version of all shared formats.
const MAGIC: u64 = 0x756e_636f_7079_0003;
/// Maximum number of words of a message.
pub const MAX_WORDS: usize = 12;

/// Identity of a stream, seen from one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Connection of two TCP sockets.
    Tcp {
        /// Cookie of the network namespace (SO_NETNS_COOKIE).
        namespace: u64,
        /// Local address and port.
        near: Address,
        /// Remote address and port.
        far: Address,
    },
    /// Pair of connected UNIX sockets.
    Unix {
        /// Inode of the local socket.
        near: u64,
        /// Inode of the remote socket.
        far: u64,
    },
    /// Connection of the service `uncopy net`, identified by its name in any network namespace.
    Net {
        /// Id of the service.
        service: u64,
        /// Slot of the connection on the service's board (upper 32 bits) and its serial number there.
        connection: u64,
        /// True at the end whose socket has the name.
        is_named: bool,
    },
}

/// An IPv6 or IPv4-mapped address, and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Address in two big-endian halves.
    pub ip: [u64; 2],
    /// Port in host byte order.
    pub port: u16,
}

impl Stream {
    /// Returns the same stream seen from the other end.
    #[must_use]
    pub const fn mirrored(self) -> Self {
        match self {
            Self::Tcp { namespace, near, far } => Self::Tcp { namespace, near: far, far: near },
            Self::Unix { near, far } => Self::Unix { near: far, far: near },
            Self::Net { service, connection, is_named } => {
                Self::Net { service, connection, is_named: !is_named }
            }
        }
    }

    /// True if the stream may become a lane.
    #[must_use]
    pub fn is_in(&self, scope: &Scope<'_>) -> bool {
        let has = |end: &Address| {
            let mut ip = [0; 16];
            ip[..8].copy_from_slice(&end.ip[0].to_be_bytes());
            ip[8..].copy_from_slice(&end.ip[1].to_be_bytes());
            scope.has_tcp(ip, end.port)
        };
        match self {
            Self::Tcp { near, far, .. } => has(near) || has(far),
            Self::Unix { .. } | Self::Net { .. } => scope.has_unix(),
        }
    }
}

/// Message between linked processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// First message on a link; carries the descriptor of the sender's board.
    Greeting {
        /// Id of the sender.
        process: u64,
        /// Index of the [`LinkPart`](crate::board::LinkPart) of the sender's board that is for the recipient.
        link: u32,
    },
    /// New chunk of memory; carries its descriptor. Chunks are numbered from 0.
    Chunk {
        /// Number of the chunk.
        number: u32,
    },
    /// Stream of which the sender has an end.
    End {
        /// Identity of the stream, seen from the sender's end.
        stream: Stream,
        /// Slot of the end on the sender's board.
        slot: u32,
        /// Lane for which the end accepts references.
        lane: u32,
    },
}

/// Words of a message.
pub type Words = smallvec::SmallVec<[u64; MAX_WORDS]>;

const GREETING: u64 = MAGIC;
const CHUNK: u64 = 2;
const TCP_END: u64 = 3;
const UNIX_END: u64 = 4;
const NET_END: u64 = 5;

impl Message {
    /// Returns the message's words.
    #[must_use]
    pub fn words(&self) -> Words {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        match *self {
            Self::Greeting { process, link } => Words::from_slice(&[GREETING, process, u64::from(link)]),
            Self::Chunk { number } => Words::from_slice(&[CHUNK, u64::from(number)]),
            Self::End { stream: Stream::Unix { near, far }, slot, lane } => {
                Words::from_slice(&[UNIX_END, pair(slot, lane), near, far])
            }
            Self::End { stream: Stream::Net { service, connection, is_named }, slot, lane } => {
                Words::from_slice(&[NET_END, pair(slot, lane), service, connection, u64::from(is_named)])
            }
            Self::End { stream: Stream::Tcp { namespace, near, far }, slot, lane } => {
                let ports = pair(u32::from(near.port), u32::from(far.port));
                let [near, far] = [near.ip, far.ip];
                let all = [TCP_END, pair(slot, lane), namespace, ports, near[0], near[1], far[0], far[1]];
                Words::from_slice(&all)
            }
        }
    }

    /// Parses a message; `None` if it is malformed or unknown.
    #[must_use]
    pub fn parse(words: &[u64]) -> Option<Self> {
        let halves = |word: u64| ((word >> 32) as u32, word as u32);
        let port = |port: u32| u16::try_from(port).ok();
        match *words {
            [GREETING, process, link] if process != 0 => {
                Some(Self::Greeting { process, link: u32::try_from(link).ok()? })
            }
            [CHUNK, number] => Some(Self::Chunk { number: u32::try_from(number).ok()? }),
            [UNIX_END, end, near, far] => {
                let (slot, lane) = halves(end);
                Some(Self::End { stream: Stream::Unix { near, far }, slot, lane })
            }
            [NET_END, end, service, connection, is_named @ 0..=1] => {
                let (slot, lane) = halves(end);
                let stream = Stream::Net { service, connection, is_named: is_named == 1 };
                Some(Self::End { stream, slot, lane })
            }
            [TCP_END, end, namespace, ports, near_high, near_low, far_high, far_low] => {
                let ((slot, lane), (near_port, far_port)) = (halves(end), halves(ports));
                let near = Address { ip: [near_high, near_low], port: port(near_port)? };
                let far = Address { ip: [far_high, far_low], port: port(far_port)? };
                Some(Self::End { stream: Stream::Tcp { namespace, near, far }, slot, lane })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Message> {
        let near = Address { ip: [1, 2], port: 65_535 };
        let far = Address { ip: [u64::MAX, 4], port: 0 };
        let stream = Stream::Tcp { namespace: 7, near, far };
        vec![
            Message::Greeting { process: 9, link: 63 },
            Message::Chunk { number: u32::MAX },
            Message::End { stream, slot: u32::MAX, lane: 1 },
            Message::End { stream: Stream::Unix { near: 5, far: 6 }, slot: 0, lane: u32::MAX },
            Message::End {
                stream: Stream::Net { service: 8, connection: u64::MAX, is_named: true },
                slot: 1,
                lane: 2,
            },
        ]
    }

    #[test]
    fn valid_messages_are_parsed_and_others_are_not() {
        for message in messages() {
            let words = message.words();
            assert_eq!(Message::parse(&words), Some(message));
            assert!(words.len() <= MAX_WORDS);
            assert_eq!(Message::parse(&words[1..]), None);
            for len in 0..words.len() {
                assert_eq!(Message::parse(&words[..len]), None, "{message:?} cut to {len}");
            }
            let mut longer = words.clone();
            longer.push(0);
            assert_eq!(Message::parse(&longer), None);
        }
        assert_eq!(Message::parse(&[MAGIC + 1, 9, 0]), None, "another version");
        assert_eq!(Message::parse(&[TCP_END, 0, 0, 1 << 48, 0, 0, 0, 0]), None, "no port");
    }

    #[test]
    fn a_stream_seen_from_both_ends_is_the_same() {
        for message in messages() {
            if let Message::End { stream, .. } = message {
                assert_ne!(stream.mirrored(), stream);
                assert_eq!(stream.mirrored().mirrored(), stream);
            }
        }
    }
}
