//! Logs in a directory, and the files that records belong to, as file systems have them.

use crate::device::LogFile;
use crate::layout::{Checkpoint, Failure, Identity, NoLog, Superblock};
use crate::log::{create, write_checkpoint};
use crate::mark::{self, Owner};
use crate::recovery::{Files, Found, Recovery, Survey, Unreadable};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use uncopy_sys::errno::Errno;
use uncopy_sys::{clock, file, ids};

/// What its name ends in.
const SUFFIX: &str = "log";
/// A file that was written to so long after the last sign of life of its log's keeper, ns, was written to by somebody else.
const MAX_SILENCE_NS: u64 = 10_000_000_000;
/// What is written at once while a log is made, bytes.
const STEP_BYTES: usize = 1 << 20;

/// A path as the kernel takes it.
///
/// # Errors
/// EINVAL: there is a zero byte in it.
pub fn c_path(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

/// Sixty-four bits of an identifier in hexadecimal digits; 0 if there is none.
fn digits_of(path: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// This start of the kernel.
#[must_use]
pub fn boot() -> u64 {
    digits_of("/proc/sys/kernel/random/boot_id")
}

/// This machine; 0: it has no identifier.
#[must_use]
pub fn machine() -> u64 {
    digits_of("/etc/machine-id")
}

/// The logs in a directory, in the order of their names.
///
/// # Errors
/// What reading it says.
pub fn logs(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let is_log = path.extension().is_some_and(|extension| extension == SUFFIX)
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

/// A descriptor of ours, closed when dropped.
#[derive(Debug)]
struct Opened(i32);

impl Drop for Opened {
    fn drop(&mut self) {
        file::close(self.0);
    }
}

/// An open log, locked against others.
#[derive(Debug)]
pub struct Locked(Opened);

impl Locked {
    /// Opens a log and locks it.
    ///
    /// # Errors
    /// EAGAIN: somebody has it; else what open says.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        Self::open_by(path, libc::O_DIRECT)
    }

    fn open_by(path: &Path, flags: i32) -> Result<Self, Errno> {
        // A mark names any path: what lies there is looked at before it is opened.
        let looked_at = Opened(file::open(&c_path(path)?, libc::O_PATH | libc::O_NOFOLLOW, 0)?);
        let status = file::status(looked_at.0)?;
        // Whoever could write to it could have files written that they cannot write to.
        let is_ours = status.user == ids::effective_user() && status.mode & 0o022 == 0;
        if !status.is_regular() || !is_ours {
            return Err(Errno::EPERM);
        }
        let log = Self(Opened(file::reopen(looked_at.0, libc::O_RDWR | flags)?));
        file::lock_alone(log.0.0).map(|()| log)
    }

    /// Where it lies.
    #[must_use]
    pub const fn device(&self) -> LogFile {
        LogFile::new(self.0.0)
    }
}

/// Whether a log may have something for a file that it marked: it is there, and not empty.
#[must_use]
pub fn may_have(owner: &Owner) -> bool {
    let log = match Locked::open(&owner.path) {
        Ok(log) => log,
        Err(errno) => return errno != Errno::ENOENT,
    };
    Recovery::open(log.device())
        .map_or(true, |recovery| recovery.superblock().log == owner.log && recovery.checkpoint().process != 0)
}

/// A log of which nothing is needed.
#[derive(Debug)]
pub struct Empty {
    /// Where it lies.
    pub path: PathBuf,
    /// The log.
    pub file: Locked,
    /// What it is.
    pub superblock: Superblock,
    /// How far it is.
    pub checkpoint: Checkpoint,
}

/// Whether logs can lie in a directory that is there, and survive power loss.
///
/// # Errors
/// What opening it says.
pub fn can_be_in(directory: &Path) -> Result<bool, Errno> {
    let opened = Opened(file::open(&c_path(directory)?, libc::O_RDONLY | libc::O_DIRECTORY, 0)?);
    Ok(mark::is_fit(opened.0))
}

/// A log of this length of which nothing is needed: one that is there, else a new one, which takes as long as writing all of it.
/// `anywhere`: also on a file system of which nothing survives power loss. `is_needed` is asked while that lasts. Who
/// [waits](is_being_made) for the directory waits for that too.
///
/// # Errors
/// What the directory or the file says; ECANCELED: it is not needed any more.
pub fn take_empty(
    directory: &Path,
    len_bytes: u64,
    anywhere: bool,
    is_needed: &dyn Fn() -> bool,
) -> Result<Empty, Errno> {
    let lock = Opened(file::open(&c_path(directory)?, libc::O_RDONLY | libc::O_DIRECTORY, 0)?);
    // Nobody but who looks has it alone, for a moment.
    let _ = file::lock_shared(lock.0);
    for path in logs(directory).unwrap_or_default() {
        if let Some(empty) = reuse(&path, len_bytes, anywhere) {
            return Ok(empty);
        }
    }
    make(directory, len_bytes, anywhere, is_needed)
}

/// Whether somebody is making a log in a directory.
///
/// # Errors
/// What opening it says.
pub fn is_being_made(directory: &Path) -> Result<bool, Errno> {
    let lock = Opened(file::open(&c_path(directory)?, libc::O_RDONLY | libc::O_DIRECTORY, 0)?);
    Ok(file::lock_alone(lock.0).is_err())
}

fn reuse(path: &Path, len_bytes: u64, anywhere: bool) -> Option<Empty> {
    let file = Locked::open(path).ok().filter(|file| anywhere || mark::is_fit(file.device().fd))?;
    let recovery = Recovery::open(file.device()).ok()?;
    let (superblock, checkpoint) = (*recovery.superblock(), *recovery.checkpoint());
    let is_empty = checkpoint.process == 0;
    let is_fit = superblock.len_bytes == len_bytes && superblock.machine == machine();
    (is_empty && is_fit).then(|| Empty { path: path.to_owned(), file, superblock, checkpoint })
}

fn make(
    directory: &Path,
    len_bytes: u64,
    anywhere: bool,
    is_needed: &dyn Fn() -> bool,
) -> Result<Empty, Errno> {
    let id = ids::random().ok_or(Errno::EAGAIN)?;
    let path = directory.join(format!("{id:016x}.{SUFFIX}"));
    // It has a name once it is a log.
    let flags = libc::O_RDWR | libc::O_DIRECT | libc::O_TMPFILE;
    let file = Locked(Opened(file::open(&c_path(directory)?, flags, 0o600)?));
    let fd = file.device().fd;
    if !anywhere && !mark::is_fit(fd) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let granule_bytes = fill(&file, len_bytes, is_needed)?;
    let superblock = Superblock { log: id, len_bytes, granule_bytes, machine: machine() };
    let checkpoint = create(&file.device(), &superblock, clock::wall_ns())?;
    file::name(fd, &c_path(&path)?)?;
    file::sync(fd)?;
    Ok(Empty { path, file, superblock, checkpoint })
}

/// Writes all of a new log once: what is written over later needs no change to its file system. The granule, bytes.
fn fill(log: &Locked, len_bytes: u64, is_needed: &dyn Fn() -> bool) -> Result<u32, Errno> {
    let fd = log.device().fd;
    file::lock_alone(fd)?;
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
    Ok(file::direct_granule_bytes(fd))
}

/// A log's files as file systems have them.
#[derive(Debug, Default)]
struct OnDisk<'a> {
    /// The kernel runs that ran then: numbers of devices are what they were.
    is_same_boot: bool,
    /// The log is put into files to which it was said to be written before, by the kernel that runs.
    is_rewritten: bool,
    /// Where else to look for files than where they were.
    search: &'a [PathBuf],
    /// A file that was written to later than that was written to by somebody else, ns since 1970; `None`: however late.
    until_ns: Option<u64>,
}

impl OnDisk<'_> {
    /// Opens what is at a path, if it is the file.
    fn open_if_it_is(&self, path: &Path, identity: &Identity) -> Option<Opened> {
        let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NOCTTY;
        let path = c_path(path).ok()?;
        let opened = match file::open(&path, flags | libc::O_NONBLOCK, 0) {
            // Somebody has a lease, who is being told: a file, which is waited for.
            Err(Errno::EAGAIN) => file::open(&path, flags, 0),
            opened => opened,
        };
        let opened = Opened(opened.ok()?);
        let is_it = file::status(opened.0).is_ok_and(|status| {
            let is_there = !self.is_same_boot || status.device == identity.device;
            status.is_regular() && is_there && status.inode == identity.inode
        });
        (is_it && file::generation(opened.0) == identity.generation).then_some(opened)
    }

    fn find_in(&self, directory: &Path, identity: &Identity) -> Option<Opened> {
        let entries = std::fs::read_dir(directory).ok()?;
        let mut same = entries.flatten().filter(|entry| entry.ino() == identity.inode);
        same.find_map(|entry| self.open_if_it_is(&entry.path(), identity))
    }

    /// The file, where it was, or elsewhere in its directory, or where else to look.
    fn locate(&self, identity: &Identity) -> Option<Opened> {
        let path = Path::new(OsStr::from_bytes(&identity.path));
        let elsewhere = path.parent().into_iter().chain(self.search.iter().map(PathBuf::as_path));
        self.open_if_it_is(path, identity)
            .or_else(|| elsewhere.into_iter().find_map(|directory| self.find_in(directory, identity)))
    }
}

impl Files for OnDisk<'_> {
    type File = Opened;

    fn find(&mut self, identity: &Identity, log: u64) -> Found<Opened> {
        let Some(opened) = self.locate(identity) else { return Found::Unsure };
        match mark::of(opened.0) {
            Ok(Some(owner)) if owner.log == log => {}
            Ok(_) => return Found::Gone,
            Err(_) => return Found::Unsure,
        }
        let modified_ns = file::modified_ns(opened.0).unwrap_or(u64::MAX);
        match self.until_ns {
            Some(until_ns) if modified_ns > until_ns => Found::Unsure,
            _ => {
                if self.is_rewritten {
                    // Of pages that could not be written the kernel may believe that they were: they are read anew.
                    let _ = file::sync(opened.0);
                    file::forget_cached(opened.0);
                }
                Found::File(opened)
            }
        }
    }

    fn write_at(&mut self, file: &mut Opened, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        file::write_at(file.0, offset, bytes)
    }

    fn sync(&mut self, file: &mut Opened) -> Result<(), Errno> {
        file::sync(file.0)
    }
}

/// What came of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Somebody has it.
    InUse,
    /// There was nothing to do.
    Empty,
    /// Its files have all that they were promised.
    Recovered(Recovered),
    /// Records are damaged that had survived: the log stays as it is.
    Damaged,
    /// It was made on another machine: the log stays as it is.
    OtherMachine,
    /// It cannot be read: it stays as it is.
    Unreadable(Unreadable),
}

/// What was put into files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Records; 0 where the kernel had them still.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files.
    pub files: u64,
    /// Records of files that do not count on the log any more.
    pub gone_records: u64,
    /// Files that were not found, or that somebody else has written to since: unless they were given up, the log keeps what it has.
    pub unsure: Vec<Identity>,
}

/// How a log is recovered.
#[derive(Clone, Debug, Default)]
pub struct Ways {
    /// Where else to look for files than where they were.
    pub search: Vec<PathBuf>,
    /// Files that others have written to since get what the log has for them, too.
    pub overwrites: bool,
    /// What is not sure is given up: files that were not found or that others wrote to, damaged records and all that follow, logs of
    /// other machines.
    pub gives_up: bool,
}

/// Puts into files what a log has for them, and empties it. Can be done again, also after it was interrupted.
///
/// # Errors
/// What the device or a file says.
pub fn recover(path: &Path, ways: &Ways) -> Result<Outcome, Errno> {
    // It is read twice, and by the kernel ahead.
    let file = match Locked::open_by(path, 0) {
        Ok(file) => file,
        Err(Errno::EAGAIN) => return Ok(Outcome::InUse),
        Err(errno) => return Err(errno),
    };
    let outcome = recover_locked(&file, ways);
    // Direct writes would have to look for what is cached.
    file::forget_cached(file.0.0);
    outcome
}

/// Until when a log's files were written to by its program alone, ns since 1970.
fn written_until_ns(checkpoint: &Checkpoint, newest_ns: u64, is_same_boot: bool) -> u64 {
    match checkpoint.failure {
        // The kernel has what the program wrote last, which no record has: nothing is put over it. A loss of power would have taken that.
        Some(Failure { until_ns: 0, .. } | Failure { has_newer: true, .. }) if is_same_boot => 0,
        Some(Failure { until_ns: until_ns @ 1.., .. }) => until_ns,
        _ => checkpoint.time_ns.max(newest_ns).saturating_add(MAX_SILENCE_NS),
    }
}

fn recover_locked(file: &Locked, ways: &Ways) -> Result<Outcome, Errno> {
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
    // As long as the kernel runs that ran then, it has had all that was written since: that is only to be synced.
    let is_same_boot = checkpoint.boot == boot();
    let survey = recovery.survey()?;
    if survey.end.is_damaged && !is_same_boot && !ways.gives_up {
        return Ok(Outcome::Damaged);
    }
    // Unless a file could not be written: the kernel may have dropped what it had for it.
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
        // What is written to the files from here on is no other's.
        note(clock::wall_ns() + MAX_SILENCE_NS)?;
        let done = recovery.replay(&mut files, &mut found);
        if done.is_err() {
            // It can be done again, as long as nobody else writes to them.
            note(clock::wall_ns())?;
        }
        let done = done?;
        (recovered.records, recovered.bytes, recovered.gone_records) =
            (done.records, done.bytes, done.gone_records);
    }
    for (identity, file) in found {
        match file {
            Found::File(file) => {
                mark::take(file.0)?;
                recovered.files += 1;
            }
            Found::Unsure => recovered.unsure.push(identity),
            Found::Gone => {}
        }
    }
    if recovered.unsure.is_empty() || ways.gives_up {
        let (_, superblock, checkpoint) = recovery.emptied(survey.end, clock::wall_ns());
        // Over the one before the last.
        let checkpoint = Checkpoint { serial: serial + 1, ..checkpoint };
        write_checkpoint(&device, &superblock, &checkpoint)?;
    }
    Ok(Outcome::Recovered(recovered))
}

/// Whether somebody has a log.
#[must_use]
pub fn is_in_use(path: &Path) -> bool {
    matches!(Locked::open(path), Err(Errno::EAGAIN))
}

/// What a log has.
#[derive(Clone, Debug)]
pub struct Contents {
    /// What it is.
    pub superblock: Superblock,
    /// How far it is.
    pub checkpoint: Checkpoint,
    /// Somebody appends to it.
    pub is_in_use: bool,
    /// It lies where nothing survives power loss: it emulates DAX.
    pub is_emulated: bool,
    /// Its records.
    pub survey: Survey,
    /// See [`End::is_damaged`](crate::recovery::End::is_damaged); of one that somebody appends to nobody can say.
    pub is_damaged: bool,
}

/// Looks at a log, also at one that is appended to meanwhile: every record is checked.
///
/// # Errors
/// Why it cannot be read.
pub fn look(path: &Path) -> Result<Contents, Unreadable> {
    let is_in_use = is_in_use(path);
    // What bears a log's name may be a FIFO, which is not waited for.
    let flags = libc::O_RDONLY | libc::O_DIRECT | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let opened = Opened(file::open(&c_path(path)?, flags, 0)?);
    if !file::status(opened.0)?.is_regular() {
        return Err(Unreadable::No(NoLog::Foreign));
    }
    let recovery = Recovery::open(LogFile::new(opened.0))?;
    let (superblock, checkpoint) = (*recovery.superblock(), *recovery.checkpoint());
    let survey = recovery.survey()?;
    let is_damaged = survey.end.is_damaged && !is_in_use;
    let is_emulated = !mark::is_fit(opened.0);
    Ok(Contents { superblock, checkpoint, is_in_use, is_emulated, survey, is_damaged })
}

/// Removes a log that nobody uses and of which nothing is needed, or of which all is given up.
///
/// # Errors
/// EAGAIN: somebody uses it; ENOTEMPTY: something is needed; else what the kernel says.
pub fn remove(path: &Path, gives_up: bool) -> Result<(), Errno> {
    let locked = Locked::open(path)?;
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

    /// A directory of a test's own.
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
        let opened = |path: &Path| Locked::open_by(path, 0).map(drop);
        for (mode, wanted) in
            [(0o600, Ok(())), (0o644, Ok(())), (0o620, Err(Errno::EPERM)), (0o602, Err(Errno::EPERM))]
        {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("its owner");
            assert_eq!(opened(&path), wanted, "{mode:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its owner");
        // A mark names any path: nobody is waited for, and no device hears of it.
        let link = directory.join("link");
        symlink(&path, &link).expect("a link");
        assert_eq!(opened(&link), Err(Errno::EPERM));
        assert_eq!(opened(Path::new("/dev/null")), Err(Errno::EPERM));
        let fifo = directory.join("fifo");
        // SAFETY: a terminated path.
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
        // The keeper did not say until when the program alone wrote to it.
        assert_eq!(written_until_ns(&failed(0, false), 200, true), 0);
        assert_eq!(written_until_ns(&failed(0, false), 200, false), late);
        assert_eq!(written_until_ns(&failed(150, false), 200, true), 150);
        assert_eq!(written_until_ns(&failed(150, false), 200, false), 150);
        // What is newer the kernel has, unless the power was lost.
        assert_eq!(written_until_ns(&failed(150, true), 200, true), 0);
        assert_eq!(written_until_ns(&failed(150, true), 200, false), 150);
        assert_eq!(written_until_ns(&base, 200, false), late);
    }
}
