//! The soakers, started for an experiment, and what they tell of the machine.
//!
//! ```text
//! load = 1 − (work in a second with traffic) / (work in a second without)
//! ```
//!
//! over all processors together: kernel work in interrupts and in threads of its own is in it, and whatever the traffic
//! made slower by taking caches away. The work without traffic is measured just before and just after each time, so that
//! a machine that gets slower or faster meanwhile makes no load.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use serde_json::{Value, json};

use crate::experiments::load::soak::{Counters, STRIDE_BYTES, processors};
use crate::kit::{Failure, Interval, Launcher, Result, Server, Side, TemporaryDirectory, While, number};

/// Part of the processors' time that others than the soakers may have in a calibration: the system's own work.
const UNLOADED: f64 = 0.02;
/// From this part on, what the soakers lost tells nothing of the traffic.
const LOADED: f64 = 0.2;

/// A thread on each processor that works at idle priority.
#[derive(Debug)]
pub struct Soakers {
    server: Server,
    counters: Counters,
    /// Work in a second on all processors, and the part of their time that others had, of each calibration.
    calibrations: Vec<(f64, f64)>,
}

/// A moment.
#[derive(Clone, Debug)]
pub struct Moment {
    at: Instant,
    work: u64,
    cpu_ns: u64,
}

/// What the soakers did in a time.
#[derive(Clone, Copy, Debug)]
pub struct Soaked {
    /// The time.
    pub elapsed: Duration,
    /// Units of work in a second, all processors.
    pub work_per_s: f64,
    /// The part of all processors' time that the soakers did not have, 0 to 1. Interrupts count as theirs.
    pub others: f64,
}

impl Soakers {
    /// Starts them; each dirties `lines_per_s` cache lines in a second, 0: as many as it can.
    ///
    /// # Errors
    /// [`Failure`] when they cannot be started, bound to their processors or given idle priority.
    pub fn start(launcher: &Launcher, lines_per_s: u64) -> Result<Self> {
        let count = processors()?.len();
        let what = "making a file of counters";
        let file: OwnedFd = rustix::fs::memfd_create("uncopy-soakers", MemfdFlags::CLOEXEC).doing(what)?;
        rustix::fs::ftruncate(&file, (count * STRIDE_BYTES) as u64).doing(what)?;
        let counters = Counters::map(&file, count).doing(what)?;
        let fd = file.as_raw_fd();
        let words = ["soak".to_owned(), format!("--counters={fd}"), format!("--lines={lines_per_s}")];
        let mut command = launcher.bench(Side::Plain, &words);
        let pass = move || {
            // SAFETY: fcntl is async-signal-safe and takes numbers; the descriptor is open in the child, too.
            if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        };
        // SAFETY: between fork and exec the closure makes one async-signal-safe call and allocates nothing.
        unsafe { command.pre_exec(pass) };
        let mut server = Server::start(command, "soak", TemporaryDirectory::make()?)?;
        drop(file);
        let line = server.first_line()?;
        if line != format!("soaking {count}") {
            return Err(Failure::new(format!("soak wrote \"{}\"", line.escape_debug())));
        }
        Ok(Self { server, counters, calibrations: Vec::new() })
    }

    /// Number of soakers: one for each processor.
    #[must_use]
    pub fn count(&self) -> usize {
        self.counters.len()
    }

    /// What they have done up to now.
    ///
    /// # Errors
    /// [`Failure`] when they have ended.
    pub fn moment(&mut self) -> Result<Moment> {
        let cpu_ns = self.server.process().cpu_ns()?;
        let work = (0..self.count()).map(|place| self.counters.at(place).load(Ordering::Relaxed)).sum();
        Ok(Moment { at: Instant::now(), work, cpu_ns })
    }

    /// What they have done since `begin`.
    ///
    /// # Errors
    /// [`Failure`] when they have ended.
    #[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
    pub fn since(&mut self, begin: &Moment) -> Result<Soaked> {
        let end = self.moment()?;
        let elapsed = end.at.duration_since(begin.at);
        let all_ns = elapsed.as_nanos() as f64 * self.count() as f64;
        let others = 1.0 - end.cpu_ns.saturating_sub(begin.cpu_ns) as f64 / all_ns;
        let work_per_s = end.work.saturating_sub(begin.work) as f64 / elapsed.as_secs_f64();
        Ok(Soaked { elapsed, work_per_s, others: others.clamp(0.0, 1.0) })
    }

    /// Measures the machine as it is for `duration`, without traffic, and keeps the result. Returns the work in a second.
    ///
    /// # Errors
    /// [`Failure`] when they have ended.
    pub fn calibrate(&mut self, duration: Duration) -> Result<f64> {
        let begin = self.moment()?;
        std::thread::sleep(duration);
        let soaked = self.since(&begin)?;
        self.calibrations.push((soaked.work_per_s, soaked.others));
        Ok(soaked.work_per_s)
    }

    /// Calibrations so far: the work in a second, and the part of the processors that others had meanwhile.
    #[must_use]
    pub fn calibration(&self) -> Option<Calibration> {
        let of = |figure: fn(&(f64, f64)) -> f64| {
            Interval::of(&self.calibrations.iter().map(figure).collect::<Vec<_>>())
        };
        Some(Calibration { work_per_s: of(|(work, _)| *work)?, others: of(|(_, others)| *others)? })
    }
}

/// The machine without traffic.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// Units of work in a second, all processors.
    pub work_per_s: Interval,
    /// The part of the processors that others than the soakers had, 0 to 1.
    pub others: Interval,
}

impl Calibration {
    /// One line on the soakers, and another where the machine was not unloaded.
    #[must_use]
    pub fn render(self, processors: usize) -> String {
        let Self { work_per_s, others } = self;
        let warning = self.warning().map_or_else(String::new, |warning| format!("note: {warning}\n"));
        format!(
            "calibration: {processors} soakers, {} units of work in a second ({} to {}), others had {:.2} % of the machine\n\
         {warning}",
            number(work_per_s.median),
            number(work_per_s.low),
            number(work_per_s.high),
            others.median * 100.0
        )
    }

    /// The calibration, for programs.
    #[must_use]
    pub fn to_json(self, processors: usize) -> Value {
        json!({
            "soakers": processors,
            "work_per_s": json!(self.work_per_s),
            "others_percent": json!(self.others.scaled(100.0)),
            "warning": self.warning(),
        })
    }

    /// Whether others used so much of the machine that no load can be told.
    #[must_use]
    pub fn is_void(&self) -> bool {
        self.others.median >= LOADED
    }

    /// What the reader must know where the machine was not unloaded.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let Self { work_per_s, others } = self;
        (others.median > UNLOADED).then(|| {
            format!(
                "the machine was not unloaded: without traffic others used {:.1} % of it ({:.1} to {:.1} %), and the \
                 soakers' work differed by {:.1} %; {}",
                others.median * 100.0,
                others.low * 100.0,
                others.high * 100.0,
                (work_per_s.high - work_per_s.low) / work_per_s.median * 100.0,
                if self.is_void() { "no load is told; end the other programs" } else { "loads below that mean nothing" }
            )
        })
    }
}

/// The part of the machine that something took, 0 to 1, of which `work_per_s` was left where `reference` is all of it.
/// Below 0 where the machine was less disturbed than in the calibration; no number where nothing is all of it.
#[must_use]
pub fn taken(work_per_s: f64, reference: f64) -> f64 {
    if reference > 0.0 { 1.0 - work_per_s / reference } else { f64::NAN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_the_work_that_is_missing() {
        assert!((taken(75.0, 100.0) - 0.25).abs() < 1e-12);
        assert!(taken(101.0, 100.0) < 0.0);
        assert!(taken(0.0, 0.0).is_nan() && taken(5.0, 0.0).is_nan());
    }

    #[test]
    fn only_a_machine_that_others_use_is_warned_of() {
        let spread = |median: f64| Interval { median, low: median / 2.0, high: median * 1.5 };
        let of = |others| Calibration { work_per_s: spread(1e6), others: spread(others) }.warning();
        assert_eq!(of(0.001), None);
        let warning = of(0.3).expect("a third of it");
        assert!(
            warning.contains("used 30.0 % of it (15.0 to 45.0 %)") && warning.contains("100.0 %"),
            "{warning}"
        );
        assert!(warning.contains("no load is told"), "{warning}");
        let warning = of(0.1).expect("a tenth of it");
        assert!(warning.contains("loads below that mean nothing"), "{warning}");
    }
}
