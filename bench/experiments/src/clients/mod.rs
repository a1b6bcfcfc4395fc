//! Clients of stores and brokers, with just enough of each protocol to store values, read them back and compare
//! every byte. Servers are not trusted: every length is bounded, every wait has a time limit.

use std::time::{Duration, Instant};

use rustix::thread::CpuSet;
use uncopy_testbed::clients::{Place, Stream, TIMEOUT};

use crate::kit::traffic::{self, Exchange, LoadResult};
use crate::kit::{Failure, Pattern, Result, compare};

pub mod cache;
pub mod mariadb;
pub mod mqtt;
pub mod pipe;
pub mod postgresql;
pub mod records;

/// A connection that stores values and reads them back.
pub trait Client: Send {
    /// Performs the `number`th operation of this connection and compares the answer.
    ///
    /// # Errors
    /// [`Failure`] at the first wrong or missing byte.
    fn exchange(&mut self, number: u64) -> Result<Exchange>;
}

/// All clients of one server.
pub trait Clients {
    /// Exchanges for `duration`.
    ///
    /// # Errors
    /// [`Failure`] at the first wrong or missing answer.
    fn load(&mut self, duration: Duration) -> Result<LoadResult>;

    /// Replaces every connection by a new one.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept.
    fn reconnect(&mut self) -> Result<()>;

    /// Returns remarks on the answers for the report.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A function that makes the client with a number.
type OpenClient<'a> = Box<dyn Fn(u32) -> Result<Box<dyn Client>> + 'a>;

/// Clients with one connection and one thread each.
pub struct ClientThreads<'a> {
    clients: Vec<Box<dyn Client>>,
    count: u32,
    open: OpenClient<'a>,
    processors: Option<CpuSet>,
}

impl<'a> ClientThreads<'a> {
    /// Makes `count` clients on `processors`, by calling `open` with numbers from 1.
    ///
    /// # Errors
    /// As `open`.
    pub fn open<C: Client + 'static>(
        count: u32,
        processors: Option<CpuSet>,
        open: impl Fn(u32) -> Result<C> + 'a,
    ) -> Result<Self> {
        let open: OpenClient<'a> = Box::new(move |number| Ok(Box::new(open(number)?)));
        let mut all = Self { clients: Vec::new(), count, open, processors };
        all.reconnect()?;
        Ok(all)
    }
}

impl Clients for ClientThreads<'_> {
    fn load(&mut self, duration: Duration) -> Result<LoadResult> {
        traffic::in_parallel(&mut self.clients, self.processors, duration, |client, period| {
            traffic::repeat(period, |number| client.exchange(number))
        })
    }

    fn reconnect(&mut self) -> Result<()> {
        self.clients.clear();
        self.clients = (1..=self.count).map(&self.open).collect::<Result<_>>()?;
        Ok(())
    }
}

/// A value that differs each time, and the buffer for the answer.
#[derive(Debug)]
pub struct Value {
    pattern: Pattern,
    received: Vec<u8>,
}

impl Value {
    /// Makes a value of `size_bytes`.
    #[must_use]
    pub fn new(size_bytes: usize, seed: u64) -> Self {
        Self { pattern: Pattern::new(size_bytes, seed), received: Vec::new() }
    }

    /// Passes the next version to `exchange`, which sends it to the server `name`, and compares the answer.
    ///
    /// # Errors
    /// Errors of `exchange`, and the first wrong byte.
    pub fn exchange(
        &mut self,
        name: &str,
        exchange: impl FnOnce(&[u8], &mut Vec<u8>) -> Result<()>,
    ) -> Result<Exchange> {
        let value = self.pattern.advance();
        let sent = Instant::now();
        exchange(value, &mut self.received)?;
        let received = Instant::now();
        expect_equal(name, value, &self.received)?;
        Ok(Exchange { sent, received, verified_bytes: value.len() as u64 })
    }
}

/// Compares `received` with the bytes that were sent.
///
/// # Errors
/// [`Failure`] that describes the first difference.
pub fn expect_equal(name: &str, sent: &[u8], received: &[u8]) -> Result<()> {
    compare(sent, received).map_err(|mismatch| Failure::new(format!("wrong value from {name}: {mismatch}")))
}
