//! `uncopy run`: checks the options, decides whether uncopy can work, and becomes CMD.
//!
//! That takes two opens and two ioctls of userfaultfd, a search of `PATH`, a read of CMD's first
//! page, and `execve`. Only `--explain` makes CMD a child, to report on it after its end. `--log`
//! first recovers logs and starts their keeper.

use crate::args;
use crate::atomic_write;
use crate::costs;
use crate::environment::Environment;
use crate::explain::Explanation;
use crate::library;
use crate::live;
use crate::log;
use crate::os::{self, Disposition};
use crate::output::{self, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_USAGE, Quoted, Reason};
use crate::probe;
use crate::program;
use crate::settings::{self, Settings};
use crate::sweep::sweep;
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Write as _};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use uncopy_core::stats::Snapshot;

/// Library and device that accelerate CMD.
struct Active {
    library: PathBuf,
    uffd_fd: Option<RawFd>,
    /// Reason why nothing can be elided; the library then only serves the log or the connections.
    obstacle: Option<String>,
}

/// Options for starting the program.
pub struct SpawnOptions<'a> {
    /// Adds variables to the program's environment.
    pub prepare: &'a dyn Fn(&mut Environment),
    /// Called with the reason if the program is started without the library.
    pub on_inactive: &'a dyn Fn(&str),
    /// Whether the library is useless without userfaultfd.
    pub needs_uffd: bool,
}

/// Runs the command line `run …`. Without `--explain`, returns only if CMD could not be started.
pub fn main(arguments: &[OsString], sigpipe: &Disposition) -> u8 {
    let matches = match args::run().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return args::print_clap_error(&error),
    };
    let command = args::command(&matches);
    let given = args::option_values(&matches);
    let settings = match settings::resolve(&mut Environment::inherited(), &given, std::process::id()) {
        Ok(settings) => settings,
        Err(message) => {
            output::print_message(message);
            return EXIT_USAGE;
        }
    };
    if let Some(warning) = &settings.warning {
        output::print_message(warning);
    }
    match settings.explain.as_deref().map(|file| (file, Explanation::begin())) {
        None => start(&command, &given, sigpipe, &SpawnOptions::standard()),
        Some((_, Ok(explanation))) => {
            let prepare = |environment: &mut Environment| {
                environment.set(settings::LEDGER, explanation.path().as_bytes());
            };
            let on_inactive = |why: &str| explanation.record_inactive(why);
            let options = SpawnOptions { prepare: &prepare, on_inactive: &on_inactive, needs_uffd: true };
            let status = explanation.run_child(|| start(&command, &given, sigpipe, &options));
            explanation.finish(settings.explain.as_deref().unwrap_or_default(), &command, status)
        }
        Some((file, Err(error))) => {
            output::print_message(format_args!(
                "no report for --explain {}: {}; CMD runs without it",
                Quoted(file),
                Reason(&error)
            ));
            start(&command, &given, sigpipe, &SpawnOptions::standard())
        }
    }
}

impl SpawnOptions<'_> {
    fn standard() -> Self {
        Self { prepare: &|_| (), on_inactive: &|_| (), needs_uffd: true }
    }
}

/// Finds CMD, or prints why it cannot be found and returns the exit status.
pub fn find(name: &OsStr, environment: &Environment) -> Result<PathBuf, u8> {
    program::find(name, environment.get(b"PATH")).map_err(|error| {
        output::print_message(&error);
        error.status()
    })
}

/// Becomes CMD. Returns the exit status if CMD could not be started.
pub fn start(
    command: &[OsString],
    given: &[settings::OptionValue],
    sigpipe: &Disposition,
    options: &SpawnOptions<'_>,
) -> u8 {
    let mut environment = Environment::inherited();
    let pid = std::process::id();
    // Settings are resolved again because this may be a child of the process that checked them.
    let Ok(settings) = settings::resolve(&mut environment, given, pid) else { return EXIT_USAGE };
    (options.prepare)(&mut environment);
    let Some(name) = command.first() else { return EXIT_USAGE };
    let path = match find(name, &environment) {
        Ok(path) => path,
        Err(status) => return status,
    };
    sweep(live::shared_memory());
    let preloaded = environment.get(b"LD_PRELOAD").unwrap_or_default().to_vec();
    let active = activate(&path, &settings, options.needs_uffd, &preloaded).and_then(|active| {
        let has_log = begin_log(&settings, &mut environment);
        match active.obstacle {
            Some(why) if !has_log && !settings.uses_net => Err(why),
            _ => Ok(active),
        }
    });
    match active {
        Ok(active) => {
            if let Some(why) = &active.obstacle {
                output::print_message(format_args!("nothing is elided: {why}; see 'uncopy doctor'"));
                environment.set(settings::HEAP, b"off");
            }
            environment.set("LD_PRELOAD", &library::preload_value(&active.library, &preloaded));
            if environment.get(costs::VARIABLE.as_bytes()).is_none()
                && let Some(stored) = costs::path(&environment).and_then(|path| costs::load(&path).ok())
            {
                environment.set(costs::VARIABLE, stored.to_text().as_bytes());
            }
            match active.uffd_fd {
                Some(fd) => environment.set(settings::UFFD_FD, fd.to_string().as_bytes()),
                None => environment.remove(settings::UFFD_FD),
            }
        }
        Err(why) => {
            output::print_message(format_args!("inactive: {why}; see 'uncopy doctor'"));
            environment.remove(settings::UFFD_FD);
            (options.on_inactive)(&why);
            remove_library(&mut environment, &preloaded);
            if let Some(file) = &settings.stats {
                write_stats(file, &Snapshot::empty(u64::from(pid), Some(why)));
            }
        }
    }
    // A device of an outer run that is not passed on must not stay open in CMD.
    if environment.get(settings::UFFD_FD.as_bytes()).is_none()
        && let Some(device) = probe::Device::inherited(settings.uffd_fd)
    {
        os::set_close_on_exec(device);
    }
    os::restore_sigpipe(sigpipe);
    become_program(&path, command, &environment)
}

/// Has logs kept for the program if requested. Returns whether they are kept, for this run or an
/// outer one. Otherwise files are synced by their file systems.
fn begin_log(settings: &Settings, environment: &mut Environment) -> bool {
    let Some(logs) = &settings.log else { return environment.get(settings::LOG_SOCKET.as_bytes()).is_some() };
    match log::keeper::start(logs) {
        Ok(socket) => {
            environment.set(settings::LOG_SOCKET, socket.as_os_str().as_bytes());
            true
        }
        Err(why) => {
            output::print_message(format_args!("no log: {why}; files are synced by their file systems"));
            environment.remove(settings::LOG_SOCKET);
            false
        }
    }
}

/// Decides whether the program at `path` can have the library, and whether the library can elide.
///
/// # Errors
/// The reason why the program cannot have the library, as part of a sentence.
fn activate(path: &Path, settings: &Settings, needs_uffd: bool, preloaded: &[u8]) -> Result<Active, String> {
    let library = library::locate()?;
    if let Some((name, sanitizer)) = library::sanitizer(preloaded) {
        return Err(format!("LD_PRELOAD has {name} of {sanitizer}, which must be loaded first"));
    }
    if let Some(why) = program::why_not_preloadable(path) {
        return Err(why);
    }
    let (mut uffd_fd, mut obstacle) = (settings.uffd_fd, None);
    if !settings.off {
        match probe::probe(settings.uffd_fd) {
            Ok(usable) if settings.no_follow => {
                uffd_fd = usable.device.and_then(probe::Device::pass_to_program);
            }
            Ok(usable) => uffd_fd = usable.device.and_then(probe::Device::pass_to_descendants),
            Err(error) => obstacle = needs_uffd.then(|| error.to_string()),
        }
    }
    Ok(Active { library, uffd_fd, obstacle })
}

/// Removes the library from `LD_PRELOAD`, where an outer `uncopy run` may have put it.
fn remove_library(environment: &mut Environment, preloaded: &[u8]) {
    let rest = library::without_library(preloaded);
    if rest.is_empty() && !preloaded.is_empty() {
        environment.remove("LD_PRELOAD");
    } else if rest != preloaded {
        environment.set("LD_PRELOAD", &rest);
    }
}

/// Writes the `--stats` file in the library's place. A failure does not keep CMD from running.
fn write_stats(file: &OsStr, snapshot: &Snapshot) {
    let json = format!("{}\n", snapshot.to_json());
    let written = if file == "-" {
        let mut output = io::stdout();
        output.write_all(json.as_bytes()).and_then(|()| output.flush())
    } else {
        atomic_write::write(Path::new(file), json.as_bytes())
    };
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            output::print_message(format_args!("cannot write --stats {}: {}", Quoted(file), Reason(&error)));
        }
        _ => {}
    }
}

/// Executes the program. Returns the exit status on failure.
fn become_program(path: &Path, command: &[OsString], environment: &Environment) -> u8 {
    // Strings from this process's arguments and environment contain no zero byte.
    let text = |value: &OsStr| CString::new(value.as_bytes()).unwrap_or_default();
    let mut arguments: Vec<CString> = command.iter().map(|argument| text(argument)).collect();
    let entries = environment.entries();
    let mut error = os::execve(&text(path.as_os_str()), &arguments, &entries);
    if error.raw_os_error() == Some(libc::ENOEXEC) {
        // A file without "#!" is a shell script, as for execvp(3).
        let shell = text(program::SHELL.as_ref());
        arguments.splice(..1, [shell.clone(), text(path.as_os_str())]);
        error = os::execve(&shell, &arguments, &entries);
    }
    let missing = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR));
    if missing && path.exists() {
        output::print_message(format_args!(
            "cannot run {}: its interpreter or loader does not exist",
            Quoted(path.as_os_str())
        ));
    } else {
        output::print_message(format_args!("cannot run {}: {}", Quoted(path.as_os_str()), Reason(&error)));
    }
    if missing { EXIT_NOT_FOUND } else { EXIT_NOT_EXECUTABLE }
}
