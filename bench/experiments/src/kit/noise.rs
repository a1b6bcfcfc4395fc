//! Noise reduction, as far as permitted: idle loops that keep processors awake, and a raised priority.
//!
//! A virtual machine's processor that goes idle between two messages has to wait for its host at every wake-up; on a
//! loaded host a 512 KiB echo falls from 3,300 to 130 per second for minutes. A SCHED_IDLE loop on each processor
//! keeps it awake.
//!
//! Where the kernel groups programs by session (`sched_autogroup_enabled`), classes and priorities count within a
//! session only, and all sessions get equal shares: a SCHED_IDLE loop would take half of a processor from everybody
//! else, and the server would share its own with other terminals. (Measured beside such loops: Redis GET of 256 KiB
//! 2,000 to 7,000 per second; with the session's priority raised 22,000.) So each loop is a session of its own with
//! the lowest priority, and this program's session has the highest.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, setpriority_process};

use crate::kit::processes::cleanup;
use crate::kit::processes::process::Process;
use crate::kit::processors;
use crate::kit::side::{Launcher, Side};

/// Nice value of servers and clients, where this program may lower it.
const NICE: i32 = -10;
/// Nice value of this program's session among the others (autogroup, sched(7)).
const SESSION_NICE: i32 = -20;
/// File with the nice value of this process's session, where the kernel groups by session (sched(7)).
pub const AUTOGROUP_FILE: &str = "/proc/self/autogroup";

static IDLE_LOOPS_ENABLED: AtomicBool = AtomicBool::new(true);

static HAS_PRIORITY: AtomicBool = AtomicBool::new(false);

/// True if this program's session has priority over all others.
#[must_use]
pub fn has_priority() -> bool {
    HAS_PRIORITY.load(Ordering::Relaxed)
}

/// Sets whether [`NoiseReduction::begin`] starts idle loops.
pub fn enable_idle_loops(enabled: bool) {
    IDLE_LOOPS_ENABLED.store(enabled, Ordering::Relaxed);
}

/// True if idle loops take all the time that is left, so that missing time was used by others.
#[must_use]
pub fn has_idle_loops() -> bool {
    IDLE_LOOPS_ENABLED.load(Ordering::Relaxed)
}

/// Idle loops on all processors and a raised priority, both until dropped.
#[derive(Debug)]
pub struct NoiseReduction {
    loops: Vec<Process>,
    refused: Vec<String>,
}

impl NoiseReduction {
    /// Starts the loops, and raises the priority of this program and all its descendants, as far as permitted.
    #[must_use]
    pub fn begin(launcher: &Launcher) -> Self {
        let (mut loops, mut refused) = (Vec::new(), Vec::new());
        if has_idle_loops() {
            for number in processors::available() {
                let arguments = ["idle-loop".to_owned(), format!("--processor={number}")];
                match Process::start(launcher.bench_command(Side::Plain, &arguments), "an idle loop") {
                    Ok(process) => loops.push(process),
                    Err(failure) => refused.push(failure.to_string()),
                }
            }
        } else {
            refused.push("idle loops: switched off".to_owned());
        }
        let mut has_priority = true;
        if let Err(error) = setpriority_process(None, NICE) {
            has_priority = false;
            refused.push(format!("priority {NICE}: {error}"));
        }
        if let Some(before) = session_nice() {
            cleanup::registry().change(Path::new(AUTOGROUP_FILE), before.to_string());
            if let Err(error) = std::fs::write(AUTOGROUP_FILE, SESSION_NICE.to_string()) {
                has_priority = false;
                refused.push(format!("the session's priority {SESSION_NICE}: {error}"));
            }
        }
        HAS_PRIORITY.store(has_priority, Ordering::Relaxed);
        Self { loops, refused }
    }

    /// Describes the loops and the priority, or what was refused, for the machine's description.
    #[must_use]
    pub fn describe(&self) -> String {
        if self.refused.is_empty() {
            return format!("kept awake by {} idle loops, raised priority", self.loops.len());
        }
        format!("without {}", self.refused.join("; without "))
    }
}

impl Drop for NoiseReduction {
    fn drop(&mut self) {
        HAS_PRIORITY.store(false, Ordering::Relaxed);
        cleanup::registry().restore(Path::new(AUTOGROUP_FILE));
    }
}

/// Raises the priority of the session of `pid`, a descendant that may have created a session of its own.
pub fn raise_session(pid: Pid) {
    // A refusal was already reported when [`NoiseReduction::begin`] raised the priority.
    let _ = std::fs::write(format!("/proc/{}/autogroup", pid.as_raw_pid()), SESSION_NICE.to_string());
}

/// Returns the nice value of this process's session.
fn session_nice() -> Option<i32> {
    parse_nice(&std::fs::read_to_string(AUTOGROUP_FILE).ok()?)
}

/// Parses the number at the end of `/autogroup-7 nice 0`.
fn parse_nice(session: &str) -> Option<i32> {
    session.trim().rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_is_the_last_word_of_a_session() {
        assert_eq!(parse_nice("/autogroup-843 nice -20\n"), Some(-20));
        assert_eq!(parse_nice("/autogroup-1 nice 0\n"), Some(0));
        assert_eq!((parse_nice(""), parse_nice("/autogroup-1 nice")), (None, None));
    }
}
