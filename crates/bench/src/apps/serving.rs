//! A server of documents with the clients that verify them, and the origin behind it if there is one.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;

use super::http::{Clients, Document, Requests};
use super::origin::Origin;
use super::stage::Stage;
use crate::kit::traffic::Load;
use crate::kit::{Result, Running, Server};

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
        Self::asking(
            stage,
            server,
            Requests { name, server: address, documents, keep_alive: true },
            connections,
        )
    }

    /// `connections` to `server` that make `requests`.
    ///
    /// # Errors
    /// As [`Serving::new`].
    pub fn asking(
        stage: &Stage<'_>,
        server: Server,
        requests: Requests<'a>,
        connections: usize,
    ) -> Result<Self> {
        Ok(Self::of(server, Clients::open(requests, connections, stage.client_processors())?))
    }

    /// `server` with `clients`.
    #[must_use]
    pub fn of(server: Server, clients: Clients<'a>) -> Self {
        Self { clients: Some(clients), server, _origin: None, ending: Signal::TERM }
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

    fn reconnect(&mut self) -> Result<()> {
        self.clients.as_mut().map_or(Ok(()), Clients::reconnect)
    }

    fn stop(&mut self) -> Result<()> {
        // A server that ends in an orderly way waits for its clients.
        self.clients = None;
        self.server.process().stop_by(self.ending)
    }
}
