//! The file that a profile is written to.

use crate::output::{Illegal, Quoted, Reason};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use uncopy_profile::Profile;
use uncopy_profile::model::ParseError;

/// A longer file is not read, bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Why a profile is not recorded. `Display` is a whole message.
#[derive(Debug)]
pub enum Refused {
    /// An option has a value that it cannot have.
    Illegal(Illegal),
    /// The file cannot be written.
    Unwritable(OsString, io::Error),
    /// The file is something else already.
    Foreign(OsString),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Illegal(illegal) => illegal.fmt(f),
            Self::Unwritable(out, error) => write!(f, "cannot write {}: {}", Quoted(out), Reason(error)),
            Self::Foreign(out) => {
                write!(f, "{} exists and is not a profile; name another file with -o", Quoted(out))
            }
        }
    }
}

impl From<Illegal> for Refused {
    fn from(illegal: Illegal) -> Self {
        Self::Illegal(illegal)
    }
}

/// Why a file is not read as a profile. `Display` is part of a sentence.
#[derive(Debug)]
pub enum Unreadable {
    /// It cannot be read at all.
    Io(io::Error),
    /// It has more than [`MAX_FILE_BYTES`].
    TooLarge,
    /// It is not a profile that this command knows.
    Parse(ParseError),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "cannot be read: {}", Reason(error)),
            Self::TooLarge => f.write_str("is not a profile: it is too large"),
            Self::Parse(error) => error.fmt(f),
        }
    }
}

/// The name of a program's profile unless `-o` says another: `NAME.profile.json`, here.
pub fn default_name(program: &OsStr) -> OsString {
    let mut name = Path::new(program).file_name().unwrap_or(OsStr::new("program")).to_owned();
    name.push(".profile.json");
    name
}

/// Where OUT is, absolute, if it can be written: it does not exist, or is a profile already.
///
/// # Errors
/// Why it cannot.
pub fn settle(out: &OsStr) -> Result<PathBuf, Refused> {
    let path = std::path::absolute(out).unwrap_or_else(|_| PathBuf::from(out));
    if !path.parent().is_some_and(Path::is_dir) || path.is_dir() {
        return Err(Illegal::new("-o", out, "a file in a directory that exists").into());
    }
    // A pipe that nobody writes to is not waited for.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&path);
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path),
        Err(error) => Err(Refused::Unwritable(out.to_owned(), error)),
        Ok(file) => {
            let metadata = file.metadata();
            if metadata.is_ok_and(|found| !found.is_file()) {
                // A pipe or a terminal.
                return Ok(path);
            }
            read_profile(file).map(|_| path).map_err(|_| Refused::Foreign(out.to_owned()))
        }
    }
}

/// Reads a profile.
///
/// # Errors
/// What is wrong with it.
pub fn read_profile(file: File) -> Result<Profile, Unreadable> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(Unreadable::Io)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Unreadable::TooLarge);
    }
    Profile::parse(&bytes).map_err(Unreadable::Parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_profile_is_written_over() {
        let directory = std::env::temp_dir().join(format!("uncopy-out-test-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("writable");
        let file = |name: &str, text: &str| {
            let path = directory.join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let foreign = file("foreign", "precious");
        let own = file("own", include_str!("../../../profile/samples/redis-set.json"));
        assert!(settle(foreign.as_os_str()).is_err_and(|why| why.to_string().contains("not a profile")));
        assert_eq!(settle(own.as_os_str()).expect("a profile"), own);
        assert!(settle(directory.join("new").as_os_str()).is_ok());
        assert!(settle(directory.join("none/new").as_os_str()).is_err());
        assert!(settle(directory.as_os_str()).is_err());
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn the_default_name_is_the_programs() {
        assert_eq!(default_name(OsStr::new("/usr/bin/redis-server")), "redis-server.profile.json");
        assert_eq!(default_name(OsStr::new("/")), "program.profile.json");
    }
}
