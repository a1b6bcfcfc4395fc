//! Processes that run under uncopy: which there are, and what is known of each.

use crate::live::{self, Counted, Failure};
use crate::os;
use crate::output::{self, EXIT_USAGE, Illegal, Quoted};
use clap::ArgMatches;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use uncopy_core::policy::trials::{Finding, Standing};
use uncopy_core::stats::{Counter, Snapshot};

/// Whether a process elides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It does, or it will where that pays.
    Active,
    /// Nothing that is large enough has passed through it yet, or too little.
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
        Ok(Self::with(pid, live::counters(pid)?))
    }

    /// Looks at a process that is known to run under uncopy.
    ///
    /// # Errors
    /// Why its counters cannot be had.
    pub fn look_known(pid: u32) -> Result<Self, Failure> {
        Ok(Self::with(pid, live::counters_known(pid)?))
    }

    fn with(pid: u32, counted: Counted) -> Self {
        Self { pid, user: counted.owner, name: name(pid), up_s: up_s(pid), snapshot: counted.snapshot }
    }

    /// Reads its counters again.
    ///
    /// # Errors
    /// Why they cannot be had; it may have ended.
    pub fn refresh(&mut self) -> Result<(), Failure> {
        self.snapshot = live::counters_known(self.pid)?.snapshot;
        Ok(())
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

/// The ids of the processes under uncopy that this user may look at, in order.
pub fn all() -> Vec<u32> {
    running().filter(|pid| live::is_under_uncopy(*pid)).collect()
}

/// Those processes, but for what ends meanwhile.
pub fn look_at_all() -> Vec<Process> {
    all().into_iter().filter_map(|pid| Process::look_known(pid).ok()).collect()
}

/// The ids of all processes that this user may look at, in order.
pub fn running() -> impl Iterator<Item = u32> {
    let user = os::effective_user_id();
    // Those whose memory this user may not look at belong to root here.
    let is_mine = move |pid: &u32| {
        user == 0 || fs::metadata(format!("/proc/{pid}")).is_ok_and(|metadata| metadata.uid() == user)
    };
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids.into_iter().filter(is_mine)
}

/// Which process somebody means.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// This one.
    Pid(u32),
    /// All under uncopy whose name, or whose program's file name, is this.
    Named(OsString),
}

/// No process under uncopy has such a name. `Display` is a whole message.
pub struct NoSuchName<'a>(&'a OsStr);

impl fmt::Display for NoSuchName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no process under uncopy is named {}; uncopy ps lists them", Quoted(self.0))
    }
}

impl Wanted {
    /// What a word of the command line means.
    ///
    /// # Errors
    /// It is a number that no process can have.
    fn parse(text: &OsStr) -> Result<Self, Illegal> {
        // No program has such a name; whoever types it means a process id.
        let is_number = text.as_bytes().iter().all(|byte| byte.is_ascii_digit() || *byte == b'-');
        if is_number { live::parse_pid(text).map(Self::Pid) } else { Ok(Self::Named(text.to_owned())) }
    }

    /// What the words of argument `id` mean; the exit status, after a complaint, if one is illegal.
    pub fn all_of(matches: &ArgMatches, id: &str) -> Result<Vec<Self>, u8> {
        let words = matches.get_many::<OsString>(id).unwrap_or_default();
        let wanted: Result<Vec<Self>, Illegal> = words.map(|word| Self::parse(word)).collect();
        wanted.map_err(|message| {
            output::complain(message);
            EXIT_USAGE
        })
    }

    /// The processes; what has a number need not be under uncopy.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn pids(&self) -> Result<Vec<u32>, NoSuchName<'_>> {
        let named = match self {
            Self::Pid(pid) => return Ok(vec![*pid]),
            Self::Named(name) => name,
        };
        let mut pids = all();
        pids.retain(|pid| is_named(*pid, named));
        if pids.is_empty() { Err(NoSuchName(named)) } else { Ok(pids) }
    }

    /// Whether it is this process.
    pub fn includes(&self, pid: u32) -> bool {
        match self {
            Self::Pid(wanted) => *wanted == pid,
            Self::Named(name) => is_named(pid, name),
        }
    }
}

fn is_named(pid: u32, wanted: &OsStr) -> bool {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    comm.strip_suffix(b"\n") == Some(wanted.as_bytes()) || program.file_name() == Some(wanted)
}

fn name(pid: u32) -> String {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let text = String::from_utf8_lossy(&comm);
    text.trim_end().chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// Fields of proc_pid_stat(5), by their numbers there, in ticks; the start is after the machine's.
const USER_TIME: usize = 14;
const SYSTEM_TIME: usize = 15;
const START_TIME: usize = 22;

/// Some fields of proc_pid_stat(5).
fn stat<const FIELDS: usize>(pid: u32, numbers: [usize; FIELDS]) -> Option<[u64; FIELDS]> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&stat);
    // The name before it, in brackets, may have anything in it.
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

/// Processor time that a process has used, seconds.
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
        assert!(!all().contains(&pid));
    }
}
