//! The echo server with its clients, one connection for each of its threads.

use std::net::Ipv4Addr;
use std::time::Duration;

use rustix::thread::CpuSet;
use uncopy_testbed::clients::Place;

use super::client::EchoClient;
use super::command;
use super::drain::{Drain, DrainCounts};
use super::server::{EchoWork, touch_ns};
use crate::kit::traffic::{self, LoadResult};
use crate::kit::{Result, RunningServer, Sample, Server};

/// A started echo server and its clients.
#[derive(Debug)]
pub struct LoadedEcho {
    // Dropped in this order: the connections end before the server.
    clients: Vec<EchoClient>,
    server: Server,
    address: Place,
    work: EchoWork,
    threads: usize,
    processors: Option<CpuSet>,
    /// Number of clients so far, which seeds their messages so that no two clients send the same.
    clients_made: u64,
    exchanges: u64,
    drain: Option<Drain>,
}

impl LoadedEcho {
    /// Connects clients on `processors` to `server` at `host`, one for each of its `threads`, which do `work`.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when the server does not accept them.
    pub fn new(
        mut server: Server,
        host: Ipv4Addr,
        work: EchoWork,
        threads: usize,
        processors: Option<CpuSet>,
    ) -> Result<Self> {
        let line = server.first_line()?;
        let address = command::parse_address(host, server.directory().path(), &line)?;
        let (clients, clients_made, exchanges, drain) = (Vec::new(), 0, 0, None);
        let mut all =
            Self { clients, server, address, work, threads, processors, clients_made, exchanges, drain };
        match all.reconnect() {
            Ok(()) => Ok(all),
            Err(failure) => Err(all.server.process().explain(&failure)),
        }
    }

    /// Adds the drain of the server's recording.
    #[must_use]
    pub fn with_drain(self, drain: Option<Drain>) -> Self {
        Self { drain, ..self }
    }
}

impl RunningServer for LoadedEcho {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn load(&mut self, duration: Duration) -> Result<LoadResult> {
        let load = traffic::in_parallel(&mut self.clients, self.processors, duration, EchoClient::run)?;
        self.exchanges += load.exchanges;
        Ok(load)
    }

    fn reconnect(&mut self) -> Result<()> {
        self.clients.clear();
        for _ in 0..self.threads {
            self.clients_made += 1;
            let client =
                EchoClient::connect(&self.address, self.work.size_bytes, self.work.reply, self.clients_made)?;
            self.clients.push(client);
        }
        Ok(())
    }

    fn notes(&mut self) -> Vec<String> {
        let Some(DrainCounts { events, gaps }) = self.drain.take().map(Drain::finish) else {
            return Vec::new();
        };
        // At least each input, copy and output is an event.
        let min_events = (self.work.copies as u64 + 2) * self.exchanges;
        let is_whole = gaps == 0 && events >= min_events;
        if is_whole {
            Vec::new()
        } else {
            vec![format!("{events} events were recorded, at least {min_events} expected; {gaps} gaps")]
        }
    }

    fn add_final_figures(&mut self, end: &mut Sample) {
        end.touch_ns = touch_ns(&self.server.rest_of_stdout());
    }
}
