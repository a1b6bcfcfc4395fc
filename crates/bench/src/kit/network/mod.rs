//! What crosses between an experiment's clients and its servers: the loopback device, or a pair of virtual Ethernet
//! devices between two network namespaces, so that the same experiment runs over both.
//!
//! ```text
//!   clients' namespace: this program,               servers' namespace: everything that
//!   packaged load tools                             process::Server starts
//!     lo   veth 198.18.0.1 ─────── MTU 1500, 9000 ─────── 198.18.0.2 veth   lo
//! ```
//!
//! Neither namespace has a name: they go with the last process in them and the last descriptor of them, and the devices
//! with them, however this program ends. Servers listen on [`server_address`] and enter their namespace between fork
//! and exec; what this program itself does there, it does by [`among_servers`]. Where the machine uses BBR, the loopback
//! device is one in a namespace of this program's own too.
//!
//! Invariant: the network is chosen once, before the first thread is started, and does not change.

mod link;

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use clap::ValueEnum;
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::kit::failure::{Failure, Result, While};

/// Addresses that RFC 2544 sets apart for benchmarks: no network that this machine may be in has them.
const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// What lies between clients and servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Network {
    /// The loopback device, whose packets have 64 KiB
    #[default]
    Loopback,
    /// Two network namespaces joined by virtual Ethernet devices with an MTU of 1500 bytes; needs root
    #[value(name = "veth-1500")]
    Veth1500,
    /// The same with an MTU of 9000 bytes
    #[value(name = "veth-9000")]
    Veth9000,
}

impl Network {
    /// Its name on the command line, in tables, JSON and plots.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth1500 => "veth-1500",
            Self::Veth9000 => "veth-9000",
        }
    }

    /// The largest packet of its link, bytes; `None` for the loopback device.
    const fn mtu_bytes(self) -> Option<u32> {
        match self {
            Self::Loopback => None,
            Self::Veth1500 => Some(1500),
            Self::Veth9000 => Some(9000),
        }
    }
}

/// The congestion control of this thread's namespace.
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// What everything is measured with where this program may choose: BBR takes a stall of the machine for a slow path,
/// which is remembered (tcp_metrics), and a few ms then cost seconds. A namespace may use the first only where the
/// machine allows it to everybody (tcp_allowed_congestion_control), the second always; without losses they do the same.
const CHOSEN: [&str; 2] = ["cubic", "reno"];

/// Has this thread's namespace, which is this program's own, use one of [`CHOSEN`].
fn choose_congestion_control() -> io::Result<()> {
    let choose = |name| std::fs::write(CONGESTION_CONTROL, name);
    choose(CHOSEN[0]).or_else(|_| choose(CHOSEN[1]))
}

/// The congestion control that connections use, and where it is not the machine's.
#[must_use]
pub fn congestion_control() -> String {
    let used = std::fs::read_to_string(CONGESTION_CONTROL).unwrap_or_default();
    let place =
        if USED.get().is_some_and(|used| used.is_apart) { ", in a network namespace of its own" } else { "" };
    format!("{}{place}", used.trim())
}

/// A network that was set up.
#[derive(Debug)]
struct Used {
    network: Network,
    /// The servers' network namespace; `None`: this program's own.
    servers: Option<OwnedFd>,
    /// Whether this program is in a namespace of its own.
    is_apart: bool,
}

static USED: OnceLock<Used> = OnceLock::new();

/// Sets `network` up for all experiments of this program. To be called once, before any thread is started.
///
/// # Errors
/// [`Failure`] where this program may not make network namespaces, or the kernel has none or no such devices.
pub fn set_up(network: Network) -> Result<()> {
    let servers = network.mtu_bytes().map(|mtu_bytes| joined(network, mtu_bytes)).transpose()?;
    let is_apart = servers.is_some() || leave_slow_congestion_control();
    USED.set(Used { network, servers, is_apart }).map_err(|_| Failure::new("the network was set up before"))
}

/// Moves this thread into a namespace of its own where the machine's congestion control is none of [`CHOSEN`] and
/// that is permitted; whether it did.
fn leave_slow_congestion_control() -> bool {
    let is_chosen =
        std::fs::read_to_string(CONGESTION_CONTROL).is_ok_and(|used| CHOSEN.contains(&used.trim()));
    !is_chosen && link::alone().is_ok() && choose_congestion_control().is_ok()
}

/// Moves this thread into a namespace of clients and returns the servers'.
fn joined(network: Network, mtu_bytes: u32) -> Result<OwnedFd> {
    let name = network.name();
    link::join((CLIENT_ADDRESS, SERVER_ADDRESS), mtu_bytes).map_err(|(what, error)| {
        if Errno::from_io_error(&error) == Some(Errno::PERM) {
            return Failure::new(format!(
                "--network {name} needs root, because it makes network namespaces; run it as root, or with --network \
                 loopback"
            ));
        }
        Failure::while_doing(format!("--network {name}: {what}"), &error)
    })
}

/// The network in use.
#[must_use]
pub fn current() -> Network {
    USED.get().map_or(Network::Loopback, |used| used.network)
}

/// The address that servers listen on, and clients connect to.
#[must_use]
pub fn server_address() -> Ipv4Addr {
    if servers().is_some() { SERVER_ADDRESS } else { Ipv4Addr::LOCALHOST }
}

/// The address that clients send from.
#[must_use]
pub fn client_address() -> Ipv4Addr {
    if servers().is_some() { CLIENT_ADDRESS } else { Ipv4Addr::LOCALHOST }
}

/// The servers' network namespace, where it is another than this program's.
fn servers() -> Option<BorrowedFd<'static>> {
    USED.get()?.servers.as_ref().map(AsFd::as_fd)
}

/// Moves the calling thread to the servers for good. Async-signal-safe: for a child between fork and exec.
///
/// # Errors
/// The kernel's.
pub fn enter_servers() -> io::Result<()> {
    match servers() {
        Some(namespace) => Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?),
        None => Ok(()),
    }
}

/// Does `work` in a thread that is where the servers are: sockets that it opens stay there.
///
/// # Errors
/// What `work` returns, or the kernel's.
pub fn among_servers<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    match servers() {
        Some(namespace) => within(namespace, work),
        None => work(),
    }
}

/// Does `work` in a thread in `namespace`: sockets that it opens stay there.
///
/// # Errors
/// What `work` returns, or the kernel's.
pub fn within<T: Send>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let enter = || Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?);
    in_a_thread(|| enter().and_then(|()| work()))
}

/// A network namespace that has nothing but a loopback device, for as long as somebody is in it or has the descriptor.
///
/// # Errors
/// [`Failure`] where this program may not make any.
pub fn new_namespace() -> Result<OwnedFd> {
    in_a_thread(|| {
        link::alone().map_err(|(what, error)| io::Error::new(error.kind(), format!("{what}: {error}")))?;
        choose_congestion_control()?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    })
    .doing("making a network namespace")
}

fn in_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread in another network panicked")))
    })
}

/// An address for a server, with a port that was free a moment ago: another program may take it in between.
///
/// # Errors
/// [`Failure`] when none is free.
pub fn free_address() -> Result<SocketAddr> {
    among_servers(|| TcpListener::bind((server_address(), 0))?.local_addr()).doing("looking for a free port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_address_is_the_servers_and_can_be_listened_on() {
        let address = free_address().expect("a free port");
        assert_eq!(address.ip(), server_address());
        assert!(TcpListener::bind(address).is_ok());
    }

    #[test]
    fn networks_are_called_what_they_are_called_on_the_command_line() {
        for network in Network::value_variants() {
            let value = network.to_possible_value().expect("all can be chosen");
            assert_eq!(value.get_name(), network.name());
        }
        assert_eq!(current(), Network::Loopback);
    }
}
