//! A server with its clients, and its backends if any.

use std::any::Any;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;

use super::environment::Stage;
use super::http::{self, Document, Requests};
use crate::clients::{Client, Clients, Exchanging};
use crate::kit::traffic::Load;
use crate::kit::{Result, Running, Server};

/// A server with clients that each have a request in flight.
pub struct Serving<'a> {
    // Fields drop in order: clients, server, backends.
    clients: Option<Box<dyn Clients + 'a>>,
    server: Server,
    _behind: Box<dyn Any>,
    /// Signal that ends the server with exit status 0.
    ending: Signal,
}

impl<'a> Serving<'a> {
    /// Connects `connections` clients to `server`, which listens at `address` and has `documents`.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when the server does not accept a connection.
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

    /// Connects `connections` clients to `server`, which make `requests`.
    ///
    /// # Errors
    /// As [`Serving::new`].
    pub fn asking(
        stage: &Stage<'_>,
        server: Server,
        requests: Requests<'a>,
        connections: usize,
    ) -> Result<Self> {
        Ok(Self::of(server, http::Clients::open(requests, connections, stage.client_processors())?))
    }

    /// Connects `count` clients, made by `open`, to `server`, each with a thread.
    ///
    /// # Errors
    /// As `open`.
    pub fn exchanging<C: Client + 'static>(
        stage: &Stage<'_>,
        server: Server,
        count: u32,
        open: impl Fn(u32) -> Result<C> + 'a,
    ) -> Result<Self> {
        Ok(Self::of(server, Exchanging::open(count, stage.client_processors(), open)?))
    }

    /// Joins a server and its clients.
    #[must_use]
    pub fn of(server: Server, clients: impl Clients + 'a) -> Self {
        Self { clients: Some(Box::new(clients)), server, _behind: Box::new(()), ending: Signal::TERM }
    }

    /// Adds the server's backends, which are dropped after it.
    #[must_use]
    pub fn before(mut self, behind: impl Any) -> Self {
        self._behind = Box::new(behind);
        self
    }

    /// Sets the signal that ends the server, by default SIGTERM.
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
        self.clients.as_mut().map_or(Ok(()), |clients| clients.reconnect())
    }

    fn notes(&mut self) -> Vec<String> {
        self.clients.as_ref().map(|clients| clients.notes()).unwrap_or_default()
    }

    fn stop(&mut self) -> Result<()> {
        // A server that shuts down gracefully waits for its clients.
        self.clients = None;
        self.server.process().stop_by(self.ending)
    }
}
