//! Redis under YCSB's workload A (zIO §5.2, Figure 12): half of the operations read a value, half
//! set one, keys are drawn from a Zipfian distribution. Every value that is read is compared with what
//! was set.
//!
//! A value is a stamp (its key and version) and bytes that follow from them. Only one client at a time
//! sets a key, so the server sees its versions in ascending order. Invariant, for each read:
//! `version set before it was sent ≤ version read ≤ version begun before its answer came`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::clients::resp::Connection;
use crate::kit::traffic::{self, Exchange, Load};
use crate::kit::{
    Comparison, Failure, Launcher, Progress, Random, Result, Sample, Schedule, Side, compare, processors,
    size,
};
use crate::servers::redis::{Programs, RedisServer};

/// Skew of YCSB's Zipfian distribution (its `ZIPFIAN_CONSTANT`).
const THETA: f64 = 0.99;
/// Upper bound of records: as many as YCSB loads by default.
const RECORDS_LIMIT: u64 = 1000;
/// Upper bound of all records together, bytes.
const RECORDS_LIMIT_BYTES: u64 = 256 << 20;
/// Length of the stamp: key and version.
pub const STAMP_BYTES: usize = 16;

/// A Zipfian distribution over `0..count`: 0 is the most frequent (Gray and others, "Quickly
/// generating billion-record synthetic databases", as YCSB does it).
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
    /// The distribution over `0..count`, of at least one.
    #[must_use]
    pub fn new(count: u64) -> Self {
        let zeta = |count: u64| (1..=count).map(|number| (number as f64).powf(-THETA)).sum::<f64>();
        let whole = zeta(count);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / whole);
        Self { count, zeta: whole, alpha: 1.0 / (1.0 - THETA), eta }
    }

    /// A number drawn with `random`.
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

/// Values of every key and version: a stamp, then a stretch of random bytes.
#[derive(Debug)]
pub struct Values {
    pool: Vec<u8>,
}

impl Values {
    /// Values of at most `len_bytes`.
    #[must_use]
    pub fn new(len_bytes: usize, seed: u64) -> Self {
        Self { pool: Random::new(seed).bytes(2 * len_bytes + 4096) }
    }

    /// The stamp and the bytes behind it of a value of `len_bytes`, at least [`STAMP_BYTES`].
    #[must_use]
    pub fn parts(&self, key: u64, version: u64, len_bytes: usize) -> ([u8; STAMP_BYTES], &[u8]) {
        let mut stamp = [0; STAMP_BYTES];
        stamp[..8].copy_from_slice(&key.to_le_bytes());
        stamp[8..].copy_from_slice(&version.to_le_bytes());
        let rest_bytes = len_bytes.saturating_sub(STAMP_BYTES);
        let room = (self.pool.len() - rest_bytes) as u64;
        let start = Random::new(key << 40 ^ version).next() % room;
        // Below the pool's length, which was a usize.
        let start = usize::try_from(start).unwrap_or(0);
        (stamp, &self.pool[start..start + rest_bytes])
    }

    /// The version of a value of `key`, all of whose bytes are right.
    ///
    /// # Errors
    /// [`Failure`] that says where it is wrong.
    pub fn check(&self, key: u64, value: &[u8], len_bytes: usize) -> Result<u64> {
        let wrong = |how: String| Failure::new(format!("wrong value of key {key}: {how}"));
        if value.len() != len_bytes || len_bytes < STAMP_BYTES {
            return Err(wrong(format!("{} bytes where {len_bytes} were set", value.len())));
        }
        let number = |range: std::ops::Range<usize>| value[range].try_into().map_or(0, u64::from_le_bytes);
        let version = number(8..STAMP_BYTES);
        let (stamp, rest) = self.parts(key, version, len_bytes);
        compare(&stamp, &value[..STAMP_BYTES]).map_err(|mismatch| wrong(mismatch.to_string()))?;
        compare(rest, &value[STAMP_BYTES..])
            .map_err(|mismatch| wrong(format!("behind its stamp, {mismatch}")))?;
        Ok(version)
    }
}

/// What all clients know of a record.
#[derive(Debug, Default)]
struct Record {
    /// Held while a client sets it.
    setting: Mutex<()>,
    /// Last version whose SET was begun.
    begun: AtomicU64,
    /// Last version whose SET was answered.
    set: AtomicU64,
}

/// The records of one server.
#[derive(Debug)]
struct Records {
    records: Vec<Record>,
    values: Values,
    len_bytes: usize,
    keys: Zipfian,
}

impl Records {
    fn new(len_bytes: usize, seed: u64) -> Self {
        let count = (RECORDS_LIMIT_BYTES / len_bytes.max(1) as u64).clamp(8, RECORDS_LIMIT);
        let records = std::iter::repeat_with(Record::default).take(usize::try_from(count).unwrap_or(8));
        let (records, values) = (records.collect(), Values::new(len_bytes, seed));
        Self { records, values, len_bytes, keys: Zipfian::new(count) }
    }

    fn name(key: u64) -> Vec<u8> {
        // YCSB's name, with its scrambled number.
        format!("user{}", Random::new(key).next()).into_bytes()
    }

    fn record(&self, key: u64) -> Result<&Record> {
        let record = usize::try_from(key).ok().and_then(|key| self.records.get(key));
        record.ok_or_else(|| Failure::new(format!("no record {key}")))
    }

    /// Sets the next version of `key`.
    fn update(&self, connection: &mut Connection, key: u64) -> Result<Exchange> {
        let record = self.record(key)?;
        let _setting = record.setting.lock().unwrap_or_else(PoisonError::into_inner);
        let version = record.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let (stamp, rest) = self.values.parts(key, version, self.len_bytes);
        let sent = Instant::now();
        connection.set_parts(&Self::name(key), &[&stamp, rest])?;
        let received = Instant::now();
        record.set.store(version, Ordering::SeqCst);
        Ok(Exchange { sent, received, verified_bytes: 0 })
    }

    /// Reads `key` into `value` and checks it.
    fn read(&self, connection: &mut Connection, key: u64, value: &mut Vec<u8>) -> Result<Exchange> {
        let record = self.record(key)?;
        let oldest = record.set.load(Ordering::SeqCst);
        let sent = Instant::now();
        let found = connection.get_into(&Self::name(key), value)?;
        let received = Instant::now();
        let newest = record.begun.load(Ordering::SeqCst);
        if !found {
            return Err(Failure::new(format!("the server has no value of key {key}")));
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

/// One client.
#[derive(Debug)]
struct Client<'a> {
    connection: Connection,
    records: &'a Records,
    random: Random,
    value: Vec<u8>,
}

impl Client<'_> {
    fn run(&mut self, duration: Duration) -> Result<Load> {
        traffic::repeat(duration, |_| {
            let key = self.records.keys.draw(&mut self.random);
            if self.random.next() >> 63 == 0 {
                self.records.read(&mut self.connection, key, &mut self.value)
            } else {
                self.records.update(&mut self.connection, key)
            }
        })
    }
}

/// Runs the experiment: one comparison for each length of values.
#[expect(clippy::cast_precision_loss, reason = "sizes of values")]
pub fn measure(
    launcher: &Launcher,
    programs: &Programs,
    sizes_bytes: &[usize],
    clients: usize,
    schedule: &Schedule,
    progress: &mut Progress,
) -> Vec<Comparison> {
    let comparison = |size_bytes: &usize| {
        let title = format!("redis YCSB A {}", size(*size_bytes as u64));
        let mut comparison = Comparison::new(&title, *size_bytes as u64, &schedule.sides)
            .with("size_bytes", *size_bytes as f64);
        if *size_bytes < STAMP_BYTES {
            comparison.fail(&Failure::new(format!("values must have at least {STAMP_BYTES} bytes")));
        }
        schedule.rounds.run_one(&mut comparison, progress, |side, round| {
            sample(launcher, programs, side, *size_bytes, clients, schedule.duration, round as u64)
        });
        comparison
    };
    sizes_bytes.iter().map(comparison).collect()
}

/// Starts a server under `side`, loads it, reads every record back, and stops it.
fn sample(
    launcher: &Launcher,
    programs: &Programs,
    side: Side,
    len_bytes: usize,
    clients: usize,
    duration: Duration,
    seed: u64,
) -> Result<Sample> {
    let mut redis = RedisServer::start(launcher, side, &programs.server)?;
    let records = Records::new(len_bytes, seed);
    let client = |number: usize| {
        let random = Random::new(seed << 16 | number as u64);
        Ok(Client { connection: redis.connect()?, records: &records, random, value: Vec::new() })
    };
    let mut all = (0..clients).map(client).collect::<Result<Vec<_>>>()?;
    let keys = 0..records.records.len() as u64;
    let mut checked = |redis: &mut RedisServer| {
        let (connection, mut value) = (&mut redis.connect()?, Vec::new());
        for key in keys.clone() {
            records.update(connection, key)?;
        }
        let others = processors::of_clients(processors::ONE_THREAD);
        let (mut sample, _) = traffic::sample(redis.server(), duration, |duration| {
            traffic::at_once(&mut all, others, |client| client.run(duration))
        })?;
        let mut read_back_bytes = 0;
        for key in keys.clone() {
            read_back_bytes += records.read(connection, key, &mut value)?.verified_bytes;
        }
        sample.verified_bytes = sample.verified_bytes.map(|bytes| bytes + read_back_bytes);
        Ok(sample)
    };
    let checked = checked(&mut redis).map_err(|failure| redis.server().process().explain(&failure))?;
    drop(all);
    let pid = redis.server().process().pid();
    let elision_expected = len_bytes >= uncopy_core::options::MIN_SIZE_DEFAULT_BYTES;
    let notes = launcher.notes(side, pid, &redis.server().stderr_text(), elision_expected);
    let defect = redis.stop().err().map(|failure| failure.to_string());
    Ok(Sample { notes, defect, ..checked })
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
        // 1 / zeta(1000) is 0.13, and the second is half as frequent.
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
