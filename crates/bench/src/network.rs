//! Where an experiment's servers and clients are: what every address, port and server's process is taken from, so that
//! the same experiment runs over loopback and over a link.
//!
//! Servers listen on [`server_address`] and are started by [`crate::process::Server`]; clients and packaged load tools
//! are started by [`crate::process::run`], or are this program itself.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use crate::failure::{Result, While};

/// The address that servers listen on, and clients connect to.
#[must_use]
pub fn server_address() -> Ipv4Addr {
    Ipv4Addr::LOCALHOST
}

/// The address that clients send from.
#[must_use]
pub fn client_address() -> Ipv4Addr {
    Ipv4Addr::LOCALHOST
}

/// An address for a server, with a port that was free a moment ago: another program may take it in between.
///
/// # Errors
/// [`crate::failure::Failure`] when none is free.
pub fn free_address() -> Result<SocketAddr> {
    let looking = "looking for a free port";
    let listener = TcpListener::bind((server_address(), 0)).doing(looking)?;
    listener.local_addr().doing(looking)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_address_is_the_servers_and_can_be_listened_on() {
        let address = free_address().expect("a free port");
        assert_eq!(address.ip(), server_address());
        assert_ne!(address.port(), 0);
    }
}
