//! Files that the file system cannot sync: their records stay in the log until they have what those say.
//!
//! ```text
//! sync fails ─► in trouble ─ tried again, later each time ─► has all: takes part as before
//!                   │ somebody else wants it, the program has ended or writes what no record can have
//!                   └─► given up: the file system's; the log keeps its records, and says why, for a recovery
//! ```
//!
//! A file is tried again by writing what its records have once more ([`Target::write_again`]): only while nobody writes to it, and where
//! the program has written nothing that no record has.

use super::{Client, Held};
use crate::keeper::repair::Target;
use crate::layout::Failure;
use crate::mark;
use crate::state::{DUE, FAILED, LEFT, TOUCHED, UNSYNCED};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::{Duration, Instant};
use uncopy_sys::errno::Errno;
use uncopy_sys::{clock, file};

/// How long after a failure a file is tried again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How often a file of a program that has ended is tried before that is left to a recovery.
const LAST_ATTEMPTS: usize = 3;
/// The kernel's coarse clock, by which files have their time stamps, is behind by less than so many [dozes](clock::doze) (one tick of
/// `CONFIG_HZ` 100 is 10 ms).
const TICK_DOZES: usize = 2;

/// What has come of a file's syncs.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    errno: Errno,
    pause: Duration,
    try_at: Instant,
    /// It does not take part any more; its records are kept.
    is_given_up: bool,
}

impl Client {
    /// Nobody but the program wrote to the file, and what it wrote is in records.
    fn is_told_whole(&self, place: usize) -> bool {
        self.state.places[place].flags.load(Acquire) & (UNSYNCED | TOUCHED) == 0
    }

    /// A file does not have what its records have: they stay. `errno`: what the sync has said, if it was the keeper's.
    pub(super) fn note_trouble(&mut self, place: usize, errno: Option<Errno>) {
        let Some(held) = &mut self.files[place] else { return };
        let known = &self.state.places[place];
        known.flags.fetch_or(FAILED, AcqRel);
        let is_new = held.trouble.is_none();
        let before = held.trouble.map(|trouble| trouble.errno);
        let errno = errno.or(before).unwrap_or(Errno(libc::EIO));
        let trouble = Trouble { errno, pause: PAUSE.0, try_at: Instant::now() + PAUSE.0, is_given_up: false };
        let _ = held.trouble.get_or_insert(trouble);
        // A child of the program's that has synced it meanwhile has taken the mark away.
        let is_marked = matches!(mark::of(held.fd), Ok(Some(owner)) if owner.log == self.owner.log);
        if !is_marked {
            known.flags.fetch_or(TOUCHED, AcqRel);
            let _ = mark::put(held.fd, &self.owner);
        }
        if is_new && self.given_up.is_none() {
            let failure = Failure { errno: errno.0, until_ns: 0, has_newer: false };
            let _ = self.checkpoints.note_failure(failure, clock::wall_ns());
        }
    }

    /// Asks the program to see to it that nobody writes to a failed file, if it is time to try that again.
    pub(super) fn ask_to_try_again(&self, place: usize) {
        let trouble = self.files[place].as_ref().and_then(|held| held.trouble);
        if trouble.is_some_and(|trouble| Instant::now() >= trouble.try_at) {
            self.state.places[place].flags.fetch_or(DUE, AcqRel);
        }
    }

    /// Tries a failed file again, to which nobody writes. What that said.
    pub(super) fn repair(&mut self, place: usize) -> Result<(), Errno> {
        let flags = &self.state.places[place].flags;
        flags.fetch_and(!DUE, AcqRel);
        let Some(Held { fd, inode, trouble: Some(trouble), .. }) = self.files[place] else { return Ok(()) };
        if trouble.is_given_up || !self.is_told_whole(place) {
            return Err(trouble.errno);
        }
        let written = Target { fd, inode }.write_again(self.checkpoints.device());
        // A child that has come to write to it may have heard what this sync has not.
        let said = written.and_then(|()| if self.is_told_whole(place) { Ok(()) } else { Err(trouble.errno) });
        if let Some(held) = &mut self.files[place] {
            held.trouble = said.err().map(|errno| {
                let pause = PAUSE.1.min(trouble.pause * 2);
                Trouble { errno, pause, try_at: Instant::now() + pause, ..trouble }
            });
        }
        if said.is_ok() {
            flags.fetch_and(!FAILED, AcqRel);
        }
        said
    }

    /// Sees to it that a file has all that its records have, and belongs to the log no more. `is_still`: nobody writes to it.
    pub(super) fn settle(&mut self, place: usize, is_still: bool) -> Result<(), Errno> {
        let Some(Held { fd, trouble, .. }) = self.files[place] else { return Ok(()) };
        if let Some(Trouble { errno, is_given_up: true, .. }) = trouble {
            return Err(errno);
        }
        // What has no name any more nobody opens after a crash.
        if file::status(fd).is_ok_and(|status| status.links == 0) {
            self.files[place].iter_mut().for_each(|held| held.trouble = None);
            return Ok(());
        }
        let has_failed = self.state.places[place].flags.load(Acquire) & FAILED != 0;
        let said = if has_failed { Err(None) } else { file::sync(fd).map_err(Some) };
        if let Err(errno) = said {
            self.note_trouble(place, errno);
            let trouble = self.files[place].as_ref().and_then(|held| held.trouble);
            let errno = trouble.map_or(Errno(libc::EIO), |trouble| trouble.errno);
            if !is_still {
                return Err(errno);
            }
            self.repair(place)?;
        }
        mark::remove(fd)
    }

    /// What a file's records have is left to a recovery: from here on anybody may write to it. Nothing takes part in this log any more,
    /// so that what it has stays what these files were promised last.
    pub(super) fn give_up(&mut self, place: usize, errno: Errno) {
        let has_newer = !self.is_told_whole(place) || self.given_up.is_some_and(|before| before.has_newer);
        let known = &self.state.places[place];
        known.error.store(errno.0.cast_unsigned(), Release);
        known.flags.fetch_or(LEFT | FAILED, AcqRel);
        let Some(held) = &mut self.files[place] else { return };
        if held.trouble.is_some_and(|trouble| trouble.is_given_up) {
            return;
        }
        let now = Instant::now();
        held.trouble = Some(Trouble { errno, pause: PAUSE.1, try_at: now, is_given_up: true });
        let is_first = self.given_up.is_none();
        let now_ns = clock::wall_ns();
        let failure = Failure { errno: errno.0, until_ns: now_ns, has_newer };
        self.given_up = Some(failure);
        let _ = self.checkpoints.note_failure(failure, now_ns);
        // What others write from here on is newer than that moment, by its time stamp too.
        (0..TICK_DOZES).for_each(|_| clock::doze());
        if is_first {
            let others: Vec<usize> = self.held().map(|(place, _)| place).collect();
            for other in others {
                if !self.is_left(other) {
                    let _ = self.leave(other);
                }
            }
        }
    }

    /// A file that the program has closed, or that has another name: it is left, unless it is in trouble and can be tried again.
    pub(super) fn leave_or_try_later(&mut self, place: usize) {
        let Some(Held { is_closed: true, .. }) = self.files[place] else {
            let _ = self.leave(place);
            return;
        };
        if self.is_left(place) || !self.is_told_whole(place) {
            let _ = self.leave(place);
            return;
        }
        let trouble = self.files[place].as_ref().and_then(|held| held.trouble);
        if trouble.is_none_or(|trouble| Instant::now() >= trouble.try_at) && self.settle(place, true).is_ok()
        {
            if let Some(held) = &self.files[place] {
                file::end_lease(held.fd);
            }
            self.drop_file(place);
        }
    }

    /// Lets a file go that the program does not want to take part any more: what its sync said. `is_still`: nobody writes to it.
    ///
    /// # Errors
    /// What the sync said: it is held on to until nobody does.
    pub(super) fn let_go(&mut self, place: usize, is_still: bool) -> Result<Result<(), Errno>, Errno> {
        if self.is_left(place) && self.state.places[place].flags.load(Acquire) & FAILED == 0 {
            return Ok(Ok(()));
        }
        let settled = self.settle(place, is_still);
        match settled {
            Err(errno) if !is_still => Err(errno),
            Err(errno) => {
                self.give_up(place, errno);
                Ok(Err(errno))
            }
            Ok(()) => Ok(Ok(())),
        }
    }

    /// The program has ended: a file is left, if need be after some attempts.
    pub(super) fn leave_at_the_end(&mut self, place: usize) {
        if self.is_left(place) {
            return;
        }
        for attempt in 1..=LAST_ATTEMPTS {
            if self.settle(place, true).is_ok() {
                return;
            }
            if attempt < LAST_ATTEMPTS && self.is_told_whole(place) {
                (0..10 * attempt).for_each(|_| clock::doze());
            }
        }
        let trouble = self.files[place].as_ref().and_then(|held| held.trouble);
        self.give_up(place, trouble.map_or(Errno(libc::EIO), |trouble| trouble.errno));
    }
}
