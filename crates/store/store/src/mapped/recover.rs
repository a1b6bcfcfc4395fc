//! Mapped logs that no process uses: recovery after a crash, inspection, removal.
//!
//! ```text
//! look up the files ─► write, sync (each batch) ─► retire ─► remove the marks ─► empty
//!      │ not found, or modified by others             ▲
//!      └─► the records stay, and are written to the other files only
//! ```
//!
//! A file that was recovered is forgotten, then loses its mark: it gets no bytes again while the log is kept for others.

use super::digest::{carry_out, forget_all, trim};
use super::file::{Backing, LogMemory, MappedLog, Unreadable};
use super::service_memory::remove_names;
use crate::log_files::{
    LockedLog, MAX_SILENCE_NS, OnDisk, Outcome, Recovered, RecoveryOptions, boot, machine,
};
use crate::mark::{self, Owner};
use crate::recovery::{FileLookup, Files as _};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use uncopy_mapped::digest::{Batch, Digester, Limits};
use uncopy_mapped::layout::{Checkpoint, Superblock};
use uncopy_mapped::mapping::Mapping;
use uncopy_mapped::reader::{Damage, Reader};
use uncopy_mapped::recovery::{FileSummary, Recovery};
use uncopy_mapped::table::{FileId, Identity};
use uncopy_sys::descriptor::OwnFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::{clock, file};

/// Returns whether a log may have records for a file that it marked: it exists and is not empty.
#[must_use]
pub fn may_have(owner: &Owner) -> bool {
    let log = match MappedLog::open(&owner.path) {
        Ok(log) => log,
        Err(why) => return why != Unreadable::File(Errno::ENOENT),
    };
    Reader::open(log.memory())
        .map_or(true, |reader| reader.superblock().log == owner.log && reader.checkpoint().process != 0)
}

/// Returns whether another process uses a log.
#[must_use]
pub fn is_in_use(path: &Path) -> bool {
    matches!(LockedLog::open_by(path, 0), Err(Errno::EAGAIN))
}

/// Returns whether a log is still in use although its program has ended: its keeper is about to empty it, or to end.
#[must_use]
pub fn is_being_released(path: &Path) -> bool {
    let Ok((log, true)) = MappedLog::open_to_read(path) else { return false };
    let Ok(reader) = Reader::open(log.memory()) else { return false };
    let process = reader.checkpoint().process;
    process != 0 && !process_runs(process)
}

/// Whether a process runs: it exists and has not ended as a zombie (proc(5), `/proc/pid/stat`).
fn process_runs(process: u64) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = status.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Description of a mapped log.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The log's superblock.
    pub superblock: Superblock,
    /// The log's checkpoint.
    pub checkpoint: Checkpoint,
    /// Whether a process appends to the log.
    pub is_in_use: bool,
    /// Memory behind the log.
    pub backing: Backing,
    /// Damage of acknowledged records; `None` while the log is in use.
    pub damage: Option<Damage>,
    /// Number of records that count.
    pub records: u64,
    /// Bytes of those records.
    pub bytes: u64,
    /// Paths of the files in the log.
    pub files: Vec<PathBuf>,
}

/// Reads a log and checks all records, also while it is being appended to.
///
/// # Errors
/// The reason why the log cannot be read.
pub fn inspect(path: &Path) -> Result<Summary, Unreadable> {
    let (log, is_in_use) = MappedLog::open_to_read(path)?;
    let recovery = Recovery::open(log.memory(), &log.contents()?, boot())?;
    let reader = recovery.reader();
    let (mut records, mut bytes) = (0, 0);
    for file in recovery.summary().values().filter(|file| file.identity.is_some()) {
        records += file.records;
        bytes += file.bytes;
    }
    Ok(Summary {
        superblock: *reader.superblock(),
        checkpoint: *reader.checkpoint(),
        is_in_use,
        backing: log.backing(),
        damage: recovery.damage().filter(|_| !is_in_use),
        records,
        bytes,
        files: reader.files().map(|(_, file)| PathBuf::from(OsString::from_vec(file.path))).collect(),
    })
}

/// Returns the identifier of the log that a path names.
fn log_id(path: &Path) -> Option<u64> {
    u64::from_str_radix(path.file_stem()?.to_str()?, 16).ok()
}

/// Removes an unused log. `gives_up` allows a log that is not empty.
///
/// # Errors
/// EAGAIN if the log is in use; ENOTEMPTY if it is not empty; an error of unlink(2).
pub fn remove(path: &Path, gives_up: bool) -> Result<(), Errno> {
    let log = MappedLog::open(path);
    let is_empty = match &log {
        Ok(log) => Reader::open(log.memory()).is_ok_and(|reader| reader.checkpoint().process == 0),
        Err(Unreadable::File(errno)) => return Err(*errno),
        Err(Unreadable::Log(_)) => false,
    };
    if !is_empty && !gives_up {
        return Err(Errno(libc::ENOTEMPTY));
    }
    std::fs::remove_file(path).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
    if let Some(log) = log_id(path) {
        remove_names(path.parent().unwrap_or_else(|| Path::new("/")), log);
    }
    Ok(())
}

/// Writes a log's records to their files, and empties the log. Can be repeated, also after an interruption.
///
/// # Errors
/// An error of the log or of a file.
pub fn recover(path: &Path, ways: &RecoveryOptions) -> Result<Outcome, Errno> {
    match MappedLog::open(path) {
        Ok(log) => recover_log(&log, ways),
        Err(Unreadable::File(Errno::EAGAIN)) => Ok(Outcome::InUse),
        Err(Unreadable::File(errno)) => Err(errno),
        Err(Unreadable::Log(why)) => Ok(Outcome::UnreadableMapped(why)),
    }
}

fn recover_log(log: &MappedLog, ways: &RecoveryOptions) -> Result<Outcome, Errno> {
    let opened =
        log.contents().and_then(|memory| Ok((memory, Recovery::open(log.memory(), &memory, boot())?)));
    let (memory, mut recovery) = match opened {
        Ok(opened) => opened,
        Err(why) => return Ok(Outcome::UnreadableMapped(why)),
    };
    let (superblock, checkpoint) = (*recovery.reader().superblock(), *recovery.reader().checkpoint());
    if checkpoint.process == 0 {
        return Ok(Outcome::Empty);
    }
    if superblock.machine != machine() && !ways.gives_up {
        return Ok(Outcome::OtherMachine);
    }
    if recovery.damage().is_some() {
        if !ways.gives_up {
            return Ok(Outcome::Damaged);
        }
        recovery.give_up_damaged();
    }
    let found = Found::look_up(&recovery, ways);
    let mut recovered = found.summary();
    let has_all = recovered.unresolved.is_empty();
    let is_emptied = has_all || ways.gives_up;
    if has_all {
        // The time until which the recovery itself may write to the files.
        recovery.note_time(clock::wall_ns().saturating_add(MAX_SILENCE_NS));
    }
    if let Err(errno) = found.write(&mut recovery, &memory, is_emptied) {
        if has_all {
            // A repeated recovery then overwrites only files that nobody else has written to.
            recovery.note_time(clock::wall_ns());
        }
        return Err(errno);
    }
    // A second user of the memory, which changes the table of files only.
    let mut digester = Digester::open(log.memory()).map_err(|_| Errno(libc::EUCLEAN))?;
    for (id, file) in found.files() {
        trim(file);
        file::sync(file)?;
        digester.forget(id);
        mark::remove(file)?;
        recovered.files += 1;
    }
    if is_emptied {
        forget_all(log.memory());
        // Not reached: all records are retired, and damage was given up.
        let log_id = recovery.reader().superblock().log;
        recovery.finish().map_err(|_| Errno(libc::EUCLEAN))?;
        remove_names(log.directory(), log_id);
    }
    if log.backing() == Backing::Unsuitable {
        // A copy of a log elsewhere: flushed lines are not persistent there.
        file::sync(log.fd())?;
    }
    Ok(Outcome::Recovered(recovered))
}

/// Files of a log's records, looked up in the file system.
struct Found(BTreeMap<FileId, (FileSummary, FileLookup<OwnFd>)>);

impl Found {
    fn look_up(recovery: &Recovery<&Mapping>, ways: &RecoveryOptions) -> Self {
        let reader = recovery.reader();
        let (log, checkpoint) = (reader.superblock().log, reader.checkpoint());
        let is_same_boot = checkpoint.boot == boot();
        // The time of a failure is when others could begin to modify the file.
        let silence_ns = if checkpoint.failure == 0 { MAX_SILENCE_NS } else { 0 };
        let until_ns = (!ways.overwrites).then(|| checkpoint.time_ns.saturating_add(silence_ns));
        let is_rewritten = is_same_boot && checkpoint.failure != 0;
        let mut with_records = OnDisk { is_same_boot, is_rewritten, search: &ways.search, until_ns };
        let mut without = OnDisk { is_same_boot, is_rewritten: false, search: &ways.search, until_ns: None };
        let mut found = BTreeMap::new();
        for (id, summary) in recovery.summary() {
            let file = summary.identity.as_ref().map(|identity| with_records.find(identity, log));
            found.insert(id, (summary, file.unwrap_or(FileLookup::Gone)));
        }
        let has_records = |(_, other): &(FileId, Identity)| {
            let files = found.values().filter_map(|(summary, _)| summary.identity.as_ref());
            files.into_iter().any(|file| (file.device, file.inode) == (other.device, other.inode))
        };
        let others: Vec<_> = reader.files().filter(|file| !has_records(file)).collect();
        for (id, identity) in others {
            // A file without records has all bytes, and only loses its mark.
            let file = match without.find(&identity, log) {
                FileLookup::Unresolved => FileLookup::Gone,
                file => file,
            };
            let identity = Some(identity);
            found.insert(id, (FileSummary { identity, records: 0, bytes: 0, referenced_bytes: 0 }, file));
        }
        Self(found)
    }

    fn summary(&self) -> Recovered {
        let mut recovered = Recovered::default();
        for (summary, file) in self.0.values() {
            match (file, &summary.identity) {
                (FileLookup::File(_), _) => {
                    recovered.records += summary.records;
                    recovered.bytes += summary.bytes;
                }
                (FileLookup::Unresolved, Some(identity)) => recovered.unresolved.push(identity.clone()),
                _ => recovered.gone_records += summary.records,
            }
        }
        recovered
    }

    fn files(&self) -> impl Iterator<Item = (FileId, &OwnFd)> {
        self.0.iter().filter_map(|(id, (_, file))| match file {
            FileLookup::File(fd) => Some((*id, fd)),
            _ => None,
        })
    }

    /// Writes all records to the files that were found. `retires`: nothing of the log is needed afterwards.
    fn write(
        &self,
        recovery: &mut Recovery<&Mapping>,
        memory: &LogMemory<'_>,
        retires: bool,
    ) -> Result<(), Errno> {
        let mut from = recovery.reader().checkpoint().tail;
        loop {
            let batch = recovery.plan_from(memory, from, Limits::default());
            // Not reached: damage was found when the log was opened.
            let Some(batch) = batch.map_err(|_| Errno(libc::EUCLEAN))? else { return Ok(()) };
            self.write_batch(&batch, memory)?;
            from = batch.through;
            if retires {
                recovery.retire(&batch);
            }
        }
    }

    fn write_batch(&self, batch: &Batch, memory: &LogMemory<'_>) -> Result<(), Errno> {
        let mut written = Vec::new();
        for plan in &batch.files {
            if let Some((_, FileLookup::File(fd))) = self.0.get(&plan.file) {
                carry_out(fd, plan, memory)?;
                written.push(fd);
            }
        }
        written.into_iter().try_for_each(file::sync_data)
    }
}

#[cfg(test)]
mod tests;
