//! What a unit needs so that its program runs under uncopy, and nothing broader.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::image::Image;
use super::unit::Unit;
use crate::output::Quoted;
use crate::probe::DEVICE;
use crate::program::{self, Obstacle};

/// The group of the device (`60-uncopy.rules`).
const GROUP: &str = "uncopy";
/// System calls of a log's keeper that `@system-service` without `@resources` has not. A filter ends a program by default that
/// makes another one; the library itself makes none of those.
const CALLS_OF_LOGS: &str = "setpriority ioprio_set";

/// Why a unit cannot run under uncopy. `Display` is a whole message without the unit's name in front.
#[derive(Debug)]
pub enum Refused {
    NoCommand,
    /// A command with a name of its own for the program (`@`).
    OtherName(String),
    Wrapped(String),
    /// A line that systemd would read as several.
    Control(String),
    Missing(String),
    Obstacle {
        program: String,
        obstacle: Obstacle,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCommand => f.write_str("has no ExecStart="),
            Self::OtherName(line) => write!(
                f,
                "gives its program another name (ExecStart={line}), which uncopy run cannot; name the program without @"
            ),
            Self::Wrapped(line) => {
                write!(f, "is started by uncopy already (ExecStart={line}), not by this command")
            }
            Self::Control(text) => {
                write!(f, "has a name or a command with control characters, {}", Quoted(OsStr::new(text)))
            }
            Self::Missing(program) => write!(f, "starts {program}, which is not there"),
            Self::Obstacle { program, obstacle } => {
                write!(f, "starts {program}, which {obstacle}: no library can be preloaded")
            }
        }
    }
}

/// One setting, and what it is for.
#[derive(Debug, PartialEq, Eq)]
pub struct Setting {
    pub line: String,
    pub why: &'static str,
}

/// Where things lie, and what `uncopy run` is told.
#[derive(Debug)]
pub struct Given<'a> {
    /// Where paths in the unit lead.
    pub root: &'a Image,
    /// The command that is installed, and its library.
    pub command: &'a Path,
    pub library: &'a Path,
    /// Options of `run`.
    pub options: &'a [OsString],
    /// A user's own service manager cannot give groups and devices.
    pub is_users: bool,
}

/// The settings that `unit` needs.
///
/// # Errors
/// Why it cannot run under uncopy.
pub fn settings(unit: &Unit, given: &Given) -> Result<Vec<Setting>, Refused> {
    let commands = unit.list("ExecStart");
    if commands.is_empty() {
        return Err(Refused::NoCommand);
    }
    let mut settings = vec![Setting { line: "ExecStart=".to_owned(), why: "what was there is replaced" }];
    for command in commands {
        settings.push(Setting {
            line: format!("ExecStart={}", wrapped(command, given)?),
            why: "the same command, under uncopy run",
        });
    }
    if !given.is_users {
        settings.extend(permissions(unit, given));
    }
    Ok(settings)
}

fn wrapped(command: &str, given: &Given) -> Result<String, Refused> {
    let is_illegal = |text: &&OsStr| !can_be_written(text);
    let texts = [OsStr::new(command), given.command.as_os_str(), given.library.as_os_str()];
    if let Some(text) = texts.iter().find(|text| is_illegal(text)) {
        return Err(Refused::Control(text.to_string_lossy().into_owned()));
    }
    let rest = command.trim_start_matches(['-', '@', ':', '+', '!', '|']);
    let prefixes = &command[..command.len() - rest.len()];
    if prefixes.contains('@') {
        return Err(Refused::OtherName(command.to_owned()));
    }
    let rest = rest.trim_start();
    let program = first_word(rest);
    let path = Path::new(&program);
    if path.file_name() == Some("uncopy".as_ref()) {
        return Err(Refused::Wrapped(command.to_owned()));
    }
    // With a specifier or a variable nobody knows before it starts; a bare name is looked for by systemd.
    if path.is_absolute() && !program.contains(['%', '$']) {
        if !given.root.at(path).is_file() {
            return Err(Refused::Missing(program));
        }
        for step in program::follow_by(path, |path| given.root.at("/").join(path).open()) {
            if let Some(obstacle) = step.obstacle() {
                return Err(Refused::Obstacle { program, obstacle });
            }
        }
    }
    let mut line = format!("{prefixes}{} run", word(given.command.as_os_str()));
    for option in given.options {
        let _ = write!(line, " {}", word(option));
    }
    Ok(format!("{line} -- {rest}"))
}

/// The program of a command line, without quotes.
fn first_word(line: &str) -> String {
    match line.chars().next() {
        Some(quote @ ('"' | '\'')) => line[1..].split(quote).next().unwrap_or_default().to_owned(),
        _ => line.split_whitespace().next().unwrap_or_default().to_owned(),
    }
}

/// Whether a text can be part of a line of a unit: UTF-8, and nothing that ends the line (systemd.syntax(7)) or is invisible in it.
pub fn can_be_written(text: &OsStr) -> bool {
    text.to_str().is_some_and(|text| !text.chars().any(|letter| letter.is_control() && letter != '\t'))
}

/// A word of a command as systemd.service(5) reads it back: specifiers and variables stand for themselves.
fn word(word: &OsStr) -> String {
    quoted(word, |letter| matches!(letter, '%' | '$'))
}

/// A path of a list as systemd.exec(5) reads it back: there are no variables.
fn listed(path: &Path) -> String {
    quoted(path.as_os_str(), |letter| letter == '%')
}

/// A word in quotes if it needs them. What `is_doubled` stands for itself only twice.
fn quoted(word: &OsStr, is_doubled: impl Fn(char) -> bool) -> String {
    let text = word.to_string_lossy();
    let mut quoted = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            letter if is_doubled(letter) => quoted.extend([letter, letter]),
            '"' | '\\' => quoted.extend(['\\', letter]),
            other => quoted.push(other),
        }
    }
    let is_plain = !text.is_empty()
        && !text.contains(|letter: char| letter.is_whitespace() || "\"'\\;".contains(letter));
    if is_plain { quoted } else { format!("\"{quoted}\"") }
}

fn permissions(unit: &Unit, given: &Given) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut add = |line: String, why| settings.push(Setting { line, why });
    let is_another_users = unit.is_on("DynamicUser")
        || unit.value("User").is_some_and(|user| !matches!(user, "" | "root" | "0"));
    if is_another_users {
        add(format!("SupplementaryGroups={GROUP}"), "its user may open /dev/userfaultfd");
    }
    let has_private_devices = unit.is_on("PrivateDevices");
    if has_private_devices {
        add(format!("BindPaths={DEVICE}"), "its /dev has this device too (PrivateDevices=)");
    }
    // Alone, it would refuse every other device.
    let is_restricted = has_private_devices
        || matches!(unit.value("DevicePolicy"), Some("closed" | "strict"))
        || !unit.list("DeviceAllow").is_empty();
    if is_restricted {
        add(format!("DeviceAllow={DEVICE} rw"), "and may use it");
    }
    if !unit.list("NoExecPaths").is_empty() {
        add(
            format!("ExecPaths={} {}", listed(given.command), listed(given.library)),
            "uncopy may be executed and its library mapped (NoExecPaths=)",
        );
    }
    let names =
        |name: &str| given.options.iter().any(|option| option.as_bytes().starts_with(name.as_bytes()));
    if names("--log") && !unit.list("SystemCallFilter").is_empty() {
        add(format!("SystemCallFilter={CALLS_OF_LOGS}"), "who keeps its logs lets others go first");
    }
    let families = unit.list("RestrictAddressFamilies");
    if (names("--lanes") || names("--net")) && families.first().is_some_and(|first| !first.starts_with('~')) {
        add("RestrictAddressFamilies=AF_UNIX AF_NETLINK".to_owned(), "how lanes find their other end");
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &str, options: &[&str]) -> Result<String, Refused> {
        let options: Vec<OsString> = options.iter().map(OsString::from).collect();
        let root = Image::open(Path::new("/")).expect("this system");
        let given = Given {
            root: &root,
            command: Path::new("/usr/bin/uncopy"),
            library: Path::new("/usr/lib/uncopy/libuncopy.so"),
            options: &options,
            is_users: false,
        };
        wrapped(command, &given)
    }

    #[test]
    fn prefixes_stay_in_front_and_the_rest_as_it_is() {
        let line = words("-!/bin/sh -c 'echo $X %i'", &["--lanes", "--stats", "/run/a b%"]).expect("legal");
        assert_eq!(line, "-!/usr/bin/uncopy run --lanes --stats \"/run/a b%%\" -- /bin/sh -c 'echo $X %i'");
        assert_eq!(words("\"/bin/sh\" x", &[]).expect("legal"), "/usr/bin/uncopy run -- \"/bin/sh\" x");
        assert_eq!(words("/opt/%p x", &[]).expect("legal"), "/usr/bin/uncopy run -- /opt/%p x");
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for (command, reason) in [
            ("@/bin/sh name", "another name"),
            ("/usr/bin/uncopy run -- /bin/sh", "already"),
            ("/nonexistent/server", "is not there"),
        ] {
            let refused = words(command, &[]).expect_err(command).to_string();
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[test]
    fn words_are_quoted_as_systemd_reads_them() {
        for (text, written) in [
            ("plain", "plain"),
            ("", "\"\""),
            ("a b", "\"a b\""),
            ("a\tb", "\"a\tb\""),
            ("50%", "50%%"),
            ("$HOME", "$$HOME"),
            ("a\\", "\"a\\\\\""),
            ("say \"x\"", "\"say \\\"x\\\"\""),
            ("it's", "\"it's\""),
            (";", "\";\""),
        ] {
            assert_eq!(word(OsStr::new(text)), written, "{text}");
        }
        assert_eq!(listed(Path::new("/a$b %")), "\"/a$b %%\"");
    }

    #[test]
    fn nothing_that_ends_a_line_is_written() {
        for text in ["a\nUser=root", "a\rb", "a\0b", "\x1b[2J", "\u{85}"] {
            assert!(!can_be_written(OsStr::new(text)), "{text:?}");
        }
        assert!(!can_be_written(OsStr::from_bytes(b"\xff")));
        assert!(can_be_written(OsStr::new("größe\t=1")));
        let refused = words("/bin/sh -c x\rUser=root", &[]).expect_err("two lines to systemd").to_string();
        assert!(refused.contains("control characters") && !refused.contains('\r'), "{refused}");
    }
}
