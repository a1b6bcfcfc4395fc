//! Files in shared memory that `libuncopy.so` keeps for a running program: its counters, and the
//! pipe for requests.
//!
//! Everybody can write the parent directory, so nothing in it is trusted. The user's directory and
//! the files must have the process's owner and exactly the modes that the library gives them, and
//! must neither be symbolic links nor have other hard links.

use crate::library;
use crate::os;
use crate::output::{InvalidValue, Quoted, Reason};
use crate::probe::is_denial;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use uncopy_core::stats::{CONTROL_SUFFIX, FILE_BYTES, INITIAL_PID_NAMESPACE, MAGIC, Snapshot, StatsName};
use uncopy_sys::errno::Errno;
use uncopy_sys::private_directory::{DirectoryError, FileKind, PrivateDirectory};
use uncopy_sys::procmap;

/// Largest process id that Linux gives out (`PID_MAX_LIMIT`).
const PID_HIGH: u32 = 1 << 22;
/// Maximum that the kernel writes of a process's maps in one read: a page.
const MAPS_BYTES: usize = 4096;

/// Error of access to a process's live files. `Display` is a complete message.
#[derive(Debug)]
pub enum LiveError {
    NoProcess(u32),
    NotUnderUncopy(u32),
    NotPermitted { pid: u32, owner: u32 },
    Refused { path: PathBuf, why: String },
    Io { path: PathBuf, error: io::Error },
}

impl fmt::Display for LiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess(pid) => write!(f, "there is no process {pid}"),
            Self::NotUnderUncopy(pid) => {
                write!(f, "process {pid} does not run under uncopy; start it with: uncopy run -- CMD")
            }
            Self::NotPermitted { pid, owner } => {
                write!(f, "process {pid} belongs to user {owner}; retry with sudo")
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

/// Parses a process id from the command line.
pub fn parse_pid(text: &OsStr) -> Result<u32, InvalidValue> {
    decimal_pid(text)
        .ok_or_else(|| InvalidValue::new("PID", text, format!("a whole number from 1 to {PID_HIGH}")))
}

fn decimal_pid(text: &OsStr) -> Option<u32> {
    let text = text.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok().filter(|pid| (1..=PID_HIGH).contains(pid))
}

/// Returns the parent of the live directories.
pub fn shared_memory() -> &'static Path {
    let dev_shm = Path::new("/dev/shm");
    if dev_shm.is_dir() { dev_shm } else { Path::new("/tmp") }
}

/// Opens the live directory of the effective user.
pub fn open_own_directory(parent: &Path) -> io::Result<PrivateDirectory> {
    let user = os::effective_user_id();
    Ok(PrivateDirectory::open(&os::c_path(&directory_of(parent, user))?, user)?)
}

/// Creates the live directory of the effective user, or opens the existing one.
pub fn make_own_directory(parent: &Path) -> io::Result<PrivateDirectory> {
    Ok(PrivateDirectory::make(&os::c_path(&directory_of(parent, os::effective_user_id()))?)?)
}

/// Returns the live directory of a user's programs, below `parent`.
pub fn directory_of(parent: &Path, user: u32) -> PathBuf {
    parent.join(format!("uncopy-{user}"))
}

/// Counters of a process; all zero if it has done no work yet.
#[derive(Debug)]
pub struct ProcessCounters {
    /// Effective user of the process.
    pub owner: u32,
    pub snapshot: Snapshot,
}

impl ProcessCounters {
    fn new(pid: u32, owners: &[u32], found: Option<Snapshot>) -> Result<Self, LiveError> {
        let owner = owners.first().copied().ok_or(LiveError::NoProcess(pid))?;
        Ok(Self { owner, snapshot: found.unwrap_or_else(|| Snapshot::empty(u64::from(pid), None)) })
    }
}

/// Reads the counters of a process, and checks that it runs under uncopy.
pub fn counters(pid: u32) -> Result<ProcessCounters, LiveError> {
    let process = identity(pid)?;
    let mapped = has_library_mapped(pid);
    if mapped.as_ref().is_ok_and(|mapped| !mapped) {
        return Err(LiveError::NotUnderUncopy(pid));
    }
    let found = read_first(&process, pid)?;
    match mapped {
        _ if found.is_some() => ProcessCounters::new(pid, &process.owners, found),
        Ok(_) => ProcessCounters::new(pid, &process.owners, None),
        Err(error) if is_denial(&error) => {
            Err(LiveError::NotPermitted { pid, owner: process.owners.first().copied().unwrap_or(0) })
        }
        // A kernel thread has no maps, nor has a process that has just ended.
        Err(_) if Path::new(&format!("/proc/{pid}")).exists() => Err(LiveError::NotUnderUncopy(pid)),
        Err(_) => Err(LiveError::NoProcess(pid)),
    }
}

/// Reads the counters of a process that is known to run under uncopy.
pub fn known_counters(pid: u32) -> Result<ProcessCounters, LiveError> {
    let process = identity(pid)?;
    let found = read_first(&process, pid)?;
    ProcessCounters::new(pid, &process.owners, found)
}

/// Reads a process's counters from the first of its users' directories that has them.
fn read_first(process: &Identity, pid: u32) -> Result<Option<Snapshot>, LiveError> {
    let found = process.owners.iter().map(|owner| read_live(shared_memory(), *owner, pid, process.name));
    found.map(Result::transpose).find_map(|found| found).transpose()
}

/// Returns the inode of this command's pid namespace.
pub fn own_namespace() -> u64 {
    uncopy_sys::ids::pid_namespace().unwrap_or(INITIAL_PID_NAMESPACE)
}

/// Where the files of a process are, as its entries in `/proc` tell.
struct Identity {
    /// Users whose directories may hold them: effective, real, saved. A server that changes its user keeps
    /// the file that it made before.
    owners: Vec<u32>,
    /// Name of the stats file.
    name: StatsName,
}

/// Returns the identity of a running process.
fn identity(pid: u32) -> Result<Identity, LiveError> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let mut text = Vec::new();
    let read = File::open(&path).and_then(|mut file| file.read_to_end(&mut text));
    match read {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Err(LiveError::NoProcess(pid)),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Err(LiveError::NoProcess(pid)),
        Err(error) => return Err(LiveError::Io { path, error }),
        Ok(_) => {}
    }
    let text = String::from_utf8_lossy(&text);
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    // Threads have entries in /proc too.
    if field("Tgid:").trim() != pid.to_string() {
        return Err(LiveError::NoProcess(pid));
    }
    let ids: Vec<u32> = field("Uid:").split_whitespace().filter_map(|id| id.parse().ok()).collect();
    let mut owners = Vec::new();
    for id in [1, 0, 2].into_iter().filter_map(|index| ids.get(index)) {
        if !owners.contains(id) {
            owners.push(*id);
        }
    }
    let own = own_namespace();
    let namespace = std::fs::metadata(format!("/proc/{pid}/ns/pid")).map_or(own, |found| found.ino());
    // In a pid namespace below this command's, the process has another pid: the last one.
    let inner = || field("NSpid:").split_whitespace().next_back()?.parse().ok();
    let name = match (namespace == own).then_some(pid).or_else(inner) {
        Some(pid) => StatsName { pid, namespace },
        None => StatsName { pid, namespace: own },
    };
    Ok(Identity { owners, name })
}

/// Whether a process is known to run under uncopy.
pub fn is_under_uncopy(pid: u32) -> bool {
    has_library_mapped(pid).unwrap_or(false)
}

/// Whether the process has `libuncopy.so` mapped.
fn has_library_mapped(pid: u32) -> io::Result<bool> {
    let maps = File::open(format!("/proc/{pid}/maps"))?;
    match procmap::has_code_of(maps.as_fd(), is_library_path) {
        Err(Errno(libc::ENOTTY)) => has_library_in_text(maps),
        found => Ok(found?),
    }
}

/// Searches the text of the maps for the library, for kernels before Linux 6.11.
fn has_library_in_text(maps: File) -> io::Result<bool> {
    let mut maps = BufReader::with_capacity(MAPS_BYTES, maps);
    let mut line = Vec::new();
    loop {
        line.clear();
        if maps.read_until(b'\n', &mut line)? == 0 {
            return Ok(false);
        }
        if is_library_path(line.strip_suffix(b"\n").unwrap_or(&line)) {
            return Ok(true);
        }
    }
}

fn is_library_path(line: &[u8]) -> bool {
    // The kernel appends this to the path of a replaced library.
    let path = line.strip_suffix(b" (deleted)").unwrap_or(line);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    path.contains(&b'/') && name == library::FILE_NAME.as_bytes()
}

/// Writes a request to the pipe of a process: `CONTROL_RELEASE`, or one of
/// `uncopy_core::recording::request`. Returns false if the process has no pipe because it has done
/// no work yet.
pub fn send_request(pid: u32, message: &[u8]) -> Result<bool, LiveError> {
    let process = identity(pid)?;
    let name = format!("{}{CONTROL_SUFFIX}", process.name);
    for owner in process.owners {
        let Some((path, mut pipe)) = open_live(shared_memory(), owner, pid, &name, FileKind::Fifo)? else {
            continue;
        };
        return match pipe.write_all(message) {
            Ok(()) => Ok(true),
            Err(error) => Err(LiveError::Io { path, error }),
        };
    }
    Ok(false)
}

/// Opens `parent/uncopy-OWNER/NAME` after checking its owner; `None` if it does not exist.
fn open_live(
    parent: &Path,
    owner: u32,
    pid: u32,
    name: &str,
    kind: FileKind,
) -> Result<Option<(PathBuf, File)>, LiveError> {
    let directory_path = directory_of(parent, owner);
    let path = directory_path.join(name);
    let failure = |path: &Path, why: DirectoryError| match why {
        DirectoryError::Kernel(Errno::ENOENT) => None,
        // No process reads from the pipe, so its process has ended.
        DirectoryError::Kernel(Errno(libc::ENXIO)) => Some(LiveError::NoProcess(pid)),
        DirectoryError::Kernel(Errno(libc::EACCES)) => Some(LiveError::NotPermitted { pid, owner }),
        DirectoryError::Kernel(errno) => {
            Some(LiveError::Io { path: path.to_path_buf(), error: errno.into() })
        }
        why => Some(LiveError::Refused { path: path.to_path_buf(), why: why.to_string() }),
    };
    let io = |error| LiveError::Io { path: path.clone(), error };
    let c_directory = os::c_path(&directory_path).map_err(io)?;
    let c_name = os::c_path(Path::new(name)).map_err(io)?;
    let directory = match PrivateDirectory::open(&c_directory, owner) {
        Ok(directory) => directory,
        Err(why) => return failure(&directory_path, why).map_or(Ok(None), Err),
    };
    let access = if kind == FileKind::Fifo { libc::O_WRONLY } else { libc::O_RDONLY };
    match os::open_in(&directory, &c_name, kind, access) {
        Ok(file) => Ok(Some((path, file))),
        Err(why) => failure(&path, why).map_or(Ok(None), Err),
    }
}

/// Reads the counters of a process from `parent/uncopy-OWNER/NAME`; `None` if there are none yet.
fn read_live(parent: &Path, owner: u32, pid: u32, name: StatsName) -> Result<Option<Snapshot>, LiveError> {
    let Some((path, file)) = open_live(parent, owner, pid, &name.to_string(), FileKind::File)? else {
        return Ok(None);
    };
    let refuse =
        |path: &Path, why: &str| Err(LiveError::Refused { path: path.to_path_buf(), why: why.to_owned() });
    let io = |error| LiveError::Io { path: path.clone(), error };
    let metadata = file.metadata().map_err(io)?;
    // The library is still creating the file.
    if metadata.len() == 0 {
        return Ok(None);
    }
    if metadata.len() != FILE_BYTES as u64 {
        return refuse(&path, "does not have the size of a stats file");
    }
    let mut bytes = Vec::with_capacity(FILE_BYTES);
    file.take(FILE_BYTES as u64).read_to_end(&mut bytes).map_err(io)?;
    // The library writes the magic last.
    if bytes.starts_with(&[0; MAGIC.len()]) {
        return Ok(None);
    }
    match Snapshot::parse(&bytes) {
        Ok(snapshot) if snapshot.pid == u64::from(name.pid) => Ok(Some(snapshot)),
        Ok(_) => refuse(&path, "holds another process's counters"),
        Err(why) => refuse(&path, why),
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
