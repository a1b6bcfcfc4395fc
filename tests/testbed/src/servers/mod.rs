//! Packaged servers: configuration, start, readiness, and the signal that ends each.
//!
//! Imports here are shared by the servers' modules.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::failure::{Failure, Result, While};
use crate::network::accepts;
use crate::package::Package;

mod haproxy;
mod icecast;
mod mariadb;
mod memcached;
mod mosquitto;
mod nginx;
mod postgresql;
mod python;
mod redis;
mod varnish;

pub use haproxy::Haproxy;
pub use icecast::Icecast;
pub use mariadb::Mariadb;
pub use memcached::Memcached;
pub use mosquitto::Mosquitto;
pub use nginx::Nginx;
pub use postgresql::Postgresql;
pub use python::{HttpServer, PYTHON};
pub use redis::Redis;
pub use varnish::Varnish;

/// Time limit for a server to accept a connection, or to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A packaged server with its configuration.
pub trait Service {
    /// The program of the server.
    const PROGRAM: Package;
    /// Signal that ends the server with status 0.
    const STOP: Signal = Signal::TERM;
    /// Time after the server began to listen during which no client may connect.
    const ALONE: Duration = Duration::ZERO;
    /// Messages on stderr that report the death of a part of the server.
    const CRASH_MESSAGES: &'static [&'static str] = &[];

    /// Writes the configuration, for `address` and with all files in `directory`; returns the arguments.
    ///
    /// # Errors
    /// [`crate::Failure`] when a file cannot be written, or the configuration cannot express a path.
    fn arguments(&self, address: SocketAddr, directory: &Path) -> Result<Vec<OsString>>;

    /// Whether the server answers at `address`.
    fn is_ready(&self, address: SocketAddr) -> bool {
        accepts(address, TIMEOUT)
    }
}

/// Writes a server's configuration; returns its path.
fn write(directory: &Path, name: &str, configuration: &str) -> Result<PathBuf> {
    let file = directory.join(name);
    std::fs::write(&file, configuration).doing(format_args!("writing {name}"))?;
    Ok(file)
}

/// Returns `name` with a path appended.
fn option(name: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(name);
    argument.push(path);
    argument
}
