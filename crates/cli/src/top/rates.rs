//! Rates of processes between two refreshes.

use crate::live;
use crate::processes::{self, Process, Selector, cpu_s};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use uncopy_core::policy::trials::Finding;
use uncopy_core::stats::Counter;

/// Time after which a process that is not under uncopy is checked again, since it may execute a
/// program under uncopy.
const RECHECK_AFTER: Duration = Duration::from_secs(5);
/// Number of rates kept for a process.
pub const MAX_HISTORY: usize = 120;

/// Process with its rates.
pub struct Row {
    pub process: Process,
    /// Elided bytes per second.
    pub elided: f64,
    /// Copied bytes per second.
    pub copied: f64,
    /// Page faults per second.
    pub faults: f64,
    /// Processor time, in processors.
    pub cpu: f64,
    /// Elided bytes per second, the latest last.
    pub history: Vec<u64>,
    sampled_at: Instant,
    cpu_s: f64,
}

impl Row {
    fn new(process: Process) -> Self {
        let cpu_s = cpu_s(process.pid).unwrap_or_default();
        Self {
            process,
            elided: 0.0,
            copied: 0.0,
            faults: 0.0,
            cpu: 0.0,
            history: Vec::new(),
            sampled_at: Instant::now(),
            cpu_s,
        }
    }

    /// Updates counters and rates. Returns false if the process has ended.
    fn refresh(&mut self) -> bool {
        let before = self.process.snapshot.clone();
        if self.process.refresh().is_err() {
            return false;
        }
        let elapsed_s = self.sampled_at.elapsed().as_secs_f64();
        self.sampled_at = Instant::now();
        let after = &self.process.snapshot;
        // Counters restart at zero when the process executes a program.
        let rate = |counter| after.get(counter).saturating_sub(before.get(counter)) as f64 / elapsed_s;
        self.elided = rate(Counter::ElidedBytes);
        self.copied = rate(Counter::CopiedBytes);
        self.faults = rate(Counter::Faults);
        if let Some(cpu_s) = cpu_s(self.process.pid) {
            self.cpu = (cpu_s - self.cpu_s).max(0.0) / elapsed_s;
            self.cpu_s = cpu_s;
        }
        if self.history.len() == MAX_HISTORY {
            self.history.remove(0);
        }
        self.history.push(truncate(self.elided));
        true
    }

    /// Returns the additional processors that the process would need without eliding; `None` if not
    /// measured yet.
    pub fn saved_cpu(&self) -> Option<f64> {
        let standing = self.process.elision().filter(|standing| standing.finding != Finding::Unknown)?;
        let is_plausible = standing.ratio.is_finite() && standing.ratio > 0.0;
        let without = if standing.is_on && is_plausible { self.cpu / standing.ratio } else { self.cpu };
        Some(without - self.cpu)
    }
}

/// Returns a rate without its fraction.
pub fn truncate(rate: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "no rate is negative, and `as` stops at the largest number"
    )]
    let truncate = rate as u64;
    truncate
}

/// Column by which the list is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Elided,
    Copied,
    Faults,
    /// Memory that uncopy keeps.
    Memory,
    Cpu,
    /// Processor time saved by eliding.
    Saves,
    Pid,
}

impl Order {
    /// All orders, in the sequence of their columns.
    pub const ALL: [Self; 7] =
        [Self::Pid, Self::Elided, Self::Copied, Self::Faults, Self::Memory, Self::Cpu, Self::Saves];

    /// Returns the order `steps` columns further, wrapping around.
    pub fn shifted(self, steps: isize) -> Self {
        let at = Self::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Self::ALL[(at as isize + steps).rem_euclid(Self::ALL.len() as isize) as usize]
    }

    fn compare(self, left: &Row, right: &Row) -> Ordering {
        let key = |row: &Row| match self {
            Self::Elided => row.elided,
            Self::Copied => row.copied,
            Self::Faults => row.faults,
            Self::Memory => row.process.memory_bytes() as f64,
            Self::Cpu => row.cpu,
            Self::Saves => row.saved_cpu().unwrap_or(f64::MIN),
            Self::Pid => -f64::from(row.process.pid),
        };
        key(right).total_cmp(&key(left)).then(left.process.pid.cmp(&right.process.pid))
    }
}

/// Watched processes with their rates.
pub struct Rates {
    wanted: Vec<Selector>,
    /// Rows in the current order.
    pub rows: Vec<Row>,
    /// Processes that are not under uncopy, and when that was found.
    not_under_uncopy: BTreeMap<u32, Instant>,
}

impl Rates {
    /// Watches the processes of `wanted`, or all if it is empty.
    pub fn new(wanted: Vec<Selector>) -> Self {
        Self { wanted, rows: Vec::new(), not_under_uncopy: BTreeMap::new() }
    }

    /// Refreshes all rows and finds new processes.
    pub fn refresh(&mut self, order: Order) {
        self.rows.retain_mut(Row::refresh);
        let running: Vec<u32> = processes::visible_pids().collect();
        self.not_under_uncopy
            .retain(|pid, found| found.elapsed() < RECHECK_AFTER && running.binary_search(pid).is_ok());
        for pid in running {
            let is_known = self.not_under_uncopy.contains_key(&pid)
                || self.rows.iter().any(|row| row.process.pid == pid);
            if is_known {
                continue;
            }
            let is_wanted = self.wanted.is_empty() || self.wanted.iter().any(|wanted| wanted.includes(pid));
            match live::is_under_uncopy(pid).then(|| Process::read_known(pid)) {
                Some(Ok(process)) if is_wanted => self.rows.push(Row::new(process)),
                _ => {
                    self.not_under_uncopy.insert(pid, Instant::now());
                }
            }
        }
        self.sort(order);
    }

    pub fn sort(&mut self, order: Order) {
        self.rows.sort_by(|left, right| order.compare(left, right));
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use uncopy_core::policy::trials::{FactorReport, FactorReports};
    use uncopy_core::stats::Snapshot;

    /// Returns a row of a process that elides `mib` MiB per second.
    pub fn row(pid: u32, name: &str, mib: u32, ratio: Option<f64>) -> Row {
        let mut snapshot = Snapshot::empty(pid.into(), None);
        snapshot.values[Counter::ElidedBytes as usize] = 1 << 30;
        snapshot.values[Counter::SegmentsBytes as usize] = 5 << 20;
        if let Some(ratio) = ratio {
            let standing =
                FactorReport { finding: Finding::Saves, is_on: true, pairs: 100, ratio, radius: 0.01 };
            snapshot.trials = FactorReports(vec![(0, standing)]);
        }
        let mut row = Row::new(Process { pid, user: 0, name: name.to_owned(), up_s: Some(130), snapshot });
        row.elided = f64::from(mib) * 1024.0 * 1024.0;
        row.cpu = 0.5;
        row.history = (0..40).map(|step| step << 20).collect();
        row
    }

    #[test]
    fn what_is_saved_follows_from_what_was_measured() {
        assert_eq!(row(1, "a", 1, None).saved_cpu(), None);
        let saves = row(1, "a", 1, Some(0.5)).saved_cpu().expect("measured");
        assert!((saves - 0.5).abs() < 1e-9, "{saves}");
        assert_eq!(row(1, "a", 1, Some(f64::NAN)).saved_cpu(), Some(0.0));
    }

    #[test]
    fn rows_are_sorted_and_equal_ones_stay_in_order() {
        let mut rates = Rates::new(Vec::new());
        rates.rows = vec![row(3, "a", 1, None), row(2, "b", 7, None), row(1, "c", 1, None)];
        let pids = |rates: &Rates| rates.rows.iter().map(|row| row.process.pid).collect::<Vec<_>>();
        rates.sort(Order::Elided);
        assert_eq!(pids(&rates), [2, 1, 3]);
        rates.sort(Order::Pid);
        assert_eq!(pids(&rates), [1, 2, 3]);
        assert_eq!(Order::Pid.shifted(-1), Order::Saves);
        assert_eq!(Order::Saves.shifted(1), Order::Pid);
    }
}
