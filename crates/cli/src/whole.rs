//! Files that no reader finds half of.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Mode of what only its owner is to read.
pub const PRIVATE: u32 = 0o600;

/// Writes a file of the user's, private. What exists and is not a regular file (a pipe, a terminal) is written to as it is.
///
/// # Errors
/// What opening and writing say.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        let mut options = OpenOptions::new();
        return options.write(true).create(true).mode(PRIVATE).open(path)?.write_all(bytes);
    }
    replace(path, bytes, PRIVATE)
}

/// Puts a new file with this mode in the place of `path`.
///
/// # Errors
/// What making, writing and renaming it say; nothing has changed then.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.part", std::process::id()));
    // Whoever can write in the directory may have put something there.
    let _ = fs::remove_file(&beside);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
    file.write_all(bytes).and_then(|()| fs::rename(&beside, path)).inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}
