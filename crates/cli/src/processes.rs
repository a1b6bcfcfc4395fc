//! Processes that run under uncopy, and their counters.

use crate::live::{self, LiveError, ProcessCounters};
use crate::os;
use crate::output::{self, EXIT_USAGE, InvalidValue, Quoted};
use clap::ArgMatches;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use uncopy_core::policy::trials::{FactorReport, Finding};
use uncopy_core::stats::{Counter, Snapshot};

/// Whether a process elides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Elides where that pays.
    Active,
    /// Nothing large enough, or too little, has passed through the process yet.
    Idle,
    /// Off because trials measured that eliding does not pay.
    Off,
    /// Unable to elide; the snapshot has the reason.
    Plain,
}

impl State {
    /// Returns the word in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Idle => "idle",
            Self::Off => "off",
            Self::Plain => "plain",
        }
    }
}

/// Process under uncopy and its counters.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    /// Effective user of the process.
    pub user: u32,
    /// Name as ps(1) shows it, without control characters.
    pub name: String,
    /// Time since the process started, seconds; `None` if unknown.
    pub up_s: Option<u64>,
    pub snapshot: Snapshot,
}

impl Process {
    /// Reads the counters of a process, and checks that it runs under uncopy.
    pub fn read(pid: u32) -> Result<Self, LiveError> {
        Ok(Self::from_counters(pid, live::counters(pid)?))
    }

    /// Reads the counters of a process that is known to run under uncopy.
    pub fn read_known(pid: u32) -> Result<Self, LiveError> {
        Ok(Self::from_counters(pid, live::known_counters(pid)?))
    }

    fn from_counters(pid: u32, counted: ProcessCounters) -> Self {
        Self { pid, user: counted.owner, name: name(pid), up_s: up_s(pid), snapshot: counted.snapshot }
    }

    /// Reads the counters again.
    ///
    /// # Errors
    /// As for [`live::known_counters`]; the process may have ended.
    pub fn refresh(&mut self) -> Result<(), LiveError> {
        self.snapshot = live::known_counters(self.pid)?.snapshot;
        Ok(())
    }

    /// Returns whether the process elides.
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

    /// Returns the trials' result for eliding.
    pub fn elision(&self) -> Option<&FactorReport> {
        self.snapshot.trials.elision()
    }

    /// Returns the memory that uncopy keeps for the process, segments and the reservoir, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.snapshot.get(Counter::SegmentsBytes) + self.snapshot.get(Counter::ReservoirBytes)
    }
}

/// Returns the pids under uncopy that this user may inspect, in order.
pub fn pids_under_uncopy() -> Vec<u32> {
    visible_pids().filter(|pid| live::is_under_uncopy(*pid)).collect()
}

/// Reads all processes under uncopy that this user may inspect, except those that end meanwhile.
pub fn read_all() -> Vec<Process> {
    pids_under_uncopy().into_iter().filter_map(|pid| Process::read_known(pid).ok()).collect()
}

/// Returns the pids that this user may inspect, in order.
pub fn visible_pids() -> impl Iterator<Item = u32> {
    let user = os::effective_user_id();
    // /proc shows root as the owner of processes whose memory this user may not read.
    let is_visible = move |pid: &u32| {
        user == 0 || fs::metadata(format!("/proc/{pid}")).is_ok_and(|metadata| metadata.uid() == user)
    };
    all_pids().into_iter().filter(is_visible)
}

/// Returns the pids of all processes, in order.
fn all_pids() -> Vec<u32> {
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids
}

/// Selection of processes by pid or name.
#[derive(Clone, Debug)]
pub enum Selector {
    /// Process with this pid.
    Pid(u32),
    /// Processes under uncopy whose name, or whose program's file name, is this.
    Named(OsString),
}

/// Error: no process under uncopy has this name. `Display` is a complete message.
pub struct NoSuchName<'a>(&'a OsStr);

impl fmt::Display for NoSuchName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no process under uncopy is named {}; uncopy ps lists them", Quoted(self.0))
    }
}

/// Error: no process has this name. `Display` is a complete message.
pub struct UnusedName<'a>(&'a OsStr);

impl fmt::Display for UnusedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no process is named {}; ps -e lists them", Quoted(self.0))
    }
}

impl Selector {
    /// Parses a word of the command line.
    ///
    /// # Errors
    /// If the word is a number that no process can have.
    fn parse(text: &OsStr) -> Result<Self, InvalidValue> {
        // No program has such a name, so the word is meant as a pid.
        let is_number = text.as_bytes().iter().all(|byte| byte.is_ascii_digit() || *byte == b'-');
        if is_number { live::parse_pid(text).map(Self::Pid) } else { Ok(Self::Named(text.to_owned())) }
    }

    /// Parses the words of argument `id`. If one is illegal, prints an error and returns the exit
    /// status.
    pub fn parse_all(matches: &ArgMatches, id: &str) -> Result<Vec<Self>, u8> {
        let words = matches.get_many::<OsString>(id).unwrap_or_default();
        let wanted: Result<Vec<Self>, InvalidValue> = words.map(|word| Self::parse(word)).collect();
        wanted.map_err(|message| {
            output::print_message(message);
            EXIT_USAGE
        })
    }

    /// Returns the selected pids. A process selected by pid need not be under uncopy.
    ///
    /// # Errors
    /// If no process under uncopy has the name.
    pub fn pids(&self) -> Result<Vec<u32>, NoSuchName<'_>> {
        let named = match self {
            Self::Pid(pid) => return Ok(vec![*pid]),
            Self::Named(name) => name,
        };
        let mut pids = pids_under_uncopy();
        pids.retain(|pid| has_name(*pid, named));
        if pids.is_empty() { Err(NoSuchName(named)) } else { Ok(pids) }
    }

    /// Returns the selected pids, among all processes of the machine.
    ///
    /// # Errors
    /// If no process has the name.
    pub fn pids_of_all(&self) -> Result<Vec<u32>, UnusedName<'_>> {
        let named = match self {
            Self::Pid(pid) => return Ok(vec![*pid]),
            Self::Named(name) => name,
        };
        let own = std::process::id();
        let pids: Vec<u32> =
            all_pids().into_iter().filter(|pid| *pid != own && has_name(*pid, named)).collect();
        if pids.is_empty() { Err(UnusedName(named)) } else { Ok(pids) }
    }

    /// Whether the selection includes this process.
    pub fn includes(&self, pid: u32) -> bool {
        match self {
            Self::Pid(wanted) => *wanted == pid,
            Self::Named(name) => has_name(pid, name),
        }
    }
}

fn has_name(pid: u32, wanted: &OsStr) -> bool {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    comm.strip_suffix(b"\n") == Some(wanted.as_bytes()) || program.file_name() == Some(wanted)
}

fn name(pid: u32) -> String {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let text = String::from_utf8_lossy(&comm);
    text.trim_end().chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

// Field numbers of proc_pid_stat(5). Values are in ticks; START_TIME counts from the boot.
const USER_TIME: usize = 14;
const SYSTEM_TIME: usize = 15;
const START_TIME: usize = 22;

/// Reads fields of proc_pid_stat(5) by their numbers.
fn stat<const FIELDS: usize>(pid: u32, numbers: [usize; FIELDS]) -> Option<[u64; FIELDS]> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&stat);
    // The name, in parentheses before them, may contain anything.
    let (_, after_name) = text.rsplit_once(')')?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let values: Option<Vec<u64>> =
        numbers.iter().map(|number| fields.get(number - 3)?.parse().ok()).collect();
    values?.try_into().ok()
}

fn up_s(pid: u32) -> Option<u64> {
    let [ticks] = stat(pid, [START_TIME])?;
    let machine = fs::read_to_string("/proc/uptime").ok()?;
    let machine_s: u64 = machine.split('.').next()?.parse().ok()?;
    Some(machine_s.saturating_sub(ticks / os::ticks_per_second()))
}

/// Returns the processor time that a process has used, seconds.
pub fn cpu_s(pid: u32) -> Option<f64> {
    let [user, system] = stat(pid, [USER_TIME, SYSTEM_TIME])?;
    Some((user + system) as f64 / os::ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_name_and_an_age() {
        let pid = std::process::id();
        assert!(!name(pid).is_empty());
        assert!(up_s(pid).expect("it runs") < 3600);
        assert!(cpu_s(pid).expect("it runs") < 3600.0);
        assert!(!pids_under_uncopy().contains(&pid));
    }
}
