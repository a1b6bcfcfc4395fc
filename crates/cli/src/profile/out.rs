//! The file that a profile is written to.

use crate::output::{Quoted, Reason};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use uncopy_profile::Profile;

/// A longer file is not read, bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// The name of a program's profile unless `-o` says another: `NAME.profile.json`, here.
pub fn default_name(program: &OsStr) -> OsString {
    let mut name = Path::new(program).file_name().unwrap_or(OsStr::new("program")).to_owned();
    name.push(".profile.json");
    name
}

/// Where OUT is, absolute, if it can be written: it does not exist, or is a profile already.
///
/// # Errors
/// A whole message.
pub fn settle(out: &OsStr) -> Result<PathBuf, String> {
    let path = std::path::absolute(out).unwrap_or_else(|_| PathBuf::from(out));
    if !path.parent().is_some_and(Path::is_dir) || path.is_dir() {
        return Err(format!("-o is {}; it must be a file in a directory that exists", Quoted(out)));
    }
    match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path),
        Err(error) => Err(format!("cannot write {}: {}", Quoted(out), Reason(&error))),
        Ok(file) => {
            let metadata = file.metadata();
            if metadata.is_ok_and(|found| !found.is_file()) {
                // A pipe or a terminal.
                return Ok(path);
            }
            match read_profile(file) {
                Ok(_) => Ok(path),
                Err(_) => {
                    Err(format!("{} exists and is not a profile; name another file with -o", Quoted(out)))
                }
            }
        }
    }
}

/// Reads a profile.
///
/// # Errors
/// What is wrong with it, as a sentence part.
pub fn read_profile(file: File) -> Result<Profile, String> {
    let mut bytes = Vec::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot be read: {}", Reason(&error)))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err("is not a profile: it is too large".to_owned());
    }
    Profile::parse(&bytes)
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
        assert!(settle(foreign.as_os_str()).is_err_and(|why| why.contains("not a profile")));
        assert_eq!(settle(own.as_os_str()), Ok(own));
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
