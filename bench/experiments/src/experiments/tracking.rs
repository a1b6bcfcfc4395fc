//! Cost of tracking a view (the last paragraph of zIO §5.2.1): copies of one page each, every one of which
//! replaces one of many live views, compared with copies that are not elided.
//!
//! The views refer to pages of one source in random order, so that hardly any neighbours can be merged.

use std::hint::black_box;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::kit::figures::{P50, P99, median};
use crate::kit::processes::signals::Requests;
use crate::kit::{
    Align, CommonOptions, Comparison, Criterion, Experiment, Failure, Latencies, Launcher, Metric, Outcome,
    Plot, Progress, Random, Report, ReportEntry, Result, Rounds, Sample, Side, Table, TemporaryDirectory,
    While, claim, compare, count_parser, entry, format_figure, format_number, print,
    run_with_noise_reduction, start_server,
};
use crate::servers::echo::server::{Buffer, PAGE_BYTES, shuffled};

/// Pages of the source of all copies.
const SOURCE_PAGES: usize = 256;
/// Pages of each block that copies write to.
const TARGET_PAGES: usize = 1024;
/// Copies between two readings of the clock.
const BATCH: usize = 64;
/// Maximum number of pages whose bytes are compared at the end.
const CHECKED_PAGES: usize = 1024;
/// Time per copy, µs.
const TIME: Metric = P50;

/// Sides of the comparison.
const SIDES: [Side; 2] = [Side::Plain, Side::Always];

fn views_parser() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1_000_000)
}

/// Cost of tracking: copies that replace one of many views (zIO, section 5.2.1)
#[derive(Debug, Args)]
pub struct Tracking {
    /// Numbers of live views
    #[arg(long, value_name = "N,N,...", default_value = "10,1000,100000", default_value_if("quick", "true", "10,1000"), value_delimiter = ',', value_parser = views_parser())]
    pub views: Vec<usize>,
    /// Number of copies timed in each measurement
    #[arg(long, value_name = "N", default_value = "100000", default_value_if("quick", "true", "10000"))]
    pub calls: u32,
    /// Number of rounds; each runs every side once
    #[arg(long, value_name = "N", default_value = "7", default_value_if("quick", "true", "3"), value_parser = count_parser())]
    pub rounds: usize,
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Experiment for Tracking {
    const ENTRIES: &'static [ReportEntry] = &[ReportEntry {
        criterion: Criterion::NotJudged,
        ..entry(
            "tracking",
            "Cost of tracking a copy",
            &[claim(
                "zIO, §5.2.1",
                "190 ns for a lookup and an insertion in the skiplist of at most 640 entries; the skiplist \
                 alone.",
            )],
            "tracking --rounds 5",
            "tracking --quick",
        )
    }];
    const REPORT_POSITION: u8 = 70;

    fn run(&self) -> Result<Outcome> {
        run_with_noise_reduction(&self.common, |launcher, progress| {
            Ok(Report::of(self.measure(launcher, progress), render, plot))
        })
    }
}

/// Time copies that replace views in this process
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct ViewLoop {
    /// Number of live views
    #[arg(long, value_name = "N", value_parser = views_parser())]
    pub views: usize,
    /// Number of copies timed
    #[arg(long, value_name = "N")]
    pub calls: u32,
}

impl Experiment for ViewLoop {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        view_loop(self.views, u64::from(self.calls)).map(|()| Outcome::Status(0))
    }
}

impl Tracking {
    /// Makes a comparison for each number of views.
    #[expect(clippy::cast_precision_loss, reason = "numbers of views")]
    fn measure(&self, launcher: &Launcher, progress: &mut Progress) -> Vec<Comparison> {
        let comparison = |views: &usize| {
            let title = format!("copy of 4 KiB, {views} views");
            let mut comparison =
                Comparison::new(&title, PAGE_BYTES as u64, &SIDES).with_parameter("views", *views as f64);
            Rounds::exactly(self.rounds).run_one(&mut comparison, progress, |side, _| {
                sample(launcher, side, *views, u64::from(self.calls))
            });
            comparison
        };
        self.views.iter().map(comparison).collect()
    }
}

/// Result of one run, printed as a line of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Times {
    p50_ns: f64,
    p99_ns: f64,
    verified_bytes: u64,
}

/// The hidden program: copies `views` pages, replaces them `calls` times, prints the times, and waits for a signal.
///
/// # Errors
/// [`Failure`] when memory cannot be allocated or a copy is wrong.
pub fn view_loop(views: usize, calls: u64) -> Result<()> {
    let requests = Requests::install().doing("installing signal handlers")?;
    let times = time_copies(views, calls)?;
    print(&format!("{}\n", json!(times)))?;
    requests.wait(None).map(drop).doing("waiting for a signal")
}

fn time_copies(views: usize, calls: u64) -> Result<Times> {
    let bytes = Random::new(5).bytes(SOURCE_PAGES * PAGE_BYTES);
    let source = Buffer::aligned(bytes.len()).doing("allocating the source")?;
    receive(&source, &bytes)?;
    let targets = views.div_ceil(TARGET_PAGES);
    let targets =
        (0..targets).map(|_| Buffer::aligned(TARGET_PAGES * PAGE_BYTES)).collect::<io::Result<Vec<_>>>();
    let targets = targets.doing("allocating the targets")?;
    // Index of the source page that each page holds.
    let mut source_pages = vec![0usize; views];
    let mut copied = 0usize;
    let mut copy = |source_pages: &mut Vec<usize>| {
        let page = shuffled(copied % views, 1, views);
        // The index differs from the page's previous one, and from the successor of its neighbour's.
        source_pages[page] = (copied.wrapping_mul(37) + page * 7) % SOURCE_PAGES;
        copied += 1;
        let (target, within) = (&targets[page / TARGET_PAGES], page % TARGET_PAGES * PAGE_BYTES);
        // SAFETY: memcpy(3) requires two pages that do not overlap: they lie in separate blocks, as
        // `source_pages[page]` is below SOURCE_PAGES and `within` below TARGET_PAGES pages. The source is initialised.
        unsafe {
            libc::memcpy(
                black_box(target.start().byte_add(within)),
                black_box(source.start().byte_add(source_pages[page] * PAGE_BYTES)),
                black_box(PAGE_BYTES),
            )
        };
    };
    for _ in 0..views {
        copy(&mut source_pages);
    }
    let mut times = Latencies::default();
    for _ in 0..calls.div_ceil(BATCH as u64).max(1) {
        let begin = Instant::now();
        for _ in 0..BATCH {
            copy(&mut source_pages);
        }
        times.record(begin.elapsed());
    }
    #[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
    let ns = |part| times.quantile_us(part).map_or(f64::NAN, |us| us * 1e3 / BATCH as f64);
    let mut verified_bytes = 0;
    for page in (0..views).step_by(views.div_ceil(CHECKED_PAGES).max(1)) {
        let (target, within) = (&targets[page / TARGET_PAGES], page % TARGET_PAGES * PAGE_BYTES);
        let begin = target.start().cast::<u8>();
        // SAFETY: the page lies inside its target, as `within` is below TARGET_PAGES pages, and is initialised,
        // because every page was copied to at least once.
        let found = unsafe { std::slice::from_raw_parts(begin.byte_add(within), PAGE_BYTES) };
        let expected = &bytes[source_pages[page] * PAGE_BYTES..][..PAGE_BYTES];
        compare(expected, found)
            .map_err(|mismatch| Failure::new(format!("wrong copy in page {page}: {mismatch}")))?;
        verified_bytes += PAGE_BYTES as u64;
    }
    Ok(Times { p50_ns: ns(0.5), p99_ns: ns(0.99), verified_bytes })
}

/// Reads `bytes` into `buffer` from a file, by one call.
fn receive(buffer: &Buffer, bytes: &[u8]) -> Result<()> {
    let file = memfd_create("source", MemfdFlags::CLOEXEC).doing("making a file")?;
    // SAFETY: pwrite(2) only reads `bytes.len()` bytes of `bytes`, which is borrowed during the call.
    let written = unsafe { libc::pwrite(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    // SAFETY: read(2) writes at most `bytes.len()` bytes; the caller allocated `buffer` with that length, and
    // no reference to its contents exists.
    let got = unsafe { libc::read(file.as_raw_fd(), buffer.start(), bytes.len()) };
    let is_complete = [written, got].iter().all(|count| usize::try_from(*count) == Ok(bytes.len()));
    if is_complete { Ok(()) } else { Err(io::Error::last_os_error()).doing("reading the source") }
}

fn sample(launcher: &Launcher, side: Side, views: usize, calls: u64) -> Result<Sample> {
    let arguments = ["view-loop".to_owned(), format!("--views={views}"), format!("--calls={calls}")];
    let directory = TemporaryDirectory::make()?;
    let mut server = start_server(launcher.bench_command(side, &arguments), "view-loop", directory)?;
    let line = server.first_line()?;
    let times: Times = serde_json::from_str(&line)
        .map_err(|_| Failure::new(format!("unexpected output of view-loop: \"{}\"", line.escape_debug())))?;
    let pid = server.process().pid();
    let (mut notes, activity) = launcher.inspect(side, pid, &server.stderr_text(), true);
    if let Some(activity) = activity.filter(|activity| activity.views_peak < views as u64 / 10 * 9) {
        notes.push(format!("only {} views were alive", activity.views_peak));
    }
    let defect = server.process().stop().err().map(|failure| failure.to_string());
    Ok(Sample {
        latency_p50_us: Some(times.p50_ns / 1e3),
        latency_p99_us: Some(times.p99_ns / 1e3),
        verified_bytes: Some(times.verified_bytes),
        notes,
        defect,
        ..Sample::default()
    })
}

/// Renders the figures, a line for each number of views.
fn render(comparisons: &[Comparison]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("experiment", Left),
        ("copied, ns", Right),
        ("p99", Right),
        ("tracked, ns", Right),
        ("p99", Right),
        ("spread", Right),
    ]);
    for comparison in comparisons {
        let ns = |side, metric| format_figure(median(comparison, side, metric).map(|us| us * 1e3));
        let spread = comparison.figure(Side::Always, TIME).map(|spread| spread.scaled(1e3));
        table.row(vec![
            comparison.title().to_owned(),
            ns(Side::Plain, TIME),
            ns(Side::Plain, P99),
            ns(Side::Always, TIME),
            ns(Side::Always, P99),
            spread.map_or_else(String::new, |spread| {
                format!("{}–{}", format_number(spread.low), format_number(spread.high))
            }),
        ]);
    }
    format!(
        "{}\n\
         copied: memcpy under plain; tracked: a copy that replaces a view, with lookup, drop, insert and \
         locks\n\
         times: medians and p99 over batches of {BATCH} copies; spread: of tracked, over the rounds\n",
        table.render()
    )
}

/// Plots the time per copy over the number of views.
fn plot(comparisons: &[Comparison]) -> Plot {
    Plot::by_title("A copy that replaces a view", "ns per copy", comparisons, |one| {
        let ns = |side: &Side| Some((side.name(), one.figure(*side, TIME)?.scaled(1e3)));
        one.sides().iter().filter_map(ns).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_timed_and_verified() {
        for views in [1, 3, 2000] {
            let times = time_copies(views, 100).expect("right copies");
            assert!(times.p50_ns > 0.0 && times.p99_ns >= times.p50_ns, "{times:?}");
            assert!(times.verified_bytes >= PAGE_BYTES as u64, "{times:?}");
        }
    }
}
