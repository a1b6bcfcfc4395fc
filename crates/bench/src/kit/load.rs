//! How much of the machine other programs used during a measurement: the first thing to know about
//! a noisy result.

use std::time::Duration;

use crate::kit::processes::descendants;

/// Other programs' part of the processors from which on a result is called noisy.
const NOISY_PART: f64 = 0.1;

/// All processors' time so far, to the clock tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// All programs', with what the host took.
    pub busy: Duration,
    /// Also idle.
    pub total: Duration,
    /// What the host took.
    pub steal: Duration,
}

impl Ticks {
    /// The times as they are; `None` where the system does not tell.
    #[must_use]
    pub fn read() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        // SAFETY: sysconf has no preconditions.
        let ticks_per_s = u32::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
        Self::parse(&text, ticks_per_s)
    }

    /// The times in the text of `/proc/stat`.
    fn parse(text: &str, ticks_per_s: u32) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in user.
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

/// The processors' time so far.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    ticks: Ticks,
    /// This program and all that came of it.
    own: Duration,
}

impl Load {
    /// The times as they are; `None` where the system does not tell.
    #[must_use]
    pub fn read() -> Option<Self> {
        Some(Self {
            ticks: Ticks::read()?,
            own: Duration::from_nanos(descendants::cpu_ns(rustix::process::getpid()).ok()?),
        })
    }

    /// The part of the processors that other programs used since `before`, 0 to 1.
    #[must_use]
    pub fn others_since(&self, before: &Self) -> f64 {
        let total = self.ticks.total.saturating_sub(before.ticks.total).as_secs_f64();
        let busy = self.ticks.busy.saturating_sub(before.ticks.busy);
        let others = busy.saturating_sub(self.own.saturating_sub(before.own)).as_secs_f64();
        if total > 0.0 { (others / total).clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// What to tell the reader when other programs used much of the machine since `before`.
#[must_use]
pub fn warning(before: Option<Load>) -> Option<String> {
    let part = Load::read()?.others_since(&before?);
    (part > NOISY_PART).then(|| {
        format!(
            "other programs used {:.0} % of the processors meanwhile: the figures are noisy",
            part * 100.0
        )
    })
}

/// Processor time of this program, or of its children that were waited for: in user mode, and in the kernel.
pub fn used(who: libc::c_int) -> Option<[Duration; 2]> {
    // SAFETY: all-zero is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the usage is written to `usage`.
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
    fn busy_and_total_time_are_told_apart() {
        let text = "cpu  100 50 30 700 100 5 10 5 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let ticks = Ticks::parse(text, 100).expect("well-formed");
        let (busy, total) = (Duration::from_secs(2), Duration::from_secs(10));
        assert_eq!(ticks, Ticks { busy, total, steal: Duration::from_millis(50) });
    }

    #[test]
    fn anything_else_has_no_load() {
        for text in
            ["", "cpu ", "cpu  1 2 3", "cpu  a b c d e f g h", "cpu  1 1 1 18446744073709551615 1 1 1 1"]
        {
            assert!(Ticks::parse(text, 100).is_none(), "{text}");
        }
    }

    #[test]
    fn own_work_is_not_counted_as_others() {
        let seconds = |busy, total, own| Load {
            ticks: Ticks {
                busy: Duration::from_secs(busy),
                total: Duration::from_secs(total),
                steal: Duration::ZERO,
            },
            own: Duration::from_secs(own),
        };
        let part = seconds(18, 120, 14).others_since(&seconds(10, 100, 10));
        assert!((part - 0.2).abs() < 1e-9, "{part}");
        assert!(seconds(18, 120, 40).others_since(&seconds(10, 100, 10)) < 1e-9);
        assert!(Load::read().is_some());
    }
}
