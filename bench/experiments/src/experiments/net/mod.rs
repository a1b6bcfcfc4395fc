//! User-level TCP (`uncopy net`) compared with the kernel's, with unmodified clients at the kernel's end of a
//! device: zIO's second stack (§3.2, figures 5, 7, 11 to 13).
//!
//! Service and server share one processor, the clients use another. The processor time is that of service and
//! server together; separate columns show the parts.

mod idle;
mod loss;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

use super::apps;
use super::store::directory::StoreDirectory as Files;
use super::store::servers::LOG_LIMIT_BYTES;
use super::store::tables::bars_table;
use super::store::{Fsync, MIN_FREE_BYTES, PAUSE_DIVISOR, QUICK_MIN_FREE_BYTES};
use crate::apps::programs::Programs;
use crate::apps::redis::REDIS;
use crate::apps::{Case, Effort, icecast, relay};
use crate::clients::records::Workload;
use crate::kit::figures::{self, CPU, LEGEND, P50, RATE, RatioColumn, median_column};
use crate::kit::network::{self, Network};
use crate::kit::processes::descendants;
use crate::kit::{
    CommonOptions, Comparison, Experiment, Failure, Launcher, Metric, Outcome, Plot, Progress, Report,
    ReportEntry, Result, RunningServer, Sample, Side, Slices, SlicingOptions, TemporaryDirectory, claim,
    cli_name, copies_parser, count_parser, entry, format_count, format_size, noise, processors,
    run_with_noise_reduction, seconds, size_parser,
};
use crate::servers::echo::command;
use crate::servers::echo::loaded_echo::LoadedEcho;
use crate::servers::echo::server::{EchoWork, Reply};
use crate::servers::net::{TcpStack, start_behind_service};
use crate::servers::redis::{AppendOnly, LoadedRedis, RedisServer};

/// Sides compared with the kernel's TCP.
const SIDES: [Side; 5] = [Side::Uncopy, Side::NetCopying, Side::NetHeapOnly, Side::NetApiCopying, Side::Net];
/// Sides if both stacks are measured: the first copies everything, each of the others elides more than the
/// previous.
const STACKS: [Side; 5] = [Side::NetCopying, Side::NetHeapOnly, Side::NetApiCopying, Side::Net, Side::NetLog];
/// Sides if both stacks are measured with files in memory, of which a log has the only copy.
const ONLY_STACKS: [Side; 5] = [
    Side::NetOnlyCopying,
    Side::NetOnlyHeapOnly,
    Side::NetOnlyApiCopying,
    Side::NetOnly,
    Side::NetOnlyReceiving,
];
/// Length of messages in the measurement of many connections, bytes.
const MANY_BYTES: usize = 64 << 10;

/// A workload of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetWorkload {
    /// Messages that are copied and sent back
    Echo,
    /// Messages that are copied; only the last page is read
    Receive,
    /// Messages of 64 KiB that are sent back over several connections
    Connections,
    /// Redis with SET only
    Redis,
    /// Redis, YCSB workload A
    Ycsb,
    /// Icecast, a file that is sent to listeners
    Icecast,
    /// Icecast, number of listeners of a live stream
    Relay,
    /// One connection with 1 % packet loss, against the kernel's CUBIC
    Loss,
    /// Idle connections: memory and processor time
    Idle,
}

impl NetWorkload {
    /// Returns the case of `uncopy-bench apps` that is also measured behind a service, if any.
    const fn case(self) -> Option<&'static Case> {
        match self {
            Self::Icecast => Some(&icecast::FILE),
            Self::Relay => Some(&relay::CASE),
            _ => None,
        }
    }

    const fn has_files(self) -> bool {
        matches!(self, Self::Redis | Self::Ycsb)
    }

    /// Returns zIO's results for the workload on TAS.
    const fn paper(self, with_log: bool) -> &'static str {
        match self {
            Self::Echo => {
                "zIO, Figure 5: 2.8 times with 12 copies elided; up to 21 % more with API copies elided\n\
                 zIO, Figure 7: up to 2 times with 5 copies elided; up to 40 % more with API copies elided; \
                 0.51 times below 32 KiB\n"
            }
            Self::Redis if with_log => {
                "zIO, Figure 11 (with Strata, in persistent memory): SET up to 2.5 times\n\
                 zIO, Figure 13, SET of 256 KiB: 1.7 times with the copies in Redis elided, 9 % more with API \
                 copies elided, 7 % more when received where it is stored, 2 times in all; SET of 8 KiB: 0.98 \
                 times\n"
            }
            Self::Ycsb if with_log => {
                "zIO, Figure 12 (with Strata, in persistent memory): YCSB A up to 2 times\n"
            }
            Self::Icecast => {
                "zIO, Table 3 (blocks of 64 KB): a file of 1.1 MB, 1.25 times (0.89 to 1.08 GB/s)\n\
                 zIO, Figure 14: a file of 512 KB, several threads, up to 1.17 times mmap\n"
            }
            Self::Relay => "zIO, Table 3 (blocks of 64 KB): 1.16 times as many listeners (812 to 944)\n",
            _ => "",
        }
    }
}

/// User-level TCP against the kernel's, with and without copies in its API
#[derive(Debug, Args)]
#[command(mut_arg("slice", |slice| slice.default_value_ifs([("quick", "true", "0.02"), ("log", "true", "2")])))]
pub struct Net {
    /// Workloads to measure [default: all but loss and idle; with --quick, the echo]
    #[arg(value_name = "NAME", value_enum)]
    pub names: Vec<NetWorkload>,
    /// Message sizes, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "8192,65536,524288,1048576",
        default_value_if("quick", "true", "524288"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Numbers of copies per message in the server
    #[arg(long, value_name = "N,N,...", default_value = "0,5,12", default_value_if("quick", "true", "12"),
        value_delimiter = ',', value_parser = copies_parser())]
    pub copies: Vec<usize>,
    /// Value sizes of Redis, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "65536,262144", default_value_if("quick", "true", "262144"),
        value_delimiter = ',', value_parser = size_parser())]
    pub values: Vec<usize>,
    /// Numbers of connections of the workload `connections`
    #[arg(long, value_name = "N,N,...", default_value = "1,8,64", value_delimiter = ',', value_parser = count_parser())]
    pub connections: Vec<usize>,
    /// Measure network and storage stack together: Redis syncs its append-only file before each reply, on one side
    /// with a log
    #[arg(long)]
    pub log: bool,
    /// With --log: keep the files in memory, which emulates persistent memory, and compare logs that have the only copy
    #[arg(long, requires = "log")]
    pub emulate_dax: bool,
    /// With --log: directory on a disk in which the temporary directory of the files is created
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Number of connections with packet loss, for each side and direction
    #[arg(long, value_name = "N", default_value = "12", default_value_if("quick", "true", "2"), value_parser = count_parser())]
    pub transfers: usize,
    /// Duration of each connection with packet loss
    #[arg(long, value_name = "SECONDS", default_value = "10", default_value_if("quick", "true", "2"), value_parser = seconds)]
    pub transfer_seconds: Duration,
    /// Number of idle connections
    #[arg(long, value_name = "N", default_value = "10000", default_value_if("quick", "true", "1000"),
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=20_000))]
    pub idle: usize,
    #[command(flatten)]
    pub slicing: SlicingOptions,
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Experiment for Net {
    const NETWORK: Network = Network::Veth9000;
    const ENTRIES: &'static [ReportEntry] = &[
        entry(
            "net",
            "User-level TCP beside the kernel's",
            &[
                claim(
                    "zIO, Figure 5 (§5.1.1)",
                    "Echo on a kernel-bypass stack: 2.8 times with 12 copies elided, up to 21 % more with API copies.",
                ),
                claim(
                    "zIO, Figure 7 (§5.1.2)",
                    "Up to 2 times with 5 copies elided, up to 40 % more with API copies; 0.51 times below 32 KiB.",
                ),
            ],
            "net echo receive connections --seconds 30 --processes 3",
            "net --quick",
        )
        .over("veth-9000")
        .not_judged()
        .taking(60),
        entry(
            "net-log",
            "Redis on both stacks: a log in memory that has the only copy",
            &[
                claim("zIO, Figure 11 (§5.2)", "With optimistic receiver persistence: SET up to 2.5 times."),
                claim("zIO, Figure 12 (§5.2)", "With optimistic receiver persistence: YCSB A up to 2 times."),
                claim(
                    "zIO, Figure 13 (§5.2.1)",
                    "SET of 256 KiB: 1.7 times with the copies in Redis elided, 9 % more with API copies, 7 % more \
                     when received where it is stored. SET of 8 KiB: 0.98 times.",
                ),
            ],
            "net redis ycsb --log --emulate-dax --values 8192,65536,262144,1048576 --slice 0.5 --rounds 14 --processes 3",
            "net redis --log --emulate-dax --quick",
        )
        .over("veth-9000")
        .not_judged()
        .taking(60),
    ];
    const REPORT_POSITION: u8 = 160;

    fn run(&self) -> Result<Outcome> {
        if network::current() == Network::Loopback {
            return Err(Failure::new(
                "net needs its clients in another network namespace; run it with --network veth-9000 or \
                 veth-1500",
            ));
        }
        let files = if self.log { Some(self.files()?) } else { None };
        run_with_noise_reduction(&self.common, |launcher, progress| {
            let slices = self.slices();
            let measure = |point: Point| point.measure(launcher, &slices, files.as_ref(), progress);
            let mut comparisons: Vec<Comparison> = self.points().into_iter().map(measure).collect();
            let (mut texts, mut versions, mut findings) = (Vec::new(), Vec::new(), Vec::new());
            let cases: Vec<&Case> = self.selected().filter_map(NetWorkload::case).collect();
            if !cases.is_empty() {
                let effort = if self.common.quick { Effort::Quick } else { Effort::Full };
                let measured = apps::measure::measure(launcher, &cases, effort, &slices, progress);
                comparisons.extend(measured.comparisons);
                versions = measured.versions;
            }
            if !comparisons.is_empty() {
                let text =
                    if self.log { render_stacks(&comparisons, self.stacks()) } else { render(&comparisons) };
                let papers = self.selected().map(|what| what.paper(self.log));
                texts.push(std::iter::once(&*text).chain(papers).collect());
            }
            if self.is_selected(NetWorkload::Loss) {
                let measured = loss::measure(self, launcher, progress);
                texts.push(loss::render(&measured));
                comparisons.extend(measured);
            }
            let plot = plot(&comparisons);
            if self.is_selected(NetWorkload::Idle) {
                let (comparison, all) = idle::measure(self, launcher, progress);
                texts.push(idle::render(&all));
                findings.push(("idle", idle::findings(&all)));
                comparisons.push(comparison);
            }
            Ok(Report { findings, versions, ..Report::new(comparisons, texts.join("\n"), plot) })
        })
    }
}

impl Net {
    /// Prepares the directory of files to be synced, as the experiment `store` does.
    fn files(&self) -> Result<Files> {
        if let Some(other) = self.names.iter().find(|what| !what.has_files()) {
            let name = cli_name(other);
            return Err(Failure::new(format!(
                "--log measures redis and ycsb, not {name}, which writes no file; remove {name} or --log"
            )));
        }
        let min_free_bytes = if self.common.quick { QUICK_MIN_FREE_BYTES } else { MIN_FREE_BYTES };
        let files = if self.emulate_dax { Files::in_memory() } else { Files::of(&self.dir, min_free_bytes) }?;
        noise::enable_idle_loops(false);
        descendants::adopt();
        Ok(files)
    }

    /// Returns the sides with --log.
    const fn stacks(&self) -> &'static [Side] {
        if self.emulate_dax { &ONLY_STACKS } else { &STACKS }
    }

    fn slices(&self) -> Slices {
        if self.log {
            let slices = self.slicing.slices(self.stacks());
            // In memory, append-only files are rewritten after each round, as in the experiment `store`.
            let cycle = if self.emulate_dax { Some(Duration::ZERO) } else { slices.cycle };
            Slices { pause: self.slicing.slice / PAUSE_DIVISOR, cycle, ..slices }
        } else {
            self.slicing.slices(&SIDES)
        }
    }

    fn is_selected(&self, what: NetWorkload) -> bool {
        match self.names.as_slice() {
            [] if self.log => what.has_files(),
            [] => {
                what == NetWorkload::Echo
                    || !self.common.quick && !matches!(what, NetWorkload::Loss | NetWorkload::Idle)
            }
            names => names.contains(&what),
        }
    }

    /// Returns the workloads to measure.
    fn selected(&self) -> impl Iterator<Item = NetWorkload> {
        NetWorkload::value_variants().iter().copied().filter(|what| self.is_selected(*what))
    }

    fn points(&self) -> Vec<Point> {
        let is_selected = |what| self.is_selected(what);
        let mut points = Vec::new();
        for (what, reply) in [(NetWorkload::Echo, Reply::Echo), (NetWorkload::Receive, Reply::LastPage)] {
            for size_bytes in self.sizes.iter().filter(|_| is_selected(what)) {
                points.extend(self.copies.iter().map(|copies| {
                    let work =
                        EchoWork { size_bytes: *size_bytes, copies: *copies, reply, ..EchoWork::default() };
                    Point::Messages { work, connections: 1 }
                }));
            }
        }
        if is_selected(NetWorkload::Connections) {
            let work = EchoWork { size_bytes: MANY_BYTES, ..EchoWork::default() };
            points.extend(
                self.connections
                    .iter()
                    .map(|connections| Point::Messages { work, connections: *connections }),
            );
        }
        for (what, workload) in [(NetWorkload::Redis, Workload::Set), (NetWorkload::Ycsb, Workload::YcsbA)] {
            let values = self.values.iter().filter(|_| is_selected(what));
            points.extend(values.map(|size_bytes| Point::Values { workload, size_bytes: *size_bytes }));
        }
        points
    }
}

/// One line of the tables.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// Messages to a server with a thread for each connection.
    Messages { work: EchoWork, connections: usize },
    /// Values of Redis, by workload and length in bytes.
    Values { workload: Workload, size_bytes: usize },
}

impl Point {
    #[expect(clippy::cast_precision_loss, reason = "sizes of messages, few copies")]
    fn comparison(&self, sides: &[Side], is_synced: bool) -> Comparison {
        match self {
            Self::Messages { work, connections } => {
                let what = if work.reply == Reply::Echo { "echo" } else { "receive" };
                let copies = format_count(work.copies, "copy", "copies");
                let title = format!("{what} {}, {copies}", format_size(work.size_bytes as u64));
                let title =
                    if *connections == 1 { title } else { format!("{title}, {connections} connections") };
                Comparison::new(title, work.size_bytes as u64, sides)
                    .with_parameter("size_bytes", work.size_bytes as f64)
                    .with_parameter("copies", work.copies as f64)
                    .with_parameter("connections", *connections as f64)
            }
            Self::Values { workload, size_bytes } => {
                let synced = if is_synced { ", synced" } else { "" };
                let title = format!("redis {} {}{synced}", workload.name(), format_size(*size_bytes as u64));
                Comparison::new(title, *size_bytes as u64, sides)
                    .with_parameter("size_bytes", *size_bytes as f64)
            }
        }
    }

    /// Measures the point. `files` is the directory of Redis's append-only file, which is synced.
    fn measure(
        self,
        launcher: &Launcher,
        slices: &Slices,
        files: Option<&Files>,
        progress: &mut Progress,
    ) -> Comparison {
        let mut comparison = self.comparison(&slices.sides, files.is_some());
        let programs = match self {
            Self::Messages { .. } => Programs::find(&[]),
            Self::Values { .. } => Programs::find(&[REDIS]),
        };
        match programs {
            Err(missing) => comparison.skip(missing.to_string()),
            Ok(programs) => slices.run(launcher, &mut comparison, false, progress, |side| {
                let by = |command, _: &_| Ok(command);
                start_behind_service(launcher, side, by, |launcher, stack| {
                    self.start(launcher, side, &programs, stack, files)
                })
            }),
        }
        comparison
    }

    /// Starts the server under `side`, and its clients.
    fn start(
        self,
        launcher: &Launcher,
        side: Side,
        programs: &Programs,
        stack: TcpStack,
        files: Option<&Files>,
    ) -> Result<Box<dyn RunningServer>> {
        let clients = processors::of_clients(processors::ONE_THREAD);
        let start = |mut command, title: &str, directory| {
            processors::bind_command(&mut command, processors::of_server(processors::ONE_THREAD));
            stack.start(command, title, directory)
        };
        match self {
            Self::Messages { work, connections } => {
                let arguments = command::arguments(stack.host(), &work, connections);
                let command = launcher.bench_command(side, &arguments);
                let server = start(command, "the echo server", TemporaryDirectory::make()?)?;
                Ok(Box::new(LoadedEcho::new(server, stack.host(), work, connections, clients)?))
            }
            Self::Values { workload, size_bytes } => {
                let program = programs.path(REDIS.program)?;
                let append_only = files
                    .map_or(AppendOnly::Off, |files| AppendOnly::Synced(Fsync::Always.name(), files.path()));
                let start = |arguments: &[OsString], directory: TemporaryDirectory| {
                    let launcher = match files {
                        Some(files) => &files.launcher(launcher, side, directory.path())?,
                        None => launcher,
                    };
                    start(launcher.command(side, program.as_os_str(), arguments), REDIS.program, directory)
                };
                let redis = RedisServer::start_at(stack, append_only, start)?;
                let loaded = LoadedRedis::new(redis, workload, size_bytes, 1)?;
                Ok(Box::new(loaded.with_log_limit(LOG_LIMIT_BYTES)))
            }
        }
    }
}

/// Processor time of the service per operation, µs.
const SERVICE: Metric = |sample| sample.service_cpu_us;
/// Processor time of the clients per operation, µs.
const CLIENT: Metric = |sample| sample.client_cpu_us;
/// Processor time of the program alone per operation, µs.
const PROGRAM: Metric = Sample::own_cpu_us;
/// Processor time of the log's keeper per operation, µs.
const KEEPER: Metric = |sample| sample.keeper_cpu_us;

fn render(comparisons: &[Comparison]) -> String {
    let extras = [
        median_column("program µs", PROGRAM),
        median_column("service µs", SERVICE),
        median_column("clients µs", CLIENT),
    ];
    format!(
        "{}{}{}\n\
         {LEGEND}plain: the kernel's TCP over a veth pair\n\
         net: large parts pass by reference between service and program\n\
         net, API copied: as net, but the API copies (uncopy net --api-copies make)\n\
         net, all copied: the API and the program copy, with libc's heap\n\
         net, heap only: as all copied, with uncopy's heap\n",
        gains_table(comparisons),
        figures::table(comparisons, &extras),
        figures::counts_table(comparisons)
    )
}

/// Renders the figures of both stacks: the bars of Figure 13, relative to the first of `sides`, and their details.
fn render_stacks(comparisons: &[Comparison], sides: &[Side]) -> String {
    const BARS: [&str; 5] = ["rate: kernel", "heap only", "Redis elides", "and API", "and log"];
    let (base, last) = (sides[0], sides[sides.len() - 1]);
    let (bars, legend) = if last.logs_only() {
        (
            bars_table(comparisons, sides),
            "net, only copy: as without --log, with a log in memory that has the only copy of what is written \
             (uncopy run --log-mode only --log-emulate-dax), which does not survive power loss\n\
             received there: the service receives into memory that the log refers to (uncopy net --memory-dir)",
        )
    } else {
        let shown = std::iter::once(&Side::Plain).chain(&sides[1..]);
        let bars = std::iter::zip(BARS, shown).map(|(bar, side)| (bar, *side, base, RATE));
        let columns: Vec<RatioColumn> = bars.chain([("CPU, and log", last, base, CPU)]).collect();
        (
            figures::ratios_table("over all copied", comparisons, &columns).render() + "\n",
            "net: as without --log\nnet, log: with synced data in a log (uncopy run --log)",
        )
    };
    let written: Metric = |sample| sample.counts.written_bytes;
    let extras = [
        median_column("program µs", PROGRAM),
        median_column("service µs", SERVICE),
        median_column("keeper µs", KEEPER),
        median_column("clients µs", CLIENT),
        median_column("p50 µs", P50),
        median_column("written/op", written),
    ];
    format!(
        "{bars}{}{}\n\
         {LEGEND}plain: the kernel's TCP over a veth pair, and its file system\n\
         {legend}\n\
         CPU is the sum over Redis, the service and the log's keeper.\n",
        figures::table(comparisons, &extras),
        figures::counts_table(comparisons)
    )
}

/// Renders the gains by eliding on this stack.
fn gains_table(comparisons: &[Comparison]) -> String {
    const COLUMNS: [RatioColumn; 7] = [
        ("rate over all copied", Side::Net, Side::NetCopying, RATE),
        ("CPU over all copied", Side::Net, Side::NetCopying, CPU),
        ("rate over heap only", Side::Net, Side::NetHeapOnly, RATE),
        ("rate over API copied", Side::Net, Side::NetApiCopying, RATE),
        ("CPU over API copied", Side::Net, Side::NetApiCopying, CPU),
        ("rate over the kernel", Side::Net, Side::Plain, RATE),
        ("over the kernel, uncopy", Side::Net, Side::Uncopy, RATE),
    ];
    figures::ratios_table("net", comparisons, &COLUMNS).render() + "\n"
}

/// Plots the rate relative to the kernel's TCP.
fn plot(comparisons: &[Comparison]) -> Plot {
    Plot::over_plain("User-level TCP", "rate over the kernel's TCP", comparisons, RATE)
}
