//! Starts what a case needs: the measured server under a side or under the profiler, helpers plain; the server on
//! a processor of its own where there are two or more, so that its clients do not take turns with it.

mod ready;
mod unprivileged;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::thread::CpuSet;

use super::programs::Programs;
use crate::kit::processors::{self, bind};
use crate::kit::{Failure, Launcher, Result, Server, Side, TemporaryDirectory};
use crate::servers::cache as server;
use crate::servers::net::Place;

use ready::{listening, undisturbed};

pub use unprivileged::Unprivileged;

/// How often a port is tried that another program may take in between.
const PORT_ATTEMPTS: usize = 3;
/// How long the profiler may take to write what it found once its program has ended.
const PROFILE_TIMEOUT: Duration = Duration::from_secs(120);

/// What the measured server runs under.
#[derive(Clone, Copy, Debug)]
pub enum Under<'a> {
    /// A side of the comparison.
    Side(Side),
    /// `uncopy profile`, which writes this file.
    Profile(&'a Path),
}

/// Where a case starts its processes.
#[derive(Debug)]
pub struct Stage<'a> {
    launcher: &'a Launcher,
    under: Under<'a>,
    programs: &'a Programs,
    /// What helpers run under.
    helpers: Side,
    /// The server's processor and all others.
    processors: Option<(CpuSet, CpuSet)>,
    /// Where the measured server is.
    place: Place,
}

impl<'a> Stage<'a> {
    /// A stage whose server runs under `under`.
    #[must_use]
    pub fn new(launcher: &'a Launcher, under: Under<'a>, programs: &'a Programs) -> Self {
        Self {
            launcher,
            under,
            programs,
            helpers: Side::Plain,
            processors: processors::apart(1),
            place: Place::Kernel,
        }
    }

    /// The same, whose helpers run under `side`, too.
    #[must_use]
    pub fn with_helpers_under(self, side: Side) -> Self {
        Self { helpers: side, ..self }
    }

    /// The same, whose server is elsewhere.
    #[must_use]
    pub fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// The processors of clients and helpers, where they are not the server's.
    #[must_use]
    pub fn client_processors(&self) -> Option<CpuSet> {
        self.processors.map(|(_, others)| others)
    }

    /// Where the case's program `name` is.
    ///
    /// # Errors
    /// [`Failure`] when the case did not say that it needs it.
    pub fn program(&self, name: &str) -> Result<&'a Path> {
        self.programs.path(name)
    }

    /// Another program of ours, beside `uncopy` or on `PATH`.
    ///
    /// # Errors
    /// [`Failure`] that says where it was looked for.
    pub fn own_program(&self, name: &str) -> Result<PathBuf> {
        server::find(self.launcher, name)
    }

    /// The command line of the measured server, for one that needs more than [`Stage::server`] gives.
    ///
    /// # Errors
    /// As [`Stage::program`].
    pub fn command(&self, name: &str, arguments: &[OsString]) -> Result<Command> {
        Ok(self.command_of(self.program(name)?, arguments))
    }

    fn command_of(&self, program: &Path, arguments: &[OsString]) -> Command {
        let program = program.as_os_str();
        let mut command = match self.under {
            Under::Side(side) => self.launcher.command(side, program, arguments),
            Under::Profile(file) => self.launcher.profile(file, program, arguments),
        };
        bind(&mut command, self.processors.map(|(ours, _)| ours));
        command
    }

    /// The command line of `uncopy bench` with `arguments`, as the measured server.
    #[must_use]
    pub fn bench(&self, arguments: &[String]) -> Command {
        let mut command = match self.under {
            Under::Side(side) => self.launcher.bench(side, arguments),
            Under::Profile(file) => self.launcher.profile_bench(file, arguments),
        };
        bind(&mut command, self.processors.map(|(ours, _)| ours));
        command
    }

    /// Starts the measured server: what [`Stage::command`] or [`Stage::bench`] gave, with its files in `directory`.
    ///
    /// # Errors
    /// [`Failure`] when it cannot be started.
    pub fn start(&self, command: Command, title: &str, directory: TemporaryDirectory) -> Result<Server> {
        let mut server = self.place.start(command, title, directory)?;
        if let Under::Profile(_) = self.under {
            server.process().wraps_its_child(PROFILE_TIMEOUT);
        }
        Ok(server)
    }

    /// Starts the measured server on a free port: `arguments` gives its command line for an address and a directory,
    /// in which it writes its configuration. Returns when it accepts connections.
    ///
    /// # Errors
    /// [`Failure`] when it cannot be started or does not listen in time.
    pub fn server(
        &self,
        name: &str,
        arguments: impl Fn(SocketAddr, &Path) -> Result<Vec<OsString>>,
    ) -> Result<(Server, SocketAddr)> {
        self.undisturbed_server(name, Duration::ZERO, arguments)
    }

    /// As [`Stage::server`], for one to which nobody may connect for `alone` after it began to listen.
    ///
    /// # Errors
    /// As [`Stage::server`].
    pub fn undisturbed_server(
        &self,
        name: &str,
        alone: Duration,
        arguments: impl Fn(SocketAddr, &Path) -> Result<Vec<OsString>>,
    ) -> Result<(Server, SocketAddr)> {
        on_free_port(self.place, |address| {
            let directory = TemporaryDirectory::make()?;
            let command = self.command(name, &arguments(address, directory.path())?)?;
            undisturbed(self.start(command, name, directory)?, address, alone)
        })
    }

    /// As [`Stage::server`], where the server is another program of ours.
    ///
    /// # Errors
    /// As there, and as [`Stage::own_program`].
    pub fn own_server(
        &self,
        name: &str,
        arguments: impl Fn(SocketAddr, &Path) -> Result<Vec<OsString>>,
    ) -> Result<(Server, SocketAddr)> {
        let program = self.own_program(name)?;
        on_free_port(self.place, |address| {
            let directory = TemporaryDirectory::make()?;
            let command = self.command_of(&program, &arguments(address, directory.path())?);
            listening(self.start(command, name, directory)?, address)
        })
    }

    /// Starts a helper, plain unless the stage says otherwise and on the clients' processors: another server that the measured one asks. `arguments`
    /// as in [`Stage::server`].
    ///
    /// # Errors
    /// [`Failure`] when it cannot be started or does not listen in time.
    pub fn helper(
        &self,
        program: &Path,
        arguments: impl Fn(SocketAddr, &Path) -> Result<Vec<OsString>>,
    ) -> Result<(Server, SocketAddr)> {
        let title = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
        on_free_port(Place::Kernel, |address| {
            let directory = TemporaryDirectory::make()?;
            let arguments = arguments(address, directory.path())?;
            let mut command = self.launcher.command(self.helpers, program.as_os_str(), &arguments);
            bind(&mut command, self.client_processors());
            listening(Server::start(command, &title, directory)?, address)
        })
    }
}

/// Does `start` with a free address of `place`, and again where another program took the port in between.
///
/// # Errors
/// As `start`.
pub fn on_free_port<T>(
    place: Place,
    mut start: impl FnMut(SocketAddr) -> Result<T>,
) -> Result<(T, SocketAddr)> {
    let mut outcome = Err(Failure::new("it was not started"));
    for _ in 0..PORT_ATTEMPTS {
        let address = place.free_address()?;
        outcome = start(address).map(|started| (started, address));
        match &outcome {
            Err(failure) if failure.to_string().to_lowercase().contains("address already in use") => {}
            _ => break,
        }
    }
    outcome
}
