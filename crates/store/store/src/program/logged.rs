//! Logged files of this process.

pub mod mapped;

use super::descriptors::{self, CountedWrite, Kind};
use super::session::Session;
use super::{Synced, answer, count_leave, forks, inherited_session, is_forced, session, touch, trial};
use crate::capture::Capture;
use crate::layout::Identity;
use crate::lock;
use crate::mark;
use crate::messages::{CLOSED, DONE, DROP, MAKE_ROOM, REPAIR};
use crate::state::{FAILED, FileSlot, MAX_FILES, RETRY_DUE, SYNCING, TOUCHED, UNRELIABLE, UNSYNCED};
use core::ffi::c_int;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use mapped::{MappedFile, MappedWrite};
use std::sync::{Mutex, MutexGuard};
use uncopy_mapped::table::FileId;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::file::{self, Status};
use uncopy_sys::file_lock;
use uncopy_sys::iovec::Part;
use uncopy_sys::{clock, mem};

/// State of a logged file that its syncs use.
#[derive(Debug)]
pub struct Logged {
    status: Status,
    identity: Identity,
    /// Number of syncs that the log has answered.
    syncs: u64,
    /// True if logging does not pay, or is to be measured anew.
    is_due: bool,
    /// Writes that are being synced; between syncs, memory for the next ones.
    taken: Capture,
}

impl Logged {
    pub fn new(status: Status, identity: Identity) -> Self {
        Self { status, identity, syncs: 0, is_due: false, taken: Capture::NONE }
    }

    const fn inode(&self) -> (u64, u64) {
        (self.status.device, self.status.inode)
    }

    fn is_same(&self, now: &Status) -> bool {
        let known = &self.status;
        (known.mode, known.user, known.group, known.links) == (now.mode, now.user, now.group, now.links)
    }
}

/// Slot for a logged file. Lock order: `logged`, `mapped`, `capture`.
#[derive(Debug)]
pub struct Tracked {
    /// Number of open descriptors; 0: the slot is free.
    descriptors: AtomicU32,
    /// Whether the file was opened with O_APPEND.
    is_append: AtomicBool,
    /// Number of the last fork while the file was logged; 0: none. Children of that fork may still set
    /// `TOUCHED` in this slot.
    forked_at: AtomicU64,
    /// Duration of the writes since the last sync, nanoseconds.
    write_ns: AtomicU64,
    /// Locked while the file is synced or leaves the log.
    logged: Mutex<Option<Logged>>,
    /// Locked while the file is written to; in a log beside the page cache.
    capture: Mutex<Capture>,
    /// Locked while the file is written to; in a mapped log.
    mapped: Mutex<Option<MappedFile>>,
    /// Registration of a closed file, which the keeper has to settle before the slot is used again.
    closing: Mutex<Option<FileId>>,
    /// Device and inode of the file that is or was in a mapped log.
    device: AtomicU64,
    inode: AtomicU64,
}

static FILES: [Tracked; MAX_FILES] = [const { Tracked::none() }; MAX_FILES];

static LOGGED_FILES: AtomicU32 = AtomicU32::new(0);

/// Returns the number of logged files.
#[inline]
pub fn logged_files() -> u32 {
    LOGGED_FILES.load(Relaxed)
}

pub fn file_at(slot: usize) -> &'static Tracked {
    &FILES[slot % MAX_FILES]
}

/// Place in a file that a call reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The file offset; for a write with O_APPEND, the end of the file.
    Position,
    /// Byte offset in the file.
    Offset(u64),
}

/// A write in progress.
#[derive(Debug)]
pub enum OngoingWrite {
    /// Write to a file that is neither logged nor a candidate.
    Plain,
    /// Write to a candidate, which is counted.
    Counted(CountedWrite),
    /// Write to a logged file, which is captured.
    Logged(LoggedWrite),
    /// Write to a file in a mapped log: [`mapped::write_mapped`].
    Mapped(MappedWrite),
}

/// A write in progress to a logged file.
#[derive(Debug)]
pub struct LoggedWrite {
    fd: ProgramFd,
    file: &'static Tracked,
    capture: MutexGuard<'static, Capture>,
    begun_ns: u64,
}

/// Begins a write. `fd` must stay open until the write ends.
#[must_use]
pub fn begin_write(fd: ProgramFd) -> OngoingWrite {
    loop {
        match descriptors::kind(fd) {
            Kind::Candidate => {
                if let Some(counted) = descriptors::begin_write(fd) {
                    return OngoingWrite::Counted(counted);
                }
            }
            Kind::Inherited(_) if inherited_session().is_some_and(Session::is_mapped) => {
                mapped::inherited::settle_inherited(fd);
                return OngoingWrite::Plain;
            }
            Kind::Inherited(slot) => {
                touch(slot, 0);
                return OngoingWrite::Plain;
            }
            Kind::Logged(slot) if session().is_some_and(Session::is_mapped) => {
                if let Some(write) = mapped::begin_write(fd, slot) {
                    return OngoingWrite::Mapped(write);
                }
            }
            Kind::Logged(slot) => {
                let file = file_at(slot);
                let capture = lock(&file.capture);
                if descriptors::kind(fd) == Kind::Logged(slot) {
                    if capture.is_empty()
                        && let Some(session) = session()
                    {
                        // Set before the bytes are in the file, for the keeper in case this process dies in
                        // between.
                        session.slot(slot).flags.fetch_or(UNSYNCED, AcqRel);
                    }
                    return OngoingWrite::Logged(LoggedWrite {
                        fd,
                        file,
                        capture,
                        begun_ns: clock::now_ns(),
                    });
                }
            }
            _ => return OngoingWrite::Plain,
        }
    }
}

impl LoggedWrite {
    /// Captures the first `len_bytes` bytes of `parts`, which were written.
    ///
    /// # Safety
    /// `parts` hold at least `len_bytes` readable bytes.
    pub unsafe fn finish(mut self, at: Place, parts: &[Part], len_bytes: usize) {
        let offset = match at {
            // Linux appends whatever the offset is (pwrite(2), "Bugs").
            Place::Offset(_) if self.file.is_append.load(Relaxed) => None,
            Place::Offset(offset) => Some(offset),
            Place::Position => file::position(self.fd).ok().and_then(|end| end.checked_sub(len_bytes as u64)),
        };
        match offset {
            // SAFETY: this function's caller promises that `len_bytes` bytes of `parts` can be read.
            Some(offset) => unsafe { self.capture.add(offset, parts, len_bytes) },
            None => self.capture.mark_incomplete(),
        }
        self.file.write_ns.fetch_add(clock::now_ns() - self.begun_ns, Relaxed);
    }
}

impl Tracked {
    const fn none() -> Self {
        Self {
            descriptors: AtomicU32::new(0),
            is_append: AtomicBool::new(false),
            forked_at: AtomicU64::new(0),
            write_ns: AtomicU64::new(0),
            logged: Mutex::new(None),
            capture: Mutex::new(Capture::NONE),
            mapped: Mutex::new(None),
            closing: Mutex::new(None),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }

    /// Returns whether the slot is free.
    pub fn is_free(&self) -> bool {
        self.descriptors.load(Acquire) == 0 && !forks::has_children(self.forked_at.load(Acquire))
    }

    pub fn lock(&self) -> MutexGuard<'_, Option<Logged>> {
        lock(&self.logged)
    }

    /// Occupies the slot with a file that has one descriptor.
    pub fn begin(&self, is_append: bool) {
        self.is_append.store(is_append, Relaxed);
        self.forked_at.store(0, Relaxed);
        self.write_ns.store(0, Relaxed);
        self.descriptors.store(1, Release);
        LOGGED_FILES.fetch_add(1, AcqRel);
    }

    /// Frees the slot and sets the kind of its descriptors to `to`. The caller holds `logged`.
    pub fn end(&self, slot: usize, to: Kind) {
        let mut capture = lock(&self.capture);
        for fd in descriptors::known().filter(|fd| descriptors::kind(*fd) == Kind::Logged(slot)) {
            descriptors::set(fd, to);
        }
        *capture = Capture::NONE;
        self.descriptors.store(0, Release);
        LOGGED_FILES.fetch_sub(1, AcqRel);
    }

    pub fn note_forked(&self) {
        self.forked_at.store(forks::count(), Release);
    }

    fn slot(&self) -> usize {
        let offset_bytes = core::ptr::from_ref(self) as usize - FILES.as_ptr() as usize;
        offset_bytes / size_of::<Self>()
    }

    /// Syncs the file; `None`: it is not logged any more.
    pub fn sync(&self, fd: ProgramFd, real: &impl Fn() -> c_int) -> Option<Synced> {
        if session().is_some_and(Session::is_mapped) {
            return self.sync_in_log(fd).or_else(|| self.leave_by_mapped_sync(fd, real));
        }
        let plain = |result| Some(Synced::plain(result));
        let begun_ns = clock::now_ns();
        let mut inner = self.lock();
        if descriptors::kind(fd) != Kind::Logged(self.slot()) {
            return None;
        }
        let (session, logged) = (session()?, inner.as_mut()?);
        let state = session.slot(self.slot());
        let status = match file::status(fd) {
            Ok(status) if (status.device, status.inode) == logged.inode() => status,
            // The descriptor was closed without a hook, and names another file now.
            _ => {
                descriptors::set(fd, Kind::Unknown);
                return plain(real());
            }
        };
        let is_lost =
            |state: &FileSlot| state.flags.load(Acquire) & (UNRELIABLE | TOUCHED) != 0 || session.has_ended();
        let is_broken = session.beside().is_none_or(crate::log::Log::is_broken);
        if !logged.is_same(&status) || is_broken || is_lost(state) {
            return plain(self.leave_by_sync(fd, inner, real));
        }
        if state.flags.load(Acquire) & FAILED != 0 {
            return match self.sync_failed(session, logged) {
                Some(logged_bytes) => Some(Synced { result: 0, logged_bytes: Some(logged_bytes) }),
                None => plain(self.leave_by_sync(fd, inner, real)),
            };
        }
        if logged.is_due {
            return plain(self.leave_by_sync(fd, inner, real));
        }
        core::mem::swap(&mut *lock(&self.capture), &mut logged.taken);
        if logged.taken.is_empty() {
            // No record is older than the pages that the file system writes now.
            let result = sync_by_file_system(state, real);
            if result == 0 {
                self.note_synced(state);
            }
            return plain(result);
        }
        let is_done =
            !logged.taken.is_incomplete() && log(session, &logged.identity, &mut logged.taken) == Ok(true);
        if !is_done || is_lost(state) {
            return plain(self.leave_by_sync(fd, inner, real));
        }
        let bytes = logged.taken.len_bytes();
        logged.syncs += 1;
        logged.taken.clear();
        self.note_synced(state);
        session.tell_if_digest_is_due();
        let now_ns = clock::now_ns();
        let took_ns = now_ns - begun_ns + self.write_ns.swap(0, Relaxed);
        logged.is_due = !is_forced() && trial::note_logged(bytes, took_ns, now_ns);
        Some(Synced { result: 0, logged_bytes: Some(bytes) })
    }

    /// Clears `UNSYNCED` after a sync, unless the file was written to since.
    fn note_synced(&self, state: &FileSlot) {
        // A writer that holds the lock has set the flag.
        if self.capture.try_lock().is_ok_and(|capture| capture.is_empty()) {
            // A write that begins here waits for the lock and then sets the flag again.
            state.flags.fetch_and(!UNSYNCED, AcqRel);
        }
    }

    /// Answers a sync while the file system cannot sync the file. The log holds what was promised and takes new
    /// records. Returns the bytes that it made durable; `None`: the log is full or a write was not captured, so
    /// the program must see the failure.
    fn sync_failed(&self, session: &Session, logged: &mut Logged) -> Option<usize> {
        static IS_REPORTED: AtomicBool = AtomicBool::new(false);
        if !IS_REPORTED.swap(true, Relaxed) {
            let path = logged.identity.path.escape_ascii();
            mem::write_stderr(format_args!(
                "uncopy: {path} cannot be synced; what its syncs were promised is kept in the log: see 'uncopy log ls'\n"
            ));
        }
        // Holding the lock keeps writers out during the repair.
        let mut capture = lock(&self.capture);
        let state = session.slot(self.slot());
        let bytes = capture.len_bytes();
        if capture.is_incomplete()
            || !capture.is_empty() && log(session, &logged.identity, &mut capture) != Ok(true)
        {
            return None;
        }
        capture.clear();
        state.flags.fetch_and(!UNSYNCED, AcqRel);
        logged.syncs += 1;
        if state.flags.load(Acquire) & RETRY_DUE != 0 {
            // The flags show the result of the repair.
            let _ = session.request(&[REPAIR, self.slot() as u64]);
        }
        // The keeper may have released the file, or a child touched it, meanwhile.
        let flags = state.flags.load(Acquire);
        (flags & (UNRELIABLE | TOUCHED) == 0 && !session.has_ended()).then_some(bytes)
    }

    /// Falls back to the file system: syncs the file, takes it out of the log, returns the sync's result.
    fn leave_by_sync(
        &self,
        fd: ProgramFd,
        mut inner: MutexGuard<'_, Option<Logged>>,
        real: &impl Fn() -> c_int,
    ) -> c_int {
        let result = match session() {
            Some(session) => sync_by_file_system(session.slot(self.slot()), real),
            None => real(),
        };
        let errno = uncopy_sys::errno::get();
        let taken = self.leave_under(fd, &mut inner, true);
        if result != 0 {
            uncopy_sys::errno::set(errno);
            return result;
        }
        answer(taken)
    }

    /// Takes the file out of the log. `again`: it may be logged again later.
    pub fn stop_logging(&self, fd: ProgramFd, again: bool) {
        let mut inner = self.lock();
        if descriptors::kind(fd) != Kind::Logged(self.slot()) {
            return;
        }
        if session().is_some_and(Session::is_mapped) {
            // After an error the file is still in the log, and the program's next write or sync fails.
            let _ = self.leave_mapped(fd, &mut inner, again);
        } else if let Err(errno) = self.leave_under(fd, &mut inner, again) {
            descriptors::set(fd, Kind::Failed(errno.0));
        }
    }

    fn leave_under(&self, fd: ProgramFd, inner: &mut Option<Logged>, again: bool) -> Result<(), Errno> {
        let slot = self.slot();
        let known = session().map(|session| session.slot(slot));
        let is_withdrawn = known.is_some_and(|known| known.flags.load(Acquire) & UNRELIABLE != 0);
        let error = known.map_or(0, |known| known.error.swap(0, AcqRel));
        let taken = self.ask_to_drop(fd);
        note_left(inner.take());
        // A candidate's writes are counted per descriptor, so it must have only one.
        let stays_candidate = again && taken.is_ok() && self.descriptors.load(Acquire) == 1;
        self.end(slot, if stays_candidate { Kind::Candidate } else { Kind::Refused });
        if is_withdrawn {
            // The keeper withdraws a file that another process opens, and that one may still be waiting (open(2),
            // "O_NONBLOCK").
            descriptors::pause(fd, clock::now_ms());
        }
        if error == 0 { taken } else { Err(Errno(error as i32)) }
    }

    /// Has the keeper sync the file and remove its mark; on an error the records are kept.
    fn ask_to_drop(&self, fd: ProgramFd) -> Result<(), Errno> {
        let slot = self.slot();
        let ask = |is_quiescent| {
            let session = session().ok_or(Errno(libc::EPIPE))?;
            session.request(&[DROP, slot as u64, u64::from(is_quiescent)])
        };
        let result = |errno: u64| if errno == 0 { Ok(()) } else { Err(Errno(errno as i32)) };
        if let Ok([DONE, errno, ..]) = ask(false) {
            return result(errno);
        }
        // The keeper can write the records again while nobody else writes to the file.
        let _capture = lock(&self.capture);
        if let Ok([DONE, errno, ..]) = ask(true) {
            return result(errno);
        }
        // The keeper has ended.
        let taken = self.sync_and_unmark(fd);
        file_lock::release_lease(fd);
        taken
    }

    /// Syncs the file and removes its mark in the keeper's place. A file that lacks bytes of its records keeps
    /// the mark, by which a recovery finds it.
    pub fn sync_and_unmark(&self, fd: ProgramFd) -> Result<(), Errno> {
        let slot = self.slot();
        let known = session().map(|session| session.slot(slot));
        let has_failed = known.is_some_and(|known| known.flags.load(Acquire) & FAILED != 0);
        if has_failed { Err(Errno(libc::EIO)) } else { mark::sync_and_remove(fd) }
    }

    /// Adds a descriptor of the file.
    pub fn duplicate(&self, from: ProgramFd, to: ProgramFd) {
        let _capture = lock(&self.capture);
        if let kind @ Kind::Logged(_) = descriptors::kind(from) {
            self.descriptors.fetch_add(1, AcqRel);
            descriptors::duplicate(from, to, kind);
        } else {
            [from, to].into_iter().for_each(|fd| descriptors::set(fd, Kind::Refused));
        }
    }

    /// Closes one of the file's descriptors.
    pub fn close(&self, fd: ProgramFd) {
        let mut inner = self.lock();
        let slot = self.slot();
        if descriptors::kind(fd) != Kind::Logged(slot) {
            return descriptors::set(fd, Kind::Unknown);
        }
        if self.descriptors.load(Acquire) > 1 {
            self.descriptors.fetch_sub(1, AcqRel);
            return descriptors::set(fd, Kind::Unknown);
        }
        self.close_mapped();
        // Closing the file says nothing about whether its trial has failed.
        note_left(inner.take().map(|logged| Logged { is_due: false, ..logged }));
        self.end(slot, Kind::Unknown);
        let is_told = session().is_some_and(|session| session.request(&[CLOSED, slot as u64]).is_ok());
        if !is_told && !session().is_some_and(Session::is_mapped) {
            // Without a keeper nobody else removes the mark. The program did not ask for this sync's error.
            let _ = self.sync_and_unmark(fd);
            file_lock::release_lease(fd);
        }
    }
}

/// Counts a file that left the log, and notes that its records may still be there. Leaving because a trial
/// ended is not a loss.
fn note_left(logged: Option<Logged>) {
    count_leave(logged.as_ref().map_or(0, |logged| if logged.is_due { u64::MAX } else { logged.syncs }));
    if let (Some(session), Some(logged)) = (session(), logged) {
        session.note_unlogged(logged.inode());
    }
}

/// Syncs a logged file by the file system, and flags a failure: the error is reported once per open file, so
/// the keeper does not see it.
fn sync_by_file_system(state: &FileSlot, real: &impl Fn() -> c_int) -> c_int {
    state.flags.fetch_or(SYNCING, AcqRel);
    let result = real();
    if result != 0 {
        state.flags.fetch_or(FAILED, AcqRel);
    }
    state.flags.fetch_and(!SYNCING, AcqRel);
    result
}

/// Appends the captured writes to the log and flushes it. Returns false if the log is full.
fn log(session: &Session, file: &Identity, written: &mut Capture) -> Result<bool, Errno> {
    let log = session.beside().ok_or(Errno::EINVAL)?;
    let mut append = || log.append(clock::wall_ns(), file, written);
    let mut sequence = append()?;
    if sequence.is_none() {
        session.request(&[MAKE_ROOM])?;
        sequence = append()?;
    }
    let Some(sequence) = sequence else { return Ok(false) };
    log.flush(sequence)?;
    Ok(true)
}
