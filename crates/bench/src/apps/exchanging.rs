//! A server whose clients exchange values with it, one thread each.

use std::time::Duration;

use rustix::thread::CpuSet;

use super::stage::Stage;
use crate::clients::{self, Client};
use crate::kit::traffic::Load;
use crate::kit::{Result, Running, Server};

/// Makes a client; their numbers begin with 1.
type Open<'a> = Box<dyn Fn(u32) -> Result<Box<dyn Client>> + 'a>;

/// A server, its clients and what it needs besides.
pub struct Exchanging<'a, H = ()> {
    // Dropped in this order: the connections end before the server, and the server before what is behind it.
    clients: Vec<Box<dyn Client>>,
    server: Server,
    count: u32,
    open: Open<'a>,
    processors: Option<CpuSet>,
    _behind: H,
}

impl<'a> Exchanging<'a> {
    /// `server` with `count` clients made by `open`.
    ///
    /// # Errors
    /// As `open`.
    pub fn new<C: Client + 'static>(
        stage: &Stage<'_>,
        server: Server,
        count: u32,
        open: impl Fn(u32) -> Result<C> + 'a,
    ) -> Result<Self> {
        Self::before(stage, server, count, open, ())
    }
}

impl<'a, H> Exchanging<'a, H> {
    /// The same where `server` asks `behind`.
    ///
    /// # Errors
    /// As `open`.
    pub fn before<C: Client + 'static>(
        stage: &Stage<'_>,
        server: Server,
        count: u32,
        open: impl Fn(u32) -> Result<C> + 'a,
        behind: H,
    ) -> Result<Self> {
        let open: Open<'a> = Box::new(move |number| Ok(Box::new(open(number)?)));
        let processors = stage.client_processors();
        let mut all = Self { clients: Vec::new(), server, count, open, processors, _behind: behind };
        all.reconnect()?;
        Ok(all)
    }
}

impl<H> Running for Exchanging<'_, H> {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        clients::load(&mut self.clients, duration, self.processors)
    }

    fn reconnect(&mut self) -> Result<()> {
        self.clients.clear();
        self.clients = (1..=self.count).map(&self.open).collect::<Result<_>>()?;
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        // A server may wait for the end of connections before it ends itself.
        self.clients.clear();
        self.server.process().stop()
    }
}
