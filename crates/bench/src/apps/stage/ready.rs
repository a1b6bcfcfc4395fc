//! When a server may be talked to: it accepts connections, and some that are not to be connected to too early have
//! been left alone for a while.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::Pid;

use crate::kit::processes::process::TIMEOUT;
use crate::kit::{Result, Server};

/// State of a listening socket in `/proc/PID/net/tcp` (`TCP_LISTEN`, in hexadecimal).
const LISTEN: &str = "0A";

/// Waits until `server` accepts connections at `address`.
///
/// # Errors
/// [`crate::kit::Failure`] with its last words when it ended, or did not accept in time.
pub fn listening(mut server: Server, address: SocketAddr) -> Result<Server> {
    server.wait_until("listen", |_| {
        TcpStream::connect_timeout(&address, TIMEOUT).is_ok_and(|stream| has_peer(&stream))
    })?;
    Ok(server)
}

/// Whether a connection leads to somebody else: one to a port that nobody listens on comes, once in so many times, from
/// that very port, and then TCP connects it with itself.
fn has_peer(stream: &TcpStream) -> bool {
    stream.local_addr().ok() != stream.peer_addr().ok()
}

/// As [`listening`], but the first connection comes `alone` after the server began to listen, where that is any time.
///
/// # Errors
/// As [`listening`].
pub fn undisturbed(mut server: Server, address: SocketAddr, alone: Duration) -> Result<Server> {
    if !alone.is_zero() {
        server.wait_until("listen", |server| listens(server.pid(), address))?;
        std::thread::sleep(alone);
    }
    listening(server, address)
}

/// Whether something listens at `address` in the network of process `pid`, found without a connection.
fn listens(pid: Pid, address: SocketAddr) -> bool {
    let table = |name| {
        std::fs::read_to_string(format!("/proc/{}/net/{name}", pid.as_raw_nonzero())).unwrap_or_default()
    };
    has_listener(&table("tcp"), address) || has_path(&table("unix"), address)
}

/// Whether a table of `/proc/PID/net/unix` has the path by which a service of user-level TCP finds who listens at the address.
fn has_path(table: &str, address: SocketAddr) -> bool {
    let begin = format!("/{address}-");
    table.lines().filter_map(|line| line.rsplit_once(' ')).any(|(_, path)| path.contains(&begin))
}

/// Whether a table of `/proc/PID/net/tcp` has a listening socket at the IPv4 address `address`.
fn has_listener(table: &str, address: SocketAddr) -> bool {
    let IpAddr::V4(host) = address.ip() else { return false };
    // The kernel writes the address as the number that its four bytes are in memory.
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(host.octets()), address.port());
    table.lines().skip(1).any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        words.next() == Some(&local) && words.nth(1) == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_with_itself_has_no_peer() {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let itself = TcpStream::from(socket);
        connect(&itself, &itself.local_addr().expect("an address")).expect("a connection");
        assert!(!has_peer(&itself));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let other = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        assert!(has_peer(&other));
    }

    #[test]
    fn a_listener_behind_a_service_is_seen_by_its_path() {
        let table = "Num RefCount Protocol Flags Type St Inode Path\n\
                     0: 00000002 00000000 00010000 0001 01 77 /dev/shm/net/listeners/198.18.1.2:80-0000000a\n";
        let has = |address: &str| has_path(table, address.parse().expect("an address"));
        assert!(has("198.18.1.2:80") && !has("198.18.1.2:8") && !has("98.18.1.2:80"));
    }

    #[test]
    fn a_listener_is_seen_without_a_connection() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let table = || std::fs::read_to_string("/proc/self/net/tcp").expect("the table");
        assert!(has_listener(&table(), address), "{address}\n{}", table());
        // Connected, the same port listens no less; closed, it does not.
        let client = TcpStream::connect(address).expect("a connection");
        assert!(has_listener(&table(), address));
        assert!(!has_listener(&table(), client.local_addr().expect("an address")));
        drop(listener);
        assert!(!has_listener(&table(), address), "{address}\n{}", table());
    }
}
