//! What uncopy costs where it has nothing to gain: a short `memcpy`, and the start of a program
//! that ends at once. And small I/O of servers.

use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::apps::programs::{Need, Programs};
use crate::apps::redis::{REDIS, Values};
use crate::apps::{By, Case, Effort, Point, memcached, nginx};
use crate::clients::records::Workload;
use crate::experiments::apps::measure;
use crate::kit::processes::process::{self, Output};
use crate::kit::{
    Align, Comparison, Entry, Experiment, Failure, Form, Interval, Launcher, Metric, Outcome, Plot, Progress,
    Random, Report, Result, Rounds, Sample, Scale, Series, Side, Slicing, Table, While, claim, compare,
    count_parser, entry, figures, measured, number, print, size, size_parser,
};
use crate::servers::redis::on_path;

/// Calls of memcpy in one sample: about a tenth of a second.
const CALLS: u64 = 50_000_000;
/// Calls in one sample where a rough figure will do.
const QUICK_CALLS: u64 = 5_000_000;
/// Calls before the measurement.
const WARM_UP_CALLS: u64 = 1_000_000;
/// Length of a short copy, bytes.
const SHORT_BYTES: usize = 64;
/// A file that each system has.
const SHORT_FILE: &str = "/proc/version";
/// How long a sample may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The figure that this experiment compares, µs.
const TIME: Metric = |sample| sample.latency_p50_us;

/// The sides: what the heap alone gives is of no interest here.
const SIDES: [Side; 2] = [Side::Plain, Side::Uncopy];

/// A row of `small`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Row {
    /// A memcpy of 64 bytes
    Memcpy,
    /// The start of `true`
    Start,
    /// `cat` of a short file
    Cat,
    /// Redis with values of 64 bytes
    Redis,
    /// memcached with values of 100 bytes
    Memcached,
    /// nginx with a file of 1 KiB
    Nginx,
}

/// Small I/O of packaged servers, a 64-byte memcpy, the start of a program
#[derive(Debug, Args)]
pub struct Small {
    /// What is measured
    #[arg(
        long,
        value_name = "ROW,...",
        default_value = "memcpy,start,cat,redis,memcached,nginx",
        value_delimiter = ',',
        value_enum
    )]
    pub only: Vec<Row>,
    /// Starts of `true` and of `cat` under each side
    #[arg(long, value_name = "N", default_value = "200", default_value_if("quick", "true", "20"), value_parser = count_parser())]
    pub starts: usize,
    /// Connections to Redis
    #[arg(long, value_name = "N", default_value = "8", value_parser = count_parser())]
    pub clients: usize,
    #[command(flatten)]
    pub slicing: Slicing,
    #[command(flatten)]
    pub form: Form,
}

impl Experiment for Small {
    const ENTRIES: &'static [Entry] = &[entry(
        "small",
        "Where there is nothing to gain",
        &[claim("zIO, §5.2.1", "SET of 8 KiB under the 16 KiB policy: 2 % slower.")],
        "small",
        "small --quick",
    )];
    const PLACE: u8 = 90;

    fn run(&self) -> Result<Outcome> {
        measured(&self.form, |launcher, progress| {
            let (mut own, mut servers) = (Vec::new(), Vec::new());
            for row in &self.only {
                let mut server = |needs: &[Need], points: &[Point]| {
                    servers.extend(self.measure_server(launcher, needs, points, progress));
                };
                match row {
                    Row::Memcached => server(memcached::TCP.needs, &smallest(&memcached::TCP)),
                    Row::Nginx => server(nginx::STATIC.needs, &smallest(&nginx::STATIC)),
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
    /// Compares the short copy.
    fn measure_memcpy(&self, launcher: &Launcher, progress: &mut Progress) -> Comparison {
        let calls = if self.form.quick { QUICK_CALLS } else { CALLS };
        let title = format!("memcpy of {}", size(SHORT_BYTES as u64));
        let mut short = Comparison::new(title, SHORT_BYTES as u64, &SIDES);
        Rounds::exactly(self.slicing.rounds).run_one(&mut short, progress, |side, _| {
            let arguments =
                ["memcpy-loop".to_owned(), format!("--size={SHORT_BYTES}"), format!("--calls={calls}")];
            let output = process::run(launcher.bench(side, &arguments), "memcpy-loop", TIMEOUT)?;
            let notes = notes(&output);
            let output = output.success("memcpy-loop")?;
            let ns = parse_memcpy_line(&output.stdout)
                .ok_or_else(|| Failure::new(format!("memcpy-loop wrote {}", output.stdout.escape_debug())))?;
            // The child compared the copy with its source.
            let verified_bytes = Some(SHORT_BYTES as u64);
            Ok(Sample { latency_p50_us: Some(ns / 1e3), verified_bytes, notes, ..Sample::default() })
        });
        short
    }

    /// The rows of a server; left out where it is not installed.
    fn measure_server(
        &self,
        launcher: &Launcher,
        needs: &[Need],
        points: &[Point],
        progress: &mut Progress,
    ) -> Vec<Comparison> {
        let slices = self.slicing.slices(&[Side::Uncopy]);
        match Programs::find(needs) {
            Ok(programs) => measure::points(launcher, &programs, points, By::Slices, &slices, progress),
            Err(missing) => {
                let left_out = |point: &Point| {
                    let mut comparison = Comparison::new(&point.title, point.operation_bytes, &slices.sides);
                    comparison.skip(missing.to_string());
                    comparison
                };
                points.iter().map(left_out).collect()
            }
        }
    }
}

/// The smallest of the points of a case.
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
    /// Copies
    #[arg(long, value_name = "N", default_value = "50000000")]
    pub calls: u64,
}

impl Experiment for MemcpyLoop {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        let ns_per_call = memcpy_loop(self.size, self.calls)?;
        print(&memcpy_line(ns_per_call)).map(|()| Outcome::Status(0))
    }
}

/// Times `calls` calls of the C library's `memcpy` of `size_bytes`, through the dynamic symbol:
/// ns per call.
///
/// # Errors
/// [`Failure`] when the copy differs from its source.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn memcpy_loop(size_bytes: usize, calls: u64) -> Result<f64> {
    let source = Random::new(1).bytes(size_bytes);
    let mut target = vec![0; size_bytes];
    let mut copy = |calls: u64| {
        for _ in 0..calls {
            // SAFETY: both are separate vectors of size_bytes.
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

/// The line in which a child tells the result of [`memcpy_loop`].
#[must_use]
fn memcpy_line(ns_per_call: f64) -> String {
    format!("memcpy {ns_per_call:.4} ns\n")
}

fn parse_memcpy_line(line: &str) -> Option<f64> {
    let ns: f64 = line.trim().strip_prefix("memcpy ")?.strip_suffix(" ns")?.parse().ok()?;
    (ns.is_finite() && ns > 0.0).then_some(ns)
}

/// Compares the start of a program that ends at once, with the file that it prints, if it prints one.
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
    progress.tell(start.title(), 0, 1, "both sides");
    for _ in 0..starts {
        start.round(|side| {
            let command: Command = launcher.command(side, program.as_os_str(), file.as_slice());
            let output = process::run(command, name, TIMEOUT)?;
            let notes = notes(&output);
            let output = output.success(name)?;
            if output.stdout != expected {
                return Err(Failure::new(format!("{name} wrote {}", output.stdout.escape_debug())));
            }
            let latency_p50_us = Some(output.elapsed.as_secs_f64() * 1e6);
            Ok(Sample { latency_p50_us, verified_bytes: Some(0), notes, ..Sample::default() })
        });
    }
    Ok(start)
}

/// What uncopy said.
fn notes(output: &Output) -> Vec<String> {
    output.stderr.lines().filter(|line| line.starts_with("uncopy: ")).take(2).map(str::to_owned).collect()
}

/// The figures, a line for each comparison.
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
        // Short copies take nanoseconds, starts milliseconds.
        let (unit, scale) = if comparison.operation_bytes() > 0 { ("ns", 1e3) } else { ("ms", 1e-3) };
        let median = |side| comparison.figure(side, TIME).map_or(f64::NAN, |spread| spread.median * scale);
        let more = comparison.difference(Side::Uncopy, TIME);
        table.row(vec![
            comparison.title().to_owned(),
            number(median(Side::Plain)),
            number(median(Side::Uncopy)),
            unit.to_owned(),
            more.map_or_else(|| "-".to_owned(), |more| number(more.median * scale)),
            more.map_or_else(String::new, |more| {
                format!("{} to {}", number(more.low * scale), number(more.high * scale))
            }),
        ]);
    }
    table.render()
}

/// The ratio of each row to plain: of times for what is timed, of rates for servers.
#[expect(clippy::cast_precision_loss, reason = "few rows")]
fn plot(comparisons: &[Comparison]) -> Plot {
    let ratio = |comparison: &Comparison| {
        let rate = comparison.ratio(Side::Uncopy, |sample| sample.operations_per_s);
        // A row without a rate has a time: less is better, so it is drawn upside down.
        rate.or_else(|| {
            let time = comparison.ratio(Side::Uncopy, TIME)?;
            Some(Interval { median: 1.0 / time.median, low: 1.0 / time.high, high: 1.0 / time.low })
        })
    };
    let points = comparisons.iter().enumerate().filter_map(|(at, row)| Some((at as f64, ratio(row)?)));
    Plot {
        title: "Small I/O".to_owned(),
        x: (
            String::new(),
            Scale::Words(comparisons.iter().map(|comparison| comparison.title().to_owned()).collect()),
        ),
        y: "speed over plain".to_owned(),
        series: vec![Series { name: Side::Uncopy.name().to_owned(), points: points.collect() }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_child_writes_is_what_the_parent_reads() {
        let ns = parse_memcpy_line(&memcpy_line(1.25)).expect("a figure");
        assert!((ns - 1.25).abs() < 1e-9);
        for line in ["", "memcpy", "memcpy  ns", "memcpy -1 ns", "memcpy NaN ns", "memcpy inf ns"] {
            assert_eq!(parse_memcpy_line(line), None, "{line}");
        }
    }

    #[test]
    fn the_loop_copies_and_takes_time() {
        assert!(memcpy_loop(64, 1000).expect("a right copy") > 0.0);
        assert!(memcpy_loop(0, 10).is_ok());
        assert!(memcpy_loop(1 << 20, 1).is_ok());
    }
}
