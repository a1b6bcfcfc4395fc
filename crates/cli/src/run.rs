//! `uncopy run`: checks the options, decides whether uncopy can work, and becomes CMD.
//!
//! Nothing is started, nothing is waited for and nothing is searched but `PATH`: two opens and
//! two ioctls of userfaultfd, one look at CMD's first page, and `execve`. Only `--explain` makes CMD a child,
//! because what it did is put into words when it has ended; and `--log` recovers and starts what keeps logs first.

use crate::atomic_write;
use crate::costs;
use crate::environment::Environment;
use crate::explain::Explanation;
use crate::library;
use crate::line;
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

/// What CMD is given so that it is accelerated.
struct Active {
    library: PathBuf,
    uffd_fd: Option<RawFd>,
    /// Why nothing can be elided: then the library is for its log or its connections only.
    obstacle: Option<String>,
}

/// How the program is started.
pub struct SpawnOptions<'a> {
    /// Adds to its environment.
    pub prepare: &'a dyn Fn(&mut Environment),
    /// Is told why it is started without the library, if so.
    pub plain: &'a dyn Fn(&str),
    /// Whether the library is of no use without userfaultfd.
    pub needs_uffd: bool,
}

/// Runs the command line `run …`; returns only if CMD could not be started.
pub fn main(arguments: &[OsString], sigpipe: &Disposition) -> u8 {
    let matches = match line::run().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return line::answer(&error),
    };
    let command = line::command(&matches);
    let given = line::given(&matches);
    let settings = match settings::settle(&mut Environment::inherited(), &given, std::process::id()) {
        Ok(settings) => settings,
        Err(message) => {
            output::complain(message);
            return EXIT_USAGE;
        }
    };
    if let Some(warning) = &settings.warning {
        output::complain(warning);
    }
    match settings.explain.as_deref().map(|file| (file, Explanation::begin())) {
        None => start(&command, &given, sigpipe, &SpawnOptions::usual()),
        Some((_, Ok(explanation))) => {
            let prepare = |environment: &mut Environment| {
                environment.set(settings::LEDGER, explanation.path().as_bytes());
            };
            let plain = |why: &str| explanation.say_why_plain(why);
            let options = SpawnOptions { prepare: &prepare, plain: &plain, needs_uffd: true };
            let status = explanation.watch(|| start(&command, &given, sigpipe, &options));
            explanation.finish(settings.explain.as_deref().unwrap_or_default(), &command, status)
        }
        Some((file, Err(error))) => {
            output::complain(format_args!("no --explain {}: {}", Quoted(file), Reason(&error)));
            start(&command, &given, sigpipe, &SpawnOptions::usual())
        }
    }
}

impl SpawnOptions<'_> {
    fn usual() -> Self {
        Self { prepare: &|_| (), plain: &|_| (), needs_uffd: true }
    }
}

/// Finds CMD. If there is none, says so; the exit status then.
pub fn find(name: &OsStr, environment: &Environment) -> Result<PathBuf, u8> {
    program::find(name, environment.get(b"PATH")).map_err(|unfound| {
        output::complain(&unfound);
        unfound.status()
    })
}

/// Becomes CMD; returns only if it could not be started.
pub fn start(
    command: &[OsString],
    given: &[settings::Given],
    sigpipe: &Disposition,
    options: &SpawnOptions<'_>,
) -> u8 {
    let mut environment = Environment::inherited();
    let pid = std::process::id();
    // Once more: this may be another process than the one that checked them.
    let Ok(settings) = settings::settle(&mut environment, given, pid) else { return EXIT_USAGE };
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
            Some(why) if !has_log && !settings.has_net => Err(why),
            _ => Ok(active),
        }
    });
    match active {
        Ok(active) => {
            if let Some(why) = &active.obstacle {
                output::complain(format_args!("nothing is elided: {why}; see 'uncopy doctor'"));
                environment.set(settings::HEAP, b"off");
            }
            environment.set("LD_PRELOAD", &library::preload(&active.library, &preloaded));
            if environment.get(costs::COSTS.as_bytes()).is_none()
                && let Some(stored) = costs::path(&environment).and_then(|path| costs::load(&path).ok())
            {
                environment.set(costs::COSTS, stored.to_text().as_bytes());
            }
            match active.uffd_fd {
                Some(fd) => environment.set(settings::UFFD_FD, fd.to_string().as_bytes()),
                None => environment.remove(settings::UFFD_FD),
            }
        }
        Err(why) => {
            output::complain(format_args!("inactive: {why}; see 'uncopy doctor'"));
            environment.remove(settings::UFFD_FD);
            (options.plain)(&why);
            leave_plain(&mut environment, &preloaded);
            if let Some(file) = &settings.stats {
                write_stats(file, &Snapshot::empty(u64::from(pid), Some(why)));
            }
        }
    }
    // An outer run's is nobody's from here on if this one does not pass it on.
    if environment.get(settings::UFFD_FD.as_bytes()).is_none()
        && let Some(device) = probe::Device::inherited(settings.uffd_fd)
    {
        os::leave_to_nobody(device);
    }
    os::restore_sigpipe(sigpipe);
    become_program(&path, command, &environment)
}

/// Has logs kept for the program, if that was asked for; whether they are, by this process or an outer one. Without, its files are
/// synced by their file systems.
fn begin_log(settings: &Settings, environment: &mut Environment) -> bool {
    let Some(logs) = &settings.log else { return environment.get(settings::LOG_SOCKET.as_bytes()).is_some() };
    match log::keeping::begin(logs) {
        Ok(socket) => {
            environment.set(settings::LOG_SOCKET, socket.as_os_str().as_bytes());
            true
        }
        Err(why) => {
            output::complain(format_args!("no log: {why}; files are synced by their file systems"));
            environment.remove(settings::LOG_SOCKET);
            false
        }
    }
}

/// Decides whether the program at `path` can have the library, and whether that can elide.
///
/// # Errors
/// Why it cannot have it, as part of a sentence.
fn activate(path: &Path, settings: &Settings, needs_uffd: bool, preloaded: &[u8]) -> Result<Active, String> {
    let library = library::locate()?;
    if let Some((name, sanitizer)) = library::sanitizer(preloaded) {
        return Err(format!("LD_PRELOAD has {name} of {sanitizer}, which must be loaded first"));
    }
    if let Some(why) = program::why_out_of_reach(path) {
        return Err(why);
    }
    let (mut uffd_fd, mut obstacle) = (settings.uffd_fd, None);
    if !settings.off {
        match probe::probe(settings.uffd_fd) {
            Ok(usable) if settings.no_follow => {
                uffd_fd = usable.device.and_then(probe::Device::leave_to_one_program);
            }
            Ok(usable) => uffd_fd = usable.device.and_then(probe::Device::leave_to_programs),
            Err(error) => obstacle = needs_uffd.then(|| error.to_string()),
        }
    }
    Ok(Active { library, uffd_fd, obstacle })
}

/// Takes the library out of `LD_PRELOAD`, should an outer `uncopy run` have put it there.
fn leave_plain(environment: &mut Environment, preloaded: &[u8]) {
    let rest = library::without_library(preloaded);
    if rest.is_empty() && !preloaded.is_empty() {
        environment.remove("LD_PRELOAD");
    } else if rest != preloaded {
        environment.set("LD_PRELOAD", &rest);
    }
}

/// Writes the `--stats` file in the library's place. CMD runs whether that works or not.
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
            output::complain(format_args!("cannot write --stats {}: {}", Quoted(file), Reason(&error)));
        }
        _ => {}
    }
}

/// Becomes the program; returns the exit status if that failed.
fn become_program(path: &Path, command: &[OsString], environment: &Environment) -> u8 {
    // Strings that came from this process's arguments and environment hold no zero byte.
    let text = |value: &OsStr| CString::new(value.as_bytes()).unwrap_or_default();
    let mut arguments: Vec<CString> = command.iter().map(|argument| text(argument)).collect();
    let entries = environment.entries();
    let mut error = os::execve(&text(path.as_os_str()), &arguments, &entries);
    if error.raw_os_error() == Some(libc::ENOEXEC) {
        // Without "#!" it is a shell script, as for execvp.
        let shell = text(program::SHELL.as_ref());
        arguments.splice(..1, [shell.clone(), text(path.as_os_str())]);
        error = os::execve(&shell, &arguments, &entries);
    }
    let missing = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR));
    if missing && path.exists() {
        output::complain(format_args!(
            "cannot run {}: its interpreter or loader does not exist",
            Quoted(path.as_os_str())
        ));
    } else {
        output::complain(format_args!("cannot run {}: {}", Quoted(path.as_os_str()), Reason(&error)));
    }
    if missing { EXIT_NOT_FOUND } else { EXIT_NOT_EXECUTABLE }
}
