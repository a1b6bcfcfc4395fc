//! The process that keeps programs' logs: it has the files that take part, syncs them when nobody waits for that, gives the logs' room
//! back, lets others open the files, and outlives the programs.
//!
//! One thread waits for programs; each process that may need a log has a link with it for as long as it lives. One thread for each of
//! those with a log serves it (`client`), one makes logs. Whatever ends a program, by then its thread has all of its files. Signals
//! that ask it to end are not followed: it ends with the programs.

mod client;
mod repair;

use crate::lock;
use crate::messages::{HELLO, NOT_NOW, PROTOCOL};
use crate::places::{self, Empty};
use client::{answer, serve};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use uncopy_sys::background::{be_polite, bell, ring, signals, take_signals, was_rung, watch_process};
use uncopy_sys::errno::Errno;
use uncopy_sys::link::{self, Came, MAX_WORDS};
use uncopy_sys::{clock, file, ids, mem, wait};

/// How long a process that was not linked yet is waited for after all others have ended: a daemon leaves its first process behind.
const GRACE: Duration = Duration::from_secs(2);
/// How often it is looked whether there is anything to wait for, ms.
const LOOK_MS: i32 = 1000;

/// What is kept for whom.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where logs lie.
    pub directory: PathBuf,
    /// Length of each, bytes.
    pub log_bytes: u64,
    /// They may lie in memory (tmpfs), as if that survived power loss.
    pub emulates_dax: bool,
    /// Under which name programs find the keeper. It is removed at the end.
    pub socket: CString,
    /// The program that was started.
    pub root: u32,
}

/// The log that the next program gets.
#[derive(Debug)]
enum Next {
    /// None is made.
    Nothing,
    /// It is being made.
    Soon,
    /// One, or why there is none.
    Made(Result<Empty, Errno>),
}

/// What all threads know.
#[derive(Debug)]
struct Shared {
    settings: Settings,
    next: Mutex<Next>,
    /// Rung when somebody waits to open a file that takes part; one for each program.
    bells: Mutex<Vec<i32>>,
    /// There are programs: without, no log is made or held on to.
    is_needed: AtomicBool,
    /// Rung when a program is served no more.
    ended: i32,
    /// Programs that are served, and those that are linked and have no log.
    served: AtomicUsize,
    idle: AtomicUsize,
    /// The program that was started has said that it ends.
    root_has_ended: AtomicBool,
}

impl Shared {
    /// Makes the next log, in a thread of its own: that takes as long as writing all of it.
    fn prepare(self: &Arc<Self>, next: &mut Next) {
        let shared = Arc::clone(self);
        *next = Next::Soon;
        thread::spawn(move || {
            let Settings { directory, log_bytes, emulates_dax, .. } = &shared.settings;
            let is_needed = || shared.is_needed.load(Acquire);
            let made = places::take_empty(directory, *log_bytes, *emulates_dax, &is_needed);
            let mut next = lock(&shared.next);
            *next = match made {
                Err(Errno(libc::ECANCELED)) => Next::Nothing,
                made if is_needed() => Next::Made(made),
                _ => Next::Nothing,
            };
        });
    }

    /// Whether there are programs, as far as is known.
    fn has_programs(&self) -> bool {
        !self.root_has_ended.load(Acquire) || self.served.load(Acquire) > 0 || self.idle.load(Acquire) > 0
    }

    /// There are programs, or none: then whoever waits for the directory waits no longer.
    fn set_needed(&self, is_needed: bool) {
        if self.is_needed.swap(is_needed, AcqRel) && !is_needed {
            let mut next = lock(&self.next);
            if matches!(*next, Next::Made(_)) {
                *next = Next::Nothing;
            }
        }
    }

    /// The log for a program; `Err(0)`: not yet.
    fn take_log(self: &Arc<Self>) -> Result<Empty, Errno> {
        let mut next = lock(&self.next);
        match core::mem::replace(&mut *next, Next::Soon) {
            Next::Soon => Err(Errno(0)),
            Next::Nothing => {
                self.prepare(&mut next);
                Err(Errno(0))
            }
            Next::Made(made) => {
                self.prepare(&mut next);
                made
            }
        }
    }
}

/// Waits for programs under a name, to [keep](Keeper::keep) their logs.
#[derive(Debug)]
pub struct Keeper {
    shared: Arc<Shared>,
    listener: i32,
    signals: i32,
}

impl Keeper {
    /// Begins: from here on programs find it. Signals by which it could be ended are blocked.
    ///
    /// # Errors
    /// What the name, or the kernel, says.
    pub fn begin(settings: Settings) -> Result<Self, Errno> {
        let signals = signals(&[libc::SIGIO, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE])?;
        let listener = link::listen(&settings.socket)?;
        let (next, bells) = (Mutex::new(Next::Nothing), Mutex::new(Vec::new()));
        let (is_needed, ended) = (AtomicBool::new(true), bell()?);
        let (served, idle, root_has_ended) =
            (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let shared =
            Arc::new(Shared { settings, next, bells, is_needed, ended, served, idle, root_has_ended });
        shared.prepare(&mut lock(&shared.next));
        Ok(Self { shared, listener, signals })
    }

    /// Keeps logs until all programs have ended that were started for it.
    pub fn keep(self) {
        be_polite();
        let root = watch_process(self.shared.settings.root).ok();
        let mut needed_at = Instant::now();
        let mut listener = self.listener;
        let mut accepted_at = Instant::now();
        // Programs that have no log yet.
        let mut idle: Vec<i32> = Vec::new();
        while needed_at.elapsed() < GRACE {
            let root_lives = root.filter(|root| !wait::is_ready(*root));
            let ours = [listener, self.signals, self.shared.ended].into_iter().chain(root_lives);
            wait::for_any(ours.chain(idle.iter().copied()), LOOK_MS);
            let _ = was_rung(self.shared.ended);
            if !take_signals(self.signals).is_empty() {
                lock(&self.shared.bells).iter().for_each(|bell| ring(*bell));
            }
            if listener >= 0 {
                match accept_all(listener, &mut idle) {
                    Errno::EAGAIN => accepted_at = Instant::now(),
                    // Whoever links would wait for an answer. That there is no room for more it is told by a link that ends.
                    _ if accepted_at.elapsed() > GRACE => link::end(core::mem::replace(&mut listener, -1)),
                    _ => clock::doze(),
                }
            }
            idle.retain(|link| match self.shared.hear(*link) {
                Heard::Nothing => true,
                Heard::End => {
                    link::end(*link);
                    false
                }
                Heard::Serve(empty) => {
                    let (shared, link) = (Arc::clone(&self.shared), *link);
                    self.shared.served.fetch_add(1, AcqRel);
                    thread::spawn(move || shared.serve(link, empty));
                    false
                }
            });
            self.shared.idle.store(idle.len(), Release);
            if root.is_none_or(wait::is_ready) {
                self.shared.root_has_ended.store(true, Release);
            }
            if self.shared.has_programs() {
                self.shared.set_needed(true);
                needed_at = Instant::now();
            } else {
                self.shared.set_needed(false);
            }
        }
        if listener >= 0 {
            link::end(listener);
        }
        mem::unlink(&self.shared.settings.socket);
        root.into_iter().for_each(file::close);
    }
}

/// Takes the links that wait to be taken. Why no more.
fn accept_all(listener: i32, links: &mut Vec<i32>) -> Errno {
    loop {
        match link::accept(listener) {
            Ok(link) => links.push(link),
            Err(errno) => return errno,
        }
    }
}

/// Receives a message of a program's. One that a process of another user has sent is refused, whoever made the link: a process has the
/// link of the one that it was forked from until it ends it, and may have become another user's.
///
/// # Errors
/// EPERM: another user's; EPROTO: it is none of ours; else what the link says.
fn receive(link: i32, words: &mut [u64; MAX_WORDS]) -> Result<Came, Errno> {
    let came = link::receive(link, words)?;
    if came.words > 0 && came.user != Some(ids::effective_user()) {
        if came.fd >= 0 {
            file::close(came.fd);
        }
        return Err(Errno::EPERM);
    }
    Ok(came)
}

/// What is heard of a program that has no log.
enum Heard {
    Nothing,
    End,
    /// It asked for one, and gets this.
    Serve(Box<Empty>),
}

impl Shared {
    fn hear(self: &Arc<Self>, link: i32) -> Heard {
        let mut words = [0; MAX_WORDS];
        match receive(link, &mut words) {
            Err(Errno::EAGAIN | Errno::EINTR) => return Heard::Nothing,
            Ok(came) if came.words == 2 && came.fd < 0 && words[..2] == [HELLO, PROTOCOL] => {}
            Ok(Came { words: 0, .. }) => return Heard::End,
            refused => {
                if let Ok(Came { fd: 0.., .. }) = refused {
                    refused.iter().for_each(|came| file::close(came.fd));
                }
                let why = refused.err().unwrap_or(Errno(libc::EPROTO));
                answer(link, &[NOT_NOW, why.0 as u64]);
                return Heard::End;
            }
        }
        match self.take_log() {
            Ok(empty) => Heard::Serve(Box::new(empty)),
            Err(errno) if answer(link, &[NOT_NOW, errno.0 as u64]) => Heard::Nothing,
            Err(_) => Heard::End,
        }
    }

    /// Serves a program until it ends. Who sees the end of the link finds neither the files nor the log in use.
    #[allow(clippy::boxed_local, reason = "the log is nobody's any more before the link ends")]
    fn serve(&self, link: i32, empty: Box<Empty>) {
        let mut has_said_bye = false;
        if let Ok(bell) = bell() {
            lock(&self.bells).push(bell);
            has_said_bye = serve(link, bell, &empty);
            lock(&self.bells).retain(|other| *other != bell);
            file::close(bell);
        }
        drop(empty);
        if has_said_bye && link::process_of(link) == Some(self.settings.root) {
            self.root_has_ended.store(true, Release);
        }
        self.served.fetch_sub(1, AcqRel);
        if !self.has_programs() {
            self.set_needed(false);
            while matches!(*lock(&self.next), Next::Soon) {
                clock::doze();
            }
        }
        link::end(link);
        ring(self.ended);
    }
}
