//! Files that take part.

use super::descriptors::{self, Counted, Kind};
use super::session::Session;
use super::{Synced, answer, count_leave, forks, is_forced, session, touch, trial};
use crate::capture::Capture;
use crate::layout::Identity;
use crate::lock;
use crate::mark;
use crate::messages::{CLOSED, DONE, DROP, REPAIR, ROOM};
use crate::state::{DUE, FAILED, LEFT, MAX_FILES, Place, SYNCING, TOUCHED, UNSYNCED};
use core::ffi::c_int;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use std::sync::{Mutex, MutexGuard};
use uncopy_sys::errno::Errno;
use uncopy_sys::file::{self, Status};
use uncopy_sys::iovec::Part;
use uncopy_sys::{clock, mem};

/// What is known of a file that takes part, while it is synced.
#[derive(Debug)]
pub struct Logged {
    status: Status,
    identity: Identity,
    /// Syncs that the log has answered.
    syncs: u64,
    /// The log does not pay, or that is to be found out anew.
    is_due: bool,
    /// What is being synced; between syncs, memory for the next one.
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

/// A file that takes part. Order of locks: `logged`, `capture`.
#[derive(Debug)]
pub struct Tracked {
    /// Descriptors of it.
    descriptors: AtomicU32,
    /// Whoever writes to it writes at its end.
    is_append: AtomicBool,
    /// The last fork while it took part; 0: there was none. Children may write here that they have touched it.
    forked_at: AtomicU64,
    /// How long writes took since it was synced, ns.
    write_ns: AtomicU64,
    /// Held while it is synced, or left.
    logged: Mutex<Option<Logged>>,
    /// Held while it is written to.
    capture: Mutex<Capture>,
}

static FILES: [Tracked; MAX_FILES] = [const { Tracked::none() }; MAX_FILES];

/// Files that take part.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// How many files take part.
#[inline]
pub fn number() -> u32 {
    NUMBER.load(Relaxed)
}

pub fn file_at(place: usize) -> &'static Tracked {
    &FILES[place % MAX_FILES]
}

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Where the one before ended, or at the file's end.
    Position,
    /// There, bytes from the file's beginning.
    Offset(u64),
}

/// A write that is about to be made.
#[derive(Debug)]
pub enum Writing {
    /// Nothing has to be known of it.
    Plain,
    /// It is counted.
    Counted(Counted),
    /// What is written is to be told.
    Logged(Write),
}

/// A write to a file that takes part.
#[derive(Debug)]
pub struct Write {
    fd: c_int,
    file: &'static Tracked,
    capture: MutexGuard<'static, Capture>,
    begun_ns: u64,
}

/// Begins a write; its descriptor must not be closed before it ends.
#[must_use]
pub fn begin_write(fd: c_int) -> Writing {
    loop {
        match descriptors::kind(fd) {
            Kind::Candidate => {
                if let Some(counted) = descriptors::begin_write(fd) {
                    return Writing::Counted(counted);
                }
            }
            Kind::Inherited(place) => {
                touch(place, 0);
                return Writing::Plain;
            }
            Kind::Logged(place) => {
                let file = file_at(place);
                let capture = lock(&file.capture);
                if descriptors::kind(fd) == Kind::Logged(place) {
                    if capture.is_empty()
                        && let Some(session) = session()
                    {
                        // Before it is there: the keeper may have to know that after this process's death.
                        session.place(place).flags.fetch_or(UNSYNCED, AcqRel);
                    }
                    return Writing::Logged(Write { fd, file, capture, begun_ns: clock::now_ns() });
                }
            }
            _ => return Writing::Plain,
        }
    }
}

impl Write {
    /// The first `len_bytes` bytes of the parts were written.
    ///
    /// # Safety
    /// They can be read.
    pub unsafe fn done(mut self, at: At, parts: &[Part], len_bytes: usize) {
        let offset = match at {
            // It goes to the end, whatever it says (pwrite(2), "Bugs").
            At::Offset(_) if self.file.is_append.load(Relaxed) => None,
            At::Offset(offset) => Some(offset),
            At::Position => file::position(self.fd).ok().and_then(|end| end.checked_sub(len_bytes as u64)),
        };
        match offset {
            // SAFETY: readable, says the caller.
            Some(offset) => unsafe { self.capture.add(offset, parts, len_bytes) },
            None => self.capture.give_up(),
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
        }
    }

    /// Whether no file is here.
    pub fn is_free(&self) -> bool {
        self.descriptors.load(Acquire) == 0 && !forks::has_children(self.forked_at.load(Acquire))
    }

    pub fn lock(&self) -> MutexGuard<'_, Option<Logged>> {
        lock(&self.logged)
    }

    /// A file is here from now on, which has one descriptor.
    pub fn begin(&self, is_append: bool) {
        self.is_append.store(is_append, Relaxed);
        self.forked_at.store(0, Relaxed);
        self.write_ns.store(0, Relaxed);
        self.descriptors.store(1, Release);
        NUMBER.fetch_add(1, AcqRel);
    }

    /// It is not any more; under the lock.
    pub fn end(&self, place: usize, to: Kind) {
        let mut capture = lock(&self.capture);
        for fd in descriptors::known(0, u32::MAX).filter(|fd| descriptors::kind(*fd) == Kind::Logged(place)) {
            descriptors::set(fd, to);
        }
        *capture = Capture::NONE;
        self.descriptors.store(0, Release);
        NUMBER.fetch_sub(1, AcqRel);
    }

    pub fn note_forked(&self) {
        self.forked_at.store(forks::number(), Release);
    }

    /// Its place among all.
    fn place(&self) -> usize {
        let offset_bytes = core::ptr::from_ref(self) as usize - FILES.as_ptr() as usize;
        offset_bytes / size_of::<Self>()
    }

    /// A sync of it. `None`: it does not take part any more.
    pub fn sync(&self, fd: c_int, real: &impl Fn() -> c_int) -> Option<Synced> {
        let plainly = |result| Some(Synced::plain(result));
        let begun_ns = clock::now_ns();
        let mut inner = self.lock();
        if descriptors::kind(fd) != Kind::Logged(self.place()) {
            return None;
        }
        let (session, logged) = (session()?, inner.as_mut()?);
        let state = session.place(self.place());
        let status = match file::status(fd) {
            Ok(status) if (status.device, status.inode) == logged.inode() => status,
            // It was closed by a way that nobody saw, and is another file.
            _ => {
                descriptors::set(fd, Kind::Unknown);
                return plainly(real());
            }
        };
        let is_lost =
            |state: &Place| state.flags.load(Acquire) & (LEFT | TOUCHED) != 0 || session.has_ended();
        if !logged.is_same(&status) || session.log.is_broken() || is_lost(state) {
            return plainly(self.leave_by_sync(fd, inner, real));
        }
        if state.flags.load(Acquire) & FAILED != 0 {
            return match self.sync_failed(session, logged) {
                Some(logged_bytes) => Some(Synced { result: 0, logged_bytes: Some(logged_bytes) }),
                None => plainly(self.leave_by_sync(fd, inner, real)),
            };
        }
        if logged.is_due {
            return plainly(self.leave_by_sync(fd, inner, real));
        }
        core::mem::swap(&mut *lock(&self.capture), &mut logged.taken);
        if logged.taken.is_empty() {
            // Nothing lies in the log that is older than what the file system writes now.
            let said = sync_plainly(state, real);
            if said == 0 {
                self.note_synced(state);
            }
            return plainly(said);
        }
        let is_done =
            !logged.taken.is_incomplete() && log(session, &logged.identity, &mut logged.taken) == Ok(true);
        if !is_done || is_lost(state) {
            return plainly(self.leave_by_sync(fd, inner, real));
        }
        let bytes = logged.taken.len_bytes();
        logged.syncs += 1;
        logged.taken.clear();
        self.note_synced(state);
        session.tell_if_half_full();
        let now_ns = clock::now_ns();
        let took_ns = now_ns - begun_ns + self.write_ns.swap(0, Relaxed);
        logged.is_due = !is_forced() && trial::note_logged(bytes, took_ns, now_ns);
        Some(Synced { result: 0, logged_bytes: Some(bytes) })
    }

    /// All that was written is in records, or in the file: if nothing was written since, the keeper may know.
    fn note_synced(&self, state: &Place) {
        // Whoever writes now has said so.
        if self.capture.try_lock().is_ok_and(|capture| capture.is_empty()) {
            // A write that begins here says so again: it waits for the lock, or comes after this.
            state.flags.fetch_and(!UNSYNCED, AcqRel);
        }
    }

    /// A sync of it while its file system cannot sync it: the log has what was promised, and goes on. Bytes that survive by it; `None`: it
    /// has no room, or there was written what no record can have, and the program has to hear of the failure.
    fn sync_failed(&self, session: &Session, logged: &mut Logged) -> Option<usize> {
        static IS_SAID: AtomicBool = AtomicBool::new(false);
        if !IS_SAID.swap(true, Relaxed) {
            let path = logged.identity.path.escape_ascii();
            mem::say(format_args!(
                "uncopy: {path} cannot be synced; what its syncs were promised is kept in the log: see 'uncopy log ls'\n"
            ));
        }
        // Nobody writes to it until this is over.
        let mut capture = lock(&self.capture);
        let state = session.place(self.place());
        let bytes = capture.len_bytes();
        if capture.is_incomplete()
            || !capture.is_empty() && log(session, &logged.identity, &mut capture) != Ok(true)
        {
            return None;
        }
        capture.clear();
        state.flags.fetch_and(!UNSYNCED, AcqRel);
        logged.syncs += 1;
        if state.flags.load(Acquire) & DUE != 0 {
            // What comes of it the flags say.
            let _ = session.ask(&[REPAIR, self.place() as u64], -1);
        }
        // Somebody may have got it meanwhile.
        let flags = state.flags.load(Acquire);
        (flags & (LEFT | TOUCHED) == 0 && !session.has_ended()).then_some(bytes)
    }

    /// What the log does not answer, the file system does: it goes on without the log. What the sync says.
    fn leave_by_sync(
        &self,
        fd: c_int,
        mut inner: MutexGuard<'_, Option<Logged>>,
        real: &impl Fn() -> c_int,
    ) -> c_int {
        let said = match session() {
            Some(session) => sync_plainly(session.place(self.place()), real),
            None => real(),
        };
        let errno = uncopy_sys::errno::get();
        let taken = self.leave_under(fd, &mut inner, true);
        if said != 0 {
            uncopy_sys::errno::set(errno);
            return said;
        }
        answer(taken)
    }

    /// It goes on without the log; it may take part `again` later.
    pub fn leave(&self, fd: c_int, again: bool) {
        let mut inner = self.lock();
        if descriptors::kind(fd) == Kind::Logged(self.place())
            && let Err(errno) = self.leave_under(fd, &mut inner, again)
        {
            descriptors::set(fd, Kind::Failed(errno.0));
        }
    }

    fn leave_under(&self, fd: c_int, inner: &mut Option<Logged>, again: bool) -> Result<(), Errno> {
        let place = self.place();
        let known = session().map(|session| session.place(place));
        let is_wanted = known.is_some_and(|known| known.flags.load(Acquire) & LEFT != 0);
        let said = known.map_or(0, |known| known.error.swap(0, AcqRel));
        let taken = self.let_go(fd);
        depart(inner.take());
        // Of a candidate nobody follows what is written by another descriptor.
        let goes_on = again && taken.is_ok() && self.descriptors.load(Acquire) == 1;
        self.end(place, if goes_on { Kind::Candidate } else { Kind::Refused });
        if is_wanted {
            // Whoever wanted it may not have got it yet (open(2), "O_NONBLOCK").
            descriptors::pause(fd, clock::now_ms());
        }
        if said == 0 { taken } else { Err(Errno(said as i32)) }
    }

    /// Has its keeper sync it and take its mark away. What that said: if it could not be, its records are kept.
    fn let_go(&self, fd: c_int) -> Result<(), Errno> {
        let place = self.place();
        let ask = |is_still| {
            let session = session().ok_or(Errno(libc::EPIPE))?;
            session.ask(&[DROP, place as u64, u64::from(is_still)], -1)
        };
        let result = |errno: u64| if errno == 0 { Ok(()) } else { Err(Errno(errno as i32)) };
        if let Ok([DONE, errno, ..]) = ask(false) {
            return result(errno);
        }
        // It could not be synced, and may be as long as nobody writes to it.
        let _capture = lock(&self.capture);
        if let Ok([DONE, errno, ..]) = ask(true) {
            return result(errno);
        }
        // Nobody keeps it any more.
        let taken = self.take_mark(fd);
        file::end_lease(fd);
        taken
    }

    /// Syncs it and takes its mark away, in the keeper's place. One that does not have what its records have keeps its mark: a recovery
    /// knows by that.
    pub fn take_mark(&self, fd: c_int) -> Result<(), Errno> {
        let place = self.place();
        let known = session().map(|session| session.place(place));
        let has_failed = known.is_some_and(|known| known.flags.load(Acquire) & FAILED != 0);
        if has_failed { Err(Errno(libc::EIO)) } else { mark::take(fd) }
    }

    /// It has another descriptor.
    pub fn duplicate(&self, from: c_int, to: c_int) {
        let _capture = lock(&self.capture);
        if let kind @ Kind::Logged(_) = descriptors::kind(from) {
            self.descriptors.fetch_add(1, AcqRel);
            descriptors::duplicate(from, to, kind);
        } else {
            [from, to].into_iter().for_each(|fd| descriptors::set(fd, Kind::Refused));
        }
    }

    /// One of its descriptors is about to be closed.
    pub fn close(&self, fd: c_int) {
        let mut inner = self.lock();
        let place = self.place();
        if descriptors::kind(fd) != Kind::Logged(place) {
            return descriptors::set(fd, Kind::Unknown);
        }
        if self.descriptors.load(Acquire) > 1 {
            self.descriptors.fetch_sub(1, AcqRel);
            return descriptors::set(fd, Kind::Unknown);
        }
        // A program that is done with a file has ended no trial.
        depart(inner.take().map(|logged| Logged { is_due: false, ..logged }));
        self.end(place, Kind::Unknown);
        if session().is_none_or(|session| session.ask(&[CLOSED, place as u64], -1).is_err()) {
            // Nobody else does, and what the sync says nobody asks for.
            let _ = self.take_mark(fd);
            file::end_lease(fd);
        }
    }
}

/// A file takes part no more: what that says of the log, and where its records are. What a trial ends is no loss.
fn depart(logged: Option<Logged>) {
    count_leave(logged.as_ref().map_or(0, |logged| if logged.is_due { u64::MAX } else { logged.syncs }));
    if let (Some(session), Some(logged)) = (session(), logged) {
        session.note_departed(logged.inode());
    }
}

/// A sync by the file system, of a file that takes part: its keeper does not hear of an error that this one hears.
fn sync_plainly(state: &Place, real: &impl Fn() -> c_int) -> c_int {
    state.flags.fetch_or(SYNCING, AcqRel);
    let said = real();
    if said != 0 {
        state.flags.fetch_or(FAILED, AcqRel);
    }
    state.flags.fetch_and(!SYNCING, AcqRel);
    said
}

/// Puts what was written to a file into the log, and waits until that survives. Whether it did: the log may be full.
fn log(session: &Session, file: &Identity, written: &mut Capture) -> Result<bool, Errno> {
    let mut append = || session.log.append(clock::wall_ns(), file, written);
    let mut sequence = append()?;
    if sequence.is_none() {
        session.ask(&[ROOM], -1)?;
        sequence = append()?;
    }
    let Some(sequence) = sequence else { return Ok(false) };
    session.log.flush(sequence)?;
    Ok(true)
}
