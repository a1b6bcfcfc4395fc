//! Kernel resources that a program uses: page faults, peak memory, system calls. For tests that
//! compare a program plain and under `libuncopy.so`.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::artifacts;
use crate::scratch::Scratch;

/// Whether the library is loaded into a program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Started without the library.
    No,
    /// Started with the library and default options.
    Yes,
}

/// Resources used by a program and the children that it waited for.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Page faults that needed no input.
    pub faults: i64,
    /// Peak resident memory of the largest process, KiB.
    pub peak_kib: i64,
}

/// Returns a command, with or without the library.
fn command(script: &str, loaded: Loaded, directory: &Path, wrapper: &[&str]) -> Command {
    let mut command = Command::new("/bin/sh");
    let preload = if loaded == Loaded::Yes { artifacts::library() } else { std::path::PathBuf::new() };
    // The shell itself is not measured, only the program that it executes.
    let exec = format!("exec \"$@\" env LD_PRELOAD={} sh -c 'exec {script}'", preload.display());
    command.args(["-c", &exec, "sh"]).args(wrapper).current_dir(directory);
    command.env_remove("LD_PRELOAD").env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// Runs a command (`program arguments`, without single quotes) and returns its resource usage.
///
/// # Panics
/// When the command cannot be started or fails.
#[must_use]
#[allow(clippy::zombie_processes, reason = "wait4 waits for it, and tells what it took")]
pub fn usage(script: &str, loaded: Loaded, scratch: &Scratch) -> Usage {
    let output = File::create(scratch.join("usage.out")).expect("output file");
    let mut command = command(script, loaded, scratch.path(), &[]);
    let child = command.stdout(output).spawn().expect("a shell");
    // SAFETY: an all-zero rusage is a valid buffer for wait4 to fill.
    let (mut status, mut rusage) = (0, unsafe { core::mem::zeroed::<libc::rusage>() });
    // SAFETY: both pointers point to locals; the child is this function's own, so nothing else waits for it.
    let waited = unsafe { libc::wait4(child.id().cast_signed(), &raw mut status, 0, &raw mut rusage) };
    assert_eq!(waited, child.id().cast_signed(), "{script}");
    assert_eq!(status, 0, "{script} ({loaded:?})");
    Usage { faults: rusage.ru_minflt, peak_kib: rusage.ru_maxrss }
}

/// Counts the system calls of a command and its children, by name (as for `strace -e trace`).
///
/// # Panics
/// When the command cannot be traced or fails.
#[must_use]
pub fn system_calls(script: &str, names: &str, loaded: Loaded, scratch: &Scratch) -> BTreeMap<String, usize> {
    let trace = scratch.join("trace");
    let wrapper = ["/usr/bin/strace", "-f", "-qq", "-e", "signal=none", "-e", names, "-o"];
    let wrapper: Vec<&str> =
        wrapper.into_iter().chain([trace.to_str().expect("a scratch directory's name")]).collect();
    let output = File::create(scratch.join("trace.out")).expect("output file");
    let status = command(script, loaded, scratch.path(), &wrapper).stdout(output).status().expect("strace");
    assert!(status.success(), "{script} ({loaded:?}): {status}");
    let mut calls = BTreeMap::new();
    for line in std::fs::read_to_string(trace).expect("a trace").lines() {
        let call = line.trim_start().split_once(' ').map_or(line, |(_, call)| call.trim_start());
        let name = call.strip_prefix("<... ").map_or_else(
            || call.split('(').next().unwrap_or_default(),
            // The second half of a call that another thread's call interrupted in the output.
            |_| "",
        );
        if !name.is_empty() {
            *calls.entry(name.to_owned()).or_insert(0) += 1;
        }
    }
    calls
}
