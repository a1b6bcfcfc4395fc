//! Processes that this program starts: servers and short-lived helpers. All of them end with this
//! program, every wait for them is bounded, and signals are sent by pid only.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process, kill_process_group, pidfd_open,
    pidfd_send_signal, setrlimit,
};

use crate::failure::{Failure, Result, While};
use crate::processes::cleanup::{TemporaryDirectory, registry};
use crate::processes::cpu_time::process_cpu_ns;
use crate::processes::descendants::Held;
use crate::processes::wait;

/// Time limit for a server to become ready, or to end when asked to.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two polls of a server's readiness.
const READY_TICK: Duration = Duration::from_millis(5);
/// Maximum number of bytes read from a short-lived process.
const OUTPUT_LIMIT_BYTES: usize = 64 * 1024;
/// Name of the file for a process's stderr.
const STDERR_FILE: &str = "stderr";

/// A started process, killed and waited for when dropped.
#[derive(Debug)]
pub struct Process {
    title: String,
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
    status: Option<ExitStatus>,
    /// Time limit for a wrapper's own end after that of its first child, which is the actual program.
    wrapper_grace: Option<Duration>,
    exits_with_signal_status: bool,
    /// Whether the process leads a process group, which is killed once the process has ended.
    leads_group: bool,
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

    /// As [`Process::start`], but stdin is this program's own unless `command` sets it.
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
                    wrapper_grace: None,
                    exits_with_signal_status: false,
                    leads_group: false,
                })
            }
            (_, pidfd) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Failure::new(format!("{what}: {:?}", pidfd.err())))
            }
        }
    }

    /// As [`Process::start_with_input`], as a process group's leader; the group is killed when it ends.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub fn start_group(mut command: Command, title: &str) -> Result<Self> {
        command.process_group(0);
        let mut process = Self::start_with_input(command, title)?;
        process.leads_group = true;
        Ok(process)
    }

    /// Returns the process's pid.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the name of the process in messages.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Sends the process a signal, unless it has been waited for.
    pub fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Waits until the process has ended: `None` if `timeout` passes first.
    ///
    /// # Errors
    /// [`Failure`] when waiting itself fails.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<ExitStatus>> {
        if self.status.is_none() && wait::until_readable(&self.pidfd, Some(timeout)).doing("waiting")? {
            // The pid is released to the kernel and removed from the registry in one step.
            let mut registry = registry();
            if self.leads_group {
                // The leader is not reaped yet, so the group id still belongs to this group.
                let _ = kill_process_group(self.pid, Signal::KILL);
            }
            self.status = Some(self.child.wait().doing(format_args!("waiting for {}", self.title))?);
            registry.remove(self.pid);
        }
        Ok(self.status)
    }

    /// Whether the process has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.is_reaped() || wait::until_readable(&self.pidfd, Some(Duration::ZERO)).unwrap_or(false)
    }

    /// Whether the process has ended and was waited for.
    #[must_use]
    pub const fn is_reaped(&self) -> bool {
        self.status.is_some()
    }

    /// Declares that this process runs the actual program as its first child. Requests to end then
    /// go to the child, and the process itself must end at most `timeout` later.
    pub fn wraps_its_child(&mut self, timeout: Duration) {
        self.wrapper_grace = Some(timeout);
    }

    /// Declares that the program exits with 128 plus the number of the signal that ended it.
    pub fn tells_its_signal(&mut self) {
        self.exits_with_signal_status = true;
    }

    /// Asks the process to end, and kills it if it does not.
    ///
    /// # Errors
    /// [`Failure`] when the process had to be killed or its exit status was neither 0 nor the one
    /// of [`Process::tells_its_signal`].
    pub fn stop(&mut self) -> Result<()> {
        self.stop_by(Signal::TERM)
    }

    /// As [`Process::stop`], by another signal than SIGTERM.
    ///
    /// # Errors
    /// As [`Process::stop`].
    pub fn stop_by(&mut self, signal: Signal) -> Result<()> {
        if self.status.is_none() {
            let child = self.wrapper_grace.and_then(|_| Held::child(self.pid));
            match child {
                Some(child) => drop(pidfd_send_signal(child, signal)),
                None => self.signal(signal),
            }
        }
        let timeout = self.wrapper_grace.unwrap_or(TIMEOUT);
        match self.wait(timeout)? {
            Some(status) if status.success() => Ok(()),
            Some(status) if self.exits_with_signal_status && status.code() == Some(128 + signal.as_raw()) => {
                Ok(())
            }
            Some(status) => Err(Failure::new(format!("{} ended with {}", self.title, describe_exit(status)))),
            None => {
                self.kill();
                let seconds = timeout.as_secs();
                Err(Failure::new(format!("{} did not end within {seconds} s and was killed", self.title)))
            }
        }
    }

    /// Kills the process and its descendants.
    pub fn kill(&mut self) {
        if self.status.is_none() {
            let below = Held::below(self.pid);
            let _ = kill_process(self.pid, Signal::KILL);
            let _ = self.wait(TIMEOUT);
            below.end(Duration::ZERO);
        }
    }

    /// Processor time of all threads of the process, also ended ones, ns.
    ///
    /// # Errors
    /// [`Failure`] when the process has ended.
    pub fn cpu_ns(&self) -> Result<u64> {
        process_cpu_ns(self.pid).doing(format_args!("reading the processor time of {}", self.title))
    }

    /// Resident memory of the process, bytes: anonymous, file and shared pages together (`VmRSS`,
    /// which is `RssAnon + RssFile + RssShmem`).
    ///
    /// # Errors
    /// [`Failure`] when the process has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        resident_bytes(self.pid)
    }

    /// A memory field of the process's `/proc/PID/status`, in bytes.
    ///
    /// # Errors
    /// [`Failure`] when the process has ended.
    pub fn status_bytes(&self, field: &str) -> Result<u64> {
        status_bytes(self.pid, field)
    }

    /// Returns a failure that also says how the process ended, if it has.
    pub fn explain(&mut self, failure: &Failure) -> Failure {
        match self.wait(Duration::from_millis(200)) {
            Ok(Some(status)) => {
                Failure::new(format!("{failure} ({} ended with {})", self.title, describe_exit(status)))
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

/// Raises the soft descriptor limit to the hard one. Returns the new limit; `None` if there is none.
pub fn raise_descriptor_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current
}

/// Resident memory of a process, bytes.
///
/// # Errors
/// [`Failure`] when the process has ended.
pub fn resident_bytes(pid: Pid) -> Result<u64> {
    status_bytes(pid, "VmRSS:")
}

fn status_bytes(pid: Pid, field: &str) -> Result<u64> {
    let path = format!("/proc/{}/status", pid.as_raw_pid());
    let text = std::fs::read_to_string(&path).doing(format_args!("reading {path}"))?;
    bytes_in_status(&text, field).ok_or_else(|| Failure::new(format!("{path} has no {field}")))
}

/// The value of `field`, with its colon, in the text of `/proc/PID/status`, bytes.
fn bytes_in_status(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_owned(),
    }
}

/// Makes the kernel kill `command` when the thread that starts it ends (PR_SET_PDEATHSIG).
pub fn end_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let set_death_signal = move || {
        // SAFETY: prctl with PR_SET_PDEATHSIG takes a signal number and is async-signal-safe.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: getppid(2) takes no arguments and cannot fail.
        let alive = u32::try_from(unsafe { libc::getppid() }) == Ok(parent);
        // A different parent means that this program ended before prctl(2), and no signal will come.
        if alive { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
    };
    // SAFETY: between fork and exec the closure makes two async-signal-safe calls and allocates nothing.
    unsafe { command.pre_exec(set_death_signal) };
}

/// A server in a temporary directory of its own, which also holds the server's stderr.
#[derive(Debug)]
pub struct Server {
    // Dropped in this order: the process ends before its directory goes.
    process: Process,
    stdout: Option<ChildStdout>,
    directory: TemporaryDirectory,
}

impl Server {
    /// Starts `command` in `directory`, which also gets its temporary files. The server is killed
    /// when the starting thread ends for any reason.
    ///
    /// # Errors
    /// [`Failure`] when the server cannot be started.
    pub fn start(mut command: Command, title: &str, directory: TemporaryDirectory) -> Result<Self> {
        let stderr = File::create(directory.join(STDERR_FILE)).doing("making a file for stderr")?;
        // Files of a killed helper process (a compiler) go with the directory.
        command.env("TMPDIR", directory.path());
        command.current_dir(directory.path()).stdout(Stdio::piped()).stderr(stderr);
        end_with_parent(&mut command);
        let mut process = Process::start(command, title)?;
        let stdout = process.child.stdout.take();
        Ok(Self { process, stdout, directory })
    }

    /// Returns the process itself, for signals and waiting.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The process's pid.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.process.pid
    }

    /// Returns the process's directory.
    #[must_use]
    pub fn directory(&self) -> &TemporaryDirectory {
        &self.directory
    }

    /// The first line on the server's stdout, at most 256 bytes.
    ///
    /// # Errors
    /// [`Failure`] when no line comes within [`TIMEOUT`].
    pub fn first_line(&mut self) -> Result<String> {
        let deadline = Instant::now() + TIMEOUT;
        let mut line = Vec::new();
        let title = self.process.title.clone();
        let timeout_failure =
            || Failure::new(format!("{title} was not ready within {} s", TIMEOUT.as_secs()));
        let stdout = self.stdout.as_mut().ok_or_else(timeout_failure)?;
        while line.len() < 256 {
            let left = deadline.saturating_duration_since(Instant::now());
            if !wait::until_readable(stdout.as_fd(), Some(left)).doing("waiting for a line")? {
                return Err(timeout_failure());
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

    /// Waits until `is_ready`; messages say that the server did not `begin` in time.
    ///
    /// # Errors
    /// [`Failure`] with the last line of stderr, when the server ended or [`TIMEOUT`] has passed.
    pub fn wait_until(&mut self, begin: &str, is_ready: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !is_ready(self) {
            if self.process.wait(READY_TICK)?.is_some() {
                let (title, last_line) = (&self.process.title, self.last_words());
                let failure = Failure::new(format!("{title} did not {begin}; stderr: {last_line}"));
                return Err(self.process.explain(&failure));
            }
            if Instant::now() > deadline {
                let (title, seconds) = (&self.process.title, TIMEOUT.as_secs());
                return Err(Failure::new(format!("{title} did not {begin} within {seconds} s")));
            }
        }
        Ok(())
    }

    /// Returns the unread rest of stdout, once the process has ended.
    pub fn rest_of_stdout(&mut self) -> String {
        self.stdout.take().map(|pipe| drain_pipe(pipe.into())).unwrap_or_default()
    }

    /// Returns the beginning of stderr, at most 4 KiB.
    #[must_use]
    pub fn stderr_text(&self) -> String {
        let mut bytes = Vec::new();
        if let Ok(file) = File::open(self.directory.join(STDERR_FILE)) {
            let _ = file.take(4096).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last line that the server wrote to stderr.
    #[must_use]
    pub fn last_words(&self) -> String {
        let text = self.stderr_text();
        text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("(nothing)").to_owned()
    }
}

/// Result of a short-lived process.
#[derive(Debug)]
pub struct Output {
    /// Exit status of the process.
    pub status: ExitStatus,
    /// Beginning of stdout, at most 64 KiB.
    pub stdout: String,
    /// Beginning of stderr, at most 64 KiB.
    pub stderr: String,
    /// Time from before the start to the end.
    pub elapsed: Duration,
}

impl Output {
    /// Returns the output of a process that ended with exit status 0.
    ///
    /// # Errors
    /// [`Failure`] with stderr, for any other status.
    pub fn success(self, title: &str) -> Result<Self> {
        if self.status.success() {
            return Ok(self);
        }
        let stderr = self.stderr.lines().next().unwrap_or("(nothing)").to_owned();
        Err(Failure::new(format!("{title} ended with {}; stderr: {stderr}", describe_exit(self.status))))
    }
}

/// Runs `command` to its end and returns its output.
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
    let stdout = process.child.stdout.take().map(|pipe| drain_pipe(pipe.into())).unwrap_or_default();
    let stderr = process.child.stderr.take().map(|pipe| drain_pipe(pipe.into())).unwrap_or_default();
    Ok(Output { status, stdout, stderr, elapsed })
}

/// Reads the rest of a pipe whose writer has ended, without waiting for the end of the pipe: a
/// descendant of the writer may still hold it open.
fn drain_pipe(pipe: OwnedFd) -> String {
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
    fn process_that_exceeds_its_time_is_killed() {
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
    fn early_exit_of_a_server_is_reported_with_its_stderr() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        let script = shell("echo 'no port for you' >&2; exit 4");
        let mut server = Server::start(script, "server", directory).expect("it starts");
        let failure = server.first_line().expect_err("no line").to_string();
        assert!(failure.contains("no port for you") && failure.contains("exit status 4"), "{failure}");
    }

    #[test]
    fn dropping_a_server_removes_process_and_directory() {
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
    fn stop_sends_sigterm_before_sigkill() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done";
        let mut server = Server::start(shell(script), "server", directory).expect("it starts");
        server.first_line().expect("a line");
        server.process().stop().expect("exit status 0");
    }

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(
            bytes_in_status("Name:\tx\nVmRSS:\t    1234 kB\nRssAnon: 1 kB\n", "VmRSS:"),
            Some(1234 * 1024)
        );
        assert_eq!(bytes_in_status("VmRSS:\t99999999999999999999 kB\n", "VmRSS:"), None);
        assert_eq!(bytes_in_status("", "VmRSS:"), None);
    }
}
