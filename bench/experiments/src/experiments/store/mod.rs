//! Programs that append and sync: plain, with preallocated files, under uncopy, and with a log (`uncopy run
//! --log`). The processor time is that of the program and of its log's keeper.
//!
//! A keeper's later syncs go to the device that the other sides use. Slices are therefore long enough that most
//! of these syncs fall into their own slice, and each slice is followed by a pause without load.
//!
//! No idle loops keep the processors awake: a kernel thread that has to write a journal waits until a loop's
//! time slice ends. (Measured: 4 KiB appended and synced in 5.3 ms with such loops, in 0.24 ms without.)

pub mod append_loop;
pub mod directory;
pub mod servers;
pub mod tables;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use uncopy_testbed::Package;

use append_loop::{AppendLoop, record_parser};
use directory::StoreDirectory;

use crate::apps::programs::Programs;
use crate::apps::redis::REDIS;
use crate::clients::records::Workload as Records;
use crate::kit::processes::descendants;
use crate::kit::remote::RemoteServer;
use crate::kit::{
    CommonOptions, Comparison, Experiment, Launcher, Outcome, Progress, Report, ReportEntry, Result,
    RunningServer, Side, Slices, SlicingOptions, TemporaryDirectory, claim, count_parser, entry,
    format_count, format_size, noise, run_with_noise_reduction, size_parser, threads_parser,
};

/// Side of the loop that overwrites preallocated files.
const PREALLOCATED: Side = Side::Way("preallocated");
/// Maximum length of records with several threads, bytes: the device must not be the limit.
const MAX_SHARED_BYTES: usize = 4096;
/// Length of records that are never synced, bytes.
const NOT_SYNCED_BYTES: usize = 64 << 10;
/// Length of a row in SQLite, bytes.
const ROW_BYTES: usize = 1024;
/// Divisor of a slice that gives the pause after it: for slices of 2 s, the second after which files are synced.
pub const PAUSE_DIVISOR: u32 = 2;

/// Space required, bytes: for the files of all sides at one time, and their logs.
pub const MIN_FREE_BYTES: u64 = 16 << 30;
/// Space required with `--quick`, bytes.
pub const QUICK_MIN_FREE_BYTES: u64 = 4 << 30;

/// A workload of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// A loop that appends to a file and syncs it each time
    Append,
    /// A loop that appends to a file without syncing it
    Nosync,
    /// Redis, with a synced append-only file
    Redis,
    /// Redis with such a file, YCSB workload A
    Ycsb,
    /// SQLite in WAL mode, one row per transaction
    Sqlite,
}

/// A side that can be compared with plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compared {
    /// The loop on files that were written and synced before
    Preallocated,
    /// `uncopy run` without a log
    Uncopy,
    /// `uncopy run --log`, with the log on disk
    UncopyLog,
    /// `uncopy run --log`, with the log in memory to emulate persistent memory
    LogEmulatedDax,
    /// A log that has the only copy (`--log-mode only`), and all copies made
    OnlyCopied,
    /// The same with uncopy's heap
    OnlyHeap,
    /// Copies in the program elided; the log's record is a copy
    OnlyApiCopied,
    /// Copies in the program elided, and input received into the log's memory
    Only,
}

impl Compared {
    const fn side(self) -> Side {
        match self {
            Self::Preallocated => PREALLOCATED,
            Self::Uncopy => Side::Uncopy,
            Self::UncopyLog => Side::Log,
            Self::LogEmulatedDax => Side::LogInMemory,
            Self::OnlyCopied => Side::OnlyCopying,
            Self::OnlyHeap => Side::OnlyHeapOnly,
            Self::OnlyApiCopied => Side::OnlyApiCopying,
            Self::Only => Side::Only,
        }
    }
}

/// Policy by which Redis syncs its append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fsync {
    /// Sync before each answer
    Always,
    /// Sync once a second
    Everysec,
}

impl Fsync {
    /// Returns the policy's name in Redis.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Everysec => "everysec",
        }
    }
}

/// Programs that append to files and sync them: a loop, Redis, SQLite, with a log and without
#[derive(Debug, Args)]
#[command(
    mut_arg("slice", |slice| slice.default_value("2").default_value_if("quick", "true", "0.05")),
    mut_arg("seconds", |seconds| seconds.default_value("120"))
)]
pub struct Store {
    /// Workloads to measure [default: all]
    #[arg(value_name = "NAME", value_enum)]
    pub names: Vec<Workload>,
    /// Record sizes of the loop, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "4096,16384,65536,262144,1048576",
        default_value_if("quick", "true", "4096,65536"), value_delimiter = ',', value_parser = record_parser())]
    pub sizes: Vec<usize>,
    /// Numbers of threads of the loop; records above 4096 bytes have one thread only
    #[arg(long, value_name = "N,N,...", default_value = "1,8", default_value_if("quick", "true", "1"), value_delimiter = ',', value_parser = threads_parser())]
    pub threads: Vec<usize>,
    /// Value sizes of Redis, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "8192,65536,262144,1048576",
        default_value_if("quick", "true", "65536"), value_delimiter = ',', value_parser = size_parser())]
    pub values: Vec<usize>,
    /// Sync policies of Redis
    #[arg(
        long,
        value_name = "POLICY,...",
        default_value = "always,everysec",
        default_value_if("quick", "true", "always"),
        value_delimiter = ',',
        value_enum
    )]
    pub fsync: Vec<Fsync>,
    /// Number of connections to Redis
    #[arg(long, value_name = "N", default_value = "4", value_parser = count_parser())]
    pub clients: usize,
    /// Sides to compare with plain
    #[arg(
        long,
        value_name = "SIDE,...",
        default_value = "preallocated,uncopy,uncopy-log",
        default_value_if("emulate_dax", "true", "uncopy,only-copied,only-heap,only-api-copied,only"),
        value_delimiter = ',',
        value_enum
    )]
    pub sides: Vec<Compared>,
    /// Keep the files of all sides in memory, which emulates persistent memory, and compare logs that have the only copy
    #[arg(long)]
    pub emulate_dax: bool,
    /// Directory on a disk in which the temporary directory of the files is created
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    #[command(flatten)]
    pub slicing: SlicingOptions,
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Experiment for Store {
    const ENTRIES: &'static [ReportEntry] = &[
        entry(
            "store",
            "Programs that append and sync, with a log beside the page cache",
            &[claim(
                "zIO, §3.2",
                "The storage stack appends to a log in persistent memory; here the log is on the disk of the files.",
            )],
            "store append redis sqlite --sizes 4096,65536 --values 65536,262144 --seconds 60",
            "store append --quick",
        )
        .not_judged()
        .taking(60),
        entry(
            "store-only",
            "Redis on the kernel's TCP: a log in memory that has the only copy",
            &[claim(
                "zIO, Figure 13 (§5.2.1)",
                "The same bars on kernel-bypass stacks: 1.7 times, 9 % more, 7 % more.",
            )],
            "store redis ycsb --emulate-dax --values 8192,262144 --fsync always --slice 0.5 --rounds 14 --processes 3",
            "store redis --emulate-dax --quick",
        )
        .not_judged()
        .taking(30),
    ];
    const REPORT_POSITION: u8 = 170;

    fn run(&self) -> Result<Outcome> {
        let min_free_bytes = if self.common.quick { QUICK_MIN_FREE_BYTES } else { MIN_FREE_BYTES };
        let store_directory = if self.emulate_dax {
            StoreDirectory::in_memory()
        } else {
            StoreDirectory::of(&self.dir, min_free_bytes)
        }?;
        noise::enable_idle_loops(false);
        run_with_noise_reduction(&self.common, |launcher, progress| {
            Ok(self.measure(launcher, &store_directory, progress))
        })
    }
}

impl Store {
    fn measure(
        &self,
        launcher: &Launcher,
        store_directory: &StoreDirectory,
        progress: &mut Progress,
    ) -> Report {
        // A keeper's parent is then this program, which accounts for its time and ends it.
        descendants::adopt();
        let mut versions = vec![("files", store_directory.file_system())];
        let mut measure = |point: Point| {
            let slices = self.slices(&point);
            let mut comparison = point.comparison(&slices.sides);
            match Programs::find(point.packages()) {
                Err(missing) => comparison.skip(missing.to_string()),
                Ok(programs) => {
                    let found =
                        programs.versions.iter().map(|(_, version)| (point.program(), version.clone()));
                    versions.extend(found.filter(|found| !versions.contains(found)).collect::<Vec<_>>());
                    slices.run(launcher, &mut comparison, false, progress, |side| {
                        point.start(launcher, side, &programs, store_directory)
                    });
                }
            }
            comparison
        };
        let comparisons = self.points().into_iter().map(&mut measure).collect();
        Report { versions, ..Report::of(comparisons, tables::render, tables::plot) }
    }

    /// Returns the sides and times of a point. Only the loop has files to preallocate.
    fn slices(&self, point: &Point) -> Slices {
        let sides: Vec<Side> = self.sides.iter().map(|compared| compared.side()).collect();
        let mut slices = Slices { pause: self.slicing.slice / PAUSE_DIVISOR, ..self.slicing.slices(&sides) };
        // Append-only files are rewritten between two rounds: in memory, each round has to be such a one.
        slices.cycle = self.emulate_dax.then_some(Duration::ZERO);
        slices.sides.retain(|side| *side != PREALLOCATED || matches!(point.work, StoreProgram::Append(_)));
        slices
    }

    fn points(&self) -> Vec<Point> {
        let is_selected = |workload| self.names.is_empty() || self.names.contains(&workload);
        let mut points = Vec::new();
        if is_selected(Workload::Append) {
            for size_bytes in &self.sizes {
                let threads = self.threads.iter().copied();
                let threads = threads.filter(|threads| *threads == 1 || *size_bytes <= MAX_SHARED_BYTES);
                points.extend(threads.map(|threads| Point::append(*size_bytes, threads, false)));
            }
        }
        if is_selected(Workload::Nosync) {
            points.push(Point::append(NOT_SYNCED_BYTES, 1, true));
        }
        for (selected, workload) in [(Workload::Redis, Records::Set), (Workload::Ycsb, Records::YcsbA)] {
            for fsync in self.fsync.iter().filter(|_| is_selected(selected)) {
                points.extend(self.values.iter().map(|size_bytes| self.redis(workload, *fsync, *size_bytes)));
            }
        }
        if is_selected(Workload::Sqlite) {
            let title = format!("sqlite, a row of {}", format_size(ROW_BYTES as u64));
            points.push(Point { title, size_bytes: ROW_BYTES, threads: 1, work: StoreProgram::Sqlite });
        }
        points
    }

    fn redis(&self, workload: Records, fsync: Fsync, size_bytes: usize) -> Point {
        let title = format!("redis {} {}, {}", workload.name(), format_size(size_bytes as u64), fsync.name());
        let work = StoreProgram::Redis { workload, fsync, clients: self.clients };
        Point { title, size_bytes, threads: 1, work }
    }
}

/// One line of the experiment's tables.
#[derive(Debug)]
struct Point {
    title: String,
    size_bytes: usize,
    threads: usize,
    work: StoreProgram,
}

/// Program that a point measures.
#[derive(Debug)]
enum StoreProgram {
    /// The loop that appends to files.
    Append(AppendLoop),
    /// Redis with its append-only file.
    Redis { workload: Records, fsync: Fsync, clients: usize },
    /// A program that writes rows to SQLite.
    Sqlite,
}

impl Point {
    fn append(size_bytes: usize, threads: usize, no_sync: bool) -> Self {
        let how = if no_sync { ", not synced".to_owned() } else { String::new() };
        let title = format!(
            "append {}, {}{how}",
            format_size(size_bytes as u64),
            format_count(threads, "thread", "threads")
        );
        let work = AppendLoop { size: size_bytes, threads, no_sync, preallocated: false };
        Self { title, size_bytes, threads, work: StoreProgram::Append(work) }
    }

    #[expect(clippy::cast_precision_loss, reason = "sizes, and few threads")]
    fn comparison(&self, sides: &[Side]) -> Comparison {
        Comparison::new(&self.title, self.size_bytes as u64, sides)
            .with_parameter("size_bytes", self.size_bytes as f64)
            .with_parameter("threads", self.threads as f64)
    }

    const fn packages(&self) -> &'static [Package] {
        match self.work {
            StoreProgram::Append(_) => &[],
            StoreProgram::Redis { .. } => &[REDIS],
            StoreProgram::Sqlite => &[servers::SQLITE],
        }
    }

    /// Returns the name under which the version of the point's program is reported.
    const fn program(&self) -> &'static str {
        match self.work {
            StoreProgram::Append(_) | StoreProgram::Redis { .. } => REDIS.program,
            StoreProgram::Sqlite => "sqlite",
        }
    }

    /// Starts the program under `side`, with its files in a directory of their own.
    fn start(
        &self,
        launcher: &Launcher,
        side: Side,
        programs: &Programs,
        store_directory: &StoreDirectory,
    ) -> Result<Box<dyn RunningServer>> {
        match self.work {
            StoreProgram::Append(work) => {
                let directory = TemporaryDirectory::make_in(store_directory.path())?;
                let work = AppendLoop { preallocated: side == PREALLOCATED, ..work };
                let command = store_directory
                    .launcher(launcher, side, directory.path())?
                    .bench_command(side, &work.arguments());
                Ok(Box::new(RemoteServer::start(command, "the loop", directory)?))
            }
            StoreProgram::Redis { workload, fsync, clients } => {
                let redis = servers::Redis { workload, fsync, size_bytes: self.size_bytes, clients };
                redis.start(launcher, side, programs, store_directory)
            }
            StoreProgram::Sqlite => {
                servers::sqlite(launcher, side, programs, store_directory, self.size_bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        store: Store,
    }

    fn titles(words: &[&str]) -> Vec<String> {
        let line = Line::try_parse_from([&["store"], words].concat()).expect("a command line");
        line.store.points().into_iter().map(|point| point.title).collect()
    }

    #[test]
    fn everything_is_measured_unless_something_is_named() {
        let all = titles(&[]);
        assert_eq!(all.len(), 6 + 1 + 2 * 8 + 1);
        assert_eq!(
            all[..3],
            ["append 4 KiB, 1 thread", "append 4 KiB, 8 threads", "append 16 KiB, 1 thread"]
        );
        assert_eq!(all[6..8], ["append 64 KiB, 1 thread, not synced", "redis SET 8 KiB, always"]);
        assert_eq!(all[15], "redis YCSB A 8 KiB, always");
        assert_eq!(all[23], "sqlite, a row of 1 KiB");
        let quick = titles(&["--quick", "redis", "append"]);
        assert_eq!(quick, ["append 4 KiB, 1 thread", "append 64 KiB, 1 thread", "redis SET 64 KiB, always"]);
    }

    #[test]
    fn only_loops_have_preallocated_files() {
        let line = Line::try_parse_from(["store"]).expect("a command line");
        let has = |point: &Point| line.store.slices(point).sides.contains(&PREALLOCATED);
        let points = line.store.points();
        assert!(has(&points[0]) && !has(&points[23]));
        let sides = line.store.slices(&points[0]).sides;
        assert_eq!(sides, [Side::Plain, Side::PlainAgain, PREALLOCATED, Side::Uncopy, Side::Log]);
    }
}
