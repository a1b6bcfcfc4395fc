//! Programs with a log, on file systems of their own, which scripts mount in namespaces of their own.

use std::ffi::OsStr;
use std::time::Duration;

use crate::artifacts::{bin_dir, script};
use crate::running::Finished;
use crate::{Mode, Program, Scratch};

/// A script takes some seconds; a hang takes longer.
const LIMIT: Duration = Duration::from_secs(150);

/// Whether file systems can be mounted here; says so if not.
#[must_use]
pub fn can_mount(test: &str) -> bool {
    // SAFETY: no requirements.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        eprintln!("skipped: {test}: only root can mount file systems");
    }
    is_root
}

/// How many lives of each kind: `UNCOPY_TEST_LIVES`, or this many.
///
/// # Panics
/// When the variable is no number.
#[must_use]
pub fn lives(ordinary: u64) -> u64 {
    std::env::var("UNCOPY_TEST_LIVES")
        .map_or(ordinary, |text| text.parse().expect("UNCOPY_TEST_LIVES: a number"))
}

/// Runs the first of these scripts with a mount namespace of its own: its arguments are `uncopy`, the other scripts, a directory in
/// memory, and these. What it printed, of which one line begins with `checked `.
///
/// # Panics
/// When it fails, says nothing of the kind, or hangs.
pub fn run_script<S: AsRef<OsStr>>(scripts: &[&str], title: &str, arguments: &[S]) -> String {
    let scratch = Scratch::in_memory("store");
    let room = scratch.directory("room");
    let (first, others) = scripts.split_first().expect("a script");
    let done: Result<Finished, String> = Program::new("/usr/bin/unshare")
        .args(["--mount", "--propagation", "private", "bash"])
        .args([script(first), bin_dir().join("uncopy")])
        .args(others.iter().map(|name| script(name)))
        .args([room])
        .args(arguments)
        .mode(Mode::Plain)
        .start(&scratch, "script")
        .try_finish(LIMIT);
    let said = match &done {
        Ok(done) if done.status.success() => String::from_utf8_lossy(&done.output).into_owned(),
        _ => String::new(),
    };
    if !said.contains("checked ") {
        let text = done.map_or_else(|hang| hang, |done| done.text());
        panic!("{title}, in {} (UNCOPY_TEST_KEEP=1 keeps it): {text}", scratch.path().display());
    }
    said
}
