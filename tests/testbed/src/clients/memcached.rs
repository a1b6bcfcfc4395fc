//! A client of memcached's text protocol.

use std::io::{self, Write};
use std::net::SocketAddr;

use super::{Stream, write_parts};
use crate::failure::Result;

/// Flags of all stored values.
const FLAGS: &str = "5";

/// Sends a storage command (`set`, `add`, `cas` and so on); `unique` follows the length in a `cas`.
///
/// # Errors
/// The error of the system call.
pub fn send_store(
    stream: &mut impl Write,
    command: &str,
    key: &str,
    flags: &str,
    value: &[u8],
    unique: &str,
) -> io::Result<()> {
    let head = format!("{command} {key} {flags} 0 {}{unique}\r\n", value.len());
    write_parts(stream, &[head.as_bytes(), value, b"\r\n"])
}

/// A connection to memcached.
#[derive(Debug)]
pub struct Memcached(Stream);

impl Memcached {
    /// Connects to `server`.
    ///
    /// # Errors
    /// [`crate::Failure`] when the server does not accept.
    pub fn open(server: SocketAddr) -> Result<Self> {
        Stream::open(server, "memcached").map(Self)
    }

    /// Sends `set`, `add`, `replace`, `append` or `prepend`; returns the answer.
    ///
    /// # Errors
    /// [`crate::Failure`] when the connection fails.
    pub fn store(&mut self, command: &str, key: &str, value: &[u8]) -> Result<String> {
        self.0.send_with(|stream| send_store(stream, command, key, FLAGS, value, ""))?;
        self.0.line()
    }

    /// Sends `cas` with the number from [`Memcached::get_many`]; returns the answer.
    ///
    /// # Errors
    /// [`crate::Failure`] when the connection fails.
    pub fn compare_and_store(&mut self, key: &str, unique: u64, value: &[u8]) -> Result<String> {
        self.0.send_with(|stream| send_store(stream, "cas", key, FLAGS, value, &format!(" {unique}")))?;
        self.0.line()
    }

    /// Sends a command without a value; returns the answer.
    ///
    /// # Errors
    /// [`crate::Failure`] when the connection fails.
    pub fn command(&mut self, command: &str) -> Result<String> {
        self.0.send(&[format!("{command}\r\n").as_bytes()])?;
        self.0.line()
    }

    /// Sends `gets` for several keys; returns key, number for `cas`, and value of each.
    ///
    /// # Errors
    /// [`crate::Failure`] when the connection fails or the answer breaks the protocol.
    pub fn get_many(&mut self, keys: &[&str]) -> Result<Vec<(String, u64, Vec<u8>)>> {
        self.0.send(&[format!("gets {}\r\n", keys.join(" ")).as_bytes()])?;
        let mut found = Vec::new();
        loop {
            let line = self.0.line()?;
            if line == "END" {
                return Ok(found);
            }
            let wrong = |stream: &Stream| stream.wrong(format_args!("answer {line:?}"));
            let words: Vec<&str> = line.split(' ').collect();
            let ["VALUE", key, FLAGS, len, unique] = words[..] else { return Err(wrong(&self.0)) };
            let (Ok(len_bytes), Ok(unique)) = (len.parse::<usize>(), unique.parse()) else {
                return Err(wrong(&self.0));
            };
            let mut value = Vec::new();
            self.0.message(len_bytes.saturating_add(2), &mut value)?;
            if !value.ends_with(b"\r\n") {
                return Err(self.0.wrong(format_args!("a value of {len} bytes is not followed by its end")));
            }
            value.truncate(len_bytes);
            found.push((key.to_owned(), unique, value));
        }
    }
}
