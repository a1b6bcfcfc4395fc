//! Starts a case's processes: the measured server under a side or the profiler, helpers plain. With two or more
//! processors the server has one of its own, so that it does not compete with its clients.

mod ready;
mod unprivileged;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::thread::CpuSet;

use super::programs::Programs;
use crate::kit::processors::{self, bind_command};
use crate::kit::{Launcher, Result, Server, Side, TemporaryDirectory, start_server};
use crate::servers::net::{TcpStack, on_free_port};
use crate::servers::own_programs;

use ready::{wait_undisturbed, wait_until_listening};

pub use unprivileged::Unprivileged;

/// Time limit for the profiler to write its file after the program has ended.
const PROFILE_TIMEOUT: Duration = Duration::from_secs(120);

/// Wrapper of the measured server.
#[derive(Clone, Copy, Debug)]
pub enum Wrapper<'a> {
    /// One side of the comparison.
    Side(Side),
    /// `uncopy profile`, which writes this file.
    Profile(&'a Path),
}

/// Environment in which a case starts its processes.
#[derive(Debug)]
pub struct Environment<'a> {
    launcher: &'a Launcher,
    wrapper: Wrapper<'a>,
    programs: &'a Programs,
    /// Side under which helpers run.
    helpers: Side,
    /// The server's processor, and the others.
    processors: Option<(CpuSet, CpuSet)>,
    /// Host or namespace of the measured server.
    stack: TcpStack,
}

impl<'a> Environment<'a> {
    /// Makes an environment whose server runs under `wrapper`.
    #[must_use]
    pub fn new(launcher: &'a Launcher, wrapper: Wrapper<'a>, programs: &'a Programs) -> Self {
        Self {
            launcher,
            wrapper,
            programs,
            helpers: Side::Plain,
            processors: processors::split(1),
            stack: TcpStack::Kernel,
        }
    }

    /// Runs helpers under `side`, too.
    #[must_use]
    pub fn with_helpers_under(self, side: Side) -> Self {
        Self { helpers: side, ..self }
    }

    /// Runs the measured server on `stack`.
    #[must_use]
    pub fn with_stack(self, stack: TcpStack) -> Self {
        Self { stack, ..self }
    }

    /// Returns the processors of clients and helpers, if they differ from the server's.
    #[must_use]
    pub fn client_processors(&self) -> Option<CpuSet> {
        self.processors.map(|(_, others)| others)
    }

    /// Returns the path of the case's program `name`.
    ///
    /// # Errors
    /// [`crate::kit::Failure`] when `name` is not among the case's packages.
    pub fn program(&self, name: &str) -> Result<&'a Path> {
        self.programs.path(name)
    }

    /// Finds another program of this repository, next to `uncopy` or on `PATH`.
    ///
    /// # Errors
    /// [`crate::kit::Failure`] that names the places searched.
    pub fn own_program(&self, name: &str) -> Result<PathBuf> {
        own_programs::find(self.launcher, name)
    }

    /// Returns the command line of the measured server, for servers that need more than
    /// [`Environment::start_server`] provides.
    ///
    /// # Errors
    /// As [`Environment::program`].
    pub fn command(&self, name: &str, arguments: &[OsString]) -> Result<Command> {
        Ok(self.program_command(self.program(name)?, arguments))
    }

    fn program_command(&self, program: &Path, arguments: &[OsString]) -> Command {
        let program = program.as_os_str();
        let mut command = match self.wrapper {
            Wrapper::Side(side) => self.launcher.command(side, program, arguments),
            Wrapper::Profile(file) => self.launcher.profile_command(file, program, arguments),
        };
        bind_command(&mut command, self.processors.map(|(ours, _)| ours));
        command
    }

    /// Returns the command line of `uncopy-bench` with `arguments`, as the measured server.
    #[must_use]
    pub fn bench_command(&self, arguments: &[String]) -> Command {
        let mut command = match self.wrapper {
            Wrapper::Side(side) => self.launcher.bench_command(side, arguments),
            Wrapper::Profile(file) => self.launcher.profile_bench_command(file, arguments),
        };
        bind_command(&mut command, self.processors.map(|(ours, _)| ours));
        command
    }

    /// Starts the measured server by [`Environment::command`] or [`Environment::bench_command`], with its files in
    /// `directory`.
    ///
    /// # Errors
    /// [`crate::kit::Failure`] when the server cannot be started.
    pub fn start(&self, command: Command, title: &str, directory: TemporaryDirectory) -> Result<Server> {
        let mut server = self.stack.start(command, title, directory)?;
        if let Wrapper::Profile(_) = self.wrapper {
            server.process().wraps_its_child(PROFILE_TIMEOUT);
        }
        Ok(server)
    }

    /// Starts the measured server on a free port. `arguments` writes the configuration into a directory and
    /// returns the command line for an address. Returns when the server accepts connections.
    ///
    /// # Errors
    /// [`crate::kit::Failure`] when the server cannot be started or does not listen in time.
    pub fn start_server(
        &self,
        name: &str,
        arguments: impl Fn(SocketAddr, &Path) -> Result<Vec<OsString>>,
    ) -> Result<(Server, SocketAddr)> {
        on_free_port(self.stack, |address| {
            let directory = TemporaryDirectory::make()?;
            let command = self.command(name, &arguments(address, directory.path())?)?;
            wait_until_listening(self.start(command, name, directory)?, address)
        })
    }

    /// Starts a program of this repository as the measured server, as [`Environment::start_server`] does.
    ///
    /// # Errors
    /// As [`Environment::start_server`] and [`Environment::own_program`].
    pub fn start_own_server(
        &self,
        name: &str,
        arguments: impl Fn(SocketAddr, &Path) -> Result<Vec<OsString>>,
    ) -> Result<(Server, SocketAddr)> {
        let program = self.own_program(name)?;
        on_free_port(self.stack, |address| {
            let directory = TemporaryDirectory::make()?;
            let command = self.program_command(&program, &arguments(address, directory.path())?);
            wait_until_listening(self.start(command, name, directory)?, address)
        })
    }

    /// Starts a helper, that is, a server that the measured one queries, on the clients' processors; plain
    /// unless the environment has another side for helpers. `arguments` as in [`Environment::start_server`].
    ///
    /// # Errors
    /// [`crate::kit::Failure`] when the server cannot be started or does not listen in time.
    pub fn start_helper(
        &self,
        program: &Path,
        arguments: impl Fn(SocketAddr, &Path) -> Result<Vec<OsString>>,
    ) -> Result<(Server, SocketAddr)> {
        let title = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
        on_free_port(TcpStack::Kernel, |address| {
            let directory = TemporaryDirectory::make()?;
            let arguments = arguments(address, directory.path())?;
            let mut command = self.launcher.command(self.helpers, program.as_os_str(), &arguments);
            bind_command(&mut command, self.client_processors());
            wait_until_listening(start_server(command, &title, directory)?, address)
        })
    }
}
