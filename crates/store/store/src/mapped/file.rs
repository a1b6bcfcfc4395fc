//! The file of a mapped log.
//!
//! Persistent memory is what the kernel maps with `MAP_SYNC`. On tmpfs the log only emulates it: nothing there
//! survives power loss. Other file systems hold no mapped logs.

use super::service_memory::{ServiceMemory, remove_names};
use crate::log_files::{self, LockedLog, c_path, machine};
use core::fmt;
use std::path::{Path, PathBuf};
use uncopy_mapped::chunks::{Chunks, Rest};
use uncopy_mapped::layout::{self, Superblock};
use uncopy_mapped::log::EmptyLog;
use uncopy_mapped::mapping::{Flushing, Mapping};
use uncopy_mapped::memory::{LINE_BYTES, Persistent};
use uncopy_mapped::reader::Reader;
use uncopy_mapped::record::Source;
use uncopy_mapped::recovery::Recovery;
use uncopy_sys::descriptor::{Descriptor, OwnRef};
use uncopy_sys::errno::Errno;
use uncopy_sys::{PAGE_BYTES, file, ids, mem};

/// Last part of a mapped log's name.
pub const SUFFIX: &str = "mapped";
/// No chunks, for logs of tests whose records have inline bytes only.
#[cfg(test)]
pub const NO_CHUNKS: &[Mapping] = &[];
/// Entries of the table of files: four times the files that a program can have in the log at once, because an
/// entry is free again only after the next digest.
const ENTRIES: u32 = 4 * crate::state::MAX_FILES as u32;
const STEP_BYTES: usize = 1 << 20;

/// Memory behind the pages of a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Persistent memory, mapped directly (DAX).
    Persistent,
    /// Memory of tmpfs, which emulates persistent memory and loses everything with the power.
    Emulated,
    /// A page cache or other memory that holds no mapped log.
    Unsuitable,
}

/// Returns what backs an open regular file.
///
/// # Errors
/// Errors of mmap(2) and fstatfs(2).
pub fn backing(fd: impl Descriptor) -> Result<Backing, Errno> {
    match mem::map_sync(fd, PAGE_BYTES) {
        Ok(base) => {
            // SAFETY: the page was mapped above, and nothing else knows its address.
            unsafe { mem::unmap_shared(base, PAGE_BYTES) };
            Ok(Backing::Persistent)
        }
        // EINVAL: before Linux 4.15.
        Err(Errno(libc::EOPNOTSUPP | libc::EINVAL)) => {
            let is_tmpfs = file::file_system(fd)? == file::TMPFS;
            Ok(if is_tmpfs { Backing::Emulated } else { Backing::Unsuitable })
        }
        Err(errno) => Err(errno),
    }
}

/// Returns what would back a log in a directory.
///
/// # Errors
/// An error of creating a file there, or of [`backing`].
pub fn backing_in(directory: &Path) -> Result<Backing, Errno> {
    backing(LockedLog::create_unnamed(directory, 0)?.device().fd)
}

/// Whether a file on the file system of an open file can be logged: as
/// [`mark::supports_logging`](crate::mark::supports_logging), or tmpfs if the log is `emulated` as well.
#[must_use]
pub fn supports_file(fd: impl Descriptor, emulated: bool) -> bool {
    crate::mark::supports_logging(fd) || emulated && file::file_system(fd) == Ok(file::TMPFS)
}

/// Reason why a mapped log cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The file cannot be opened or mapped.
    File(Errno),
    /// The file holds no usable log.
    Log(layout::Unreadable),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(errno) => write!(f, "{errno}"),
            Self::Log(why) => write!(f, "{why}"),
        }
    }
}

impl From<Errno> for Unreadable {
    fn from(errno: Errno) -> Self {
        Self::File(errno)
    }
}

impl From<layout::Unreadable> for Unreadable {
    fn from(why: layout::Unreadable) -> Self {
        Self::Log(why)
    }
}

/// Returns the paths of the mapped logs in a directory, sorted.
///
/// # Errors
/// An error of reading the directory.
pub fn logs(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    log_files::logs_with(directory, SUFFIX)
}

/// Whether a path has the name of a mapped log.
#[must_use]
pub fn is_mapped(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == SUFFIX)
}

/// Memory of a log's file: the log, and chunk 0 of its records behind it; and of the service's files, which are the other
/// chunks.
///
/// ```text
/// 0            length of the log, rounded up to pages          end of the file
/// │ the log   │ chunk 0: input of the program that records refer to │
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LogMemory<'a> {
    memory: &'a Mapping,
    chunk_at: usize,
    service: &'a ServiceMemory,
}

impl<'a> LogMemory<'a> {
    /// Returns the memory of a log's whole file, and of the service's.
    #[must_use]
    pub fn new(memory: &'a Mapping, superblock: &Superblock, service: &'a ServiceMemory) -> Self {
        let log_bytes = usize::try_from(superblock.len_bytes).unwrap_or(usize::MAX);
        let chunk_at = log_bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX);
        Self { memory, chunk_at: chunk_at.min(memory.len_bytes()), service }
    }

    /// Returns the length of chunk 0, bytes.
    #[must_use]
    pub fn pool_bytes(&self) -> usize {
        self.memory.len_bytes() - self.chunk_at
    }

    /// Returns the address of a record's bytes, for system calls; `None`: they are not in the file.
    #[must_use]
    pub fn address(&self, source: Source, len_bytes: usize) -> Option<*const u8> {
        match source {
            Source::Inline(at) => self.memory.address(at, len_bytes),
            Source::Chunk { chunk: 0, at } => {
                let at = usize::try_from(at).ok()?.checked_add(self.chunk_at)?;
                self.memory.address(at, len_bytes)
            }
            Source::Chunk { chunk, at } => {
                self.service.chunk(chunk)?.address(usize::try_from(at).ok()?, len_bytes)
            }
        }
    }
}

impl Chunks for LogMemory<'_> {
    type Memory<'a>
        = Rest<'a, Mapping>
    where
        Self: 'a;

    fn memory(&self, chunk: u32) -> Option<Rest<'_, Mapping>> {
        match chunk {
            0 => Some(Rest::new(self.memory, self.chunk_at)),
            _ => self.service.chunk(chunk).map(|memory| Rest::new(memory, 0)),
        }
    }
}

/// An open and mapped log.
#[derive(Debug)]
pub struct MappedLog {
    /// Path of the log.
    pub path: PathBuf,
    file: LockedLog,
    mapping: Mapping,
    base: usize,
    backing: Backing,
    /// The service's files that records refer to, mapped when they are needed.
    service: ServiceMemory,
}

impl MappedLog {
    /// Opens, locks and maps a log, whose contents are not looked at.
    ///
    /// # Errors
    /// EAGAIN if another process has locked it; EPERM if it is not a regular file that only this user can write
    /// to; [`layout::Unreadable::Foreign`] if it is shorter than any log.
    pub fn open(path: &Path) -> Result<Self, Unreadable> {
        Self::map(path.to_owned(), LockedLog::open_by(path, 0)?)
    }

    /// Opens and maps a log to read it, also while another process uses it. Returns whether one does.
    ///
    /// # Errors
    /// Those of [`MappedLog::open`] except EAGAIN.
    pub fn open_to_read(path: &Path) -> Result<(Self, bool), Unreadable> {
        let file = LockedLog::open_unlocked(path, 0)?;
        let is_in_use = file.lock().is_err();
        Self::map(path.to_owned(), file).map(|log| (log, is_in_use))
    }

    fn map(path: PathBuf, file: LockedLog) -> Result<Self, Unreadable> {
        let fd = file.device().fd;
        let len_bytes = usize::try_from(file::status(fd)?.len_bytes).unwrap_or(0) / LINE_BYTES * LINE_BYTES;
        if len_bytes == 0 {
            return Err(layout::Unreadable::Foreign.into());
        }
        let backing = backing(fd)?;
        let is_persistent = backing == Backing::Persistent;
        let base = if is_persistent { mem::map_sync(fd, len_bytes) } else { mem::map_shared(fd, len_bytes) }?;
        let flushing = Flushing::of(is_persistent);
        // SAFETY: the pages were mapped above, readable and writable, for `len_bytes`; `drop` unmaps them with the
        // value, which is not given away. This process knows the address only as a `Mapping`. `stream` is called
        // by `Log` alone, which fences before the bytes are read.
        let mapping = unsafe { Mapping::new(base as *mut u8, len_bytes, flushing) };
        let mapping = mapping.ok_or(Errno::EINVAL).inspect_err(|_| {
            // SAFETY: no `Mapping` was made, so nothing uses the pages.
            unsafe { mem::unmap_shared(base, len_bytes) };
        })?;
        Ok(Self { path, file, mapping, base, backing, service: ServiceMemory::new() })
    }

    /// Returns the memory of the log.
    #[must_use]
    pub const fn memory(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the memory of the log and of its chunks.
    ///
    /// # Errors
    /// The reason why there is no log.
    pub fn contents(&self) -> Result<LogMemory<'_>, layout::Unreadable> {
        let superblock = *Reader::open(&self.mapping)?.superblock();
        self.service.open_named(self.directory(), superblock.log, self.backing == Backing::Persistent);
        Ok(LogMemory::new(&self.mapping, &superblock, &self.service))
    }

    /// Returns the service's files that records refer to.
    #[must_use]
    pub const fn service(&self) -> &ServiceMemory {
        &self.service
    }

    /// Returns the directory of the log.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or_else(|| Path::new("/"))
    }

    /// Returns the descriptor of the log.
    #[must_use]
    pub const fn fd(&self) -> OwnRef {
        self.file.device().fd
    }

    /// Returns what backs the log.
    #[must_use]
    pub const fn backing(&self) -> Backing {
        self.backing
    }

    /// Whether the file still has all bytes that are mapped: its owner could have truncated it, so that the next
    /// access would be SIGBUS.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        file::status(self.fd()).is_ok_and(|status| status.len_bytes >= self.mapping.len_bytes() as u64)
    }
}

impl Drop for MappedLog {
    fn drop(&mut self) {
        // SAFETY: `memory` lends the mapping for as long as the value lives, so nothing uses it any more.
        unsafe { mem::unmap_shared(self.base, self.mapping.len_bytes()) };
    }
}

/// Returns a log without records: an existing one, or a new one of `len_bytes`, rounded up to whole pages.
/// `emulates` allows tmpfs. `is_needed` is polled meanwhile. The shared lock on the directory, which this takes, is
/// what [`log_files::is_being_made`] sees.
///
/// # Errors
/// EOPNOTSUPP if the directory is not on a DAX file system, nor on tmpfs with `emulates`; ENOSPC and other errors of
/// the directory or of the log; ECANCELED if `is_needed` returned false.
pub fn open_or_create_empty(
    directory: &Path,
    len_bytes: u64,
    emulates: bool,
    is_needed: &dyn Fn() -> bool,
) -> Result<MappedLog, Errno> {
    let _announced = log_files::announce_making(directory)?;
    let file_bytes = len_bytes.next_multiple_of(2 * PAGE_BYTES as u64);
    // The other half is chunk 0.
    let len_bytes = file_bytes / 2;
    let may_use = |backing| backing == Backing::Persistent || backing == Backing::Emulated && emulates;
    for path in logs(directory).unwrap_or_default() {
        if let Some(log) = reuse(&path, file_bytes).filter(|log| may_use(log.backing)) {
            return Ok(log);
        }
    }
    let id = ids::random().filter(|id| *id != 0).ok_or(Errno::EAGAIN)?;
    let file = LockedLog::create_unnamed(directory, 0)?;
    if !may_use(backing(file.device().fd)?) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    create(
        directory,
        file,
        &Superblock { log: id, machine: machine(), len_bytes, entries: ENTRIES },
        file_bytes,
        is_needed,
    )
}

fn reuse(path: &Path, file_bytes: u64) -> Option<MappedLog> {
    let log = MappedLog::open(path).ok()?;
    let reader = Reader::open(log.memory()).ok()?;
    let (superblock, checkpoint) = (*reader.superblock(), *reader.checkpoint());
    let is_long = log.memory().len_bytes() as u64 == file_bytes;
    let is_fit = is_long && superblock.len_bytes == file_bytes / 2 && superblock.machine == machine();
    // The blocks may be missing, if somebody has copied the file; and leftovers must not look like records.
    let is_empty = || {
        // An interruption may have left them.
        remove_names(log.directory(), superblock.log);
        let memory = LogMemory::new(log.memory(), &superblock, &log.service);
        file::allocate(log.fd(), file_bytes).is_ok()
            && Recovery::open(log.memory(), &memory, log_files::boot())
                .is_ok_and(|found| found.finish().is_ok())
    };
    (checkpoint.process == 0 && is_fit && is_empty()).then_some(log)
}

/// Makes a new log in an unnamed file, which gets its name once it is complete.
fn create(
    directory: &Path,
    file: LockedLog,
    superblock: &Superblock,
    file_bytes: u64,
    is_needed: &dyn Fn() -> bool,
) -> Result<MappedLog, Errno> {
    let fd = file.device().fd;
    // Allocated, because a store to a page without room on the file system would be SIGBUS.
    file::allocate(fd, file_bytes)?;
    let path = directory.join(format!("{:016x}.{SUFFIX}", superblock.log));
    let log = MappedLog::map(path, file).map_err(|why| match why {
        Unreadable::File(errno) => errno,
        Unreadable::Log(_) => Errno::EINVAL,
    })?;
    // Later stores need no change of metadata, which a fault of MAP_SYNC would wait for, and find zeroed pages on tmpfs
    // too, which zeroes a page at its first use.
    let zeroes = vec![0; STEP_BYTES];
    for at in (0..file_bytes).step_by(STEP_BYTES) {
        if !is_needed() {
            return Err(Errno(libc::ECANCELED));
        }
        let len = (file_bytes - at).min(STEP_BYTES as u64) as usize;
        file::write_at(fd, at, &zeroes[..len])?;
    }
    if log.backing == Backing::Persistent {
        file::sync(fd)?;
    }
    EmptyLog::create(log.memory(), superblock).ok_or(Errno::EINVAL)?;
    file::link_unnamed(fd, &c_path(&log.path)?)?;
    file::sync(fd)?;
    Ok(log)
}
