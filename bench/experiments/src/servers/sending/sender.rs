//! The server `uncopy-bench send-files`, started for one measurement.

use std::net::SocketAddr;
use std::path::Path;

use crate::kit::network::server_address;
use crate::kit::{Failure, Launcher, Result, Server, Side, TemporaryDirectory, cli_name, start_server};
use crate::servers::sending::server::TransferTotals;
use crate::servers::sending::ways::Way;

/// Options of a sender.
#[derive(Clone, Copy, Debug)]
pub struct SenderOptions<'a> {
    /// Directory of the files.
    pub directory: &'a Path,
    /// The way to send files.
    pub way: Way,
    /// Rate, bits per second; 0: unlimited.
    pub bits_per_s: u64,
    /// Maximum bytes per call.
    pub chunk_bytes: usize,
    /// True if each connection gets all files once, instead of again and again.
    pub once: bool,
}

/// A sender that is listening.
#[derive(Debug)]
pub struct Sender {
    /// The process of the sender.
    pub server: Server,
    /// The address that the sender listens on.
    pub address: SocketAddr,
}

impl Sender {
    /// Starts a sender under `side`.
    ///
    /// # Errors
    /// [`Failure`] when the sender does not listen in time.
    pub fn start(launcher: &Launcher, side: Side, options: &SenderOptions<'_>) -> Result<Self> {
        let mut words = vec![
            "send-files".to_owned(),
            format!("--listen={}:0", server_address()),
            format!("--way={}", cli_name(&options.way)),
            format!("--rate={}", options.bits_per_s),
            format!("--chunk={}", options.chunk_bytes),
        ];
        words.extend(options.once.then(|| "--once".to_owned()));
        words.push(options.directory.display().to_string());
        let command = launcher.bench_command(side, &words);
        let mut server = start_server(command, "send-files", TemporaryDirectory::make()?)?;
        let line = server.first_line()?;
        let address = line.strip_prefix("listening ").and_then(|address| address.parse().ok());
        let unexpected =
            || Failure::new(format!("unexpected output of send-files: \"{}\"", line.escape_debug()));
        Ok(Self { server, address: address.ok_or_else(unexpected)? })
    }

    /// Returns the account of the connection that ends.
    ///
    /// # Errors
    /// [`Failure`] when the sender prints no account.
    pub fn read_totals(&mut self) -> Result<TransferTotals> {
        let line = self.server.first_line()?;
        serde_json::from_str(&line).map_err(|_| {
            Failure::new(format!("unexpected output of send-files: \"{}\"", line.escape_debug()))
        })
    }
}
