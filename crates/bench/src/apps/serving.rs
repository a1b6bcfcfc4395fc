//! A server of documents with the clients that verify them, and the origin behind it if there is one.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;

use super::Running;
use super::http::{Clients, Document, Requests};
use super::origin::Origin;
use super::stage::Stage;
use crate::kit::traffic::Load;
use crate::kit::{Result, Server};

/// A server whose clients have a request under way on each of some connections.
#[derive(Debug)]
pub struct Serving<'a> {
    // Dropped in this order: the connections end before the server, and that before what it asks.
    clients: Option<Clients<'a>>,
    server: Server,
    _origin: Option<Origin>,
    /// What ends the server with exit status 0.
    ending: Signal,
}

impl<'a> Serving<'a> {
    /// `connections` to `server`, which listens at `address` and has `documents`.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when it does not accept them.
    pub fn new(
        stage: &Stage<'_>,
        name: &'static str,
        server: Server,
        address: SocketAddr,
        documents: &'a [Document],
        connections: usize,
    ) -> Result<Self> {
        let requests = Requests { name, server: address, documents, keep_alive: true };
        let clients = Some(Clients::open(requests, connections, stage.client_processors())?);
        Ok(Self { clients, server, _origin: None, ending: Signal::TERM })
    }

    /// The same with the origin that it asks.
    #[must_use]
    pub fn before(mut self, origin: Origin) -> Self {
        self._origin = Some(origin);
        self
    }

    /// The same with another signal than SIGTERM to end it.
    #[must_use]
    pub fn ended_by(mut self, signal: Signal) -> Self {
        self.ending = signal;
        self
    }
}

impl Running for Serving<'_> {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        self.clients.as_mut().map_or_else(|| Ok(Load::default()), |clients| clients.load(duration))
    }

    fn stop(&mut self) -> Result<()> {
        // A server that ends in an orderly way waits for its clients.
        self.clients = None;
        self.server.process().stop_by(self.ending)
    }
}
