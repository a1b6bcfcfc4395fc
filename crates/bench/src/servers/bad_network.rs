//! A host in a network namespace of its own, behind a network that loses packets and delays them: the same for whoever
//! is at this side of it, the kernel or a service.
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
/// The kernel's address at this end of it.
pub const NEAR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

/// What happens to packets, each way.
#[derive(Clone, Copy, Debug)]
pub struct Badness {
    /// What is lost follows from it and from the number of the packet.
    pub seed: usize,
    /// The share that is lost.
    pub loss: f64,
    /// How late each is, ms.
    pub delay_ms: f64,
}

/// The network and the host. Both go when it is dropped.
#[derive(Debug)]
pub struct BadNetwork {
    _relay: Server,
    host: OwnedFd,
}

impl BadNetwork {
    /// Makes them.
    ///
    /// # Errors
    /// [`crate::kit::Failure`] where that is not permitted, or the relay does not begin.
    pub fn make(Badness { seed, loss, delay_ms }: Badness) -> Result<Self> {
        let host = network::new_namespace()?;
        // What one connection has learnt of the path is nothing to the next.
        std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1").doing("forgetting paths")?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), host.as_raw_fd());
        let mut command = Command::new("python3");
        command.args(["-c", RELAY, &path, &seed.to_string(), &loss.to_string(), &delay_ms.to_string()]);
        command.args(["0", "0", "0"]);
        let mut relay = Server::start_among_clients(command, "the relay", TemporaryDirectory::make()?)?;
        relay.first_line()?;
        Ok(Self { _relay: relay, host })
    }

    /// Does `work` in a thread at the host: sockets that it opens stay there.
    ///
    /// # Errors
    /// What `work` returns, or the kernel's.
    pub fn at_host<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        network::within(self.host.as_fd(), work)
    }
}
