//! The network between an experiment's clients and its servers: the loopback device, or a pair of virtual Ethernet
//! devices between two network namespaces, so that the same experiment runs over both.
//!
//! ```text
//!   clients' namespace: this program,               servers' namespace: everything that
//!   packaged load tools                             start_server starts
//!     lo   veth 198.18.0.1 ─────── MTU 1500, 9000 ─────── 198.18.0.2 veth   lo
//! ```
//!
//! Neither namespace has a name: both disappear with the last process and the last descriptor in them, and the devices
//! with them, however this program ends. Servers listen on [`server_address`] and enter their namespace between fork
//! and exec; this program's own work there goes through [`in_server_namespace`]. On machines that use BBR, the loopback
//! device is one in a namespace of this program's own too.
//!
//! Invariant: the network is chosen once, before the first thread is started, and does not change.

mod veth;

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use clap::ValueEnum;
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use uncopy_testbed::network::free_port;

use crate::kit::{Failure, Result, Server, TemporaryDirectory, While};

/// Addresses that RFC 2544 reserves for benchmarks, so that they collide with no network of this machine.
const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// Network between clients and servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Network {
    /// The loopback device, with packets of up to 64 KiB
    #[default]
    Loopback,
    /// Two network namespaces connected by a veth pair with an MTU of 1500 bytes; needs root
    #[value(name = "veth-1500")]
    Veth1500,
    /// Two network namespaces connected by a veth pair with an MTU of 9000 bytes; needs root
    #[value(name = "veth-9000")]
    Veth9000,
}

impl Network {
    /// Returns the name on the command line, in tables, JSON and plots.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth1500 => "veth-1500",
            Self::Veth9000 => "veth-9000",
        }
    }

    /// Returns the MTU of the link, bytes; `None` for the loopback device.
    const fn mtu_bytes(self) -> Option<u32> {
        match self {
            Self::Loopback => None,
            Self::Veth1500 => Some(1500),
            Self::Veth9000 => Some(9000),
        }
    }
}

/// File with the congestion control of this thread's network namespace.
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// Congestion controls of all measurements, where this program may choose. BBR mistakes a stall of the machine for a
/// slow path and remembers it (tcp_metrics), so that a few ms cost seconds. A namespace may use the first only if the
/// machine allows it to everybody (tcp_allowed_congestion_control), the second always; without losses both act alike.
const CONGESTION_CONTROLS: [&str; 2] = ["cubic", "reno"];

/// Sets one of [`CONGESTION_CONTROLS`] in this thread's namespace, which is this program's own.
fn choose_congestion_control() -> io::Result<()> {
    let choose = |name| std::fs::write(CONGESTION_CONTROL, name);
    choose(CONGESTION_CONTROLS[0]).or_else(|_| choose(CONGESTION_CONTROLS[1]))
}

/// Returns the congestion control of connections, and whether this program has a network namespace of its own.
#[must_use]
pub fn congestion_control() -> String {
    let used = std::fs::read_to_string(CONGESTION_CONTROL).unwrap_or_default();
    let suffix = if ACTIVE.get().is_some_and(|used| used.is_isolated) {
        ", in a network namespace of its own"
    } else {
        ""
    };
    format!("{}{suffix}", used.trim())
}

/// The network that was set up.
#[derive(Debug)]
struct ActiveNetwork {
    network: Network,
    /// Network namespace of the servers; `None` if it is this program's own.
    server_namespace: Option<OwnedFd>,
    /// True if this program is in a namespace of its own.
    is_isolated: bool,
}

static ACTIVE: OnceLock<ActiveNetwork> = OnceLock::new();

/// Sets up `network` for all experiments of this program. Must be called once, before any thread is started.
///
/// # Errors
/// [`Failure`] if this program may not create network namespaces, the kernel lacks them, or the network was set up
/// before.
pub fn set_up(network: Network) -> Result<()> {
    let server_namespace =
        network.mtu_bytes().map(|mtu_bytes| enter_client_namespace(network, mtu_bytes)).transpose()?;
    let is_isolated = server_namespace.is_some() || isolate_from_other_congestion_control();
    ACTIVE
        .set(ActiveNetwork { network, server_namespace, is_isolated })
        .map_err(|_| Failure::new("the network is already set up"))
}

/// Tries to move this thread into a namespace with one of [`CONGESTION_CONTROLS`] if the machine uses another; true
/// if it did.
fn isolate_from_other_congestion_control() -> bool {
    let is_chosen = std::fs::read_to_string(CONGESTION_CONTROL)
        .is_ok_and(|used| CONGESTION_CONTROLS.contains(&used.trim()));
    !is_chosen && veth::enter_loopback_only().is_ok() && choose_congestion_control().is_ok()
}

/// Moves this thread into a namespace of the clients and returns that of the servers.
fn enter_client_namespace(network: Network, mtu_bytes: u32) -> Result<OwnedFd> {
    let name = network.name();
    veth::enter_veth_pair((CLIENT_ADDRESS, SERVER_ADDRESS), mtu_bytes).map_err(|(what, error)| {
        if Errno::from_io_error(&error) == Some(Errno::PERM) {
            return Failure::new(format!(
                "--network {name} needs root to create network namespaces; run it as root, or use --network \
                 loopback"
            ));
        }
        Failure::while_doing(format!("--network {name}: {what}"), &error)
    })
}

/// Returns the network in use.
#[must_use]
pub fn current() -> Network {
    ACTIVE.get().map_or(Network::Loopback, |used| used.network)
}

/// Returns the address that servers listen on and clients connect to.
#[must_use]
pub fn server_address() -> Ipv4Addr {
    if server_namespace().is_some() { SERVER_ADDRESS } else { Ipv4Addr::LOCALHOST }
}

/// Returns the address that clients send from.
#[must_use]
pub fn client_address() -> Ipv4Addr {
    if server_namespace().is_some() { CLIENT_ADDRESS } else { Ipv4Addr::LOCALHOST }
}

/// Returns the servers' network namespace, if it is not this program's.
fn server_namespace() -> Option<BorrowedFd<'static>> {
    ACTIVE.get()?.server_namespace.as_ref().map(AsFd::as_fd)
}

/// Starts `command` in `directory` as [`Server::start`] does, in the servers' network namespace.
///
/// # Errors
/// [`Failure`] when the command cannot be started.
pub fn start_server(mut command: Command, title: &str, directory: TemporaryDirectory) -> Result<Server> {
    if let Some(namespace) = server_namespace() {
        let enter = move || Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?);
        // SAFETY: code between fork and exec must be async-signal-safe: the closure makes one system call only.
        unsafe { command.pre_exec(enter) };
    }
    Server::start(command, title, directory)
}

/// Runs `work` in the servers' network namespace, in a thread if that is another; sockets that it opens stay there.
///
/// # Errors
/// The errors of `work`, and those of setns(2).
pub fn in_server_namespace<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    match server_namespace() {
        Some(namespace) => in_namespace(namespace, work),
        None => work(),
    }
}

/// Runs `work` in a thread in `namespace`; sockets that it opens stay there.
///
/// # Errors
/// The errors of `work`, and those of setns(2).
pub fn in_namespace<T: Send>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let enter = || Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?);
    in_thread(|| enter().and_then(|()| work()))
}

/// Creates a network namespace with only a loopback device, which lives while it has a thread or a descriptor.
///
/// # Errors
/// [`Failure`] if this program may not create one.
pub fn new_namespace() -> Result<OwnedFd> {
    in_thread(|| {
        veth::enter_loopback_only()
            .map_err(|(what, error)| io::Error::new(error.kind(), format!("{what}: {error}")))?;
        choose_congestion_control()?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    })
    .doing("creating a network namespace")
}

fn in_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread in another network panicked")))
    })
}

/// Returns an address for a server, whose port was free a moment ago: another program may take it in between.
///
/// # Errors
/// [`Failure`] when no port is free.
pub fn free_address() -> Result<SocketAddr> {
    let port = || free_port(server_address()).map_err(|failure| io::Error::other(failure.to_string()));
    let port = in_server_namespace(port).doing("finding a free port")?;
    Ok(SocketAddr::from((server_address(), port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_free_address_is_the_servers_and_can_be_listened_on() {
        let address = free_address().expect("a free port");
        assert_eq!(address.ip(), server_address());
        assert!(TcpListener::bind(address).is_ok());
    }

    #[test]
    fn networks_have_their_command_line_names() {
        for network in Network::value_variants() {
            let value = network.to_possible_value().expect("all can be chosen");
            assert_eq!(value.get_name(), network.name());
        }
        assert_eq!(current(), Network::Loopback);
    }
}
