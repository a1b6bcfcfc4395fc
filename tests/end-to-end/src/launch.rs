//! Starting a program plain or under `libuncopy.so`.
//!
//! The library is loaded by setting `LD_PRELOAD` and the `UNCOPY_` variables directly, so that
//! these tests do not depend on the command line tool.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use uncopy_core::options::{INTERNAL_VARIABLES, OPTIONS};
use uncopy_testbed::Process;
use uncopy_testbed::processes::process::end_with_parent;

use crate::artifacts;
pub use crate::mode::Mode;
use crate::running::{Finished, Running};
use crate::scratch::{HANG_LIMIT, Scratch};

/// A program to start, with its arguments, environment, descriptors and mode.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    mode: Mode,
    preloaded_before: Vec<PathBuf>,
    preloaded_after: Vec<PathBuf>,
    directory: Option<PathBuf>,
    input: Option<PathBuf>,
    library: Option<PathBuf>,
    descriptor: Option<(i32, PathBuf)>,
    limit: Duration,
}

impl Program {
    /// Makes a program from the file at `path`, started plain by default.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            arguments: Vec::new(),
            variables: Vec::new(),
            mode: Mode::Plain,
            preloaded_before: Vec::new(),
            preloaded_after: Vec::new(),
            directory: None,
            input: None,
            library: None,
            descriptor: None,
            limit: HANG_LIMIT,
        }
    }

    /// Makes a program that runs `sh -e -c SCRIPT`.
    #[must_use]
    pub fn shell(script: &str) -> Self {
        Self::new("/bin/sh").args(["-e", "-c", script])
    }

    /// Appends arguments to the command line.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, arguments: I) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Appends an argument to the command line.
    #[must_use]
    pub fn arg(self, argument: impl AsRef<OsStr>) -> Self {
        self.args([argument])
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Chooses how the program is started.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode.effective();
        self
    }

    /// Preloads another library in front of uncopy, whose functions take precedence.
    #[must_use]
    pub fn preload_before(mut self, library: impl AsRef<Path>) -> Self {
        self.preloaded_before.push(library.as_ref().to_owned());
        self
    }

    /// Preloads another library behind uncopy, which calls that library's functions.
    #[must_use]
    pub fn preload_after(mut self, library: impl AsRef<Path>) -> Self {
        self.preloaded_after.push(library.as_ref().to_owned());
        self
    }

    fn preload_value(&self) -> OsString {
        let built = || self.library.clone().unwrap_or_else(artifacts::library);
        let uncopy = (self.mode != Mode::Plain).then(built);
        let all = self.preloaded_before.iter().chain(&uncopy).chain(&self.preloaded_after);
        let all: Vec<&OsStr> = all.map(|path| path.as_os_str()).collect();
        all.join(OsStr::new(":"))
    }

    /// Sets the working directory.
    #[must_use]
    pub fn directory(mut self, path: impl AsRef<Path>) -> Self {
        self.directory = Some(path.as_ref().to_owned());
        self
    }

    /// Gives the program a file as standard input (default: `/dev/null`).
    #[must_use]
    pub fn input(mut self, path: impl AsRef<Path>) -> Self {
        self.input = Some(path.as_ref().to_owned());
        self
    }

    /// Loads another library than the one that was built for the tests.
    #[must_use]
    pub fn library(mut self, path: impl AsRef<Path>) -> Self {
        self.library = Some(path.as_ref().to_owned());
        self
    }

    /// Gives the program an open file, to read and write, as descriptor `fd`.
    #[must_use]
    pub fn descriptor(mut self, fd: i32, path: impl AsRef<Path>) -> Self {
        self.descriptor = Some((fd, path.as_ref().to_owned()));
        self
    }

    /// Sets the time limit of [`Program::run`] (default: [`HANG_LIMIT`]).
    #[must_use]
    pub const fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Starts the program. Its output goes to files in `scratch` whose names begin with `name`.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn start(&self, scratch: &Scratch, name: &str) -> Running {
        let stats = scratch.join(&format!("{name}.stats"));
        let output = scratch.join(&format!("{name}.out"));
        let errors = scratch.join(&format!("{name}.err"));
        let mut command = if self.mode == Mode::Plain {
            Command::new(&self.path)
        } else {
            // Only the program itself knows its pid before it starts.
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "export UNCOPY_STATS_ROOT=$$ LD_PRELOAD=\"$0\"; exec \"$@\""]);
            shell.arg(self.preload_value()).arg(&self.path);
            shell
        };
        command.args(&self.arguments).env_remove("LD_PRELOAD");
        for variable in OPTIONS.iter().map(|option| option.variable).chain(INTERNAL_VARIABLES.iter().copied())
        {
            command.env_remove(variable);
        }
        if self.mode == Mode::Plain {
            if !self.preload_value().is_empty() {
                command.env("LD_PRELOAD", self.preload_value());
            }
        } else {
            command.env("UNCOPY_STATS", &stats).envs(self.mode.variables().iter().copied());
            if let Some(moves) = std::env::var_os("UNCOPY_TEST_MOVE") {
                command.env("UNCOPY_MOVE", moves);
            }
            if self.mode == Mode::Recorded {
                command.env("UNCOPY_RECORD", make_recordings_dir(scratch));
            }
            if self.mode == Mode::Lanes {
                command.env("UNCOPY_LANES_DIR", make_private_dir(scratch, "lanes"));
            }
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        let input = self.input.as_deref().unwrap_or(Path::new("/dev/null"));
        command.stdin(File::open(input).expect("standard input"));
        command.stdout(Stdio::from(File::create(&output).expect("output file")));
        command.stderr(Stdio::from(File::create(&errors).expect("error file")));
        if let Some((fd, path)) = &self.descriptor {
            let file = File::options().read(true).write(true).open(path);
            let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let fd = *fd;
            let install_descriptor = move || {
                // SAFETY: dup2 takes two integers; the closure owns the file, which is open.
                match unsafe { libc::dup2(file.as_raw_fd(), fd) } {
                    0.. => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            };
            // SAFETY: the closure runs between fork and exec and makes an async-signal-safe call.
            unsafe { command.pre_exec(install_descriptor) };
        }
        end_with_parent(&mut command);
        let title = format!("{} ({:?}): {:?} {:?}", name, self.mode, self.path, self.arguments);
        let process = Process::start_group(command, &title).unwrap_or_else(|failure| panic!("{failure}"));
        Running::new(process, self.mode, stats, output, errors)
    }

    /// Starts the program and waits for its end.
    ///
    /// # Panics
    /// When the program cannot be started or does not end in time.
    pub fn run(&self, scratch: &Scratch, name: &str) -> Finished {
        self.start(scratch, name).finish_within(self.limit)
    }
}

/// Makes the directory for recordings in `scratch`, which other users cannot read.
///
/// # Panics
/// When the directory cannot be made.
#[must_use]
pub fn make_recordings_dir(scratch: &Scratch) -> PathBuf {
    make_private_dir(scratch, "recordings")
}

/// Makes a directory in `scratch` that other users cannot read.
fn make_private_dir(scratch: &Scratch, name: &str) -> PathBuf {
    let directory = scratch.join(name);
    match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            panic!("{}: {error}", directory.display())
        }
        _ => directory,
    }
}
