//! Redis with its append-only file on: SETs and GETs of large values by clients of our own, so that the profiler sees
//! one kind of operation at a time. `uncopy bench redis` measures the same with redis-benchmark.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::exchanging::several;
use super::programs::Need;
use super::stage::Stage;
use super::{Case, Effort, Point, Running, Work};
use crate::clients::redis_benchmark::Operation;
use crate::clients::resp::Connection;
use crate::clients::{Client, load, same};
use crate::kit::traffic::{Exchange, Load};
use crate::kit::{Pattern, Result, Server, size};
use crate::servers::redis::RedisServer;

const REDIS: Need = Need::new("redis-server", "redis-server", &["--version"]);
const CONNECTIONS: u32 = 4;
/// Each connection has so many keys.
const KEYS: u64 = 4;
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(20);
const PAPER: &str =
    "zIO section 5.2: 100 % SET up to 1.8 times as fast with Linux's own I/O stacks, YCSB A less";

/// Values stored.
pub const SET: Case = Case {
    name: "redis-set",
    about: "Redis, SET of 64 KiB and 256 KiB, append-only file on, 4 connections; every key is read back and compared \
            after the measurement",
    paper: PAPER,
    needs: &[REDIS],
    points: |effort| points(effort, Operation::Set),
    remark: "",
};

/// Values read.
pub const GET: Case = Case {
    name: "redis-get",
    about: "Redis, GET of 64 KiB and 256 KiB, 4 connections",
    paper: PAPER,
    needs: &[REDIS],
    points: |effort| points(effort, Operation::Get),
    remark: "a value stays where it was received, so that its copy into the reply's buffer can be elided, each time",
};

fn points(effort: Effort, operation: Operation) -> Vec<Point> {
    effort.points(&[256 << 10], &[64 << 10, 256 << 10], |size_bytes| {
        let title = format!("redis {} {}", operation.name(), size(size_bytes as u64));
        let point = Point::sized(title, size_bytes, Values { operation, size_bytes });
        Point { elision_expected: operation == Operation::Set, ..point }
    })
}

#[derive(Debug)]
struct Values {
    operation: Operation,
    size_bytes: usize,
}

impl Work for Values {
    fn start<'a>(&'a self, stage: &'a Stage<'a>) -> Result<Box<dyn Running + 'a>> {
        let redis = RedisServer::start_by(|arguments, directory| {
            stage.start(stage.command(REDIS.program, arguments)?, REDIS.program, directory)
        })?;
        let address = redis.address();
        let open = |number| Keys::open(address, self.operation, self.size_bytes, u64::from(number));
        let clients = several(CONNECTIONS, open)?;
        Ok(Box::new(Serving { clients, redis, stage, work: self }))
    }
}

/// Redis and its clients.
struct Serving<'a> {
    // Dropped in this order: the connections end before the server.
    clients: Vec<Box<dyn Client>>,
    redis: RedisServer,
    stage: &'a Stage<'a>,
    work: &'a Values,
}

impl Running for Serving<'_> {
    fn server(&mut self) -> &mut Server {
        self.redis.server()
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        load(&mut self.clients, duration, self.stage.client_processors())
    }

    fn verify(&mut self) -> Result<u64> {
        if self.work.operation == Operation::Get {
            return Ok(0);
        }
        let mut verified_bytes = 0;
        for client in &mut self.clients {
            verified_bytes += client.verify()?;
        }
        Ok(verified_bytes)
    }

    fn stop(&mut self) -> Result<()> {
        self.clients.clear();
        self.redis.stop()
    }
}

/// A connection and the keys that it alone uses.
#[derive(Debug)]
struct Keys {
    connection: Connection,
    operation: Operation,
    /// Each key, and the value that it has.
    keys: Vec<(Vec<u8>, Pattern)>,
    received: Vec<u8>,
}

impl Keys {
    /// Connects and stores the first value of each key.
    fn open(server: SocketAddr, operation: Operation, size_bytes: usize, number: u64) -> Result<Self> {
        let mut connection = Connection::open(server, TIMEOUT)?;
        let mut keys = Vec::new();
        for key in 0..KEYS {
            // 32 bytes, as in zIO section 2.2.
            let name = format!("{:032}", number * KEYS + key).into_bytes();
            let mut value = Pattern::new(size_bytes, number * KEYS + key);
            connection.set(&name, value.advance())?;
            keys.push((name, value));
        }
        Ok(Self { connection, operation, keys, received: Vec::new() })
    }

    fn compare(&mut self, at: usize) -> Result<u64> {
        let (key, value) = &self.keys[at];
        if !self.connection.get_into(key, &mut self.received)? {
            self.received.clear();
        }
        same(REDIS.program, value.current(), &self.received)?;
        Ok(value.current().len() as u64)
    }
}

impl Client for Keys {
    fn exchange(&mut self, number: u64) -> Result<Exchange> {
        let at = usize::try_from(number % KEYS).unwrap_or(0);
        if self.operation == Operation::Get {
            let sent = Instant::now();
            let verified_bytes = self.compare(at)?;
            return Ok(Exchange { sent, received: Instant::now(), verified_bytes });
        }
        let (key, value) = &mut self.keys[at];
        let value = value.advance();
        let sent = Instant::now();
        self.connection.set(key, value)?;
        Ok(Exchange { sent, received: Instant::now(), verified_bytes: 0 })
    }

    fn verify(&mut self) -> Result<u64> {
        // Twice, because what was read once must not have changed what is stored.
        let keys = (0..self.keys.len()).chain(0..self.keys.len());
        keys.map(|at| self.compare(at)).sum()
    }
}
