//! Unit of a service as files define it: systemd.unit(5)'s load path, drop-ins, and the settings of
//! `[Service]`. No running systemd is asked, so units of an image are read in the same way.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::root::{Root, RootPath};
use crate::output::{Quoted, Reason};

/// Load path of system units, highest precedence first.
const SYSTEM: [&str; 7] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
];
/// Load path of users' units, after `~/.config/systemd/user`.
const USER: [&str; 5] = [
    "/etc/systemd/user",
    "/run/systemd/user",
    "/usr/local/lib/systemd/user",
    "/usr/lib/systemd/user",
    "/lib/systemd/user",
];
/// Maximum size of a unit file that is read, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
const SUFFIX: &str = ".service";

/// Error in reading a unit. `Display` is a complete message.
#[derive(Debug)]
pub enum UnitError {
    Missing {
        name: String,
        root: PathBuf,
    },
    /// The unit is linked to /dev/null.
    Masked(String),
    /// No service can have this name.
    Illegal(String),
    Io {
        path: PathBuf,
        error: io::Error,
    },
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, root } => {
                write!(f, "there is no unit {name}")?;
                if root != Path::new("/") {
                    write!(f, " below {}", Quoted(root.as_os_str()))?;
                }
                f.write_str("; list the units with: systemctl list-unit-files")
            }
            Self::Masked(name) => write!(f, "{name} is masked; unmask it with: sudo systemctl unmask {name}"),
            Self::Illegal(name) => write!(f, "{} is not the name of a service", Quoted(OsStr::new(name))),
            Self::Io { path, error } => {
                write!(f, "cannot read {}: {}", Quoted(path.as_os_str()), Reason(error))
            }
        }
    }
}

/// Returns a service's name with its suffix: `redis-server.service`, `name@.service`,
/// `name@instance.service`.
///
/// # Errors
/// [`UnitError::Illegal`] for names that systemd.unit(5) does not allow.
pub fn full_name(name: &str) -> Result<String, UnitError> {
    let stem = name.strip_suffix(SUFFIX).unwrap_or(name);
    let is_legal = |letter: char| letter.is_ascii_alphanumeric() || ":-_.\\@".contains(letter);
    let other_kind = [".socket", ".timer", ".target", ".mount", ".path", ".slice", ".device"];
    if stem.is_empty()
        || stem.len() > 240
        || stem.starts_with(['.', '@'])
        || !stem.chars().all(is_legal)
        || other_kind.iter().any(|kind| stem.ends_with(kind))
    {
        return Err(UnitError::Illegal(name.to_owned()));
    }
    Ok(format!("{stem}{SUFFIX}"))
}

/// Returns the template of an instance's name.
fn template(name: &str) -> Option<String> {
    let (stem, instance) = name.strip_suffix(SUFFIX)?.split_once('@')?;
    (!instance.is_empty()).then(|| format!("{stem}@{SUFFIX}"))
}

/// Unit of a service with its drop-ins.
#[derive(Debug, Default)]
pub struct Unit {
    /// Name of the unit; for an alias, that of the alias's target.
    pub name: String,
    /// Settings of `[Service]` in the order in which systemd reads them.
    settings: Vec<(String, String)>,
}

impl Unit {
    /// Reads a unit and its drop-ins, except the drop-in called `without`.
    pub fn read(root: &Root, home: Option<&RootPath>, name: &str, without: &str) -> Result<Self, UnitError> {
        let directories = directories(root, home);
        let requested = full_name(name)?;
        let named = |name: &str| directories.iter().map(|path| path.join(name)).find(RootPath::exists);
        let found = named(&requested).or_else(|| named(&template(&requested)?));
        let Some(found) = found else {
            return Err(UnitError::Missing { name: requested, root: root.path("/").host_path() });
        };
        let name = canonical_name(&found, &requested);
        if found.is_null() {
            return Err(UnitError::Masked(name));
        }
        let mut unit = Self { name, settings: Vec::new() };
        unit.add(&found)?;
        for drop_in in drop_ins(&directories, &unit.name) {
            // A masked drop-in has no settings.
            if drop_in.file_name() != Some(without.as_ref()) && !drop_in.is_null() {
                unit.add(&drop_in)?;
            }
        }
        Ok(unit)
    }

    fn add(&mut self, path: &RootPath) -> Result<(), UnitError> {
        let bytes =
            path.read(MAX_FILE_BYTES).map_err(|error| UnitError::Io { path: path.host_path(), error })?;
        self.settings.extend(parse(&String::from_utf8_lossy(&bytes)));
        Ok(())
    }

    /// Returns the values of a list setting. An empty assignment discards those before it.
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

    /// Returns the value of a setting, which is its last assignment.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.settings.iter().rev().find(|(other, _)| other == key).map(|(_, value)| value.as_str())
    }

    /// Whether a boolean setting is on.
    pub fn is_on(&self, key: &str) -> bool {
        matches!(self.value(key), Some("1" | "yes" | "true" | "on" | "y" | "t"))
    }
}

/// Returns the load path of units.
pub fn directories<'a>(root: &'a Root, home: Option<&RootPath<'a>>) -> Vec<RootPath<'a>> {
    match home {
        None => SYSTEM.iter().map(|path| root.path(*path)).collect(),
        Some(home) => std::iter::once(home.join(".config/systemd/user"))
            .chain(USER.iter().map(|path| root.path(*path)))
            .collect(),
    }
}

/// Returns the name of an alias's target. An instance keeps its own name.
fn canonical_name(found: &RootPath, requested: &str) -> String {
    let target = found.link_target();
    let name = target.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
    match name {
        Some(name) if template(requested).is_none() => {
            full_name(name).ok().filter(|_| name.ends_with(SUFFIX)).unwrap_or_else(|| requested.to_owned())
        }
        _ => requested.to_owned(),
    }
}

/// Returns the drop-ins of a unit in the order of their file names. Of equal names the first
/// directory's counts.
fn drop_ins<'a>(directories: &[RootPath<'a>], name: &str) -> Vec<RootPath<'a>> {
    let names = template(name).into_iter().chain([name.to_owned()]);
    let mut found: Vec<RootPath> = Vec::new();
    for directory in names.flat_map(|name| directories.iter().map(move |path| path.join(format!("{name}.d"))))
    {
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

/// Parses the settings of `[Service]`.
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
