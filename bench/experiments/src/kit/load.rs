//! Load that other programs put on the machine during a measurement, the first suspect for a noisy result.

use std::time::Duration;

use crate::kit::processes::descendants;

/// Part of the processors used by other programs above which a result is called noisy.
const MIN_NOISY_FRACTION: f64 = 0.1;

/// Time of all processors since boot, at clock tick resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// Busy time of all programs, including steal time.
    pub busy: Duration,
    /// Busy and idle time.
    pub total: Duration,
    /// Time that the host stole.
    pub steal: Duration,
}

impl Ticks {
    /// Reads the current times; `None` if `/proc/stat` cannot be read.
    #[must_use]
    pub fn read() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        // SAFETY: sysconf(3) takes any name, accesses no memory of ours, and returns -1 for an unknown one.
        let ticks_per_s = u32::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
        Self::parse(&text, ticks_per_s)
    }

    /// Parses the text of `/proc/stat`.
    fn parse(text: &str, ticks_per_s: u32) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user, nice, system, idle, iowait, irq, softirq, steal; the fields after those are included in user.
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).map(|field| field.parse().ok()).collect::<Option<_>>()?;
        let idle = ticks.get(3)?.checked_add(*ticks.get(4)?)?;
        let total = ticks.iter().try_fold(0u64, |sum, ticks| sum.checked_add(*ticks))?;
        let time =
            |ticks: u64| Duration::from_millis(ticks.saturating_mul(1000) / u64::from(ticks_per_s.max(1)));
        Some(Self {
            busy: time(total - idle),
            total: time(total),
            steal: time(ticks.get(7).copied().unwrap_or(0)),
        })
    }
}

/// Processor time so far, of the machine and of this program.
#[derive(Clone, Copy, Debug)]
pub struct ProcessorTime {
    ticks: Ticks,
    /// Time of this program and all its descendants.
    own: Duration,
}

impl ProcessorTime {
    /// Reads the current times; `None` if `/proc` cannot be read.
    #[must_use]
    pub fn read() -> Option<Self> {
        Some(Self {
            ticks: Ticks::read()?,
            own: Duration::from_nanos(descendants::cpu_ns(rustix::process::getpid()).ok()?),
        })
    }

    /// Returns the part of the processors that other programs used since `before`, 0 to 1.
    #[must_use]
    pub fn others_fraction_since(&self, before: &Self) -> f64 {
        let total = self.ticks.total.saturating_sub(before.ticks.total).as_secs_f64();
        let busy = self.ticks.busy.saturating_sub(before.ticks.busy);
        let others = busy.saturating_sub(self.own.saturating_sub(before.own)).as_secs_f64();
        if total > 0.0 { (others / total).clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// Returns a warning if other programs used much of the machine since `before`.
#[must_use]
pub fn noise_warning(before: Option<ProcessorTime>) -> Option<String> {
    let fraction = ProcessorTime::read()?.others_fraction_since(&before?);
    (fraction > MIN_NOISY_FRACTION).then(|| {
        format!(
            "other programs used {:.0} % of the processors during the measurement, so the results are noisy",
            fraction * 100.0
        )
    })
}

/// Returns user and system time of this program, or of its waited-for children (`who` as in getrusage(2)).
pub fn rusage_times(who: libc::c_int) -> Option<[Duration; 2]> {
    // SAFETY: rusage consists of integers only, for which all-zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: getrusage(2) writes one rusage to `usage`, which is valid and writable through the call.
    if unsafe { libc::getrusage(who, &raw mut usage) } != 0 {
        return None;
    }
    let time = |time: libc::timeval| {
        Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_usec).ok()? * 1000))
    };
    Some([time(usage.ru_utime)?, time(usage.ru_stime)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_and_total_time_are_separate() {
        let text = "cpu  100 50 30 700 100 5 10 5 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let ticks = Ticks::parse(text, 100).expect("well-formed");
        let (busy, total) = (Duration::from_secs(2), Duration::from_secs(10));
        assert_eq!(ticks, Ticks { busy, total, steal: Duration::from_millis(50) });
    }

    #[test]
    fn malformed_statistics_have_no_load() {
        for text in
            ["", "cpu ", "cpu  1 2 3", "cpu  a b c d e f g h", "cpu  1 1 1 18446744073709551615 1 1 1 1"]
        {
            assert!(Ticks::parse(text, 100).is_none(), "{text}");
        }
    }

    #[test]
    fn the_processes_own_work_is_not_counted_as_others() {
        let seconds = |busy, total, own| ProcessorTime {
            ticks: Ticks {
                busy: Duration::from_secs(busy),
                total: Duration::from_secs(total),
                steal: Duration::ZERO,
            },
            own: Duration::from_secs(own),
        };
        let fraction = seconds(18, 120, 14).others_fraction_since(&seconds(10, 100, 10));
        assert!((fraction - 0.2).abs() < 1e-9, "{fraction}");
        assert!(seconds(18, 120, 40).others_fraction_since(&seconds(10, 100, 10)) < 1e-9);
        assert!(ProcessorTime::read().is_some());
    }
}
