//! Servers for the workloads other than the loop: Redis, and a program that writes to SQLite.

use std::ffi::OsString;
use std::path::Path;

use uncopy_testbed::Package;
use uncopy_testbed::servers::PYTHON;

use super::Fsync;
use super::directory::StoreDirectory;
use crate::apps::programs::Programs;
use crate::apps::redis::REDIS;
use crate::clients::records::Workload;
use crate::kit::remote::RemoteServer;
use crate::kit::{
    Launcher, Result, RunningServer, Side, TemporaryDirectory, While, processors, start_server,
};
use crate::servers::redis::{AppendOnly, LoadedRedis, RedisServer};

/// Length above which an append-only file is rewritten between two rounds, bytes.
pub const LOG_LIMIT_BYTES: u64 = 512 << 20;

/// Python, whose library contains SQLite.
pub const SQLITE: Package =
    Package { version: &["-c", "import sqlite3; print(sqlite3.sqlite_version)"], ..PYTHON };
const SQLITE_LOOP: &str = include_str!("sqlite_loop.py");

/// Redis with a synced append-only file, and its clients.
#[derive(Clone, Copy, Debug)]
pub struct Redis {
    pub workload: Workload,
    pub fsync: Fsync,
    /// Length of the values, bytes.
    pub size_bytes: usize,
    pub clients: usize,
}

impl Redis {
    /// Starts the server under `side`, and its clients.
    ///
    /// # Errors
    /// [`crate::kit::Failure`] when Redis cannot be started or refuses a connection.
    pub fn start(
        &self,
        launcher: &Launcher,
        side: Side,
        programs: &Programs,
        store_directory: &StoreDirectory,
    ) -> Result<Box<dyn RunningServer>> {
        let program = programs.path(REDIS.program)?;
        let append_only = AppendOnly::Synced(self.fsync.name(), store_directory.path());
        let mut redis = RedisServer::start_with(append_only, |arguments: &[OsString], directory| {
            let launcher = store_directory.launcher(launcher, side, directory.path())?;
            start_server(launcher.command(side, program.as_os_str(), arguments), REDIS.program, directory)
        })?;
        // Not the log's keeper, which works beside the server.
        let pid = redis.server().process().pid();
        processors::bind_process(pid, processors::of_server(processors::ONE_THREAD))?;
        let loaded = LoadedRedis::new(redis, self.workload, self.size_bytes, self.clients)?;
        Ok(Box::new(loaded.with_log_limit(LOG_LIMIT_BYTES)))
    }
}

/// Starts a program that writes rows of `row_bytes` to a table, one per transaction.
///
/// # Errors
/// [`crate::kit::Failure`] when the program cannot be started.
pub fn sqlite(
    launcher: &Launcher,
    side: Side,
    programs: &Programs,
    store_directory: &StoreDirectory,
    row_bytes: usize,
) -> Result<Box<dyn RunningServer>> {
    let directory = TemporaryDirectory::make_in(store_directory.path())?;
    let script = directory.join("sqlite_loop.py");
    std::fs::write(&script, SQLITE_LOOP).doing("writing sqlite_loop.py")?;
    let arguments = [script.into_os_string(), row_bytes.to_string().into()];
    let launcher = store_directory.launcher(launcher, side, directory.path())?;
    let program: &Path = programs.path(SQLITE.program)?;
    let command = launcher.command(side, program.as_os_str(), &arguments);
    Ok(Box::new(RemoteServer::start(command, "the program with SQLite", directory)?))
}
