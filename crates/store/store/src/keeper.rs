//! The keeper: a process that holds the logged files of programs, syncs them in the background, retires their
//! records, lets other processes open the files, and outlives the programs.
//!
//! The main thread accepts connections: each process that may need a log has one for as long as it lives. Each
//! program with a log is served by a thread of its own (`client`), and another thread makes logs. However a
//! program ends, that thread holds all of its logged files by then. The keeper ignores signals that ask it to
//! end: it ends after the programs.

mod client;
mod mapped;
mod repair;

use crate::lock;
use crate::log_files::{self, EmptyLog};
use crate::mapped::file::{self as mapped_file, MappedLog};
use crate::messages::{HELLO, PROTOCOL, UNAVAILABLE};
use client::answer;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use uncopy_core::options::LogMode;
use uncopy_sys::background::{
    lower_priority, notifier, notify, signals, take_signals, was_notified, watch_process,
};
use uncopy_sys::descriptor::{OwnFd, OwnRef};
use uncopy_sys::errno::Errno;
use uncopy_sys::seqpacket::{self, MAX_WORDS, ReceivedMessage};
use uncopy_sys::{clock, ids, mem, wait};

/// Time that the keeper waits for further connections after all programs have ended: a daemon's first process
/// ends while its child goes on.
const GRACE: Duration = Duration::from_secs(2);
const LOOK_MS: i32 = 1000;

/// Settings of a keeper.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the logs.
    pub directory: PathBuf,
    /// Length of each log, bytes.
    pub log_bytes: u64,
    /// Whether logs may lie on tmpfs, as if that survived power loss.
    pub emulates_dax: bool,
    /// Place of the bytes that programs write.
    pub mode: LogMode,
    /// Path of the socket to which programs connect; removed at the end.
    pub socket: CString,
    /// Process ID of the program that was started.
    pub root_pid: u32,
}

/// A log for a program.
#[derive(Debug)]
enum ReadyLog {
    Beside(EmptyLog),
    Mapped(MappedLog),
}

/// State of the log for the next program.
#[derive(Debug)]
enum Next {
    Nothing,
    Soon,
    /// A log that is ready, or the error of making it.
    Made(Result<ReadyLog, Errno>),
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    next: Mutex<Next>,
    /// Bells of the serving threads, rung at every signal. SIGIO says that another process waits to open a logged
    /// file; at other signals the threads find no such file.
    bells: Mutex<Vec<OwnRef>>,
    /// Whether there are programs; otherwise no log is made or kept ready.
    is_needed: AtomicBool,
    /// Bell rung when a program's service has ended.
    ended: OwnFd,
    /// Number of programs that are served. `idle`: connected programs without a log.
    served: AtomicUsize,
    idle: AtomicUsize,
    /// Whether the started program has ended or is about to.
    root_has_ended: AtomicBool,
}

impl Shared {
    /// Makes the next log in a thread of its own, because writing all of a log takes long.
    fn prepare(self: &Arc<Self>, next: &mut Next) {
        let shared = Arc::clone(self);
        *next = Next::Soon;
        thread::spawn(move || {
            let Settings { directory, log_bytes, emulates_dax, mode, .. } = &shared.settings;
            let (log_bytes, emulates_dax) = (*log_bytes, *emulates_dax);
            let is_needed = || shared.is_needed.load(Acquire);
            let made = match mode {
                LogMode::Beside => {
                    log_files::open_or_create_empty(directory, log_bytes, emulates_dax, &is_needed)
                        .map(ReadyLog::Beside)
                }
                LogMode::Only => {
                    mapped_file::open_or_create_empty(directory, log_bytes, emulates_dax, &is_needed)
                        .map(ReadyLog::Mapped)
                }
            };
            let mut next = lock(&shared.next);
            *next = match made {
                Err(Errno(libc::ECANCELED)) => Next::Nothing,
                made if is_needed() => Next::Made(made),
                _ => Next::Nothing,
            };
        });
    }

    fn has_programs(&self) -> bool {
        !self.root_has_ended.load(Acquire) || self.served.load(Acquire) > 0 || self.idle.load(Acquire) > 0
    }

    /// Sets whether there are programs. Without any, a ready log is released, and the lock on the directory.
    fn set_needed(&self, is_needed: bool) {
        if self.is_needed.swap(is_needed, AcqRel) && !is_needed {
            let mut next = lock(&self.next);
            if matches!(*next, Next::Made(_)) {
                *next = Next::Nothing;
            }
        }
    }

    /// Takes the log for a program. `Err(Errno(0))`: it is not ready yet.
    fn take_log(self: &Arc<Self>) -> Result<ReadyLog, Errno> {
        let mut next = lock(&self.next);
        match core::mem::replace(&mut *next, Next::Soon) {
            Next::Soon => Err(Errno(0)),
            Next::Nothing => {
                self.prepare(&mut next);
                Err(Errno(0))
            }
            Next::Made(made) => {
                match self.settings.mode {
                    LogMode::Beside => self.prepare(&mut next),
                    // Memory is scarcer than space on a disk, and a mapped log is made in no time.
                    LogMode::Only => *next = Next::Nothing,
                }
                made
            }
        }
    }
}

/// A keeper that is ready to [keep](Keeper::keep) logs.
#[derive(Debug)]
pub struct Keeper {
    shared: Arc<Shared>,
    listener: OwnFd,
    signals: OwnFd,
}

impl Keeper {
    /// Listens on the socket, so that programs can connect, and blocks signals that could end the process.
    ///
    /// # Errors
    /// An error of the socket or of the kernel.
    pub fn begin(settings: Settings) -> Result<Self, Errno> {
        let ending = [libc::SIGIO, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE];
        // A write beyond RLIMIT_FSIZE is an error then, and no death.
        let signals = signals(&[&ending[..], &[libc::SIGXFSZ]].concat())?;
        let listener = seqpacket::listen(&settings.socket)?;
        let (next, bells) = (Mutex::new(Next::Nothing), Mutex::new(Vec::new()));
        let (is_needed, ended) = (AtomicBool::new(true), notifier()?);
        let (served, idle, root_has_ended) =
            (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let shared =
            Arc::new(Shared { settings, next, bells, is_needed, ended, served, idle, root_has_ended });
        shared.prepare(&mut lock(&shared.next));
        Ok(Self { shared, listener, signals })
    }

    /// Serves programs until all of them have ended.
    pub fn keep(self) {
        lower_priority();
        let root = watch_process(self.shared.settings.root_pid).ok();
        let mut needed_at = Instant::now();
        let mut listener = Some(self.listener);
        let mut accepted_at = Instant::now();
        // Connections of programs that have no log yet.
        let mut idle: Vec<OwnFd> = Vec::new();
        while needed_at.elapsed() < GRACE {
            let root_lives = root.as_ref().filter(|root| !wait::is_ready(*root));
            let ours = [&self.signals, &self.shared.ended].into_iter().chain(&listener).chain(root_lives);
            wait::for_any(ours.chain(&idle), LOOK_MS);
            let _ = was_notified(&self.shared.ended);
            if !take_signals(&self.signals).is_empty() {
                lock(&self.shared.bells).iter().for_each(|bell| notify(*bell));
            }
            if let Some(open) = &listener {
                match accept_all(open, &mut idle) {
                    Errno::EAGAIN => accepted_at = Instant::now(),
                    // A process that connects waits for an answer: closing the listener tells it that there is
                    // none.
                    _ if accepted_at.elapsed() > GRACE => listener = None,
                    _ => clock::sleep_10_ms(),
                }
            }
            let remaining = idle.drain(..).filter_map(|link| match self.shared.handle_idle(&link) {
                Idle::Nothing => Some(link),
                Idle::End => None,
                Idle::Serve(log) => {
                    let shared = Arc::clone(&self.shared);
                    self.shared.served.fetch_add(1, AcqRel);
                    thread::spawn(move || shared.serve(link, log));
                    None
                }
            });
            idle = remaining.collect();
            self.shared.idle.store(idle.len(), Release);
            if root.as_ref().is_none_or(wait::is_ready) {
                self.shared.root_has_ended.store(true, Release);
            }
            if self.shared.has_programs() {
                self.shared.set_needed(true);
                needed_at = Instant::now();
            } else {
                self.shared.set_needed(false);
            }
        }
        drop(listener);
        mem::unlink(&self.shared.settings.socket);
    }
}

/// Accepts all waiting connections. Returns the error that ended this, EAGAIN if there are no more.
fn accept_all(listener: &OwnFd, links: &mut Vec<OwnFd>) -> Errno {
    loop {
        match seqpacket::accept(listener) {
            Ok(link) => links.push(link),
            Err(errno) => return errno,
        }
    }
}

/// Receives a message from a program, and refuses one from a process of another user: a forked child keeps the
/// connection and may have changed its user since.
///
/// # Errors
/// EPERM for another user; EPROTO if the message is malformed; an error of the connection.
fn receive(link: &OwnFd, words: &mut [u64; MAX_WORDS]) -> Result<ReceivedMessage, Errno> {
    let message = seqpacket::receive(link, words)?;
    if message.words > 0 && message.user != Some(ids::effective_user()) {
        return Err(Errno::EPERM);
    }
    Ok(message)
}

/// Result of receiving from a program that has no log.
enum Idle {
    Nothing,
    End,
    /// The program asked for a log and gets this one.
    Serve(Box<ReadyLog>),
}

impl Shared {
    fn handle_idle(self: &Arc<Self>, link: &OwnFd) -> Idle {
        let mut words = [0; MAX_WORDS];
        match receive(link, &mut words) {
            Err(Errno::EAGAIN | Errno::EINTR) => return Idle::Nothing,
            Ok(message) if message.words == 2 && message.fd.is_none() && words[..2] == [HELLO, PROTOCOL] => {}
            Ok(ReceivedMessage { words: 0, .. }) => return Idle::End,
            refused => {
                let why = refused.err().unwrap_or(Errno(libc::EPROTO));
                answer(link, &[UNAVAILABLE, why.0 as u64]);
                return Idle::End;
            }
        }
        match self.take_log() {
            Ok(log) => Idle::Serve(Box::new(log)),
            Err(errno) if answer(link, &[UNAVAILABLE, errno.0 as u64]) => Idle::Nothing,
            Err(_) => Idle::End,
        }
    }

    /// Serves a program until it ends. The files and the log are released before the connection closes, so that
    /// a process that sees the close finds them unused.
    #[allow(clippy::boxed_local, reason = "the log is nobody's any more before the link ends")]
    fn serve(&self, link: OwnFd, log: Box<ReadyLog>) {
        let mut has_ended_cleanly = false;
        if let Ok(bell) = notifier() {
            lock(&self.bells).push(bell.reference());
            has_ended_cleanly = match &*log {
                ReadyLog::Beside(empty) => client::serve(&link, &bell, empty),
                ReadyLog::Mapped(log) => mapped::serve(&link, &bell, log),
            };
            lock(&self.bells).retain(|other| *other != bell.reference());
        }
        drop(log);
        if has_ended_cleanly && seqpacket::peer_process(&link) == Some(self.settings.root_pid) {
            self.root_has_ended.store(true, Release);
        }
        self.served.fetch_sub(1, AcqRel);
        if !self.has_programs() {
            self.set_needed(false);
            while matches!(*lock(&self.next), Next::Soon) {
                clock::sleep_10_ms();
            }
        }
        drop(link);
        notify(&self.ended);
    }
}
