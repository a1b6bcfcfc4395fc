//! Errors of calls and reasons for which a connection ended, as Linux reports them.

use std::fmt;

/// An error, named after Linux's errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// No listener at the peer: a RST or ICMP port unreachable answered the SYN.
    ConnectionRefused,
    /// The peer reset the connection.
    ConnectionReset,
    /// This side's stream has ended, or the peer reset the connection after ending its own stream.
    BrokenPipe,
    /// The peer did not answer.
    TimedOut,
    /// ICMP: the host is unreachable.
    HostUnreachable,
    /// ICMP: the host's network is unreachable.
    NetworkUnreachable,
    /// The program aborted the connection.
    ConnectionAborted,
    /// The connection or listener does not exist, or is not established yet.
    NotConnected,
    /// Another connection or listener uses the address.
    AddressInUse,
    /// The limit on connections is reached.
    NoBuffers,
}

impl Error {
    /// Returns the errno value on Linux.
    pub fn errno(self) -> i32 {
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
        std::io::Error::from_raw_os_error(self.errno()).fmt(formatter)
    }
}

impl std::error::Error for Error {}
