//! Logs of either kind: in files beside the page cache, and mapped ones, which have the only copy.

use crate::log_files::{self, Outcome, RecoveryOptions};
use crate::mapped::file::{self as mapped_file, is_mapped};
use crate::mapped::recover;
use crate::mark::Owner;
use std::path::{Path, PathBuf};
use uncopy_sys::errno::Errno;

/// Returns the paths of the logs in a directory, sorted.
///
/// # Errors
/// An error of reading the directory.
pub fn paths(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = log_files::logs(directory)?;
    found.append(&mut mapped_file::logs(directory)?);
    found.sort();
    Ok(found)
}

/// Returns whether a log may have records for a file that it marked: it exists and is not empty.
#[must_use]
pub fn may_have(owner: &Owner) -> bool {
    if is_mapped(&owner.path) { recover::may_have(owner) } else { log_files::may_have(owner) }
}

/// Returns whether another process uses a log.
#[must_use]
pub fn is_in_use(path: &Path) -> bool {
    if is_mapped(path) { recover::is_in_use(path) } else { log_files::is_in_use(path) }
}

/// Returns whether a log that has the only copy of what was written is in use although its program has ended. Soon
/// its files have all bytes, or it can be recovered.
#[must_use]
pub fn is_being_released(path: &Path) -> bool {
    is_mapped(path) && recover::is_being_released(path)
}

/// Writes a log's records to their files, and empties the log. Can be repeated, also after an interruption.
///
/// # Errors
/// An error of the log or of a file.
pub fn recover(path: &Path, ways: &RecoveryOptions) -> Result<Outcome, Errno> {
    if is_mapped(path) { recover::recover(path, ways) } else { log_files::recover(path, ways) }
}

/// Removes an unused log. `gives_up` allows a log that is not empty.
///
/// # Errors
/// EAGAIN if the log is in use; ENOTEMPTY if it is not empty; an error of unlink(2).
pub fn remove(path: &Path, gives_up: bool) -> Result<(), Errno> {
    if is_mapped(path) { recover::remove(path, gives_up) } else { log_files::remove(path, gives_up) }
}
