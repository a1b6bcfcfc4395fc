//! The keeper's side of one program's connection.

mod failing;

use crate::device::LogFile;
use crate::layout::{Checkpoint, Failure};
use crate::log::Checkpoints;
use crate::log_files::{EmptyLog, boot};
use crate::logs::may_have;
use crate::mark::{self, Owner};
use crate::messages::{
    ADOPT, ADOPTED, BYE, CLOSED, DIGEST, DONE, DROP, LOG, MAKE_ROOM, REFUSED, REPAIR, UNAVAILABLE, WELCOME,
};
use crate::state::{FAILED, FileSlot, MAX_FILES, STATE_BYTES, SYNCING, State, UNRELIABLE};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use failing::SyncFailure;
use std::time::{Duration, Instant};
use uncopy_sys::background::{was_notified, watch_process};
use uncopy_sys::descriptor::OwnFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::mem::JointMemory;
use uncopy_sys::seqpacket::{self, MAX_WORDS, ReceivedMessage};
use uncopy_sys::{clock, file, file_lock, wait};

/// Interval at which files are synced and their paths checked.
const INTERVAL: Duration = Duration::from_secs(1);
/// Timeout after which an idle program is checked for life, milliseconds.
const IDLE_MS: i32 = 10_000;

#[derive(Debug)]
struct Held {
    fd: OwnFd,
    path: Option<Vec<u8>>,
    inode: (u64, u64),
    is_closed: bool,
    /// Set after a sync of the file failed.
    trouble: Option<SyncFailure>,
}

#[derive(Debug)]
struct Client {
    state: &'static State,
    checkpoints: Checkpoints<'static, LogFile>,
    owner: Owner,
    files: [Option<Held>; MAX_FILES],
    /// Inodes of files that left the log since the last checkpoint, and may still have records there.
    awaiting_checkpoint: Vec<(u64, u64)>,
    /// Set once records are kept for a recovery, for files that lack those bytes and have left the log. From
    /// then on no file is logged.
    given_up: Option<Failure>,
    /// Whether the program ends and waits for this thread to finish.
    waits: bool,
    /// Time of the last [`Self::digest`].
    digested_at: Instant,
}

/// Serves a program that has asked for a log: gives it `empty`, and holds its files until the program has
/// ended. Returns whether the program waits for the end.
pub fn serve(link: &OwnFd, bell: &OwnFd, empty: &EmptyLog) -> bool {
    // SAFETY: `Client::keep` consumes the client, the only user of `JointMemory::as_ref`'s reference.
    unsafe { serve_by(link, begin(link, empty), |client, watched| client.keep(link, bell, watched)) }
}

/// Serves a program by `keep`, whose client uses the memory that they share, or tells the program that there is no log.
/// `keep` gets a descriptor that is ready when the program has ended, and returns whether the program waits for the end.
///
/// # Safety
/// After `keep`, nothing uses a reference from [`JointMemory::as_ref`].
pub unsafe fn serve_by<C>(
    link: &OwnFd,
    begun: Result<(C, JointMemory), Errno>,
    keep: impl FnOnce(C, Option<&OwnFd>) -> bool,
) -> bool {
    match begun {
        Ok((client, joint)) => {
            let watched = seqpacket::peer_process(link).and_then(|process| watch_process(process).ok());
            let waits = keep(client, watched.as_ref());
            // SAFETY: the caller promises that no reference to the memory is used after `keep`.
            unsafe { joint.unmap() };
            waits
        }
        Err(errno) => {
            // A program that this message does not reach sees the connection close.
            answer(link, &[UNAVAILABLE, errno.0 as u64]);
            false
        }
    }
}

/// Answers all waiting requests by `handle`, which returns false to end the connection. Returns false once it has ended or
/// is refused.
pub fn handle_requests(
    link: &OwnFd,
    mut handle: impl FnMut(&[u64; MAX_WORDS], ReceivedMessage) -> bool,
) -> bool {
    let mut words = [0; MAX_WORDS];
    loop {
        let message = match super::receive(link, &mut words) {
            Err(Errno::EAGAIN) => return true,
            Err(Errno::EINTR) => continue,
            Err(errno) => {
                // The program falls back to the kernel on this answer or on the close.
                answer(link, &[REFUSED, errno.0 as u64]);
                return false;
            }
            Ok(message) if message.words == 0 => return false,
            Ok(message) => message,
        };
        if !handle(&words, message) {
            return false;
        }
    }
}

/// Returns the slot of the file that a request is about; `None` if it names none.
pub fn slot(words: &[u64; MAX_WORDS], message: &ReceivedMessage) -> Option<usize> {
    usize::try_from(words[1]).ok().filter(|slot| message.words >= 2 && *slot < MAX_FILES)
}

/// Answers that a request is done, with the error that it met. Returns false as [`answer`] does.
pub fn answer_done(link: &OwnFd, result: Result<(), Errno>) -> bool {
    answer(link, &[DONE, result.err().map_or(0, |errno| errno.0 as u64)])
}

/// Sends an answer. Returns false if it cannot be delivered; the program would wait for it.
pub fn answer(link: &OwnFd, words: &[u64]) -> bool {
    seqpacket::send(link, words).is_ok()
}

fn begin(link: &OwnFd, empty: &EmptyLog) -> Result<(Client, JointMemory), Errno> {
    let EmptyLog { path, file: log, superblock, checkpoint } = empty;
    let (joint, state_fd) = JointMemory::make(c"uncopy-log", STATE_BYTES)?;
    // SAFETY: all fields are atomics, for which any bytes are valid; the caller unmaps after the client is
    // gone.
    let state: &'static State = unsafe { joint.as_ref() };
    let process = u64::from(seqpacket::peer_process(link).unwrap_or(1));
    let (serial, epoch, boot) = (checkpoint.serial + 1, checkpoint.epoch + 1, boot());
    let checkpoint = Checkpoint { serial, epoch, time_ns: clock::wall_ns(), boot, process, ..*checkpoint };
    let begun = Checkpoints::begin(log.device(), *superblock, checkpoint, state).and_then(|checkpoints| {
        let (granule, machine) = (u64::from(superblock.granule_bytes), superblock.machine);
        let welcome = [WELCOME, superblock.log, epoch, superblock.len_bytes, granule, machine];
        seqpacket::send_with(link, &welcome, Some(&state_fd))?;
        seqpacket::send_with(link, &[LOG], Some(log.device().fd))?;
        Ok(checkpoints)
    });
    drop(state_fd);
    let checkpoints = begun.inspect_err(|_| {
        // SAFETY: no client was made, so nothing refers to the state any more.
        unsafe { joint.unmap() };
    })?;
    let files = [const { None }; MAX_FILES];
    let (awaiting_checkpoint, owner) = (Vec::new(), Owner { log: superblock.log, path: path.clone() });
    let client = Client {
        state,
        checkpoints,
        owner,
        files,
        awaiting_checkpoint,
        given_up: None,
        waits: false,
        digested_at: Instant::now(),
    };
    Ok((client, joint))
}

impl Client {
    fn held(&self) -> impl Iterator<Item = (usize, &Held)> {
        self.files.iter().enumerate().filter_map(|(slot, held)| held.as_ref().map(|held| (slot, held)))
    }

    /// Holds the program's files until the program has ended. Returns whether the program waits for that.
    fn keep(mut self, link: &OwnFd, bell: &OwnFd, watched: Option<&OwnFd>) -> bool {
        loop {
            let timeout_ms = if self.held().next().is_some() { INTERVAL.as_millis() as i32 } else { IDLE_MS };
            wait::for_any([link, bell].into_iter().chain(watched), timeout_ms);
            if was_notified(bell) {
                self.withdraw_contended_files();
            }
            let goes_on = handle_requests(link, |words, message| self.handle(link, words, message));
            if !goes_on || watched.is_some_and(wait::is_ready) {
                break;
            }
            if self.digested_at.elapsed() >= INTERVAL {
                self.digest();
            }
        }
        if !self.waits {
            // A program that still runs must see the end before its files lose their marks.
            seqpacket::shut_down(link);
        }
        let waits = self.waits;
        self.end();
        waits
    }

    /// Answers a request. Returns false if the program asks no more, or the answer cannot be delivered.
    fn handle(&mut self, link: &OwnFd, words: &[u64; MAX_WORDS], message: ReceivedMessage) -> bool {
        match (words[0], slot(words, &message), message.fd) {
            (ADOPT, Some(slot), Some(fd)) if self.files[slot].is_none() => match self.adopt(slot, fd) {
                Ok(result) => answer(link, &[ADOPTED, result.err().map_or(0, |errno| errno.0 as u64)]),
                Err(errno) => answer(link, &[REFUSED, errno.0 as u64]),
            },
            (DROP, Some(slot), _) => match self.release(slot, message.words > 2 && words[2] != 0) {
                Ok(result) => {
                    self.drop_file(slot);
                    answer_done(link, result)
                }
                Err(errno) => answer(link, &[REFUSED, errno.0 as u64]),
            },
            (REPAIR, Some(slot), _) => {
                let result = self.repair(slot);
                answer_done(link, result)
            }
            (CLOSED, Some(slot), _) => {
                if let Some(held) = &mut self.files[slot] {
                    file_lock::release_locks(&held.fd);
                    held.is_closed = true;
                }
                answer(link, &[DONE])
            }
            (MAKE_ROOM, ..) => {
                self.digest();
                answer(link, &[DONE])
            }
            (BYE, ..) => {
                self.waits = true;
                false
            }
            (DIGEST, ..) => {
                self.digest();
                true
            }
            _ => answer(link, &[REFUSED, libc::EPROTO as u64]),
        }
    }

    /// Begins to log a file. The inner result is that of the sync that this includes.
    fn adopt(&mut self, slot: usize, fd: OwnFd) -> Result<Result<(), Errno>, Errno> {
        let status = file::status(&fd)?;
        if !status.is_regular() || status.links != 1 || !mark::supports_logging(&fd) {
            return Err(Errno::EINVAL);
        }
        // A recovery writes to marked files, so the program itself must be able to.
        if !file::is_writable(&fd)? {
            return Err(Errno(libc::EBADF));
        }
        if let Some(failure) = self.given_up {
            return Err(Errno(failure.errno));
        }
        let inode = (status.device, status.inode);
        if self.held().any(|(_, held)| held.inode == inode) {
            return Err(Errno::EEXIST);
        }
        if self.awaiting_checkpoint.contains(&inode) {
            // Old records of the file must not be replayed over newer bytes.
            self.digest();
        }
        if self.awaiting_checkpoint.contains(&inode) {
            return Err(Errno::EAGAIN);
        }
        file_lock::take_lease(&fd)?;
        // Another log's mark: that log may still hold records to replay.
        let is_free = mark::owner_of(&fd)
            .is_ok_and(|owner| owner.is_none_or(|owner| owner.log == self.owner.log || !may_have(&owner)));
        if !is_free {
            file_lock::release_lease(&fd);
            return Err(Errno::EEXIST);
        }
        let result = file::sync(&fd);
        if result.is_ok()
            && let Err(errno) = mark::set(&fd, &self.owner)
        {
            // The file has no record yet, so the mark can go.
            let _ = mark::remove(&fd);
            file_lock::release_lease(&fd);
            return Err(errno);
        }
        let path = mark::path_of(&fd);
        let held = Held { fd, path, inode, is_closed: false, trouble: None };
        self.files[slot] = Some(held);
        if result.is_err() {
            self.state.slots[slot].flags.fetch_or(UNRELIABLE, AcqRel);
        }
        Ok(result)
    }

    /// Releases a file that has left the log, and frees its slot.
    fn drop_file(&mut self, slot: usize) {
        if let Some(held) = self.files[slot].take() {
            file_lock::release_lease(&held.fd);
            self.awaiting_checkpoint.push(held.inode);
        }
        let FileSlot { flags, error, .. } = &self.state.slots[slot];
        error.store(0, Release);
        flags.store(0, Release);
    }

    /// Takes a file out of the log without the program, which learns of it by its next sync. Returns the sync's
    /// result.
    fn withdraw(&mut self, slot: usize) -> Result<(), Errno> {
        let Some(held) = &self.files[slot] else { return Ok(()) };
        let is_closed = held.is_closed;
        let known = &self.state.slots[slot];
        let was_withdrawn = known.flags.fetch_or(UNRELIABLE, AcqRel) & UNRELIABLE != 0;
        // A program reports no more changes of a file that it has closed.
        let settled = if was_withdrawn { Ok(()) } else { self.sync_or_repair(slot, is_closed) };
        if let Err(errno) = settled {
            self.give_up(slot, errno);
        }
        if let Some(held) = &self.files[slot] {
            file_lock::release_lease(&held.fd);
        }
        if is_closed {
            self.drop_file(slot);
        }
        settled
    }

    /// Takes out of the log those files that another process waits to open, and again those that were withdrawn
    /// before, whose leases have ended as well.
    fn withdraw_contended_files(&mut self) {
        let contended: Vec<usize> = self
            .held()
            .filter(|(_, held)| !file_lock::has_unbroken_lease(&held.fd))
            .map(|(slot, _)| slot)
            .collect();
        for slot in contended {
            // The slot carries the error to the program.
            let _ = self.withdraw(slot);
        }
    }

    /// Whether the file was withdrawn: the program may no longer rely on its records.
    fn is_withdrawn(&self, slot: usize) -> bool {
        self.state.slots[slot].flags.load(Acquire) & UNRELIABLE != 0
    }

    /// Syncs the logged files and retires the records that are in them.
    fn digest(&mut self) {
        self.digested_at = Instant::now();
        // Files that were renamed include those that were unlinked.
        let closed_or_renamed: Vec<usize> = self
            .held()
            .filter(|(slot, held)| {
                held.is_closed || !self.is_withdrawn(*slot) && mark::path_of(&held.fd) != held.path
            })
            .map(|(slot, _)| slot)
            .collect();
        for slot in closed_or_renamed {
            self.withdraw_or_retry_later(slot);
        }
        let Some(moment) = self.state.moment() else { return };
        let now_ns = clock::wall_ns();
        let before = *self.checkpoints.checkpoint();
        if moment.sequence == before.sequence {
            self.awaiting_checkpoint.clear();
            let modified_ns = |(_, held): (usize, &Held)| file::modified_ns(&held.fd).unwrap_or(0);
            if self.held().map(modified_ns).max().unwrap_or(0) > before.time_ns {
                let _ = self.checkpoints.heartbeat(now_ns);
            }
            return;
        }
        let takes_part = |(slot, _): (usize, &Held)| (!self.is_withdrawn(slot)).then_some(slot);
        let slots: Vec<usize> = self.held().filter_map(takes_part).collect();
        // All files are synced, even after one has failed.
        let unsure = slots.into_iter().filter(|slot| !self.sync_held(*slot)).count();
        if self.given_up.is_some() {
            return;
        }
        if unsure == 0 && self.held().all(|(_, held)| held.trouble.is_none()) {
            if self.checkpoints.retire(moment, now_ns).is_ok() {
                self.awaiting_checkpoint.clear();
            }
        } else {
            // Advances the time until which the files may have been written to.
            let _ = self.checkpoints.heartbeat(now_ns);
        }
    }

    /// Syncs a logged file. Returns whether the file has all that was written to it before.
    fn sync_held(&mut self, slot: usize) -> bool {
        let Some(Held { fd, .. }) = &self.files[slot] else { return true };
        let flags = || self.state.slots[slot].flags.load(Acquire);
        let before = flags();
        let mut result = Ok(());
        if before & FAILED == 0 {
            result = file::sync_data(fd);
        }
        let after = flags();
        if before & FAILED == 0 && result.is_ok() && after & FAILED == 0 {
            // A sync of the program's may have consumed an error of the file.
            return (before | after) & SYNCING == 0;
        }
        self.note_sync_failure(slot, result.err());
        self.request_retry(slot);
        false
    }

    /// Ends the service after the program has ended: the files leave the log, and the log is emptied.
    fn end(mut self) {
        // Other processes may wait for the locks.
        for (_, held) in self.held() {
            file_lock::release_locks(&held.fd);
        }
        for slot in 0..MAX_FILES {
            if let Some(held) = &mut self.files[slot] {
                held.is_closed = true;
                self.release_at_exit(slot);
            }
            self.drop_file(slot);
        }
        if self.given_up.is_none() {
            // A log that cannot be marked as empty is left to `uncopy log recover`.
            let _ = self.checkpoints.end(clock::wall_ns());
        }
    }
}
