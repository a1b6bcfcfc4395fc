//! A host in a network namespace of its own, behind a network that loses and delays packets, for kernel and service
//! alike.
//!
//! ```text
//!   uncopy net ── TUN device ── this program's namespace ── r0 ─ relay ─ r1 ── the host's namespace
//! ```

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;

use crate::kit::{Result, Server, TemporaryDirectory, While, network};

const RELAY: &str = include_str!("bad_relay.py");
/// Address of the kernel at the near end of the network.
pub const NEAR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

/// Impairments of packets in each direction.
#[derive(Clone, Copy, Debug)]
pub struct Impairments {
    /// Seed that decides, with the packet's number, which packets are lost.
    pub seed: usize,
    /// Share of packets that are lost, 0 to 1.
    pub loss: f64,
    /// Delay of each packet, ms.
    pub delay_ms: f64,
}

/// The relay process and the host's namespace, both of which end when this is dropped.
#[derive(Debug)]
pub struct ImpairedNetwork {
    _relay: Server,
    host: OwnedFd,
}

impl ImpairedNetwork {
    /// Creates the host's namespace and starts the relay.
    ///
    /// # Errors
    /// [`crate::kit::Failure`] if that is not permitted, or the relay does not start.
    pub fn make(Impairments { seed, loss, delay_ms }: Impairments) -> Result<Self> {
        let host = network::new_namespace()?;
        // Metrics that one connection learnt of the path must not influence the next.
        std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1").doing("forgetting paths")?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), host.as_raw_fd());
        let mut command = Command::new("python3");
        command.args(["-c", RELAY, &path, &seed.to_string(), &loss.to_string(), &delay_ms.to_string()]);
        command.args(["0", "0", "0"]);
        let mut relay = Server::start(command, "the relay", TemporaryDirectory::make()?)?;
        relay.first_line()?;
        Ok(Self { _relay: relay, host })
    }

    /// Runs `work` in a thread in the host's namespace; sockets that it opens stay there.
    ///
    /// # Errors
    /// The errors of `work`, and those of setns(2).
    pub fn in_host_namespace<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        network::in_namespace(self.host.as_fd(), work)
    }
}
