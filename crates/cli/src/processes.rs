//! Processes that run under uncopy: which there are, and what is known of each.

use crate::live::{self, Failure};
use crate::os;
use crate::output::{Illegal, Quoted};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use uncopy_core::policy::trials::{Finding, Standing};
use uncopy_core::stats::{Counter, Snapshot};

/// Whether a process elides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It does, or it will where that pays.
    Active,
    /// Nothing that is large enough has passed through it yet.
    Idle,
    /// It was measured that eliding does not pay.
    Off,
    /// It cannot; the snapshot has the reason.
    Plain,
}

impl State {
    /// The word in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Idle => "idle",
            Self::Off => "off",
            Self::Plain => "plain",
        }
    }
}

/// What is known of a process.
#[derive(Debug)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its effective user.
    pub user: u32,
    /// Its name, as ps(1) shows it, without control characters.
    pub name: String,
    /// Since when it runs, seconds; `None`: nobody knows.
    pub up_s: Option<u64>,
    /// Its counters.
    pub snapshot: Snapshot,
}

impl Process {
    /// Looks at a process.
    ///
    /// # Errors
    /// Why its counters cannot be had.
    pub fn look(pid: u32) -> Result<Self, Failure> {
        let snapshot = live::counters(pid)?;
        Ok(Self { pid, user: live::owner(pid)?, name: name(pid), up_s: up_s(pid), snapshot })
    }

    /// Whether it elides.
    pub fn state(&self) -> State {
        let counted =
            [Counter::InputBytes, Counter::CopiedBytes, Counter::ElidedBytes, Counter::LaneReceivedBytes];
        if self.snapshot.reason.is_some() {
            State::Plain
        } else if counted.iter().all(|counter| self.snapshot.get(*counter) == 0) {
            State::Idle
        } else if self.elision().is_some_and(|found| !found.is_on && found.finding != Finding::Unknown) {
            State::Off
        } else {
            State::Active
        }
    }

    /// What was measured of eliding.
    pub fn elision(&self) -> Option<&Standing> {
        self.snapshot.trials.elision()
    }

    /// Memory that uncopy keeps for it: segments, and pages that are ready for more. Bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.snapshot.get(Counter::SegmentsBytes) + self.snapshot.get(Counter::ReservoirBytes)
    }
}

/// What one word of a command line asks for.
pub enum Wanted {
    /// A process.
    Pid(u32),
    /// Every process under uncopy of that name.
    Named(OsString),
}

/// No process under uncopy has that name. `Display` is a whole message.
pub struct Unfound<'a>(&'a OsStr);

impl fmt::Display for Unfound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no process under uncopy is named {}; uncopy ps lists them", Quoted(self.0))
    }
}

impl Wanted {
    /// A process id or a name.
    ///
    /// # Errors
    /// [`Illegal`] if it is a number and no process id.
    pub fn parse(text: &OsStr) -> Result<Self, Illegal> {
        // No program has such a name; whoever types it means a process id.
        let is_number = text.as_bytes().iter().all(|byte| byte.is_ascii_digit() || *byte == b'-');
        if is_number { live::parse_pid(text).map(Self::Pid) } else { Ok(Self::Named(text.to_owned())) }
    }

    /// The processes, at least one.
    ///
    /// # Errors
    /// No process has that name.
    pub fn pids(&self) -> Result<Vec<u32>, Unfound<'_>> {
        match self {
            Self::Pid(pid) => Ok(vec![*pid]),
            Self::Named(name) => Some(named(name)).filter(|pids| !pids.is_empty()).ok_or(Unfound(name)),
        }
    }
}

/// The ids of the processes under uncopy that this user may look at, in order.
pub fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let user = os::effective_user_id();
    let mut pids: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| live::owner(*pid).is_ok_and(|owner| user == 0 || owner == user))
        .filter(|pid| live::is_under_uncopy(*pid))
        .collect();
    pids.sort_unstable();
    pids
}

/// Those among them whose name, or whose program's file name, is `wanted`.
fn named(wanted: &OsStr) -> Vec<u32> {
    let is_it = |pid: &u32| {
        let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        comm.strip_suffix(b"\n") == Some(wanted.as_bytes()) || program.file_name() == Some(wanted)
    };
    let mut pids = all();
    pids.retain(is_it);
    pids
}

fn name(pid: u32) -> String {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let text = String::from_utf8_lossy(&comm);
    text.trim_end().chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// Field 22 of proc_pid_stat(5), in ticks after the machine has started.
const START_TIME: usize = 22;

fn up_s(pid: u32) -> Option<u64> {
    let stat = fs::read(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    let text = String::from_utf8_lossy(&stat);
    // The name before it, in brackets, may have anything in it.
    let (_, after_name) = text.rsplit_once(')')?;
    let ticks: u64 = after_name.split_whitespace().nth(START_TIME - 3)?.parse().ok()?;
    let machine = fs::read_to_string("/proc/uptime").ok()?;
    let machine_s: u64 = machine.split('.').next()?.parse().ok()?;
    Some(machine_s.saturating_sub(ticks / os::ticks_per_second()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_name_and_an_age() {
        let pid = std::process::id();
        assert!(!name(pid).is_empty());
        assert!(up_s(pid).expect("it runs") < 3600);
        assert!(!all().contains(&pid));
    }
}
