//! Logs in a directory, and finding the files of their records.

use crate::device::LogFile;
use crate::layout::{Checkpoint, Failure, Identity, Superblock, SuperblockError};
use crate::log::{create, write_checkpoint};
use crate::mark::{self, Owner};
use crate::recovery::{FileLookup, Files, Recovery, Survey, Unreadable};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use uncopy_sys::descriptor::OwnFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::{clock, file, file_lock, ids};

const SUFFIX: &str = "log";
/// Age of a keeper's last checkpoint, ns, from which on another process must have modified a file.
pub(crate) const MAX_SILENCE_NS: u64 = 10_000_000_000;
const STEP_BYTES: usize = 1 << 20;

/// Converts a path to a C string.
///
/// # Errors
/// EINVAL if the path contains a NUL byte.
pub fn c_path(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

/// Reads the first 64 bits of a hexadecimal identifier from a file; 0 if there is none.
fn digits_of(path: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// Returns an identifier of the current boot.
#[must_use]
pub fn boot() -> u64 {
    digits_of("/proc/sys/kernel/random/boot_id")
}

/// Returns an identifier of this machine; 0 if it has none.
#[must_use]
pub fn machine() -> u64 {
    digits_of("/etc/machine-id")
}

/// Returns the paths of the logs in a directory, sorted.
///
/// # Errors
/// An error of reading the directory.
pub fn logs(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    logs_with(directory, SUFFIX)
}

/// Returns the paths of the logs in a directory whose names end in `suffix`, sorted.
///
/// # Errors
/// An error of reading the directory.
pub(crate) fn logs_with(directory: &Path, suffix: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let is_log = path.extension().is_some_and(|extension| extension == suffix)
            && path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .is_some_and(|stem| stem.len() == 16 && stem.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if is_log {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// An open log, locked against other processes.
#[derive(Debug)]
pub struct LockedLog(OwnFd);

impl LockedLog {
    /// Opens and locks a log.
    ///
    /// # Errors
    /// EAGAIN if another process has locked it; EPERM if it is not a regular file that only this user can write
    /// to; an error of open(2).
    pub fn open(path: &Path) -> Result<Self, Errno> {
        Self::open_by(path, libc::O_DIRECT)
    }

    pub(crate) fn open_by(path: &Path, flags: i32) -> Result<Self, Errno> {
        let log = Self::open_unlocked(path, flags)?;
        log.lock().map(|()| log)
    }

    /// Opens a log as [`LockedLog::open`] does, without a lock.
    pub(crate) fn open_unlocked(path: &Path, flags: i32) -> Result<Self, Errno> {
        // The path may come from a mark, which can name anything, so it is checked before it is opened.
        let looked_at = file::open(&c_path(path)?, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
        let status = file::status(&looked_at)?;
        // A user who could write to the log could have files written that this user must not write to.
        let is_ours = status.user == ids::effective_user() && status.mode & 0o022 == 0;
        if !status.is_regular() || !is_ours {
            return Err(Errno::EPERM);
        }
        file::reopen(&looked_at, libc::O_RDWR | flags).map(Self)
    }

    /// Creates an unnamed log in a directory, and locks it.
    pub(crate) fn create_unnamed(directory: &Path, flags: i32) -> Result<Self, Errno> {
        let flags = libc::O_RDWR | libc::O_TMPFILE | flags;
        let log = Self(file::open(&c_path(directory)?, flags, 0o600)?);
        log.lock().map(|()| log)
    }

    /// Locks the log: EAGAIN if another process has locked it.
    pub(crate) fn lock(&self) -> Result<(), Errno> {
        file_lock::lock_exclusive(&self.0)
    }

    /// Returns the device of the log.
    #[must_use]
    pub const fn device(&self) -> LogFile {
        LogFile::new(self.0.reference())
    }
}

/// Returns whether a log may have records for a file that it marked: it exists and is not empty.
#[must_use]
pub fn may_have(owner: &Owner) -> bool {
    let log = match LockedLog::open(&owner.path) {
        Ok(log) => log,
        Err(errno) => return errno != Errno::ENOENT,
    };
    Recovery::open(log.device())
        .map_or(true, |recovery| recovery.superblock().log == owner.log && recovery.checkpoint().process != 0)
}

/// A log without records, locked by this process.
#[derive(Debug)]
pub struct EmptyLog {
    /// Path of the log.
    pub path: PathBuf,
    /// The open and locked log.
    pub file: LockedLog,
    /// The log's superblock.
    pub superblock: Superblock,
    /// The log's checkpoint.
    pub checkpoint: Checkpoint,
}

/// Returns whether a directory's file system can hold logs that survive power loss.
///
/// # Errors
/// An error of opening the directory.
pub fn supports_logs(directory: &Path) -> Result<bool, Errno> {
    let opened = file::open(&c_path(directory)?, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    Ok(mark::supports_logging(&opened))
}

/// Returns an empty log of `len_bytes`: an existing one, or a new one, which takes as long as writing all of
/// it. `anywhere` allows file systems that do not survive power loss. `is_needed` is polled meanwhile. The
/// shared lock on the directory, which this takes, is what [`is_being_made`] sees.
///
/// # Errors
/// An error of the directory or of the log; ECANCELED if `is_needed` returned false.
pub fn open_or_create_empty(
    directory: &Path,
    len_bytes: u64,
    anywhere: bool,
    is_needed: &dyn Fn() -> bool,
) -> Result<EmptyLog, Errno> {
    let _announced = announce_making(directory)?;
    for path in logs(directory).unwrap_or_default() {
        if let Some(empty) = reuse(&path, len_bytes, anywhere) {
            return Ok(empty);
        }
    }
    make(directory, len_bytes, anywhere, is_needed)
}

/// Announces to [`is_being_made`] that a log is being made in a directory, for as long as the descriptor is open.
///
/// # Errors
/// An error of opening the directory.
pub fn announce_making(directory: &Path) -> Result<OwnFd, Errno> {
    let lock = file::open(&c_path(directory)?, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    // The directory is locked exclusively only for a moment, by `is_being_made`.
    let _ = file_lock::lock_shared(&lock);
    Ok(lock)
}

/// Returns whether a process is making a log in a directory.
///
/// # Errors
/// An error of opening the directory.
pub fn is_being_made(directory: &Path) -> Result<bool, Errno> {
    let lock = file::open(&c_path(directory)?, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    Ok(file_lock::lock_exclusive(&lock).is_err())
}

fn reuse(path: &Path, len_bytes: u64, anywhere: bool) -> Option<EmptyLog> {
    let file =
        LockedLog::open(path).ok().filter(|file| anywhere || mark::supports_logging(file.device().fd))?;
    let recovery = Recovery::open(file.device()).ok()?;
    let (superblock, checkpoint) = (*recovery.superblock(), *recovery.checkpoint());
    let is_empty = checkpoint.process == 0;
    let is_fit = superblock.len_bytes == len_bytes && superblock.machine == machine();
    (is_empty && is_fit).then(|| EmptyLog { path: path.to_owned(), file, superblock, checkpoint })
}

fn make(
    directory: &Path,
    len_bytes: u64,
    anywhere: bool,
    is_needed: &dyn Fn() -> bool,
) -> Result<EmptyLog, Errno> {
    let id = ids::random().ok_or(Errno::EAGAIN)?;
    let path = directory.join(format!("{id:016x}.{SUFFIX}"));
    // The log gets its name once it is complete.
    let file = LockedLog::create_unnamed(directory, libc::O_DIRECT)?;
    let fd = file.device().fd;
    if !anywhere && !mark::supports_logging(fd) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let granule_bytes = fill(&file, len_bytes, is_needed)?;
    let superblock = Superblock { log: id, len_bytes, granule_bytes, machine: machine() };
    let checkpoint = create(&file.device(), &superblock, clock::wall_ns())?;
    file::link_unnamed(fd, &c_path(&path)?)?;
    file::sync(fd)?;
    Ok(EmptyLog { path, file, superblock, checkpoint })
}

/// Writes all of a new log once, so that later writes need no change of metadata. Returns the granule, bytes.
fn fill(log: &LockedLog, len_bytes: u64, is_needed: &dyn Fn() -> bool) -> Result<u32, Errno> {
    let fd = log.device().fd;
    file::allocate(fd, len_bytes)?;
    let mut zeroes = crate::device::Aligned::default();
    zeroes.resize(STEP_BYTES);
    for at in (0..len_bytes).step_by(STEP_BYTES) {
        if !is_needed() {
            return Err(Errno(libc::ECANCELED));
        }
        let len = (len_bytes - at).min(STEP_BYTES as u64) as usize;
        file::write_at(fd, at, &zeroes[..len])?;
    }
    file::sync(fd)?;
    Ok(file::direct_io_alignment_bytes(fd))
}

/// Files of a log's records, looked up in the file system.
#[derive(Debug, Default)]
pub(crate) struct OnDisk<'a> {
    /// Whether the kernel that wrote the log still runs: device numbers are unchanged.
    pub is_same_boot: bool,
    /// Whether files are rewritten whose pages the running kernel may wrongly hold to be clean.
    pub is_rewritten: bool,
    /// Further directories in which to look for files.
    pub search: &'a [PathBuf],
    /// Files modified after this time, ns since 1970, were written to by others; `None`: no limit.
    pub until_ns: Option<u64>,
}

impl OnDisk<'_> {
    fn open_if_it_is(&self, path: &Path, identity: &Identity) -> Option<OwnFd> {
        let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NOCTTY;
        let path = c_path(path).ok()?;
        let opened = match file::open(&path, flags | libc::O_NONBLOCK, 0) {
            // Another process holds a lease and is being told to end it: wait.
            Err(Errno::EAGAIN) => file::open(&path, flags, 0),
            opened => opened,
        };
        let opened = opened.ok()?;
        let is_it = file::status(&opened).is_ok_and(|status| {
            let is_there = !self.is_same_boot || status.device == identity.device;
            status.is_regular() && is_there && status.inode == identity.inode
        });
        (is_it && file::generation(&opened) == identity.generation).then_some(opened)
    }

    fn find_in(&self, directory: &Path, identity: &Identity) -> Option<OwnFd> {
        let entries = std::fs::read_dir(directory).ok()?;
        let mut same = entries.flatten().filter(|entry| entry.ino() == identity.inode);
        same.find_map(|entry| self.open_if_it_is(&entry.path(), identity))
    }

    /// Looks for the file at its path, in the directory of that, and in the further directories.
    fn locate(&self, identity: &Identity) -> Option<OwnFd> {
        let path = Path::new(OsStr::from_bytes(&identity.path));
        let elsewhere = path.parent().into_iter().chain(self.search.iter().map(PathBuf::as_path));
        self.open_if_it_is(path, identity)
            .or_else(|| elsewhere.into_iter().find_map(|directory| self.find_in(directory, identity)))
    }
}

impl Files for OnDisk<'_> {
    type File = OwnFd;

    fn find(&mut self, identity: &Identity, log: u64) -> FileLookup<OwnFd> {
        let Some(opened) = self.locate(identity) else { return FileLookup::Unresolved };
        match mark::owner_of(&opened) {
            Ok(Some(owner)) if owner.log == log => {}
            Ok(_) => return FileLookup::Gone,
            Err(_) => return FileLookup::Unresolved,
        }
        let modified_ns = file::modified_ns(&opened).unwrap_or(u64::MAX);
        match self.until_ns {
            Some(until_ns) if modified_ns > until_ns => FileLookup::Unresolved,
            _ => {
                if self.is_rewritten {
                    // The kernel may hold pages to be clean that it failed to write: drop them.
                    let _ = file::sync(&opened);
                    file::drop_cached(&opened);
                }
                FileLookup::File(opened)
            }
        }
    }

    fn write_at(&mut self, file: &mut OwnFd, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        file::write_at(&*file, offset, bytes)
    }

    fn sync(&mut self, file: &mut OwnFd) -> Result<(), Errno> {
        file::sync(&*file)
    }
}

/// Result of recovering a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Another process uses the log.
    InUse,
    /// The log was empty.
    Empty,
    /// All files that were found have what was promised.
    Recovered(Recovered),
    /// Records are damaged that had been durable; the log is unchanged.
    Damaged,
    /// The log was made on another machine; it is unchanged.
    OtherMachine,
    /// The log cannot be read; it is unchanged.
    Unreadable(Unreadable),
    /// The mapped log cannot be read; it is unchanged.
    UnreadableMapped(uncopy_mapped::layout::Unreadable),
}

/// Details of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Number of records written; 0 where the page cache still had their bytes.
    pub records: u64,
    /// Bytes of those records.
    pub bytes: u64,
    /// Number of files synced and unmarked.
    pub files: u64,
    /// Number of records whose files are gone or do not rely on the log any more.
    pub gone_records: u64,
    /// Files that were not found, or that others have written to since. The log keeps their records unless they
    /// were given up.
    pub unresolved: Vec<Identity>,
}

/// Options of a recovery.
#[derive(Clone, Debug, Default)]
pub struct RecoveryOptions {
    /// Further directories in which to look for files.
    pub search: Vec<PathBuf>,
    /// Whether to overwrite files that others have written to since.
    pub overwrites: bool,
    /// Whether to give up what is uncertain: files that were not found or that others wrote to, all records
    /// from a damaged one on, and logs of other machines.
    pub gives_up: bool,
}

/// Writes a log's records to their files, and empties the log. Can be repeated, also after an interruption.
///
/// # Errors
/// An error of the log or of a file.
pub fn recover(path: &Path, ways: &RecoveryOptions) -> Result<Outcome, Errno> {
    // Without O_DIRECT: the log is read twice, and readahead helps.
    let file = match LockedLog::open_by(path, 0) {
        Ok(file) => file,
        Err(Errno::EAGAIN) => return Ok(Outcome::InUse),
        Err(errno) => return Err(errno),
    };
    let outcome = recover_locked(&file, ways);
    // Direct writes would have to invalidate the cached pages.
    file::drop_cached(&file.0);
    outcome
}

/// Returns the time until which only the log's program wrote to the files, ns since 1970.
fn written_until_ns(checkpoint: &Checkpoint, newest_ns: u64, is_same_boot: bool) -> u64 {
    match checkpoint.failure {
        // The page cache has the program's latest writes, which are in no record and must not be overwritten.
        // Power loss would have discarded them.
        Some(Failure { until_ns: 0, .. } | Failure { has_newer: true, .. }) if is_same_boot => 0,
        Some(Failure { until_ns: until_ns @ 1.., .. }) => until_ns,
        _ => checkpoint.time_ns.max(newest_ns).saturating_add(MAX_SILENCE_NS),
    }
}

fn recover_locked(file: &LockedLog, ways: &RecoveryOptions) -> Result<Outcome, Errno> {
    let device = LogFile { granule_bytes: 1, ..file.device() };
    let recovery = match Recovery::open(device) {
        Ok(recovery) => recovery,
        Err(Unreadable::Device(errno)) => return Err(errno),
        Err(why) => return Ok(Outcome::Unreadable(why)),
    };
    let (superblock, checkpoint) = (*recovery.superblock(), *recovery.checkpoint());
    if checkpoint.process == 0 {
        return Ok(Outcome::Empty);
    }
    if superblock.machine != machine() && !ways.gives_up {
        return Ok(Outcome::OtherMachine);
    }
    // While the same kernel runs, the page cache has all writes, and syncing the files is enough.
    let is_same_boot = checkpoint.boot == boot();
    let survey = recovery.survey()?;
    if survey.end.is_damaged && !is_same_boot && !ways.gives_up {
        return Ok(Outcome::Damaged);
    }
    // After a failure to write a file the kernel may have dropped pages.
    let is_replayed = !is_same_boot || checkpoint.failure.is_some();
    let is_guarded = is_replayed && !ways.overwrites && !ways.gives_up;
    let until_ns = is_guarded.then(|| written_until_ns(&checkpoint, survey.newest_ns, is_same_boot));
    let is_rewritten = is_same_boot && is_replayed;
    let mut files = OnDisk { is_same_boot, is_rewritten, search: &ways.search, until_ns };
    let mut found = recovery.look_up(&survey, &mut files);
    let mut recovered = Recovered::default();
    let mut serial = checkpoint.serial;
    if is_replayed {
        let mut note = |until_ns| {
            serial += 1;
            let failure = checkpoint.failure.map(|failure| Failure { until_ns, ..failure });
            let next = Checkpoint { serial, time_ns: clock::wall_ns(), failure, ..checkpoint };
            write_checkpoint(&device, &superblock, &next)
        };
        // The time until which the recovery itself may write to the files.
        note(clock::wall_ns() + MAX_SILENCE_NS)?;
        let done = recovery.replay(&mut files, &mut found);
        if done.is_err() {
            // A repeated recovery then overwrites only files that nobody else has written to.
            note(clock::wall_ns())?;
        }
        let done = done?;
        (recovered.records, recovered.bytes, recovered.gone_records) =
            (done.records, done.bytes, done.gone_records);
    }
    for (identity, file) in found {
        match file {
            FileLookup::File(file) => {
                mark::sync_and_remove(&file)?;
                recovered.files += 1;
            }
            FileLookup::Unresolved => recovered.unresolved.push(identity),
            FileLookup::Gone => {}
        }
    }
    if recovered.unresolved.is_empty() || ways.gives_up {
        let (_, superblock, checkpoint) = recovery.emptied(survey.end, clock::wall_ns());
        // The serial follows those of the checkpoints that `note` has written.
        let checkpoint = Checkpoint { serial: serial + 1, ..checkpoint };
        write_checkpoint(&device, &superblock, &checkpoint)?;
    }
    Ok(Outcome::Recovered(recovered))
}

/// Returns whether another process uses a log.
#[must_use]
pub fn is_in_use(path: &Path) -> bool {
    matches!(LockedLog::open(path), Err(Errno::EAGAIN))
}

/// Description of a log.
#[derive(Clone, Debug)]
pub struct LogSummary {
    /// The log's superblock.
    pub superblock: Superblock,
    /// The log's checkpoint.
    pub checkpoint: Checkpoint,
    /// Whether a process appends to the log.
    pub is_in_use: bool,
    /// Whether the log lies on a file system that does not survive power loss.
    pub is_emulated: bool,
    /// Summary of the records.
    pub survey: Survey,
    /// As [`End::is_damaged`](crate::recovery::End::is_damaged); false while the log is in use.
    pub is_damaged: bool,
}

/// Reads a log and checks all records, also while it is being appended to.
///
/// # Errors
/// The reason why the log cannot be read.
pub fn inspect(path: &Path) -> Result<LogSummary, Unreadable> {
    let is_in_use = is_in_use(path);
    // O_NONBLOCK: a FIFO with a log's name must not block the open.
    let flags = libc::O_RDONLY | libc::O_DIRECT | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let opened = file::open(&c_path(path)?, flags, 0)?;
    if !file::status(&opened)?.is_regular() {
        return Err(Unreadable::Superblock(SuperblockError::Foreign));
    }
    let recovery = Recovery::open(LogFile::new(opened.reference()))?;
    let (superblock, checkpoint) = (*recovery.superblock(), *recovery.checkpoint());
    let survey = recovery.survey()?;
    let is_damaged = survey.end.is_damaged && !is_in_use;
    let is_emulated = !mark::supports_logging(&opened);
    Ok(LogSummary { superblock, checkpoint, is_in_use, is_emulated, survey, is_damaged })
}

/// Removes an unused log. `gives_up` allows a log that is not empty.
///
/// # Errors
/// EAGAIN if the log is in use; ENOTEMPTY if it is not empty; an error of unlink(2).
pub fn remove(path: &Path, gives_up: bool) -> Result<(), Errno> {
    let locked = LockedLog::open(path)?;
    let is_empty = Recovery::open(locked.device()).is_ok_and(|recovery| recovery.checkpoint().process == 0);
    if !is_empty && !gives_up {
        return Err(Errno(libc::ENOTEMPTY));
    }
    std::fs::remove_file(path).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("uncopy-places-{}-{name}", std::process::id()));
        fs::create_dir(&path).expect("a directory");
        path
    }

    #[test]
    fn a_log_that_others_could_write_to_is_not_opened() {
        let directory = directory("others");
        let path = directory.join("log");
        fs::write(&path, b"").expect("a file");
        let opened = |path: &Path| LockedLog::open_by(path, 0).map(drop);
        for (mode, wanted) in
            [(0o600, Ok(())), (0o644, Ok(())), (0o620, Err(Errno::EPERM)), (0o602, Err(Errno::EPERM))]
        {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("its owner");
            assert_eq!(opened(&path), wanted, "{mode:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its owner");
        // The path may come from a mark: opening must neither wait for a FIFO nor affect a device.
        let link = directory.join("link");
        symlink(&path, &link).expect("a link");
        assert_eq!(opened(&link), Err(Errno::EPERM));
        assert_eq!(opened(Path::new("/dev/null")), Err(Errno::EPERM));
        let fifo = directory.join("fifo");
        // SAFETY: mkfifo(3) only reads the path, a `CString` that lives until the end of the statement.
        assert_eq!(unsafe { libc::mkfifo(c_path(&fifo).expect("no NUL").as_ptr(), 0o600) }, 0);
        assert_eq!(opened(&fifo), Err(Errno::EPERM));
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn what_the_kernel_has_is_not_overwritten_by_what_a_failed_file_was_promised() {
        let base = Checkpoint {
            serial: 1,
            epoch: 1,
            tail: 0,
            sequence: 1,
            time_ns: 100,
            boot: 1,
            process: 1,
            failure: None,
        };
        let failed = |until_ns, has_newer| Checkpoint {
            failure: Some(Failure { errno: libc::EIO, until_ns, has_newer }),
            ..base
        };
        let late = 200 + MAX_SILENCE_NS;
        // The keeper has not recorded until when only the program wrote to the file.
        assert_eq!(written_until_ns(&failed(0, false), 200, true), 0);
        assert_eq!(written_until_ns(&failed(0, false), 200, false), late);
        assert_eq!(written_until_ns(&failed(150, false), 200, true), 150);
        assert_eq!(written_until_ns(&failed(150, false), 200, false), 150);
        // The page cache has newer bytes unless the power was lost.
        assert_eq!(written_until_ns(&failed(150, true), 200, true), 0);
        assert_eq!(written_until_ns(&failed(150, true), 200, false), 150);
        assert_eq!(written_until_ns(&base, 200, false), late);
    }
}
