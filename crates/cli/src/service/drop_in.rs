//! Settings of a drop-in that a unit needs so that its program runs under uncopy, and no more.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::root::Root;
use super::unit::Unit;
use crate::output::Quoted;
use crate::probe::DEVICE;
use crate::program::{self, Obstacle};

/// Group of the device (`60-uncopy.rules`).
const GROUP: &str = "uncopy";
/// System calls of a log's keeper that `@system-service` without `@resources` lacks. By default a
/// filter kills a program that makes another call. The library itself makes none of these.
const CALLS_OF_LOGS: &str = "setpriority ioprio_set";

/// Reason why a unit cannot run under uncopy. `Display` continues a sentence that begins with the
/// unit's name.
#[derive(Debug)]
pub enum DropInError {
    NoCommand,
    /// A command that sets its program's name (`@`).
    OtherName(String),
    AlreadyWrapped(String),
    /// Text with control characters, some of which end a line for systemd.
    Control(String),
    Missing(String),
    Obstacle {
        program: String,
        obstacle: Obstacle,
    },
}

impl fmt::Display for DropInError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCommand => f.write_str("has no ExecStart="),
            Self::OtherName(line) => write!(
                f,
                "gives its program another name by @ (ExecStart={line}), which uncopy run cannot do; remove the @"
            ),
            Self::AlreadyWrapped(line) => {
                write!(f, "is already started by uncopy (ExecStart={line}), but not by 'uncopy service'")
            }
            Self::Control(text) => {
                write!(f, "has a name or a command with control characters, {}", Quoted(OsStr::new(text)))
            }
            Self::Missing(program) => write!(f, "starts {program}, which does not exist"),
            Self::Obstacle { program, obstacle } => {
                write!(f, "starts {program}, which {obstacle}: no library can be preloaded")
            }
        }
    }
}

/// Setting of the drop-in, and its purpose.
#[derive(Debug, PartialEq, Eq)]
pub struct Setting {
    pub line: String,
    pub why: &'static str,
}

/// Paths, and options of `uncopy run`, that a drop-in depends on.
#[derive(Debug)]
pub struct Context<'a> {
    /// System in which the unit's paths are resolved.
    pub root: &'a Root,
    /// Installed command, not that of the image.
    pub command: &'a Path,
    pub library: &'a Path,
    /// Options of `uncopy run`.
    pub options: &'a [OsString],
    /// Whether the service manager is a user's own, which cannot give groups and devices.
    pub is_user_manager: bool,
}

/// Returns the settings that `unit` needs.
pub fn settings(unit: &Unit, context: &Context) -> Result<Vec<Setting>, DropInError> {
    let commands = unit.list("ExecStart");
    if commands.is_empty() {
        return Err(DropInError::NoCommand);
    }
    let mut settings =
        vec![Setting { line: "ExecStart=".to_owned(), why: "clears the commands of the unit" }];
    for command in commands {
        settings.push(Setting {
            line: format!("ExecStart={}", wrap_command(command, context)?),
            why: "the same command under uncopy run",
        });
    }
    if !context.is_user_manager {
        settings.extend(permissions(unit, context));
    }
    Ok(settings)
}

fn wrap_command(command: &str, context: &Context) -> Result<String, DropInError> {
    let is_illegal = |text: &&OsStr| !is_unit_text(text);
    let texts = [OsStr::new(command), context.command.as_os_str(), context.library.as_os_str()];
    if let Some(text) = texts.iter().find(|text| is_illegal(text)) {
        return Err(DropInError::Control(text.to_string_lossy().into_owned()));
    }
    let rest = command.trim_start_matches(['-', '@', ':', '+', '!', '|']);
    let prefixes = &command[..command.len() - rest.len()];
    if prefixes.contains('@') {
        return Err(DropInError::OtherName(command.to_owned()));
    }
    let rest = rest.trim_start();
    let program = first_word(rest);
    let path = Path::new(&program);
    if path.file_name() == Some("uncopy".as_ref()) {
        return Err(DropInError::AlreadyWrapped(command.to_owned()));
    }
    // A path with a specifier or a variable is unknown before the start; systemd searches for a
    // bare name.
    if path.is_absolute() && !program.contains(['%', '$']) {
        if !context.root.path(path).is_file() {
            return Err(DropInError::Missing(program));
        }
        for step in program::interpreter_chain_with(path, |path| context.root.path("/").join(path).open()) {
            if let Some(obstacle) = step.obstacle() {
                return Err(DropInError::Obstacle { program, obstacle });
            }
        }
    }
    let mut line = format!("{prefixes}{} run", quote_word(context.command.as_os_str()));
    for option in context.options {
        let _ = write!(line, " {}", quote_word(option));
    }
    Ok(format!("{line} -- {rest}"))
}

/// Returns the program of a command line, without quotes.
fn first_word(line: &str) -> String {
    match line.chars().next() {
        Some(quote @ ('"' | '\'')) => line[1..].split(quote).next().unwrap_or_default().to_owned(),
        _ => line.split_whitespace().next().unwrap_or_default().to_owned(),
    }
}

/// Whether a text can be part of a unit's line: UTF-8 without control characters but tabs. Some of
/// them end the line (systemd.syntax(7)), others are invisible.
pub fn is_unit_text(text: &OsStr) -> bool {
    text.to_str().is_some_and(|text| !text.chars().any(|letter| letter.is_control() && letter != '\t'))
}

/// Quotes a word of a command for systemd.service(5): specifiers and variables stand for
/// themselves.
fn quote_word(word: &OsStr) -> String {
    quote(word, |letter| matches!(letter, '%' | '$'))
}

/// Quotes a path of a list for systemd.exec(5), which has no variables there.
fn quote_path(path: &Path) -> String {
    quote(path.as_os_str(), |letter| letter == '%')
}

/// Quotes a word if necessary. Characters for which `is_doubled` holds are escaped by doubling.
fn quote(word: &OsStr, is_doubled: impl Fn(char) -> bool) -> String {
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

fn permissions(unit: &Unit, context: &Context) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut add = |line: String, why| settings.push(Setting { line, why });
    let has_other_user = unit.is_on("DynamicUser")
        || unit.value("User").is_some_and(|user| !matches!(user, "" | "root" | "0"));
    if has_other_user {
        add(format!("SupplementaryGroups={GROUP}"), "lets its user open /dev/userfaultfd");
    }
    let has_private_devices = unit.is_on("PrivateDevices");
    if has_private_devices {
        add(format!("BindPaths={DEVICE}"), "adds the device to its private /dev (PrivateDevices=)");
    }
    // DeviceAllow= alone would refuse every other device.
    let is_restricted = has_private_devices
        || matches!(unit.value("DevicePolicy"), Some("closed" | "strict"))
        || !unit.list("DeviceAllow").is_empty();
    if is_restricted {
        add(format!("DeviceAllow={DEVICE} rw"), "allows the use of the device");
    }
    if !unit.list("NoExecPaths").is_empty() {
        add(
            format!("ExecPaths={} {}", quote_path(context.command), quote_path(context.library)),
            "allows uncopy to be executed and its library to be mapped (NoExecPaths=)",
        );
    }
    let has_option =
        |name: &str| context.options.iter().any(|option| option.as_bytes().starts_with(name.as_bytes()));
    if has_option("--log") && !unit.list("SystemCallFilter").is_empty() {
        add(
            format!("SystemCallFilter={CALLS_OF_LOGS}"),
            "lets the keeper of its logs lower its own priority",
        );
    }
    let families = unit.list("RestrictAddressFamilies");
    if (has_option("--lanes") || has_option("--net"))
        && families.first().is_some_and(|first| !first.starts_with('~'))
    {
        add("RestrictAddressFamilies=AF_UNIX AF_NETLINK".to_owned(), "lets lanes find their other end");
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &str, options: &[&str]) -> Result<String, DropInError> {
        let options: Vec<OsString> = options.iter().map(OsString::from).collect();
        let root = Root::open(Path::new("/")).expect("this system");
        let context = Context {
            root: &root,
            command: Path::new("/usr/bin/uncopy"),
            library: Path::new("/usr/lib/uncopy/libuncopy.so"),
            options: &options,
            is_user_manager: false,
        };
        wrap_command(command, &context)
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
            ("/nonexistent/server", "does not exist"),
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
            assert_eq!(quote_word(OsStr::new(text)), written, "{text}");
        }
        assert_eq!(quote_path(Path::new("/a$b %")), "\"/a$b %%\"");
    }

    #[test]
    fn nothing_that_ends_a_line_is_written() {
        for text in ["a\nUser=root", "a\rb", "a\0b", "\x1b[2J", "\u{85}"] {
            assert!(!is_unit_text(OsStr::new(text)), "{text:?}");
        }
        assert!(!is_unit_text(OsStr::from_bytes(b"\xff")));
        assert!(is_unit_text(OsStr::new("größe\t=1")));
        let refused = words("/bin/sh -c x\rUser=root", &[]).expect_err("two lines to systemd").to_string();
        assert!(refused.contains("control characters") && !refused.contains('\r'), "{refused}");
    }
}
