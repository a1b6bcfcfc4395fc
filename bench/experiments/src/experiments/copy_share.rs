//! Share of processor time that servers spend in copies, as zIO's Figure 1 shows it for Redis. `uncopy profile --pid`
//! samples each server from outside while clients load it: nothing is preloaded, and nothing is elided.
//!
//! ```text
//! server (plain) ◄── load ── this program
//!     ▲
//!     └── samples of the processor's clock ── uncopy profile --pid PID… --json
//! ```

use std::fs::File;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::{Value, json};

use crate::apps::programs::Programs;
use crate::apps::redis::Values;
use crate::apps::{CASES, Case, Effort, Point};
use crate::clients::records::Workload;
use crate::experiments::apps::measure::start;
use crate::kit::processes::descendants;
use crate::kit::slices::stop_server;
use crate::kit::{
    Align, CommonOptions, Comparison, Experiment, Failure, Interval, Launcher, Outcome, Plot, Process,
    Progress, Report, ReportEntry, Result, RunningServer, Scale, Side, Table, TemporaryDirectory, While,
    claim, entry, run_without_noise_reduction, seconds, size_parser,
};

/// Cases measured by default.
const DEFAULT_CASES: &str = "redis-set,nginx-static,nginx-proxied,icecast-file,postgresql-copy";
/// Case whose points are those of `--sizes`.
const REDIS: &str = "redis-set";
/// Connections of Redis's clients.
const CONNECTIONS: usize = 4;
/// Time that the profiler may take beyond its samples, to start and to look up names.
const PROFILER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time of load beyond the samples, while the profiler starts.
const START_TIME: Duration = Duration::from_millis(500);
/// Duration of the load before the samples.
const WARM_UP: Duration = Duration::from_secs(1);
/// Standard errors in half of a 95 % interval.
const STANDARD_ERRORS: f64 = 1.96;

fn case_parser() -> PossibleValuesParser {
    CASES.iter().map(|case| case.name).collect::<Vec<_>>().into()
}

/// Share of processor time in copies: Redis, nginx, Icecast, PostgreSQL (zIO, Figure 1)
#[derive(Debug, Args)]
pub struct CopyShare {
    /// Cases to measure, as `apps --list` names them [default: redis-set, nginx-static, nginx-proxied, icecast-file,
    /// postgresql-copy]
    #[arg(value_name = "NAME", default_value = DEFAULT_CASES, hide_default_value = true, value_delimiter = ',', value_parser = case_parser())]
    pub names: Vec<String>,
    /// Value sizes of redis-set, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "4096,16384,65536,262144,524288,1048576",
        default_value_if("quick", "true", "65536,524288"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Duration of the samples of each server
    #[arg(long, value_name = "SECONDS", default_value = "10", default_value_if("quick", "true", "2"), value_parser = seconds)]
    pub seconds: Duration,
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Experiment for CopyShare {
    const ENTRIES: &'static [ReportEntry] = &[entry(
        "copy-share",
        "Processor time in copies",
        &[claim(
            "zIO, Figure 1 (§2)",
            "Redis SET: 39 % of the cycles in copies at 64 KiB, 60 % at 512 KiB, with kernel bypass.",
        )],
        "copy-share",
        "copy-share redis-set --quick",
    )
    .not_judged()];
    const REPORT_POSITION: u8 = 10;

    fn run(&self) -> Result<Outcome> {
        run_without_noise_reduction(&self.common, |launcher, progress| Ok(self.measure(launcher, progress)))
    }
}

/// Fractions of a server's processor time.
#[derive(Clone, Debug, PartialEq)]
struct Shares {
    samples: u64,
    /// Copies in the program: memcpy, memmove and their kind.
    program: f64,
    /// Copies by the kernel, to the program.
    kernel_in: f64,
    /// Copies by the kernel, from the program.
    kernel_out: f64,
    /// Zeroing and page faults.
    pages: f64,
    /// Verdict of `uncopy profile`.
    verdict: String,
    /// Limits of these figures, each a sentence part.
    notes: Vec<String>,
}

/// One line of the table: a server under one load.
#[derive(Clone, Debug)]
struct Row {
    case: &'static str,
    title: String,
    size_bytes: u64,
    shares: Shares,
}

impl CopyShare {
    fn points(&self, case: &Case) -> Vec<Point> {
        if case.name == REDIS {
            let values = |size_bytes: &usize| Values {
                workload: Workload::Set,
                size_bytes: *size_bytes,
                clients: CONNECTIONS,
                append_only: true,
            };
            return self.sizes.iter().map(|size_bytes| values(size_bytes).point()).collect();
        }
        (case.points)(if self.common.quick { Effort::Quick } else { Effort::Full })
    }

    fn measure(&self, launcher: &Launcher, progress: &mut Progress) -> Report {
        let find = |name: &String| CASES.iter().find(|case| case.name == name);
        let cases: Vec<(&Case, Vec<Point>)> =
            self.names.iter().filter_map(find).map(|case| (case, self.points(case))).collect();
        let total: usize = cases.iter().map(|(_, points)| points.len()).sum();
        let (mut rows, mut obstacles, mut versions) = (Vec::new(), Vec::new(), Vec::new());
        let mut number = 0;
        for (case, points) in &cases {
            let programs = match Programs::find(case.packages) {
                Ok(programs) => programs,
                Err(missing) => {
                    number += points.len();
                    let mut left_out = Comparison::new(case.name, 0, &[Side::Plain]);
                    left_out.skip(missing.to_string());
                    obstacles.push(left_out);
                    continue;
                }
            };
            for point in points {
                progress.report_round(&point.title, number, total, "samples");
                number += 1;
                match self.sample(launcher, &programs, point) {
                    Ok(shares) => rows.push(Row {
                        case: case.name,
                        title: point.title.clone(),
                        size_bytes: point.operation_bytes,
                        shares,
                    }),
                    Err(failure) => {
                        let mut failed = point.comparison(&[Side::Plain]);
                        failed.fail(&failure);
                        obstacles.push(failed);
                    }
                }
            }
            versions.extend(
                programs
                    .versions
                    .into_iter()
                    .filter(|version| !versions.contains(version))
                    .collect::<Vec<_>>(),
            );
        }
        let findings = vec![("copy_share", rows.iter().map(Row::to_json).collect())];
        Report { findings, versions, ..Report::new(obstacles, render(&rows), plot(&rows)) }
    }

    /// Starts a server for `point`, loads it, and samples its processes.
    fn sample(&self, launcher: &Launcher, programs: &Programs, point: &Point) -> Result<Shares> {
        let mut running = start(launcher, Side::Plain, programs, point)?;
        let sampled = sample_loaded(launcher, running.as_mut(), self.seconds);
        let shares = sampled.map_err(|failure| running.server().process().explain(&failure))?;
        stop_server(running.as_mut())?;
        Ok(shares)
    }
}

/// Loads a server while `uncopy profile` samples it.
fn sample_loaded(
    launcher: &Launcher,
    running: &mut (dyn RunningServer + '_),
    duration: Duration,
) -> Result<Shares> {
    const TITLE: &str = "uncopy profile";
    running.warm_up(WARM_UP)?;
    let directory = TemporaryDirectory::make()?;
    let file = directory.join("profile.json");
    let pids = descendants::of(running.server().pid());
    let mut command = launcher.sampling_command(&pids, duration);
    command.stdout(File::create(&file).doing("creating the profile")?);
    let errors = directory.join("errors");
    command.stderr(File::create(&errors).doing("creating a file for messages")?);
    let mut profiler = Process::start(command, TITLE)?;
    let load = running.load(duration + START_TIME)?;
    let Some(status) = profiler.wait(PROFILER_TIMEOUT)? else {
        return Err(Failure::new(format!("{TITLE} did not end in {PROFILER_TIMEOUT:?}")));
    };
    if !status.success() {
        let errors = std::fs::read_to_string(&errors).unwrap_or_default();
        return Err(Failure::new(format!("{TITLE} ended with {status}: {}", errors.trim())));
    }
    if load.verified_bytes + running.verify()? == 0 {
        return Err(Failure::new("no answer of the server was verified"));
    }
    let text = std::fs::read_to_string(&file).doing("reading the profile")?;
    let report = serde_json::from_str(&text)
        .map_err(|error| Failure::new(format!("{TITLE} printed no JSON: {error}")))?;
    Shares::parse(&report)
}

impl Shares {
    /// Reads the sums of all processes in the JSON of `uncopy profile --pid`.
    fn parse(report: &Value) -> Result<Self> {
        let total = &report["total"];
        let lacks = |name: &str| Failure::new(format!("the JSON of uncopy profile lacks {name}"));
        let share = |name: &str| total["shares"][name].as_f64().ok_or_else(|| lacks(name));
        let notes = report["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let shares = Self {
            samples: total["samples"].as_u64().ok_or_else(|| lacks("samples"))?,
            program: share("copy")?,
            kernel_in: share("kernel_copy_in")?,
            kernel_out: share("kernel_copy_out")?,
            pages: share("zeroing")? + share("page_fault")?,
            verdict: total["verdict"].as_str().ok_or_else(|| lacks("verdict"))?.to_owned(),
            notes: notes.map(str::to_owned).collect(),
        };
        if shares.samples == 0 {
            return Err(Failure::new("uncopy profile took no samples of the server"));
        }
        Ok(shares)
    }

    /// Returns the fraction of the time in copies.
    fn copies(&self) -> f64 {
        self.program + self.kernel_in + self.kernel_out
    }

    /// Returns half of the 95 % interval around [`Shares::copies`]: the error by the number of samples.
    #[expect(clippy::cast_precision_loss, reason = "fewer samples than 2^53")]
    fn half_width(&self) -> f64 {
        let share = self.copies();
        STANDARD_ERRORS * (share * (1.0 - share) / self.samples as f64).sqrt()
    }
}

impl Row {
    /// Returns what zIO's section 2.3 says about this line of Figure 1, which is about SET to Redis. The paper has
    /// other lengths in the figure only.
    fn paper(&self) -> Option<&'static str> {
        match (self.case, self.size_bytes) {
            (REDIS, 0x1_0000) => Some("39 % on Linux, up to 52 % with kernel bypass"),
            (REDIS, 0x8_0000) => Some("60 %"),
            _ => None,
        }
    }

    fn to_json(&self) -> Value {
        let shares = &self.shares;
        json!({
            "case": self.case,
            "title": self.title,
            "size_bytes": self.size_bytes,
            "samples": shares.samples,
            "copy_share": shares.copies(),
            "half_width": shares.half_width(),
            "program": shares.program,
            "kernel_in": shares.kernel_in,
            "kernel_out": shares.kernel_out,
            "pages": shares.pages,
            "verdict": shares.verdict,
            "paper": self.paper(),
            "notes": shares.notes,
        })
    }
}

/// Plots the shares of each case by the length of its operations.
#[expect(clippy::cast_precision_loss, reason = "lengths of bodies and values")]
fn plot(rows: &[Row]) -> Plot {
    let point = |row: &Row| {
        let (share, half) = (row.shares.copies(), row.shares.half_width());
        let interval = Interval { median: share, low: (share - half).max(0.0), high: share + half };
        (row.case.to_owned(), row.size_bytes as f64, interval)
    };
    Plot::of(
        "Share of processor time in copies",
        ("bytes of an operation", Scale::Doubling),
        "share of the server's processor time",
        rows.iter().map(point),
    )
}

fn render(rows: &[Row]) -> String {
    let columns = [
        ("server and load", Align::Left),
        ("copies", Align::Right),
        ("±", Align::Right),
        ("in program", Align::Right),
        ("kernel in", Align::Right),
        ("kernel out", Align::Right),
        ("zeroing, faults", Align::Right),
        ("samples", Align::Right),
        ("verdict", Align::Left),
        ("zIO, Figure 1", Align::Left),
    ];
    let mut table = Table::new(&columns);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    for row in rows {
        let shares = &row.shares;
        let of = [
            shares.copies(),
            shares.half_width(),
            shares.program,
            shares.kernel_in,
            shares.kernel_out,
            shares.pages,
        ];
        let cells = std::iter::once(row.title.clone()).chain(of.map(percent));
        let paper = row.paper().unwrap_or("-").to_owned();
        table.row(cells.chain([shares.samples.to_string(), shares.verdict.clone(), paper]).collect());
    }
    let mut text = table.render();
    text += "copies: share of the server's processor time, in program, kernel in and kernel out together; ±: 95 % interval by\n\
             the number of samples. kernel in: to the program (read, recv); kernel out: from it (write, send).\n\
             zIO's Figure 1 is SET to Redis with an append-only file, by perf; for other servers the paper has no share.\n";
    let mut notes: Vec<&String> = rows.iter().flat_map(|row| &row.shares.notes).collect();
    notes.sort();
    notes.dedup();
    for note in notes {
        text += &format!("note: {note}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(samples: u64) -> Value {
        json!({
            "notes": ["a note"],
            "total": { "samples": samples, "shares": {
                "copy": 0.25, "kernel_copy_in": 0.1, "kernel_copy_out": 0.05, "zeroing": 0.02, "page_fault": 0.01,
                "other": 0.57,
            }, "verdict": "worth trying" },
        })
    }

    #[test]
    fn shares_are_read_and_summed() {
        let shares = Shares::parse(&report(2400)).expect("a report");
        assert!((shares.copies() - 0.4).abs() < 1e-9 && (shares.pages - 0.03).abs() < 1e-9, "{shares:?}");
        // 1.96 · √(0.4 · 0.6 / 2400)
        assert!((shares.half_width() - 0.0196).abs() < 1e-9, "{}", shares.half_width());
        assert!(Shares::parse(&report(0)).expect_err("nothing").to_string().contains("no samples"));
        let mut other = report(1);
        other["total"]["shares"]["kernel_copy_in"] = Value::Null;
        assert!(Shares::parse(&other).expect_err("another").to_string().ends_with("lacks kernel_copy_in"));
    }

    #[test]
    fn the_table_has_the_papers_figures_beside_redis_only() {
        let shares = Shares::parse(&report(2400)).expect("a report");
        let row = |case, title: &str, size_bytes| Row {
            case,
            title: title.to_owned(),
            size_bytes,
            shares: shares.clone(),
        };
        let rows = [row(REDIS, "redis 64 KiB", 64 << 10), row("nginx-static", "nginx 64 KiB", 64 << 10)];
        let text = render(&rows);
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).expect("a line").to_owned();
        assert!(
            line("redis").contains("40.0 %  2.0 %") && line("redis").ends_with("with kernel bypass"),
            "{text}"
        );
        assert!(line("nginx").ends_with('-') && text.matches("note: a note").count() == 1, "{text}");
        let json = rows.each_ref().map(Row::to_json);
        assert!((json[0]["copy_share"].as_f64().expect("a number") - 0.4).abs() < 1e-9, "{}", json[0]);
        assert_eq!(json[1]["paper"], Value::Null);
    }
}
