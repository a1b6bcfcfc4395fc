//! An HTTP client that makes one request per connection.

use std::net::SocketAddr;

use super::Stream;
use crate::failure::Result;

/// Requests `path` of `server`, called `name` in messages, over a new connection. Returns the body,
/// whatever the status. `fields` are header lines, each with its line end.
///
/// # Errors
/// [`crate::Failure`] when the server does not answer.
pub fn get(server: SocketAddr, name: &'static str, path: &str, fields: &str) -> Result<Vec<u8>> {
    let mut stream = Stream::open(server, name)?;
    stream.send(&[format!("GET {path} HTTP/1.0\r\n{fields}\r\n").as_bytes()])?;
    while !stream.line()?.is_empty() {}
    stream.rest()
}
