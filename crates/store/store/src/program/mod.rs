//! The program's side of the log: selects files, captures their writes, and answers their syncs.
//!
//! ```text
//! opened ─► candidate ─ several syncs ─► logged ─► left: synced by the file system again
//!               └── any change that no record can describe ──► refused ◄──┘
//! ```
//!
//! Leaving the log takes three steps: sync the file, remove its mark, make the removal durable. The program
//! continues only after the third. Callers preserve `errno` and defer the program's signal handlers.

mod adopt;
pub mod chunk_pool;
pub mod descriptors;
mod forks;
mod logged;
mod mapped_log;
mod paths;
pub mod received;
mod session;
mod trial;

pub use forks::{number_before_open as forks_before_open, share as share_descriptors};
pub use logged::mapped::inherited::settle_inherited;
pub use logged::mapped::reads::read_mapped;
pub use logged::mapped::status::{MappedStatus, hides_append, mapped_status, seek};
pub use logged::mapped::{
    Appended, MappedResult, MappedWrite, has_mapped_files, mapped_departures, write_mapped,
};
pub use logged::{LoggedWrite, OngoingWrite, Place, begin_write, logged_files};
pub use paths::{removed, renamed, stop_logging_at};

use crate::mark;
use crate::state::{FAILED, SYNCING, TOUCHED};
use adopt::adopt;
use core::ffi::c_int;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use descriptors::Kind;
use logged::file_at;
use session::{NoSession, Session};
use std::ffi::CString;
use std::sync::{Mutex, OnceLock};
use uncopy_sys::descriptor::{OwnSlot, ProgramFd};
use uncopy_sys::errno::{self, Errno};
use uncopy_sys::{clock, fd, features, file, mem};

/// Minimum number of syncs of a file before it is logged: many files are synced once and closed.
const MIN_SYNCS: u32 = 4;
/// Below this many syncs, logging the file was a net loss.
const MIN_LOGGED_SYNCS: u64 = 256;
/// Number of such losses after which no more files are logged.
const MAX_EARLY_LEAVES: u32 = 8;
/// Delay before asking for a log again when none was ready, milliseconds.
const RETRY_MS: u64 = 200;

/// Longest time for which a keeper can hold a file that another process opens, milliseconds: the kernel breaks
/// a lease after `/proc/sys/fs/lease-break-time` (45 s), and some slack.
const MAX_LEASE_MS: u64 = 60_000;
/// Longest wait for a lease on an unmarked file, milliseconds. The lease may be a keeper's, which takes the
/// lease before it sets the mark and ends it after it removes the mark, or an unrelated process's.
const MAX_UNMARKED_MS: u64 = 2000;

/// Whether files may be logged. Hooks read this single byte.
pub static IS_ON: AtomicBool = AtomicBool::new(false);
/// True once logging has stopped for good.
static HAS_STOPPED: AtomicBool = AtomicBool::new(false);
static SOCKET: OnceLock<CString> = OnceLock::new();
/// Connection to the keeper, empty while there is none. Until a session begins on it, it only tells the keeper
/// that this process is alive.
static LINK: OwnSlot = OwnSlot::empty();
static SESSION: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());
/// Session of the parent process, in which this process reports its writes to the parent's files.
static INHERITED: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());
/// Serialises adoptions: one file at a time begins to be logged.
static ADOPTION: Mutex<()> = Mutex::new(());
static ADOPTER: AtomicU32 = AtomicU32::new(0);
/// Whether files are logged even where that does not pay.
static IS_FORCED: AtomicBool = AtomicBool::new(false);
/// Patterns of the paths to log; empty: any path.
static GLOBS: OnceLock<Vec<CString>> = OnceLock::new();
static EARLY_LEAVES: AtomicU32 = AtomicU32::new(0);
static RETRY_AT_MS: AtomicU64 = AtomicU64::new(0);

/// Uses of the memory of a mapped log.
#[derive(Clone, Copy, Debug)]
pub struct LogMemory {
    /// Whether records refer to bytes that lie there.
    pub refers: bool,
    /// Whether input is received there.
    pub receives: bool,
}

/// Whether the log is mapped and has the only copy of what is written.
static IS_ONLY_COPY: AtomicBool = AtomicBool::new(false);
/// Whether records of a mapped log refer to bytes that lie in its memory.
static REFERS: AtomicBool = AtomicBool::new(true);

/// Whether files of this process may be in a mapped log, now or later.
#[inline]
#[must_use]
pub fn is_only_copy() -> bool {
    IS_ONLY_COPY.load(Relaxed)
}

/// Switches logging on. `socket` is the path of the keeper's socket. With `globs` (fnmatch(3) patterns of
/// absolute paths) only matching files are logged, from their first sync on; `always` logs files even where
/// that has not paid. With `memory` the log is mapped and has the only copy.
pub fn switch_on(socket: CString, globs: Vec<CString>, always: bool, memory: Option<LogMemory>) {
    IS_ONLY_COPY.store(memory.is_some(), Relaxed);
    REFERS.store(memory.is_some_and(|memory| memory.refers), Relaxed);
    IS_FORCED.store(always || !globs.is_empty(), Relaxed);
    _ = GLOBS.set(globs);
    if SOCKET.set(socket).is_ok() && connect_keeper() {
        features::set_active();
        IS_ON.store(true, Release);
    }
}

fn connect_keeper() -> bool {
    match SOCKET.get().map(|socket| session::connect(socket)) {
        Some(Ok(link)) => {
            drop(LINK.replace(Some(link)));
            true
        }
        Some(Err(errno)) => {
            HAS_STOPPED.store(true, Release);
            report_end(&format!("its keeper cannot be reached: {errno}"));
            false
        }
        None => false,
    }
}

/// Returns whether files may be logged.
#[inline(always)]
#[must_use]
pub fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

/// Returns whether this process has a session; without one, none of its files is logged.
#[must_use]
pub fn has_begun() -> bool {
    session().is_some()
}

/// Returns the longest time for which a keeper may hold the file at `path` until others can open it,
/// milliseconds; 0 if no keeper can. The keeper may be that of another program, such as this process's parent.
///
/// # Safety
/// `path` points to a NUL-terminated string, or to memory that the kernel refuses to read (EFAULT).
#[must_use]
pub unsafe fn max_hold_ms(directory: ProgramFd, path: *const core::ffi::c_char) -> u64 {
    // SAFETY: the caller passes a path that is NUL-terminated or that the kernel refuses to read.
    let Ok(fd) = (unsafe { file::open_path_at(directory, path) }) else { return 0 };
    let is_eligible =
        file::status(&fd).is_ok_and(|status| status.is_regular()) && mark::supports_logging(&fd);
    match mark::is_marked(&fd) {
        _ if !is_eligible => 0,
        Some(true) => MAX_LEASE_MS,
        _ => MAX_UNMARKED_MS,
    }
}

/// Takes memory in the mapped log that records can refer to; `None`: there is no such log, or no room now.
#[must_use]
pub fn alloc_chunk(len_bytes: usize) -> Option<chunk_pool::ChunkRun> {
    session()?.mapped()?.alloc(len_bytes)
}

/// Releases what records that are retired refer to. Never waits.
pub fn release_received() {
    if let Some(log) = session().and_then(Session::mapped) {
        log.release();
    }
}

/// Returns whether a descriptor needs any handling.
#[inline]
#[must_use]
pub fn is_tracked(fd: ProgramFd) -> bool {
    is_on() && descriptors::kind(fd) != Kind::Unknown
}

/// Returns whether the process that this one was forked from logged a descriptor's file.
#[must_use]
pub fn is_inherited(fd: ProgramFd) -> bool {
    matches!(descriptors::kind(fd), Kind::Inherited(_))
}

/// Returns whether a descriptor's file is logged, by this process or by the one that it was forked from.
#[must_use]
pub fn is_in_log(fd: ProgramFd) -> bool {
    is_on() && matches!(descriptors::kind(fd), Kind::Logged(_) | Kind::Inherited(_))
}

fn is_forced() -> bool {
    IS_FORCED.load(Relaxed)
}

fn globs() -> &'static [CString] {
    GLOBS.get().map_or(&[], Vec::as_slice)
}

fn is_named(path: &[u8]) -> bool {
    let Ok(path) = CString::new(path) else { return false };
    globs().is_empty() || globs().iter().any(|glob| file::matches(glob, &path))
}

fn inherited_session() -> Option<&'static Session> {
    // SAFETY: the pointer is null or comes from `Box::leak`; sessions are never freed.
    unsafe { INHERITED.load(Acquire).as_ref() }
}

fn session() -> Option<&'static Session> {
    // SAFETY: the pointer is null or comes from `Box::leak`; sessions are never freed.
    unsafe { SESSION.load(Acquire).as_ref() }
}

/// Returns the descriptors of the connection to the keeper and of the log.
fn links() -> impl Iterator<Item = &'static OwnSlot> {
    core::iter::once(&LINK).chain(session().map(Session::log_file))
}

/// Returns the descriptors that belong to the log and not to the program.
pub fn own_descriptors() -> impl Iterator<Item = ProgramFd> {
    links().filter_map(OwnSlot::as_program).chain(forks::descriptors())
}

/// Reports that the program continues without its log.
fn report_end(why: &str) {
    mem::write_stderr(format_args!(
        "uncopy: no log any more: {why}; files are synced by their file system\n"
    ));
}

/// Returns whether the keeper has ended; if so, stops logging for good.
fn has_lost_keeper() -> bool {
    let has_ended = session().is_some_and(Session::has_ended);
    if has_ended && !HAS_STOPPED.swap(true, AcqRel) {
        report_end("its keeper has ended");
    }
    has_ended
}

/// Prepares for the program opening a file. After the keeper's end its leases no longer let other processes
/// open logged files, so all files leave the log.
pub fn before_open() {
    if logged::logged_files() > 0 && has_lost_keeper() {
        stop_logging_all(false);
    }
}

fn find_session() -> Option<&'static Session> {
    if let Some(session) = session() {
        return (!has_lost_keeper()).then_some(session);
    }
    let link = LINK.get()?;
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
            report_end(&errno.to_string());
            None
        }
    }
}

/// Notes that the program has opened a file. `forks` is the result of [`forks_before_open`] before the open.
pub fn opened(fd: ProgramFd, flags: c_int, forks: Option<u64>) {
    const EXCLUDED: c_int = libc::O_DIRECT | libc::O_DSYNC | libc::O_PATH | libc::O_DIRECTORY;
    let is_eligible = flags & libc::O_ACCMODE != libc::O_RDONLY && flags & EXCLUDED == 0;
    if let Some(forks) = forks.filter(|_| is_eligible && !HAS_STOPPED.load(Relaxed)) {
        descriptors::open(fd, forks);
    } else if descriptors::kind(fd) != Kind::Unknown {
        descriptors::set(fd, Kind::Unknown);
    }
}

/// Result of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synced {
    /// Return value of `fsync`; -1: `errno` is set.
    pub result: c_int,
    /// Bytes that the log made durable; `None`: the file system made the file durable.
    pub logged_bytes: Option<usize>,
}

impl Synced {
    const fn plain(result: c_int) -> Self {
        Self { result, logged_bytes: None }
    }
}

/// Syncs a file in a mapped log without a system call; `None`: [`sync`] has to be called.
#[must_use]
pub fn sync_mapped(fd: ProgramFd) -> Option<Synced> {
    let Kind::Logged(slot) = descriptors::kind(fd) else { return None };
    session()?.mapped()?;
    file_at(slot).sync_in_log(fd)
}

/// Syncs a file for the program: by the log, or by calling `real`.
pub fn sync(fd: ProgramFd, real: impl Fn() -> c_int) -> Synced {
    let plain = |result| Some(Synced::plain(result));
    loop {
        let answer = match descriptors::kind(fd) {
            Kind::Unknown | Kind::Refused => plain(real()),
            Kind::Failed(errno) => {
                descriptors::set(fd, Kind::Refused);
                errno::set(errno);
                plain(-1)
            }
            Kind::Candidate => plain(sync_candidate(fd, &real)),
            Kind::Inherited(_) if inherited_session().is_some_and(Session::is_mapped) => {
                settle_inherited(fd);
                plain(real())
            }
            Kind::Inherited(slot) => {
                touch(slot, SYNCING);
                let result = real();
                // The file system reports an error once per open file, so the keeper will not see this one.
                let has_failed = touch(slot, if result == 0 { 0 } else { FAILED }) & FAILED != 0;
                release(slot, SYNCING);
                descriptors::set(fd, Kind::Refused);
                plain(if result == 0 && !has_failed { answer(mark::sync_and_remove(fd)) } else { result })
            }
            Kind::Logged(slot) => {
                let answer = file_at(slot).sync(fd, &real);
                // A sync that the log answered has just talked to a living keeper.
                if answer.is_none_or(|synced| synced.logged_bytes.is_none()) {
                    let _errno = errno::SavedErrno::new();
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

/// Syncs a candidate, and begins to log it if it is due.
fn sync_candidate(fd: ProgramFd, real: &impl Fn() -> c_int) -> c_int {
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
        // The file is clean, so the sync that begins logging is quick; its error is reported by the next sync.
        if let Some(Err(errno)) = adopt(fd) {
            stop_logging(fd, false);
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

/// Counts a file that left the log, and stops logging for good after too many early ones.
fn count_leave(syncs: u64) {
    if syncs < MIN_LOGGED_SYNCS && !is_forced() && EARLY_LEAVES.fetch_add(1, Relaxed) + 1 >= MAX_EARLY_LEAVES
    {
        HAS_STOPPED.store(true, Release);
    }
}

/// Tells the parent and its keeper that this process may write to the file, and sets `flags`. Returns the flags
/// before that, with `flags`.
fn touch(slot: usize, flags: u32) -> u32 {
    inherited_session().map_or(0, |session| session.slot(slot).flags.fetch_or(TOUCHED | flags, AcqRel))
        | flags
}

/// Clears flags that [`touch`] has set.
fn release(slot: usize, flags: u32) {
    if let Some(session) = inherited_session() {
        session.slot(slot).flags.fetch_and(!flags, AcqRel);
    }
}

/// Takes a file out of the log before a change that no record can describe; for good unless `again`.
pub fn stop_logging(fd: ProgramFd, again: bool) {
    match descriptors::kind(fd) {
        Kind::Logged(slot) => file_at(slot).stop_logging(fd, again),
        Kind::Inherited(_) if inherited_session().is_some_and(Session::is_mapped) => settle_inherited(fd),
        Kind::Inherited(slot) => {
            let has_failed = touch(slot, 0) & FAILED != 0;
            if !again && !has_failed && mark::sync_and_remove(fd).is_ok() {
                descriptors::set(fd, Kind::Refused);
            }
        }
        Kind::Candidate if !again => descriptors::set(fd, Kind::Refused),
        _ => {}
    }
    if !again {
        forks::pass_on(descriptors::opened_at(fd));
    }
}

/// Takes all files out of the log; for good unless `again` is true.
pub fn stop_logging_all(again: bool) {
    if !again {
        HAS_STOPPED.store(true, Release);
    }
    descriptors::known().for_each(|fd| stop_logging(fd, again));
}

/// Ends the session when the process ends. On return, the keeper uses neither the files nor the log any more,
/// unless that took too long.
pub fn finish() {
    if !is_on() {
        return;
    }
    HAS_STOPPED.store(true, Release);
    session().into_iter().filter(|session| !session.has_ended()).for_each(Session::end_and_wait);
}

/// Detaches the process from the keeper before it changes its user or loses privileges: syncs all files, and
/// then shares no memory or descriptor with the keeper. Logging stops for good, because the old user's keeper,
/// or a recovery, must not write the new user's bytes.
pub fn detach() {
    if LINK.get().is_none() && INHERITED.load(Acquire).is_null() {
        return;
    }
    HAS_STOPPED.store(true, Release);
    let adoption = loop {
        match ADOPTION.try_lock() {
            Ok(adoption) => break Some(adoption),
            // The process was forked while a thread of its parent held the lock.
            Err(_) if ADOPTER.load(Relaxed) != std::process::id() => break None,
            Err(_) => clock::sleep_10_ms(),
        }
    };
    stop_logging_all(false);
    let link = LINK.take();
    // SAFETY: both pointers are null or come from `Box::leak`; sessions are never freed.
    let (own, inherited) = unsafe {
        (
            SESSION.swap(core::ptr::null_mut(), AcqRel).as_ref(),
            INHERITED.swap(core::ptr::null_mut(), AcqRel).as_ref(),
        )
    };
    own.into_iter().for_each(Session::detach);
    drop(link);
    inherited.into_iter().for_each(Session::detach_from_child);
    drop(adoption);
}

/// Disables the hooks after [`detach`].
pub fn disable() {
    IS_ON.store(false, Release);
}

/// Notes that a descriptor was duplicated.
pub fn duplicated(from: ProgramFd, to: ProgramFd) {
    match descriptors::kind(from) {
        Kind::Logged(slot) => file_at(slot).duplicate(from, to),
        Kind::Unknown => {
            if descriptors::kind(to) != Kind::Unknown {
                descriptors::set(to, Kind::Unknown);
            }
        }
        kind @ Kind::Inherited(_) => descriptors::duplicate(from, to, kind),
        // Writes through the duplicate would not be counted.
        Kind::Candidate | Kind::Refused => {
            descriptors::set(from, Kind::Refused);
            descriptors::duplicate(from, to, Kind::Refused);
        }
        Kind::Failed(errno) => descriptors::set(to, Kind::Failed(errno)),
    }
}

/// Prepares for closing a descriptor.
pub fn closed(fd: ProgramFd) {
    match descriptors::kind(fd) {
        Kind::Unknown => {}
        Kind::Logged(slot) => file_at(slot).close(fd),
        _ => descriptors::set(fd, Kind::Unknown),
    }
}

/// Prepares for a fork: the child may write to all open files.
pub fn before_fork() {
    // Children of a process with a mapped log ask before they use a descriptor: `settle_inherited`.
    forks::prepare(session().is_some_and(Session::is_mapped));
    for fd in descriptors::known() {
        match descriptors::kind(fd) {
            Kind::Candidate => descriptors::note_forked(fd),
            Kind::Logged(slot) => file_at(slot).note_forked(),
            _ => {}
        }
    }
}

/// Ends [`before_fork`] in the parent, also when the fork failed.
pub fn after_fork() {
    forks::parent();
}

/// Begins a forked child, which logs none of its parent's files.
pub fn in_child() {
    let is_mapped = session().is_some_and(Session::is_mapped);
    for fd in descriptors::known() {
        match descriptors::kind(fd) {
            Kind::Logged(slot) => descriptors::set(fd, Kind::Inherited(slot)),
            // The parent may log the file later.
            Kind::Candidate if is_mapped => descriptors::set(fd, Kind::Inherited(descriptors::NO_SLOT)),
            Kind::Candidate => descriptors::set(fd, Kind::Refused),
            // A file of the grandparent: the child has no session for it.
            Kind::Inherited(_) => stop_logging(fd, false),
            _ => {}
        }
    }
    links().for_each(|slot| drop(slot.take()));
    forks::child();
    // The grandparent's files have left the log above, so its session is no longer needed.
    // SAFETY: the pointer is null or comes from `Box::leak`; sessions are never freed.
    let before = unsafe { INHERITED.swap(core::ptr::null_mut(), AcqRel).as_ref() };
    before.into_iter().for_each(Session::detach_from_child);
    if let Some(session) = session() {
        session.detach_in_child();
        INHERITED.store(core::ptr::from_ref(session).cast_mut(), Release);
    }
    SESSION.store(core::ptr::null_mut(), Release);
    if !HAS_STOPPED.load(Relaxed) {
        connect_keeper();
    }
}

/// Prepares for execve(2): files that stay open across it leave the log. `is_owner` is false in a child of
/// vfork(2), which shares this process's memory.
pub fn before_exec(is_owner: bool) {
    for fd in descriptors::known() {
        let stays_open = fd::closes_on_exec(fd) == Some(false);
        match descriptors::kind(fd) {
            Kind::Logged(_) if stays_open && !is_owner && has_mapped_files() => stop_logging(fd, false),
            Kind::Logged(slot) if stays_open && !is_owner => {
                if let Some(session) = session() {
                    session.slot(slot).flags.fetch_or(TOUCHED, AcqRel);
                }
                file_at(slot).note_forked();
                // An error stays in the flags and is reported by the program's next sync.
                let _ = file_at(slot).sync_and_unmark(fd);
            }
            Kind::Logged(_) if is_owner => stop_logging(fd, false),
            Kind::Inherited(_) | Kind::Candidate | Kind::Refused if stays_open => stop_logging(fd, false),
            _ => {}
        }
    }
}

/// Prepares for posix_spawn(3) and the like: files that stay open in the new program leave the log.
pub fn before_spawn() {
    let stay_open = |fd: &ProgramFd| fd::closes_on_exec(*fd) == Some(false);
    descriptors::known().filter(stay_open).for_each(|fd| stop_logging(fd, false));
}
