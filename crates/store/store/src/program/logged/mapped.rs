//! Files in a mapped log: their writes, syncs and sizes.
//!
//! A write of the program is a record in the log, and nothing else. The kernel does not see it until the keeper has
//! digested the file, so the file's offset and size are kept in the shared slot. Whatever is not an append, a sync, or
//! a question about offset and size takes the file out of the log first.

pub mod inherited;
pub mod reads;
pub mod status;

use super::{FILES, Place, Tracked, file_at, note_left};
use crate::layout::Identity;
use crate::lock;
use crate::mapped::digest::{self, DigestError};
use crate::mapped::file::supports_file;
use crate::messages::{DONE, DROP, MAKE_ROOM};
use crate::program::descriptors::{self, Kind};
use crate::program::mapped_log::MappedLog;
use crate::program::received::Received;
use crate::program::session::{MAX_WAIT_MS, Session};
use crate::program::{Synced, is_forced, session, trial};
use crate::state::{FAILED, FileSlot, HELD, SETTLED, UNRELIABLE};
use core::ffi::c_int;
use core::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::MutexGuard;
use uncopy_mapped::layout::Lsn;
use uncopy_mapped::parts::{AppendError, Part as Bytes};
use uncopy_mapped::table::FileId;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::{self, Errno};
use uncopy_sys::file::{self, Status};
use uncopy_sys::iovec::Part;
use uncopy_sys::readable::is_readable;
use uncopy_sys::{clock, mem, wait};

/// Maximum number of bytes of one record. A longer write is several records, of which a crash may lose the last ones.
const MAX_PIECE_BYTES: usize = 4 << 20;
/// Length of the blocks reserved ahead of an append, bytes.
const RESERVED_BYTES: u64 = 4 << 20;
/// Maximum number of bytes that the kernel writes in one call (`MAX_RW_COUNT`, read(2)).
const MAX_CALL_BYTES: usize = 0x7fff_f000;
/// Maximum number of buffers of a record.
const MAX_PARTS: usize = 512;
/// Whether a file of this process has ever been in a mapped log.
static HAS_MAPPED: AtomicBool = AtomicBool::new(false);

/// Number of files of this process that have left a mapped log.
static DEPARTURES: AtomicU64 = AtomicU64::new(0);

/// Returns the number of files of this process that have left a mapped log before they were closed.
#[must_use]
pub fn mapped_departures() -> u64 {
    DEPARTURES.load(Relaxed)
}

/// Whether files of this process may be in a mapped log. Hooks read this single byte.
#[inline(always)]
#[must_use]
pub fn has_mapped_files() -> bool {
    HAS_MAPPED.load(Relaxed)
}

/// A file in the mapped log.
#[derive(Clone, Debug)]
pub struct MappedFile {
    id: FileId,
    status: Status,
    /// Range of the file, bytes, whose blocks are reserved.
    reserved: core::ops::Range<u64>,
    /// Bytes appended since the last sync.
    unsynced_bytes: usize,
    /// End of the file's last record.
    end: Lsn,
    /// Number of reads that have waited for a digest.
    waits: u32,
}

impl MappedFile {
    pub const fn new(id: FileId, status: Status) -> Self {
        Self { id, status, reserved: 0..0, unsynced_bytes: 0, end: Lsn(0), waits: 0 }
    }

    /// Whether a descriptor with this status still names the file. One that was closed without a hook does not, and names
    /// an unknown file from here on.
    fn is_named_by(&self, fd: ProgramFd, now: &Status) -> bool {
        let is_it = (self.status.device, self.status.inode) == (now.device, now.inode);
        if !is_it {
            descriptors::set(fd, Kind::Unknown);
        }
        is_it
    }

    fn is_same(&self, now: &Status) -> bool {
        let known = &self.status;
        (known.mode, known.user, known.group, known.links) == (now.mode, now.user, now.group, now.links)
    }

    /// Reserves blocks for a write, so that digesting it cannot fail for lack of room. The keeper does this ahead for
    /// files that grow.
    fn reserve(&mut self, fd: ProgramFd, slot: &FileSlot, offset: u64, end: u64) -> Result<(), Errno> {
        let is_in = |reserved: &core::ops::Range<u64>| reserved.start <= offset && end <= reserved.end;
        if is_in(&self.reserved) || is_in(&slot.reserved()) {
            return Ok(());
        }
        let size = slot.size.load(Acquire);
        let until = if end > size { end.saturating_add(RESERVED_BYTES).min(i64::MAX as u64) } else { end };
        let reserved = file::reserve(fd, offset, until - offset);
        let until = match reserved {
            // The room may suffice for this write.
            Err(_) if until > end => file::reserve(fd, offset, end - offset).map(|()| end)?,
            reserved => reserved.map(|()| until)?,
        };
        let start = if self.reserved.end == offset { self.reserved.start } else { offset };
        self.reserved = start..until;
        Ok(())
    }
}

/// Whether a file can be in a mapped log.
pub fn is_eligible(log: &MappedLog, fd: ProgramFd, status: &Status) -> bool {
    // The kernel clears these bits at a write.
    let is_plain = status.mode & (libc::S_ISUID | libc::S_ISGID) == 0;
    let is_supported = supports_file(fd, !log.is_persistent());
    is_plain && is_supported && mem::file_size_limit().is_none()
}

/// A file that is about to enter the mapped log. Writes to it wait until this is gone.
#[derive(Debug)]
pub struct EnteringFile<'a> {
    log: &'a MappedLog,
    file: MappedFile,
    is_done: bool,
    mapped: MutexGuard<'a, Option<MappedFile>>,
}

impl Drop for EnteringFile<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.log.leave(self.file.id);
        }
    }
}

impl EnteringFile<'_> {
    /// Returns what the keeper is told of the registration.
    pub fn words(&self) -> [u64; 2] {
        [u64::from(self.file.id.entry), self.file.id.incarnation.0]
    }

    /// Ends the entry after the keeper has agreed: nobody else has the file, and no write is in progress.
    pub fn finish(&mut self, fd: ProgramFd, slot: &FileSlot) {
        self.is_done = true;
        let (now, position) = (file::status(fd), file::position(fd));
        slot.size.store(now.map_or(self.file.status.len_bytes, |now| now.len_bytes), Release);
        slot.position.store(position.unwrap_or(0), Release);
        *self.mapped = Some(self.file.clone());
    }
}

impl Tracked {
    /// Whether the file in this slot of a mapped log is, or was last, the one with this device and inode.
    fn has_had(&self, (device, inode): (u64, u64)) -> bool {
        self.inode.load(Acquire) == inode && self.device.load(Acquire) == device
    }

    /// Prepares for a file to enter the mapped log; `None`: it cannot.
    pub(in crate::program) fn enter_mapped<'a>(
        &'a self,
        log: &'a MappedLog,
        fd: ProgramFd,
        slot: &FileSlot,
        status: &Status,
        identity: &Identity,
    ) -> Option<EnteringFile<'a>> {
        let mapped = lock(&self.mapped);
        // Before the kernel's file offset is read: an lseek that comes later waits.
        HAS_MAPPED.store(true, Release);
        if let Some(id) = lock(&self.closing).take() {
            // The keeper has settled the slot's last file.
            log.leave(id);
        }
        let is_append = file::flags(fd).ok()? & libc::O_APPEND != 0;
        let file = MappedFile::new(log.register(identity)?, *status);
        slot.size.store(status.len_bytes, Release);
        slot.is_append.store(u32::from(is_append), Release);
        self.device.store(status.device, Release);
        self.inode.store(status.inode, Release);
        Some(EnteringFile { log, file, is_done: false, mapped })
    }
}

/// Result of a write to a file in the mapped log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// Number of bytes written: all of them, or fewer if the log became full meanwhile.
    Written(usize),
    /// The log has no room before the next digest.
    Full,
    /// The kernel makes this write, which has no bytes, or is to another file.
    Kernel,
    /// The file must leave the log before the write.
    Leave,
    /// The file's device fails.
    Failed(Errno),
}

/// A write in progress to a file in the mapped log.
#[derive(Debug)]
pub struct MappedWrite {
    fd: ProgramFd,
    slot: usize,
    mapped: MutexGuard<'static, Option<MappedFile>>,
    begun_ns: u64,
    referenced_bytes: usize,
}

/// Begins a write to a file in the mapped log; `None`: it has left the log.
pub fn begin_write(fd: ProgramFd, slot: usize) -> Option<MappedWrite> {
    let mapped = lock(&file_at(slot).mapped);
    let is_in_log = descriptors::kind(fd) == Kind::Logged(slot) && mapped.is_some();
    is_in_log.then(|| MappedWrite { fd, slot, mapped, begun_ns: clock::now_ns(), referenced_bytes: 0 })
}

/// Calls `each` with consecutive pieces of `parts` that fit into one record, until it fails. Returns the number of bytes
/// of the pieces before, and the failure.
fn for_pieces<E>(
    parts: &[Part],
    max_bytes: usize,
    mut each: impl FnMut(usize, &[Part]) -> Result<(), E>,
) -> (usize, Option<E>) {
    let (mut piece, mut piece_bytes, mut done_bytes) = (Vec::with_capacity(parts.len().min(MAX_PARTS)), 0, 0);
    let mut rest = parts.iter().copied().filter(|part| part.len_bytes > 0);
    let mut next = rest.next();
    while let Some(part) = next {
        let len_bytes = part.len_bytes.min(max_bytes - piece_bytes);
        piece.push(Part { len_bytes, ..part });
        piece_bytes += len_bytes;
        next = if len_bytes < part.len_bytes {
            Some(Part { address: part.address + len_bytes, len_bytes: part.len_bytes - len_bytes })
        } else {
            rest.next()
        };
        if piece_bytes == max_bytes || piece.len() == MAX_PARTS || next.is_none() {
            if let Err(failure) = each(done_bytes, &piece) {
                return (done_bytes, Some(failure));
            }
            done_bytes += piece_bytes;
            piece_bytes = 0;
            piece.clear();
        }
    }
    (done_bytes, None)
}

impl MappedWrite {
    /// Returns the number of bytes that the records refer to, after [`MappedWrite::append`].
    #[must_use]
    pub const fn referenced_bytes(&self) -> usize {
        self.referenced_bytes
    }

    /// Appends the write to the log, without a system call that a signal could interrupt. Records refer to what was
    /// `received`.
    pub fn append(&mut self, at: Place, parts: &[Part], received: Option<&dyn Received>) -> Appended {
        let (Some(session), Some(mapped)) = (session(), self.mapped.as_mut()) else { return Appended::Leave };
        let Some(log) = session.mapped() else { return Appended::Leave };
        let len_bytes = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.len_bytes));
        let Some(len_bytes) = len_bytes.filter(|sum| *sum <= MAX_CALL_BYTES) else { return Appended::Leave };
        // The kernel refuses a negative offset, also with O_APPEND.
        let is_negative = matches!(at, Place::Offset(offset) if offset > i64::MAX as u64);
        if len_bytes == 0 || is_negative {
            return Appended::Kernel;
        }
        match file::status(self.fd) {
            Ok(now) if !mapped.is_named_by(self.fd, &now) => return Appended::Kernel,
            Ok(now) if mapped.is_same(&now) => {}
            _ => return Appended::Leave,
        }
        if session.has_lost_keeper() {
            return Appended::Leave;
        }
        let slot = session.slot(self.slot);
        if slot.flags.load(Acquire) & FAILED != 0 {
            return Appended::Failed(Errno(slot.error.load(Acquire) as i32));
        }
        let size = slot.size.load(Acquire);
        let is_append = slot.is_append.load(Acquire) != 0;
        let offset = match at {
            // Linux appends whatever the offset is (pwrite(2), "Bugs").
            _ if is_append => size,
            Place::Offset(offset) => offset,
            Place::Position => slot.position.load(Acquire),
        };
        let end = offset.checked_add(len_bytes as u64).filter(|end| *end <= i64::MAX as u64);
        // Blocks are reserved behind the end: a hole there would not be one (lseek(2), SEEK_HOLE).
        let Some(end) = end.filter(|_| offset <= size) else { return Appended::Leave };
        let can_read = |part: &Part| log.has(*part) || is_readable(part.address, part.len_bytes);
        if !parts.iter().all(can_read) || mapped.reserve(self.fd, slot, offset, end).is_err() {
            return Appended::Leave;
        }
        let max_bytes = MAX_PIECE_BYTES.min(log.max_record_bytes() / 2);
        if !log.has_room(len_bytes) {
            return Appended::Full;
        }
        let mut target = Target {
            session,
            log,
            slot,
            id: mapped.id,
            moves: at == Place::Position,
            received,
            referenced_bytes: 0,
            end: mapped.end,
        };
        let (written, failure) = for_pieces(parts, max_bytes, |done_bytes, piece| {
            target.append(offset + done_bytes as u64, piece)
        });
        mapped.unsynced_bytes += written;
        self.referenced_bytes = target.referenced_bytes;
        mapped.end = target.end;
        match failure {
            Some(NotAppended::Full) if written == 0 => Appended::Full,
            Some(NotAppended::Refused) if written == 0 => Appended::Leave,
            _ => {
                file_at(self.slot).write_ns.fetch_add(clock::now_ns() - self.begun_ns, Relaxed);
                Appended::Written(written)
            }
        }
    }
}

/// Destination of the pieces of a write.
struct Target<'a> {
    session: &'a Session,
    log: &'a MappedLog,
    slot: &'a FileSlot,
    id: FileId,
    /// Whether the write moves the file offset.
    moves: bool,
    received: Option<&'a dyn Received>,
    referenced_bytes: usize,
    /// End of the last record.
    end: Lsn,
}

/// Reason why a record was not appended.
enum NotAppended {
    Full,
    Refused,
}

impl Target<'_> {
    /// Appends a record. The caller has found the bytes to be readable.
    fn append(&mut self, offset: u64, piece: &[Part]) -> Result<(), NotAppended> {
        let mut held = Vec::new();
        let mut as_received = |part: &Part| {
            let found = self.log.refer(self.session, self.received?, *part)?;
            let reference = found.reference;
            held.push(found);
            Some(Bytes::Reference(reference))
        };
        // SAFETY: the kernel has just read a word of each page of each part. Parts in the log's memory are views of the
        // engine, which do not change before the record is retired.
        let as_bytes = |part: &Part| unsafe { self.log.part(*part) };
        let bytes: Vec<_> =
            piece.iter().map(|part| as_received(part).unwrap_or_else(|| as_bytes(part))).collect();
        let referenced = bytes.iter().map(|part| match part {
            Bytes::Reference(reference) => reference.len_bytes as usize,
            Bytes::Bytes(_) => 0,
        });
        let referenced_bytes: usize = referenced.sum();
        let append = self.slot.begin_append().ok_or(NotAppended::Refused)?;
        match self.log.append(self.session.state, self.id, offset, &bytes, held) {
            Ok(end) => self.end = end,
            Err(AppendError::Full) => return Err(NotAppended::Full),
            Err(_) => return Err(NotAppended::Refused),
        }
        let end = offset + piece.iter().map(|part| part.len_bytes).sum::<usize>() as u64;
        self.slot.modified_ns.store(clock::coarse_wall_ns(), Release);
        self.slot.size.fetch_max(end, AcqRel);
        if self.moves {
            self.slot.position.store(end, Release);
        }
        drop(append);
        self.referenced_bytes += referenced_bytes;
        self.session.tell_if_digest_is_due();
        Ok(())
    }
}

/// Number of times that a write asks the keeper for room before the file leaves the log.
const MAX_DIGESTS: u32 = 2;

/// Result of a write to a file in the mapped log: see [`write_mapped`].
#[derive(Clone, Copy, Debug)]
pub struct MappedResult {
    /// Return value of the write; -1: `errno` is set.
    pub written: isize,
    /// Whether the bytes went to the log, and not to the kernel.
    pub is_in_log: bool,
}

/// Writes `parts` to a file in the mapped log. If it has to leave, `real` makes the write.
pub fn write_mapped(
    fd: ProgramFd,
    at: Place,
    parts: &[Part],
    real: &dyn Fn(&[Part]) -> isize,
) -> MappedResult {
    let by_kernel = |written| MappedResult { written, is_in_log: false };
    let mut digests = 0;
    loop {
        let appended = match super::begin_write(fd) {
            super::OngoingWrite::Mapped(mut write) => write.append(at, parts, None),
            super::OngoingWrite::Counted(counted) => {
                let written = real(parts);
                counted.note_result(written);
                return by_kernel(written);
            }
            _ => Appended::Kernel,
        };
        match appended {
            Appended::Written(len_bytes) => {
                return MappedResult { written: len_bytes as isize, is_in_log: true };
            }
            Appended::Kernel => return by_kernel(real(parts)),
            Appended::Failed(why) => {
                errno::set(why.0);
                return by_kernel(-1);
            }
            Appended::Full if digests < MAX_DIGESTS => {
                digests += 1;
                // Without a keeper the file leaves the log at the next attempt.
                let _ = session().map(|session| session.request(&[MAKE_ROOM]));
            }
            Appended::Full | Appended::Leave => {
                if let Err(why) = leave(fd) {
                    errno::set(why.0);
                    return by_kernel(-1);
                }
            }
        }
    }
}

/// Takes a file out of the mapped log; it may be logged again.
fn leave(fd: ProgramFd) -> Result<(), Errno> {
    let Kind::Logged(slot) = descriptors::kind(fd) else { return Ok(()) };
    file_at(slot).leave_if_logged(fd).unwrap_or(Ok(()))
}

impl Tracked {
    /// Syncs a file in the mapped log, whose records are durable already; `None`: it has to leave the log, or its device
    /// fails.
    pub(in crate::program) fn sync_in_log(&self, fd: ProgramFd) -> Option<Synced> {
        let begun_ns = clock::now_ns();
        let mut inner = self.lock();
        let (session, logged) = (session()?, inner.as_mut()?);
        let is_usable = session.slot(self.slot()).is_usable();
        let is_logged = descriptors::kind(fd) == Kind::Logged(self.slot());
        if !is_logged || !is_usable || session.has_lost_keeper() || logged.is_due {
            return None;
        }
        let bytes =
            lock(&self.mapped).as_mut().map_or(0, |mapped| core::mem::take(&mut mapped.unsynced_bytes));
        logged.syncs += 1;
        if bytes > 0 {
            let now_ns = clock::now_ns();
            let took_ns = now_ns - begun_ns + self.write_ns.swap(0, Relaxed);
            logged.is_due = !is_forced() && trial::note_logged(bytes, took_ns, now_ns);
        }
        Some(Synced { result: 0, logged_bytes: Some(bytes) })
    }

    /// Syncs a file in the mapped log: takes it out of the log, or reports that its device fails; `None`: it is not in
    /// the log any more, or can be synced there.
    pub(super) fn leave_by_mapped_sync(&self, fd: ProgramFd, real: &impl Fn() -> c_int) -> Option<Synced> {
        match self.leave_if_logged(fd)? {
            Ok(()) => Some(Synced::plain(real())),
            Err(why) => {
                errno::set(why.0);
                Some(Synced::plain(-1))
            }
        }
    }

    /// Takes the file out of the mapped log, so that it may be logged again; `None`: it is not in the log any more.
    fn leave_if_logged(&self, fd: ProgramFd) -> Option<Result<(), Errno>> {
        let mut inner = self.lock();
        (descriptors::kind(fd) == Kind::Logged(self.slot())).then(|| self.leave_mapped(fd, &mut inner, true))
    }

    /// Takes the file out of the mapped log: the kernel has all of it then. After an error the file stays in the log.
    pub(in crate::program) fn leave_mapped(
        &self,
        fd: ProgramFd,
        inner: &mut Option<super::Logged>,
        again: bool,
    ) -> Result<(), Errno> {
        let slot = self.slot();
        let (Some(session), mut mapped) = (session(), lock(&self.mapped)) else {
            return Err(Errno(libc::EIO));
        };
        let Some(id) = mapped.as_ref().map(|mapped| mapped.id) else { return Ok(()) };
        let was_withdrawn = session.slot(slot).flags.load(Acquire) & UNRELIABLE != 0;
        match session.request(&[DROP, slot as u64, 0]) {
            Ok([DONE, 0, ..]) => {}
            Ok([DONE, errno, ..]) => return Err(Errno(errno as i32)),
            _ => {
                settle_alone(session, fd, slot, id).inspect_err(|why| report_failure(session, slot, *why))?
            }
        }
        DEPARTURES.fetch_add(1, Relaxed);
        note_left(inner.take());
        if let Some(log) = session.mapped() {
            log.leave(id);
        }
        *mapped = None;
        let stays_candidate = again && self.descriptors.load(Acquire) == 1;
        self.end(slot, if stays_candidate { Kind::Candidate } else { Kind::Refused });
        if was_withdrawn {
            descriptors::pause(fd, clock::now_ms());
        }
        Ok(())
    }

    /// Notes that the last descriptor of a file in the mapped log is closed: the keeper settles the file later.
    pub(super) fn close_mapped(&self) {
        if let Some(mapped) = lock(&self.mapped).take() {
            *lock(&self.closing) = Some(mapped.id);
        }
    }
}

fn report_failure(session: &Session, slot: usize, why: Errno) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    let slot = session.slot(slot);
    slot.error.store(why.0 as u32, Release);
    slot.flags.fetch_or(FAILED, AcqRel);
    if !IS_REPORTED.swap(true, AcqRel) {
        mem::write_stderr(format_args!(
            "uncopy: a file cannot be taken out of the log: {why}; its writes are in the log: see 'uncopy log ls'\n"
        ));
    }
}

/// Settles a file without a keeper.
fn settle_alone(session: &Session, fd: ProgramFd, slot: usize, id: FileId) -> Result<(), Errno> {
    // A keeper that still runs, for example because the process ends, settles the file itself before it closes its end
    // of the connection.
    let since_ms = clock::now_ms();
    while session.is_open() {
        if clock::now_ms() - since_ms >= MAX_WAIT_MS {
            return Err(Errno(libc::EIO));
        }
        wait::for_any([session.link()].into_iter(), 100);
    }
    let state = session.slot(slot);
    let flags = state.flags.load(Acquire);
    if flags & HELD == 0 || flags & SETTLED != 0 {
        return Ok(());
    }
    let log = session.mapped().ok_or(Errno(libc::EIO))?;
    state.stop_appends();
    let memory = log.contents();
    digest::settle(fd, state, &mut log.digester()?, &memory, id, log.head()).map_err(DigestError::errno)?;
    state.flags.fetch_or(SETTLED, AcqRel);
    uncopy_sys::file_lock::release_lease(fd);
    Ok(())
}

/// Has the keeper settle a file that the program has closed.
pub fn settle_closed(session: &Session, inode: (u64, u64)) {
    for file in &FILES {
        let slot = file.slot();
        if file.has_had(inode)
            && lock(&file.closing).is_some()
            && session.slot(slot).flags.load(Acquire) & HELD != 0
        {
            // Without a keeper a recovery settles the file.
            let _ = session.request(&[DROP, slot as u64, 0]);
        }
    }
}
