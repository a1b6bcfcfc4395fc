//! Redis: GET, SET, half of each and YCSB's workload A, with and without its append-only file.

use uncopy_testbed::Package;
use uncopy_testbed::servers::{Redis, Service};

use super::environment::Environment;
use super::{AppServer, Case, Effort, Point, Scheme};
use crate::clients::records::Workload;
use crate::kit::{Result, RunningServer, format_size};
use crate::servers::redis::{AppendOnly, LoadedRedis, RedisServer};

/// Debian's package of Redis.
pub const REDIS: Package = Redis::PROGRAM;
/// Default number of connections.
const CONNECTIONS: usize = 4;
/// Length from which values should be elided (the default `--min-size`), bytes.
const ELISION_EXPECTED_BYTES: usize = uncopy_core::options::MIN_SIZE_DEFAULT_BYTES;
const PAPER: &str =
    "zIO section 5.2: 100 % SET up to 1.8 times as fast with Linux's own I/O stacks, YCSB A less";

/// Values stored by SET.
pub const SET: Case = Case {
    name: "redis-set",
    description: "Redis, SET of 64 KiB and 256 KiB, append-only file on, 4 connections; every key is read back and compared at the end",
    paper: PAPER,
    packages: &[REDIS],
    points: |effort| points(effort, Workload::Set),
    remark: "",
    scheme: Scheme::Slices,
};

/// Values read by GET.
pub const GET: Case = Case {
    name: "redis-get",
    description: "Redis, GET of 64 KiB and 256 KiB, 4 connections",
    paper: PAPER,
    packages: &[REDIS],
    points: |effort| points(effort, Workload::Get),
    remark: "a value stays where it was received, so that its copy into the reply buffer can be elided for \
             each GET",
    scheme: Scheme::Slices,
};

/// Values stored and read by clients on the same host, also small ones; nothing is written to a disk.
pub const LOCAL: Case = Case {
    name: "redis",
    description: "Redis, GET of 64 B, GET and SET of 256 KiB and 1 MiB, no append-only file, 4 connections",
    paper: "not in the papers",
    packages: &[REDIS],
    points: |effort| {
        const QUICK: [(Workload, usize); 2] = [(Workload::Get, 64), (Workload::Get, 1 << 20)];
        const FULL: [(Workload, usize); 5] = [
            QUICK[0],
            (Workload::Get, 256 << 10),
            QUICK[1],
            (Workload::Set, 256 << 10),
            (Workload::Set, 1 << 20),
        ];
        effort.points(&QUICK, &FULL, |(workload, size_bytes)| {
            Values { workload, size_bytes, clients: CONNECTIONS, append_only: false }.point()
        })
    },
    remark: "",
    scheme: Scheme::Slices,
};

fn points(effort: Effort, workload: Workload) -> Vec<Point> {
    effort.points(&[256 << 10], &[64 << 10, 256 << 10], |size_bytes| {
        Values { workload, size_bytes, clients: CONNECTIONS, append_only: true }.point()
    })
}

/// A workload with values of one length.
#[derive(Clone, Debug)]
pub struct Values {
    /// Operations that the clients perform.
    pub workload: Workload,
    /// Length of the values, bytes.
    pub size_bytes: usize,
    /// Number of connections to the server.
    pub clients: usize,
    /// Whether the server keeps its append-only file.
    pub append_only: bool,
}

impl Values {
    /// Returns the point that measures these values.
    #[must_use]
    pub fn point(self) -> Point {
        let file = if self.append_only { "" } else { ", no append-only file" };
        let title = format!("redis {} {}{file}", self.workload.name(), format_size(self.size_bytes as u64));
        let elision_expected =
            self.append_only && self.workload.has_sets() && self.size_bytes >= ELISION_EXPECTED_BYTES;
        Point { elision_expected, ..Point::sized(title, self.size_bytes, self) }
    }
}

impl AppServer for Values {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let append_only = if self.append_only { AppendOnly::Trimmed } else { AppendOnly::Off };
        let redis = RedisServer::start_with(append_only, |arguments, directory| {
            environment.start(environment.command(REDIS.program, arguments)?, REDIS.program, directory)
        })?;
        Ok(Box::new(LoadedRedis::new(redis, self.workload, self.size_bytes, self.clients)?))
    }
}
