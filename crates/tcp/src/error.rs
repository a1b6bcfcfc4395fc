//! Why a call fails, or a connection ended: what Linux says in the same place.

use std::fmt;

/// An error, by the name that Linux has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Nobody listens there: a RST, or ICMP's port unreachable, answered the SYN.
    ConnectionRefused,
    /// The peer reset the connection.
    ConnectionReset,
    /// This side can send no more: it said so, or the peer reset the connection after it had ended its stream.
    BrokenPipe,
    /// The peer did not answer.
    TimedOut,
    /// ICMP: there is no way to the host.
    HostUnreachable,
    /// ICMP: there is no way to its network.
    NetworkUnreachable,
    /// The program gave the connection up.
    ConnectionAborted,
    /// There is no such connection or listener, or not yet.
    NotConnected,
    /// Another connection or listener has the address.
    AddressInUse,
    /// There may be no more connections.
    NoBuffers,
}

impl Error {
    /// errno, as on Linux.
    pub fn number(self) -> i32 {
        match self {
            Self::BrokenPipe => 32,
            Self::AddressInUse => 98,
            Self::NetworkUnreachable => 101,
            Self::ConnectionAborted => 103,
            Self::ConnectionReset => 104,
            Self::NoBuffers => 105,
            Self::NotConnected => 107,
            Self::TimedOut => 110,
            Self::ConnectionRefused => 111,
            Self::HostUnreachable => 113,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.number()).fmt(formatter)
    }
}

impl std::error::Error for Error {}
