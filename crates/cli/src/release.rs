//! `uncopy release PID`: turns every view of a running process back into plain memory, so that a
//! debugger, a core dump or a checkpoint finds the bytes where the program has them.
//!
//! The process's handler thread does the work, on a request through a pipe. A stopped process
//! cannot.

use crate::args;
use crate::live::{LiveError, counters, parse_pid, send_request};
use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE};
use clap::ArgMatches;
use std::ffi::OsString;
use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};
use uncopy_core::stats::{CONTROL_RELEASE, Counter, REASON_RELEASED, Snapshot};

/// Time limit for the process.
const TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const PROGRESS_AFTER: Duration = Duration::from_secs(1);

/// Reason why a process was not released. `Display` is a complete message.
enum ReleaseError {
    Failure(LiveError),
    TooSlow { pid: u32, views: u64 },
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failure(failure) => failure.fmt(f),
            Self::TooSlow { pid, views } => write!(
                f,
                "process {pid} still holds {views} views after {} s; if it is stopped (a debugger, SIGSTOP), let it \
                 continue: kill -CONT {pid}",
                TIMEOUT.as_secs()
            ),
        }
    }
}

impl From<LiveError> for ReleaseError {
    fn from(failure: LiveError) -> Self {
        Self::Failure(failure)
    }
}

/// Releases the process that the command line names.
pub fn main(matches: &ArgMatches) -> u8 {
    let text = matches.get_one::<OsString>(args::PID).map(OsString::as_os_str).unwrap_or_default();
    let pid = match parse_pid(text) {
        Ok(pid) => pid,
        Err(message) => {
            output::print_message(message);
            return EXIT_USAGE;
        }
    };
    match release(pid) {
        Ok(text) => output::print(text.as_bytes(), EXIT_OK),
        Err(why) => {
            output::print_message(why);
            EXIT_FAILURE
        }
    }
}

fn release(pid: u32) -> Result<String, ReleaseError> {
    let before = counters(pid)?.snapshot;
    if let Some(reason) = &before.reason
        && before.get(Counter::Views) == 0
    {
        return Ok(format!("process {pid} holds no views: {reason}\n"));
    }
    if !send_request(pid, &[CONTROL_RELEASE])? {
        return Ok(format!("process {pid} has elided nothing yet; release it again once it has\n"));
    }
    let after = wait(pid)?;
    Ok(format!(
        "process {pid} is released: {} views are plain memory again, {} bytes written\n",
        before.get(Counter::Views),
        after.get(Counter::MaterializedBytes).saturating_sub(before.get(Counter::MaterializedBytes)),
    ))
}

/// Waits until the process has no views and makes no more.
fn wait(pid: u32) -> Result<Snapshot, ReleaseError> {
    let start = Instant::now();
    let mut shows_progress = false;
    let result = loop {
        let snapshot = counters(pid)?.snapshot;
        let views = snapshot.get(Counter::Views);
        if snapshot.reason.as_deref() == Some(REASON_RELEASED) && views == 0 {
            break Ok(snapshot);
        }
        if start.elapsed() > TIMEOUT {
            break Err(ReleaseError::TooSlow { pid, views });
        }
        if start.elapsed() > PROGRESS_AFTER && std::io::stderr().is_terminal() {
            shows_progress = true;
            // A lost progress line does not matter.
            let _ = write!(std::io::stderr(), "\r{views} views left \x1b[K");
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    if shows_progress {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    result
}
