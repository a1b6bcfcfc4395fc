//! Servers that refuse to be run by root: they are run by the user nobody then, with the one capability that serving
//! page faults from inside system calls needs, and without any other.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Stage, Under, bind, on_free_port, undisturbed};
use crate::apps::programs::Need;
use crate::kit::processes::process;
use crate::kit::traffic::Load;
use crate::kit::{Failure, Result, Running, Server, TemporaryDirectory, While};

/// What changes the user.
const SETPRIV: &str = "setpriv";
/// nobody and nogroup, whose numbers every distribution has.
const NOBODY: u32 = 65_534;
/// What a server's faults need, and what a service's device does.
const OF_SERVERS: &str = "+sys_ptrace";
const OF_SERVICES: &str = "+net_admin,+dac_override";
/// How long a helper may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Files in the server's directory: the profile, and a copy of uncopy where nobody cannot reach the real one.
const PROFILE: &str = "profile.json";
const REACHABLE: &str = "reachable";
const LIBRARY: &str = "libuncopy.so";

/// A user that such a server accepts.
#[derive(Debug)]
pub struct Unprivileged<'a> {
    stage: &'a Stage<'a>,
    /// Where setpriv is; `None` where this program is not run by root, and another user need not be found.
    setpriv: Option<&'a Path>,
}

impl<'a> Unprivileged<'a> {
    /// The program by which it is done: cases whose servers refuse root need it.
    pub const NEED: Need = Need::new(SETPRIV, "util-linux", &[]);

    /// The user for servers on `stage`.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when the case did not say that it needs setpriv.
    pub fn of(stage: &'a Stage<'a>) -> Result<Self> {
        let setpriv = rustix::process::geteuid().is_root().then(|| stage.program(SETPRIV)).transpose()?;
        Ok(Self { stage, setpriv })
    }

    /// `command` by that user, and a directory of that user's for it.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when there is none that the user can reach.
    pub fn with_directory(&self, command: Command, name: &str) -> Result<(Command, TemporaryDirectory)> {
        let directory = TemporaryDirectory::make()?;
        self.give(&directory, name)?;
        Ok((self.as_user(command, directory.path())?, directory))
    }

    /// Gives that user the directory of the program `name`.
    fn give(&self, directory: &TemporaryDirectory, name: &str) -> Result<()> {
        if self.setpriv.is_none() {
            return Ok(());
        }
        if !lies_open(directory.path()) {
            return Err(Failure::new(format!(
                "{name} refuses root, and the user nobody cannot reach {}; set TMPDIR to a directory that everybody can \
                 reach",
                directory.path().display()
            )));
        }
        chown(directory.path(), Some(NOBODY), Some(NOBODY)).doing("giving a directory away")
    }

    /// `command`, of a service whose files are in `directory`, by that user: its programs are those of the same one.
    ///
    /// # Errors
    /// As [`Unprivileged::with_directory`].
    pub fn service(&self, command: Command, directory: &TemporaryDirectory) -> Result<Command> {
        self.give(directory, "its server")?;
        self.as_user_with(OF_SERVICES, command, directory.path())
    }

    /// `command` by that user.
    fn as_user(&self, command: Command, directory: &Path) -> Result<Command> {
        self.as_user_with(OF_SERVERS, command, directory)
    }

    fn as_user_with(&self, capabilities: &str, command: Command, directory: &Path) -> Result<Command> {
        let Some(setpriv) = self.setpriv else { return Ok(command) };
        let mut outer = Command::new(setpriv);
        outer.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
        outer.args(["inh-caps", "bounding-set"].map(|set| format!("--{set}=-all,{capabilities}")));
        // The kernel forgets who is to be told of the end at a change of user.
        outer.args(["--clear-groups", &format!("--ambient-caps={capabilities}"), "--pdeathsig=KILL"]);
        outer.arg(reachable(Path::new(command.get_program()), directory)?);
        outer.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        Ok(outer)
    }

    /// Runs the case's program `name` to its end, plain.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when it fails or takes too long.
    pub fn run(&self, name: &str, arguments: &[OsString], directory: &Path) -> Result<()> {
        let mut command = Command::new(self.stage.program(name)?);
        command.args(arguments);
        let mut command = self.as_user(command, directory)?;
        command.current_dir(directory);
        process::run(command, name, LIMIT)?.success(name).map(drop)
    }

    /// As [`Stage::server`].
    ///
    /// # Errors
    /// As there.
    pub fn server(
        &self,
        name: &str,
        arguments: impl Fn(SocketAddr, &Path) -> Result<Vec<OsString>>,
    ) -> Result<(Server, SocketAddr)> {
        self.undisturbed_server(name, Duration::ZERO, arguments)
    }

    /// As [`Stage::undisturbed_server`].
    ///
    /// # Errors
    /// As there.
    pub fn undisturbed_server(
        &self,
        name: &str,
        alone: Duration,
        arguments: impl Fn(SocketAddr, &Path) -> Result<Vec<OsString>>,
    ) -> Result<(Server, SocketAddr)> {
        on_free_port(self.stage.place, |address| {
            let directory = TemporaryDirectory::make()?;
            let profile = directory.join(PROFILE);
            let mut stage = Stage { ..*self.stage };
            self.give(&directory, name)?;
            if let (Under::Profile(_), Some(_)) = (stage.under, self.setpriv) {
                stage.under = Under::Profile(&profile);
            }
            let command = stage.command(name, &arguments(address, directory.path())?)?;
            let mut command = self.as_user(command, directory.path())?;
            bind(&mut command, stage.processors.map(|(ours, _)| ours));
            undisturbed(stage.start(command, name, directory)?, address, alone)
        })
    }

    /// `running`, whose server this user runs.
    #[must_use]
    pub fn running<R: Running>(self, running: R) -> ByUser<R> {
        let profile = match (self.stage.under, self.setpriv) {
            (Under::Profile(file), Some(_)) => Some(file.to_owned()),
            _ => None,
        };
        ByUser { running, profile }
    }
}

/// A server that such a user runs, and its load.
pub struct ByUser<R> {
    running: R,
    /// Where the profile belongs that the user writes into the server's directory.
    profile: Option<PathBuf>,
}

impl<R: Running> Running for ByUser<R> {
    fn server(&mut self) -> &mut Server {
        self.running.server()
    }

    fn prepare(&mut self, duration: Duration) -> Result<u64> {
        self.running.prepare(duration)
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        self.running.load(duration)
    }

    fn notes(&mut self) -> Vec<String> {
        self.running.notes()
    }

    fn reconnect(&mut self) -> Result<()> {
        self.running.reconnect()
    }

    fn stop(&mut self) -> Result<()> {
        self.running.stop()?;
        if let Some(file) = &self.profile {
            std::fs::copy(self.running.server().directory().join(PROFILE), file)
                .doing("keeping the profile")?;
        }
        Ok(())
    }
}

/// Whether everybody has `bits` of the mode of `path`.
fn everybody(path: &Path, bits: u32) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & bits == bits)
}

/// Whether everybody can reach `path`: all directories above it may be searched.
fn lies_open(path: &Path) -> bool {
    let mut parents = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
    parents.all(|parent| everybody(parent, 0o001))
}

/// `program` itself if everybody may execute it, and otherwise a copy in `directory`, with uncopy's library if it
/// is beside it.
fn reachable(program: &Path, directory: &Path) -> Result<PathBuf> {
    let everybody =
        |path: &Path, bits: u32| std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & bits == bits);
    let parents = program.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
    if everybody(program, 0o005) && parents.into_iter().all(|parent| everybody(parent, 0o001)) {
        return Ok(program.to_owned());
    }
    let home = directory.join(REACHABLE);
    let what = || format!("copying {} to where the user nobody can execute it", program.display());
    std::fs::create_dir_all(&home).doing(what())?;
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o755)).doing(what())?;
    let place = |file: &Path| -> Result<PathBuf> {
        let copy = home.join(file.file_name().unwrap_or(OsStr::new("program")));
        std::fs::copy(file, &copy).doing(what())?;
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).doing(what())?;
        Ok(copy)
    };
    let beside = program.with_file_name(LIBRARY);
    let prefix = program.parent().and_then(Path::parent).map(|prefix| prefix.join("lib"));
    let libraries = prefix.into_iter().flat_map(|lib| [lib.join("uncopy").join(LIBRARY), lib.join(LIBRARY)]);
    if let Some(library) = std::iter::once(beside).chain(libraries).find(|path| path.is_file()) {
        place(&library)?;
    }
    place(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_others_cannot_reach_is_copied_with_its_library_and_no_other_is() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        let shell = Path::new("/bin/sh");
        assert_eq!(reachable(shell, directory.path()).expect("everybody's"), shell);
        // The directory is this user's alone.
        let (program, library) = (directory.join("program"), directory.join(LIBRARY));
        std::fs::copy(shell, &program).expect("writable");
        std::fs::write(&library, "library").expect("writable");
        let copy = reachable(&program, directory.path()).expect("copied");
        assert_eq!(copy, directory.join(REACHABLE).join("program"));
        assert_eq!(std::fs::read(&copy).expect("it is there"), std::fs::read(shell).expect("a file"));
        assert_eq!(std::fs::read(copy.with_file_name(LIBRARY)).expect("it is there"), b"library");
    }
}
