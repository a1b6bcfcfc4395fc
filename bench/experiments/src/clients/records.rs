//! Workloads for Redis: GET, SET, half of each, and YCSB's workload A (zIO §5.2, Figure 12), with keys from a
//! Zipfian distribution. Every value read is compared with the value set.
//!
//! A value is a stamp (its key and version) and bytes that follow from them. Only one client at a time
//! sets a key, so the server sees its versions in ascending order. Invariant, for each read:
//! `version set before the request ≤ version read ≤ version last_begun before the answer`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::thread::CpuSet;
use uncopy_testbed::clients::resp::Connection;

use crate::kit::traffic::{self, Exchange, LoadResult};
use crate::kit::{Failure, Random, Result, compare};

/// Operations that clients of Redis perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// SET of 8 keys
    Set,
    /// GET of 8 keys
    Get,
    /// Half GET, half SET of 8 keys
    Half,
    /// YCSB workload A: half reads, half updates, Zipfian keys
    YcsbA,
}

impl Workload {
    /// Returns the workload's name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Set => "SET",
            Self::Get => "GET",
            Self::Half => "GET and SET",
            Self::YcsbA => "YCSB A",
        }
    }

    /// Returns whether the workload sets values.
    #[must_use]
    pub fn has_sets(self) -> bool {
        self != Self::Get
    }

    /// Returns the number of reads among 2³² operations.
    const fn reads(self) -> u64 {
        match self {
            Self::Set => 0,
            Self::Get => 1 << 32,
            Self::Half | Self::YcsbA => 1 << 31,
        }
    }
}

/// Maximum time until an answer, which may wait for the sync of a file on a disk that others use.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Number of records where any would do: more than connections, so that these seldom wait for each other.
const FEW_RECORDS: u64 = 8;
/// Skew of YCSB's Zipfian distribution (its `ZIPFIAN_CONSTANT`).
const THETA: f64 = 0.99;
/// Maximum number of records: YCSB's default.
const MAX_RECORDS: u64 = 1000;
/// Maximum length of all records together, bytes.
const MAX_RECORDS_BYTES: u64 = 64 << 20;
/// Length of the stamp (key and version), bytes.
pub const STAMP_BYTES: usize = 16;

/// A Zipfian distribution over `0..count`, in which 0 is the most frequent (Gray and others, "Quickly
/// generating billion-record synthetic databases", as implemented by YCSB).
#[derive(Clone, Debug)]
pub struct Zipfian {
    count: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a distribution over few numbers"
)]
impl Zipfian {
    /// Makes the distribution over `0..count`; `count` is at least 1.
    #[must_use]
    pub fn new(count: u64) -> Self {
        let zeta = |count: u64| (1..=count).map(|number| (number as f64).powf(-THETA)).sum::<f64>();
        let zeta_all = zeta(count);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / zeta_all);
        Self { count, zeta: zeta_all, alpha: 1.0 / (1.0 - THETA), eta }
    }

    /// Draws a number with `random`.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let uniform = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let scaled = uniform * self.zeta;
        if scaled < 1.0 || self.count < 2 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let drawn = self.count as f64 * (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
        (drawn as u64).min(self.count - 1)
    }
}

/// Values of every key and version: a stamp, followed by a range of random bytes.
#[derive(Debug)]
pub struct Values {
    pool: Vec<u8>,
}

impl Values {
    /// Makes values of at most `len_bytes`.
    #[must_use]
    pub fn new(len_bytes: usize, seed: u64) -> Self {
        Self { pool: Random::new(seed).bytes(2 * len_bytes + 4096) }
    }

    /// Returns the stamp and the bytes after it, of a value of `len_bytes`, at least [`STAMP_BYTES`].
    #[must_use]
    pub fn parts(&self, key: u64, version: u64, len_bytes: usize) -> ([u8; STAMP_BYTES], &[u8]) {
        let mut stamp = [0; STAMP_BYTES];
        stamp[..8].copy_from_slice(&key.to_le_bytes());
        stamp[8..].copy_from_slice(&version.to_le_bytes());
        let rest_bytes = len_bytes.saturating_sub(STAMP_BYTES);
        let room = (self.pool.len() - rest_bytes) as u64;
        let start = Random::new(key << 40 ^ version).next() % room;
        // The start is below the pool's length, which is a usize.
        let start = usize::try_from(start).unwrap_or(0);
        (stamp, &self.pool[start..start + rest_bytes])
    }

    /// Checks all bytes of a value of `key`; returns its version.
    ///
    /// # Errors
    /// [`Failure`] that says how the value is wrong.
    pub fn check(&self, key: u64, value: &[u8], len_bytes: usize) -> Result<u64> {
        let wrong = |how: String| Failure::new(format!("wrong value of key {key}: {how}"));
        if value.len() != len_bytes || len_bytes < STAMP_BYTES {
            return Err(wrong(format!("{} bytes instead of {len_bytes}", value.len())));
        }
        let number = |range: std::ops::Range<usize>| value[range].try_into().map_or(0, u64::from_le_bytes);
        let version = number(8..STAMP_BYTES);
        let (stamp, rest) = self.parts(key, version, len_bytes);
        compare(&stamp, &value[..STAMP_BYTES]).map_err(|mismatch| wrong(mismatch.to_string()))?;
        compare(rest, &value[STAMP_BYTES..])
            .map_err(|mismatch| wrong(format!("after its stamp, {mismatch}")))?;
        Ok(version)
    }
}

/// State of a record that all clients share.
#[derive(Debug, Default)]
struct Record {
    /// Held while a client sets the record.
    setting: Mutex<()>,
    /// Last version whose SET was begun.
    last_begun: AtomicU64,
    /// Last version for which a SET was answered.
    set: AtomicU64,
}

/// The records of one server.
#[derive(Debug)]
struct Records {
    records: Vec<Record>,
    values: Values,
    len_bytes: usize,
    /// The distribution of keys; `None` for a uniform one.
    zipfian: Option<Zipfian>,
    /// Beginning of all keys' names.
    prefix: &'static str,
}

impl Records {
    fn new(workload: Workload, len_bytes: usize, prefix: &'static str) -> Self {
        let is_zipfian = workload == Workload::YcsbA;
        let max = (MAX_RECORDS_BYTES / len_bytes.max(1) as u64).clamp(FEW_RECORDS, MAX_RECORDS);
        let count = if is_zipfian { max } else { FEW_RECORDS };
        let records = std::iter::repeat_with(Record::default).take(usize::try_from(count).unwrap_or(0));
        let (records, values) = (records.collect(), Values::new(len_bytes, 1));
        Self { records, values, len_bytes, zipfian: is_zipfian.then(|| Zipfian::new(count)), prefix }
    }

    /// Returns the range of all keys.
    fn keys(&self) -> std::ops::Range<u64> {
        0..self.records.len() as u64
    }

    /// Draws a key from the distribution.
    fn draw(&self, random: &mut Random) -> u64 {
        match &self.zipfian {
            Some(zipfian) => zipfian.draw(random),
            None => random.next() % self.keys().end,
        }
    }

    /// Returns YCSB's name of a key, with a scrambled number.
    fn name(&self, key: u64) -> Vec<u8> {
        format!("{}{}", self.prefix, Random::new(key).next()).into_bytes()
    }

    fn record(&self, key: u64) -> Result<&Record> {
        let record = usize::try_from(key).ok().and_then(|key| self.records.get(key));
        record.ok_or_else(|| Failure::new(format!("no record {key}")))
    }

    /// Sets the next version of `key`.
    fn update(&self, connection: &mut Connection, key: u64) -> Result<Exchange> {
        let record = self.record(key)?;
        let _setting = record.setting.lock().unwrap_or_else(PoisonError::into_inner);
        let version = record.last_begun.fetch_add(1, Ordering::SeqCst) + 1;
        let (stamp, rest) = self.values.parts(key, version, self.len_bytes);
        let sent = Instant::now();
        connection.set_parts(&self.name(key), &[&stamp, rest])?;
        let received = Instant::now();
        record.set.store(version, Ordering::SeqCst);
        Ok(Exchange { sent, received, verified_bytes: 0 })
    }

    /// Reads `key` into `value` and checks it.
    fn read(&self, connection: &mut Connection, key: u64, value: &mut Vec<u8>) -> Result<Exchange> {
        let record = self.record(key)?;
        let oldest = record.set.load(Ordering::SeqCst);
        let sent = Instant::now();
        let found = connection.get_into(&self.name(key), value)?;
        let received = Instant::now();
        let newest = record.last_begun.load(Ordering::SeqCst);
        if !found {
            return Err(Failure::new(format!("the server has no value for key {key}")));
        }
        let version = self.values.check(key, value, self.len_bytes)?;
        if !(oldest..=newest).contains(&version) {
            return Err(Failure::new(format!(
                "wrong value of key {key}: version {version}, not one of {oldest} to {newest}"
            )));
        }
        Ok(Exchange { sent, received, verified_bytes: value.len() as u64 })
    }
}

/// A connection and its workload.
#[derive(Debug)]
struct Client {
    connection: Connection,
    random: Random,
    value: Vec<u8>,
}

/// Connections to one server, with a thread each.
#[derive(Debug)]
pub struct Clients {
    server: SocketAddr,
    records: Records,
    workload: Workload,
    clients: Vec<Client>,
}

impl Clients {
    /// Opens `count` connections to `server`, and stores the first version of every record.
    ///
    /// # Errors
    /// [`Failure`] when the server refuses a connection or a value.
    pub fn open(server: SocketAddr, workload: Workload, len_bytes: usize, count: usize) -> Result<Self> {
        Self::open_named(server, workload, len_bytes, count, "user")
    }

    /// Opens connections as [`Clients::open`] does, with keys whose names begin with `prefix`.
    ///
    /// # Errors
    /// The errors of [`Clients::open`].
    pub fn open_named(
        server: SocketAddr,
        workload: Workload,
        len_bytes: usize,
        count: usize,
        prefix: &'static str,
    ) -> Result<Self> {
        if len_bytes < STAMP_BYTES {
            return Err(Failure::new(format!("values must have at least {STAMP_BYTES} bytes")));
        }
        let records = Records::new(workload, len_bytes, prefix);
        let mut clients = Self { server, records, workload, clients: Vec::new() };
        let mut connection = Connection::open(server, TIMEOUT)?;
        for key in clients.records.keys() {
            clients.records.update(&mut connection, key)?;
        }
        let open = |number| {
            Ok(Client {
                connection: Connection::open(server, TIMEOUT)?,
                random: Random::new(number),
                value: Vec::new(),
            })
        };
        clients.clients = (0..count as u64).map(open).collect::<Result<_>>()?;
        Ok(clients)
    }

    /// Exchanges for `duration`.
    ///
    /// # Errors
    /// [`Failure`] at the first wrong or missing answer.
    pub fn load(&mut self, duration: Duration, processors: Option<CpuSet>) -> Result<LoadResult> {
        let (records, workload) = (&self.records, self.workload);
        traffic::in_parallel(&mut self.clients, processors, duration, |client, period| {
            traffic::repeat(period, |_| {
                let key = records.draw(&mut client.random);
                if client.random.next() >> 32 < workload.reads() {
                    records.read(&mut client.connection, key, &mut client.value)
                } else {
                    records.update(&mut client.connection, key)
                }
            })
        })
    }

    /// Replaces every connection by a new one.
    ///
    /// # Errors
    /// [`Failure`] when the server does not accept.
    pub fn reconnect(&mut self) -> Result<()> {
        for client in &mut self.clients {
            client.connection = Connection::open(self.server, TIMEOUT)?;
        }
        Ok(())
    }

    /// Reads every record twice: the first read must not change the stored value. Returns the number of bytes
    /// compared.
    ///
    /// # Errors
    /// [`Failure`] at the first wrong or missing byte.
    pub fn verify(&mut self) -> Result<u64> {
        let (mut connection, mut value) = (Connection::open(self.server, TIMEOUT)?, Vec::new());
        let keys = self.records.keys().chain(self.records.keys());
        keys.map(|key| Ok(self.records.read(&mut connection, key, &mut value)?.verified_bytes)).sum()
    }

    /// Closes all connections to the server.
    pub fn close(&mut self) {
        self.clients.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_numbers_are_drawn_as_often_as_zipf_says() {
        let (zipfian, mut random) = (Zipfian::new(1000), Random::new(5));
        let mut drawn = vec![0u32; 1000];
        for _ in 0..100_000 {
            drawn[usize::try_from(zipfian.draw(&mut random)).expect("small")] += 1;
        }
        // 1 / zeta(1000) is 0.13; the second key is half as frequent.
        assert!((12_000..15_000).contains(&drawn[0]), "{}", drawn[0]);
        assert!((5_500..8_000).contains(&drawn[1]), "{}", drawn[1]);
        assert!(drawn[500..].iter().any(|count| *count > 0));
        for count in [1, 2, 3] {
            let few = Zipfian::new(count);
            assert!((0..1000).all(|_| few.draw(&mut random) < count));
        }
    }

    #[test]
    fn a_value_tells_its_key_and_version_and_any_other_byte_is_found() {
        let values = Values::new(100, 3);
        let value = |key, version, len_bytes| {
            let (stamp, rest) = values.parts(key, version, len_bytes);
            [&stamp[..], rest].concat()
        };
        for len_bytes in [STAMP_BYTES, 17, 100] {
            let right = value(7, 9, len_bytes);
            assert_eq!(values.check(7, &right, len_bytes), Ok(9));
            assert!(values.check(8, &right, len_bytes).is_err());
            assert!(values.check(7, &right[1..], len_bytes).is_err());
            for at in STAMP_BYTES..len_bytes {
                let mut wrong = right.clone();
                wrong[at] ^= 1;
                assert!(values.check(7, &wrong, len_bytes).is_err(), "byte {at}");
            }
        }
        assert_ne!(value(7, 9, 100)[STAMP_BYTES..], value(7, 10, 100)[STAMP_BYTES..]);
    }
}
