//! Latency of small requests to Redis while something large goes on beside them: plain, under uncopy, and with other
//! allocators. Every value read is compared.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use uncopy_testbed::network::wait_until;

use crate::apps::programs::Programs;
use crate::apps::redis::REDIS;
use crate::clients::records::{Clients, Workload};
use crate::kit::figures::{self, LEGEND, P50, P99, P999, RatioColumn, median_column};
use crate::kit::processes::process::TIMEOUT;
use crate::kit::traffic::LoadResult;
use crate::kit::{
    CommonOptions, Comparison, Experiment, Failure, Launcher, Outcome, Plot, Report, ReportEntry, Result,
    RunningServer, Server, Side, SlicingOptions, claim, entry, format_size, processors,
    run_with_noise_reduction, size_parser,
};
use crate::servers::redis::RedisServer;

/// Sides compared with plain.
const SIDES: [Side; 4] = [Side::Uncopy, Side::HeapOnly, Side::TunedGlibc, Side::Mimalloc];
/// Length of the measured values, bytes.
const SMALL_BYTES: usize = 1 << 10;
/// Length of the values beside them, bytes.
const LARGE_BYTES: usize = 10 << 20;
/// Length of the values that are read after a pause, bytes.
const IDLE_BYTES: usize = 64 << 10;
/// Length of each value of the process that forks, bytes.
const STORED_BYTES: usize = 1 << 20;
/// Time without requests before each request.
const PAUSE: Duration = Duration::from_millis(100);

/// Activity beside the measured requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Beside {
    /// GET of 1 KiB while another connection GETs 10 MiB
    Large,
    /// SET of 1 KiB while the append-only file is rewritten
    Rewrite,
    /// GET of 64 KiB after 100 ms without requests
    Idle,
    /// SET of 1 KiB while a child saves the data
    Fork,
}

impl Beside {
    fn title(self, stored_bytes: usize) -> String {
        match self {
            Self::Large => "GET 1 KiB beside GETs of 10 MiB".to_owned(),
            Self::Rewrite => "SET 1 KiB beside BGREWRITEAOF".to_owned(),
            Self::Idle => "GET 64 KiB after 100 ms".to_owned(),
            Self::Fork => format!("SET 1 KiB, BGSAVE of {}", format_size(stored_bytes as u64)),
        }
    }

    const fn measured(self) -> (Workload, usize) {
        match self {
            Self::Large => (Workload::Get, SMALL_BYTES),
            Self::Rewrite | Self::Fork => (Workload::Set, SMALL_BYTES),
            Self::Idle => (Workload::Get, IDLE_BYTES),
        }
    }

    /// Returns the command that starts a child of the server, and the field of INFO that is 1 while the child runs.
    const fn child(self) -> Option<(&'static [u8], &'static str)> {
        match self {
            Self::Rewrite => Some((b"BGREWRITEAOF", "aof_rewrite_in_progress")),
            Self::Fork => Some((b"BGSAVE", "rdb_bgsave_in_progress")),
            Self::Large | Self::Idle => None,
        }
    }
}

/// Latency of small requests to Redis beside large ones, rewrites, pauses and forks
#[derive(Debug, Args)]
#[command(mut_arg("slice", |slice| slice.default_value("0.5").default_value_if("quick", "true", "0.1")))]
pub struct Latency {
    /// Activities to measure [default: all]
    #[arg(value_name = "NAME", value_enum)]
    pub names: Vec<Beside>,
    /// Data of the server that forks, bytes
    #[arg(long, value_name = "SIZE", default_value = "512M", default_value_if("quick", "true", "64M"),
        value_parser = size_parser())]
    pub stored: usize,
    #[command(flatten)]
    pub slicing: SlicingOptions,
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Experiment for Latency {
    const ENTRIES: &'static [ReportEntry] = &[entry(
        "latency",
        "Latency of small requests beside large ones",
        &[claim("not in the papers", "zIO and ZCopy report throughput, and latencies of single messages.")],
        "latency --seconds 60 --processes 3",
        "latency large --quick",
    )
    .not_judged()
    .taking(25)];
    const REPORT_POSITION: u8 = 165;

    fn run(&self) -> Result<Outcome> {
        run_with_noise_reduction(&self.common, |launcher, progress| {
            let programs = Programs::find(&[REDIS])?;
            let slices = self.slicing.slices(&SIDES);
            let program = programs.path(REDIS.program)?;
            let mut comparisons = Vec::new();
            for beside in Beside::value_variants() {
                if !self.names.is_empty() && !self.names.contains(beside) {
                    continue;
                }
                let (_, size_bytes) = beside.measured();
                let title = beside.title(self.stored);
                let mut comparison = Comparison::new(title, size_bytes as u64, &slices.sides);
                slices.run(launcher, &mut comparison, false, progress, |side| {
                    Ok(Box::new(BusyRedis::start(launcher, side, program, *beside, self.stored)?))
                });
                comparisons.push(comparison);
            }
            let versions = programs.versions;
            Ok(Report { versions, ..Report::of(comparisons, render, plot) })
        })
    }
}

fn render(comparisons: &[Comparison]) -> String {
    const COLUMNS: [RatioColumn; 6] = [
        ("p50 over plain", Side::Uncopy, Side::Plain, P50),
        ("p99 over plain", Side::Uncopy, Side::Plain, P99),
        ("p99.9 over plain", Side::Uncopy, Side::Plain, P999),
        ("plain again: p99.9", Side::PlainAgain, Side::Plain, P999),
        ("p99.9 over mimalloc", Side::Uncopy, Side::Mimalloc, P999),
        ("p99.9 over tuned glibc", Side::Uncopy, Side::TunedGlibc, P999),
    ];
    format!(
        "{}\n{}\n{LEGEND}p50, p99, p99.9: of the small requests in one slice; the median of all slices\n",
        figures::ratios_table("uncopy", comparisons, &COLUMNS).render(),
        figures::table(comparisons, &[median_column("p99.9 µs", P999)]),
    )
}

fn plot(comparisons: &[Comparison]) -> Plot {
    Plot::over_plain("Latency of small requests, p99.9", "time over plain", comparisons, P999)
}

/// A Redis whose measured clients have something beside them.
struct BusyRedis {
    // Dropped in this order: the connections end before the server.
    measured: Clients,
    large: Option<Clients>,
    beside: Beside,
    redis: RedisServer,
}

impl BusyRedis {
    fn start(
        launcher: &Launcher,
        side: Side,
        program: &Path,
        beside: Beside,
        stored_bytes: usize,
    ) -> Result<Self> {
        let redis = RedisServer::start(launcher, side, program)?;
        let address: SocketAddr = redis.address();
        if beside == Beside::Fork {
            let (mut connection, value) = (redis.connect()?, vec![7; STORED_BYTES]);
            for number in 0..stored_bytes / STORED_BYTES {
                connection.set_parts(format!("stored{number}").as_bytes(), &[&value])?;
            }
        }
        let (workload, size_bytes) = beside.measured();
        let measured = Clients::open(address, workload, size_bytes, 1)?;
        let is_large = beside == Beside::Large;
        let large = is_large
            .then(|| Clients::open_named(address, Workload::Get, LARGE_BYTES, 1, "large"))
            .transpose()?;
        Ok(Self { measured, large, beside, redis })
    }

    /// Loads the server while a child of it runs, and waits for the child's end.
    fn load_beside_child(
        &mut self,
        duration: Duration,
        (command, field): (&[u8], &str),
    ) -> Result<LoadResult> {
        let mut connection = self.redis.connect()?;
        connection.command(&[command])?;
        let load = self.measured.load(duration, processors::of_clients(processors::ONE_THREAD));
        let has_ended = || connection.info(field).is_ok_and(|value| value == "0").then_some(());
        wait_until(TIMEOUT, has_ended).ok_or_else(|| Failure::new("the server's child did not end"))?;
        load
    }

    /// Sends single requests after pauses. The time of the pauses does not count.
    fn load_after_pauses(&mut self, duration: Duration) -> Result<LoadResult> {
        let (begun, mut loads) = (Instant::now(), Vec::new());
        let mut elapsed = Duration::ZERO;
        while loads.is_empty() || begun.elapsed() < duration {
            std::thread::sleep(PAUSE);
            let load = self.measured.load(Duration::ZERO, processors::of_clients(processors::ONE_THREAD))?;
            elapsed += load.elapsed;
            loads.push(load);
        }
        Ok(LoadResult { elapsed, ..LoadResult::merged(loads) })
    }
}

impl RunningServer for BusyRedis {
    fn server(&mut self) -> &mut Server {
        self.redis.server()
    }

    fn load(&mut self, duration: Duration) -> Result<LoadResult> {
        let processors = processors::of_clients(processors::ONE_THREAD);
        if let Some(child) = self.beside.child() {
            return self.load_beside_child(duration, child);
        }
        let Some(large) = &mut self.large else { return self.load_after_pauses(duration) };
        let measured = &mut self.measured;
        std::thread::scope(|scope| {
            let other = scope.spawn(move || large.load(duration, processors));
            let load = measured.load(duration, processors);
            let other = other.join().map_err(|_| Failure::new("a client's thread panicked"))??;
            let load = load?;
            Ok(LoadResult { verified_bytes: load.verified_bytes + other.verified_bytes, ..load })
        })
    }

    fn reconnect(&mut self) -> Result<()> {
        self.measured.reconnect()?;
        self.large.as_mut().map_or(Ok(()), Clients::reconnect)
    }

    fn verify(&mut self) -> Result<u64> {
        let large = self.large.as_mut().map_or(Ok(0), Clients::verify)?;
        Ok(large + self.measured.verify()?)
    }

    fn stop(&mut self) -> Result<()> {
        self.measured.close();
        self.large = None;
        self.redis.stop()
    }
}
