//! The experiment on Redis: the packaged server, unchanged, plain, under uncopy and with other allocators, with
//! GETs and SETs, with and without its append-only file. Every value read is compared.

use clap::{Args, ValueEnum};

use crate::apps::programs::Programs;
use crate::apps::redis::{REDIS, Values};
use crate::apps::{Point, Scheme};
use crate::clients::records::Workload;
use crate::experiments::apps::measure;
use crate::kit::{
    CommonOptions, ComparisonOptions, Experiment, Failure, Outcome, Report, ReportEntry, Result, claim,
    count_parser, disk, entry, format_amount, run_with_noise_reduction, size_parser,
};

/// Space required in the temporary directory, bytes: many times the size to which a log grows.
const MIN_FREE_BYTES: u64 = 1 << 30;

/// Whether Redis keeps its append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AppendOnly {
    /// Redis without an append-only file
    Off,
    /// Redis with an append-only file
    On,
}

/// Packaged redis-server: SET, GET, half of each, YCSB A, append-only file on or off (zIO, Figures 11 and 12)
#[derive(Debug, Args)]
pub struct Redis {
    /// Workloads of the clients to measure
    #[arg(
        long,
        value_name = "LOAD,...",
        default_value = "set,get,ycsb-a",
        value_delimiter = ',',
        value_enum
    )]
    pub workload: Vec<Workload>,
    /// Value sizes, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "64,65536,262144,1048576",
        default_value_if("quick", "true", "65536,1048576"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Append-only file, off or on
    #[arg(long, value_name = "STATE,...", default_value = "on", value_delimiter = ',', value_enum)]
    pub append_only: Vec<AppendOnly>,
    /// Number of connections to Redis
    #[arg(long, value_name = "N", default_value = "4", value_parser = count_parser())]
    pub clients: usize,
    #[command(flatten)]
    pub comparison_options: ComparisonOptions,
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Experiment for Redis {
    const ENTRIES: &'static [ReportEntry] = &[
        entry(
            "redis-set",
            "Redis, SET, append-only file on",
            &[
                claim(
                    "zIO, Figure 11 (§5.2)",
                    "Up to 1.8 times the throughput of Linux, mostly for larger values.",
                ),
                claim(
                    "zIO, §5.2.1",
                    "256 KiB, without application copies: 1.7 times (kernel bypass). 8 KiB: 2 % slower with the size policy, 40 % without.",
                ),
            ],
            "redis --workload set --sizes 8192,65536,262144,1048576",
            "redis --quick --workload set --sizes 65536,262144,1048576 --sides uncopy",
        ),
        entry(
            "redis-get",
            "Redis, GET",
            &[claim(
                "zIO, Table 1",
                "A GET makes fewer copies in the application than a SET; not measured alone.",
            )],
            "redis --workload get --append-only off --sizes 65536,262144,1048576",
            "redis --quick --workload get --append-only off --sizes 262144 --sides uncopy",
        ),
        entry(
            "redis-ycsb-a",
            "Redis, YCSB workload A",
            &[claim("zIO, Figure 12 (§5.2)", "Half SET, half GET: up to 1.3 times the throughput of Linux.")],
            "redis --workload ycsb-a --sizes 262144,1048576",
            "redis --quick --workload ycsb-a --sizes 262144 --sides uncopy",
        ),
        entry(
            "redis-set-veth-1500",
            "Redis, SET, MTU 1500",
            &[claim("zIO, Figure 11 (§5.2)", "Measured over a network of 100 Gbit/s.")],
            "redis --workload set --sizes 262144,1048576 --sides uncopy,heap-only",
            "redis --quick --workload set --sizes 262144 --sides uncopy",
        )
        .over("veth-1500"),
        entry(
            "redis-set-veth-9000",
            "Redis, SET, MTU 9000",
            &[claim("zIO, Figure 11 (§5.2)", "Measured over a network of 100 Gbit/s.")],
            "redis --workload set --sizes 262144,1048576 --sides uncopy,heap-only",
            "redis --quick --workload set --sizes 262144 --sides uncopy",
        )
        .over("veth-9000"),
    ];
    const REPORT_POSITION: u8 = 80;

    fn run(&self) -> Result<Outcome> {
        run_with_noise_reduction(&self.common, |launcher, progress| {
            let programs = Programs::find(&[REDIS])?;
            check_free_space()?;
            let slices = self.comparison_options.slices();
            let comparisons = measure::measure_points(
                launcher,
                &programs,
                &self.points(),
                Scheme::Slices,
                &slices,
                progress,
            );
            let versions = programs.versions;
            Ok(Report { versions, ..Report::of(comparisons, measure::tables, measure::plot) })
        })
    }
}

impl Redis {
    /// Returns a point for each workload, state of the append-only file and length of values.
    fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for workload in &self.workload {
            for append_only in &self.append_only {
                let append_only = *append_only == AppendOnly::On;
                let (workload, clients) = (*workload, self.clients);
                let point = |size_bytes| Values { workload, size_bytes, clients, append_only }.point();
                points.extend(self.sizes.iter().copied().map(point));
            }
        }
        points
    }
}

/// Checks that the disk does not fill even if logs are not trimmed for a while.
///
/// # Errors
/// [`Failure`] that names the file system with too little free space.
pub fn check_free_space() -> Result<()> {
    let directory = std::env::temp_dir();
    let free_bytes = disk::free_bytes(&directory)?;
    if free_bytes >= MIN_FREE_BYTES {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} has {} free and {} are needed; set TMPDIR to a directory with more free space",
        directory.display(),
        format_amount(free_bytes),
        format_amount(MIN_FREE_BYTES)
    )))
}
