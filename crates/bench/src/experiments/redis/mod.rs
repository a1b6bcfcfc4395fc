//! The experiment on Redis: the packaged server, unchanged, plain and under uncopy, loaded with
//! SETs and GETs of large values, its append-only file on. Values are read back and compared.

use std::time::Duration;

use crate::clients::redis_benchmark::{KEY, Load, Operation, is_benchmark_value};
use crate::kit::comparison::{Comparison, Sample};
use crate::kit::failure::{Failure, Result, While};
use crate::kit::figures::{self, LEGEND};
use crate::kit::pattern::compare;
use crate::kit::plot::{Plot, Scale, Series};
use crate::kit::progress::Progress;
use crate::kit::random::Random;
use crate::kit::rounds::Rounds;
use crate::kit::side::{Launcher, Side};
use crate::kit::table::{amount, number, size};
use crate::servers::redis::{Programs, RedisServer};

pub mod ycsb;

/// Room that the temporary directory must have, bytes: many times what a log grows to.
const ROOM_BYTES: u64 = 1 << 30;
/// Values that are set by this program and read back after each measurement.
const READ_BACK_VALUES: u64 = 16;
/// Most bytes of them.
const READ_BACK_LIMIT_BYTES: u64 = 16 << 20;
/// Values from this length on are expected to be elided (the default `--min-size`).
const ELISION_EXPECTED_BYTES: u64 = uncopy_core::options::MIN_SIZE_DEFAULT_BYTES as u64;
/// Warm-up before each measurement, as a part of it.
const WARM_UP_PART: u64 = 8;

/// What is measured and how long.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Operations and lengths of values in bytes, in the order of the report.
    pub work: Vec<(Operation, u64)>,
    /// Rounds; each runs every side once.
    pub rounds: Rounds,
    /// Length of each measurement, about.
    pub duration: Duration,
    /// Connections.
    pub clients: usize,
    /// What is compared.
    pub sides: Vec<Side>,
}

/// Runs the experiment: one comparison for each operation and length.
pub fn measure(
    launcher: &Launcher,
    programs: &Programs,
    settings: &Settings,
    progress: &mut Progress,
) -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    for (operation, size_bytes) in &settings.work {
        let title = format!("redis {} {}", operation.name(), size(*size_bytes));
        #[expect(clippy::cast_precision_loss, reason = "sizes of values")]
        let mut comparison = Comparison::new(title.clone(), *size_bytes, &settings.sides)
            .with("size_bytes", *size_bytes as f64);
        let run = Run {
            launcher,
            programs,
            size_bytes: *size_bytes,
            load: Load {
                program: &programs.benchmark,
                operation: *operation,
                size_bytes: *size_bytes,
                clients: settings.clients,
            },
        };
        progress.tell(&title, 0, settings.rounds, "how many requests");
        match run.calibrate(settings.duration) {
            Err(failure) => comparison.fail(&failure),
            Ok(requests) => {
                let sample = |side, round| run.sample(side, requests, round as u64);
                settings.rounds.run_one(&mut comparison, progress, sample);
            }
        }
        comparisons.push(comparison);
    }
    comparisons
}

/// One operation with values of one length.
struct Run<'a> {
    launcher: &'a Launcher,
    programs: &'a Programs,
    size_bytes: u64,
    load: Load<'a>,
}

impl Run<'_> {
    /// How many requests a plain server does in `duration`.
    fn calibrate(&self, duration: Duration) -> Result<u64> {
        let mut redis = RedisServer::start(self.launcher, Side::Plain, &self.programs.server)?;
        if self.load.operation == Operation::Get {
            self.prepare(&redis)?;
        }
        let requests = self.load.requests_for(redis.address(), duration)?;
        redis.stop()?;
        Ok(requests)
    }

    /// Sets the value that GETs read.
    fn prepare(&self, redis: &RedisServer) -> Result<()> {
        let set = Load { operation: Operation::Set, ..self.load };
        set.output(redis.address(), self.load.clients as u64).map(drop)
    }

    /// Starts a server under `side`, loads it, compares values and stops it.
    #[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
    fn sample(&self, side: Side, requests: u64, seed: u64) -> Result<Sample> {
        let mut redis = RedisServer::start(self.launcher, side, &self.programs.server)?;
        let mut measured = || {
            if self.load.operation == Operation::Get {
                self.prepare(&redis)?;
            }
            // Its figures are not looked at: it may be too short for them.
            self.load.output(redis.address(), (requests / WARM_UP_PART).max(self.load.clients as u64))?;
            let cpu_before_ns = redis.server().process().cpu_ns()?;
            let report = self.load.run(redis.address(), requests)?;
            let cpu_ns = redis.server().process().cpu_ns()?.saturating_sub(cpu_before_ns);
            let resident_bytes = redis.server().process().resident_bytes()?;
            let verified_bytes = self.read_back(&redis, seed)?;
            Ok(Sample {
                operations_per_s: report.operations_per_s,
                latency_p50_us: report.latency_p50_us,
                latency_p99_us: report.latency_p99_us,
                latency_p999_us: report.latency_p999_us,
                cpu_us: cpu_ns as f64 / 1e3 / requests as f64,
                resident_bytes: resident_bytes as f64,
                verified_bytes: Some(verified_bytes),
                ..Sample::default()
            })
        };
        let mut sample = match measured() {
            Ok(sample) => sample,
            Err(failure) => return Err(redis.server().process().explain(&failure)),
        };
        let pid = redis.server().process().pid();
        let stderr = redis.server().stderr_text();
        let elision_expected =
            self.load.operation == Operation::Set && self.size_bytes >= ELISION_EXPECTED_BYTES;
        sample.notes = self.launcher.notes(side, pid, &stderr, elision_expected);
        sample.defect = redis.stop().err().map(|failure| failure.to_string());
        Ok(sample)
    }

    /// Compares the value that the load left behind, and values of this program's own, with what
    /// they must be; returns how many bytes were compared.
    fn read_back(&self, redis: &RedisServer, seed: u64) -> Result<u64> {
        let mut connection = redis.connect()?;
        let left_behind = connection.get(KEY)?.unwrap_or_default();
        if !is_benchmark_value(&left_behind, self.size_bytes) {
            let length = left_behind.len();
            return Err(Failure::new(format!(
                "redis-benchmark's value of {length} bytes is not what it set"
            )));
        }
        let len_bytes = usize::try_from(self.size_bytes).unwrap_or(usize::MAX);
        let count = (READ_BACK_LIMIT_BYTES / self.size_bytes.max(1)).clamp(2, READ_BACK_VALUES);
        let key = |number: u64| format!("uncopy:{number}").into_bytes();
        let value = |number: u64| Random::new(seed << 32 | number).bytes(len_bytes);
        for number in 0..count {
            connection.set(&key(number), &value(number))?;
        }
        // Twice, because what was read once must not have changed what is stored.
        for number in (0..count).chain(0..count) {
            let received = connection.get(&key(number))?.unwrap_or_default();
            compare(&value(number), &received)
                .map_err(|mismatch| Failure::new(format!("wrong value of uncopy:{number}: {mismatch}")))?;
        }
        Ok(self.size_bytes * (1 + 2 * count))
    }
}

/// Makes sure that the disk does not fill even if a log is not trimmed for a while.
///
/// # Errors
/// [`Failure`] that says where there is too little room.
pub fn check_room() -> Result<()> {
    let directory = std::env::temp_dir();
    let room = rustix::fs::statvfs(&directory).doing(format_args!("looking at {}", directory.display()))?;
    let free_bytes = room.f_bavail.saturating_mul(room.f_frsize);
    if free_bytes >= ROOM_BYTES {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} has {} free and {} are needed; set TMPDIR to a directory with more room",
        directory.display(),
        amount(free_bytes),
        amount(ROOM_BYTES)
    )))
}

/// The figures.
#[must_use]
pub fn render(comparisons: &[Comparison]) -> String {
    let memory: figures::Extra<'_> = (
        "RSS",
        Box::new(|comparison, side| {
            let resident = comparison.spread(side, |sample| sample.resident_bytes / f64::from(1 << 20));
            resident.map_or_else(|| "-".to_owned(), |spread| format!("{} MiB", number(spread.median)))
        }),
    );
    format!(
        "{}\n{LEGEND}RSS: the server's resident memory after the load\n",
        figures::table(comparisons, &[memory])
    )
}

/// The ratio to plain over the length of values: a line for each kind of load and side.
#[must_use]
pub fn plot(comparisons: &[Comparison]) -> Plot {
    let mut series: Vec<Series> = Vec::new();
    for comparison in comparisons {
        let Some(size_bytes) = comparison.parameter("size_bytes") else { continue };
        let load = comparison.title().trim_end_matches(&size(comparison.operation_bytes())).trim_end();
        for side in comparison.sides() {
            let Some(ratio) = comparison.ratio(*side, figures::RATE).filter(|_| *side != Side::Plain) else {
                continue;
            };
            let name = format!("{load}, {}", side.name());
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push((size_bytes, ratio)),
                None => series.push(Series { name, points: vec![(size_bytes, ratio)] }),
            }
        }
    }
    let x = ("length of a value".to_owned(), Scale::Doubling);
    Plot { title: "Redis".to_owned(), x, y: "throughput over plain".to_owned(), series }
}
