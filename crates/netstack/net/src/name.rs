//! Names of UNIX sockets that identify connections and listeners.
//!
//! The names are neither secrets nor permissions. They count only for sockets connected to the service, whose
//! directory no other user can enter.

use crate::address;
use std::net::SocketAddr;
use uncopy_sys::unix::Name;

/// Prefix of a connection's name in the abstract namespace.
const PREFIX: &[u8] = b"\0uncopy-net";
/// Length of a connection's name, bytes: service, slot in the state table, serial number, both addresses.
const CONNECTION_BYTES: usize = PREFIX.len() + 8 + 4 + 4 + 2 * (8 * address::WORDS);

/// A connection as its name describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Identifier of the service.
    pub service: u64,
    /// Slot in the service's state table.
    pub slot: u32,
    /// Serial number of the connection in this slot.
    pub serial: u32,
    /// Address of the program.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
}

impl Connection {
    /// Returns the name of the connection's socket.
    #[must_use]
    pub fn name(&self) -> Name {
        let mut bytes = [0; CONNECTION_BYTES];
        let words = address::words(self.local).into_iter().chain(address::words(self.remote));
        let fields = PREFIX
            .iter()
            .copied()
            .chain(self.service.to_be_bytes())
            .chain(self.slot.to_be_bytes())
            .chain(self.serial.to_be_bytes())
            .chain(words.flat_map(u64::to_be_bytes));
        for (to, from) in bytes.iter_mut().zip(fields) {
            *to = from;
        }
        Name::new(&bytes).expect("it is shorter than a name may be")
    }

    /// Parses the name of a connection; `None`: it is another kind of name.
    #[must_use]
    pub fn parse(name: &Name) -> Option<Self> {
        let rest = name.bytes().strip_prefix(PREFIX)?;
        let rest: &[u8; CONNECTION_BYTES - PREFIX.len()] = rest.try_into().ok()?;
        let (service, rest) = rest.split_first_chunk()?;
        let (slot, rest) = rest.split_first_chunk()?;
        let (serial, rest) = rest.split_first_chunk()?;
        let mut words = [0; 2 * address::WORDS];
        for (word, bytes) in words.iter_mut().zip(rest.as_chunks().0) {
            *word = u64::from_be_bytes(*bytes);
        }
        let (local, remote) = words.split_at(address::WORDS);
        Some(Self {
            service: u64::from_be_bytes(*service),
            slot: u32::from_be_bytes(*slot),
            serial: u32::from_be_bytes(*serial),
            local: address::of_words(local)?,
            remote: address::of_words(remote)?,
        })
    }
}

/// A bound socket of a program, as its path `DIRECTORY/l/ADDRESS-ID` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundSocket {
    /// Address that the socket is bound to.
    pub address: SocketAddr,
    /// Number that distinguishes sockets bound to the same address.
    pub id: u32,
}

const FOLDER: &str = "/l";
/// Bit of a bound socket's number: set if the program sees an IPv6 socket.
const V6: u32 = 1;

impl BoundSocket {
    /// Makes the number of a bound socket from random bits and the family that the program sees.
    #[must_use]
    pub const fn make_id(random: u32, is_v6: bool) -> u32 {
        random & !V6 | if is_v6 { V6 } else { 0 }
    }

    /// Returns whether the program sees an IPv6 socket, whose IPv4 addresses are mapped.
    #[must_use]
    pub const fn is_v6(&self) -> bool {
        self.id & V6 != 0
    }

    /// Returns the socket's path in the service's folder `listeners`; `None`: it is too long.
    #[must_use]
    pub fn path(&self, listeners: &[u8]) -> Option<Name> {
        let last = format!("/{}-{:08x}", self.address, self.id);
        Name::new(&[listeners, last.as_bytes()].concat())
    }

    /// Parses the path of a bound socket; `None`: it is another kind of path. Only the folder's name is
    /// compared, because service and program may know the directory by different paths.
    #[must_use]
    pub fn parse(path: &Name) -> Option<Self> {
        let (folder, last) = std::str::from_utf8(path.bytes()).ok()?.rsplit_once('/')?;
        let (address, id) = last.rsplit_once('-').filter(|_| folder.ends_with(FOLDER))?;
        Some(Self { address: address.parse().ok()?, id: u32::from_str_radix(id, 16).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(local: &str, remote: &str) -> Connection {
        let parse = |text: &str| text.parse().expect("an address");
        Connection {
            service: 0x1122_3344_5566_7788,
            slot: 7,
            serial: u32::MAX,
            local: parse(local),
            remote: parse(remote),
        }
    }

    #[test]
    fn a_connections_name_says_what_it_is() {
        for (local, remote) in [("10.0.0.1:80", "10.0.0.2:65535"), ("[fd00::1]:80", "[fd00::2]:1")] {
            let connection = connection(local, remote);
            let name = connection.name();
            assert_eq!(Connection::parse(&name), Some(connection));
            for len in 0..name.bytes().len() {
                assert_eq!(Connection::parse(&Name::new(&name.bytes()[..len]).expect("short")), None);
            }
        }
        assert_eq!(Connection::parse(&Name::new(b"/run/x").expect("short")), None);
    }

    #[test]
    fn a_listeners_path_says_what_it_is() {
        for text in ["0.0.0.0:80", "[fd00::1]:65535"] {
            let bound = BoundSocket { address: text.parse().expect("an address"), id: 0xab };
            assert!(bound.is_v6() && !BoundSocket { id: BoundSocket::make_id(0xab, false), ..bound }.is_v6());
            let path = bound.path(b"/run/net/l").expect("short");
            assert_eq!(BoundSocket::parse(&path), Some(bound));
            assert_eq!(BoundSocket::parse(&bound.path(b"/run/net").expect("short")), None);
        }
        for path in ["/l/1.2.3.4:5", "/l/x-00000001", "/l/1.2.3.4:5-g", "/l/", "/l"] {
            assert_eq!(BoundSocket::parse(&Name::new(path.as_bytes()).expect("short")), None, "{path}");
        }
        assert!(
            BoundSocket { address: "[fd00::1]:1".parse().expect("an address"), id: 0 }
                .path(&[b'x'; 100])
                .is_none()
        );
    }
}
