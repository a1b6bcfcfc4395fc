//! Clients of servers, with the necessary part of each protocol. Every length and every wait is bounded.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::failure::{Failure, Result, While};
use crate::network::connect;

pub mod http;
pub mod memcached;
pub mod resp;

/// Time limit for each answer of a server.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of a server's message, bytes.
const MESSAGE_LIMIT_BYTES: usize = 96 << 20;
/// Maximum length of a server's line, bytes.
const LINE_LIMIT_BYTES: usize = 64 << 10;
/// Bytes requested by one read when the length is unknown.
const READ_BYTES: usize = 16 << 10;

/// Sends all of `parts`, together if the kernel accepts that.
///
/// # Errors
/// The error of the system call, and `WriteZero` when the stream accepts no byte.
pub fn write_parts(stream: &mut impl Write, parts: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut left = &mut slices[..];
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match stream.write_vectored(left) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(sent_bytes) => IoSlice::advance_slices(&mut left, sent_bytes),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Internet address and port of a TCP server.
    Tcp(SocketAddr),
    /// Path of a server's UNIX socket.
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
    /// Connects to the server; every wait is at most [`TIMEOUT`].
    ///
    /// # Errors
    /// The error of the system call.
    pub fn connect(&self) -> io::Result<TcpStream> {
        match self {
            Self::Tcp(address) => connect(*address, TIMEOUT),
            Self::Unix(path) => {
                // Callers use only calls that work on UNIX sockets, too.
                let stream = TcpStream::from(OwnedFd::from(UnixStream::connect(path)?));
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                Ok(stream)
            }
        }
    }
}

/// A connection to a server, read through a buffer.
#[derive(Debug)]
pub struct Stream {
    /// A TCP connection, or a UNIX socket in the same type.
    stream: TcpStream,
    /// Received bytes that are not consumed yet: `buffer[start..end]`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    name: &'static str,
}

impl Stream {
    /// Connects to `server`, called `name` in messages.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept.
    pub fn open(server: SocketAddr, name: &'static str) -> Result<Self> {
        Self::open_at(&Place::Tcp(server), name)
    }

    /// Connects to `server`, which may also listen at a UNIX socket.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept.
    pub fn open_at(server: &Place, name: &'static str) -> Result<Self> {
        let stream = server.connect().doing(format_args!("connecting to {name} at {server}"))?;
        Ok(Self { stream, buffer: vec![0; READ_BYTES], start: 0, end: 0, name })
    }

    /// Sends all of `parts`, together if the kernel accepts that.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept the bytes.
    pub fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        self.send_with(|stream| write_parts(stream, parts))
    }

    /// Sends by `send`; errors name the server.
    fn send_with(&mut self, send: impl FnOnce(&mut TcpStream) -> io::Result<()>) -> Result<()> {
        send(&mut self.stream).doing(format_args!("sending to {}", self.name))
    }

    /// Fills `bytes` with the next bytes received.
    ///
    /// # Errors
    /// [`Failure`] when the server closes the connection early or is silent.
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

    /// Receives bytes when the buffer is empty.
    fn refill(&mut self) -> Result<()> {
        (self.start, self.end) = (0, 0);
        self.end = self.stream.read(&mut self.buffer).doing(format_args!("receiving from {}", self.name))?;
        if self.end == 0 {
            return Err(Failure::new(format!("{} ended the connection", self.name)));
        }
        Ok(())
    }

    /// Returns the next `N` bytes.
    ///
    /// # Errors
    /// As [`Stream::fill`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Stores the next `len_bytes` bytes in `message`.
    ///
    /// # Errors
    /// As [`Stream::fill`], and when `len_bytes` is beyond the limit.
    pub fn message(&mut self, len_bytes: usize, message: &mut Vec<u8>) -> Result<()> {
        if len_bytes > MESSAGE_LIMIT_BYTES {
            return Err(Failure::new(format!("{} announces a message of {len_bytes} bytes", self.name)));
        }
        message.resize(len_bytes, 0);
        self.fill(message)
    }

    /// Returns the next line, without the final `\r\n`.
    ///
    /// # Errors
    /// As [`Stream::fill`], and when the line is too long.
    pub fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            if line.len() > LINE_LIMIT_BYTES {
                return Err(self.wrong("a line without an end"));
            }
            let [byte] = self.array()?;
            line.push(byte);
        }
        line.truncate(line.len() - 2);
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// Returns all bytes until the server closes the connection.
    ///
    /// # Errors
    /// As [`Stream::fill`].
    pub fn rest(&mut self) -> Result<Vec<u8>> {
        let mut all = self.buffer[self.start..self.end].to_vec();
        self.start = self.end;
        let limit_bytes = MESSAGE_LIMIT_BYTES as u64;
        let rest = (&mut self.stream).take(limit_bytes).read_to_end(&mut all);
        rest.doing(format_args!("receiving from {}", self.name))?;
        Ok(all)
    }

    /// Returns a failure that names this server.
    pub fn wrong(&self, what: impl std::fmt::Display) -> Failure {
        Failure::new(format!("{}: {what}", self.name))
    }
}
