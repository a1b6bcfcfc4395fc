//! Disturbance of a slice: processor time that the host stole, and time that other programs used.
//!
//! With an idle loop on each processor, no time is left idle: time missing from this program and its loops was used by
//! others. Other programs of class SCHED_IDLE share that time with the loops and disturb nothing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::kit::load::Ticks;
use crate::kit::noise;
use crate::kit::processes::cpu_time::process_cpu_ns;

/// Maximum part of the processors' time that the host may steal from a slice that counts.
const MAX_STEAL: f64 = 0.02;
/// Maximum part of the processors' time that other programs may use in a slice that counts.
const MAX_OTHERS: f64 = 0.1;
/// [`MAX_OTHERS`] where this program's session has priority over the others, which then only fill the time that
/// servers and clients leave. (Beside a build that used a third, nginx as a proxy was 0.999 [0.973–1.025] of itself.)
const MAX_OTHERS_WITH_PRIORITY: f64 = 0.5;

/// A snapshot of the processors' time.
#[derive(Clone, Debug)]
pub struct CpuSnapshot {
    at: Instant,
    ticks: Option<Ticks>,
    /// Processor time of this program, its idle loops and all descendants, ns.
    own_ns: u64,
    /// Processor time of each SCHED_IDLE thread of other programs, ns.
    idle_ns: HashMap<i32, u64>,
}

impl CpuSnapshot {
    /// Takes a snapshot; `own` are this program and all its descendants.
    #[must_use]
    pub fn now(own: &[Pid]) -> Self {
        let own_ns = own.iter().filter_map(|pid| process_cpu_ns(*pid).ok()).sum();
        Self { at: Instant::now(), ticks: Ticks::read(), own_ns, idle_ns: idle_class_cpu_ns(own) }
    }

    /// Returns the reason why a measurement from this snapshot to `end` does not count, if there is one.
    #[must_use]
    pub fn disturbance_until(&self, end: &Self, processors: usize) -> Option<String> {
        let all = end.at.duration_since(self.at) * u32::try_from(processors).unwrap_or(1);
        let own = Duration::from_nanos(end.own_ns.saturating_sub(self.own_ns));
        let (before, after) = (self.ticks?, end.ticks?);
        let steal = after.steal.saturating_sub(before.steal);
        let others = if noise::has_idle_loops() {
            let used = |(thread, ns): (&i32, &u64)| {
                ns.saturating_sub(self.idle_ns.get(thread).copied().unwrap_or(0))
            };
            let idle = Duration::from_nanos(end.idle_ns.iter().map(used).sum());
            all.saturating_sub(own + steal + idle)
        } else {
            after.busy.saturating_sub(before.busy).saturating_sub(own + steal)
        };
        let part = |time: Duration| time.as_secs_f64() / all.as_secs_f64().max(1e-9);
        let max_others = if noise::has_priority() { MAX_OTHERS_WITH_PRIORITY } else { MAX_OTHERS };
        [("steal", part(steal), MAX_STEAL), ("other programs", part(others), max_others)]
            .into_iter()
            .find(|(_, part, most)| part > most)
            .map(|(what, part, _)| format!("{what} {:.0} %", part * 100.0))
    }
}

/// Returns the processor time, ns, of each SCHED_IDLE thread, except those of the processes `own`.
fn idle_class_cpu_ns(own: &[Pid]) -> HashMap<i32, u64> {
    let mut found = HashMap::new();
    if !noise::has_idle_loops() {
        return found;
    }
    let number = |entry: &std::fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = number(&process) else { continue };
        if own.iter().any(|own| own.as_raw_pid() == pid) {
            continue;
        }
        for task in std::fs::read_dir(process.path().join("task")).into_iter().flatten().flatten() {
            let Some(thread) = number(&task) else { continue };
            // SAFETY: sched_getscheduler(2) takes any thread ID, and accesses no memory of ours.
            if unsafe { libc::sched_getscheduler(thread) } == libc::SCHED_IDLE {
                let time = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
                let ns = time.split_whitespace().next().and_then(|ns| ns.parse().ok());
                found.insert(thread, ns.unwrap_or(0));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::processes::process::Process;

    #[test]
    fn steal_and_foreign_load_above_their_bounds_disturb_and_own_work_does_not() {
        let at = Instant::now();
        let snapshot = |ms: u64, steal_ms, own_ms: u64, idle_ms: u64| CpuSnapshot {
            at: at + Duration::from_millis(ms),
            ticks: Some(Ticks {
                busy: Duration::ZERO,
                total: Duration::ZERO,
                steal: Duration::from_millis(steal_ms),
            }),
            own_ns: own_ms * 1_000_000,
            idle_ns: HashMap::from([(7, idle_ms * 1_000_000)]),
        };
        let begin = snapshot(0, 0, 0, 5);
        for (steal_ms, own_ms, idle_ms, why) in [
            (0, 198, 5, None),
            (10, 190, 5, Some("steal 5 %")),
            (0, 100, 5, Some("other programs 50 %")),
            (0, 100, 103, None),
            (2, 190, 5, None),
        ] {
            let why: Option<&str> = why;
            let reason = begin.disturbance_until(&snapshot(100, steal_ms, own_ms, idle_ms), 2);
            assert_eq!(reason.as_deref(), why);
        }
    }

    #[test]
    fn threads_of_the_lowest_class_are_found_in_other_processes_only() {
        let mut command = std::process::Command::new("chrt");
        command.args(["--idle", "0", "sleep", "600"]);
        let process = Process::start(command, "sleep").expect("chrt of util-linux");
        let pid = process.pid();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !idle_class_cpu_ns(&[]).contains_key(&pid.as_raw_pid()) {
            assert!(Instant::now() < deadline, "it was never found");
            std::thread::yield_now();
        }
        assert!(!idle_class_cpu_ns(&[pid]).contains_key(&pid.as_raw_pid()));
    }
}
