//! `uncopy service NAME`: lets a service of systemd run under uncopy, by a drop-in beside its unit, and undoes that.

pub mod line;

mod drop_in;
mod image;
mod unit;

use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE, Illegal, Quoted, Reason};
use crate::{library, os};
use clap::ArgMatches;
use drop_in::{Given, Setting};
use image::{At, Image};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use unit::Unit;

/// After those that people and other packages have, whose names begin with lower numbers.
const FILE_NAME: &str = "90-uncopy.conf";
/// How the file begins; the checksum of what follows is behind it.
const MARK: &str = "# Written by 'uncopy service'; 'uncopy service --remove' takes it back. Checksum ";

/// Longest drop-in that is read, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What the command line asks for.
struct Asked<'a> {
    name: &'a str,
    root: &'a Image,
    /// The user's home, for a service of the user's own manager. It lies in this system, whatever the root is.
    home: Option<At<'a>>,
    options: Vec<OsString>,
}

/// Does what the command line asks for.
pub fn main(matches: &ArgMatches) -> u8 {
    let name = matches.get_one::<String>(line::NAME).map(String::as_str).unwrap_or_default();
    let root = matches.get_one::<PathBuf>(line::ROOT_DIRECTORY).cloned().unwrap_or_else(|| "/".into());
    let opened =
        [root.as_path(), Path::new("/")].map(|path| Image::open(path).map_err(|error| (path, error)));
    let (root, host) = match opened {
        [Ok(root), Ok(host)] => (root, host),
        [Err((path, error)), _] | [_, Err((path, error))] => {
            output::complain(cannot("open", path, &error));
            return EXIT_FAILURE;
        }
    };
    let options: Vec<OsString> =
        matches.get_many::<OsString>(line::OPTIONS).unwrap_or_default().cloned().collect();
    if let Some(option) = options.iter().find(|option| !drop_in::can_be_written(option)) {
        let legal = "text without control characters: it becomes a line of a unit";
        output::complain(Illegal::new("an option of run", option, legal));
        return EXIT_USAGE;
    }
    if let Err(why) = check(&options) {
        return crate::line::answer(&why);
    }
    let home = if matches.get_flag(line::USER) {
        let Some(home) = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute()) else {
            output::complain("HOME is not set, and units of a user lie below it");
            return EXIT_USAGE;
        };
        Some(host.at(home))
    } else {
        None
    };
    let asked = Asked { name, root: &root, home, options };
    let done = if matches.get_flag(line::REMOVE) {
        remove(&asked)
    } else {
        write(&asked, matches.get_flag(line::PRINT))
    };
    match done {
        Ok(text) => output::print(text.as_bytes(), EXIT_OK),
        Err(why) => {
            output::complain(why);
            EXIT_FAILURE
        }
    }
}

/// Whether `uncopy run` takes these options; what it would say.
fn check(options: &[OsString]) -> Result<(), clap::Error> {
    let words = [OsString::from("run")].into_iter().chain(options.iter().cloned());
    let mut run = crate::line::run();
    let matches = run.try_get_matches_from_mut(words.chain(["--".into(), "true".into()]))?;
    // Anything else would be a command of its own in front of the unit's.
    if crate::line::command(&matches) == ["true"] {
        Ok(())
    } else {
        Err(run.error(
            clap::error::ErrorKind::TooManyValues,
            "only options of run may stand behind --, no command",
        ))
    }
}

impl<'a> Asked<'a> {
    /// Where the drop-in lies.
    fn place(&self, unit_name: &str) -> At<'a> {
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

    /// Whether its service manager runs here and has to be told.
    fn is_running(&self) -> bool {
        self.root.is_host() && Path::new("/run/systemd/system").is_dir()
    }

    /// Lets the service manager read its units again; what to type where that did not work.
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
    let hint = if error.raw_os_error() == Some(libc::EACCES) { "; type it again with sudo" } else { "" };
    format!("cannot {what} {}: {}{hint}", Quoted(path.as_os_str()), Reason(error))
}

fn write(asked: &Asked, only_prints: bool) -> Result<String, String> {
    let unit = asked.unit()?;
    let command =
        std::env::current_exe().map_err(|error| format!("/proc is not mounted: {}", Reason(&error)))?;
    let library = library::locate()?;
    let given = Given {
        root: asked.root,
        command: &command,
        library: &library,
        options: &asked.options,
        is_users: asked.home.is_some(),
    };
    let settings = drop_in::settings(&unit, &given).map_err(|why| format!("{} {why}", unit.name))?;
    let body = body(&settings);
    let text = format!("{MARK}{:08x}\n{body}", crc32c::crc32c(body.as_bytes()));
    if only_prints {
        return Ok(text);
    }
    let place = asked.place(&unit.name);
    let path = place.shown();
    if existing(&place)? == Existing::Edited {
        return Err(format!(
            "{} was changed by somebody; remove it, or see what would be written: uncopy service --print {}",
            Quoted(path.as_os_str()),
            asked.name
        ));
    }
    // systemd takes no file whose name does not end in .conf.
    let beside = format!(".{FILE_NAME}.{}", std::process::id());
    place.replace(text.as_bytes(), &beside).map_err(|error| cannot("write", &path, &error))?;
    let mut said = format!("wrote {}:\n", path.display());
    for setting in &settings {
        let _ = writeln!(said, "  {}\n      {}", setting.line, setting.why);
    }
    if settings.iter().any(|setting| setting.line.starts_with("SupplementaryGroups="))
        && asked.root.is_host()
        && os::group_id(c"uncopy").is_none()
    {
        let _ = writeln!(
            said,
            "the group uncopy is missing, without which the service does not start; make it first: {}groupadd --system uncopy, \
             and see uncopy doctor",
            sudo()
        );
    }
    if let Some(command) = asked.reload() {
        let _ = writeln!(said, "systemd does not know of it yet: {command}");
    }
    let _ = writeln!(
        said,
        "next: {} restart {name}, then {}uncopy ps; undo: {}uncopy service{} --remove {name}",
        asked.systemctl(),
        sudo(),
        if asked.home.is_some() { "" } else { sudo() },
        if asked.home.is_some() { " --user" } else { "" },
        name = unit.name.trim_end_matches(".service"),
    );
    Ok(said)
}

fn body(settings: &[Setting]) -> String {
    let mut text = String::from("[Service]\n");
    for setting in settings {
        let _ = write!(text, "# {}\n{}\n", setting.why, setting.line);
    }
    text
}

fn remove(asked: &Asked) -> Result<String, String> {
    // The unit may be gone, and its drop-in still there.
    let name = match asked.unit() {
        Ok(unit) => unit.name,
        Err(_) => unit::full_name(asked.name).map_err(|why| why.to_string())?,
    };
    let place = asked.place(&name);
    let path = place.shown();
    match existing(&place)? {
        Existing::Missing => return Ok(format!("{name} does not run under uncopy by this command\n")),
        Existing::Edited => {
            return Err(format!(
                "{} was changed by somebody; if nothing in it is needed: {}rm {}",
                Quoted(path.as_os_str()),
                sudo(),
                path.display()
            ));
        }
        Existing::Ours => {}
    }
    place.remove().map_err(|error| cannot("remove", &path, &error))?;
    let mut said = format!("removed {}\n", path.display());
    if let Some(command) = asked.reload() {
        let _ = writeln!(said, "systemd does not know of it yet: {command}");
    }
    let _ = writeln!(said, "next: {} restart {}", asked.systemctl(), name.trim_end_matches(".service"));
    Ok(said)
}

/// What lies where the drop-in goes.
#[derive(PartialEq, Eq)]
enum Existing {
    Missing,
    Ours,
    /// Another one's, or ours with changes.
    Edited,
}

fn existing(place: &At) -> Result<Existing, String> {
    let text = match place.read(MAX_FILE_BYTES) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Existing::Missing),
        Err(error) => return Err(cannot("read", &place.shown(), &error)),
    };
    let is_ours =
        text.strip_prefix(MARK).and_then(|rest| rest.split_once('\n')).is_some_and(|(sum, body)| {
            u32::from_str_radix(sum, 16).is_ok_and(|sum| sum == crc32c::crc32c(body.as_bytes()))
        });
    Ok(if is_ours { Existing::Ours } else { Existing::Edited })
}
