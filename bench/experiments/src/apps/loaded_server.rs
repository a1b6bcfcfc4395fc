//! A server with its clients, and its backends if any.

use std::any::Any;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;

use super::environment::Environment;
use super::http::{self, Document, Requests};
use crate::clients::{Client, ClientThreads, Clients};
use crate::kit::traffic::LoadResult;
use crate::kit::{Result, RunningServer, Server};

/// A server with clients that each have a request in flight.
pub struct LoadedServer<'a> {
    // Fields drop in order: clients, server, backends.
    clients: Option<Box<dyn Clients + 'a>>,
    server: Server,
    _backends: Box<dyn Any>,
    /// Signal that ends the server with exit status 0.
    stop_signal: Signal,
}

impl<'a> LoadedServer<'a> {
    /// Connects `connections` clients to `server`, which listens at `address` and has `documents`.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when the server does not accept a connection.
    pub fn new(
        environment: &Environment<'_>,
        name: &'static str,
        server: Server,
        address: SocketAddr,
        documents: &'a [Document],
        connections: usize,
    ) -> Result<Self> {
        Self::with_requests(
            environment,
            server,
            Requests { name, server: address, documents, keep_alive: true },
            connections,
        )
    }

    /// Connects `connections` clients to `server`, which make `requests`.
    ///
    /// # Errors
    /// As [`LoadedServer::new`].
    pub fn with_requests(
        environment: &Environment<'_>,
        server: Server,
        requests: Requests<'a>,
        connections: usize,
    ) -> Result<Self> {
        Ok(Self::from_parts(
            server,
            http::Clients::open(requests, connections, environment.client_processors())?,
        ))
    }

    /// Connects `count` clients, made by `open`, to `server`, each with a thread.
    ///
    /// # Errors
    /// As `open`.
    pub fn with_clients<C: Client + 'static>(
        environment: &Environment<'_>,
        server: Server,
        count: u32,
        open: impl Fn(u32) -> Result<C> + 'a,
    ) -> Result<Self> {
        Ok(Self::from_parts(server, ClientThreads::open(count, environment.client_processors(), open)?))
    }

    /// Joins a server and its clients.
    #[must_use]
    pub fn from_parts(server: Server, clients: impl Clients + 'a) -> Self {
        Self { clients: Some(Box::new(clients)), server, _backends: Box::new(()), stop_signal: Signal::TERM }
    }

    /// Adds the server's backends, which are dropped after it.
    #[must_use]
    pub fn with_backends(mut self, backends: impl Any) -> Self {
        self._backends = Box::new(backends);
        self
    }

    /// Sets the signal that ends the server, by default SIGTERM.
    #[must_use]
    pub fn with_stop_signal(mut self, signal: Signal) -> Self {
        self.stop_signal = signal;
        self
    }
}

impl RunningServer for LoadedServer<'_> {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn load(&mut self, duration: Duration) -> Result<LoadResult> {
        self.clients.as_mut().map_or_else(|| Ok(LoadResult::default()), |clients| clients.load(duration))
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
        self.server.process().stop_by(self.stop_signal)
    }
}
