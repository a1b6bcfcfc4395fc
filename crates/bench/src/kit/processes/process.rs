//! Processes that this program starts: servers and short-lived helpers. All of them end with it,
//! every wait for them is bounded, and they are signalled by pid only.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process, pidfd_open, pidfd_send_signal,
    setrlimit,
};

use crate::kit::failure::{Failure, Result, While};
use crate::kit::network;
use crate::kit::processes::cleanup::{TemporaryDirectory, registry};
use crate::kit::processes::cpu_time::process_cpu_ns;
use crate::kit::processes::descendants::Held;
use crate::kit::processes::wait;

/// How long a server may take to say that it is ready, or to end when asked to.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two looks whether a server is ready.
const READY_TICK: Duration = Duration::from_millis(5);
/// Upper bound of the bytes that are read from a short-lived process.
const OUTPUT_LIMIT_BYTES: usize = 64 * 1024;
/// Name of the file that takes what a process writes to stderr.
const STDERR_FILE: &str = "stderr";

/// A started process, killed and waited for when dropped.
#[derive(Debug)]
pub struct Process {
    title: String,
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
    status: Option<ExitStatus>,
    /// Where its first child is the program that is meant: how long it itself may take to end after that.
    wraps: Option<Duration>,
    tells_signal: bool,
}

impl Process {
    /// Starts `command`; `title` names it in messages. Streams that `command` does not set are
    /// this program's own, except stdin, which is empty.
    ///
    /// # Errors
    /// [`Failure`] when it cannot be started.
    pub fn start(mut command: Command, title: &str) -> Result<Self> {
        command.stdin(Stdio::null());
        Self::start_with_input(command, title)
    }

    /// The same, where stdin is this program's own unless `command` sets it.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub fn start_with_input(mut command: Command, title: &str) -> Result<Self> {
        let what = format!("starting {title} ({})", command.get_program().display());
        let mut registry = registry();
        let mut child = command.spawn().doing(&what)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pidfd = pid.ok_or(rustix::io::Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        match (pid, pidfd) {
            (Some(pid), Ok(pidfd)) => {
                registry.add(pid);
                Ok(Self {
                    title: title.to_owned(),
                    child,
                    pid,
                    pidfd,
                    status: None,
                    wraps: None,
                    tells_signal: false,
                })
            }
            (_, pidfd) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Failure::new(format!("{what}: {:?}", pidfd.err())))
            }
        }
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits until it has ended: `None` when `timeout` passed first.
    ///
    /// # Errors
    /// [`Failure`] when waiting itself fails.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<ExitStatus>> {
        if self.status.is_none() && wait::until_readable(&self.pidfd, Some(timeout)).doing("waiting")? {
            // The pid is given back to the system and leaves the registry in one step.
            let mut registry = registry();
            self.status = Some(self.child.wait().doing(format_args!("waiting for {}", self.title))?);
            registry.remove(self.pid);
        }
        Ok(self.status)
    }

    /// Says that this process runs the program that is meant as its first child, which is the one to be asked to
    /// end, and ends itself at most `timeout` later.
    pub fn wraps_its_child(&mut self, timeout: Duration) {
        self.wraps = Some(timeout);
    }

    /// Says that this program ends with 128 and the number of the signal that asked it to.
    pub fn tells_its_signal(&mut self) {
        self.tells_signal = true;
    }

    /// Asks it to end, and kills it if it does not.
    ///
    /// # Errors
    /// [`Failure`] when it had to be killed or ended otherwise than with exit status 0, or the one that
    /// [`Process::tells_its_signal`] says.
    pub fn stop(&mut self) -> Result<()> {
        self.stop_by(Signal::TERM)
    }

    /// The same by another signal than SIGTERM.
    ///
    /// # Errors
    /// As [`Process::stop`].
    pub fn stop_by(&mut self, signal: Signal) -> Result<()> {
        if self.status.is_none() {
            let child = self.wraps.and_then(|_| Held::child(self.pid));
            let _ = match child {
                Some(child) => pidfd_send_signal(child, signal),
                None => kill_process(self.pid, signal),
            };
        }
        let timeout = self.wraps.unwrap_or(TIMEOUT);
        match self.wait(timeout)? {
            Some(status) if status.success() => Ok(()),
            Some(status) if self.tells_signal && status.code() == Some(128 + signal.as_raw()) => Ok(()),
            Some(status) => Err(Failure::new(format!("{} ended with {}", self.title, ending(status)))),
            None => {
                self.kill();
                let seconds = timeout.as_secs();
                Err(Failure::new(format!("{} did not end within {seconds} s and was killed", self.title)))
            }
        }
    }

    /// Kills it and all that came of it.
    fn kill(&mut self) {
        if self.status.is_none() {
            let below = Held::below(self.pid);
            let _ = kill_process(self.pid, Signal::KILL);
            let _ = self.wait(TIMEOUT);
            below.end(Duration::ZERO);
        }
    }

    /// Processor time that all its threads, also ended ones, have used, ns.
    ///
    /// # Errors
    /// [`Failure`] when it has ended.
    pub fn cpu_ns(&self) -> Result<u64> {
        process_cpu_ns(self.pid).doing(format_args!("reading the processor time of {}", self.title))
    }

    /// Resident memory, bytes: anonymous, file and shared pages together (`VmRSS`, which is
    /// `RssAnon + RssFile + RssShmem`).
    ///
    /// # Errors
    /// [`Failure`] when it has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        resident_bytes(self.pid)
    }

    /// A failure that says why the process is of no use any more: how it ended if it has.
    pub fn explain(&mut self, failure: &Failure) -> Failure {
        match self.wait(Duration::from_millis(200)) {
            Ok(Some(status)) => {
                Failure::new(format!("{failure} ({} ended with {})", self.title, ending(status)))
            }
            _ => failure.clone(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Lets this program and what it starts have as many descriptors as they may: so many; `None`: any number.
pub fn raise_descriptor_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current
}

/// Resident memory of a process, bytes.
///
/// # Errors
/// [`Failure`] when it has ended.
pub fn resident_bytes(pid: Pid) -> Result<u64> {
    let path = format!("/proc/{}/status", pid.as_raw_pid());
    let text = std::fs::read_to_string(&path).doing(format_args!("reading {path}"))?;
    resident_in_status(&text).ok_or_else(|| Failure::new(format!("{path} has no VmRSS")))
}

/// The value of `VmRSS` in the text of `/proc/PID/status`, bytes.
fn resident_in_status(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_owned(),
    }
}

/// A server in a temporary directory of its own, which takes its stderr.
#[derive(Debug)]
pub struct Server {
    // Dropped in this order: the process ends before its directory goes.
    process: Process,
    stdout: Option<ChildStdout>,
    directory: TemporaryDirectory,
}

impl Server {
    /// Starts `command` in `directory` and in the servers' network, with its temporary files there too. It is killed when this
    /// program's thread ends, however.
    ///
    /// # Errors
    /// [`Failure`] when it cannot be started.
    pub fn start(command: Command, title: &str, directory: TemporaryDirectory) -> Result<Self> {
        Self::start_in(command, title, directory, network::enter_servers)
    }

    /// The same in this program's own network.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_among_clients(command: Command, title: &str, directory: TemporaryDirectory) -> Result<Self> {
        Self::start_in(command, title, directory, || Ok(()))
    }

    /// `enter` is called between fork and exec: it makes async-signal-safe calls only.
    fn start_in(
        mut command: Command,
        title: &str,
        directory: TemporaryDirectory,
        enter: fn() -> io::Result<()>,
    ) -> Result<Self> {
        let stderr = File::create(directory.join(STDERR_FILE)).doing("making a file for stderr")?;
        // What a helper of its that is killed has there (a compiler) goes with the directory.
        command.env("TMPDIR", directory.path());
        command.current_dir(directory.path()).stdout(Stdio::piped()).stderr(stderr);
        let parent = std::process::id();
        let end_with_parent = move || {
            // SAFETY: prctl with PR_SET_PDEATHSIG takes a signal number and is async-signal-safe.
            if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: getppid has no preconditions.
            let alive = u32::try_from(unsafe { libc::getppid() }) == Ok(parent);
            // Otherwise this program ended before prctl and no signal will come.
            if alive { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
        };
        // SAFETY: between fork and exec the closures make three async-signal-safe calls and
        // allocate nothing.
        unsafe { command.pre_exec(end_with_parent).pre_exec(enter) };
        let mut process = Process::start(command, title)?;
        let stdout = process.child.stdout.take();
        Ok(Self { process, stdout, directory })
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The process's pid.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.process.pid
    }

    /// Its directory.
    #[must_use]
    pub fn directory(&self) -> &TemporaryDirectory {
        &self.directory
    }

    /// The first line that it writes to stdout, at most 256 bytes.
    ///
    /// # Errors
    /// [`Failure`] when there is none within [`TIMEOUT`].
    pub fn first_line(&mut self) -> Result<String> {
        let deadline = Instant::now() + TIMEOUT;
        let mut line = Vec::new();
        let title = self.process.title.clone();
        let late = || Failure::new(format!("{title} was not ready within {} s", TIMEOUT.as_secs()));
        let stdout = self.stdout.as_mut().ok_or_else(late)?;
        while line.len() < 256 {
            let left = deadline.saturating_duration_since(Instant::now());
            if !wait::until_readable(stdout.as_fd(), Some(left)).doing("waiting for a line")? {
                return Err(late());
            }
            let mut byte = [0];
            if stdout.read(&mut byte).doing("reading a line")? == 0 {
                let failure = Failure::new(format!("{title} wrote no line; stderr: {}", self.last_words()));
                return Err(self.process.explain(&failure));
            }
            if byte[0] == b'\n' {
                break;
            }
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// Waits until `is_ready`; `begin` is the verb in messages for what it then has done.
    ///
    /// # Errors
    /// [`Failure`] with its last words when it ended, or was not ready within [`TIMEOUT`].
    pub fn wait_until(&mut self, begin: &str, is_ready: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !is_ready(self) {
            if self.process.wait(READY_TICK)?.is_some() {
                let (title, said) = (&self.process.title, self.last_words());
                let failure = Failure::new(format!("{title} did not {begin}; stderr: {said}"));
                return Err(self.process.explain(&failure));
            }
            if Instant::now() > deadline {
                let (title, seconds) = (&self.process.title, TIMEOUT.as_secs());
                return Err(Failure::new(format!("{title} did not {begin} within {seconds} s")));
            }
        }
        Ok(())
    }

    /// What is left of what it wrote to stdout, once it has ended.
    pub fn rest_of_stdout(&mut self) -> String {
        self.stdout.take().map(|pipe| rest(pipe.into())).unwrap_or_default()
    }

    /// What it wrote to stderr, at most 4 KiB of it.
    #[must_use]
    pub fn stderr_text(&self) -> String {
        let mut bytes = Vec::new();
        if let Ok(file) = File::open(self.directory.join(STDERR_FILE)) {
            let _ = file.take(4096).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last line that it wrote to stderr.
    #[must_use]
    pub fn last_words(&self) -> String {
        let text = self.stderr_text();
        text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("(nothing)").to_owned()
    }
}

/// What a short-lived process left behind.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to stdout, at most 64 KiB.
    pub stdout: String,
    /// What it wrote to stderr, at most 64 KiB.
    pub stderr: String,
    /// From before its start to its end.
    pub elapsed: Duration,
}

impl Output {
    /// The output of a process that ended with exit status 0.
    ///
    /// # Errors
    /// [`Failure`] with what it wrote to stderr when it did not.
    pub fn success(self, title: &str) -> Result<Self> {
        if self.status.success() {
            return Ok(self);
        }
        let stderr = self.stderr.lines().next().unwrap_or("(nothing)").to_owned();
        Err(Failure::new(format!("{title} ended with {}; stderr: {stderr}", ending(self.status))))
    }
}

/// Runs `command` to its end and returns what it wrote.
///
/// # Errors
/// [`Failure`] when it cannot be started, or does not end within `timeout` (it is killed then).
pub fn run(mut command: Command, title: &str, timeout: Duration) -> Result<Output> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let begin = Instant::now();
    let mut process = Process::start(command, title)?;
    let Some(status) = process.wait(timeout)? else {
        process.kill();
        return Err(Failure::new(format!("{title} did not end within {} s", timeout.as_secs())));
    };
    let elapsed = begin.elapsed();
    let stdout = process.child.stdout.take().map(|pipe| rest(pipe.into())).unwrap_or_default();
    let stderr = process.child.stderr.take().map(|pipe| rest(pipe.into())).unwrap_or_default();
    Ok(Output { status, stdout, stderr, elapsed })
}

/// What is in a pipe whose writer has ended. A descendant of the writer may still hold the pipe
/// open, so the end is not waited for.
fn rest(pipe: OwnedFd) -> String {
    let mut bytes = Vec::new();
    if rustix::io::ioctl_fionbio(&pipe, true).is_ok() {
        let _ = File::from(pipe).take(OUTPUT_LIMIT_BYTES as u64).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script);
        command
    }

    #[test]
    fn output_status_and_time_of_a_short_process_are_returned() {
        let output = run(shell("echo out; echo err >&2; exit 3"), "sh", TIMEOUT).expect("it runs");
        assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));
        let failure = output.success("sh").expect_err("exit status 3").to_string();
        assert_eq!(failure, "sh ended with exit status 3; stderr: err");
    }

    #[test]
    fn a_process_that_does_not_end_is_killed_after_its_time() {
        let failure = run(shell("exec sleep 600"), "sleep", Duration::from_millis(50));
        assert!(failure.expect_err("too slow").to_string().contains("did not end within"));
    }

    #[test]
    fn a_descendant_that_keeps_the_pipe_open_is_not_waited_for() {
        let output = run(shell("sleep 60 & echo $!"), "sh", TIMEOUT).expect("it runs");
        let sleeper = output.stdout.trim().parse().ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(sleeper, Signal::KILL).expect("the descendant is still there");
    }

    #[test]
    fn a_missing_program_is_named() {
        let failure = Process::start(Command::new("/nonexistent/server"), "the server");
        assert!(failure.expect_err("missing").to_string().contains("/nonexistent/server"));
    }

    #[test]
    fn a_server_that_ends_early_is_explained_with_its_stderr() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        let script = shell("echo 'no port for you' >&2; exit 4");
        let mut server = Server::start(script, "server", directory).expect("it starts");
        let failure = server.first_line().expect_err("no line").to_string();
        assert!(failure.contains("no port for you") && failure.contains("exit status 4"), "{failure}");
    }

    #[test]
    fn a_dropped_server_is_gone_with_its_directory() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        let path = directory.path().to_path_buf();
        let mut server =
            Server::start(shell("echo ready; exec sleep 600"), "server", directory).expect("it starts");
        assert_eq!(server.first_line().expect("a line"), "ready");
        assert!(server.process().resident_bytes().expect("alive") > 0);
        let pid = server.process().pid();
        drop(server);
        assert!(rustix::process::test_kill_process(pid).is_err());
        assert!(!path.exists());
    }

    #[test]
    fn a_server_is_asked_before_it_is_killed() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done";
        let mut server = Server::start(shell(script), "server", directory).expect("it starts");
        server.first_line().expect("a line");
        server.process().stop().expect("exit status 0");
    }

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident_in_status("Name:\tx\nVmRSS:\t    1234 kB\nRssAnon: 1 kB\n"), Some(1234 * 1024));
        assert_eq!(resident_in_status("VmRSS:\t99999999999999999999 kB\n"), None);
        assert_eq!(resident_in_status(""), None);
    }
}
