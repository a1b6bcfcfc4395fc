//! The keeper's side of one program's connection, with a log that has the only copy.
//!
//! ```text
//! adopted ─► logged ── DROP, CLOSED, end ──────────────────────────► settled: the kernel's again
//!              │ another process opens it                              ▲
//!              └─► stopped: no appends ─► none in progress ─► withdrawn ┘ DROP, CLOSED
//!                                             └─ failed ─► given up: the log keeps the records for a recovery
//! ```
//!
//! A file that cannot be written at a digest stays logged, and its records stay. It is given up once another process
//! waits for it, or the program has ended: from then on no file is logged, so that the log keeps what it has.

mod digested;
mod end;

use self::digested::Digested;
use super::client::{answer, answer_done, handle_requests, serve_by, slot};
use crate::logs::may_have;
use crate::mapped::digest::{self, DigestError};
use crate::mapped::file::{Backing, LogMemory, MappedLog, supports_file};
use crate::mapped::service_memory::give_name;
use crate::mark::{self, Owner};
use crate::messages::{
    ADOPT, ADOPT_MEMORY, ADOPTED, BYE, CLOSED, DIGEST, DROP, LOG, MAKE_ROOM, REFUSED, WELCOME_MAPPED,
};
use crate::state::{FAILED, FileSlot, GIVEN_UP, MAX_FILES, SETTLED, STATE_BYTES, State, TOUCHED, UNRELIABLE};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::{Duration, Instant};
use uncopy_mapped::digest::{Batch, Digester, Limits};
use uncopy_mapped::layout::Lsn;
use uncopy_mapped::mapping::Mapping;
use uncopy_mapped::memory::Persistent as _;
use uncopy_mapped::table::{Entry, FileId};
use uncopy_sys::background::was_notified;
use uncopy_sys::descriptor::{OwnFd, OwnRef};
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::JointMemory;
use uncopy_sys::memory_file::LogName;
use uncopy_sys::seqpacket::{self, MAX_WORDS, ReceivedMessage};
use uncopy_sys::{clock, file, file_lock, wait};

/// Interval at which committed records are digested.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of bytes after which files that only grow are digested: a part of the processor's cache. (Redis, SET 256 KiB on
/// tmpfs, per operation: the keeper's copy takes 27 µs with 4 MiB, 32 with 16 MiB, 56 to 88 with half of a log of 1 GiB.)
const GROWTH_BYTES: u64 = 4 << 20;
/// Maximum length of the blocks reserved ahead, bytes.
const MAX_RESERVED_BYTES: u64 = 64 << 20;
/// Interval at which an append in progress is waited for, milliseconds.
const STOPPED_MS: i32 = 1;
/// Timeout after which an idle program is checked for life, milliseconds.
const IDLE_MS: i32 = 10_000;
/// Upper bound for the lag of the kernel's coarse clock, from which file time stamps come, in
/// [dozes](clock::sleep_10_ms) (one tick of `CONFIG_HZ` 100 is 10 ms).
const TICK_DOZES: usize = 2;

/// State of a file that the keeper holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The program appends records for the file.
    Logged,
    /// The program appends no more; an append may be in progress.
    Stopped,
    /// The file is the kernel's again, which the program does not know yet.
    Withdrawn,
    /// The file lacks bytes of its records, and others may open it.
    GivenUp(Errno),
}

#[derive(Debug)]
struct Held {
    fd: OwnFd,
    file: FileId,
    inode: (u64, u64),
    /// Path by which a recovery finds the file.
    path: Option<Vec<u8>>,
    stage: Stage,
    /// Whether the program has closed the file.
    is_closed: bool,
    /// Size of the file at the last digest, with its records, bytes.
    size: u64,
}

#[derive(Debug)]
struct Client<'a> {
    state: &'static State,
    log: &'a MappedLog,
    digester: Digester<&'a Mapping>,
    memory: LogMemory<'a>,
    owner: Owner,
    files: [Option<Held>; MAX_FILES],
    /// Set once the log must keep its records for a recovery. No file is adopted any more.
    kept: Option<Errno>,
    /// Whether the program ends and waits for this thread to finish.
    waits: bool,
    /// Whether the service ends. Slots stay as they are: a program that still runs must not append.
    is_ending: bool,
    /// Time of the last [`Self::digest`].
    digested_at: Instant,
}

/// Serves a program that has asked for a log: gives it `log`, and holds its files until the program has ended.
/// Returns whether the program waits for the end.
pub fn serve(link: &OwnFd, bell: &OwnFd, log: &MappedLog) -> bool {
    // SAFETY: `Client::keep` consumes the client, the only user of `JointMemory::as_ref`'s reference.
    unsafe { serve_by(link, begin(link, log), |client, watched| client.keep(link, bell, watched)) }
}

fn begin<'a>(link: &OwnFd, log: &'a MappedLog) -> Result<(Client<'a>, JointMemory), Errno> {
    let digester = Digester::open(log.memory()).map_err(|_| Errno(libc::EUCLEAN))?;
    let superblock = *digester.reader().superblock();
    let (joint, state_fd) = JointMemory::make(c"uncopy-log", STATE_BYTES)?;
    let is_persistent = u64::from(log.backing() == Backing::Persistent);
    let welcome = [WELCOME_MAPPED, superblock.log, log.memory().len_bytes() as u64, is_persistent];
    let sent = seqpacket::send_with(link, &welcome, Some(&state_fd))
        .and_then(|()| seqpacket::send_with(link, &[LOG], Some(log.fd())));
    if let Err(errno) = sent {
        // SAFETY: `JointMemory::as_ref` was not called, so nothing refers to the memory.
        unsafe { joint.unmap() };
        return Err(errno);
    }
    let client = Client {
        // SAFETY: all fields are atomics, for which any bytes are valid; the caller unmaps after the client is
        // gone.
        state: unsafe { joint.as_ref() },
        log,
        digester,
        memory: LogMemory::new(log.memory(), &superblock, log.service()),
        owner: Owner { log: superblock.log, path: log.path.clone() },
        files: [const { None }; MAX_FILES],
        kept: None,
        waits: false,
        is_ending: false,
        digested_at: Instant::now(),
    };
    client.state.digest_bytes.store(GROWTH_BYTES, Release);
    Ok((client, joint))
}

impl Client<'_> {
    fn held(&self) -> impl Iterator<Item = (usize, &Held)> {
        self.files.iter().enumerate().filter_map(|(slot, held)| held.as_ref().map(|held| (slot, held)))
    }

    /// Returns the slots of held files.
    fn slots(&self, is_wanted: impl Fn(&Held) -> bool) -> Vec<usize> {
        self.held().filter(|(_, held)| is_wanted(held)).map(|(slot, _)| slot).collect()
    }

    const fn known(&self, slot: usize) -> &'static FileSlot {
        &self.state.slots[slot]
    }

    fn timeout_ms(&self) -> i32 {
        match () {
            () if self.held().any(|(_, held)| held.stage == Stage::Stopped) => STOPPED_MS,
            () if self.held().next().is_some() => INTERVAL.as_millis() as i32,
            () => IDLE_MS,
        }
    }

    /// Holds the program's files until the program has ended. Returns whether the program waits for that.
    fn keep(mut self, link: &OwnFd, bell: &OwnFd, watched: Option<&OwnFd>) -> bool {
        let is_dead = || watched.is_some_and(wait::is_ready);
        loop {
            wait::for_any([link, bell].into_iter().chain(watched), self.timeout_ms());
            let is_due = self.digested_at.elapsed() >= INTERVAL;
            // Without the bell, too: it may have failed to ring.
            if was_notified(bell) || is_due {
                self.stop_contended();
            }
            let goes_on = handle_requests(link, |words, message| self.handle(link, words, message));
            if !goes_on || is_dead() {
                break;
            }
            self.withdraw_stopped();
            if is_due {
                // Tried again at the next one, and reported to a request that waits for it.
                let _ = self.digest();
            }
        }
        // A program that still runs sees the end of the connection, which follows, and then knows that nobody else
        // digests its log.
        let waits = self.waits;
        self.end(&is_dead);
        waits
    }

    /// Answers a request. Returns false if the program asks no more, or the answer cannot be delivered.
    fn handle(&mut self, link: &OwnFd, words: &[u64; MAX_WORDS], message: ReceivedMessage) -> bool {
        match (words[0], slot(words, &message), message.fd) {
            (ADOPT_MEMORY, ..) if message.words >= 3 => match self.adopt_memory(words[1], words[2]) {
                Ok((number, file)) => {
                    seqpacket::send_with(link, &[ADOPTED, 0, number as u64], Some(&file)).is_ok()
                }
                Err(errno) => answer(link, &[REFUSED, errno.0 as u64]),
            },
            (ADOPT, Some(slot), Some(fd)) if message.words >= 4 && self.files[slot].is_none() => {
                let file = u16::try_from(words[2]).map(|entry| FileId { entry, incarnation: Lsn(words[3]) });
                let adopted = file.map_err(|_| Refusal::from(Errno::EINVAL));
                match adopted.and_then(|file| self.adopt(slot, fd, file)) {
                    Ok(()) => answer(link, &[ADOPTED, 0]),
                    Err(Refusal { errno, is_of_sync }) => {
                        answer(link, &[REFUSED, errno.0 as u64, u64::from(is_of_sync)])
                    }
                }
            }
            (DROP, Some(slot), _) => answer_done(link, self.drop_file(slot)),
            (CLOSED, Some(slot), _) => {
                if let Some(held) = &mut self.files[slot] {
                    file_lock::release_locks(&held.fd);
                    held.is_closed = true;
                    if matches!(held.stage, Stage::Withdrawn | Stage::GivenUp(_)) {
                        self.release(slot);
                    }
                }
                answer_done(link, Ok(()))
            }
            (MAKE_ROOM, ..) => answer_done(link, self.digest()),
            (BYE, ..) => {
                self.waits = true;
                false
            }
            (DIGEST, ..) => {
                // An error is reported to a request that waits for the digest.
                let _ = self.digest();
                true
            }
            _ => answer(link, &[REFUSED, libc::EPROTO as u64]),
        }
    }

    /// Begins to log a file, which the program has registered as `file`. If that fails, nothing has changed.
    fn adopt(&mut self, slot: usize, fd: OwnFd, file: FileId) -> Result<(), Refusal> {
        let inode = self.check(slot, &fd, file)?;
        file_lock::take_lease(&fd)?;
        let adopted = self.mark(slot, &fd);
        if adopted.is_err() {
            file_lock::release_lease(&fd);
        }
        adopted?;
        let path = mark::path_of(&fd);
        let size = self.known(slot).size.load(Acquire);
        self.files[slot] = Some(Held { fd, file, inode, path, stage: Stage::Logged, is_closed: false, size });
        // The program may have modified the file just now, which a recovery must not take for others' doing.
        self.digester.heartbeat(clock::wall_ns());
        Ok(())
    }

    /// Checks that a file can be logged. Returns its inode.
    fn check(&self, slot: usize, fd: &OwnFd, file: FileId) -> Result<(u64, u64), Errno> {
        let status = file::status(fd)?;
        // A write clears these bits (inode(7)); one to the log would not.
        let is_privileged = status.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        let is_supported = supports_file(fd, self.log.backing() == Backing::Emulated);
        if !status.is_regular() || status.links != 1 || is_privileged || !is_supported {
            return Err(Errno::EINVAL);
        }
        if !file::is_writable(fd)? {
            return Err(Errno(libc::EBADF));
        }
        let is_append = file::flags(fd)? & libc::O_APPEND != 0;
        if is_append != (self.known(slot).is_append.load(Acquire) != 0) {
            return Err(Errno::EINVAL);
        }
        if let Some(errno) = self.kept {
            return Err(errno);
        }
        // Records of an earlier registration of the inode are void: it was forgotten when it left the log.
        let inode = (status.device, status.inode);
        if self.held().any(|(_, held)| held.inode == inode) {
            return Err(Errno::EEXIST);
        }
        match self.digester.reader().entry(file) {
            Entry::Live(identity) if (identity.device, identity.inode) == inode => Ok(inode),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Lets records of the program, whose lanes have the id `holder`, refer to a file of the service.
    fn adopt_memory(&self, inode: u64, holder: u64) -> Result<(usize, OwnFd), Errno> {
        let service = self.log.service();
        let number = service.free_number().ok_or(Errno(libc::ENOSPC))?;
        let name = LogName { inode, holder, log: self.owner.log, number: number as u32 };
        let file = give_name(self.log.directory(), &name)?;
        service.insert(number, &file, inode, self.log.backing() == Backing::Persistent)?;
        Ok((number, file))
    }

    /// Marks a file that this log may have, and clears O_APPEND, without which pwrite(2) writes at its offset.
    fn mark(&self, slot: usize, fd: &OwnFd) -> Result<(), Refusal> {
        // Another log's mark: that log may still hold records to write.
        let is_free = mark::owner_of(fd)
            .is_ok_and(|owner| owner.is_none_or(|owner| owner.log == self.owner.log || !may_have(&owner)));
        if !is_free {
            return Err(Errno::EEXIST.into());
        }
        // Earlier writes of the program become durable, as its next sync will claim without a system call.
        file::sync(fd).map_err(|errno| Refusal { errno, is_of_sync: true })?;
        let marked =
            mark::set(fd, &self.owner).and_then(|()| match self.known(slot).is_append.load(Acquire) {
                0 => Ok(()),
                _ => digest::clear_append(fd),
            });
        marked.map_err(|errno| {
            // The file has no record yet, so the mark can go.
            let _ = mark::remove(fd);
            errno.into()
        })
    }

    /// Returns the end of the records that the program has announced as committed; 0 if it announces none, or died
    /// while it did.
    fn announced(&self) -> Lsn {
        Lsn(self.state.moment().map_or(0, |moment| moment.head))
    }

    /// Settles a file for the program, which asks for it.
    fn drop_file(&mut self, slot: usize) -> Result<(), Errno> {
        let stage = self.files[slot].as_ref().map(|held| held.stage);
        if matches!(stage, Some(Stage::Logged | Stage::Stopped))
            && let Err(error) = self.settle(slot)
        {
            if error.is_of_log() {
                self.abandon_log(error.errno(), Some(slot));
            }
            return Err(error.errno());
        }
        self.release(slot);
        if let Some(Stage::GivenUp(errno)) = stage { Err(errno) } else { Ok(()) }
    }

    /// Writes a file's records to it and gives it back to the kernel.
    fn settle(&mut self, slot: usize) -> Result<(), DigestError> {
        let Some(held) = &self.files[slot] else { return Ok(()) };
        let known = self.known(slot);
        let through = self.announced();
        if !self.log.is_whole() {
            return Err(DigestError::Truncated);
        }
        let is_unlinked = file::status(&held.fd).is_ok_and(|status| status.links == 0);
        if held.is_closed && is_unlinked {
            // Nobody can read the file any more.
            self.digester.forget(held.file);
        } else {
            digest::settle(&held.fd, known, &mut self.digester, &self.memory, held.file, through)?;
        }
        known.flags.fetch_or(SETTLED, AcqRel);
        Ok(())
    }

    /// Releases a file that has left the log, and frees its slot.
    fn release(&mut self, slot: usize) {
        if let Some(held) = self.files[slot].take() {
            file_lock::release_lease(&held.fd);
        }
        if !self.is_ending {
            self.known(slot).clear();
        }
    }

    /// Stops the appends to those files that another process waits to open, or a forked child of the program to use.
    fn stop_contended(&mut self) {
        let is_touched = |slot: usize| self.known(slot).flags.load(Acquire) & TOUCHED != 0;
        let is_contended = |(slot, held): &(usize, &Held)| {
            held.stage == Stage::Logged && (is_touched(*slot) || !file_lock::has_unbroken_lease(&held.fd))
        };
        let contended: Vec<usize> = self.held().filter(is_contended).map(|(slot, _)| slot).collect();
        self.stop(&contended);
        if contended.into_iter().any(|slot| self.known(slot).is_appending()) {
            // The kernel lets the others in after `lease-break-time` (proc(5)), even if the program is stopped
            // in the middle of an append: the file has everything else by then.
            let _ = self.digest();
        }
    }

    fn stop(&mut self, slots: &[usize]) {
        for slot in slots {
            self.known(*slot).stop_appends();
            if let Some(held) = &mut self.files[*slot] {
                held.stage = Stage::Stopped;
            }
        }
    }

    /// Takes stopped files without an append in progress out of the log.
    fn withdraw_stopped(&mut self) {
        let stopped = self.slots(|held| held.stage == Stage::Stopped);
        for slot in stopped {
            if self.known(slot).is_appending() {
                continue;
            }
            match self.settle(slot) {
                Ok(()) => self.withdraw(slot),
                Err(error) => self.abandon_log(error.errno(), Some(slot)),
            }
        }
    }

    /// Lets others open a settled file. The program learns of it at its next call.
    fn withdraw(&mut self, slot: usize) {
        let Some(held) = &mut self.files[slot] else { return };
        held.stage = Stage::Withdrawn;
        file_lock::release_lease(&held.fd);
        if held.is_closed {
            self.release(slot);
        }
    }

    /// Makes the log keep its records for a recovery, because those of `failed` are not in the file, or the log itself
    /// has failed. All other files leave the log.
    fn abandon_log(&mut self, errno: Errno, failed: Option<usize>) {
        let logged = self.slots(|held| held.stage == Stage::Logged);
        self.stop(&logged);
        let mut given_up: Vec<(usize, Errno)> = failed.into_iter().map(|slot| (slot, errno)).collect();
        for slot in self.slots(|held| held.stage == Stage::Stopped) {
            // An append in progress is waited for later.
            if failed == Some(slot) || self.known(slot).is_appending() {
                continue;
            }
            match self.settle(slot) {
                Ok(()) => self.withdraw(slot),
                Err(error) => given_up.push((slot, error.errno())),
            }
        }
        self.give_up(errno, given_up);
    }

    /// Leaves the records of files to a recovery, and the files to any process. The checkpoint has the time until which
    /// only the keeper wrote to them.
    fn give_up(&mut self, errno: Errno, files: Vec<(usize, Errno)>) {
        if self.kept.is_none() {
            self.kept = Some(errno);
            if self.log.is_whole() {
                self.digester.note_failure(errno.0.cast_unsigned(), clock::wall_ns());
                // Later writes by other processes must have later time stamps than the checkpoint.
                (0..TICK_DOZES).for_each(|_| clock::sleep_10_ms());
            }
        }
        for (slot, errno) in files {
            let known = self.known(slot);
            known.error.store(errno.0.cast_unsigned(), Release);
            known.flags.fetch_or(UNRELIABLE | FAILED | GIVEN_UP, AcqRel);
            let Some(held) = &mut self.files[slot] else { continue };
            held.stage = Stage::GivenUp(errno);
            file_lock::release_lease(&held.fd);
            if held.is_closed {
                self.release(slot);
            }
        }
    }

    /// Writes everything that is committed to the files, and retires it. Returns the first error; the records are
    /// kept then.
    fn digest(&mut self) -> Result<(), Errno> {
        self.digested_at = Instant::now();
        self.reserve_ahead();
        // Files that others have renamed or unlinked, which a recovery would not find.
        let moved = self.slots(|held| {
            held.stage == Stage::Logged && !held.is_closed && mark::path_of(&held.fd) != held.path
        });
        self.stop(&moved);
        let closed = self.slots(|held| held.is_closed && held.stage == Stage::Logged);
        self.stop(&closed);
        let mut result = Ok(());
        for slot in closed {
            match self.settle(slot) {
                Ok(()) => self.release(slot),
                Err(error) => {
                    result = result.and(Err(error.errno()));
                    // Retried at the next digest.
                    self.files[slot].iter_mut().for_each(|held| held.stage = Stage::Logged);
                }
            }
        }
        // Without files, the log has void records at most.
        if self.held().next().is_none() { result } else { result.and(self.digest_all()) }
    }

    /// Reserves blocks behind the ends of files that grow, four times as many as the program has appended since the
    /// last digest. The program would wait for each reservation, and for the digest that holds the file's lock meanwhile
    /// (measured on tmpfs: 1.4 µs per page).
    fn reserve_ahead(&mut self) {
        let state = self.state;
        for (slot, held) in self.files.iter_mut().enumerate() {
            let Some(held) = held.as_mut().filter(|held| held.stage == Stage::Logged && !held.is_closed)
            else {
                continue;
            };
            let known = &state.slots[slot];
            let size = known.size.load(Acquire);
            let grown_bytes = size.saturating_sub(core::mem::replace(&mut held.size, size));
            let mut reserved = known.reserved();
            if reserved.end < size {
                reserved = size..size;
            }
            let end = size.saturating_add((4 * grown_bytes).min(MAX_RESERVED_BYTES));
            // Without room the program finds out itself, before it appends.
            if reserved.end < end && file::reserve(&held.fd, reserved.end, end - reserved.end).is_ok() {
                known.set_reserved(&(reserved.start..end));
            }
        }
    }

    fn digest_all(&mut self) -> Result<(), Errno> {
        if let Some(errno) = self.kept {
            return Err(errno);
        }
        let result = self.digest_committed();
        if let Err(error) = result
            && error.is_of_log()
        {
            self.abandon_log(error.errno(), None);
        }
        result.map_err(DigestError::errno)
    }

    fn digest_committed(&mut self) -> Result<(), DigestError> {
        if !self.log.is_whole() {
            return Err(DigestError::Truncated);
        }
        let announced = self.announced();
        self.digester.heartbeat(clock::wall_ns());
        let ring_bytes = self.digester.reader().superblock().ring_bytes() as u64;
        let from = self.digester.reader().checkpoint().tail;
        let mut digested = Digested::default();
        // The program may append meanwhile, which the next digest takes. Without an announcement, one lap is enough.
        while self.digester.reader().checkpoint().tail.since(from) < ring_bytes {
            let batch = self.digester.plan(&self.memory, Limits::default())?;
            if batch.is_empty() {
                digest::check_end(batch.through, announced)?;
                break;
            }
            digested.add(self.carry_out(&batch)?);
            self.digester.retire(&batch, clock::wall_ns());
            if announced != Lsn(0) && batch.through >= announced {
                break;
            }
        }
        self.state.digest_bytes.store(if digested.grows() { GROWTH_BYTES } else { 0 }, Release);
        Ok(())
    }

    /// Carries out the plans of a batch, and syncs the files. Returns the first error.
    fn carry_out(&mut self, batch: &Batch) -> Result<Digested, Errno> {
        let file_of = |file: FileId| -> Option<(OwnRef, &FileSlot)> {
            let (slot, held) = self.held().find(|(_, held)| held.file == file)?;
            Some((held.fd.reference(), self.known(slot)))
        };
        let (mut result, mut digested) = (Ok(()), Digested::default());
        let mut written = Vec::new();
        for plan in &batch.files {
            // A file that is not held, though its records count: no recovery will find its mark.
            let carried_out = file_of(plan.file).ok_or(Errno(libc::EBADF)).and_then(|(fd, known)| {
                let size = file::status(fd)?.len_bytes;
                digest::carry_out(fd, plan, &self.memory)?;
                digest::restore_time(fd, known);
                Ok((fd, Digested::of(plan, size)))
            });
            match carried_out {
                Ok((fd, of_file)) => {
                    digested.add(of_file);
                    written.push(fd);
                }
                Err(errno) => result = result.and(Err(errno)),
            }
        }
        written.into_iter().fold(result, |result, fd| result.and(file::sync_data(fd))).map(|()| digested)
    }
}

/// Reason why a file is not logged.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    errno: Errno,
    /// Whether a sync of the file has failed, which the program must report as its own.
    is_of_sync: bool,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self { errno, is_of_sync: false }
    }
}

#[cfg(test)]
mod tests;
