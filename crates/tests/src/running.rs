//! A running program: waiting with a deadline, signals, and a report of every thread when it
//! hangs. Dropping it kills the program and whatever it started.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use uncopy_core::stats::Counter;

use crate::counters::Counters;
use crate::mode::Mode;
use crate::scratch::try_wait_until;

/// A program that was started and not yet waited for. It leads a process group of its own.
#[derive(Debug)]
pub struct Running {
    child: Child,
    exit: OwnedFd,
    title: String,
    mode: Mode,
    stats: PathBuf,
    output: PathBuf,
    errors: PathBuf,
    reaped: bool,
}

/// What a program left behind.
#[derive(Debug)]
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub output: Vec<u8>,
    /// Standard error.
    pub errors: String,
    /// Counters; `None` when started plain.
    pub counters: Option<Counters>,
    /// How it was started.
    pub mode: Mode,
    title: String,
}

impl Running {
    pub(crate) fn new(
        child: Child,
        title: String,
        mode: Mode,
        stats: PathBuf,
        output: PathBuf,
        errors: PathBuf,
    ) -> Self {
        // SAFETY: pidfd_open takes two integers; the child was not waited for, so its pid is its own.
        let exit = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
        let exit = i32::try_from(exit).expect("descriptor");
        assert!(exit >= 0, "pidfd_open: {}", std::io::Error::last_os_error());
        // SAFETY: pidfd_open returned a descriptor that nothing else owns.
        let exit = unsafe { OwnedFd::from_raw_fd(exit) };
        Self { child, exit, title, mode, stats, output, errors, reaped: false }
    }

    /// Process id of the program.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A field of its `/proc/PID/status` that is memory, bytes.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn status_bytes(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("of Linux 4.5 on");
        1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("kibibytes")
    }

    /// What it printed to standard output so far.
    ///
    /// # Panics
    /// When the file is gone.
    #[must_use]
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).expect("output file")).into_owned()
    }

    /// What it printed to standard error so far.
    ///
    /// # Panics
    /// When the file is gone.
    #[must_use]
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.errors).expect("error file")).into_owned()
    }

    /// Waits until it has printed a whole line that begins with `prefix`; gives the rest of it.
    ///
    /// # Panics
    /// When the line does not come in time.
    #[must_use]
    pub fn wait_for_line(&self, prefix: &str) -> String {
        try_wait_until(|| {
            let output = self.output();
            let whole = &output[..output.rfind('\n')?];
            whole.lines().find_map(|line| line.strip_prefix(prefix)).map(|rest| rest.trim().to_owned())
        })
        .unwrap_or_else(|| {
            let (said, counters) = (self.output(), self.live_counters());
            panic!(
                "waited in vain for the line {prefix:?} of {}\n--- output\n{said}\n--- errors\n{}\n{counters:?}",
                self.title,
                self.errors()
            )
        })
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.wait_for_exit(Duration::ZERO)
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the child was not waited for, so the pid is its own.
        unsafe { libc::kill(self.child.id().cast_signed(), signal) };
    }

    /// Live counters of the program; `None` if it did no real work yet or was started plain.
    #[must_use]
    pub fn live_counters(&self) -> Option<Counters> {
        if self.mode == Mode::Plain { None } else { Counters::live(self.pid()) }
    }

    fn wait_for_exit(&self, limit: Duration) -> bool {
        let mut poll = libc::pollfd { fd: self.exit.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: `poll` is one valid pollfd.
        unsafe { libc::poll(&raw mut poll, 1, limit_ms) > 0 }
    }

    /// Kills what is left of the process group, then takes the exit status.
    fn reap(&mut self) -> ExitStatus {
        // SAFETY: the group's leader is not reaped yet, so the group is the one made for it.
        unsafe { libc::kill(-self.child.id().cast_signed(), libc::SIGKILL) };
        self.reaped = true;
        self.child.wait().expect("exit status of a child")
    }

    /// Waits for the end of the program.
    ///
    /// # Panics
    /// When it takes longer than `limit`: the message holds the state of every thread.
    pub fn finish(self, limit: Duration) -> Finished {
        self.try_finish(limit).unwrap_or_else(|hang| panic!("{hang}"))
    }

    /// Waits for the end of the program.
    ///
    /// # Errors
    /// When it takes longer than `limit`: the state of every thread.
    ///
    /// # Panics
    /// When the files of its output are gone.
    pub fn try_finish(mut self, limit: Duration) -> Result<Finished, String> {
        let start = Instant::now();
        if !self.wait_for_exit(limit) {
            let report = hang_report(self.pid());
            let (title, errors) = (&self.title, self.errors());
            return Err(format!("{title} still runs after {:?}\n{errors}\n{report}", start.elapsed()));
        }
        let status = self.reap();
        Ok(Finished {
            status,
            output: std::fs::read(&self.output).expect("output file"),
            errors: self.errors(),
            counters: if self.mode == Mode::Plain { None } else { Counters::read(&self.stats) },
            mode: self.mode,
            title: self.title.clone(),
        })
    }

    /// Asks the program to end with `signal` and waits for it.
    ///
    /// # Panics
    /// When it takes longer than twenty seconds.
    pub fn stop(self, signal: i32) -> Finished {
        self.signal(signal);
        self.finish(Duration::from_secs(20))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.reaped {
            if std::thread::panicking() {
                // What the test waited for in vain may be this program's.
                let state = if self.has_ended() { "(ended)".to_owned() } else { hang_report(self.pid()) };
                eprintln!("{}\n{}{}{state}", self.title, self.output(), self.errors());
            }
            // Killed right after; its status says nothing.
            let _ = self.reap();
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

    /// Whether uncopy printed anything to standard error.
    #[must_use]
    pub fn has_complaint(&self) -> bool {
        self.errors.lines().any(|line| line.starts_with("uncopy: "))
    }

    /// Fails when uncopy printed anything to standard error.
    fn expect_no_complaint(self) -> Self {
        assert!(!self.has_complaint(), "{} complained: {}", self.title, self.text());
        self
    }

    /// Fails unless each of `expected` is above zero (not when started plain, and not in a mode
    /// that does not force elision).
    ///
    /// # Panics
    /// When one is zero or there are no counters.
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

/// The state of every thread of a process and of its descendants: what each waits for in the
/// kernel, and its stack when gdb is there.
#[must_use]
pub fn hang_report(pid: u32) -> String {
    let mut report = String::new();
    for pid in with_descendants(pid) {
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

/// gdb's view of a process. Bounded, because gdb stops the thread that would serve the faults
/// that reading the process's memory can raise.
fn gdb_stacks(pid: u32) -> String {
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

/// `pid` and every process that descends from it.
fn with_descendants(pid: u32) -> Vec<u32> {
    let mut family = vec![pid];
    let mut index = 0;
    while index < family.len() {
        for task in std::fs::read_dir(format!("/proc/{}/task", family[index])).into_iter().flatten().flatten()
        {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            family.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
        index += 1;
    }
    family
}
