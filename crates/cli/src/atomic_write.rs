//! Atomic file replacement, by the rules of [`uncopy_sys::atomic_write`].

use crate::os;
use std::io;
use std::path::Path;
use uncopy_sys::atomic_write;

/// Mode of files that only their owner may read and write.
pub const PRIVATE: u32 = 0o600;

/// Writes a file that only its owner may read. A regular file is replaced atomically; anything else
/// (a pipe, a terminal) is written in place.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Ok(atomic_write::write(&os::c_path(path)?, bytes, PRIVATE)?)
}

/// Replaces `path` atomically by a new file with this mode.
///
/// # Errors
/// The error of creating, writing or renaming the new file; `path` is then unchanged.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    Ok(atomic_write::replace(&os::c_path(path)?, bytes, mode)?)
}
