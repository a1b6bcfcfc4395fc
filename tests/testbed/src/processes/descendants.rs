//! Descendants of a process that this program started: processor time used, and processes left behind.
//!
//! Descendants are found by the parents in `/proc/PID/stat`. Orphans are no descendants, so these are looked up
//! before a server is stopped, and held by pidfds, which cannot come to mean another process.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

use crate::processes::cpu_time::process_cpu_ns;
use crate::processes::wait;

/// Time limit for the end of a killed process.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// One line of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    /// Processor time of children that ended and were waited for, user and system, clock ticks.
    reaped_ticks: u64,
}

/// Fields of `/proc/PID/stat` behind the name, which may hold anything: the state is the first (proc(5)).
fn parse(stat: &str) -> Option<Stat> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| u64::try_from(fields.get(at)?.parse::<i64>().ok()?).ok();
    let reaped: u64 = [13, 14].into_iter().map(ticks).sum::<Option<u64>>()?;
    Some(Stat { parent: fields.get(1)?.parse().ok()?, reaped_ticks: reaped })
}

fn stat(pid: i32) -> Option<Stat> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Returns `root` and its descendants whose ancestors all live, `root` first.
#[must_use]
pub fn of(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        if let Some((pid, stat)) = pid.and_then(|pid| Some((pid, stat(pid)?))) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut found = vec![root.as_raw_pid()];
    let mut at = 0;
    while let Some(pid) = found.get(at) {
        // Removed, so that the loop ends even if an inconsistent listing has a cycle.
        let more = children.remove(pid).unwrap_or_default();
        found.extend(more);
        at += 1;
    }
    found.into_iter().filter_map(Pid::from_raw).collect()
}

/// Returns the processor time of `root` and its descendants, ns: exact for live processes, in clock ticks (10
/// ms) for those waited for. The difference of two such sums is the time used in between.
///
/// # Errors
/// When `root` has ended.
pub fn cpu_ns(root: Pid) -> io::Result<u64> {
    // SAFETY: sysconf(3) takes any name and returns -1 for one that it does not know.
    let ticks_per_s = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
    let mut sum_ns = process_cpu_ns(root)?;
    for pid in of(root) {
        // The time of a process that ends just now is in its parent's sum the next time.
        if pid != root {
            sum_ns += process_cpu_ns(pid).unwrap_or(0);
        }
        let reaped = stat(pid.as_raw_pid()).map_or(0, |stat| stat.reaped_ticks);
        sum_ns += reaped * (1_000_000_000 / ticks_per_s);
    }
    Ok(sum_ns)
}

/// Processes held by pidfds, which stay known after their parents have ended.
#[derive(Debug, Default)]
pub struct Held(Vec<OwnedFd>);

impl Held {
    /// Holds every descendant of `root`, without `root`.
    #[must_use]
    pub fn below(root: Pid) -> Self {
        Self::all(of(root).into_iter().filter(|pid| *pid != root))
    }

    /// Holds those of `pids` that exist.
    #[must_use]
    pub fn all(pids: impl IntoIterator<Item = Pid>) -> Self {
        Self(pids.into_iter().filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect())
    }

    /// Returns the first child of `root`, if there is one.
    #[must_use]
    pub fn child(root: Pid) -> Option<OwnedFd> {
        let child = *of(root).get(1)?;
        pidfd_open(child, PidfdFlags::empty()).ok()
    }

    /// Kills all processes that have not ended within `timeout`, and waits for their end; returns
    /// how many were killed.
    pub fn end(&self, timeout: Duration) -> usize {
        let is_alive_at = |process: &OwnedFd, deadline: Instant| {
            let left = deadline.saturating_duration_since(Instant::now());
            !wait::until_readable(process, Some(left)).unwrap_or(true)
        };
        let deadline = Instant::now() + timeout;
        let left: Vec<&OwnedFd> = self.0.iter().filter(|process| is_alive_at(process, deadline)).collect();
        for process in &left {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        let deadline = Instant::now() + KILL_TIMEOUT;
        left.iter().for_each(|process| {
            is_alive_at(process, deadline);
        });
        for process in &self.0 {
            // An orphan may be this program's child by now, and must be reaped.
            let _ = waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
        left.len()
    }
}

/// Kills all descendants of this program, until there are none or `timeout` has passed. Orphans
/// become this program's children meanwhile, so that no process escapes by forking.
pub fn end_all(timeout: Duration) {
    let own = rustix::process::getpid();
    let deadline = Instant::now() + timeout;
    while Held::below(own).end(Duration::ZERO) > 0 && Instant::now() < deadline {}
}

/// Makes this program the parent of its orphaned descendants.
pub fn adopt() {
    // Available since Linux 3.4.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::process::Process;
    use rustix::process::kill_process;
    use std::process::Command;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let line = "77 (a) b (c)) S 5 77 77 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 9";
        assert_eq!(parse(line), Some(Stat { parent: 5, reaped_ticks: 70 }));
        for text in ["", "77 (x", "77 (x) S 5", "77 (x) S y 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn grandchildren_are_ended_after_their_parents() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sh -c 'sleep 600 & wait' & wait"]);
        let mut process = Process::start(command, "sh").expect("it starts");
        let root = process.pid();
        let deadline = Instant::now() + Duration::from_secs(10);
        while of(root).len() < 3 {
            assert!(Instant::now() < deadline, "{:?}", of(root));
            std::thread::yield_now();
        }
        assert_eq!(of(root)[0], root);
        assert!(Held::child(root).is_some());
        let held = Held::below(root);
        kill_process(root, Signal::KILL).expect("it lives");
        process.wait(Duration::from_secs(10)).expect("a child").expect("it was killed");
        assert!(of(root).len() == 1, "its children have another parent");
        assert_eq!(held.end(Duration::ZERO), 2);
        assert_eq!(held.end(Duration::from_secs(10)), 0);
    }

    #[test]
    fn dropped_process_leaves_no_descendants() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 600 & wait"]);
        let process = Process::start(command, "sh").expect("it starts");
        let deadline = Instant::now() + Duration::from_secs(10);
        while of(process.pid()).len() < 2 {
            assert!(Instant::now() < deadline, "no child");
            std::thread::yield_now();
        }
        let held = Held::below(process.pid());
        drop(process);
        assert_eq!(held.end(Duration::from_secs(10)), 0);
    }

    #[test]
    fn time_of_children_that_ended_is_counted() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'; exec sleep 600"]);
        let process = Process::start(command, "sh").expect("it starts");
        let deadline = Instant::now() + Duration::from_secs(20);
        let reaped = || stat(process.pid().as_raw_pid()).is_some_and(|stat| stat.reaped_ticks > 0);
        while !reaped() {
            assert!(Instant::now() < deadline, "the child's time was never told");
            std::thread::yield_now();
        }
        let own_ns = process_cpu_ns(process.pid()).expect("it lives");
        assert!(cpu_ns(process.pid()).expect("it lives") >= own_ns + 10_000_000);
    }
}
