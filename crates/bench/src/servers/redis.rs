//! The packaged Redis, started for one measurement, with or without its append-only file, in a directory of its own,
//! reachable from this machine only.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::clients::resp::Connection;
use crate::kit::processes::process::{self, TIMEOUT};
use crate::kit::{Failure, Launcher, Result, Server, Side, TemporaryDirectory, network, processors};
use crate::servers::log_trimmer::LogTrimmer;

/// How often a port is tried that another program may take in between.
const PORT_ATTEMPTS: usize = 3;
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Directory of the append-only files, inside the server's.
const LOG_DIRECTORY: &str = "appendonlydir";

/// The programs that the experiment needs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `redis-server`.
    pub server: PathBuf,
    /// The server's version.
    pub version: String,
}

impl Programs {
    /// Finds them on `PATH`.
    ///
    /// # Errors
    /// [`Failure`] that says how to install them when they are missing.
    pub fn find() -> Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let server = on_path(&path, "redis-server").ok_or_else(|| {
            Failure::new("redis-server is not on PATH; install it with: apt-get install redis-server")
        })?;
        let mut command = std::process::Command::new(&server);
        command.arg("--version");
        let output = process::run(command, "redis-server", TIMEOUT)?.success("redis-server --version")?;
        let version = output.stdout.split_whitespace().find_map(|word| word.strip_prefix("v="));
        let version = version.unwrap_or("of an unknown version").to_owned();
        Ok(Self { server, version })
    }
}

/// The first file called `name` in the directories of `path`.
pub fn on_path(path: &OsString, name: &str) -> Option<PathBuf> {
    std::env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file())
}

/// What a server does with what it is told to set, beside keeping it.
#[derive(Clone, Copy, Debug)]
pub enum AppendOnly<'a> {
    /// Nothing.
    Off,
    /// It appends it to a file, which is never synced, and kept short by a [`LogTrimmer`].
    Trimmed,
    /// It appends it to a file in a directory below this one and syncs that by this policy, an `appendfsync`. The file is as long as
    /// [`RedisServer::rewrite_past`] lets it be.
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
    /// # Errors
    /// [`Failure`] when it cannot be started or does not answer in time.
    pub fn start(launcher: &Launcher, side: Side, program: &Path) -> Result<Self> {
        Self::start_by(AppendOnly::Trimmed, |arguments, directory| {
            let mut command = launcher.command(side, program.as_os_str(), arguments);
            processors::bind(&mut command, processors::of_server(processors::ONE_THREAD));
            Server::start(command, "redis-server", directory)
        })
    }

    /// Starts one by `start`, which gets its arguments and its directory, and waits until it answers.
    ///
    /// # Errors
    /// [`Failure`] when it cannot be started or does not answer in time.
    pub fn start_by(
        append_only: AppendOnly<'_>,
        start: impl FnMut(&[OsString], TemporaryDirectory) -> Result<Server>,
    ) -> Result<Self> {
        Self::start_at(network::free_address, append_only, start)
    }

    /// The same at an address that `address` gives, each time that it is tried.
    ///
    /// # Errors
    /// As `address`, and [`RedisServer::start_by`].
    pub fn start_at(
        address: impl Fn() -> Result<SocketAddr>,
        append_only: AppendOnly<'_>,
        mut start: impl FnMut(&[OsString], TemporaryDirectory) -> Result<Server>,
    ) -> Result<Self> {
        let mut outcome = Err(Failure::new("redis-server was not started"));
        for _ in 0..PORT_ATTEMPTS {
            outcome = Self::start_once(address()?, append_only, &mut start);
            // Only another program on the port is worth another port.
            match &outcome {
                Err(failure) if failure.to_string().contains("Address already in use") => {}
                _ => break,
            }
        }
        outcome
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
        let appends = !matches!(append_only, AppendOnly::Off);
        let arguments: Vec<OsString> = [
            ("--port", address.port().to_string().into()),
            ("--bind", address.ip().to_string().into()),
            // It answers loopback clients only; a namespace that is ours has no others than ours.
            ("--protected-mode", if address.ip().is_loopback() { "yes" } else { "no" }.into()),
            ("--daemonize", "no".into()),
            ("--dir", directory.path().as_os_str().to_owned()),
            ("--logfile", directory.join("log").into_os_string()),
            ("--appendonly", if appends { "yes" } else { "no" }.into()),
            ("--appenddirname", LOG_DIRECTORY.into()),
            ("--appendfsync", append_fsync.into()),
            ("--auto-aof-rewrite-percentage", "0".into()),
            ("--save", OsString::new()),
        ]
        .into_iter()
        .flat_map(|(name, value): (&str, OsString)| [name.into(), value])
        .collect();
        let server = start(&arguments, directory)?;
        let mut redis = Self { trimmer: None, server, address };
        redis.wait_until_it_answers()?;
        if matches!(append_only, AppendOnly::Trimmed) {
            redis.trimmer = Some(LogTrimmer::start(&redis.log_directory())?);
        }
        Ok(redis)
    }

    fn log_directory(&self) -> PathBuf {
        self.server.directory().join(LOG_DIRECTORY)
    }

    /// Bytes of all append-only files.
    fn log_bytes(&self) -> u64 {
        let files = std::fs::read_dir(self.log_directory()).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
    }

    /// Has it write its append-only file anew, with the last value of each key only, where it is longer than `limit_bytes`.
    ///
    /// # Errors
    /// [`Failure`] when the file is not short in time.
    pub fn rewrite_past(&self, limit_bytes: u64) -> Result<()> {
        if self.log_bytes() <= limit_bytes {
            return Ok(());
        }
        self.connect()?.rewrite_log()?;
        let deadline = Instant::now() + TIMEOUT;
        while self.log_bytes() > limit_bytes {
            if Instant::now() > deadline {
                return Err(Failure::new("redis-server did not write its append-only file anew"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let answer =
                Connection::open(self.address, ANSWER_TIMEOUT).and_then(|mut connection| connection.ping());
            match answer {
                Ok(()) => return Ok(()),
                _ if self.server.process().wait(Duration::from_millis(5))?.is_some() => {
                    let failure = Failure::new(format!("redis-server did not answer; {}", self.last_words()));
                    return Err(self.server.process().explain(&failure));
                }
                _ if Instant::now() > deadline => {
                    let seconds = TIMEOUT.as_secs();
                    return Err(Failure::new(format!("redis-server did not answer within {seconds} s")));
                }
                _ => {}
            }
        }
    }

    /// The last lines of its log and of its stderr.
    fn last_words(&self) -> String {
        let log = std::fs::read(self.server.directory().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let stderr = self.server.stderr_text();
        let last = |text: &str| {
            text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("(empty)").to_owned()
        };
        format!("log: {}; stderr: {}", last(&log), last(&stderr))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// A connection to it.
    ///
    /// # Errors
    /// [`Failure`] when it does not accept.
    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.address, ANSWER_TIMEOUT)
    }

    /// Asks it to end.
    ///
    /// # Errors
    /// [`Failure`] when it had to be killed or ended otherwise than with exit status 0.
    pub fn stop(&mut self) -> Result<()> {
        drop(self.trimmer.take());
        self.server.process().stop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_absolute_directories_of_the_path_only() {
        assert_eq!(on_path(&"/nonexistent:/bin".into(), "sh"), Some("/bin/sh".into()));
        assert_eq!(on_path(&"/nonexistent".into(), "sh"), None);
        assert_eq!(on_path(&".:relative:".into(), "Cargo.toml"), None);
        assert_eq!(on_path(&"/".into(), "bin"), None);
    }

    #[test]
    fn a_redis_that_ends_at_once_is_explained() {
        let launcher = Launcher::of("/nonexistent/uncopy");
        let failure = RedisServer::start(&launcher, Side::Plain, Path::new("/bin/false"));
        let failure = failure.expect_err("no server").to_string();
        assert!(failure.contains("did not answer") && failure.contains("exit status 1"), "{failure}");
    }
}
