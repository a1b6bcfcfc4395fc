//! Files that the file system fails to sync: their records stay in the log until the files have those bytes.
//!
//! ```text
//! sync fails ─► in trouble ─ retried with growing pauses ─► has all bytes: logged as before
//!                   │ another process opens it, or the program ends or writes without a record
//!                   └─► given up: the log keeps the records, and the errno, for a recovery
//! ```
//!
//! A retry writes the bytes of the file's records once more ([`Target::write_again`]). It needs a moment at
//! which no process writes to the file, and a record for everything that the program has written.

use super::{Client, Held};
use crate::keeper::repair::Target;
use crate::layout::Failure;
use crate::mark;
use crate::state::{FAILED, RETRY_DUE, TOUCHED, UNRELIABLE, UNSYNCED};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::{Duration, Instant};
use uncopy_sys::errno::Errno;
use uncopy_sys::{clock, file, file_lock};

/// Pause before a retry, initial and maximum.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Number of attempts to sync a file after its program has ended, before it is left to a recovery.
const LAST_ATTEMPTS: usize = 3;
/// Upper bound for the lag of the kernel's coarse clock, from which file time stamps come, in
/// [dozes](clock::sleep_10_ms) (one tick of `CONFIG_HZ` 100 is 10 ms).
const TICK_DOZES: usize = 2;

/// State of a file whose sync has failed.
#[derive(Clone, Copy, Debug)]
pub struct SyncFailure {
    errno: Errno,
    pause: Duration,
    try_at: Instant,
    /// Whether the file has left the log while its records are kept.
    is_given_up: bool,
}

impl Client {
    /// Returns whether only the program writes to the file, and every write is in a record.
    fn is_fully_recorded(&self, slot: usize) -> bool {
        self.state.slots[slot].flags.load(Acquire) & (UNSYNCED | TOUCHED) == 0
    }

    /// Notes that a file lacks bytes of its records, which stay. `errno`: the error of the keeper's own sync.
    pub(super) fn note_sync_failure(&mut self, slot: usize, errno: Option<Errno>) {
        let Some(held) = &mut self.files[slot] else { return };
        let known = &self.state.slots[slot];
        known.flags.fetch_or(FAILED, AcqRel);
        let is_new = held.trouble.is_none();
        let before = held.trouble.map(|trouble| trouble.errno);
        let errno = errno.or(before).unwrap_or(Errno(libc::EIO));
        let trouble =
            SyncFailure { errno, pause: PAUSE.0, try_at: Instant::now() + PAUSE.0, is_given_up: false };
        let _ = held.trouble.get_or_insert(trouble);
        // A child of the program that has synced the file meanwhile has removed the mark.
        let is_marked = matches!(mark::owner_of(&held.fd), Ok(Some(owner)) if owner.log == self.owner.log);
        if !is_marked {
            known.flags.fetch_or(TOUCHED, AcqRel);
            let _ = mark::set(&held.fd, &self.owner);
        }
        if is_new && self.given_up.is_none() {
            let failure = Failure { errno: errno.0, until_ns: 0, has_newer: false };
            let _ = self.checkpoints.note_failure(failure, clock::wall_ns());
        }
    }

    /// Asks the program to keep writers away from a failed file if a retry is due.
    pub(super) fn request_retry(&self, slot: usize) {
        let trouble = self.files[slot].as_ref().and_then(|held| held.trouble);
        if trouble.is_some_and(|trouble| Instant::now() >= trouble.try_at) {
            self.state.slots[slot].flags.fetch_or(RETRY_DUE, AcqRel);
        }
    }

    /// Retries a failed file to which no process writes. Returns the result.
    pub(super) fn repair(&mut self, slot: usize) -> Result<(), Errno> {
        let flags = &self.state.slots[slot].flags;
        flags.fetch_and(!RETRY_DUE, AcqRel);
        let Some(Held { fd, inode, trouble: Some(trouble), .. }) = &self.files[slot] else { return Ok(()) };
        let (target, trouble) = (Target { fd: fd.reference(), inode: *inode }, *trouble);
        if trouble.is_given_up || !self.is_fully_recorded(slot) {
            return Err(trouble.errno);
        }
        let written = target.write_again(self.checkpoints.device());
        // A child that began to write may have consumed an error that this sync did not see.
        let result =
            written.and_then(|()| if self.is_fully_recorded(slot) { Ok(()) } else { Err(trouble.errno) });
        if let Some(held) = &mut self.files[slot] {
            held.trouble = result.err().map(|errno| {
                let pause = PAUSE.1.min(trouble.pause * 2);
                SyncFailure { errno, pause, try_at: Instant::now() + pause, ..trouble }
            });
        }
        if result.is_ok() {
            flags.fetch_and(!FAILED, AcqRel);
        }
        result
    }

    /// Syncs a file, or repairs it if `is_quiescent` (no process writes to it), and removes its mark.
    pub(super) fn sync_or_repair(&mut self, slot: usize, is_quiescent: bool) -> Result<(), Errno> {
        let Some(Held { fd, trouble, .. }) = &self.files[slot] else { return Ok(()) };
        let (fd, trouble) = (fd.reference(), *trouble);
        if let Some(SyncFailure { errno, is_given_up: true, .. }) = trouble {
            return Err(errno);
        }
        // A file without a name cannot be opened after a crash.
        if file::status(fd).is_ok_and(|status| status.links == 0) {
            self.files[slot].iter_mut().for_each(|held| held.trouble = None);
            return Ok(());
        }
        let has_failed = self.state.slots[slot].flags.load(Acquire) & FAILED != 0;
        let result = if has_failed { Err(None) } else { file::sync(fd).map_err(Some) };
        if let Err(errno) = result {
            self.note_sync_failure(slot, errno);
            let trouble = self.files[slot].as_ref().and_then(|held| held.trouble);
            let errno = trouble.map_or(Errno(libc::EIO), |trouble| trouble.errno);
            if !is_quiescent {
                return Err(errno);
            }
            self.repair(slot)?;
        }
        mark::remove(fd)
    }

    /// Leaves a file's records to a recovery; any process may write to the file from then on. No file is logged
    /// any more, so that the log keeps the state that these files were last promised.
    pub(super) fn give_up(&mut self, slot: usize, errno: Errno) {
        let has_newer = !self.is_fully_recorded(slot) || self.given_up.is_some_and(|before| before.has_newer);
        let known = &self.state.slots[slot];
        known.error.store(errno.0.cast_unsigned(), Release);
        known.flags.fetch_or(UNRELIABLE | FAILED, AcqRel);
        let Some(held) = &mut self.files[slot] else { return };
        if held.trouble.is_some_and(|trouble| trouble.is_given_up) {
            return;
        }
        let now = Instant::now();
        held.trouble = Some(SyncFailure { errno, pause: PAUSE.1, try_at: now, is_given_up: true });
        let is_first = self.given_up.is_none();
        let now_ns = clock::wall_ns();
        let failure = Failure { errno: errno.0, until_ns: now_ns, has_newer };
        self.given_up = Some(failure);
        let _ = self.checkpoints.note_failure(failure, now_ns);
        // Later writes by other processes must have later time stamps than `until_ns`.
        (0..TICK_DOZES).for_each(|_| clock::sleep_10_ms());
        if is_first {
            let others: Vec<usize> = self.held().map(|(slot, _)| slot).collect();
            for other in others {
                if !self.is_withdrawn(other) {
                    let _ = self.withdraw(other);
                }
            }
        }
    }

    /// Takes a closed or renamed file out of the log, unless it is closed and a retry may still succeed later.
    pub(super) fn withdraw_or_retry_later(&mut self, slot: usize) {
        let Some(Held { is_closed: true, .. }) = self.files[slot] else {
            let _ = self.withdraw(slot);
            return;
        };
        if self.is_withdrawn(slot) || !self.is_fully_recorded(slot) {
            let _ = self.withdraw(slot);
            return;
        }
        let trouble = self.files[slot].as_ref().and_then(|held| held.trouble);
        if trouble.is_none_or(|trouble| Instant::now() >= trouble.try_at)
            && self.sync_or_repair(slot, true).is_ok()
        {
            if let Some(held) = &self.files[slot] {
                file_lock::release_lease(&held.fd);
            }
            self.drop_file(slot);
        }
    }

    /// Takes a file out of the log for the program. Returns the sync's result. `is_quiescent`: no process writes to
    /// it.
    ///
    /// # Errors
    /// The error of the sync; the file stays in the log, until the program asks again with `is_quiescent`.
    pub(super) fn release(&mut self, slot: usize, is_quiescent: bool) -> Result<Result<(), Errno>, Errno> {
        if self.is_withdrawn(slot) && self.state.slots[slot].flags.load(Acquire) & FAILED == 0 {
            return Ok(Ok(()));
        }
        let settled = self.sync_or_repair(slot, is_quiescent);
        match settled {
            Err(errno) if !is_quiescent => Err(errno),
            Err(errno) => {
                self.give_up(slot, errno);
                Ok(Err(errno))
            }
            Ok(()) => Ok(Ok(())),
        }
    }

    /// Takes a file out of the log after the program's end, with several attempts if necessary.
    pub(super) fn release_at_exit(&mut self, slot: usize) {
        if self.is_withdrawn(slot) {
            return;
        }
        for attempt in 1..=LAST_ATTEMPTS {
            if self.sync_or_repair(slot, true).is_ok() {
                return;
            }
            if attempt < LAST_ATTEMPTS && self.is_fully_recorded(slot) {
                (0..10 * attempt).for_each(|_| clock::sleep_10_ms());
            }
        }
        let trouble = self.files[slot].as_ref().and_then(|held| held.trouble);
        self.give_up(slot, trouble.map_or(Errno(libc::EIO), |trouble| trouble.errno));
    }
}
