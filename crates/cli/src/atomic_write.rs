//! Atomic file replacement, by the rules of [`uncopy_sys::atomic_write`].

use crate::os;
use std::io;
use std::path::Path;
use uncopy_sys::atomic_write;

/// Permissions of what only its owner is to read.
pub const PRIVATE: u32 = 0o600;

/// Writes a file of the user's, private. What exists and is not a regular file (a pipe, a terminal) is written to as it is.
///
/// # Errors
/// Why it was not written.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Ok(atomic_write::write(&os::c_path(path)?, bytes, PRIVATE)?)
}

/// Puts a new file with this mode in the place of `path`.
///
/// # Errors
/// What making, writing and renaming it say; nothing has changed then.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    Ok(atomic_write::replace(&os::c_path(path)?, bytes, mode)?)
}
