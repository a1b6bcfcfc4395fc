//! The echo server with its clients, one connection for each of its threads.

use std::net::Ipv4Addr;
use std::time::Duration;

use rustix::thread::CpuSet;

use super::client::EchoClient;
use super::command;
use super::server::{Work, touch_ns};
use crate::kit::traffic::{self, Load};
use crate::kit::{Result, Running, Sample, Server};

/// A started echo server and its clients.
#[derive(Debug)]
pub struct Echoing {
    // Dropped in this order: the connections end before the server.
    clients: Vec<EchoClient>,
    server: Server,
    connect: Connect,
    processors: Option<CpuSet>,
    exchanges: u64,
}

/// What makes clients.
#[derive(Clone, Copy, Debug)]
struct Connect {
    address: std::net::SocketAddr,
    work: Work,
    threads: usize,
    /// Clients made so far: no two send the same.
    made: u64,
}

impl Connect {
    fn clients(&mut self) -> Result<Vec<EchoClient>> {
        let connect = |_| {
            self.made += 1;
            EchoClient::connect(self.address, self.work.size_bytes, self.work.reply, self.made)
        };
        (0..self.threads).map(connect).collect()
    }
}

impl Echoing {
    /// Clients on `processors` of `server` at `host`, whose `threads` do `work`.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when it does not accept them.
    pub fn new(
        mut server: Server,
        host: Ipv4Addr,
        work: Work,
        threads: usize,
        processors: Option<CpuSet>,
    ) -> Result<Self> {
        let address = command::address(host, &server.first_line()?)?;
        let mut connect = Connect { address, work, threads, made: 0 };
        let clients = connect.clients().map_err(|failure| server.process().explain(&failure))?;
        Ok(Self { clients, server, connect, processors, exchanges: 0 })
    }

    /// Exchanges so far.
    #[must_use]
    pub fn exchanges(&self) -> u64 {
        self.exchanges
    }
}

impl Running for Echoing {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        let load = traffic::at_once(&mut self.clients, self.processors, duration, EchoClient::run)?;
        self.exchanges += load.exchanges;
        Ok(load)
    }

    fn reconnect(&mut self) -> Result<()> {
        self.clients.clear();
        self.clients = self.connect.clients()?;
        Ok(())
    }

    fn complete(&mut self, end: &mut Sample) {
        end.touch_ns = touch_ns(&self.server.rest_of_stdout());
    }
}
