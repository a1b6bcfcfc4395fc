//! Free ports, listeners and connections.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{self as unix, UnixDatagram};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};

/// First port that [`free_port`] tries; many lower ports are assigned to services.
const FIRST_PORT: u16 = 10_240;
const PORT_ATTEMPTS: usize = 100;
/// Maximum number of reserved ports, one descriptor each. The servers on older ports have ended.
const RESERVED_PORTS: usize = 128;
/// State of a listening socket in `/proc/PID/net/tcp` (`TCP_LISTEN`, in hexadecimal).
const LISTEN: &str = "0A";
/// Interval between two polls of a condition.
const TICK: Duration = Duration::from_millis(2);

/// Returns a port of `host` that nothing listens on, if possible not an ephemeral one: another client, or one
/// that connects to this very port and so to itself, may take an ephemeral port before the server binds it. No
/// other caller gets the port while this process has reserved fewer than `RESERVED_PORTS` others.
///
/// # Errors
/// [`Failure`] when none is free.
pub fn free_port(host: Ipv4Addr) -> Result<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end = range.split_whitespace().next().and_then(|port| port.parse().ok()).unwrap_or(0);
    let ports = FIRST_PORT..end;
    // Callers, in this process or another, should begin at different ports: the hasher's keys are random.
    let start = RandomState::new().build_hasher().finish() % ports.len().max(1) as u64;
    let start = usize::try_from(start).unwrap_or(0);
    // If all ports are ephemeral, a port that is free at the moment has to do.
    let mut attempts = ports.cycle().skip(start).chain(std::iter::repeat(0)).take(PORT_ATTEMPTS);
    let try_reserve = |port| {
        let port = TcpListener::bind((host, port)).ok()?.local_addr().ok()?.port();
        reserve(port).then_some(port)
    };
    attempts.find_map(try_reserve).ok_or_else(|| Failure::new("no port is free"))
}

/// Reserves a port of this network namespace, by an abstract socket name; false if the port is reserved
/// already. Two servers with SO_REUSEPORT, such as HAProxy, would share the port's connections.
fn reserve(port: u16) -> bool {
    static RESERVED: Mutex<VecDeque<UnixDatagram>> = Mutex::new(VecDeque::new());
    let name = unix::SocketAddr::from_abstract_name(format!("uncopy-test-port-{port}"));
    let Ok(reservation) = name.and_then(|name| UnixDatagram::bind_addr(&name)) else { return false };
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    reserved.truncate(RESERVED_PORTS - 1);
    reserved.push_front(reservation);
    true
}

/// Connects to `address`, without delaying small messages (TCP_NODELAY); every wait is at most `timeout`.
///
/// # Errors
/// The error of the system call.
pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    prepare(&stream, timeout)?;
    Ok(stream)
}

/// Sets TCP_NODELAY on a connection and limits its waits to `timeout`.
///
/// # Errors
/// The error of the system call.
pub fn prepare(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))
}

/// Whether a server accepts connections at `address`.
#[must_use]
pub fn accepts(address: SocketAddr, timeout: Duration) -> bool {
    TcpStream::connect_timeout(&address, timeout).is_ok_and(|stream| has_peer(&stream))
}

/// Whether a connection leads to another socket. A connection to a port that nothing listens on
/// occasionally gets that very port as its own, and then TCP connects the socket to itself.
fn has_peer(stream: &TcpStream) -> bool {
    stream.local_addr().ok() != stream.peer_addr().ok()
}

/// Whether a table of `/proc/PID/net/tcp` has a listening socket at the IPv4 address `address`.
#[must_use]
pub fn has_listener(table: &str, address: SocketAddr) -> bool {
    let IpAddr::V4(host) = address.ip() else { return false };
    // The kernel writes the address as the number that its four bytes are in memory.
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(host.octets()), address.port());
    table.lines().skip(1).any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        words.next() == Some(&local) && words.nth(1) == Some(LISTEN)
    })
}

/// Polls `ready` until it returns a value; `None` if `limit` passes first.
pub fn wait_until<T>(limit: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(result) = ready() {
            return Some(result);
        }
        std::thread::sleep(TICK);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn self_connection_has_no_peer() {
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
    fn free_port_is_not_reused() {
        let port = free_port(Ipv4Addr::LOCALHOST).expect("a port");
        assert!(!reserve(port));
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    }

    #[test]
    fn listener_is_detected_without_connecting() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let table = || std::fs::read_to_string("/proc/self/net/tcp").expect("the table");
        assert!(has_listener(&table(), address), "{address}\n{}", table());
        // The port still listens while a client is connected, and no longer once the listener is closed.
        let client = TcpStream::connect(address).expect("a connection");
        assert!(has_listener(&table(), address));
        assert!(!has_listener(&table(), client.local_addr().expect("an address")));
        drop(listener);
        assert!(!has_listener(&table(), address), "{address}\n{}", table());
    }
}
