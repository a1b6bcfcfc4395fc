//! Cost of uncopy where nothing can be gained: a short `memcpy`, a program that ends at once, small I/O of servers.

use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use uncopy_testbed::Package;
use uncopy_testbed::package::on_path;

use crate::apps::programs::Programs;
use crate::apps::redis::{REDIS, Values};
use crate::apps::{Case, Effort, Point, Scheme, memcached, nginx};
use crate::clients::records::Workload;
use crate::experiments::apps::measure;
use crate::kit::figures::P50;
use crate::kit::processes::process::{self, Output};
use crate::kit::{
    Align, CommonOptions, Comparison, Experiment, Failure, Interval, Launcher, Metric, Outcome, Plot,
    Progress, Random, Report, ReportEntry, Result, Rounds, Sample, Side, SlicingOptions, Table, While, claim,
    compare, count_parser, entry, figures, format_number, format_size, print, run_with_noise_reduction,
    size_parser,
};

/// Calls of memcpy in one sample, which take about a tenth of a second.
const CALLS: u64 = 50_000_000;
/// Calls of memcpy in one sample with `--quick`.
const QUICK_CALLS: u64 = 5_000_000;
/// Calls of memcpy before the measurement.
const WARM_UP_CALLS: u64 = 1_000_000;
/// Length of a short copy, bytes.
const SHORT_BYTES: usize = 64;
/// A short file that exists on every system.
const SHORT_FILE: &str = "/proc/version";
/// Time limit of a sample.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The figure compared by this experiment, µs.
const TIME: Metric = P50;

/// Sides of the comparison; the gain by the heap alone does not matter here.
const SIDES: [Side; 2] = [Side::Plain, Side::Uncopy];

/// A row of the table of `small`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Row {
    /// memcpy of 64 bytes
    Memcpy,
    /// The start of `true`
    Start,
    /// Start of `cat` with a short file
    Cat,
    /// Redis with values of 64 bytes
    Redis,
    /// memcached with values of 100 bytes
    Memcached,
    /// nginx with a file of 1 KiB
    Nginx,
}

/// Cases too small to gain: small I/O of packaged servers, a 64-byte memcpy, the start of a program
#[derive(Debug, Args)]
pub struct Small {
    /// Rows of the table to measure
    #[arg(
        long,
        value_name = "ROW,...",
        default_value = "memcpy,start,cat,redis,memcached,nginx",
        value_delimiter = ',',
        value_enum
    )]
    pub only: Vec<Row>,
    /// Number of starts of `true` and of `cat` on each side
    #[arg(long, value_name = "N", default_value = "200", default_value_if("quick", "true", "20"), value_parser = count_parser())]
    pub starts: usize,
    /// Number of connections to Redis
    #[arg(long, value_name = "N", default_value = "8", value_parser = count_parser())]
    pub clients: usize,
    #[command(flatten)]
    pub slicing: SlicingOptions,
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Experiment for Small {
    const ENTRIES: &'static [ReportEntry] = &[entry(
        "small",
        "Cases too small to gain",
        &[claim("zIO, §5.2.1", "SET of 8 KiB under the 16 KiB policy: 2 % slower.")],
        "small",
        "small --quick",
    )];
    const REPORT_POSITION: u8 = 90;

    fn run(&self) -> Result<Outcome> {
        run_with_noise_reduction(&self.common, |launcher, progress| {
            let (mut own, mut servers) = (Vec::new(), Vec::new());
            for row in &self.only {
                let mut server = |packages: &[Package], points: &[Point]| {
                    servers.extend(self.measure_server(launcher, packages, points, progress));
                };
                match row {
                    Row::Memcached => server(memcached::TCP.packages, &smallest(&memcached::TCP)),
                    Row::Nginx => server(nginx::STATIC.packages, &smallest(&nginx::STATIC)),
                    Row::Redis => {
                        let values = |workload| {
                            let (size_bytes, clients, append_only) = (SHORT_BYTES, self.clients, true);
                            Values { workload, size_bytes, clients, append_only }.point()
                        };
                        server(&[REDIS], &[Workload::Set, Workload::Get].map(values));
                    }
                    Row::Memcpy => own.push(self.measure_memcpy(launcher, progress)),
                    Row::Start => own.push(measure_start(launcher, "true", None, self.starts, progress)?),
                    Row::Cat => {
                        own.push(measure_start(launcher, "cat", Some(SHORT_FILE), self.starts, progress)?)
                    }
                }
            }
            let mut text = String::new();
            if !own.is_empty() {
                text = render(&own) + "\n";
            }
            if !servers.is_empty() {
                text += &format!("{}\n{}", figures::table(&servers, &[]), figures::LEGEND);
            }
            own.extend(servers);
            let plot = plot(&own);
            Ok(Report::new(own, text, plot))
        })
    }
}

impl Small {
    fn measure_memcpy(&self, launcher: &Launcher, progress: &mut Progress) -> Comparison {
        let calls = if self.common.quick { QUICK_CALLS } else { CALLS };
        let title = format!("memcpy of {}", format_size(SHORT_BYTES as u64));
        let mut short = Comparison::new(title, SHORT_BYTES as u64, &SIDES);
        Rounds::exactly(self.slicing.rounds).run_one(&mut short, progress, |side, _| {
            let arguments =
                ["memcpy-loop".to_owned(), format!("--size={SHORT_BYTES}"), format!("--calls={calls}")];
            let output = process::run(launcher.bench_command(side, &arguments), "memcpy-loop", TIMEOUT)?;
            let notes = notes(&output);
            let output = output.success("memcpy-loop")?;
            let ns = output.stdout.trim().parse::<f64>();
            let ns = ns.map_err(|_| {
                Failure::new(format!("unexpected output of memcpy-loop: {}", output.stdout.escape_debug()))
            })?;
            // The child compared the copy with its source.
            let verified_bytes = Some(SHORT_BYTES as u64);
            Ok(Sample { latency_p50_us: Some(ns / 1e3), verified_bytes, notes, ..Sample::default() })
        });
        short
    }

    /// Measures the rows of a server; skips them if the server is not installed.
    fn measure_server(
        &self,
        launcher: &Launcher,
        packages: &[Package],
        points: &[Point],
        progress: &mut Progress,
    ) -> Vec<Comparison> {
        let slices = self.slicing.slices(&[Side::Uncopy]);
        match Programs::find(packages) {
            Ok(programs) => {
                measure::measure_points(launcher, &programs, points, Scheme::Slices, &slices, progress)
            }
            Err(missing) => {
                let skipped = |point: &Point| {
                    let mut comparison = Comparison::new(&point.title, point.operation_bytes, &slices.sides);
                    comparison.skip(missing.to_string());
                    comparison
                };
                points.iter().map(skipped).collect()
            }
        }
    }
}

/// Returns the smallest point of a case.
fn smallest(case: &Case) -> Vec<Point> {
    (case.points)(Effort::Full).into_iter().take(1).collect()
}

/// Time calls of memcpy in this process
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct MemcpyLoop {
    /// Length of a copy, in bytes
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = size_parser())]
    pub size: usize,
    /// Number of copies to make
    #[arg(long, value_name = "N", default_value = "50000000")]
    pub calls: u64,
}

impl Experiment for MemcpyLoop {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        let ns_per_call = memcpy_loop(self.size, self.calls)?;
        print(&format!("{ns_per_call}\n")).map(|()| Outcome::Status(0))
    }
}

/// Times `calls` calls of the C library's `memcpy` through the dynamic symbol. Returns nanoseconds per call.
///
/// # Errors
/// [`Failure`] when the copy differs from its source.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn memcpy_loop(size_bytes: usize, calls: u64) -> Result<f64> {
    let source = Random::new(1).bytes(size_bytes);
    let mut target = vec![0; size_bytes];
    let mut copy = |calls: u64| {
        for _ in 0..calls {
            // SAFETY: memcpy(3) requires buffers of `size_bytes` that do not overlap: these are two vectors of that
            // length.
            unsafe {
                libc::memcpy(
                    black_box(target.as_mut_ptr().cast()),
                    black_box(source.as_ptr().cast()),
                    black_box(size_bytes),
                )
            };
        }
    };
    copy(WARM_UP_CALLS.min(calls));
    let begin = Instant::now();
    copy(calls);
    let elapsed = begin.elapsed();
    compare(&source, &target).map_err(|mismatch| Failure::new(format!("wrong copy: {mismatch}")))?;
    Ok(elapsed.as_nanos() as f64 / calls.max(1) as f64)
}

/// Compares the time of a program that ends at once, and checks its output if it prints a file.
///
/// # Errors
/// [`Failure`] when there is no such program.
fn measure_start(
    launcher: &Launcher,
    name: &str,
    file: Option<&str>,
    starts: usize,
    progress: &mut Progress,
) -> Result<Comparison> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = on_path(&path, name).ok_or_else(|| Failure::new(format!("{name} is not on PATH")))?;
    let expected =
        file.map_or(Ok(String::new()), |file| std::fs::read_to_string(file).doing("reading a short file"))?;
    let mut start = Comparison::new(format!("start of {name}"), 0, &SIDES);
    progress.report_round(start.title(), 0, 1, "both sides");
    for _ in 0..starts {
        start.run_round(|side| {
            let command: Command = launcher.command(side, program.as_os_str(), file.as_slice());
            let output = process::run(command, name, TIMEOUT)?;
            let notes = notes(&output);
            let output = output.success(name)?;
            if output.stdout != expected {
                return Err(Failure::new(format!(
                    "unexpected output of {name}: {}",
                    output.stdout.escape_debug()
                )));
            }
            let latency_p50_us = Some(output.elapsed.as_secs_f64() * 1e6);
            Ok(Sample { latency_p50_us, verified_bytes: Some(0), notes, ..Sample::default() })
        });
    }
    Ok(start)
}

/// Returns the lines that uncopy wrote to standard error.
fn notes(output: &Output) -> Vec<String> {
    output.stderr.lines().filter(|line| line.starts_with("uncopy: ")).take(2).map(str::to_owned).collect()
}

/// Renders the figures, a line for each comparison.
fn render(comparisons: &[Comparison]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("experiment", Left),
        ("plain", Right),
        ("uncopy", Right),
        ("unit", Left),
        ("more", Right),
        ("spread", Right),
    ]);
    for comparison in comparisons {
        // Copies take nanoseconds, program starts milliseconds.
        let (unit, scale) = if comparison.operation_bytes() > 0 { ("ns", 1e3) } else { ("ms", 1e-3) };
        let median = |side| comparison.figure(side, TIME).map_or(f64::NAN, |spread| spread.median * scale);
        let more = comparison.difference(Side::Uncopy, TIME);
        table.row(vec![
            comparison.title().to_owned(),
            format_number(median(Side::Plain)),
            format_number(median(Side::Uncopy)),
            unit.to_owned(),
            more.map_or_else(|| "-".to_owned(), |more| format_number(more.median * scale)),
            more.map_or_else(String::new, |more| {
                format!("{} to {}", format_number(more.low * scale), format_number(more.high * scale))
            }),
        ]);
    }
    table.render()
}

/// Plots each row's ratio to plain: of times for rows that are timed, of rates for servers.
fn plot(comparisons: &[Comparison]) -> Plot {
    let ratio = |comparison: &Comparison| {
        let rate = comparison.ratio(Side::Uncopy, |sample| sample.operations_per_s);
        // A row without a rate has a time, for which less is better: the inverse is plotted.
        rate.or_else(|| {
            let time = comparison.ratio(Side::Uncopy, TIME)?;
            Some(Interval { median: 1.0 / time.median, low: 1.0 / time.high, high: 1.0 / time.low })
        })
    };
    Plot::by_title("Small I/O", "speed over plain", comparisons, |row| {
        ratio(row).map(|ratio| (Side::Uncopy.name(), ratio)).into_iter().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_copies_and_takes_time() {
        assert!(memcpy_loop(64, 1000).expect("a right copy") > 0.0);
        assert!(memcpy_loop(0, 10).is_ok());
        assert!(memcpy_loop(1 << 20, 1).is_ok());
    }
}
