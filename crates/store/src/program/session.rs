//! The program's side of the link to its keeper: the log, and questions about it.

use crate::device::LogFile;
use crate::layout::{RING_OFFSET, Superblock};
use crate::lock;
use crate::log::Log;
use crate::messages::{BYE, HALF, HELLO, LOG, NOT_NOW, PROTOCOL, ROOM, WELCOME};
use crate::state::{OWN_BYTES, Place, STATE_BYTES, State};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::Mutex;
use uncopy_sys::errno::Errno;
use uncopy_sys::file;
use uncopy_sys::link::{self, MAX_WORDS};
use uncopy_sys::mem::Joint;
use uncopy_sys::{clock, mem, wait};

/// How long an answer is waited for, ms. A keeper that is slower syncs large files to a slow disk; the program waits for those.
const MAX_WAIT_MS: u64 = 60_000;

/// After how long a process that ends says what it waits for, ms.
const SILENCE_MS: u64 = 1000;

/// What an answer is made of.
type Words = [u64; MAX_WORDS];

/// A log that this process appends to, and who keeps it.
#[derive(Debug)]
pub struct Session {
    link: i32,
    log_fd: i32,
    /// What both know, and the memory where it lies.
    pub state: &'static State,
    memory: Joint,
    /// The log.
    pub log: Log<'static, LogFile>,
    asking: Mutex<()>,
    /// Files that take part no more (device, inode), and the head behind their last records.
    departed: Mutex<Vec<((u64, u64), u64)>>,
    has_ended: AtomicBool,
    /// The tail at which the keeper was last told that the log is half full.
    told_tail: AtomicU64,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSession {
    /// The log is not ready yet.
    Later,
    /// There will be none.
    Never(Errno),
}

/// Links with who keeps logs under this name, by a descriptor with a high number.
///
/// # Errors
/// What the link says.
pub fn connect(path: &CStr) -> Result<i32, Errno> {
    let low = link::connect(path)?;
    let high = uncopy_sys::fd::duplicate_high(low);
    file::close(low);
    high.ok_or(Errno(libc::EMFILE))
}

/// Receives one message; what came with it.
fn receive(link: i32) -> Result<(Words, i32), Errno> {
    let mut words = [0; MAX_WORDS];
    let since_ms = clock::now_ms();
    loop {
        match link::receive(link, &mut words) {
            Err(Errno::EAGAIN) if clock::now_ms() - since_ms < MAX_WAIT_MS => {
                wait::for_any([link].into_iter(), 1000);
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
            Ok(came) if came.words == 0 => return Err(Errno(libc::EPIPE)),
            Ok(came) => return Ok((words, came.fd)),
        }
    }
}

/// Receives one message, which is to have this as its first word and a descriptor with it, under a high number.
fn receive_with(link: i32, first: u64) -> Result<(Words, i32), NoSession> {
    let (words, came) = receive(link).map_err(NoSession::Never)?;
    if came < 0 {
        let is_later = words[0] == NOT_NOW && words[1] == 0;
        return Err(if is_later { NoSession::Later } else { NoSession::Never(Errno(words[1] as i32)) });
    }
    let high = uncopy_sys::fd::duplicate_high(came);
    file::close(came);
    match high {
        Some(fd) if words[0] == first => Ok((words, fd)),
        Some(fd) => {
            file::close(fd);
            Err(NoSession::Never(Errno(libc::EPROTO)))
        }
        None => Err(NoSession::Never(Errno(libc::EMFILE))),
    }
}

impl Session {
    /// Asks for a log over a link to who keeps some.
    ///
    /// # Errors
    /// Why there is none.
    pub fn begin(link: i32) -> Result<Self, NoSession> {
        link::send(link, &[HELLO, PROTOCOL], -1).map_err(NoSession::Never)?;
        let (words, state_fd) = receive_with(link, WELCOME)?;
        let joint = Joint::map(state_fd, STATE_BYTES);
        file::close(state_fd);
        let joint = joint.map_err(NoSession::Never)?;
        // SAFETY: all of the state is atomics, for which any bytes are valid; there is memory as long as the process lives.
        let state: &'static State = unsafe { joint.as_ref() };
        let [_, log, epoch, len_bytes, granule_bytes, machine, ..] = words;
        let granule_bytes = granule_bytes as u32;
        let is_possible = (512..=4096).contains(&granule_bytes) && granule_bytes.is_power_of_two();
        if !is_possible || len_bytes <= RING_OFFSET {
            return Err(NoSession::Never(Errno(libc::EPROTO)));
        }
        let (_, log_fd) = receive_with(link, LOG)?;
        let superblock = Superblock { log, len_bytes, granule_bytes, machine };
        let device = LogFile { fd: log_fd, granule_bytes: granule_bytes as usize };
        let attached = Log::attach(device, superblock, epoch, state);
        let log = attached.map_err(NoSession::Never).inspect_err(|_| file::close(log_fd))?;
        Ok(Self {
            link,
            log_fd,
            state,
            memory: joint,
            log,
            asking: Mutex::new(()),
            departed: Mutex::new(Vec::new()),
            has_ended: AtomicBool::new(false),
            told_tail: AtomicU64::new(u64::MAX),
        })
    }

    /// The log's descriptor.
    #[must_use]
    pub const fn log_descriptor(&self) -> i32 {
        self.log_fd
    }

    /// Whether nobody keeps the log any more. A system call.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        if !self.has_ended.load(Acquire) && !link::is_open(self.link) {
            self.end();
        }
        self.has_ended.load(Acquire)
    }

    /// Nobody keeps the log any more.
    fn end(&self) {
        self.has_ended.store(true, Release);
    }

    /// The process ends: waits until the keeper has put all files in order and has none of them, nor the log, in use. No file takes part
    /// from here on.
    pub fn say_bye(&self) {
        self.end();
        if link::send(self.link, &[BYE], -1).is_err() {
            return;
        }
        let since_ms = clock::now_ms();
        let (mut words, mut is_said) = ([0; MAX_WORDS], false);
        loop {
            match link::receive(self.link, &mut words) {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                // An answer to another thread's question.
                Ok(came) if came.words > 0 => continue,
                _ => return,
            }
            let waited_ms = clock::now_ms() - since_ms;
            if waited_ms >= MAX_WAIT_MS {
                return;
            }
            if waited_ms >= SILENCE_MS && !is_said {
                is_said = true;
                mem::say(format_args!("uncopy: waiting until the files of the log are synced\n"));
            }
            wait::for_any([self.link].into_iter(), 100);
        }
    }

    /// Parts with the keeper, for good: no descriptor and no memory is shared with it any more. No file takes part, or comes to.
    pub fn part(&self) {
        let _asking = lock(&self.asking);
        self.end();
        file::close(self.link);
        file::close(self.log_fd);
        self.memory.part();
    }

    /// A child of the program whose session this is keeps what it needs to say that it has written to a file.
    pub fn part_in_child(&self) {
        self.memory.part_with(OWN_BYTES);
    }

    /// A child of the program whose session this is has nothing more to say.
    pub fn part_from_child(&self) {
        self.memory.part();
    }

    /// Asks the keeper something, with a descriptor if one is given (-1: none), and waits for the answer.
    ///
    /// # Errors
    /// EPIPE where nobody keeps the log any more; what the link says, after which nobody does.
    pub fn ask(&self, words: &[u64], with: i32) -> Result<Words, Errno> {
        let _asking = lock(&self.asking);
        if self.has_ended.load(Acquire) {
            return Err(Errno(libc::EPIPE));
        }
        let answer = link::send(self.link, words, with).and_then(|()| receive(self.link));
        match answer {
            Ok((words, came)) => {
                if came >= 0 {
                    file::close(came);
                }
                Ok(words)
            }
            Err(errno) => {
                self.end();
                Err(errno)
            }
        }
    }

    /// Tells the keeper, once for each time, that the log is half full.
    pub fn tell_if_half_full(&self) {
        let tail = self.state.tail();
        if self.log.used_bytes() > self.log.ring_bytes() / 2 && self.told_tail.swap(tail, Relaxed) != tail {
            // Should it have no room for that now, or be asked something, it digests all the same within a second.
            if let Ok(_asking) = self.asking.try_lock()
                && !self.has_ended.load(Acquire)
            {
                let _ = link::send(self.link, &[HALF], -1);
            }
        }
    }

    /// A file takes part no more; its records may still be in the log.
    pub fn note_departed(&self, inode: (u64, u64)) {
        let mut departed = lock(&self.departed);
        let (head, tail) = (self.state.moment().map_or(u64::MAX, |moment| moment.head), self.state.tail());
        departed.retain(|(_, behind)| *behind > tail);
        departed.push((inode, head));
    }

    /// A file that does not take part is about to be where no recovery finds it: waits until none of its records is in the log.
    pub fn forget(&self, inode: (u64, u64)) {
        let tail = self.state.tail();
        let mut departed = lock(&self.departed);
        let has_records = departed.iter().any(|(other, behind)| *other == inode && *behind > tail);
        departed.retain(|(_, behind)| *behind > tail);
        drop(departed);
        if has_records {
            // A keeper that cannot do so leaves them there: a recovery asks what became of the file.
            let _ = self.ask(&[ROOM], -1);
        }
    }

    /// What is known of a file.
    #[must_use]
    pub fn place(&self, place: usize) -> &'static Place {
        &self.state.places[place]
    }
}
