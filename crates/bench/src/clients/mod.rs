//! Clients of stores and brokers: just enough of each protocol to store values, read them back and compare every
//! byte. Servers are not trusted: every length is bounded, every wait has an end.

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;

use crate::kit::traffic::{self, Exchange, Load};
use crate::kit::{Failure, Pattern, Result, While, compare};

pub mod cache;
pub mod mariadb;
pub mod mongodb;
pub mod mqtt;
pub mod pipe;
pub mod postgresql;
pub mod records;
pub mod resp;

/// How long a server may be silent.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Longest message that a server may send, bytes.
const MESSAGE_LIMIT_BYTES: usize = 96 << 20;
/// Bytes asked for in one read where no more are known to come.
const READ_BYTES: usize = 16 << 10;

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum Place {
    /// By TCP.
    Tcp(SocketAddr),
    /// By a UNIX socket.
    Unix(PathBuf),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => std::fmt::Display::fmt(address, f),
            Self::Unix(path) => std::fmt::Display::fmt(&path.display(), f),
        }
    }
}

impl Place {
    fn connect(&self) -> std::io::Result<TcpStream> {
        let stream = match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, TIMEOUT)?;
                stream.set_nodelay(true)?;
                stream
            }
            // Nothing is asked of it from here on that only TCP has.
            Self::Unix(path) => TcpStream::from(OwnedFd::from(UnixStream::connect(path)?)),
        };
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(stream)
    }
}

/// A connection to a server, read through a buffer.
#[derive(Debug)]
pub struct Stream {
    /// Perhaps one of a UNIX socket.
    stream: TcpStream,
    /// Received and not yet taken: `buffer[start..end]`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    name: &'static str,
}

impl Stream {
    /// Connects to `server`, which messages call `name`.
    ///
    /// # Errors
    /// [`Failure`] when it does not accept.
    pub fn open(server: SocketAddr, name: &'static str) -> Result<Self> {
        Self::open_at(&Place::Tcp(server), name)
    }

    /// The same where a server may listen by other ways than TCP.
    ///
    /// # Errors
    /// [`Failure`] when it does not accept.
    pub fn open_at(server: &Place, name: &'static str) -> Result<Self> {
        let stream = server.connect().doing(format_args!("connecting to {name} at {server}"))?;
        Ok(Self { stream, buffer: vec![0; READ_BYTES], start: 0, end: 0, name })
    }

    /// Sends all of `parts`, together where the kernel takes them.
    ///
    /// # Errors
    /// [`Failure`] when the server does not take them.
    pub fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut slices = &mut slices[..];
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let sent = self.stream.write_vectored(slices).doing(format_args!("sending to {}", self.name))?;
            if sent == 0 {
                return Err(Failure::new(format!("{} takes no more bytes", self.name)));
            }
            IoSlice::advance_slices(&mut slices, sent);
        }
        Ok(())
    }

    /// Fills `bytes`.
    ///
    /// # Errors
    /// [`Failure`] when the server ends the connection before or is silent.
    pub fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        let kept = bytes.len().min(self.end - self.start);
        bytes[..kept].copy_from_slice(&self.buffer[self.start..self.start + kept]);
        self.start += kept;
        let rest = &mut bytes[kept..];
        if rest.len() >= READ_BYTES {
            return self.stream.read_exact(rest).doing(format_args!("receiving from {}", self.name));
        }
        let mut filled = 0;
        while filled < rest.len() {
            self.refill()?;
            let got = (rest.len() - filled).min(self.end - self.start);
            rest[filled..filled + got].copy_from_slice(&self.buffer[self.start..self.start + got]);
            self.start += got;
            filled += got;
        }
        Ok(())
    }

    /// Receives into the empty buffer.
    fn refill(&mut self) -> Result<()> {
        (self.start, self.end) = (0, 0);
        self.end = self.stream.read(&mut self.buffer).doing(format_args!("receiving from {}", self.name))?;
        if self.end == 0 {
            return Err(Failure::new(format!("{} ended the connection", self.name)));
        }
        Ok(())
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// As [`Stream::fill`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// The next `len_bytes` bytes, in `message`.
    ///
    /// # Errors
    /// As [`Stream::fill`], and where no message is that long.
    pub fn message(&mut self, len_bytes: usize, message: &mut Vec<u8>) -> Result<()> {
        if len_bytes > MESSAGE_LIMIT_BYTES {
            return Err(Failure::new(format!("{} announces a message of {len_bytes} bytes", self.name)));
        }
        message.resize(len_bytes, 0);
        self.fill(message)
    }

    /// A failure of this server.
    pub fn wrong(&self, what: impl std::fmt::Display) -> Failure {
        Failure::new(format!("{}: {what}", self.name))
    }
}

/// A connection over which values go and come back.
pub trait Client: Send {
    /// One operation, the `number`th of this connection: what came back is compared.
    ///
    /// # Errors
    /// [`Failure`] at the first wrong or missing byte.
    fn exchange(&mut self, number: u64) -> Result<Exchange>;
}

/// Loads a server with `clients` for `duration`, one thread each, all on `processors`.
///
/// # Errors
/// The first failure of any of them.
pub fn load(clients: &mut [Box<dyn Client>], duration: Duration, processors: Option<CpuSet>) -> Result<Load> {
    traffic::at_once(clients, processors, duration, |client, period| {
        traffic::repeat(period, |number| client.exchange(number))
    })
}

/// A value that is another one each time, and what came back instead of it.
#[derive(Debug)]
pub struct Value {
    pattern: Pattern,
    received: Vec<u8>,
}

impl Value {
    /// A value of `size_bytes`.
    #[must_use]
    pub fn new(size_bytes: usize, seed: u64) -> Self {
        Self { pattern: Pattern::new(size_bytes, seed), received: Vec::new() }
    }

    /// Gives the next version to `exchange`, which sends it to the server `name` and takes what comes back, and
    /// compares.
    ///
    /// # Errors
    /// That of `exchange`, and the first byte that is another one.
    pub fn exchange(
        &mut self,
        name: &str,
        exchange: impl FnOnce(&[u8], &mut Vec<u8>) -> Result<()>,
    ) -> Result<Exchange> {
        let value = self.pattern.advance();
        let sent = Instant::now();
        exchange(value, &mut self.received)?;
        let received = Instant::now();
        same(name, value, &self.received)?;
        Ok(Exchange { sent, received, verified_bytes: value.len() as u64 })
    }
}

/// Compares what came back with what was stored.
///
/// # Errors
/// [`Failure`] that tells the first byte that is another one.
pub fn same(name: &str, sent: &[u8], received: &[u8]) -> Result<()> {
    compare(sent, received).map_err(|mismatch| Failure::new(format!("wrong value from {name}: {mismatch}")))
}
