//! A server whose clients exchange values with it, one thread each.

use std::time::Duration;

use rustix::thread::CpuSet;

use super::Running;
use super::stage::Stage;
use crate::clients::{self, Client};
use crate::kit::traffic::Load;
use crate::kit::{Result, Server};

/// A server, its clients and what it needs besides.
pub struct Exchanging<H = ()> {
    // Dropped in this order: the connections end before the server, and the server before what is behind it.
    clients: Vec<Box<dyn Client>>,
    server: Server,
    processors: Option<CpuSet>,
    _behind: H,
}

impl Exchanging {
    /// `server` with `clients`.
    #[must_use]
    pub fn new(stage: &Stage<'_>, server: Server, clients: Vec<Box<dyn Client>>) -> Self {
        Self::before(stage, server, clients, ())
    }
}

impl<H> Exchanging<H> {
    /// `server` with `clients`, which asks `behind`.
    #[must_use]
    pub fn before(stage: &Stage<'_>, server: Server, clients: Vec<Box<dyn Client>>, behind: H) -> Self {
        Self { clients, server, processors: stage.client_processors(), _behind: behind }
    }
}

impl<H> Running for Exchanging<H> {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        clients::load(&mut self.clients, duration, self.processors)
    }

    fn stop(&mut self) -> Result<()> {
        // A server may wait for the end of connections before it ends itself.
        self.clients.clear();
        self.server.process().stop()
    }
}

/// `count` clients, made with the numbers from 1.
///
/// # Errors
/// The first failure of `open`.
pub fn several<C: Client + 'static>(
    count: u32,
    open: impl Fn(u32) -> Result<C>,
) -> Result<Vec<Box<dyn Client>>> {
    (1..=count).map(|number| Ok(Box::new(open(number)?) as Box<dyn Client>)).collect()
}
