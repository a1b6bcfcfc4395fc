//! Resident memory of Redis while its values, of mixed sizes, are overwritten.
//!
//! The servers of all sides run at the same time and execute the same operations in turns, so that they hold
//! the same values and their memory can be compared at every moment. Each side has several processes, one after
//! the other. Memory is reported together with its cost in processor time. Fragmentation is resident memory
//! divided by the bytes of live values.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use uncopy_testbed::clients::resp::Connection;

use crate::apps::programs::Programs;
use crate::apps::redis::REDIS;
use crate::clients::records::{STAMP_BYTES, Values};
use crate::experiments::redis;
use crate::kit::comparison::{Generation, Round};
use crate::kit::verdict::Verdict;
use crate::kit::{
    Align, CommonOptions, Comparison, Criterion, Experiment, Failure, Interval, Launcher, Outcome, Plot,
    Progress, Random, Report, ReportEntry, Result, Sample, Scale, Series, Side, Table, claim, count_parser,
    entry, figures, format_amount, format_figure, run_with_noise_reduction, seconds, size_parser,
};
use crate::servers::redis::RedisServer;

/// Number of operations for each one in which a value is read and compared.
const READ_EVERY: u64 = 8;
/// The project's limit on resident memory: a factor on plain's, and bytes on top.
const BOUND: (f64, f64) = (1.15, 64.0 * 1024.0 * 1024.0);

/// Sides of the comparison.
const SIDES: [Side; 4] = [Side::Plain, Side::PlainAgain, Side::Uncopy, Side::HeapOnly];

/// Parses minutes, from 0.01 to 600.
fn minutes(text: &str) -> std::result::Result<Duration, String> {
    seconds(text).map(|seconds| seconds * 60)
}

/// Resident memory of Redis while values of mixed sizes are overwritten
#[derive(Debug, Args)]
pub struct Memory {
    /// Time for which values are overwritten, in all processes together
    #[arg(long, value_name = "MINUTES", default_value = "1", default_value_if("quick", "true", "0.1"), value_parser = minutes)]
    pub minutes: Duration,
    /// Number of processes of each side
    #[arg(long, value_name = "N", default_value = "5", default_value_if("quick", "true", "2"), value_parser = count_parser())]
    pub processes: usize,
    /// Minimum value size, in bytes
    #[arg(long, value_name = "SIZE", default_value = "16384", value_parser = size_parser())]
    pub smallest: usize,
    /// Maximum value size, in bytes
    #[arg(long, value_name = "SIZE", default_value = "4194304", value_parser = size_parser())]
    pub largest: usize,
    /// Number of keys whose values are overwritten
    #[arg(long, value_name = "N", default_value = "200", default_value_if("quick", "true", "50"), value_parser = count_parser())]
    pub keys: usize,
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Experiment for Memory {
    const ENTRIES: &'static [ReportEntry] = &[ReportEntry {
        criterion: Criterion::Memory,
        ..entry(
            "memory",
            "Memory of Redis with mixed values",
            &[claim(
                "not measured in the papers",
                "This project's bound is 1.15 times plain's memory plus 64 MiB.",
            )],
            "memory --minutes 2",
            "memory --quick",
        )
    }];
    const REPORT_POSITION: u8 = 100;

    fn run(&self) -> Result<Outcome> {
        run_with_noise_reduction(&self.common, |launcher, progress| {
            let programs = Programs::find(&[REDIS])?;
            redis::check_free_space()?;
            if self.smallest > self.largest || self.smallest < STAMP_BYTES {
                return Err(Failure::new(format!(
                    "--smallest is {}; it must be from {} to --largest, which is {}",
                    self.smallest, STAMP_BYTES, self.largest
                )));
            }
            let (comparison, snapshots) = measure(launcher, &programs, self, progress);
            let (text, plot) = (render(&comparison, &snapshots), plot(&comparison, &snapshots));
            let findings = findings(&comparison, &snapshots);
            let versions = programs.versions;
            Ok(Report { findings, versions, ..Report::new(vec![comparison], text, plot) })
        })
    }
}

impl Memory {
    /// Returns the time between two samples of memory.
    fn interval(&self) -> Duration {
        (self.minutes / 200).max(Duration::from_millis(100))
    }

    /// Returns the time for which one process overwrites values.
    fn share(&self) -> Duration {
        self.minutes / u32::try_from(self.processes).unwrap_or(1).max(1)
    }
}

/// A server under one side, and its expected values.
struct SideServer {
    side: Side,
    redis: RedisServer,
    connection: Connection,
    verified_bytes: u64,
}

/// Memory of all sides at one moment.
#[derive(Clone, Debug)]
pub struct MemorySnapshot {
    /// Time since the beginning, seconds.
    pub elapsed_s: f64,
    /// Total length of live values, bytes.
    pub live_bytes: u64,
    /// Resident memory of each side, bytes, in the order of the sides.
    pub resident_bytes: Vec<u64>,
}

/// Measures the course of memory; returns it with a comparison whose rounds are its moments.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
pub fn measure(
    launcher: &Launcher,
    programs: &Programs,
    options: &Memory,
    progress: &mut Progress,
) -> (Comparison, Vec<MemorySnapshot>) {
    let title = "redis memory, mixed values";
    let mut comparison = Comparison::new(title, 0, &SIDES);
    let mut all = Vec::new();
    for process in 0..options.processes {
        let mut report_percent =
            |percent| progress.report_percent(title, (process * 100 + percent) / options.processes);
        let (snapshots, process_samples) =
            match run_process(launcher, programs, options, process as u64, &mut report_percent) {
                Ok(found) => found,
                Err(failure) => {
                    comparison.fail(&failure);
                    return (comparison, all);
                }
            };
        let resident = |bytes: &u64| Sample { resident_bytes: Some(*bytes as f64), ..Sample::default() };
        let round = |snapshot: &MemorySnapshot| Round {
            samples: snapshot.resident_bytes.iter().map(resident).collect(),
            ..Round::default()
        };
        comparison.add(Generation { rounds: snapshots.iter().map(round).collect(), process_samples });
        let before_s = all.last().map_or(0.0, |snapshot: &MemorySnapshot| snapshot.elapsed_s);
        all.extend(
            snapshots
                .into_iter()
                .map(|snapshot| MemorySnapshot { elapsed_s: before_s + snapshot.elapsed_s, ..snapshot }),
        );
    }
    (comparison, all)
}

/// Returns the length of a value by its `key` and `version`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a size between two"
)]
fn value_len_bytes(options: &Memory, random: u64) -> usize {
    let (low, high) = (options.smallest as f64, options.largest as f64);
    let part = (random >> 11) as f64 / (1u64 << 53) as f64;
    ((low * (high / low).powf(part)) as usize).clamp(options.smallest, options.largest)
}

fn key_name(key: u64) -> Vec<u8> {
    format!("mixed:{key}").into_bytes()
}

/// Overwrites values and samples memory; returns each side's final sample, too.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "percents")]
fn run_process(
    launcher: &Launcher,
    programs: &Programs,
    options: &Memory,
    seed: u64,
    report_percent: &mut dyn FnMut(usize),
) -> Result<(Vec<MemorySnapshot>, Vec<Sample>)> {
    let server = |side: &Side| {
        let redis = RedisServer::start(launcher, *side, programs.path(REDIS.program)?)?;
        let connection = redis.connect()?;
        Ok(SideServer { side: *side, redis, connection, verified_bytes: 0 })
    };
    let mut servers = SIDES.iter().map(server).collect::<Result<Vec<_>>>()?;
    let values = Values::new(options.largest, 7);
    let mut random = Random::new(8 + seed);
    // Version and length of every value.
    let mut alive: Vec<(u64, usize)> = Vec::new();
    let (mut snapshots, mut buffer) = (Vec::new(), Vec::new());
    let (begin, mut operations) = (Instant::now(), 0u64);
    // Set every key once, then overwrite for the requested time.
    loop {
        let all_set = alive.len() >= options.keys;
        let key = if all_set { random.next() % options.keys as u64 } else { alive.len() as u64 };
        let index = usize::try_from(key).unwrap_or(0);
        operations += 1;
        let value = (operations, value_len_bytes(options, random.next()));
        let (stamp, rest) = values.parts(key, value.0, value.1);
        let order = operations % 2 == 0;
        for number in 0..servers.len() {
            let number = if order { number } else { servers.len() - 1 - number };
            servers[number].connection.set_parts(&key_name(key), &[&stamp, rest])?;
        }
        match alive.get_mut(index) {
            Some(known) => *known = value,
            None => alive.push(value),
        }
        if operations % READ_EVERY == 0 {
            let key = random.next() % alive.len() as u64;
            for server in &mut servers {
                server.check(key, alive[usize::try_from(key).unwrap_or(0)], &values, &mut buffer)?;
            }
        }
        let elapsed = begin.elapsed();
        let due = options.interval() * u32::try_from(snapshots.len()).unwrap_or(u32::MAX);
        let ended = all_set && elapsed >= options.share();
        if elapsed >= due || ended {
            let resident = |server: &mut SideServer| server.redis.server().process().resident_bytes();
            snapshots.push(MemorySnapshot {
                elapsed_s: elapsed.as_secs_f64(),
                live_bytes: alive.iter().map(|(_, len_bytes)| *len_bytes as u64).sum(),
                resident_bytes: servers.iter_mut().map(resident).collect::<Result<_>>()?,
            });
            report_percent(
                ((elapsed.as_secs_f64() / options.share().as_secs_f64() * 100.0) as usize).min(100),
            );
        }
        if ended {
            break;
        }
    }
    let mut process_samples = Vec::new();
    for mut server in servers {
        for (key, value) in (0u64..).zip(&alive) {
            server.check(key, *value, &values, &mut buffer)?;
        }
        process_samples.push(server.end(launcher, operations)?);
    }
    Ok((snapshots, process_samples))
}

impl SideServer {
    fn check(
        &mut self,
        key: u64,
        (version, len_bytes): (u64, usize),
        values: &Values,
        value: &mut Vec<u8>,
    ) -> Result<()> {
        let side = self.side.name();
        if !self.connection.get_into(&key_name(key), value)? {
            return Err(Failure::new(format!("{side} has no value for key {key}")));
        }
        let found = values.check(key, value, len_bytes)?;
        if found != version {
            return Err(Failure::new(format!("{side} has version {found} of key {key}, not {version}")));
        }
        self.verified_bytes += len_bytes as u64;
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
    fn end(mut self, launcher: &Launcher, operations: u64) -> Result<Sample> {
        let process = self.redis.server().process();
        let (cpu_ns, pid) = (process.cpu_ns()?, process.pid());
        let notes = launcher.notes(self.side, pid, &self.redis.server().stderr_text(), true);
        let defect = self.redis.stop().err().map(|failure| failure.to_string());
        let cpu_us = Some(cpu_ns as f64 / 1e3 / operations as f64);
        Ok(Sample { cpu_us, notes, defect, verified_bytes: Some(self.verified_bytes), ..Sample::default() })
    }
}

/// Returns peak and last resident bytes of the side at `index`, and its last fragmentation.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn summary(snapshots: &[MemorySnapshot], index: usize) -> Option<(u64, u64, f64)> {
    let peak = snapshots.iter().filter_map(|snapshot| snapshot.resident_bytes.get(index)).max()?;
    let last = snapshots.last()?;
    let resident_bytes = *last.resident_bytes.get(index)?;
    Some((*peak, resident_bytes, resident_bytes as f64 / last.live_bytes.max(1) as f64))
}

/// Returns the largest ratio of a side's resident memory to its limit, 1.15 times plain's at that moment plus 64
/// MiB.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn ratio_to_bound(snapshots: &[MemorySnapshot], sides: &[Side], index: usize) -> Option<f64> {
    let plain = sides.iter().position(|side| *side == Side::Plain)?;
    let part = |snapshot: &MemorySnapshot| {
        let bound = snapshot.resident_bytes.get(plain).map(|bytes| *bytes as f64 * BOUND.0 + BOUND.1)?;
        Some(*snapshot.resident_bytes.get(index)? as f64 / bound)
    };
    snapshots.iter().filter_map(part).reduce(f64::max)
}

/// Renders the figures, a line for each side.
fn render(comparison: &Comparison, snapshots: &[MemorySnapshot]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("experiment", Left),
        ("side", Left),
        ("peak RSS", Right),
        ("last RSS", Right),
        ("memory ratio", Left),
        ("CPU ratio", Left),
        ("verdict", Left),
        ("fragmentation", Right),
        ("of bound", Right),
        ("CPU µs/op", Right),
        ("verified", Right),
    ]);
    for (index, side) in comparison.sides().iter().enumerate() {
        let found = summary(snapshots, index);
        let ratio = |metric| comparison.ratio(*side, metric).filter(|_| *side != Side::Plain);
        let (memory, cpu) = (ratio(|sample| sample.resident_bytes), ratio(figures::CPU));
        let verdict = |ratio| Verdict::of(ratio, comparison.round_count());
        let verdict = memory.zip(cpu).map(|(memory, cpu)| verdict(memory).worse(verdict(cpu)));
        let shown = |ratio: Option<Interval>| ratio.map_or_else(String::new, |ratio| ratio.to_string());
        let bound = ratio_to_bound(snapshots, comparison.sides(), index).filter(|_| *side != Side::Plain);
        let cpu_us = figures::median(comparison, *side, figures::CPU);
        table.row(vec![
            comparison.title().to_owned(),
            side.name().to_owned(),
            found.map_or_else(|| "-".to_owned(), |(peak, ..)| format_amount(peak)),
            found.map_or_else(|| "-".to_owned(), |(_, last, _)| format_amount(last)),
            shown(memory),
            shown(cpu),
            verdict.map_or_else(String::new, |verdict| verdict.to_string()),
            found.map_or_else(String::new, |(.., fragmentation)| format!("{fragmentation:.2}")),
            bound.map_or_else(String::new, |part| format!("{part:.2}")),
            format_figure(cpu_us),
            format_amount(comparison.verified_bytes(*side)),
        ]);
    }
    format!(
        "{}\n\
         memory ratio: resident memory over plain's at the same time, the median over the snapshots of each \
         process\n\
         verdict: of the worse of memory ratio and CPU ratio\n\
         fragmentation: resident memory over the bytes of the values, at the end\n\
         of bound: highest resident memory over {} times plain's plus {}, at the same time\n",
        table.render(),
        BOUND.0,
        "64 MiB"
    )
}

/// Returns the course and its summary as JSON.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn findings(comparison: &Comparison, snapshots: &[MemorySnapshot]) -> Vec<(&'static str, Value)> {
    let course: Vec<Value> = snapshots
        .iter()
        .map(|snapshot| {
            let resident = comparison.sides().iter().zip(&snapshot.resident_bytes);
            let resident: serde_json::Map<_, _> =
                resident.map(|(side, bytes)| (side.key().to_owned(), json!(bytes))).collect();
            json!({
                "elapsed_s": snapshot.elapsed_s,
                "live_bytes": snapshot.live_bytes,
                "resident_bytes": resident,
            })
        })
        .collect();
    let summaries: Vec<Value> = comparison
        .sides()
        .iter()
        .enumerate()
        .filter_map(|(index, side)| {
            let (peak_bytes, last_bytes, fragmentation) = summary(snapshots, index)?;
            let live_bytes = snapshots.last().map_or(1, |snapshot| snapshot.live_bytes).max(1);
            Some(json!({
                "side": side.key(),
                "peak_resident_bytes": peak_bytes,
                "last_resident_bytes": last_bytes,
                "last_live_bytes": live_bytes,
                "fragmentation": fragmentation,
                "excess_over_live_bytes": last_bytes as f64 - live_bytes as f64,
                "highest_part_of_bound": ratio_to_bound(snapshots, comparison.sides(), index),
            }))
        })
        .collect();
    vec![("memory", json!(summaries)), ("course", json!(course))]
}

/// Plots resident memory and the bytes of live values over time.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn plot(comparison: &Comparison, snapshots: &[MemorySnapshot]) -> Plot {
    let point = |snapshot: &MemorySnapshot, bytes: u64| {
        let mib = bytes as f64 / f64::from(1 << 20);
        (snapshot.elapsed_s, Interval { median: mib, low: mib, high: mib })
    };
    let mut series: Vec<Series> = comparison
        .sides()
        .iter()
        .enumerate()
        .map(|(index, side)| {
            let points = snapshots
                .iter()
                .filter_map(|snapshot| Some(point(snapshot, *snapshot.resident_bytes.get(index)?)));
            Series { name: side.name().to_owned(), points: points.collect() }
        })
        .collect();
    let live = snapshots.iter().map(|snapshot| point(snapshot, snapshot.live_bytes)).collect();
    series.push(Series { name: "values".to_owned(), points: live });
    Plot {
        title: "Redis: resident memory, mixed values overwritten".to_owned(),
        x: ("seconds".to_owned(), Scale::Linear),
        y: "MiB".to_owned(),
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(plain_bytes: u64, uncopy_bytes: u64) -> MemorySnapshot {
        MemorySnapshot {
            elapsed_s: 1.0,
            live_bytes: 1 << 20,
            resident_bytes: vec![plain_bytes, uncopy_bytes],
        }
    }

    #[test]
    fn sizes_are_spread_over_the_doublings_and_stay_inside() {
        let sizes_bytes = (16 << 10, 4 << 20);
        let (smallest, largest) = sizes_bytes;
        let (minutes, common) = (Duration::ZERO, CommonOptions::default());
        let options = Memory { minutes, processes: 1, smallest, largest, keys: 1, common };
        let mut random = Random::new(1);
        let drawn: Vec<usize> = (0..4000).map(|_| value_len_bytes(&options, random.next())).collect();
        assert!(drawn.iter().all(|size| (sizes_bytes.0..=sizes_bytes.1).contains(size)));
        let below = drawn.iter().filter(|size| **size < 256 << 10).count();
        assert!((1800..2200).contains(&below), "{below} of 4000 are in the lower half of the doublings");
        assert_eq!(value_len_bytes(&options, 0), sizes_bytes.0);
    }

    #[test]
    fn the_bound_is_checked_in_every_snapshot() {
        let sides = [Side::Plain, Side::Uncopy];
        // The limit is 1.15 times 100 MiB plus 64 MiB, that is, 179 MiB.
        let snapshots = [snapshot(100 << 20, 179 << 20), snapshot(200 << 20, 1 << 20)];
        let part = ratio_to_bound(&snapshots, &sides, 1).expect("both sides");
        assert!((part - 1.0).abs() < 1e-9, "{part}");
        assert_eq!(summary(&snapshots, 1), Some((179 << 20, 1 << 20, 1.0)));
        assert_eq!(summary(&snapshots, 2), None);
        assert_eq!(ratio_to_bound(&[], &sides, 1), None);
    }
}
