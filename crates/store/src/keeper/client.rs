//! A program, as its keeper knows it.

mod failing;

use crate::device::LogFile;
use crate::layout::{Checkpoint, Failure};
use crate::log::Checkpoints;
use crate::mark::{self, Owner};
use crate::messages::{
    ADOPT, ADOPTED, BYE, CLOSED, DONE, DROP, HALF, LOG, NOT_NOW, REFUSED, REPAIR, ROOM, WELCOME,
};
use crate::places::{Empty, boot, may_have};
use crate::state::{FAILED, LEFT, MAX_FILES, Place, STATE_BYTES, SYNCING, State};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use failing::Trouble;
use std::time::{Duration, Instant};
use uncopy_sys::background::{was_rung, watch_process};
use uncopy_sys::errno::Errno;
use uncopy_sys::link::{self, MAX_WORDS};
use uncopy_sys::mem::Joint;
use uncopy_sys::{clock, file, wait};

/// How often files are synced, and it is looked where they are.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a program that asks for nothing is waited for before it is looked whether it lives, ms.
const IDLE_MS: i32 = 10_000;

/// A file that takes part.
#[derive(Debug)]
struct Held {
    fd: i32,
    path: Option<Vec<u8>>,
    inode: (u64, u64),
    /// The program has closed it.
    is_closed: bool,
    /// Its sync has failed.
    trouble: Option<Trouble>,
}

/// A program with a log.
#[derive(Debug)]
struct Client {
    state: &'static State,
    checkpoints: Checkpoints<'static, LogFile>,
    owner: Owner,
    files: [Option<Held>; MAX_FILES],
    /// Files that were left since the last checkpoint, whose records may still be in the log.
    left: Vec<(u64, u64)>,
    /// Records are kept for files that do not have what those say, and do not take part any more: nothing else does.
    given_up: Option<Failure>,
    /// The program ends, and waits until this is over.
    waits: bool,
    done_at: Instant,
}

/// Serves a program that has asked for a log: gives it this one, and keeps its files until it has ended. Whether it waits for that.
pub fn serve(link: i32, bell: i32, empty: &Empty) -> bool {
    match begin(link, empty) {
        Ok((client, joint)) => {
            let watched = link::process_of(link).and_then(|process| watch_process(process).ok());
            let waits = client.keep(link, bell, watched);
            // SAFETY: the client is gone, and nobody else in this process knows its state.
            unsafe { joint.unmap() };
            watched.into_iter().for_each(file::close);
            waits
        }
        Err(errno) => {
            // Who does not hear that finds the link closed.
            answer(link, &[NOT_NOW, errno.0 as u64]);
            false
        }
    }
}

/// Answers a program. Whether it will hear that: one that does not would wait.
pub fn answer(link: i32, words: &[u64]) -> bool {
    link::send(link, words, -1).is_ok()
}

/// Gives a program its log.
fn begin(link: i32, empty: &Empty) -> Result<(Client, Joint), Errno> {
    let Empty { path, file: log, superblock, checkpoint } = empty;
    let (joint, state_fd) = Joint::make(c"uncopy-log", STATE_BYTES)?;
    // SAFETY: all of the state is atomics; the caller unmaps it when the client is gone.
    let state: &'static State = unsafe { joint.as_ref() };
    let process = u64::from(link::process_of(link).unwrap_or(1));
    let (serial, epoch, boot) = (checkpoint.serial + 1, checkpoint.epoch + 1, boot());
    let checkpoint = Checkpoint { serial, epoch, time_ns: clock::wall_ns(), boot, process, ..*checkpoint };
    let begun = Checkpoints::begin(log.device(), *superblock, checkpoint, state).and_then(|checkpoints| {
        let (granule, machine) = (u64::from(superblock.granule_bytes), superblock.machine);
        let welcome = [WELCOME, superblock.log, epoch, superblock.len_bytes, granule, machine];
        link::send(link, &welcome, state_fd)?;
        link::send(link, &[LOG], log.device().fd)?;
        Ok(checkpoints)
    });
    file::close(state_fd);
    let checkpoints = begun.inspect_err(|_| {
        // SAFETY: nobody knows the state.
        unsafe { joint.unmap() };
    })?;
    let files = [const { None }; MAX_FILES];
    let (left, owner) = (Vec::new(), Owner { log: superblock.log, path: path.clone() });
    let done_at = Instant::now();
    Ok((Client { state, checkpoints, owner, files, left, given_up: None, waits: false, done_at }, joint))
}

impl Client {
    fn held(&self) -> impl Iterator<Item = (usize, &Held)> {
        self.files.iter().enumerate().filter_map(|(place, held)| held.as_ref().map(|held| (place, held)))
    }

    /// Keeps its files until it has ended. Whether it waits for that.
    fn keep(mut self, link: i32, bell: i32, watched: Option<i32>) -> bool {
        loop {
            let timeout_ms = if self.held().next().is_some() { INTERVAL.as_millis() as i32 } else { IDLE_MS };
            wait::for_any([link, bell].into_iter().chain(watched), timeout_ms);
            if was_rung(bell) {
                self.leave_what_others_want();
            }
            if !self.hear(link) || watched.is_some_and(wait::is_ready) {
                break;
            }
            if self.done_at.elapsed() >= INTERVAL {
                self.digest();
            }
        }
        if !self.waits {
            // One that lives learns of it before its files lose their marks.
            link::shut(link);
        }
        let waits = self.waits;
        self.end();
        waits
    }

    /// Answers what was asked. Whether the other end is still there.
    fn hear(&mut self, link: i32) -> bool {
        let mut words = [0; MAX_WORDS];
        loop {
            let came = match super::receive(link, &mut words) {
                Err(Errno::EAGAIN) => return true,
                Err(Errno::EINTR) => continue,
                Err(errno) => {
                    // Whoever hears of that, and of the link's end, goes on by the file system.
                    answer(link, &[REFUSED, errno.0 as u64]);
                    return false;
                }
                Ok(came) if came.words == 0 => return false,
                Ok(came) => came,
            };
            let place = usize::try_from(words[1]).ok().filter(|place| came.words >= 2 && *place < MAX_FILES);
            let is_heard = match (words[0], place) {
                (ADOPT, Some(place)) if came.fd >= 0 && self.files[place].is_none() => {
                    let is_heard = match self.adopt(place, came.fd) {
                        Ok(said) => answer(link, &[ADOPTED, said.err().map_or(0, |errno| errno.0 as u64)]),
                        Err(errno) => {
                            file::close(came.fd);
                            answer(link, &[REFUSED, errno.0 as u64])
                        }
                    };
                    if !is_heard {
                        return false;
                    }
                    continue;
                }
                (DROP, Some(place)) => match self.let_go(place, came.words > 2 && words[2] != 0) {
                    Ok(said) => {
                        self.drop_file(place);
                        answer(link, &[DONE, said.err().map_or(0, |errno| errno.0 as u64)])
                    }
                    Err(errno) => answer(link, &[REFUSED, errno.0 as u64]),
                },
                (REPAIR, Some(place)) => {
                    let said = self.repair(place);
                    answer(link, &[DONE, said.err().map_or(0, |errno| errno.0 as u64)])
                }
                (CLOSED, Some(place)) => {
                    if let Some(held) = &mut self.files[place] {
                        file::release_locks(held.fd);
                        held.is_closed = true;
                    }
                    answer(link, &[DONE])
                }
                (ROOM, _) => {
                    self.digest();
                    answer(link, &[DONE])
                }
                (BYE, _) => {
                    self.waits = true;
                    false
                }
                (HALF, _) => {
                    self.digest();
                    true
                }
                _ => answer(link, &[REFUSED, libc::EPROTO as u64]),
            };
            if came.fd >= 0 {
                file::close(came.fd);
            }
            if !is_heard {
                return false;
            }
        }
    }

    /// Lets a file take part: what the sync has said with which that begins.
    fn adopt(&mut self, place: usize, fd: i32) -> Result<Result<(), Errno>, Errno> {
        let status = file::status(fd)?;
        if !status.is_regular() || status.links != 1 || !mark::is_fit(fd) {
            return Err(Errno::EINVAL);
        }
        // The mark makes a recovery write to it: that is for those who could.
        if !file::is_writable(fd)? {
            return Err(Errno(libc::EBADF));
        }
        if let Some(failure) = self.given_up {
            return Err(Errno(failure.errno));
        }
        let inode = (status.device, status.inode);
        if self.held().any(|(_, held)| held.inode == inode) {
            return Err(Errno::EEXIST);
        }
        if self.left.contains(&inode) {
            // Its records of an earlier time must not count again.
            self.digest();
        }
        if self.left.contains(&inode) {
            return Err(Errno::EAGAIN);
        }
        file::take_lease(fd)?;
        // A mark of another log: what that has for it was not put there yet.
        let is_free = mark::of(fd)
            .is_ok_and(|owner| owner.is_none_or(|owner| owner.log == self.owner.log || !may_have(&owner)));
        if !is_free {
            file::end_lease(fd);
            return Err(Errno::EEXIST);
        }
        let said = file::sync(fd);
        if said.is_ok()
            && let Err(errno) = mark::put(fd, &self.owner)
        {
            // No record has anything for it yet.
            let _ = mark::remove(fd);
            file::end_lease(fd);
            return Err(errno);
        }
        let held = Held { fd, path: mark::path_of(fd), inode, is_closed: false, trouble: None };
        self.files[place] = Some(held);
        if said.is_err() {
            self.state.places[place].flags.fetch_or(LEFT, AcqRel);
        }
        Ok(said)
    }

    /// A file does not take part any more: the program, or [`Client::leave`], has seen to that.
    fn drop_file(&mut self, place: usize) {
        if let Some(held) = self.files[place].take() {
            file::end_lease(held.fd);
            file::close(held.fd);
            self.left.push(held.inode);
        }
        let Place { flags, error, .. } = &self.state.places[place];
        error.store(0, Release);
        flags.store(0, Release);
    }

    /// A file is the file system's again. The program learns that with its next sync. What the sync said.
    fn leave(&mut self, place: usize) -> Result<(), Errno> {
        let Some(held) = &self.files[place] else { return Ok(()) };
        let is_closed = held.is_closed;
        let known = &self.state.places[place];
        let was_left = known.flags.fetch_or(LEFT, AcqRel) & LEFT != 0;
        // Of one that it has closed the program knows no more.
        let settled = if was_left { Ok(()) } else { self.settle(place, is_closed) };
        if let Err(errno) = settled {
            self.give_up(place, errno);
        }
        if let Some(held) = &self.files[place] {
            file::end_lease(held.fd);
        }
        if is_closed {
            self.drop_file(place);
        }
        settled
    }

    /// Files that somebody else waits to open.
    fn leave_what_others_want(&mut self) {
        let wanted: Vec<usize> =
            self.held().filter(|(_, held)| !file::has_quiet_lease(held.fd)).map(|(place, _)| place).collect();
        for place in wanted {
            // The program hears of it.
            let _ = self.leave(place);
        }
    }

    fn is_left(&self, place: usize) -> bool {
        self.state.places[place].flags.load(Acquire) & LEFT != 0
    }

    /// Syncs the files, and gives back the room of what is in them.
    fn digest(&mut self) {
        self.done_at = Instant::now();
        // Closed ones, and those that somebody has moved or removed.
        let done: Vec<usize> = self
            .held()
            .filter(|(place, held)| {
                held.is_closed || !self.is_left(*place) && mark::path_of(held.fd) != held.path
            })
            .map(|(place, _)| place)
            .collect();
        for place in done {
            self.leave_or_try_later(place);
        }
        let Some(moment) = self.state.moment() else { return };
        let now_ns = clock::wall_ns();
        let before = *self.checkpoints.checkpoint();
        if moment.sequence == before.sequence {
            self.left.clear();
            let modified_ns = |(_, held): (usize, &Held)| file::modified_ns(held.fd).unwrap_or(0);
            if self.held().map(modified_ns).max().unwrap_or(0) > before.time_ns {
                let _ = self.checkpoints.beat(now_ns);
            }
            return;
        }
        let takes_part = |(place, _): (usize, &Held)| (!self.is_left(place)).then_some(place);
        let places: Vec<usize> = self.held().filter_map(takes_part).collect();
        // All of them, also behind one that is not whole.
        let unsure = places.into_iter().filter(|place| !self.sync_held(*place)).count();
        if self.given_up.is_some() {
            return;
        }
        if unsure == 0 && self.held().all(|(_, held)| held.trouble.is_none()) {
            if self.checkpoints.retire(moment, now_ns).is_ok() {
                self.left.clear();
            }
        } else {
            // The files may be written to until about now.
            let _ = self.checkpoints.beat(now_ns);
        }
    }

    /// Syncs a file that takes part. Whether it has all that was written to it before.
    fn sync_held(&mut self, place: usize) -> bool {
        let Some(Held { fd, .. }) = self.files[place] else { return true };
        let flags = || self.state.places[place].flags.load(Acquire);
        let before = flags();
        let mut said = Ok(());
        if before & FAILED == 0 {
            said = file::sync_data(fd);
        }
        let after = flags();
        if before & FAILED == 0 && said.is_ok() && after & FAILED == 0 {
            // What a sync of the program's may have heard this one has not.
            return (before | after) & SYNCING == 0;
        }
        self.note_trouble(place, said.err());
        self.ask_to_try_again(place);
        false
    }

    /// The program has ended: its files are the file system's again, and the log is empty.
    fn end(mut self) {
        // Others may have waited for its locks.
        for (_, held) in self.held() {
            file::release_locks(held.fd);
        }
        for place in 0..MAX_FILES {
            if let Some(held) = &mut self.files[place] {
                held.is_closed = true;
                self.leave_at_the_end(place);
            }
            self.drop_file(place);
        }
        if self.given_up.is_none() {
            // What cannot be said there `uncopy log recover` finds out.
            let _ = self.checkpoints.end(clock::wall_ns());
        }
    }
}
