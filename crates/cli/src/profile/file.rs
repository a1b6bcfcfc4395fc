//! Output file of a profile.

use crate::output::{InvalidValue, Quoted, Reason};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use uncopy_profile::Profile;
use uncopy_profile::model::ParseError;

/// Maximum size of a profile that is read, bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Reason why no profile is recorded. `Display` is a complete message.
#[derive(Debug)]
pub enum RequestError {
    /// An option has an illegal value.
    InvalidValue(InvalidValue),
    /// The file cannot be written.
    Unwritable(OsString, io::Error),
    /// The file exists and is not a profile.
    NotAProfile(OsString),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidValue(illegal) => illegal.fmt(f),
            Self::Unwritable(out, error) => write!(f, "cannot write {}: {}", Quoted(out), Reason(error)),
            Self::NotAProfile(out) => {
                write!(f, "{} exists and is not a profile; name another file with -o", Quoted(out))
            }
        }
    }
}

impl From<InvalidValue> for RequestError {
    fn from(illegal: InvalidValue) -> Self {
        Self::InvalidValue(illegal)
    }
}

/// Error in reading a profile. `Display` continues a sentence that begins with the file's name.
#[derive(Debug)]
pub enum ReadError {
    Io(io::Error),
    /// The file is larger than [`MAX_FILE_BYTES`].
    TooLarge,
    /// The content is not a profile of a known version.
    Parse(ParseError),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "cannot be read: {}", Reason(error)),
            Self::TooLarge => f.write_str("is not a profile: it is too large"),
            Self::Parse(error) => error.fmt(f),
        }
    }
}

/// Returns the default name of a program's profile, `NAME.profile.json` in the current directory.
pub fn default_name(program: &OsStr) -> OsString {
    let mut name = Path::new(program).file_name().unwrap_or(OsStr::new("program")).to_owned();
    name.push(".profile.json");
    name
}

/// Returns the absolute path of a file in a directory that exists.
fn resolve_new(option: &str, file: &OsStr) -> Result<PathBuf, InvalidValue> {
    let path = std::path::absolute(file).unwrap_or_else(|_| PathBuf::from(file));
    if path.parent().is_some_and(Path::is_dir) && !path.is_dir() {
        return Ok(path);
    }
    Err(InvalidValue::new(option, file, "a file in a directory that exists"))
}

/// Returns the absolute path of a file for the profile in another format. `out` is the profile's own.
pub fn resolve_export(option: &str, file: &OsStr, out: &Path) -> Result<PathBuf, InvalidValue> {
    let path = resolve_new(option, file)?;
    if path == out {
        return Err(InvalidValue::new(option, file, "another file than that of the profile (-o)"));
    }
    Ok(path)
}

/// Returns the absolute path of OUT if the file can be written: it does not exist, is a profile, or
/// is not a regular file.
pub fn resolve(out: &OsStr) -> Result<PathBuf, RequestError> {
    let path = resolve_new("-o", out)?;
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&path);
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path),
        Err(error) => Err(RequestError::Unwritable(out.to_owned(), error)),
        Ok(file) => {
            let metadata = file.metadata();
            if metadata.is_ok_and(|found| !found.is_file()) {
                // Pipes and terminals can be written.
                return Ok(path);
            }
            read_profile(file).map(|_| path).map_err(|_| RequestError::NotAProfile(out.to_owned()))
        }
    }
}

/// Reads and parses a profile.
pub fn read_profile(file: File) -> Result<Profile, ReadError> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(ReadError::Io)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ReadError::TooLarge);
    }
    Profile::parse(&bytes).map_err(ReadError::Parse)
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
        let own = file("own", include_str!("../../../profiling/profile/samples/redis-set.json"));
        assert!(resolve(foreign.as_os_str()).is_err_and(|why| why.to_string().contains("not a profile")));
        assert_eq!(resolve(own.as_os_str()).expect("a profile"), own);
        assert!(resolve(directory.join("new").as_os_str()).is_ok());
        assert!(resolve(directory.join("none/new").as_os_str()).is_err());
        assert!(resolve(directory.as_os_str()).is_err());
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn the_default_name_is_the_programs() {
        assert_eq!(default_name(OsStr::new("/usr/bin/redis-server")), "redis-server.profile.json");
        assert_eq!(default_name(OsStr::new("/")), "program.profile.json");
    }
}
