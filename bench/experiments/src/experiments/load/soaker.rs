//! The soakers, started for an experiment, and their measurement of the machine's load.
//!
//! ```text
//! load = 1 − (work in a second with traffic) / (work in a second without)
//! ```
//!
//! The load is that of all processors together, including kernel work in interrupts and kernel threads, and the
//! slowdown of other programs whose cache lines the traffic evicts. The work without traffic is measured just before
//! and just after each interval, so that a gradual change of the machine's speed does not count as load.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use serde_json::{Value, json};

use crate::experiments::load::soak::{Counters, STRIDE_BYTES};
use crate::kit::{
    Failure, Interval, Launcher, Result, Server, Side, TemporaryDirectory, While, format_number, processors,
    start_server,
};

/// Maximum share of processor time that other tasks than the soakers may have in a calibration: the system's own work.
const MAX_IDLE_LOAD: f64 = 0.02;
/// Share from which the soakers' loss cannot be attributed to the traffic.
const MIN_INVALID_LOAD: f64 = 0.2;

/// Threads at idle priority, one on each processor.
#[derive(Debug)]
pub struct Soakers {
    server: Server,
    counters: Counters,
    /// Work per second on all processors, and the share of processor time that others had, for each calibration.
    calibrations: Vec<(f64, f64)>,
}

/// State of the soakers' counters at one moment.
#[derive(Clone, Debug)]
pub struct CounterSnapshot {
    at: Instant,
    work: u64,
    cpu_ns: u64,
}

/// Work of the soakers during an interval.
#[derive(Clone, Copy, Debug)]
pub struct SoakerWork {
    /// Length of the interval.
    pub elapsed: Duration,
    /// Units of work per second on all processors.
    pub work_per_s: f64,
    /// Share of all processors' time that the soakers did not get, 0 to 1. Time in interrupts counts as the soakers'.
    pub others: f64,
}

impl Soakers {
    /// Starts the soakers, each of which dirties `lines_per_s` cache lines per second; 0 means as many as possible.
    ///
    /// # Errors
    /// [`Failure`] when the soakers cannot be started, bound to their processors or given idle priority.
    pub fn start(launcher: &Launcher, lines_per_s: u64) -> Result<Self> {
        let count = processors::available().len();
        let what = "creating the counters' file";
        let file: OwnedFd = rustix::fs::memfd_create("uncopy-soakers", MemfdFlags::CLOEXEC).doing(what)?;
        rustix::fs::ftruncate(&file, (count * STRIDE_BYTES) as u64).doing(what)?;
        let counters = Counters::map(&file, count).doing(what)?;
        let fd = file.as_raw_fd();
        let words = ["soak".to_owned(), format!("--counters={fd}"), format!("--lines={lines_per_s}")];
        let mut command = launcher.bench_command(Side::Plain, &words);
        let pass = move || {
            // SAFETY: fcntl(2) with F_SETFD is async-signal-safe and takes no pointer; the child inherits `fd`,
            // open.
            if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        };
        // SAFETY: only async-signal-safe calls are allowed before exec: the closure makes one, and allocates
        // nothing.
        unsafe { command.pre_exec(pass) };
        let mut server = start_server(command, "soak", TemporaryDirectory::make()?)?;
        drop(file);
        let line = server.first_line()?;
        if line != format!("soaking {count}") {
            return Err(Failure::new(format!("unexpected output of soak: \"{}\"", line.escape_debug())));
        }
        Ok(Self { server, counters, calibrations: Vec::new() })
    }

    /// Returns the number of soakers, which is that of processors.
    #[must_use]
    pub fn count(&self) -> usize {
        self.counters.len()
    }

    /// Returns the current state of the counters.
    ///
    /// # Errors
    /// [`Failure`] when the soakers have ended.
    pub fn snapshot(&mut self) -> Result<CounterSnapshot> {
        let cpu_ns = self.server.process().cpu_ns()?;
        let work = (0..self.count()).map(|index| self.counters.at(index).load(Ordering::Relaxed)).sum();
        Ok(CounterSnapshot { at: Instant::now(), work, cpu_ns })
    }

    /// Returns the work done since `begin`.
    ///
    /// # Errors
    /// [`Failure`] when the soakers have ended.
    #[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
    pub fn since(&mut self, begin: &CounterSnapshot) -> Result<SoakerWork> {
        let end = self.snapshot()?;
        let elapsed = end.at.duration_since(begin.at);
        let all_ns = elapsed.as_nanos() as f64 * self.count() as f64;
        let others = 1.0 - end.cpu_ns.saturating_sub(begin.cpu_ns) as f64 / all_ns;
        let work_per_s = end.work.saturating_sub(begin.work) as f64 / elapsed.as_secs_f64();
        Ok(SoakerWork { elapsed, work_per_s, others: others.clamp(0.0, 1.0) })
    }

    /// Measures the machine without traffic for `duration` and keeps the result. Returns the work per second.
    ///
    /// # Errors
    /// [`Failure`] when the soakers have ended.
    pub fn calibrate(&mut self, duration: Duration) -> Result<f64> {
        let begin = self.snapshot()?;
        std::thread::sleep(duration);
        let soaked = self.since(&begin)?;
        self.calibrations.push((soaked.work_per_s, soaked.others));
        Ok(soaked.work_per_s)
    }

    /// Returns the calibrations so far as intervals; `None` before the first.
    #[must_use]
    pub fn calibration(&self) -> Option<Calibration> {
        let of = |figure: fn(&(f64, f64)) -> f64| {
            Interval::of(&self.calibrations.iter().map(figure).collect::<Vec<_>>())
        };
        Some(Calibration { work_per_s: of(|(work, _)| *work)?, others: of(|(_, others)| *others)? })
    }
}

/// Work of the soakers without traffic.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// Units of work per second on all processors.
    pub work_per_s: Interval,
    /// Share of processor time that other tasks than the soakers had, 0 to 1.
    pub others: Interval,
}

impl Calibration {
    /// Renders one line on the soakers, and a warning if the machine was loaded.
    #[must_use]
    pub fn render(self, processors: usize) -> String {
        let Self { work_per_s, others } = self;
        let warning = self.warning().map_or_else(String::new, |warning| format!("note: {warning}\n"));
        format!(
            "calibration: {processors} soakers, {} units of work per second ({} to {}); other programs used \
             {:.2} % of the machine\n\
             {warning}",
            format_number(work_per_s.median),
            format_number(work_per_s.low),
            format_number(work_per_s.high),
            others.median * 100.0
        )
    }

    /// Returns the calibration as JSON.
    #[must_use]
    pub fn to_json(self, processors: usize) -> Value {
        json!({
            "soakers": processors,
            "work_per_s": json!(self.work_per_s),
            "others_percent": json!(self.others.scaled(100.0)),
            "warning": self.warning(),
        })
    }

    /// Returns whether others used too much of the machine for a load to be measured.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        self.others.median >= MIN_INVALID_LOAD
    }

    /// Returns the warning for the reader if the machine was loaded.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let Self { work_per_s, others } = self;
        (others.median > MAX_IDLE_LOAD).then(|| {
            format!(
                "the machine was not idle: without traffic, other programs used {:.1} % of it ({:.1} to {:.1} \
                 %), and the soakers' work varied by {:.1} %; {}",
                others.median * 100.0,
                others.low * 100.0,
                others.high * 100.0,
                (work_per_s.high - work_per_s.low) / work_per_s.median * 100.0,
                if self.is_invalid() { "no load is reported; stop the other programs" } else { "smaller loads are meaningless" }
            )
        })
    }
}

/// Returns the share of the machine taken by something that left `work_per_s` of `reference`, 0 to 1. Below 0
/// if the machine was less disturbed than in the calibration; NaN if `reference` is 0.
#[must_use]
pub fn load_fraction(work_per_s: f64, reference: f64) -> f64 {
    if reference > 0.0 { 1.0 - work_per_s / reference } else { f64::NAN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_the_missing_work() {
        assert!((load_fraction(75.0, 100.0) - 0.25).abs() < 1e-12);
        assert!(load_fraction(101.0, 100.0) < 0.0);
        assert!(load_fraction(0.0, 0.0).is_nan() && load_fraction(5.0, 0.0).is_nan());
    }

    #[test]
    fn only_a_busy_machine_gets_a_warning() {
        let spread = |median: f64| Interval { median, low: median / 2.0, high: median * 1.5 };
        let of = |others| Calibration { work_per_s: spread(1e6), others: spread(others) }.warning();
        assert_eq!(of(0.001), None);
        let warning = of(0.3).expect("a third of it");
        assert!(
            warning.contains("used 30.0 % of it (15.0 to 45.0 %)") && warning.contains("100.0 %"),
            "{warning}"
        );
        assert!(warning.contains("no load is reported"), "{warning}");
        let warning = of(0.1).expect("a tenth of it");
        assert!(warning.contains("smaller loads are meaningless"), "{warning}");
    }
}
