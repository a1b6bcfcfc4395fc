//! The experiment on Redis: the packaged server, unchanged, plain and under uncopy, loaded with
//! SETs and GETs of large values, its append-only file on. Values are read back and compared.

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::clients::redis_benchmark::{KEY, Load, Operation, is_benchmark_value};
use crate::kit::figures::{self, LEGEND};
use crate::kit::{
    Comparison, Entry, Experiment, Failure, Form, Launcher, Outcome, Plot, Progress, Random, Repeat, Report,
    Result, Sample, Scale, Schedule, Series, Side, While, amount, claim, compare, count_parser, entry,
    measured, number, size, size_parser,
};
use crate::servers::redis::{Programs, RedisServer};

pub mod ycsb;

/// Room that the temporary directory must have, bytes: many times what a log grows to.
const ROOM_BYTES: u64 = 1 << 30;
/// Values that are set by this program and read back after each measurement.
const READ_BACK_VALUES: u64 = 16;
/// Upper bound of all of them together, bytes.
const READ_BACK_LIMIT_BYTES: u64 = 16 << 20;
/// Values from this length on are expected to be elided (the default `--min-size`).
const ELISION_EXPECTED_BYTES: u64 = uncopy_core::options::MIN_SIZE_DEFAULT_BYTES as u64;
/// Warm-up before each measurement, as a part of it.
const WARM_UP_PART: u64 = 8;

/// A load for Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// redis-benchmark sets one key
    Set,
    /// redis-benchmark reads one key
    Get,
    /// YCSB's workload A: half reads, half updates, Zipfian keys, every value read is checked
    YcsbA,
}

/// Packaged redis-server, append-only file on: SET, GET, YCSB A (zIO, Figures 11 and 12)
#[derive(Debug, Args)]
pub struct Redis {
    /// Loads
    #[arg(
        long,
        value_name = "LOAD,...",
        default_value = "set,get,ycsb-a",
        value_delimiter = ',',
        value_enum
    )]
    pub workload: Vec<Workload>,
    /// Lengths of values, in bytes
    #[arg(long, value_name = "BYTES,...", default_value = "64,65536,262144,1048576",
        default_value_if("quick", "true", "65536,1048576"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Connections
    #[arg(long, value_name = "N", default_value = "8", value_parser = count_parser())]
    pub clients: usize,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub form: Form,
}

impl Experiment for Redis {
    const ENTRIES: &'static [Entry] = &[
        Entry {
            repeated: true,
            ..entry(
                "redis-set",
                "Redis, SET, append-only file on",
                &[
                    claim("zIO, Figure 11 (§5.2)", "Up to 1.8 times Linux, above all for larger values."),
                    claim(
                        "zIO, §5.2.1",
                        "256 KiB, without application copies: 1.7 times (kernel bypass). 8 KiB: 2 % slower with the size policy, 40 % without.",
                    ),
                ],
                "redis --workload set --sizes 8192,65536,262144,1048576 --sides uncopy,heap-only --rounds 9..15",
                "redis --quick --workload set --sizes 65536,262144,1048576 --sides uncopy --seconds 0.2",
            )
        },
        entry(
            "redis-get",
            "Redis, GET",
            &[claim(
                "zIO, Table 1",
                "A GET makes fewer copies in the application than a SET; not measured by itself.",
            )],
            "redis --workload get --sizes 65536,262144,1048576 --sides uncopy --rounds 7..15",
            "redis --quick --workload get --sizes 262144 --sides uncopy",
        ),
        entry(
            "redis-ycsb-a",
            "Redis, YCSB workload A",
            &[claim("zIO, Figure 12 (§5.2)", "Half SET, half GET: up to 1.3 times Linux.")],
            "redis --workload ycsb-a --sizes 262144,1048576 --sides uncopy --rounds 7..15",
            "redis --quick --workload ycsb-a --sizes 262144 --sides uncopy",
        ),
        Entry {
            network: Some("veth-1500"),
            ..entry(
                "redis-set-veth-1500",
                "Redis, SET, over a link with MTU 1500",
                &[claim("zIO, Figure 11 (§5.2)", "There over a network of 100 Gbit/s.")],
                "redis --workload set --sizes 262144,1048576 --sides uncopy --rounds 7..11 --seconds 0.4",
                "redis --quick --workload set --sizes 262144 --sides uncopy",
            )
        },
        Entry {
            network: Some("veth-9000"),
            ..entry(
                "redis-set-veth-9000",
                "Redis, SET, over a link with MTU 9000",
                &[claim("zIO, Figure 11 (§5.2)", "There over a network of 100 Gbit/s.")],
                "redis --workload set --sizes 262144,1048576 --sides uncopy --rounds 7..11 --seconds 0.4",
                "redis --quick --workload set --sizes 262144 --sides uncopy",
            )
        },
    ];
    const PLACE: u8 = 80;

    fn run(&self) -> Result<Outcome> {
        measured(&self.form, |launcher, progress| {
            let programs = Programs::find()?;
            check_room()?;
            let mut schedule = self.repeat.schedule();
            // Redis has no version without copies.
            schedule.sides.retain(|side| *side != Side::Limit);
            let mut comparisons = Vec::new();
            for workload in &self.workload {
                let operation = match workload {
                    Workload::Set => Operation::Set,
                    Workload::Get => Operation::Get,
                    Workload::YcsbA => {
                        let (sizes, clients) = (&self.sizes, self.clients);
                        comparisons
                            .extend(ycsb::measure(launcher, &programs, sizes, clients, &schedule, progress));
                        continue;
                    }
                };
                let work: Vec<_> =
                    self.sizes.iter().map(|size_bytes| (operation, *size_bytes as u64)).collect();
                comparisons.extend(measure(launcher, &programs, &work, self.clients, &schedule, progress));
            }
            let versions = vec![("redis", programs.version)];
            Ok(Report { versions, ..Report::of(comparisons, render, plot) })
        })
    }
}

/// One comparison for each operation and length of values, bytes; `clients` connections.
pub fn measure(
    launcher: &Launcher,
    programs: &Programs,
    work: &[(Operation, u64)],
    clients: usize,
    schedule: &Schedule,
    progress: &mut Progress,
) -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    for (operation, size_bytes) in work {
        let title = format!("redis {} {}", operation.name(), size(*size_bytes));
        #[expect(clippy::cast_precision_loss, reason = "sizes of values")]
        let mut comparison = Comparison::new(title.clone(), *size_bytes, &schedule.sides)
            .with("size_bytes", *size_bytes as f64);
        let run = Run {
            launcher,
            programs,
            size_bytes: *size_bytes,
            load: Load {
                program: &programs.benchmark,
                operation: *operation,
                size_bytes: *size_bytes,
                clients,
            },
        };
        progress.tell(&title, 0, schedule.rounds, "how many requests");
        match run.calibrate(schedule.duration) {
            Err(failure) => comparison.fail(&failure),
            Ok(requests) => {
                let sample = |side, round| run.sample(side, requests, round as u64);
                schedule.rounds.run_one(&mut comparison, progress, sample);
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
    /// Requests that a plain server does in `duration`.
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
                operations_per_s: Some(report.operations_per_s),
                latency_p50_us: Some(report.latency_p50_us),
                latency_p99_us: Some(report.latency_p99_us),
                latency_p999_us: Some(report.latency_p999_us),
                cpu_us: Some(cpu_ns as f64 / 1e3 / requests as f64),
                resident_bytes: Some(resident_bytes as f64),
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
fn render(comparisons: &[Comparison]) -> String {
    let memory: figures::Extra<'_> = (
        "RSS",
        Box::new(|comparison, side| {
            let resident =
                comparison.figure(side, |sample| Some(sample.resident_bytes? / f64::from(1 << 20)));
            resident.map_or_else(|| "-".to_owned(), |spread| format!("{} MiB", number(spread.median)))
        }),
    );
    format!(
        "{}\n{LEGEND}RSS: the server's resident memory after the load\n",
        figures::table(comparisons, &[memory])
    )
}

/// The ratio to plain over the length of values: a line for each kind of load and side.
fn plot(comparisons: &[Comparison]) -> Plot {
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
