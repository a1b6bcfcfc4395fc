//! Programs with a log, on file systems of their own that scripts mount in private namespaces.

use std::ffi::OsStr;

use crate::artifacts::{bin_dir, script};
use crate::random::test_size;
use crate::running::Finished;
use crate::scratch::HANG_LIMIT;
use crate::{Mode, Program, Scratch};

/// Whether file systems can be mounted here; prints a message if not.
#[must_use]
pub fn can_mount(test: &str) -> bool {
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        eprintln!("skipped: {test}: only root can mount file systems");
    }
    is_root
}

/// Returns the number of cycles of each kind: `full` in tests as large as in `make test-all`, one at least.
#[must_use]
pub fn scaled_cycles(full: u64) -> u64 {
    (full * test_size()).div_ceil(10)
}

/// Runs the first script in a mount namespace of its own, with the arguments `uncopy`, the other scripts, a
/// directory in memory, and `arguments`. Returns the output, with a line that begins with `checked `.
///
/// # Panics
/// When the script fails, prints no such line, or hangs.
pub fn run_script<S: AsRef<OsStr>>(scripts: &[&str], title: &str, arguments: &[S]) -> String {
    let scratch = Scratch::in_memory("store");
    let directory = scratch.directory("room");
    let (first, others) = scripts.split_first().expect("a script");
    let done: Result<Finished, String> = Program::new("/usr/bin/unshare")
        .args(["--mount", "--propagation", "private", "bash"])
        .args([script(first), bin_dir().join("uncopy")])
        .args(others.iter().map(|name| script(name)))
        .args([directory])
        .args(arguments)
        .mode(Mode::Plain)
        .start(&scratch, "script")
        .try_finish(HANG_LIMIT);
    let output = match &done {
        Ok(done) if done.status.success() => String::from_utf8_lossy(&done.output).into_owned(),
        _ => String::new(),
    };
    if !output.contains("checked ") {
        let text = done.map_or_else(|hang| hang, |done| done.text());
        panic!("{title}, in {} (UNCOPY_TEST_KEEP=1 keeps it): {text}", scratch.path().display());
    }
    output
}
