//! What `libuncopy.so` keeps in shared memory for a running program: its counters, and the pipe that takes
//! commands.
//!
//! The directory that holds them is writable by everybody, so nothing in it is trusted: the
//! user's directory and the files must have the process's owner, exactly the modes that the library
//! gives them, and be neither symbolic nor hard links to something else.

use crate::library;
use crate::os;
use crate::output::{Illegal, Quoted, Reason};
use crate::probe::is_denial;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use uncopy_core::stats::{CONTROL_SUFFIX, FILE_BYTES, MAGIC, Snapshot};
use uncopy_sys::directory::{Kind, PrivateDirectory, Refused};
use uncopy_sys::errno::Errno;
use uncopy_sys::procmap;

/// Largest process id that Linux gives out (`PID_MAX_LIMIT`).
const PID_HIGH: u32 = 1 << 22;
/// The kernel writes no more of a process's maps at a time: a page.
const MAPS_BYTES: usize = 4096;

/// Why there are no counters to print. `Display` is a whole message.
#[derive(Debug)]
pub enum Failure {
    NoProcess(u32),
    NotUnderUncopy(u32),
    NotPermitted { pid: u32, owner: u32 },
    Refused { path: PathBuf, why: String },
    Io { path: PathBuf, error: io::Error },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess(pid) => write!(f, "there is no process {pid}"),
            Self::NotUnderUncopy(pid) => {
                write!(f, "process {pid} does not run under uncopy; start it with: uncopy run -- CMD")
            }
            Self::NotPermitted { pid, owner } => {
                write!(f, "process {pid} belongs to user {owner}; type it again with sudo")
            }
            Self::Refused { path, why } => {
                write!(f, "{} {why}; it is not trusted", Quoted(path.as_os_str()))
            }
            Self::Io { path, error } => {
                write!(f, "cannot read {}: {}", Quoted(path.as_os_str()), Reason(error))
            }
        }
    }
}

/// The process id that a command line names.
///
/// # Errors
/// [`Illegal`] if it is none.
pub fn parse_pid(text: &OsStr) -> Result<u32, Illegal> {
    decimal_pid(text).ok_or_else(|| Illegal::new("PID", text, format!("a whole number from 1 to {PID_HIGH}")))
}

fn decimal_pid(text: &OsStr) -> Option<u32> {
    let text = text.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok().filter(|pid| (1..=PID_HIGH).contains(pid))
}

/// The live directory's parent.
pub fn shared_memory() -> &'static Path {
    let usual = Path::new("/dev/shm");
    if usual.is_dir() { usual } else { Path::new("/tmp") }
}

/// Opens the live directory of the effective user.
///
/// # Errors
/// Why it is not used.
pub fn open_own(parent: &Path) -> io::Result<PrivateDirectory> {
    let user = os::effective_user_id();
    Ok(PrivateDirectory::open(&os::c_path(&directory_of(parent, user))?, user)?)
}

/// Makes the live directory of the effective user, or finds it.
///
/// # Errors
/// Why it is not used.
pub fn make_own(parent: &Path) -> io::Result<PrivateDirectory> {
    Ok(PrivateDirectory::make(&os::c_path(&directory_of(parent, os::effective_user_id()))?)?)
}

/// The live directory of a user's programs, below its parent.
pub fn directory_of(parent: &Path, user: u32) -> PathBuf {
    parent.join(format!("uncopy-{user}"))
}

/// What a process has counted; all zero if it has done no work yet.
#[derive(Debug)]
pub struct Counted {
    /// Its effective user.
    pub owner: u32,
    /// The counters.
    pub snapshot: Snapshot,
}

impl Counted {
    fn new(pid: u32, owners: &[u32], found: Option<Snapshot>) -> Result<Self, Failure> {
        let owner = owners.first().copied().ok_or(Failure::NoProcess(pid))?;
        Ok(Self { owner, snapshot: found.unwrap_or_else(|| Snapshot::empty(u64::from(pid), None)) })
    }
}

/// The counters of a process.
///
/// # Errors
/// Why they cannot be had.
pub fn counters(pid: u32) -> Result<Counted, Failure> {
    let owners = owners(pid)?;
    let mapped = library_is_mapped(pid);
    if mapped.as_ref().is_ok_and(|mapped| !mapped) {
        return Err(Failure::NotUnderUncopy(pid));
    }
    let found = read_first(&owners, pid)?;
    match mapped {
        _ if found.is_some() => Counted::new(pid, &owners, found),
        Ok(_) => Counted::new(pid, &owners, None),
        Err(error) if is_denial(&error) => {
            Err(Failure::NotPermitted { pid, owner: owners.first().copied().unwrap_or(0) })
        }
        // A kernel thread has no maps, and a process that has just ended neither.
        Err(_) if Path::new(&format!("/proc/{pid}")).exists() => Err(Failure::NotUnderUncopy(pid)),
        Err(_) => Err(Failure::NoProcess(pid)),
    }
}

/// The counters of a process that is known to run under uncopy.
///
/// # Errors
/// Why they cannot be had.
pub fn counters_known(pid: u32) -> Result<Counted, Failure> {
    let owners = owners(pid)?;
    let found = read_first(&owners, pid)?;
    Counted::new(pid, &owners, found)
}

/// The counters that the first of `owners` has for a process.
fn read_first(owners: &[u32], pid: u32) -> Result<Option<Snapshot>, Failure> {
    let found = owners.iter().map(|owner| read_live(shared_memory(), *owner, pid));
    found.map(Result::transpose).find_map(|found| found).transpose()
}

/// The users whose directory may hold the counters: effective, real, saved. A server that changes
/// its user keeps the file that it made before.
fn owners(pid: u32) -> Result<Vec<u32>, Failure> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let mut text = Vec::new();
    let read = File::open(&path).and_then(|mut file| file.read_to_end(&mut text));
    match read {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Err(Failure::NoProcess(pid)),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Err(Failure::NoProcess(pid)),
        Err(error) => return Err(Failure::Io { path, error }),
        Ok(_) => {}
    }
    let text = String::from_utf8_lossy(&text);
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    // A thread's number has an entry in /proc too.
    if field("Tgid:").trim() != pid.to_string() {
        return Err(Failure::NoProcess(pid));
    }
    let ids: Vec<u32> = field("Uid:").split_whitespace().filter_map(|id| id.parse().ok()).collect();
    let mut owners = Vec::new();
    for id in [1, 0, 2].into_iter().filter_map(|index| ids.get(index)) {
        if !owners.contains(id) {
            owners.push(*id);
        }
    }
    Ok(owners)
}

/// Whether a process is known to run under uncopy.
pub fn is_under_uncopy(pid: u32) -> bool {
    library_is_mapped(pid).unwrap_or(false)
}

/// Whether the process has `libuncopy.so` mapped.
///
/// # Errors
/// What keeps its maps from being read.
fn library_is_mapped(pid: u32) -> io::Result<bool> {
    let maps = File::open(format!("/proc/{pid}/maps"))?;
    match procmap::has_code_of(maps.as_fd(), names_library) {
        Err(Errno(libc::ENOTTY)) => library_is_in_text(maps),
        found => Ok(found?),
    }
}

/// The same before Linux 6.11, from the text of its maps.
fn library_is_in_text(maps: File) -> io::Result<bool> {
    let mut maps = BufReader::with_capacity(MAPS_BYTES, maps);
    let mut line = Vec::new();
    loop {
        line.clear();
        if maps.read_until(b'\n', &mut line)? == 0 {
            return Ok(false);
        }
        if names_library(line.strip_suffix(b"\n").unwrap_or(&line)) {
            return Ok(true);
        }
    }
}

fn names_library(line: &[u8]) -> bool {
    // A replaced library is shown with this behind its path.
    let path = line.strip_suffix(b" (deleted)").unwrap_or(line);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    path.contains(&b'/') && name == library::FILE_NAME.as_bytes()
}

/// Writes a message to the pipe of a process (`uncopy_core::recording::request`); false if it has none: it has done no work yet.
///
/// # Errors
/// Why it cannot be reached.
pub fn command(pid: u32, message: &[u8]) -> Result<bool, Failure> {
    for owner in owners(pid)? {
        let name = format!("{pid}{CONTROL_SUFFIX}");
        let Some((path, mut pipe)) = open_live(shared_memory(), owner, pid, &name, Kind::Fifo)? else {
            continue;
        };
        return match pipe.write_all(message) {
            Ok(()) => Ok(true),
            Err(error) => Err(Failure::Io { path, error }),
        };
    }
    Ok(false)
}

/// Opens `parent/uncopy-OWNER/NAME` after a look at whose it is; `None` if there is none.
fn open_live(
    parent: &Path,
    owner: u32,
    pid: u32,
    name: &str,
    kind: Kind,
) -> Result<Option<(PathBuf, File)>, Failure> {
    let directory_path = directory_of(parent, owner);
    let path = directory_path.join(name);
    let failure = |path: &Path, why: Refused| match why {
        Refused::Kernel(Errno::ENOENT) => None,
        // Nobody reads from the pipe: its process is gone.
        Refused::Kernel(Errno(libc::ENXIO)) => Some(Failure::NoProcess(pid)),
        Refused::Kernel(Errno(libc::EACCES)) => Some(Failure::NotPermitted { pid, owner }),
        Refused::Kernel(errno) => Some(Failure::Io { path: path.to_path_buf(), error: errno.into() }),
        why => Some(Failure::Refused { path: path.to_path_buf(), why: why.to_string() }),
    };
    let io = |error| Failure::Io { path: path.clone(), error };
    let c_directory = os::c_path(&directory_path).map_err(io)?;
    let c_name = os::c_path(Path::new(name)).map_err(io)?;
    let directory = match PrivateDirectory::open(&c_directory, owner) {
        Ok(directory) => directory,
        Err(why) => return failure(&directory_path, why).map_or(Ok(None), Err),
    };
    let access = if kind == Kind::Fifo { libc::O_WRONLY } else { libc::O_RDONLY };
    match os::open_in(&directory, &c_name, kind, access) {
        Ok(file) => Ok(Some((path, file))),
        Err(why) => failure(&path, why).map_or(Ok(None), Err),
    }
}

/// Reads the counters from `parent/uncopy-OWNER/PID`; `None` if there are none.
fn read_live(parent: &Path, owner: u32, pid: u32) -> Result<Option<Snapshot>, Failure> {
    let Some((path, file)) = open_live(parent, owner, pid, &pid.to_string(), Kind::File)? else {
        return Ok(None);
    };
    let refuse =
        |path: &Path, why: &str| Err(Failure::Refused { path: path.to_path_buf(), why: why.to_owned() });
    let io = |error| Failure::Io { path: path.clone(), error };
    let metadata = file.metadata().map_err(io)?;
    // The library is still making it.
    if metadata.len() == 0 {
        return Ok(None);
    }
    if metadata.len() != FILE_BYTES as u64 {
        return refuse(&path, "does not have the size of a stats file");
    }
    let mut bytes = Vec::with_capacity(FILE_BYTES);
    file.take(FILE_BYTES as u64).read_to_end(&mut bytes).map_err(io)?;
    // The magic is what the library writes last.
    if bytes.starts_with(&[0; MAGIC.len()]) {
        return Ok(None);
    }
    match Snapshot::parse(&bytes) {
        Ok(snapshot) if snapshot.pid == u64::from(pid) => Ok(Some(snapshot)),
        Ok(_) => refuse(&path, "holds another process's counters"),
        Err(why) => refuse(&path, why),
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
