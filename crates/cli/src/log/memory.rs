//! Memory behind the logs of `--log-mode only`, as the kernel reports it.

use crate::os;
use crate::output::{Quoted, Reason};
use std::io;
use std::path::Path;
use uncopy_sys::errno::Errno;
use uncopy_sys::{file, mem};

/// Magic number of tmpfs (linux/magic.h).
const TMPFS: u32 = 0x0102_1994;

/// Memory that the files of a directory lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Persistent memory: the directory is on a file system with DAX.
    Persistent,
    /// Ordinary memory (tmpfs), which stands for persistent memory in an experiment.
    Emulated,
}

/// Returns the memory of logs in a directory.
///
/// # Errors
/// The reason why the directory cannot have logs that are mapped, with what to type, as the rest of a sentence.
pub fn of_logs(directory: &Path, emulates_dax: bool) -> Result<Memory, String> {
    let name = Quoted(directory.as_os_str());
    let failed = |Errno(number)| format!("{name}: {}", Reason(&io::Error::from_raw_os_error(number)));
    let path = os::c_path(directory).map_err(|error| format!("{name}: {}", Reason(&error)))?;
    let probe = file::open(&path, libc::O_RDWR | libc::O_TMPFILE, 0o600).map_err(failed)?;
    if mem::is_persistent(&probe).map_err(failed)? {
        return Ok(Memory::Persistent);
    }
    match (file::file_system(&probe).map_err(failed)? == TMPFS, emulates_dax) {
        (true, true) => Ok(Memory::Emulated),
        (true, false) => Err(format!(
            "--log-mode only keeps the log in persistent memory, and {name} is on tmpfs; for an experiment, of \
             which nothing survives power loss, add --log-emulate-dax"
        )),
        (false, true) => Err(format!(
            "--log-mode only with --log-emulate-dax needs a directory on tmpfs, such as --log /dev/shm/log, and {name} \
             is not on tmpfs"
        )),
        (false, false) => Err(format!(
            "--log-mode only needs a directory on a file system with DAX (mount -o dax=always), and {name} is not on \
             one; leave out --log-mode, or, for an experiment, add --log-emulate-dax --log /dev/shm/log"
        )),
    }
}
