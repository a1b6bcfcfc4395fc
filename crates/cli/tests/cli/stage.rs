//! Directory with a copy of the command, optionally with an empty `libuncopy.so` beside it, and
//! bounded waiting for child processes.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Maximum wait for a program.
const LIMIT: Duration = Duration::from_secs(60);
/// User of tests without privileges.
pub const NOBODY: &str = "65534";

/// Reports on standard error, past the capture of the test harness, that a test was skipped.
pub fn skip(test: &str, why: impl Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

/// Copy of the command in a directory of its own, removed when dropped.
pub struct Stage {
    directory: PathBuf,
}

impl Stage {
    /// Creates a stage without a library.
    pub fn new(name: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("stage directory");
        let stage = Self { directory };
        let command = env!("CARGO_BIN_EXE_uncopy");
        if fs::hard_link(command, stage.command()).is_err() {
            stage.install(&["-m", "755", command, "uncopy"], b"");
        }
        stage
    }

    /// Creates a stage with a library that loads and does nothing; `None`, reported as skipped,
    /// without a compiler.
    pub fn with_library(name: &str) -> Option<Self> {
        let stage = Self::new(name);
        match stage.compile(&["-shared", "-fPIC"], "int uncopy_stand_in;", "libuncopy.so") {
            Ok(_) => Some(stage),
            Err(why) => {
                skip(name, why);
                None
            }
        }
    }

    /// Compiles C to a file of the stage.
    pub fn compile(&self, options: &[&str], source: &str, name: &str) -> Result<PathBuf, String> {
        let input = self.path(&format!("{name}.c"));
        fs::write(&input, source).map_err(|error| error.to_string())?;
        let output = self.path(name);
        let compiled = Command::new("cc").args(options).arg("-o").arg(&output).arg(&input).output();
        match compiled {
            Ok(result) if result.status.success() => Ok(output),
            Ok(result) => Err(format!("cc: {}", String::from_utf8_lossy(&result.stderr).trim())),
            Err(error) => Err(format!("cc: {error}")),
        }
    }

    /// Returns the path of a file of the stage.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes a file of the stage with the given mode.
    pub fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
        self.install(&["-m", &format!("{mode:o}"), "/dev/stdin", name], content);
        self.path(name)
    }

    /// Runs `install ARGUMENTS` in the stage. Another process must write the file: a program that
    /// another test starts meanwhile would inherit a descriptor of ours that is open for writing,
    /// and such a file cannot be executed.
    fn install(&self, arguments: &[&str], input: &[u8]) {
        let mut command = Command::new("install");
        command.args(arguments).current_dir(&self.directory).stdin(Stdio::piped());
        let mut child = command.spawn().expect("install");
        let written = child.stdin.take().expect("piped").write_all(input);
        let status = child.wait().expect("waited");
        assert!(written.is_ok() && status.success(), "install {arguments:?}: {status}");
    }

    /// Returns the path of the copied command.
    pub fn command(&self) -> PathBuf {
        self.path("uncopy")
    }

    /// Returns `uncopy ARGUMENTS`, to be run in the stage and without any `UNCOPY_` variable.
    pub fn uncopy<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Command {
        let mut command = Command::new(self.command());
        command.args(arguments).current_dir(&self.directory);
        clean(&mut command);
        command
    }

    /// Returns `uncopy ARGUMENTS` without privileges; `None`, reported as skipped, where that is
    /// impossible.
    pub fn unprivileged(&self, test: &str, arguments: &[&str]) -> Option<Command> {
        if !is_root() {
            return Some(self.uncopy(arguments));
        }
        let drop = [&format!("--reuid={NOBODY}"), "--clear-groups", "--"];
        let version = Command::new("setpriv").args(drop).arg(self.command()).arg("--version").output();
        if !version.is_ok_and(|output| output.status.success()) {
            skip(test, format!("user {NOBODY} cannot run {}", self.command().display()));
            return None;
        }
        let mut command = Command::new("setpriv");
        command.args(drop).arg(self.command()).args(arguments).current_dir("/");
        clean(&mut command);
        Some(command)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn clean(command: &mut Command) {
    command.stdin(Stdio::null()).env_remove("LD_PRELOAD");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("UNCOPY_") {
            command.env_remove(name);
        }
    }
}

/// Result of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    pub pid: u32,
    /// Exit status, if the program exited.
    pub code: Option<i32>,
    /// Signal that ended the program, if one did.
    pub signal: Option<i32>,
    pub output: Vec<u8>,
    pub errors: String,
}

impl Finished {
    /// Returns standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.output.clone()).expect("text")
    }
}

/// Runs a program to its end, with both outputs captured unless the caller has set them.
pub fn finish(command: &mut Command) -> Finished {
    finish_started(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started"))
}

/// Waits for a program that was started with outputs of the test's choice.
pub fn finish_started(child: Child) -> Finished {
    let pid = child.id();
    let (sender, receiver) = mpsc::channel();
    let waiter = thread::spawn(move || sender.send(child.wait_with_output()));
    let Ok(result) = receiver.recv_timeout(LIMIT) else {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        panic!("process {pid} did not end within {LIMIT:?}");
    };
    let _ = waiter.join();
    let Output { status, stdout, stderr } = result.expect("waited");
    Finished {
        pid,
        code: status.code(),
        signal: status.signal(),
        output: stdout,
        errors: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Program that runs until the test drops it.
pub struct Background(Child);

impl Background {
    /// Starts a program and waits until it has printed its first line.
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let output = child.stdout.take().expect("piped");
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let _ = std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line);
            sender.send(line)
        });
        let background = Self(child);
        let line = receiver.recv_timeout(LIMIT).expect("a first line in time");
        assert!(!line.is_empty(), "the program ended before it printed anything");
        background
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
