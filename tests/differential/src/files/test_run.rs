//! One program of files, run plain and with a log, with the results compared.

use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use uncopy_core::options::LogMode;
use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::bin_dir;
use uncopy_tests::counters::Counters;
use uncopy_tests::launch::{Mode, Program as Command};
use uncopy_tests::log_runs::EMULATES;
use uncopy_tests::running::Running;
use uncopy_tests::scratch::Scratch;

use crate::program::MAX_WORKERS;
use crate::progress::Progress;
use crate::test_run::{ProgramSource, Report, TestRun};

/// Log size in bytes: the minimum, so that the log is full now and then.
const LOG_BYTES: &str = "16777216";
/// Number of further plain runs that must agree before a difference counts. The result of mixed
/// direct and buffered writes to one file depends on when the kernel writes pages back, about once
/// in ten runs (open(2), "O_DIRECT").
const PLAIN_RUNS: usize = 16;
/// Number of trace lines shown before a difference.
const LINES_BEFORE: usize = 6;

/// Whether files of this directory can take part in a log: see `uncopy_store::mark`.
#[must_use]
pub fn supports_log(directory: &Path) -> bool {
    let Ok(name) = std::ffi::CString::new(directory.as_os_str().as_encoded_bytes()) else { return false };
    // SAFETY: `name` is NUL-terminated and lives through the call; an all-zero `statfs` is valid
    // and lives through it too.
    let magic = unsafe {
        let mut found: libc::statfs = core::mem::zeroed();
        (libc::statfs(name.as_ptr(), &raw mut found) == 0).then_some(found.f_type)
    };
    magic.is_some_and(|magic| [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010].contains(&magic))
}

/// One run: parameters and paths.
struct RunSpec<'a> {
    test_run: &'a TestRun,
    scratch: &'a Scratch,
    program: &'a Path,
    /// Directory of the log.
    log: &'a Path,
    /// Name of the run, which its files are named after.
    name: String,
    is_logged: bool,
    min_size: &'static str,
}

/// Result of a run.
struct RunResult {
    /// Recorded result of each call.
    trace: String,
    /// Files at the end: length, link count and digest of the contents.
    files: BTreeMap<String, (u64, u64, u64)>,
    counters: Option<Counters>,
    failure: Option<String>,
}

impl RunSpec<'_> {
    fn progress(&self) -> PathBuf {
        self.scratch.join(&format!("{}.progress", self.name))
    }

    fn start(&self, directory: &Path) -> Running {
        let trace = self.scratch.join(&format!("{}.trace", self.name));
        let mut arguments: Vec<PathBuf> = Vec::new();
        if self.is_logged {
            let stats = self.scratch.join(&format!("{}.counters", self.name));
            arguments.extend(["run", "--policy", "always", "--min-size", self.min_size].map(PathBuf::from));
            let log_mode = self.test_run.log_mode;
            arguments.extend(["--log-size", LOG_BYTES, "--log-mode", log_mode.word()].map(PathBuf::from));
            arguments.extend((log_mode == LogMode::Only).then(|| "--log-emulate-dax".into()));
            arguments.extend(["--log".into(), self.log.to_owned()]);
            arguments.extend(["--stats".into(), stats, "--".into(), self.test_run.machine.clone()]);
        }
        arguments.extend(["execute-files".into(), "--program".into(), self.program.to_owned()]);
        arguments.extend(["--progress".into(), self.progress(), "--trace".into(), trace]);
        if self.is_logged {
            arguments.extend(["--warm".into(), self.scratch.join("warm")]);
        }
        // The tests' own variables must not act as options.
        let own_variables = std::env::vars_os().map(|variable| variable.0);
        let own_variables = own_variables.filter(|name| name.to_string_lossy().starts_with("UNCOPY_"));
        let unset: Vec<PathBuf> = own_variables.flat_map(|name| ["-u".into(), name.into()]).collect();
        let path = if self.is_logged { bin_dir().join("uncopy") } else { self.test_run.machine.clone() };
        let arguments = unset.into_iter().chain([path]).chain(arguments);
        Command::new("/usr/bin/env")
            .args(arguments)
            .mode(Mode::Plain)
            .directory(directory)
            .start(self.scratch, &self.name)
    }

    fn run(&self) -> RunResult {
        let directory = self.scratch.directory(&self.name);
        let done = self.start(&directory).try_finish(self.test_run.limit);
        let failure = match done {
            Err(hang) => Some(hang),
            Ok(done) if done.status.success() && ["", EMULATES].contains(&&*done.errors_but_waits()) => None,
            Ok(done) => Some(format!("{}: {}\n{}", self.name, done.status, done.errors)),
        };
        let counters = self.scratch.join(&format!("{}.counters", self.name));
        RunResult {
            trace: std::fs::read_to_string(self.scratch.join(&format!("{}.trace", self.name)))
                .unwrap_or_default(),
            // A hung process may still keep others from its files.
            files: if failure.is_none() { files(&directory) } else { BTreeMap::new() },
            counters: if self.is_logged { Counters::read(&counters) } else { None },
            failure,
        }
    }
}

/// Returns length, link count and digest of each file of a directory.
fn files(directory: &Path) -> BTreeMap<String, (u64, u64, u64)> {
    let entries = directory.read_dir().expect("the directory");
    entries
        .map(|entry| {
            let entry = entry.expect("an entry");
            let bytes = std::fs::read(entry.path()).expect("a file");
            let links = entry.metadata().expect("a file").nlink();
            let digest = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |digest, byte| {
                (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
            (entry.file_name().to_string_lossy().into_owned(), (bytes.len() as u64, links, digest))
        })
        .collect()
}

/// Returns the first difference of two traces: the operation's number, and both lines.
fn trace_difference(plain: &str, logged: &str) -> Option<(usize, String)> {
    let (mut plain_lines, mut logged_lines) = (plain.lines(), logged.lines());
    let mut before: Vec<&str> = Vec::new();
    loop {
        let (one, other) = (plain_lines.next(), logged_lines.next());
        if one == other {
            before.push(one?);
            continue;
        }
        let line = one.or(other)?;
        let operation_index = line.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let before = before[before.len().saturating_sub(LINES_BEFORE)..].join("\n");
        let (one, other) = (one.unwrap_or("nothing"), other.unwrap_or("nothing"));
        return Some((operation_index, format!("{before}\nplain: {one}\nlog:   {other}\n")));
    }
}

impl RunResult {
    /// Returns the first difference from another result: the operation's number, and a description.
    fn first_difference(&self, other: &Self) -> Option<(usize, String)> {
        trace_difference(&self.trace, &other.trace).or_else(|| {
            let what = || format!("the files: plain {:?}\nlog {:?}\n", self.files, other.files);
            (self.files != other.files).then(|| (usize::MAX, what()))
        })
    }
}

/// Runs a program plain and with a log, and compares the results.
///
/// # Panics
/// If the binary or the library does not exist.
#[must_use]
pub fn run(test_run: &TestRun, source: ProgramSource) -> Report {
    let scratch = Scratch::on_disk("files");
    let memory = Scratch::in_memory("files");
    let log = match test_run.log_mode {
        LogMode::Beside => scratch.join("log"),
        LogMode::Only => memory.join("log"),
    };
    std::fs::DirBuilder::new().mode(0o700).create(&log).expect("a directory");
    let (text, seed) = match source {
        ProgramSource::Seed(seed, operations) => {
            (super::generator::generate(seed, operations, test_run.log_mode).to_string(), seed)
        }
        ProgramSource::Program(program) => (program.to_string(), program.seed),
    };
    let program = scratch.write("program", text);
    let min_size = if seed.is_multiple_of(2) { "4096" } else { "16384" };
    let run_spec = |name: &str, is_logged| {
        let name = name.to_owned();
        RunSpec { test_run, scratch: &scratch, program: &program, log: &log, name, is_logged, min_size }
    };
    let (plain_run, logged_run) = (run_spec("plain", false), run_spec("logged", true));
    let plain = plain_run.run();
    let logged = logged_run.run();
    let page = Progress::open(&logged_run.progress());
    let mut reached = page.reached();
    let mut failure = None;
    if let Some((operation_index, what)) = plain.first_difference(&logged) {
        // A difference also between plain runs is no fault of the log, such as bytes spliced from a
        // file into itself.
        let again = (0..PLAIN_RUNS)
            .find_map(|number| plain.first_difference(&run_spec(&format!("again{number}"), false).run()));
        if plain.failure.is_none() && again.is_none() {
            reached = [None; MAX_WORKERS];
            reached[0] = Some(operation_index).filter(|operation_index| *operation_index < usize::MAX);
            failure = Some(what);
        } else {
            eprintln!("seed {seed}: not the same when run plain twice: {again:?}");
        }
    }
    for message in [&plain, &logged].into_iter().filter_map(|done| done.failure.as_ref()) {
        let last: Vec<&str> = logged.trace.lines().rev().take(LINES_BEFORE).collect();
        failure = Some(failure.unwrap_or_default() + message + "\nlast:\n" + &last.join("\n"));
    }
    let counter = |counter: &Counter| logged.counters.as_ref().map_or(0, |counters| counters.get(*counter));
    Report {
        kinds: page.kinds(),
        in_children: page.in_children(),
        counters: Counter::ALL.iter().map(counter).collect(),
        failure,
        reached,
    }
}
