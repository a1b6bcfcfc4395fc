//! What a program's hooks do for its log: which files take part, what is written to them, and what their syncs wait for.
//!
//! ```text
//! opened ─► candidate ─ some syncs ─► logged ─► left: the file system's again
//!               └── anything that cannot be followed ──► refused ◄──┘
//! ```
//!
//! A file is left in three steps: it is synced; its mark is taken away; that survives. Only then the program goes on. Callers keep
//! `errno`, and let no signal handler of the program's run meanwhile.

pub mod descriptors;
mod forks;
mod logged;
mod session;
mod trial;

pub use forks::{number_before_open as forks_before_open, share as share_descriptors};
pub use logged::{At, Write, Writing, begin_write, number};

use crate::mark;
use crate::messages::{ADOPT, ADOPTED};
use crate::state::{FAILED, HELD, MAX_FILES, SYNCING, TOUCHED};
use core::ffi::c_int;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire,
    Ordering::Relaxed, Ordering::Release,
};
use descriptors::Kind;
use logged::{Logged, file_at};
use session::{NoSession, Session};
use std::ffi::CString;
use std::sync::{Mutex, OnceLock};
use uncopy_sys::errno::{self, Errno};
use uncopy_sys::{clock, fd, file, mem};

/// A candidate takes part from so many syncs on at least: many files are synced once, and closed.
const MIN_SYNCS: u32 = 4;
/// A file that was left after fewer syncs has lost time.
const MIN_LOGGED_SYNCS: u64 = 256;
/// So many of those, and no more files take part.
const MAX_EARLY_LEAVES: u32 = 8;
/// Where there was no log yet, it is asked for again after so long, ms.
const RETRY_MS: u64 = 200;

/// Whether files may take part. One byte, which hooks look at.
pub static IS_ON: AtomicBool = AtomicBool::new(false);
/// Nothing takes part any more from here on.
static HAS_STOPPED: AtomicBool = AtomicBool::new(false);
static SOCKET: OnceLock<CString> = OnceLock::new();
/// A link with who keeps logs, which does nothing but say that this process lives, until there is a session; -1: none.
static LINK: AtomicI32 = AtomicI32::new(-1);
static SESSION: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());
/// That of this process's parent, by which the parent and its keeper hear of this process's writes.
static INHERITED: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());
/// One file at a time comes to take part.
static ADOPTION: Mutex<()> = Mutex::new(());
/// The process in which one does, or did last.
static ADOPTER: AtomicU32 = AtomicU32::new(0);
/// Files take part whether that pays or not.
static IS_FORCED: AtomicBool = AtomicBool::new(false);
/// The files that take part, where they are named.
static GLOBS: OnceLock<Vec<CString>> = OnceLock::new();
static EARLY_LEAVES: AtomicU32 = AtomicU32::new(0);
static RETRY_AT_MS: AtomicU64 = AtomicU64::new(0);

/// Files may take part from here on: their logs are kept by who waits under this name. Where there are `globs` (fnmatch(3), absolute
/// paths), those that one of them names, at once; `always`: also where that has not paid.
pub fn switch_on(socket: CString, globs: Vec<CString>, always: bool) {
    IS_FORCED.store(always || !globs.is_empty(), Relaxed);
    _ = GLOBS.set(globs);
    if SOCKET.set(socket).is_ok() && meet() {
        IS_ON.store(true, Release);
    }
}

/// Links with who keeps logs. Whether that is possible.
fn meet() -> bool {
    match SOCKET.get().map(|socket| session::connect(socket)) {
        Some(Ok(link)) => {
            LINK.store(link, Release);
            true
        }
        Some(Err(errno)) => {
            HAS_STOPPED.store(true, Release);
            say_ended(&format!("its keeper cannot be reached: {errno}"));
            false
        }
        None => false,
    }
}

/// Whether files may take part.
#[inline(always)]
#[must_use]
pub fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

/// Whether there is, or was, a file that takes part.
#[must_use]
pub fn has_begun() -> bool {
    session().is_some()
}

/// Whether something is to be done about a descriptor.
#[inline]
#[must_use]
pub fn is_known(fd: c_int) -> bool {
    is_on() && descriptors::kind(fd) != Kind::Unknown
}

/// Whether a descriptor's file takes part, here or in the process that this one was forked from.
#[must_use]
pub fn takes_part(fd: c_int) -> bool {
    is_on() && matches!(descriptors::kind(fd), Kind::Logged(_) | Kind::Inherited(_))
}

/// Whether files take part whether that pays or not.
fn is_forced() -> bool {
    IS_FORCED.load(Relaxed)
}

/// The files that take part, where they are named.
fn globs() -> &'static [CString] {
    GLOBS.get().map_or(&[], Vec::as_slice)
}

/// Whether a file may take part, as far as files are named.
fn is_named(path: &[u8]) -> bool {
    let Ok(path) = CString::new(path) else { return false };
    globs().is_empty() || globs().iter().any(|glob| file::matches(glob, &path))
}

fn session() -> Option<&'static Session> {
    // SAFETY: sessions are never freed.
    unsafe { SESSION.load(Acquire).as_ref() }
}

/// The link, and the log.
fn links() -> impl Iterator<Item = c_int> {
    let link = Some(LINK.load(Acquire)).filter(|link| *link >= 0);
    link.into_iter().chain(session().map(Session::log_descriptor))
}

/// The descriptors that are ours.
pub fn own_descriptors() -> impl Iterator<Item = c_int> {
    links().chain(forks::descriptors())
}

/// The program goes on without its log: said once.
fn say_ended(why: &str) {
    mem::say(format_args!("uncopy: no log any more: {why}; files are synced by their file system\n"));
}

/// Whether nobody keeps the log any more: then nothing takes part from here on.
fn has_lost_keeper() -> bool {
    let has_ended = session().is_some_and(Session::has_ended);
    if has_ended && !HAS_STOPPED.swap(true, AcqRel) {
        say_ended("its keeper has ended");
    }
    has_ended
}

/// The program is about to open a file. Where nobody keeps its log any more, nobody else lets others open files that take part.
pub fn before_open() {
    if logged::number() > 0 && has_lost_keeper() {
        change_all(false);
    }
}

/// The session, which begins now if there is none.
fn find_session() -> Option<&'static Session> {
    if let Some(session) = session() {
        return (!has_lost_keeper()).then_some(session);
    }
    let link = Some(LINK.load(Acquire)).filter(|link| *link >= 0)?;
    if clock::now_ms() < RETRY_AT_MS.load(Relaxed) {
        return None;
    }
    match Session::begin(link) {
        Ok(session) => {
            let session = Box::leak(Box::new(session));
            SESSION.store(session, Release);
            Some(session)
        }
        Err(NoSession::Later) => {
            RETRY_AT_MS.store(clock::now_ms() + RETRY_MS, Relaxed);
            None
        }
        Err(NoSession::Never(errno)) => {
            HAS_STOPPED.store(true, Release);
            say_ended(&errno.to_string());
            None
        }
    }
}

/// The program has opened a file; [`forks_before_open`] has said this before.
pub fn opened(fd: c_int, flags: c_int, forks: Option<u64>) {
    const UNFIT: c_int = libc::O_DIRECT | libc::O_DSYNC | libc::O_PATH | libc::O_DIRECTORY;
    let is_fit = flags & libc::O_ACCMODE != libc::O_RDONLY && flags & UNFIT == 0;
    if let Some(forks) = forks.filter(|_| is_fit && !HAS_STOPPED.load(Relaxed)) {
        descriptors::open(fd, forks);
    } else if descriptors::kind(fd) != Kind::Unknown {
        descriptors::set(fd, Kind::Unknown);
    }
}

/// What came of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synced {
    /// What `fsync` returns; -1: `errno` is set.
    pub result: c_int,
    /// Bytes that survive by the log; `None`: by the file system.
    pub logged_bytes: Option<usize>,
}

impl Synced {
    const fn plain(result: c_int) -> Self {
        Self { result, logged_bytes: None }
    }
}

/// A sync of the program's, by `real` unless the log answers it.
pub fn sync(fd: c_int, real: impl Fn() -> c_int) -> Synced {
    let plainly = |result| Some(Synced::plain(result));
    loop {
        let answer = match descriptors::kind(fd) {
            Kind::Unknown | Kind::Refused => plainly(real()),
            Kind::Failed(errno) => {
                descriptors::set(fd, Kind::Refused);
                errno::set(errno);
                plainly(-1)
            }
            Kind::Candidate => plainly(sync_candidate(fd, &real)),
            Kind::Inherited(place) => {
                touch(place, SYNCING);
                let result = real();
                // An error that was told here the keeper does not hear.
                let has_failed = touch(place, if result == 0 { 0 } else { FAILED }) & FAILED != 0;
                release(place, SYNCING);
                descriptors::set(fd, Kind::Refused);
                plainly(if result == 0 && !has_failed { answer(mark::take(fd)) } else { result })
            }
            Kind::Logged(place) => {
                let answer = file_at(place).sync(fd, &real);
                // Where the log has answered, somebody keeps it.
                if answer.is_none_or(|synced| synced.logged_bytes.is_none()) {
                    let _errno = errno::Keep::new();
                    before_open();
                }
                answer
            }
        };
        if let Some(answer) = answer {
            return answer;
        }
    }
}

/// A sync of a file that may take part: with it that begins, if it is time.
fn sync_candidate(fd: c_int, real: &impl Fn() -> c_int) -> c_int {
    let (syncs, bytes, write_ns) = descriptors::count_sync(fd);
    let begun_ns = clock::now_ns();
    let is_forced = is_forced();
    if is_forced
        && (syncs >= MIN_SYNCS || !globs().is_empty())
        && let Some(adopted) = adopt(fd)
    {
        return answer(adopted);
    }
    let result = real();
    if result == 0
        && bytes > 0
        && !is_forced
        && trial::note_plain(bytes, clock::now_ns() - begun_ns + write_ns)
        && syncs >= MIN_SYNCS
    {
        // That the file is synced once more is quick; an error of that is the next sync's.
        if let Some(Err(errno)) = adopt(fd) {
            change(fd, false);
            descriptors::set(fd, Kind::Failed(errno.0));
        }
    }
    result
}

fn answer(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            errno::set(errno.0);
            -1
        }
    }
}

/// Lets a candidate take part: what the sync has said with which that begins; `None`: it does not, and is not synced.
fn adopt(fd: c_int) -> Option<Result<(), Errno>> {
    let _adoption = ADOPTION.try_lock().ok()?;
    ADOPTER.store(std::process::id(), Relaxed);
    if HAS_STOPPED.load(Relaxed) {
        descriptors::set(fd, Kind::Refused);
        return None;
    }
    let now_ms = clock::now_ms();
    if descriptors::is_paused(fd, now_ms) {
        return None;
    }
    let Some((status, identity)) = fit(fd) else {
        descriptors::pause(fd, now_ms);
        return None;
    };
    let session = find_session()?;
    // What a child has said of a file that is here no more counts no more.
    let has_room = |place: &usize| session.place(*place).flags.load(Acquire) & !TOUCHED == 0;
    let place = (0..MAX_FILES).find(|place| has_room(place) && file_at(*place).is_free())?;
    let tracked = file_at(place);
    let mut inner = tracked.lock();
    tracked.begin(file::flags(fd).is_ok_and(|flags| flags & libc::O_APPEND != 0));
    if !descriptors::adopt(fd, place, forks::has_others) {
        tracked.end(place, Kind::Candidate);
        descriptors::pause(fd, now_ms);
        return None;
    }
    session.place(place).flags.store(HELD, Release);
    match session.ask(&[ADOPT, place as u64], fd) {
        Ok([ADOPTED, said, ..]) => {
            *inner = Some(Logged::new(status, identity));
            Some(if said == 0 { Ok(()) } else { Err(Errno(said as i32)) })
        }
        _ => {
            // Somebody else has it, or it has another name: not for ever.
            tracked.end(place, Kind::Candidate);
            descriptors::pause(fd, now_ms);
            session.place(place).flags.store(0, Release);
            None
        }
    }
}

/// What is known of a file that can take part.
fn fit(fd: c_int) -> Option<(file::Status, crate::layout::Identity)> {
    let status = file::status(fd).ok().filter(|status| status.is_regular() && status.links == 1)?;
    let flags = file::flags(fd).ok()?;
    let is_fit = flags & (libc::O_DIRECT | libc::O_DSYNC) == 0 && mark::is_fit(fd);
    let identity = mark::identity(fd, &status).filter(|identity| is_named(&identity.path))?;
    is_fit.then_some((status, identity))
}

/// A file that was left too soon: whether another one may take part.
fn count_leave(syncs: u64) {
    if syncs < MIN_LOGGED_SYNCS && !is_forced() && EARLY_LEAVES.fetch_add(1, Relaxed) + 1 >= MAX_EARLY_LEAVES
    {
        HAS_STOPPED.store(true, Release);
    }
}

/// The parent, and its keeper, are to know that this process may write to the file, and these flags: those that there were before.
fn touch(place: usize, flags: u32) -> u32 {
    // SAFETY: sessions are never freed.
    let inherited = unsafe { INHERITED.load(Acquire).as_ref() };
    inherited.map_or(0, |session| session.place(place).flags.fetch_or(TOUCHED | flags, AcqRel)) | flags
}

/// They are not to know these flags any more.
fn release(place: usize, flags: u32) {
    // SAFETY: sessions are never freed.
    if let Some(session) = unsafe { INHERITED.load(Acquire).as_ref() } {
        session.place(place).flags.fetch_and(!flags, AcqRel);
    }
}

/// Something is about to happen to a file that no record tells of: it is left first. Whether it may take part again later.
pub fn change(fd: c_int, again: bool) {
    match descriptors::kind(fd) {
        Kind::Logged(place) => file_at(place).leave(fd, again),
        Kind::Inherited(place) => {
            let has_failed = touch(place, 0) & FAILED != 0;
            if !again && !has_failed && mark::take(fd).is_ok() {
                descriptors::set(fd, Kind::Refused);
            }
        }
        Kind::Candidate if !again => descriptors::set(fd, Kind::Refused),
        _ => {}
    }
    if !again {
        forks::give_on(descriptors::opened_at(fd));
    }
}

/// All files are left, for good if `again` is false.
pub fn change_all(again: bool) {
    if !again {
        HAS_STOPPED.store(true, Release);
    }
    descriptors::known(0, u32::MAX).for_each(|fd| change(fd, again));
}

/// The process ends: its files are the file system's, and neither they nor its log are in use by its keeper, when this returns; or
/// after a while, if that takes longer.
pub fn finish() {
    if !is_on() {
        return;
    }
    HAS_STOPPED.store(true, Release);
    session().into_iter().filter(|session| !session.has_ended()).for_each(Session::say_bye);
}

/// The process is about to be another user's, or to be allowed less: what the log has is put into the files first, and nothing is shared
/// with its keeper from then on. Files are the file system's, for good: what the new user may write must not go where the old one's
/// keeper, or a recovery, would put it.
pub fn part() {
    if LINK.load(Acquire) < 0 && INHERITED.load(Acquire).is_null() {
        return;
    }
    HAS_STOPPED.store(true, Release);
    let adoption = loop {
        match ADOPTION.try_lock() {
            Ok(adoption) => break Some(adoption),
            // A thread of the process that this one was forked from had it then.
            Err(_) if ADOPTER.load(Relaxed) != std::process::id() => break None,
            Err(_) => clock::doze(),
        }
    };
    change_all(false);
    // It is the session's, if there is one.
    let link = LINK.swap(-1, AcqRel);
    // SAFETY: sessions are never freed.
    let (own, inherited) = unsafe {
        (
            SESSION.swap(core::ptr::null_mut(), AcqRel).as_ref(),
            INHERITED.swap(core::ptr::null_mut(), AcqRel).as_ref(),
        )
    };
    match own {
        Some(session) => session.part(),
        None if link >= 0 => file::close(link),
        None => {}
    }
    inherited.into_iter().for_each(Session::part_from_child);
    drop(adoption);
}

/// After [`part`]: hooks look at no descriptor any more.
pub fn leave() {
    IS_ON.store(false, Release);
}

/// What a path names is about to have another one, or none: a file that takes part is left, and its records, which have the old one,
/// are given back.
///
/// # Safety
/// The program's own path: it is terminated, or the kernel cannot read it.
pub unsafe fn renamed(directory: c_int, path: *const core::ffi::c_char) {
    // SAFETY: the caller's.
    let Ok(inode) = (unsafe { file::inode_at(directory, path) }) else { return };
    for fd in descriptors::known(0, u32::MAX) {
        let is_it = || file::status(fd).is_ok_and(|status| (status.device, status.inode) == inode);
        if matches!(descriptors::kind(fd), Kind::Logged(_)) && is_it() {
            change(fd, true);
        }
    }
    if let Some(session) = session() {
        session.forget(inode);
    }
}

/// A descriptor was duplicated.
pub fn duplicated(from: c_int, to: c_int) {
    match descriptors::kind(from) {
        Kind::Logged(place) => file_at(place).duplicate(from, to),
        Kind::Unknown => {
            if descriptors::kind(to) != Kind::Unknown {
                descriptors::set(to, Kind::Unknown);
            }
        }
        kind @ Kind::Inherited(_) => descriptors::duplicate(from, to, kind),
        // Whoever writes by the other one is not counted.
        Kind::Candidate | Kind::Refused => {
            descriptors::set(from, Kind::Refused);
            descriptors::duplicate(from, to, Kind::Refused);
        }
        Kind::Failed(errno) => descriptors::set(to, Kind::Failed(errno)),
    }
}

/// A descriptor is about to be closed.
pub fn closed(fd: c_int) {
    match descriptors::kind(fd) {
        Kind::Unknown => {}
        Kind::Logged(place) => file_at(place).close(fd),
        _ => descriptors::set(fd, Kind::Unknown),
    }
}

/// Descriptors from `first` to `last` are about to be closed.
pub fn closed_range(first: u32, last: u32) {
    descriptors::known(first, last).for_each(closed);
}

/// The process is about to fork: the child may write to whatever is open.
pub fn before_fork() {
    forks::prepare();
    for fd in descriptors::known(0, u32::MAX) {
        match descriptors::kind(fd) {
            Kind::Candidate => descriptors::note_forked(fd),
            Kind::Logged(place) => file_at(place).note_forked(),
            _ => {}
        }
    }
}

/// The process has forked, or has tried to.
pub fn after_fork() {
    forks::parent();
}

/// In a forked child: its parent's files are not its own.
pub fn in_child() {
    for fd in descriptors::known(0, u32::MAX) {
        match descriptors::kind(fd) {
            Kind::Logged(place) => descriptors::set(fd, Kind::Inherited(place)),
            Kind::Candidate => descriptors::set(fd, Kind::Refused),
            // Of a process before its parent.
            Kind::Inherited(_) => change(fd, false),
            _ => {}
        }
    }
    links().for_each(file::close);
    forks::child();
    // What is known of a process before its parent is of no use any more: its files were left above.
    // SAFETY: sessions are never freed.
    let before = unsafe { INHERITED.swap(core::ptr::null_mut(), AcqRel).as_ref() };
    before.into_iter().for_each(Session::part_from_child);
    if let Some(session) = session() {
        session.part_in_child();
        INHERITED.store(core::ptr::from_ref(session).cast_mut(), Release);
    }
    SESSION.store(core::ptr::null_mut(), Release);
    LINK.store(-1, Release);
    if !HAS_STOPPED.load(Relaxed) {
        meet();
    }
}

/// A process that shares the files is about to execute another program: they are left, if they stay open there. `is_owner`: it is
/// this process, not a child of vfork that shares its memory.
pub fn before_exec(is_owner: bool) {
    for fd in descriptors::known(0, u32::MAX) {
        let stays_open = fd::closes_on_exec(fd) == Some(false);
        match descriptors::kind(fd) {
            Kind::Logged(place) if stays_open && !is_owner => {
                if let Some(session) = session() {
                    session.place(place).flags.fetch_or(TOUCHED, AcqRel);
                }
                file_at(place).note_forked();
                // What it says, the program's next sync says.
                let _ = file_at(place).take_mark(fd);
            }
            Kind::Logged(_) if is_owner => change(fd, false),
            Kind::Inherited(_) | Kind::Candidate | Kind::Refused if stays_open => change(fd, false),
            _ => {}
        }
    }
}

/// The process is about to start another program: files that stay open there are left.
pub fn before_spawn() {
    let stay_open = |fd: &c_int| fd::closes_on_exec(*fd) == Some(false);
    descriptors::known(0, u32::MAX).filter(stay_open).for_each(|fd| change(fd, false));
}
