//! Servers that refuse to run as root: they run as the user nobody, with only the one capability that serving
//! page faults from inside system calls needs.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use uncopy_testbed::nobody::{self, FAULTS, NOBODY, SETPRIV};

use super::{Environment, Wrapper, bind_command, on_free_port, wait_undisturbed};
use crate::kit::processes::process;
use crate::kit::traffic::LoadResult;
use crate::kit::{Failure, Result, RunningServer, Server, TemporaryDirectory, While};

/// Capabilities that a service's device needs, as setpriv's option.
const SERVICE_CAPABILITIES: &str = "+net_admin,+dac_override";
/// Time limit of a helper program.
const HELPER_TIMEOUT: Duration = Duration::from_secs(60);
/// Files in the server's directory: the profile, and a copy of uncopy for a user who cannot reach the original.
const PROFILE: &str = "profile.json";
const COPY_DIRECTORY: &str = "reachable";
const LIBRARY: &str = "libuncopy.so";

/// An unprivileged user for a server.
#[derive(Debug)]
pub struct Unprivileged<'a> {
    environment: &'a Environment<'a>,
    /// Path of setpriv; `None` if this program does not run as root, so that no other user is needed.
    setpriv: Option<&'a Path>,
}

impl<'a> Unprivileged<'a> {
    /// Returns the user for servers on `environment`.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when setpriv is not among the case's packages.
    pub fn new(environment: &'a Environment<'a>) -> Result<Self> {
        let setpriv =
            rustix::process::geteuid().is_root().then(|| environment.program(SETPRIV.program)).transpose()?;
        Ok(Self { environment, setpriv })
    }

    /// Returns `command` run by the user, and a directory that belongs to the user.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when the user can reach no directory.
    pub fn with_directory(&self, command: Command, name: &str) -> Result<(Command, TemporaryDirectory)> {
        let directory = TemporaryDirectory::make()?;
        self.chown_to_user(&directory, name)?;
        Ok((self.as_user(command, directory.path())?, directory))
    }

    /// Gives the user the directory of the program `name`.
    fn chown_to_user(&self, directory: &TemporaryDirectory, name: &str) -> Result<()> {
        if self.setpriv.is_none() {
            return Ok(());
        }
        if !is_reachable_by_all(directory.path()) {
            return Err(Failure::new(format!(
                "{name} refuses to run as root, and the user nobody cannot reach {}; set TMPDIR to a \
                 directory that every user can reach",
                directory.path().display()
            )));
        }
        chown(directory.path(), Some(NOBODY), Some(NOBODY)).doing("changing the owner of a directory")
    }

    /// Returns `command`, of a service with its files in `directory`, run by the user, as the service's programs are.
    ///
    /// # Errors
    /// As [`Unprivileged::with_directory`].
    pub fn service(&self, command: Command, directory: &TemporaryDirectory) -> Result<Command> {
        self.chown_to_user(directory, "its server")?;
        self.as_user_with(SERVICE_CAPABILITIES, command, directory.path())
    }

    /// Returns `command` run by the user.
    fn as_user(&self, command: Command, directory: &Path) -> Result<Command> {
        self.as_user_with(FAULTS, command, directory)
    }

    fn as_user_with(&self, capabilities: &str, command: Command, directory: &Path) -> Result<Command> {
        let Some(setpriv) = self.setpriv else { return Ok(command) };
        let mut outer = Command::new(setpriv);
        outer
            .args(nobody::arguments(capabilities))
            .arg(executable_by_all(Path::new(command.get_program()), directory)?);
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
    /// [`crate::kit::failure::Failure`] when the program fails or takes too long.
    pub fn run(&self, name: &str, arguments: &[OsString], directory: &Path) -> Result<()> {
        let mut command = Command::new(self.environment.program(name)?);
        command.args(arguments);
        let mut command = self.as_user(command, directory)?;
        command.current_dir(directory);
        process::run(command, name, HELPER_TIMEOUT)?.success(name).map(drop)
    }

    /// Starts a server as [`Environment::start_server`] does, without a connection for `undisturbed_time` after it began to
    /// listen.
    ///
    /// # Errors
    /// As [`Environment::start_server`].
    pub fn start_server(
        &self,
        name: &str,
        undisturbed_time: Duration,
        arguments: impl Fn(SocketAddr, &Path) -> Result<Vec<OsString>>,
    ) -> Result<(Server, SocketAddr)> {
        on_free_port(self.environment.stack, |address| {
            let directory = TemporaryDirectory::make()?;
            let profile = directory.join(PROFILE);
            let mut environment = Environment { ..*self.environment };
            self.chown_to_user(&directory, name)?;
            if let (Wrapper::Profile(_), Some(_)) = (environment.wrapper, self.setpriv) {
                environment.wrapper = Wrapper::Profile(&profile);
            }
            let command = environment.command(name, &arguments(address, directory.path())?)?;
            let mut command = self.as_user(command, directory.path())?;
            bind_command(&mut command, environment.processors.map(|(ours, _)| ours));
            wait_undisturbed(environment.start(command, name, directory)?, address, undisturbed_time)
        })
    }

    /// Wraps `running`, whose server the user runs.
    #[must_use]
    pub fn wrap<R: RunningServer>(self, running: R) -> UnprivilegedServer<R> {
        let profile = match (self.environment.wrapper, self.setpriv) {
            (Wrapper::Profile(file), Some(_)) => Some(file.to_owned()),
            _ => None,
        };
        UnprivilegedServer { running, profile }
    }
}

/// A server run by such a user, and its load.
pub struct UnprivilegedServer<R> {
    running: R,
    /// Destination of the profile that the user writes into the server's directory.
    profile: Option<PathBuf>,
}

impl<R: RunningServer> RunningServer for UnprivilegedServer<R> {
    fn server(&mut self) -> &mut Server {
        self.running.server()
    }

    fn warm_up(&mut self, duration: Duration) -> Result<u64> {
        self.running.warm_up(duration)
    }

    fn load(&mut self, duration: Duration) -> Result<LoadResult> {
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
                .doing("copying the profile")?;
        }
        Ok(())
    }
}

/// Returns whether all users have `bits` of the mode of `path`.
fn all_users_have(path: &Path, bits: u32) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & bits == bits)
}

/// Returns whether all users can reach `path`, that is, search every directory above it.
fn is_reachable_by_all(path: &Path) -> bool {
    let mut parents = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
    parents.all(|parent| all_users_have(parent, 0o001))
}

/// Returns `program` itself if everybody may execute it, otherwise a copy in `directory`, together with
/// uncopy's library if the library is next to the program.
fn executable_by_all(program: &Path, directory: &Path) -> Result<PathBuf> {
    if all_users_have(program, 0o005) && is_reachable_by_all(program) {
        return Ok(program.to_owned());
    }
    let home = directory.join(COPY_DIRECTORY);
    let what = || format!("copying {} to a place where the user nobody can execute it", program.display());
    std::fs::create_dir_all(&home).doing(what())?;
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o755)).doing(what())?;
    let copy_file = |file: &Path| -> Result<PathBuf> {
        let copy = home.join(file.file_name().unwrap_or(OsStr::new("program")));
        std::fs::copy(file, &copy).doing(what())?;
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).doing(what())?;
        Ok(copy)
    };
    let sibling = program.with_file_name(LIBRARY);
    let prefix = program.parent().and_then(Path::parent).map(|prefix| prefix.join("lib"));
    let libraries = prefix.into_iter().flat_map(|lib| [lib.join("uncopy").join(LIBRARY), lib.join(LIBRARY)]);
    if let Some(library) = std::iter::once(sibling).chain(libraries).find(|path| path.is_file()) {
        copy_file(&library)?;
    }
    copy_file(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_others_cannot_reach_is_copied_with_its_library_and_no_other_is() {
        let directory = TemporaryDirectory::make().expect("a writable TMPDIR");
        let shell = Path::new("/bin/sh");
        assert_eq!(executable_by_all(shell, directory.path()).expect("everybody's"), shell);
        // The directory belongs to this user only.
        let (program, library) = (directory.join("program"), directory.join(LIBRARY));
        std::fs::copy(shell, &program).expect("writable");
        std::fs::write(&library, "library").expect("writable");
        let copy = executable_by_all(&program, directory.path()).expect("copied");
        assert_eq!(copy, directory.join(COPY_DIRECTORY).join("program"));
        assert_eq!(std::fs::read(&copy).expect("it is there"), std::fs::read(shell).expect("a file"));
        assert_eq!(std::fs::read(copy.with_file_name(LIBRARY)).expect("it is there"), b"library");
    }
}
