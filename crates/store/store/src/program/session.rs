//! The program's side of its connection to the keeper.

use super::mapped_log::MappedLog;
use super::received::FileKeeper;
use crate::device::LogFile;
use crate::layout::{RING_OFFSET, Superblock};
use crate::lock;
use crate::log::Log;
use crate::messages::{
    ADOPT_MEMORY, ADOPTED, BYE, DIGEST, HELLO, LOG, MAKE_ROOM, PROTOCOL, REFUSED, UNAVAILABLE, WELCOME,
    WELCOME_MAPPED,
};
use crate::state::{FileSlot, SLOTS_OFFSET, STATE_BYTES, State};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::Mutex;
use uncopy_sys::descriptor::{OwnFd, OwnRef, OwnSlot, ProgramFd};
use uncopy_sys::errno::Errno;
use uncopy_sys::fd::duplicate_high;
use uncopy_sys::mem::JointMemory;
use uncopy_sys::seqpacket::{self, MAX_WORDS};
use uncopy_sys::{clock, mem, wait};

/// Longest wait for the keeper, milliseconds: for a keeper that is stopped, or whose disk is broken. A keeper that
/// syncs large files to a slow disk takes minutes.
pub(super) const MAX_WAIT_MS: u64 = 600_000;

/// Delay after which a process says what it waits for, milliseconds: when it ends, and for an answer.
const END_SILENCE_MS: u64 = 1000;
const ANSWER_SILENCE_MS: u64 = 10_000;

type Words = [u64; MAX_WORDS];

/// The log that this process appends to, and its connection to the keeper.
#[derive(Debug)]
pub struct Session {
    link: OwnRef,
    /// Descriptor of the log; empty after [`Session::detach`].
    log_file: OwnSlot,
    /// State that program and keeper share; it lies in `memory`.
    pub state: &'static State,
    memory: JointMemory,
    log: SessionLog,
    asking: Mutex<()>,
    /// Inodes of files that left the log (device, number), each with the log's head behind its last record.
    departed: Mutex<Vec<((u64, u64), u64)>>,
    has_ended: AtomicBool,
    /// Tail of the log when the keeper was last told that a digest is due.
    reported_tail: AtomicU64,
}

/// The log of a session, open for appending.
#[derive(Debug)]
enum SessionLog {
    /// A log beside the page cache.
    Beside(Log<'static, LogFile>),
    /// A mapped log that has the only copy.
    Mapped(Box<MappedLog>),
}

/// Reason why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSession {
    /// The log is not ready yet.
    Later,
    /// No log will be available.
    Never(Errno),
}

/// Connects to the keeper's socket at `path`. The descriptor has a high number.
///
/// # Errors
/// The error of the connection; EMFILE if no high descriptor is free.
pub fn connect(path: &CStr) -> Result<OwnFd, Errno> {
    duplicate_high(&seqpacket::connect(path)?).ok_or(Errno(libc::EMFILE))
}

fn receive(link: OwnRef) -> Result<(Words, Option<OwnFd>), Errno> {
    let mut words = [0; MAX_WORDS];
    let (since_ms, mut is_reported) = (clock::now_ms(), false);
    loop {
        let waited_ms = clock::now_ms() - since_ms;
        match seqpacket::receive(link, &mut words) {
            Err(Errno::EAGAIN) if waited_ms < MAX_WAIT_MS => {
                if waited_ms >= ANSWER_SILENCE_MS && !is_reported {
                    is_reported = true;
                    mem::write_stderr(format_args!(
                        "uncopy: waiting for the keeper of the log, which is stopped or waits for a disk\n"
                    ));
                }
                wait::for_any([link].into_iter(), 1000);
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
            Ok(message) if message.words == 0 => return Err(Errno(libc::EPIPE)),
            Ok(message) => return Ok((words, message.fd)),
        }
    }
}

/// Receives a message with a descriptor, which is moved to a high number, and a first word that is one of `first`.
fn receive_with(link: OwnRef, first: &[u64]) -> Result<(Words, OwnFd), NoSession> {
    let (words, message) = receive(link).map_err(NoSession::Never)?;
    let Some(message) = message else {
        let is_later = words[0] == UNAVAILABLE && words[1] == 0;
        return Err(if is_later { NoSession::Later } else { NoSession::Never(Errno(words[1] as i32)) });
    };
    match duplicate_high(&message) {
        Some(fd) if first.contains(&words[0]) => Ok((words, fd)),
        Some(_) => Err(NoSession::Never(Errno(libc::EPROTO))),
        None => Err(NoSession::Never(Errno(libc::EMFILE))),
    }
}

/// Attaches to a log beside the page cache, which [`WELCOME`] describes.
fn attach_beside(
    log_fd: &OwnFd,
    welcome: &Words,
    state: &'static State,
) -> Result<Log<'static, LogFile>, Errno> {
    let [_, log, epoch, len_bytes, granule_bytes, machine, ..] = *welcome;
    let granule_bytes = granule_bytes as u32;
    let is_possible = (512..=4096).contains(&granule_bytes) && granule_bytes.is_power_of_two();
    if !is_possible || len_bytes <= RING_OFFSET {
        return Err(Errno(libc::EPROTO));
    }
    let superblock = Superblock { log, len_bytes, granule_bytes, machine };
    let device = LogFile { fd: log_fd.reference(), granule_bytes: granule_bytes as usize };
    Log::attach(device, superblock, epoch, state)
}

impl Session {
    /// Asks the keeper for a log.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn begin(link: OwnRef) -> Result<Self, NoSession> {
        seqpacket::send(link, &[HELLO, PROTOCOL]).map_err(NoSession::Never)?;
        let (words, state_fd) = receive_with(link, &[WELCOME, WELCOME_MAPPED])?;
        let joint = JointMemory::map(&state_fd, STATE_BYTES).map_err(NoSession::Never)?;
        drop(state_fd);
        // SAFETY: all fields are atomics, for which any bytes are valid; the mapping is never unmapped.
        let state: &'static State = unsafe { joint.as_ref() };
        let (_, log_fd) = receive_with(link, &[LOG])?;
        let log = match words {
            [WELCOME_MAPPED, _, len_bytes, is_persistent, ..] => {
                MappedLog::attach(log_fd.reference(), len_bytes, is_persistent != 0)
                    .map(|log| SessionLog::Mapped(Box::new(log)))
            }
            words => attach_beside(&log_fd, &words, state).map(SessionLog::Beside),
        };
        let log = log.map_err(NoSession::Never)?;
        let log_file = OwnSlot::empty();
        drop(log_file.replace(Some(log_fd)));
        Ok(Self {
            link,
            log_file,
            state,
            memory: joint,
            log,
            asking: Mutex::new(()),
            departed: Mutex::new(Vec::new()),
            has_ended: AtomicBool::new(false),
            reported_tail: AtomicU64::new(u64::MAX),
        })
    }

    /// Returns the slot of the log's descriptor.
    #[must_use]
    pub const fn log_file(&self) -> &OwnSlot {
        &self.log_file
    }

    /// Returns the connection to the keeper.
    #[must_use]
    pub const fn link(&self) -> OwnRef {
        self.link
    }

    /// Returns the log if it lies beside the page cache.
    #[must_use]
    pub const fn beside(&self) -> Option<&Log<'static, LogFile>> {
        if let SessionLog::Beside(log) = &self.log { Some(log) } else { None }
    }

    /// Returns the log if it is mapped.
    #[must_use]
    pub const fn mapped(&self) -> Option<&MappedLog> {
        if let SessionLog::Mapped(log) = &self.log { Some(log) } else { None }
    }

    /// Whether the log is mapped.
    #[must_use]
    pub const fn is_mapped(&self) -> bool {
        self.mapped().is_some()
    }

    /// Whether the keeper's end of the connection is open. This makes a system call.
    #[must_use]
    pub fn is_open(&self) -> bool {
        seqpacket::is_open(self.link)
    }

    /// Whether the session is known to have ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.has_ended.load(Acquire)
    }

    /// Returns whether the keeper is known to have ended. With a mapped log, this looks from time to time.
    #[must_use]
    pub fn has_lost_keeper(&self) -> bool {
        self.mapped().is_some_and(MappedLog::is_look_due) && self.has_ended() || self.is_ended()
    }

    /// Returns whether the keeper has ended. This makes a system call.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        if !self.has_ended.load(Acquire) && !seqpacket::is_open(self.link) {
            self.end();
        }
        self.has_ended.load(Acquire)
    }

    fn end(&self) {
        self.has_ended.store(true, Release);
    }

    /// Ends the session when the process ends, and waits until the keeper has synced all files and uses neither
    /// them nor the log. No file is logged from then on.
    pub fn end_and_wait(&self) {
        self.end();
        if seqpacket::send(self.link, &[BYE]).is_err() {
            return;
        }
        let since_ms = clock::now_ms();
        let (mut words, mut is_reported) = ([0; MAX_WORDS], false);
        loop {
            match seqpacket::receive(self.link, &mut words) {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                // The answer to another thread's question.
                Ok(message) if message.words > 0 => continue,
                _ => return,
            }
            let waited_ms = clock::now_ms() - since_ms;
            if waited_ms >= MAX_WAIT_MS {
                return;
            }
            if waited_ms >= END_SILENCE_MS && !is_reported {
                is_reported = true;
                mem::write_stderr(format_args!("uncopy: waiting until the files of the log are synced\n"));
            }
            wait::for_any([self.link].into_iter(), 100);
        }
    }

    /// Detaches from the keeper for good: closes the log and stops sharing the state, but not the connection.
    pub fn detach(&self) {
        let _asking = lock(&self.asking);
        self.end();
        drop(self.log_file.take());
        if let Some(log) = self.mapped() {
            // If there is no memory for that, the process keeps a mapping of its own log.
            let _ = log.detach();
        }
        self.memory.detach();
    }

    /// Stops sharing the state in a child of the session's process, but for the slots, in which the child
    /// reports its writes.
    pub fn detach_in_child(&self) {
        self.memory.detach_start(SLOTS_OFFSET);
    }

    /// Stops sharing the slots, too, in a child of the session's process.
    pub fn detach_from_child(&self) {
        self.memory.detach();
    }

    /// Asks the keeper and waits for the answer.
    ///
    /// # Errors
    /// EPIPE if the keeper has ended; an error of the connection, which ends the session.
    pub fn request(&self, words: &[u64]) -> Result<Words, Errno> {
        self.request_with_file(words, None)
    }

    /// Asks the keeper with a file of the program's, as [`Session::request`].
    ///
    /// # Errors
    /// The errors of [`Session::request`].
    pub fn request_with_file(&self, words: &[u64], file: Option<ProgramFd>) -> Result<Words, Errno> {
        self.ask(words, file).map(|(words, _)| words)
    }

    fn ask(&self, words: &[u64], file: Option<ProgramFd>) -> Result<(Words, Option<OwnFd>), Errno> {
        let _asking = lock(&self.asking);
        if self.has_ended.load(Acquire) {
            return Err(Errno(libc::EPIPE));
        }
        let answer = seqpacket::send_with(self.link, words, file).and_then(|()| receive(self.link));
        match answer {
            Ok(answer) => Ok(answer),
            Err(errno) => {
                self.end();
                Err(errno)
            }
        }
    }

    /// Tells the keeper if it should digest the log, once until its tail moves.
    pub fn tell_if_digest_is_due(&self) {
        let (is_due, tail) = match &self.log {
            SessionLog::Beside(log) => (log.used_bytes() > log.ring_bytes() / 2, self.state.tail()),
            SessionLog::Mapped(log) => {
                let level = log.fill_level();
                (level.is_digest_due(self.state.digest_bytes.load(Relaxed)), level.tail.0)
            }
        };
        if is_due && self.reported_tail.swap(tail, Relaxed) != tail {
            // Without this message the keeper digests within a second anyway.
            if let Ok(_asking) = self.asking.try_lock()
                && !self.has_ended.load(Acquire)
            {
                let _ = seqpacket::send(self.link, &[DIGEST]);
            }
        }
    }

    /// Notes that a file has left the log; its records may still be there.
    pub fn note_unlogged(&self, inode: (u64, u64)) {
        let mut departed = lock(&self.departed);
        let (head, tail) = (self.state.moment().map_or(u64::MAX, |moment| moment.head), self.state.tail());
        departed.retain(|(_, behind)| *behind > tail);
        departed.push((inode, head));
    }

    /// Waits until the log has no record of an unlogged file that is about to move where no recovery finds it.
    pub fn wait_until_retired(&self, inode: (u64, u64)) {
        let tail = self.state.tail();
        let mut departed = lock(&self.departed);
        let has_records = departed.iter().any(|(other, behind)| *other == inode && *behind > tail);
        departed.retain(|(_, behind)| *behind > tail);
        drop(departed);
        if has_records {
            // If the keeper cannot retire them, a recovery reports the file as not found.
            let _ = self.request(&[MAKE_ROOM]);
        }
    }

    /// Returns the shared state of a slot.
    #[must_use]
    pub fn slot(&self, slot: usize) -> &'static FileSlot {
        &self.state.slots[slot]
    }
}

impl FileKeeper for Session {
    fn adopt(&self, inode: u64, holder: u64) -> Result<(usize, OwnFd), Errno> {
        match self.ask(&[ADOPT_MEMORY, inode, holder], None)? {
            ([ADOPTED, _, number, ..], Some(file)) => Ok((number as usize, file)),
            ([REFUSED, errno, ..], _) => Err(Errno(errno as i32)),
            _ => Err(Errno(libc::EPROTO)),
        }
    }

    fn is_persistent(&self) -> bool {
        self.mapped().is_some_and(MappedLog::is_persistent)
    }
}
