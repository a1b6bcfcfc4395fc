//! A service's unit as it lies in files: systemd.unit(5)'s load path, drop-ins, and the settings of `[Service]`. Nothing is asked
//! of a running systemd, so an image's or another root's units are read the same way.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::image::{At, Image};
use crate::output::{Quoted, Reason};

/// Where units of the system lie, the first wins.
const SYSTEM: [&str; 7] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
];
/// Where users' lie, behind `~/.config/systemd/user`.
const USER: [&str; 5] = [
    "/etc/systemd/user",
    "/run/systemd/user",
    "/usr/local/lib/systemd/user",
    "/usr/lib/systemd/user",
    "/lib/systemd/user",
];
/// Longest unit file that is read, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
const SUFFIX: &str = ".service";

/// Why a unit cannot be had. `Display` is a whole message.
#[derive(Debug)]
pub enum Unfound {
    /// No unit has this name.
    Missing {
        name: String,
        root: PathBuf,
    },
    /// It is linked to /dev/null.
    Masked(String),
    /// A name that no service can have.
    Illegal(String),
    Io {
        path: PathBuf,
        error: io::Error,
    },
}

impl fmt::Display for Unfound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, root } => {
                write!(f, "there is no unit {name}")?;
                if root != Path::new("/") {
                    write!(f, " below {}", Quoted(root.as_os_str()))?;
                }
                f.write_str("; systemctl list-unit-files lists those that there are")
            }
            Self::Masked(name) => write!(f, "{name} is masked; unmask it with: sudo systemctl unmask {name}"),
            Self::Illegal(name) => write!(f, "{} is not the name of a service", Quoted(OsStr::new(name))),
            Self::Io { path, error } => {
                write!(f, "cannot read {}: {}", Quoted(path.as_os_str()), Reason(error))
            }
        }
    }
}

/// A service's name, with its suffix: `redis-server.service`, `name@.service`, `name@instance.service`.
///
/// # Errors
/// [`Unfound::Illegal`] for what systemd.unit(5) does not allow.
pub fn full_name(name: &str) -> Result<String, Unfound> {
    let stem = name.strip_suffix(SUFFIX).unwrap_or(name);
    let is_legal = |letter: char| letter.is_ascii_alphanumeric() || ":-_.\\@".contains(letter);
    let other_kind = [".socket", ".timer", ".target", ".mount", ".path", ".slice", ".device"];
    if stem.is_empty()
        || stem.len() > 240
        || stem.starts_with(['.', '@'])
        || !stem.chars().all(is_legal)
        || other_kind.iter().any(|kind| stem.ends_with(kind))
    {
        return Err(Unfound::Illegal(name.to_owned()));
    }
    Ok(format!("{stem}{SUFFIX}"))
}

/// The template of an instance's name.
fn template(name: &str) -> Option<String> {
    let (stem, instance) = name.strip_suffix(SUFFIX)?.split_once('@')?;
    (!instance.is_empty()).then(|| format!("{stem}@{SUFFIX}"))
}

/// A service.
#[derive(Debug, Default)]
pub struct Unit {
    /// Its name; where an alias was asked for, what that stands for.
    pub name: String,
    /// Settings of `[Service]` in the order in which systemd reads them.
    settings: Vec<(String, String)>,
}

impl Unit {
    /// Reads a unit and its drop-ins, without the drop-in called `without`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn read(root: &Image, home: Option<&At>, name: &str, without: &str) -> Result<Self, Unfound> {
        let directories = directories(root, home);
        let asked = full_name(name)?;
        let named = |name: &str| directories.iter().map(|at| at.join(name)).find(At::exists);
        let found = named(&asked).or_else(|| named(&template(&asked)?));
        let Some(found) = found else {
            return Err(Unfound::Missing { name: asked, root: root.at("/").shown() });
        };
        let name = canonical_name(&found, &asked);
        if found.is_null() {
            return Err(Unfound::Masked(name));
        }
        let mut unit = Self { name, settings: Vec::new() };
        unit.add(&found)?;
        for drop_in in drop_ins(&directories, &unit.name) {
            // One that is masked has nothing.
            if drop_in.file_name() != Some(without.as_ref()) && !drop_in.is_null() {
                unit.add(&drop_in)?;
            }
        }
        Ok(unit)
    }

    fn add(&mut self, at: &At) -> Result<(), Unfound> {
        let bytes = at.read(MAX_FILE_BYTES).map_err(|error| Unfound::Io { path: at.shown(), error })?;
        self.settings.extend(parse(&String::from_utf8_lossy(&bytes)));
        Ok(())
    }

    /// The values of a setting that is a list: an empty one takes back those before it.
    pub fn list(&self, key: &str) -> Vec<&str> {
        let mut values = Vec::new();
        for (_, value) in self.settings.iter().filter(|(other, _)| other == key) {
            if value.is_empty() {
                values.clear();
            } else {
                values.push(value.as_str());
            }
        }
        values
    }

    /// The value of a setting that has one: the last.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.settings.iter().rev().find(|(other, _)| other == key).map(|(_, value)| value.as_str())
    }

    /// Whether a setting is switched on.
    pub fn is_on(&self, key: &str) -> bool {
        matches!(self.value(key), Some("1" | "yes" | "true" | "on" | "y" | "t"))
    }
}

/// Where units are looked for.
pub fn directories<'a>(root: &'a Image, home: Option<&At<'a>>) -> Vec<At<'a>> {
    match home {
        None => SYSTEM.iter().map(|path| root.at(*path)).collect(),
        Some(home) => std::iter::once(home.join(".config/systemd/user"))
            .chain(USER.iter().map(|path| root.at(*path)))
            .collect(),
    }
}

/// The name of what an alias is linked to; an instance keeps its own.
fn canonical_name(found: &At, asked: &str) -> String {
    let target = found.link();
    let name = target.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
    match name {
        Some(name) if template(asked).is_none() => {
            full_name(name).ok().filter(|_| name.ends_with(SUFFIX)).unwrap_or_else(|| asked.to_owned())
        }
        _ => asked.to_owned(),
    }
}

/// The drop-ins of a unit, in the order of their file names; of equal ones the first directory's.
fn drop_ins<'a>(directories: &[At<'a>], name: &str) -> Vec<At<'a>> {
    let names = template(name).into_iter().chain([name.to_owned()]);
    let mut found: Vec<At> = Vec::new();
    for directory in names.flat_map(|name| directories.iter().map(move |at| at.join(format!("{name}.d")))) {
        for name in directory.names() {
            let is_drop_in = Path::new(&name).extension() == Some("conf".as_ref());
            if is_drop_in && !found.iter().any(|other| other.file_name() == Some(&name)) {
                found.push(directory.join(&name));
            }
        }
    }
    found.sort_by(|one, other| one.file_name().cmp(&other.file_name()));
    found
}

/// The settings of `[Service]`.
fn parse(text: &str) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    let mut section = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let mut whole = line.trim_end().to_owned();
        while let Some(begun) = whole.strip_suffix('\\') {
            // Comments may stand between the lines of one value.
            let Some(next) = lines.by_ref().find(|line| !line.trim_start().starts_with(['#', ';'])) else {
                break;
            };
            whole = format!("{begun} {}", next.trim());
        }
        if let Some(name) = whole.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut section);
        } else if let Some((key, value)) = whole.split_once('=').filter(|_| section == "Service") {
            settings.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_comments_sections_and_continuations_are_systemds() {
        let text = "[Unit]\nExecStart=/no\n[Service]\n# ExecStart=/no\nExecStart=/bin/a \\\n  # within\n  b\n\
                    ExecStart = /bin/c\n; x\nPrivateDevices=yes\n[Install]\nExecStart=/no\n";
        let unit = Unit { name: String::new(), settings: parse(text) };
        assert_eq!(unit.list("ExecStart"), ["/bin/a  b", "/bin/c"]);
        assert!(unit.is_on("PrivateDevices") && !unit.is_on("PrivateTmp"));
        let unit = Unit { name: String::new(), settings: parse(&format!("{text}[Service]\nExecStart=\n")) };
        assert!(unit.list("ExecStart").is_empty());
    }

    #[test]
    fn names_are_those_of_services() {
        assert_eq!(full_name("redis-server").expect("legal"), "redis-server.service");
        assert_eq!(full_name("a@b.service").expect("legal"), "a@b.service");
        assert_eq!(template("a@b.service").as_deref(), Some("a@.service"));
        assert_eq!(template("a@.service"), None);
        for name in ["", ".service", "../x", "a/b", "a b", "nginx.socket", "-\n", "@x"] {
            assert!(full_name(name).is_err(), "{name}");
        }
    }
}
