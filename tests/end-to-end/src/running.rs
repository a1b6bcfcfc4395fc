//! A running program: waiting with a deadline, signals, and a report of every thread when the
//! program hangs. Dropping the value kills the program and its process group.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use uncopy_core::stats::Counter;
use uncopy_testbed::Process;
use uncopy_testbed::processes::{Pid, Signal, descendants};

use crate::counters::Counters;
use crate::mode::Mode;
use crate::scratch::{HANG_LIMIT, try_wait_until};

/// A program that was started and not yet waited for, the leader of its own process group.
#[derive(Debug)]
pub struct Running {
    process: Process,
    mode: Mode,
    stats: PathBuf,
    output: PathBuf,
    errors: PathBuf,
}

/// Result of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit status of the program.
    pub status: ExitStatus,
    /// Bytes written to standard output.
    pub output: Vec<u8>,
    /// Text written to standard error.
    pub errors: String,
    /// Counters; `None` when started plain.
    pub counters: Option<Counters>,
    /// Mode in which the program was started.
    pub mode: Mode,
    title: String,
}

impl Running {
    pub(crate) fn new(
        process: Process,
        mode: Mode,
        stats: PathBuf,
        output: PathBuf,
        errors: PathBuf,
    ) -> Self {
        Self { process, mode, stats, output, errors }
    }

    /// Process id of the program.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid().as_raw_pid().cast_unsigned()
    }

    /// Returns a memory field of the program's `/proc/PID/status`, in bytes.
    ///
    /// # Panics
    /// When the program has ended.
    #[must_use]
    pub fn status_bytes(&self, field: &str) -> u64 {
        self.process.status_bytes(field).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Returns the standard output so far.
    ///
    /// # Panics
    /// When the file is gone.
    #[must_use]
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).expect("output file")).into_owned()
    }

    /// Returns the standard error so far.
    ///
    /// # Panics
    /// When the file is gone.
    #[must_use]
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.errors).expect("error file")).into_owned()
    }

    /// Waits until a whole line that begins with `prefix` was printed; returns the rest of the line.
    ///
    /// # Panics
    /// When the line does not come in time.
    #[must_use]
    pub fn wait_for_line(&self, prefix: &str) -> String {
        try_wait_until(|| {
            let output = self.output();
            let full_lines = &output[..output.rfind('\n')?];
            full_lines.lines().find_map(|line| line.strip_prefix(prefix)).map(|rest| rest.trim().to_owned())
        })
        .unwrap_or_else(|| {
            let (output, counters) = (self.output(), self.live_counters());
            panic!(
                "waited in vain for the line {prefix:?} of {}\n--- output\n{output}\n--- errors\n{}\n{counters:?}",
                self.process.title(),
                self.errors()
            )
        })
    }

    /// Whether the program has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: i32) {
        self.process.signal(Signal::from_named_raw(signal).expect("a signal"));
    }

    /// Live counters of the program; `None` if the program has no stats file yet or was started plain.
    #[must_use]
    pub fn live_counters(&self) -> Option<Counters> {
        if self.mode == Mode::Plain { None } else { Counters::live(self.pid()) }
    }

    /// Waits for the end of the program.
    ///
    /// # Panics
    /// When the program hangs: the message holds the state of every thread.
    pub fn finish(self) -> Finished {
        self.finish_within(HANG_LIMIT)
    }

    /// Waits for the end of a program that may take longer than [`HANG_LIMIT`].
    ///
    /// # Panics
    /// When the program takes longer than `limit`: the message holds the state of every thread.
    pub fn finish_within(self, limit: Duration) -> Finished {
        self.try_finish(limit).unwrap_or_else(|hang| panic!("{hang}"))
    }

    /// Waits for the end of the program.
    ///
    /// # Errors
    /// The state of every thread, when the program takes longer than `limit`.
    ///
    /// # Panics
    /// When the output files are gone.
    pub fn try_finish(mut self, limit: Duration) -> Result<Finished, String> {
        let start = Instant::now();
        let Some(status) = self.process.wait(limit).map_err(|failure| failure.to_string())? else {
            let report = hang_report(self.pid());
            let (title, errors) = (self.process.title(), self.errors());
            return Err(format!("{title} still runs after {:?}\n{errors}\n{report}", start.elapsed()));
        };
        Ok(Finished {
            status,
            output: std::fs::read(&self.output).expect("output file"),
            errors: self.errors(),
            counters: if self.mode == Mode::Plain { None } else { Counters::read(&self.stats) },
            mode: self.mode,
            title: self.process.title().to_owned(),
        })
    }

    /// Asks the program to end with `signal` and waits for it.
    ///
    /// # Panics
    /// When the program hangs.
    pub fn stop(self, signal: i32) -> Finished {
        self.signal(signal);
        self.finish()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A panicked test may have waited for this program, which is killed when `process` is dropped.
        if std::thread::panicking() && !self.process.is_reaped() {
            let state = if self.has_ended() { "(ended)".to_owned() } else { hang_report(self.pid()) };
            eprintln!("{}\n{}{}{state}", self.process.title(), self.output(), self.errors());
        }
    }
}

impl Finished {
    /// Fails unless the program ended with status 0 and uncopy did not complain.
    ///
    /// # Panics
    /// With the program's output.
    #[must_use]
    pub fn expect_success(self) -> Self {
        assert!(self.status.success(), "{} ended with {}\n{}", self.title, self.status, self.text());
        self.expect_no_complaint()
    }

    /// Fails unless the program was ended by `signal` and uncopy did not complain.
    ///
    /// # Panics
    /// With the program's output.
    #[must_use]
    pub fn expect_signal(self, signal: i32) -> Self {
        assert_eq!(self.status.signal(), Some(signal), "{}: {}\n{}", self.title, self.status, self.text());
        self.expect_no_complaint()
    }

    /// Standard error without messages that uncopy waits for a log, which are to be expected where a disk is slow.
    #[must_use]
    pub fn errors_but_waits(&self) -> String {
        self.errors.split_inclusive('\n').filter(|line| !line.starts_with("uncopy: waiting ")).collect()
    }

    /// Whether uncopy printed anything to standard error, but that it waits.
    #[must_use]
    pub fn has_complaint(&self) -> bool {
        self.errors_but_waits().lines().any(|line| line.starts_with("uncopy: "))
    }

    /// Fails when uncopy printed anything to standard error, but that it waits.
    fn expect_no_complaint(self) -> Self {
        assert!(!self.has_complaint(), "{} complained: {}", self.title, self.text());
        self
    }

    /// Fails unless each of `expected` is above zero. Not checked for plain programs, and in modes
    /// that do not force elision.
    ///
    /// # Panics
    /// When a counter is zero or there are no counters.
    #[must_use]
    pub fn expect_counters(self, expected: &[Counter]) -> Self {
        if self.mode == Mode::Always {
            let counters = self.counters.as_ref();
            let counters =
                counters.unwrap_or_else(|| panic!("{} left no stats\n{}", self.title, self.text()));
            eprintln!("{}: {counters}", self.title);
            counters.expect_above_zero(&self.title, expected);
        }
        self
    }

    /// Output and errors, shortened, as text.
    #[must_use]
    pub fn text(&self) -> String {
        let output = String::from_utf8_lossy(&self.output[..self.output.len().min(4000)]).into_owned();
        let skipped = self.errors.chars().count().saturating_sub(8000);
        let errors: String = self.errors.chars().skip(skipped).collect();
        format!("--- output\n{output}\n--- errors\n{errors}")
    }
}

/// Returns the state of every thread of a process and of its descendants: the kernel function each
/// waits in, and the stack when gdb is installed.
#[must_use]
pub fn hang_report(pid: u32) -> String {
    let mut report = String::new();
    let family = Pid::from_raw(pid.cast_signed()).map(descendants::of).unwrap_or_default();
    for pid in family.into_iter().map(Pid::as_raw_pid) {
        let process = PathBuf::from(format!("/proc/{pid}"));
        report += &format!("=== process {pid}\n");
        for task in std::fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
            report += &format!("--- thread {}\n", task.file_name().to_string_lossy());
            for file in ["comm", "wchan", "syscall", "stack"] {
                let text =
                    std::fs::read_to_string(task.path().join(file)).unwrap_or_else(|error| error.to_string());
                report += &format!("{file}: {}\n", text.trim_end());
            }
        }
        report += &gdb_stacks(pid);
    }
    report
}

/// Returns gdb's stacks of a process. Bounded in time, because gdb stops the handler thread, and
/// reading the process's memory may cause faults that only this thread can serve.
fn gdb_stacks(pid: i32) -> String {
    if !Path::new("/usr/bin/gdb").exists() {
        return "(gdb is not installed: apt-get install gdb shows the stacks here)\n".to_owned();
    }
    let gdb = Command::new("timeout")
        .args(["-s", "KILL", "20", "/usr/bin/gdb", "-nx", "-batch", "-p", &pid.to_string()])
        .args(["-ex", "thread apply all bt 30"])
        .output();
    match gdb {
        Ok(gdb) => String::from_utf8_lossy(&gdb.stdout).into_owned(),
        Err(error) => format!("gdb: {error}\n"),
    }
}
