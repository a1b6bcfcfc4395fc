//! The demonstration: the echo server and Redis, plain and under uncopy, in one table.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::apps::By;
use crate::apps::programs::Programs;
use crate::apps::redis::{REDIS, Values};
use crate::clients::records::Workload;
use crate::experiments::apps::measure;
use crate::experiments::echo::{copies, point};
use crate::experiments::redis;
use crate::kit::experiment::{STATUS_FAILED, machine_after};
use crate::kit::load::Load;
use crate::kit::report::notes;
use crate::kit::{
    Align, Comparison, Experiment, Interval, Launcher, Machine, Metric, Outcome, Progress, Result, Side,
    Slices, Table, While, amount, begin, number, print, size,
};

/// Length of the echoed messages, bytes (zIO §5.1.1).
const ECHO_BYTES: usize = 512 * 1024;
/// Copies that the echo server makes (zIO §5.1.1).
const ECHO_COPIES: [usize; 4] = [0, 1, 5, 12];
/// What is done to Redis.
const REDIS_WORK: [(Workload, usize); 7] = [
    (Workload::Set, 64),
    (Workload::Set, 64 << 10),
    (Workload::Set, 256 << 10),
    (Workload::Set, 1 << 20),
    (Workload::Get, 64),
    (Workload::Get, 256 << 10),
    (Workload::Get, 1 << 20),
];
/// Connections to Redis.
const REDIS_CLIENTS: usize = 8;

const RATE_UNIT: &str = "op/s";
const RATE: Metric = |sample| sample.operations_per_s;
const MEMORY: Metric = |sample| sample.resident_bytes;

/// Echo server and Redis in one table, plain and under uncopy
#[derive(Debug, Args)]
pub struct Demo {
    /// Take about one minute instead of four
    #[arg(long)]
    pub quick: bool,
    /// Also write everything as JSON to FILE; - writes it to standard output instead of the table
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
}

impl Experiment for Demo {
    fn run(&self) -> Result<Outcome> {
        let launcher = begin()?;
        // Before the first minute is spent.
        let programs = Programs::find(&[REDIS])?;
        redis::check_room()?;
        let before = Load::read();
        let mut figures = Figures::measure(&launcher, &programs, self.quick);
        figures.machine = machine_after(before);
        for (name, version) in programs.versions {
            figures.machine.add(name, version);
        }
        let comparisons: Vec<Comparison> = figures.comparisons().cloned().collect();
        let json = || format!("{:#}\n", figures.to_json());
        match self.json.as_deref() {
            Some(path) if path == Path::new("-") => print(&json())?,
            path => {
                if let Some(path) = path {
                    std::fs::write(path, json()).doing(format_args!("writing {}", path.display()))?;
                }
                print(&(figures.render() + &notes(&comparisons)))?;
            }
        }
        let flawless = comparisons.iter().all(Comparison::is_flawless);
        Ok(Outcome::Status(if flawless { 0 } else { STATUS_FAILED }))
    }
}

/// Results of the whole demonstration.
#[derive(Debug)]
struct Figures {
    machine: Machine,
    echo: Vec<Comparison>,
    redis: Vec<Comparison>,
}

impl Figures {
    /// Runs everything: about four minutes, or one with `quick`.
    fn measure(launcher: &Launcher, programs: &Programs, quick: bool) -> Self {
        let mut progress = Progress::new();
        let slices = Slices {
            sides: vec![Side::Plain, Side::PlainAgain, Side::Uncopy],
            processes: if quick { 2 } else { 3 },
            rounds: 7,
            time: Duration::from_secs(if quick { 2 } else { 6 }),
            slice: Duration::from_millis(60),
        };
        let points = copies::points(ECHO_BYTES, &ECHO_COPIES, 0);
        let echo = point::measure(launcher, &points, &slices, &mut progress);
        let values = |(workload, size_bytes)| {
            Values { workload, size_bytes, clients: REDIS_CLIENTS, append_only: true }.point()
        };
        let points = REDIS_WORK.map(values);
        let redis = measure::points(launcher, programs, &points, By::Slices, &slices, &mut progress);
        Self { machine: Machine::describe(), echo, redis }
    }

    /// Every comparison.
    fn comparisons(&self) -> impl Iterator<Item = &Comparison> {
        self.echo.iter().chain(&self.redis)
    }

    /// The one table, with what it was measured on above it.
    fn render(&self) -> String {
        use Align::{Left, Right};
        let mut table = Table::new(&[
            ("experiment", Left),
            ("unit", Left),
            ("plain", Right),
            ("uncopy", Right),
            ("ratio", Right),
            ("spread", Right),
            ("CPU ratio", Right),
            ("bytes verified", Right),
        ]);
        for comparison in self.comparisons() {
            let ratio = comparison.ratio(Side::Uncopy, RATE);
            table.row(row(comparison, comparison.title(), RATE_UNIT, RATE, 1.0, ratio));
        }
        for comparison in &self.echo {
            if let Some(cells) = self.part_of_no_copies(comparison) {
                table.row(cells);
            }
        }
        let set = format!("redis {} ", Workload::Set.name());
        for comparison in self.redis.iter().filter(|comparison| comparison.title().starts_with(&set)) {
            let title = format!("redis memory, SET {}", size(comparison.operation_bytes()));
            let ratio = comparison.ratio(Side::Uncopy, MEMORY);
            table.row(row(comparison, &title, "MiB", MEMORY, 1.0 / f64::from(1 << 20), ratio));
        }
        let mut text = self.machine.render();
        text.push('\n');
        text.push_str(&table.render());
        text.push_str(
            "\nratio: uncopy over plain, median over paired, alternating rounds; spread: smallest to largest\n\
             CPU ratio: the same for the server's processor time per operation; memory is resident memory\n",
        );
        text
    }

    /// How much of each side's own rate without copies is left with them.
    fn part_of_no_copies(&self, comparison: &Comparison) -> Option<Vec<String>> {
        let none = self.echo.first()?;
        if std::ptr::eq(none, comparison) {
            return None;
        }
        let part = |side| comparison.ratio_to(none, side, RATE);
        let (plain, uncopy) = (part(Side::Plain)?, part(Side::Uncopy)?);
        Some(vec![
            format!("{}, of 0 copies", comparison.title()),
            "part".to_owned(),
            format!("{:.2}", plain.median),
            format!("{:.2}", uncopy.median),
            String::new(),
            format!("{:.2}–{:.2}", uncopy.low, uncopy.high),
            String::new(),
            verified(comparison),
        ])
    }

    /// Everything, for programs.
    fn to_json(&self) -> Value {
        json!({
            "machine": self.machine.to_json(),
            "echo": self.echo.iter().map(Comparison::to_json).collect::<Vec<_>>(),
            "redis": self.redis.iter().map(Comparison::to_json).collect::<Vec<_>>(),
        })
    }
}

fn row(
    comparison: &Comparison,
    title: &str,
    unit: &str,
    metric: Metric,
    scale: f64,
    ratio: Option<Interval>,
) -> Vec<String> {
    let median =
        |side| number(comparison.figure(side, metric).map_or(f64::NAN, |spread| spread.median * scale));
    vec![
        title.to_owned(),
        unit.to_owned(),
        median(Side::Plain),
        median(Side::Uncopy),
        ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}", ratio.median)),
        ratio.map_or_else(String::new, |ratio| format!("{:.2}–{:.2}", ratio.low, ratio.high)),
        comparison
            .ratio(Side::Uncopy, |sample| sample.cpu_us)
            .filter(|_| unit == RATE_UNIT)
            .map_or_else(String::new, |ratio| format!("{:.2}", ratio.median)),
        verified(comparison),
    ]
}

/// Bytes that were compared under each side, at least.
fn verified(comparison: &Comparison) -> String {
    if !comparison.is_verified() {
        return "not verified".to_owned();
    }
    amount(comparison.verified_bytes(Side::Plain).min(comparison.verified_bytes(Side::Uncopy)))
}
