//! `uncopy release PID`: turns every view of a running process back into plain memory, so that a debugger, a
//! core dump or a checkpoint finds the bytes where the program has them.
//!
//! The process does it itself: its handler thread is told through a pipe. A stopped process cannot.

use crate::line;
use crate::live::{Failure, command, counters, parse_pid};
use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE};
use clap::ArgMatches;
use std::ffi::OsString;
use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};
use uncopy_core::stats::{CONTROL_RELEASE, Counter, REASON_RELEASED, Snapshot};

/// How long the process may take.
const LIMIT: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(5);
const PROGRESS_AFTER: Duration = Duration::from_secs(1);

/// Why it was not released. `Display` is a whole message.
enum Unreleased {
    Failure(Failure),
    TooSlow { pid: u32, views: u64 },
}

impl fmt::Display for Unreleased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failure(failure) => failure.fmt(f),
            Self::TooSlow { pid, views } => write!(
                f,
                "process {pid} still holds {views} views after {} s; if it is stopped (a debugger, SIGSTOP), let it \
                 continue: kill -CONT {pid}",
                LIMIT.as_secs()
            ),
        }
    }
}

impl From<Failure> for Unreleased {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Releases the process that the command line names.
pub fn main(matches: &ArgMatches) -> u8 {
    let text = matches.get_one::<OsString>(line::PID).map(OsString::as_os_str).unwrap_or_default();
    let pid = match parse_pid(text) {
        Ok(pid) => pid,
        Err(message) => {
            output::complain(message);
            return EXIT_USAGE;
        }
    };
    match release(pid) {
        Ok(text) => output::print(text.as_bytes(), EXIT_OK),
        Err(why) => {
            output::complain(why);
            EXIT_FAILURE
        }
    }
}

fn release(pid: u32) -> Result<String, Unreleased> {
    let before = counters(pid)?.snapshot;
    if let Some(reason) = &before.reason
        && before.get(Counter::Views) == 0
    {
        return Ok(format!("process {pid} holds no views: {reason}\n"));
    }
    if !command(pid, &[CONTROL_RELEASE])? {
        return Ok(format!("process {pid} has made no views yet; release it again once it has\n"));
    }
    let after = wait(pid)?;
    Ok(format!(
        "process {pid} is released: {} views turned back into plain memory, {} bytes written\n",
        before.get(Counter::Views),
        after.get(Counter::MaterializedBytes).saturating_sub(before.get(Counter::MaterializedBytes)),
    ))
}

/// Waits until the process has no views and makes none.
fn wait(pid: u32) -> Result<Snapshot, Unreleased> {
    let start = Instant::now();
    let mut shows = false;
    let result = loop {
        let snapshot = counters(pid)?.snapshot;
        let views = snapshot.get(Counter::Views);
        if snapshot.reason.as_deref() == Some(REASON_RELEASED) && views == 0 {
            break Ok(snapshot);
        }
        if start.elapsed() > LIMIT {
            break Err(Unreleased::TooSlow { pid, views });
        }
        if start.elapsed() > PROGRESS_AFTER && std::io::stderr().is_terminal() {
            shows = true;
            // Progress is for people; who cannot be told misses nothing.
            let _ = write!(std::io::stderr(), "\r{views} views left \x1b[K");
        }
        std::thread::sleep(STEP);
    };
    if shows {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    result
}
