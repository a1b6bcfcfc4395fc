//! `uncopy service NAME`: makes a service of systemd run under uncopy by a drop-in for its unit,
//! and undoes that.

pub mod args;

mod drop_in;
mod root;
mod unit;

use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE, InvalidValue, Quoted, Reason};
use crate::{library, os};
use clap::ArgMatches;
use drop_in::{Context, Setting};
use root::{Root, RootPath};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use unit::Unit;

/// Name of the drop-in. Those of people and other packages begin with lower numbers, so this one
/// counts last.
const FILE_NAME: &str = "90-uncopy.conf";
/// Beginning of the drop-in; a checksum of the lines below follows.
const MARK: &str = "# Written by 'uncopy service'; 'uncopy service --remove' takes it back. Checksum ";

/// Maximum size of a drop-in that is read, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Request of the command line.
struct Request<'a> {
    name: &'a str,
    root: &'a Root,
    /// User's home, for a service of the user's own manager. The home is on this system, whatever
    /// the root is.
    home: Option<RootPath<'a>>,
    options: Vec<OsString>,
}

/// Runs the command line `service …`.
pub fn main(matches: &ArgMatches) -> u8 {
    let name = matches.get_one::<String>(args::NAME).map(String::as_str).unwrap_or_default();
    let root = matches.get_one::<PathBuf>(args::ROOT_DIRECTORY).cloned().unwrap_or_else(|| "/".into());
    let opened = [root.as_path(), Path::new("/")].map(|path| Root::open(path).map_err(|error| (path, error)));
    let (root, host) = match opened {
        [Ok(root), Ok(host)] => (root, host),
        [Err((path, error)), _] | [_, Err((path, error))] => {
            output::print_message(cannot("open", path, &error));
            return EXIT_FAILURE;
        }
    };
    let options: Vec<OsString> =
        matches.get_many::<OsString>(args::OPTIONS).unwrap_or_default().cloned().collect();
    if let Some(option) = options.iter().find(|option| !drop_in::is_unit_text(option)) {
        let legal = "text without control characters: it becomes a line of a unit";
        output::print_message(InvalidValue::new("an option of run", option, legal));
        return EXIT_USAGE;
    }
    if let Err(why) = check_options(&options) {
        return crate::args::print_clap_error(&why);
    }
    let home = if matches.get_flag(args::USER) {
        let Some(home) = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute()) else {
            output::print_message("HOME is not an absolute path; --user looks for units below it");
            return EXIT_USAGE;
        };
        Some(host.path(home))
    } else {
        None
    };
    let request = Request { name, root: &root, home, options };
    let result = if matches.get_flag(args::REMOVE) {
        remove(&request)
    } else {
        write(&request, matches.get_flag(args::PRINT))
    };
    match result {
        Ok(text) => output::print(text.as_bytes(), EXIT_OK),
        Err(why) => {
            output::print_message(why);
            EXIT_FAILURE
        }
    }
}

/// Checks that `uncopy run` takes these options; otherwise returns its error.
fn check_options(options: &[OsString]) -> Result<(), clap::Error> {
    let words = [OsString::from("run")].into_iter().chain(options.iter().cloned());
    let mut run = crate::args::run();
    let matches = run.try_get_matches_from_mut(words.chain(["--".into(), "true".into()]))?;
    // Any other word would be a command in front of the unit's.
    if crate::args::command(&matches) == ["true"] {
        Ok(())
    } else {
        Err(run.error(
            clap::error::ErrorKind::TooManyValues,
            "only options of 'uncopy run' may follow --, no command",
        ))
    }
}

impl<'a> Request<'a> {
    /// Returns the path of the drop-in.
    fn drop_in_path(&self, unit_name: &str) -> RootPath<'a> {
        let directories = unit::directories(self.root, self.home.as_ref());
        directories[0].join(format!("{unit_name}.d")).join(FILE_NAME)
    }

    fn unit(&self) -> Result<Unit, String> {
        Unit::read(self.root, self.home.as_ref(), self.name, FILE_NAME).map_err(|why| why.to_string())
    }

    fn systemctl(&self) -> String {
        let (sudo, user) = if self.home.is_some() { ("", " --user") } else { (sudo(), "") };
        format!("{sudo}systemctl{user}")
    }

    /// Whether the service manager runs here and must be reloaded.
    fn is_running(&self) -> bool {
        self.root.is_host() && Path::new("/run/systemd/system").is_dir()
    }

    /// Reloads the service manager. Returns the command to type if that failed.
    fn reload(&self) -> Option<String> {
        if !self.is_running() {
            return None;
        }
        let mut command = Command::new("systemctl");
        command.args(self.home.as_ref().map(|_| "--user")).arg("daemon-reload");
        let is_done = command.status().is_ok_and(|status| status.success());
        (!is_done).then(|| format!("{} daemon-reload", self.systemctl()))
    }
}

fn sudo() -> &'static str {
    if os::effective_user_id() == 0 { "" } else { "sudo " }
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> String {
    let hint = if error.raw_os_error() == Some(libc::EACCES) { "; retry with sudo" } else { "" };
    format!("cannot {what} {}: {}{hint}", Quoted(path.as_os_str()), Reason(error))
}

fn write(request: &Request, only_prints: bool) -> Result<String, String> {
    let unit = request.unit()?;
    let command =
        std::env::current_exe().map_err(|error| format!("/proc is not mounted: {}", Reason(&error)))?;
    let library = library::locate()?;
    let context = Context {
        root: request.root,
        command: &command,
        library: &library,
        options: &request.options,
        is_user_manager: request.home.is_some(),
    };
    let settings = drop_in::settings(&unit, &context).map_err(|why| format!("{} {why}", unit.name))?;
    let body = body(&settings);
    let text = format!("{MARK}{:08x}\n{body}", crc32c::crc32c(body.as_bytes()));
    if only_prints {
        return Ok(text);
    }
    let drop_in_path = request.drop_in_path(&unit.name);
    let path = drop_in_path.host_path();
    if existing(&drop_in_path)? == Existing::Edited {
        return Err(format!(
            "{} was changed by hand; remove it first, or compare it with: uncopy service --print {}",
            Quoted(path.as_os_str()),
            request.name
        ));
    }
    // systemd ignores files whose names do not end in .conf.
    let temp_name = format!(".{FILE_NAME}.{}", std::process::id());
    drop_in_path.replace(text.as_bytes(), &temp_name).map_err(|error| cannot("write", &path, &error))?;
    let mut message = format!("wrote {}:\n", path.display());
    for setting in &settings {
        let _ = writeln!(message, "  {}\n      {}", setting.line, setting.why);
    }
    if settings.iter().any(|setting| setting.line.starts_with("SupplementaryGroups="))
        && request.root.is_host()
        && os::group_id(c"uncopy").is_none()
    {
        let _ = writeln!(
            message,
            "the service cannot start without the group uncopy; create it first: {}groupadd --system uncopy; then see \
             'uncopy doctor'",
            sudo()
        );
    }
    if let Some(command) = request.reload() {
        let _ = writeln!(message, "systemd was not reloaded; type: {command}");
    }
    let _ = writeln!(
        message,
        "next: {} restart {name}, then {}uncopy ps; undo: {}uncopy service{} --remove {name}",
        request.systemctl(),
        sudo(),
        if request.home.is_some() { "" } else { sudo() },
        if request.home.is_some() { " --user" } else { "" },
        name = unit.name.trim_end_matches(".service"),
    );
    Ok(message)
}

fn body(settings: &[Setting]) -> String {
    let mut text = String::from("[Service]\n");
    for setting in settings {
        let _ = write!(text, "# {}\n{}\n", setting.why, setting.line);
    }
    text
}

fn remove(request: &Request) -> Result<String, String> {
    // The unit may be gone while its drop-in still exists.
    let name = match request.unit() {
        Ok(unit) => unit.name,
        Err(_) => unit::full_name(request.name).map_err(|why| why.to_string())?,
    };
    let drop_in_path = request.drop_in_path(&name);
    let path = drop_in_path.host_path();
    match existing(&drop_in_path)? {
        Existing::Missing => {
            return Ok(format!("{name} has no drop-in of 'uncopy service'; nothing was removed\n"));
        }
        Existing::Edited => {
            return Err(format!(
                "{} was changed by hand; if you do not need it, type: {}rm {}",
                Quoted(path.as_os_str()),
                sudo(),
                path.display()
            ));
        }
        Existing::Ours => {}
    }
    drop_in_path.remove().map_err(|error| cannot("remove", &path, &error))?;
    let mut message = format!("removed {}\n", path.display());
    if let Some(command) = request.reload() {
        let _ = writeln!(message, "systemd was not reloaded; type: {command}");
    }
    let _ = writeln!(message, "next: {} restart {}", request.systemctl(), name.trim_end_matches(".service"));
    Ok(message)
}

/// State of the file at the drop-in's path.
#[derive(PartialEq, Eq)]
enum Existing {
    Missing,
    Ours,
    /// Written by somebody else, or changed.
    Edited,
}

fn existing(drop_in_path: &RootPath) -> Result<Existing, String> {
    let text = match drop_in_path.read(MAX_FILE_BYTES) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Existing::Missing),
        Err(error) => return Err(cannot("read", &drop_in_path.host_path(), &error)),
    };
    let is_ours =
        text.strip_prefix(MARK).and_then(|rest| rest.split_once('\n')).is_some_and(|(sum, body)| {
            u32::from_str_radix(sum, 16).is_ok_and(|sum| sum == crc32c::crc32c(body.as_bytes()))
        });
    Ok(if is_ours { Existing::Ours } else { Existing::Edited })
}
