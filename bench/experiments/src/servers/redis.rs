//! The packaged Redis, started for one measurement in a directory of its own, reachable from this machine only.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uncopy_testbed::clients::resp::Connection;
use uncopy_testbed::network::wait_until;
use uncopy_testbed::servers::{Redis, Service};

use crate::clients::records::{Clients, Workload};
use crate::kit::processes::process::TIMEOUT;
use crate::kit::traffic::LoadResult;
use crate::kit::{
    Failure, Launcher, Result, RunningServer, Server, Side, TemporaryDirectory, processors, start_server,
};
use crate::servers::log_trimmer::LogTrimmer;
use crate::servers::net::{TcpStack, on_free_port};

/// Maximum time for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Directory of the append-only files, inside the server's.
const LOG_DIRECTORY: &str = "appendonlydir";

/// Handling of written values by the append-only file.
#[derive(Clone, Copy, Debug)]
pub enum AppendOnly<'a> {
    /// The append-only file is off.
    Off,
    /// An append-only file that is never synced, and kept short by a [`LogTrimmer`].
    Trimmed,
    /// An append-only file in a directory below this one, synced by this policy (`appendfsync`), and bounded by
    /// [`RedisServer::rewrite_log_above`].
    Synced(&'static str, &'a Path),
}

/// A Redis that answers.
#[derive(Debug)]
pub struct RedisServer {
    // Dropped in this order: the trimmer holds files in the server's directory.
    trimmer: Option<LogTrimmer>,
    server: Server,
    address: SocketAddr,
}

impl RedisServer {
    /// Starts `program` under `side` and waits until it answers.
    ///
    /// # Errors [`Failure`] when the program cannot be started or does not answer in time.
    pub fn start(launcher: &Launcher, side: Side, program: &Path) -> Result<Self> {
        Self::start_with(AppendOnly::Trimmed, |arguments, directory| {
            let mut command = launcher.command(side, program.as_os_str(), arguments);
            processors::bind_command(&mut command, processors::of_server(processors::ONE_THREAD));
            start_server(command, "redis-server", directory)
        })
    }

    /// Starts Redis by `start`, which gets its arguments and its directory, and waits until Redis answers.
    ///
    /// # Errors
    /// [`Failure`] when Redis cannot be started or does not answer in time.
    pub fn start_with(
        append_only: AppendOnly<'_>,
        start: impl FnMut(&[OsString], TemporaryDirectory) -> Result<Server>,
    ) -> Result<Self> {
        Self::start_at(TcpStack::Kernel, append_only, start)
    }

    /// [`RedisServer::start_with`] for a server at `stack`.
    ///
    /// # Errors
    /// The errors of [`RedisServer::start_with`].
    pub fn start_at(
        stack: TcpStack,
        append_only: AppendOnly<'_>,
        mut start: impl FnMut(&[OsString], TemporaryDirectory) -> Result<Server>,
    ) -> Result<Self> {
        on_free_port(stack, |address| Self::start_once(address, append_only, &mut start))
            .map(|(redis, _)| redis)
    }

    fn start_once(
        address: SocketAddr,
        append_only: AppendOnly<'_>,
        start: &mut impl FnMut(&[OsString], TemporaryDirectory) -> Result<Server>,
    ) -> Result<Self> {
        let (directory, append_fsync) = match append_only {
            AppendOnly::Synced(policy, parent) => (TemporaryDirectory::make_in(parent)?, policy),
            AppendOnly::Off | AppendOnly::Trimmed => (TemporaryDirectory::make()?, "no"),
        };
        let appends = if matches!(append_only, AppendOnly::Off) { "no" } else { "yes" };
        let log = directory.join("log").display().to_string();
        let options = ["--logfile", &log, "--appendonly", appends, "--appenddirname", LOG_DIRECTORY];
        let rewrites = ["--appendfsync", append_fsync, "--auto-aof-rewrite-percentage", "0"];
        let options = [&options[..], &rewrites].concat();
        let arguments = Redis { options: &options }.arguments(address, directory.path())?;
        let server = start(&arguments, directory)?;
        let mut redis = Self { trimmer: None, server, address };
        let answers = |_: &Server| Redis::default().is_ready(address);
        redis.server.wait_until("answer", answers).map_err(|failure| redis.explain(&failure))?;
        if matches!(append_only, AppendOnly::Trimmed) {
            redis.trimmer = Some(LogTrimmer::start(&redis.log_directory())?);
        }
        Ok(redis)
    }

    fn log_directory(&self) -> PathBuf {
        self.server.directory().join(LOG_DIRECTORY)
    }

    /// Returns the bytes of all append-only files.
    fn log_bytes(&self) -> u64 {
        let files = std::fs::read_dir(self.log_directory()).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
    }

    /// Makes the server compact its append-only file (BGREWRITEAOF) if it is longer than `limit_bytes`.
    ///
    /// # Errors
    /// [`Failure`] when the file is still longer after the timeout.
    pub fn rewrite_log_above(&self, limit_bytes: u64) -> Result<()> {
        if self.log_bytes() <= limit_bytes {
            return Ok(());
        }
        self.connect()?.rewrite_log()?;
        let is_short = || (self.log_bytes() <= limit_bytes).then_some(());
        wait_until(TIMEOUT, is_short)
            .ok_or_else(|| Failure::new("redis-server did not rewrite its append-only file"))
    }

    /// Returns `failure` with the server's exit status, if it has ended, and the last lines of its log and stderr.
    fn explain(&mut self, failure: &Failure) -> Failure {
        let failure = self.server.process().explain(failure);
        let log = std::fs::read(self.server.directory().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("(empty)");
        Failure::new(format!("{failure}; log: {last}; stderr: {}", self.server.last_words()))
    }

    /// Returns the address that the server listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the process of the server.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept.
    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.address, ANSWER_TIMEOUT)
    }

    /// Asks the server to end, and waits for its end.
    ///
    /// # Errors
    /// [`Failure`] when the server had to be killed or its exit status is not 0.
    pub fn stop(&mut self) -> Result<()> {
        drop(self.trimmer.take());
        self.server.process().stop()
    }
}

/// A Redis with its clients, each with a request in flight.
pub struct LoadedRedis {
    // Dropped in this order: the connections end before the server.
    clients: Clients,
    redis: RedisServer,
    max_log_bytes: Option<u64>,
}

impl LoadedRedis {
    /// Connects `connections` clients to `redis`, which run `workload` with values of `size_bytes`.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept them.
    pub fn new(
        mut redis: RedisServer,
        workload: Workload,
        size_bytes: usize,
        connections: usize,
    ) -> Result<Self> {
        let clients = Clients::open(redis.address(), workload, size_bytes, connections);
        let clients = clients.map_err(|failure| redis.explain(&failure))?;
        Ok(Self { clients, redis, max_log_bytes: None })
    }

    /// Makes the server rewrite its append-only file between two rounds if it is longer than `max_log_bytes`.
    #[must_use]
    pub fn with_log_limit(self, max_log_bytes: u64) -> Self {
        Self { max_log_bytes: Some(max_log_bytes), ..self }
    }
}

impl RunningServer for LoadedRedis {
    fn server(&mut self) -> &mut Server {
        self.redis.server()
    }

    fn load(&mut self, duration: Duration) -> Result<LoadResult> {
        self.clients.load(duration, processors::of_clients(processors::ONE_THREAD))
    }

    fn reconnect(&mut self) -> Result<()> {
        if let Some(max_log_bytes) = self.max_log_bytes {
            self.redis.rewrite_log_above(max_log_bytes)?;
        }
        self.clients.reconnect()
    }

    fn verify(&mut self) -> Result<u64> {
        self.clients.verify()
    }

    fn stop(&mut self) -> Result<()> {
        self.clients.close();
        self.redis.stop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_that_ends_at_once_is_explained() {
        let launcher = Launcher::of("/nonexistent/uncopy");
        let failure = RedisServer::start(&launcher, Side::Plain, Path::new("/bin/false"));
        let failure = failure.expect_err("no server").to_string();
        assert!(failure.contains("did not answer") && failure.contains("exit status 1"), "{failure}");
    }
}
