//! Memory behind the logs of `--log-mode only`, as the kernel reports it.

use crate::os;
use crate::output::{Quoted, Reason};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;
use uncopy_store::mapped::file::{Backing, backing_in};

/// Returns what backs logs in a directory.
///
/// # Errors
/// The reason why the directory cannot have logs that are mapped, with what to type, as the rest of a sentence.
pub fn of_logs(directory: &Path, emulates_dax: bool) -> Result<Backing, String> {
    let name = Quoted(directory.as_os_str());
    let backing = backing_in(directory).map_err(|errno| format!("{name}: {}", Reason(&errno.into())))?;
    match (backing, emulates_dax) {
        (Backing::Persistent, _) | (Backing::Emulated, true) => Ok(backing),
        (Backing::Emulated, false) => Err(format!(
            "--log-mode only keeps the log in persistent memory, and {name} is on tmpfs; for an experiment, of \
             which nothing survives power loss, add --log-emulate-dax"
        )),
        (Backing::Unsuitable, true) => Err(format!(
            "--log-mode only with --log-emulate-dax needs a directory on tmpfs, such as --log /dev/shm/log, and {name} \
             is not on tmpfs"
        )),
        (Backing::Unsuitable, false) => Err(format!(
            "--log-mode only needs a directory on a file system with DAX (mount -o dax=always), and {name} is not on \
             one; leave out --log-mode, or, for an experiment, add --log-emulate-dax --log /dev/shm/log"
        )),
    }
}

/// Returns what backs the service's memory in a directory of logs, which is created if missing.
///
/// # Errors
/// The reason why logs cannot refer to memory there, as the rest of a sentence.
pub fn of_service(directory: &Path) -> Result<Backing, String> {
    let name = Quoted(directory.as_os_str());
    make_private(directory).map_err(|error| format!("--memory-dir {name}: {}", Reason(&error)))?;
    match backing_in(directory) {
        Ok(Backing::Unsuitable) => Err(format!(
            "--memory-dir needs a directory of logs on a file system with DAX (mount -o dax=always) or, for an \
             experiment, on tmpfs, and {name} is on neither"
        )),
        backing => backing.map_err(|errno| format!("{name}: {}", Reason(&errno.into()))),
    }
}

/// Creates a directory that only its owner can enter, or accepts an existing one.
pub(super) fn make_private(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    let is_private = found.is_dir() && found.uid() == os::effective_user_id() && found.mode() & 0o077 == 0;
    let why = "it must be your own directory with mode 0700";
    if is_private { Ok(()) } else { Err(io::Error::other(why)) }
}
