//! The lanes' thread: links this process with others, shares memory with them, and finds out which ends belong together.
//!
//! It has a table of descriptors of its own, so a program that closes every descriptor does not close its links. Whoever
//! has something for it puts that into a list and rings: makes a link to it, which it takes and drops.

extern crate alloc;
use crate::board::{Board, MAX_LINKS};
use crate::detach::detach;
use crate::ends::{End, Ends, Far};
use crate::peers::{Peer, Peers};
use crate::pool::CHUNK_BYTES;
use crate::protocol::{Message, Words};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::ffi::CString;
use core::ffi::CStr;
use core::sync::atomic::AtomicU32;
use uncopy_sys::errno::Errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::mem::Shared;
use uncopy_sys::sync::Arc;
use uncopy_sys::sync::atomic::{AtomicBool, Ordering::Relaxed};
use uncopy_sys::{ids, link, rights};

/// Messages that wait for a peer that does not read, at most: then the link ends.
const MAX_WAITING: usize = 4096;
/// Chunks of a peer's, at most.
const MAX_PEERS_CHUNKS: u32 = crate::pool::MAX_CHUNKS as u32;

/// What a process's lanes consist of.
pub struct Lanes {
    /// This process's board.
    pub board: &'static Board,
    /// The linked processes and the memory.
    pub peers: Peers,
    /// The ends.
    pub ends: Ends,
    /// Ends that peers are to be told of.
    fresh: Guarded<Vec<Arc<End>>>,
    /// They are the parent's of this forked child.
    is_abandoned: AtomicBool,
}

impl Lanes {
    /// None yet.
    #[must_use]
    pub const fn new(id: u64, board: &'static Board) -> Self {
        Self {
            board,
            peers: Peers::new(id),
            ends: Ends::new(),
            fresh: Guarded::new(Vec::new()),
            is_abandoned: AtomicBool::new(false),
        }
    }

    /// In a forked child: they are the parent's.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Relaxed);
    }

    /// Whether they are the parent's of this forked child.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Relaxed)
    }

    /// Peers are to be told of this end.
    pub fn tell(&self, end: Arc<End>) {
        self.fresh.lock().push(end);
    }
}

/// The process that is linked with whatever rights it has; 0: none. [`ALL`]: every one of this process's user.
static TRUSTED: AtomicU32 = AtomicU32::new(0);
const ALL: u32 = u32::MAX;

/// Links with this process are made whatever rights it has: it is the service whose connections are this process's, has their bytes
/// anyway and has given up its own rights.
pub fn trust(process: u32) {
    TRUSTED.store(process, Relaxed);
}

/// Links with every process of the same user are made: this is a service, which has no bytes but theirs.
pub fn trust_all() {
    TRUSTED.store(ALL, Relaxed);
}

fn is_trusted(process: u32) -> bool {
    [process, ALL].contains(&TRUSTED.load(Relaxed))
}

struct Link {
    /// Index of this process's part for it.
    part: usize,
    /// The process to which this one made it; `None`: that one made it.
    to: Option<u64>,
    peer: Option<Arc<Peer>>,
    waiting: VecDeque<(Words, i32)>,
}

/// What a name of a socket in the directory ends in.
pub const SUFFIX: &str = ".lane";

/// The thread's own.
pub struct Service {
    lanes: &'static Lanes,
    board: Shared,
    listener: i32,
    /// By their descriptors.
    links: BTreeMap<i32, Link>,
    chunks: Vec<Shared>,
}

/// Why a link ends.
enum Ending {
    /// The other process has ended it.
    Closed,
    /// It has said what cannot be.
    Broken,
}

impl Service {
    /// Waits for links under `path`, and links with the processes that `others` finds after that, by their sockets' names: of two
    /// that begin at the same time, one at least finds the other.
    ///
    /// # Errors
    /// What making the socket says.
    pub fn begin(
        lanes: &'static Lanes,
        board: Shared,
        path: &CStr,
        others: impl FnOnce() -> Vec<(u64, CString)>,
    ) -> Result<Self, Errno> {
        let listener = link::listen(path)?;
        let mut service = Self { lanes, board, listener, links: BTreeMap::new(), chunks: Vec::new() };
        for (process, name) in others().iter().filter(|(process, _)| *process != lanes.peers.id()) {
            match link::connect(name) {
                Ok(fd) => service.greet(fd, Some(*process)),
                // Its process has ended.
                Err(Errno(libc::ECONNREFUSED)) => uncopy_sys::mem::unlink(name),
                Err(_) => {}
            }
        }
        Ok(service)
    }

    /// Descriptors on which something may come.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> + '_ {
        core::iter::once(self.listener).chain(self.links.keys().copied())
    }

    /// Ends every link of this process, which lives on: what it shares is its own from here on, see [`crate::detach`](mod@crate::detach). Only then the
    /// links are closed: their processes use again what this one held.
    ///
    /// # Errors
    /// What memory for it does not get.
    pub fn detach(self) -> Result<(), Errno> {
        for (_, end) in self.lanes.ends.with_descriptors() {
            end.end();
            end.await_references();
        }
        self.board.make_private()?;
        self.chunks.iter().try_for_each(Shared::make_private)?;
        detach(&self.lanes.peers, &self.lanes.ends)?;
        self.descriptors().for_each(link::end);
        core::iter::once(&self.board).chain(&self.chunks).for_each(|shared| link::end(shared.fd()));
        Ok(())
    }

    /// Does what there is to be done. Nothing waits.
    pub fn turn(&mut self) {
        loop {
            match link::accept(self.listener) {
                Ok(fd) => self.greet(fd, None),
                Err(Errno(libc::EPERM)) => {}
                Err(_) => break,
            }
        }
        for fd in self.links.keys().copied().collect::<Vec<_>>() {
            if let Err(ending) = self.listen_to(fd) {
                self.drop_link(fd, &ending);
            }
        }
        for end in core::mem::take(&mut *self.lanes.fresh.lock()) {
            self.tell_all(&end);
        }
        self.lanes.peers.hear();
        self.lanes.peers.forget_gone(|process| self.lanes.ends.awaits(process));
        if self.lanes.peers.pool.wants_chunk() {
            self.add_chunk();
        }
        let silent: Vec<i32> =
            self.links.iter_mut().filter_map(|(fd, link)| (!link.send_waiting(*fd)).then_some(*fd)).collect();
        for fd in silent {
            self.drop_link(fd, &Ending::Closed);
        }
    }

    fn greet(&mut self, fd: i32, to: Option<u64>) {
        // One that this process does not see was let into the directory by whoever made its namespace.
        if link::process_of(fd).is_some_and(|process| !is_trusted(process) && !rights::may_look_here(process))
        {
            link::end(fd);
            return;
        }
        let is_free = |part: &usize| self.links.values().all(|link| link.part != *part);
        let Some(part) = (0..MAX_LINKS).find(is_free) else {
            link::end(fd);
            return;
        };
        let mut link = Link { part, to, peer: None, waiting: VecDeque::new() };
        let greeting = Message::Greeting { process: self.lanes.peers.id(), link: part as u32 };
        link.say(&greeting, self.board.fd());
        for (number, chunk) in self.chunks.iter().enumerate() {
            link.say(&Message::Chunk { number: number as u32 }, chunk.fd());
        }
        self.links.insert(fd, link);
    }

    fn listen_to(&mut self, fd: i32) -> Result<(), Ending> {
        let mut words = [0; link::MAX_WORDS];
        loop {
            // Whoever greets may be linked with already, and lose this link.
            let Some(link) = self.links.get_mut(&fd) else { return Ok(()) };
            let came = match link::receive(fd, &mut words) {
                Ok(came) => came,
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return Ok(()),
                Err(Errno(libc::EPROTO)) => return Err(Ending::Broken),
                Err(_) => return Err(Ending::Closed),
            };
            if came.words == 0 {
                return Err(Ending::Closed);
            }
            // Whoever has made the link may have left it to a process that is another user's by now.
            if came.user.is_some_and(|user| user != ids::effective_user()) {
                if came.fd >= 0 {
                    link::end(came.fd);
                }
                return Err(Ending::Broken);
            }
            match (Message::parse(&words[..came.words]), came.fd >= 0) {
                (Some(Message::Greeting { process, link }), true) => {
                    let board = Shared::map_others(came.fd, board_bytes()).map_err(|_| Ending::Broken)?;
                    self.greeted(fd, process, link, board)?;
                }
                (Some(Message::Chunk { number }), true) => {
                    let chunk = Shared::map_others(came.fd, CHUNK_BYTES).map_err(|_| Ending::Broken)?;
                    let peer = link.peer.as_ref().filter(|peer| peer.chunks() == number);
                    peer.filter(|_| number < MAX_PEERS_CHUNKS).ok_or(Ending::Broken)?.add_chunk(chunk);
                }
                (Some(Message::End { stream, slot, lane }), false) => {
                    let peer = link.peer.clone().filter(|peer| peer.slot(slot).is_some() && lane != 0);
                    let far = Far { peer: peer.ok_or(Ending::Broken)?, slot, lane };
                    // Who has not heard of this end yet is told.
                    if let Some(end) = self.lanes.ends.bind(stream, far) {
                        link.tell(&end);
                    }
                }
                (_, has_descriptor) => {
                    if has_descriptor {
                        link::end(came.fd);
                    }
                    return Err(Ending::Broken);
                }
            }
        }
    }

    fn greeted(&mut self, fd: i32, process: u64, theirs: u32, board: Shared) -> Result<(), Ending> {
        let is_smaller = self.lanes.peers.id() < process;
        let is_theirs =
            |(_, link): &(&i32, &Link)| link.peer.as_ref().is_some_and(|peer| peer.id() == process);
        let other = self.links.iter().find(is_theirs).map(|(fd, _)| *fd);
        let Some(link) = self.links.get(&fd).filter(|link| link.peer.is_none()) else {
            return Err(Ending::Broken);
        };
        if theirs as usize >= MAX_LINKS || process == 0 {
            return Err(Ending::Broken);
        }
        // Of two that link with each other at the same time, the link that the one with the smaller id made stays. That one
        // knows of it from the beginning, and says nothing of ends on the other.
        let has_own = is_smaller && self.links.values().any(|link| link.to == Some(process));
        match other {
            _ if link.to.is_none() && has_own => return Err(Ending::Closed),
            Some(_) if link.to.is_some() != is_smaller => return Err(Ending::Closed),
            Some(other) => self.drop_link(other, &Ending::Closed),
            None => {}
        }
        let Some(link) = self.links.get_mut(&fd) else { return Ok(()) };
        let own = &self.lanes.board.links[link.part];
        let peer = Peer::new(process, board, theirs as usize, own).with_process(link::process_of(fd));
        let peer = Arc::new(peer);
        if !self.lanes.peers.add(Arc::clone(&peer)) {
            // This process itself.
            return Err(Ending::Closed);
        }
        own.begin(process);
        link.peer = Some(peer);
        if self.chunks.is_empty() {
            // Takes no memory before it is used.
            let _ = self.lanes.peers.pool.want_chunk();
        }
        for end in self.lanes.ends.all() {
            link.tell(&end);
        }
        Ok(())
    }

    fn tell_all(&mut self, end: &End) {
        for link in self.links.values_mut().filter(|link| link.peer.is_some()) {
            link.tell(end);
        }
    }

    fn add_chunk(&mut self) {
        let Ok(chunk) = Shared::make(c"uncopy-lane", CHUNK_BYTES) else { return };
        let number = self.lanes.peers.pool.add_chunk(chunk.base());
        for link in self.links.values_mut() {
            link.say(&Message::Chunk { number }, chunk.fd());
        }
        self.chunks.push(chunk);
    }

    fn drop_link(&mut self, fd: i32, ending: &Ending) {
        let Some(link) = self.links.remove(&fd) else { return };
        link::end(fd);
        if let Some(peer) = link.peer {
            if matches!(ending, Ending::Broken) {
                uncopy_sys::mem::say(format_args!(
                    "uncopy: a process that was linked for lanes said what cannot be: its lanes end\n"
                ));
            }
            self.lanes.peers.remove(peer.id());
            self.lanes.ends.unbind(self.lanes.board);
        }
    }
}

impl Link {
    fn say(&mut self, message: &Message, with: i32) {
        self.waiting.push_back((message.words(), with));
    }

    fn tell(&mut self, end: &End) {
        self.say(&Message::End { stream: end.stream, slot: end.slot, lane: end.lane }, -1);
    }

    /// Says what waits. False: the link has ended, or too much waits.
    fn send_waiting(&mut self, fd: i32) -> bool {
        while let Some((words, with)) = self.waiting.front() {
            match link::send(fd, words, *with) {
                Ok(()) => _ = self.waiting.pop_front(),
                Err(Errno(libc::EAGAIN)) => return self.waiting.len() <= MAX_WAITING,
                Err(_) => return false,
            }
        }
        true
    }
}

/// Length of a board, bytes: whole pages.
#[must_use]
pub const fn board_bytes() -> usize {
    size_of::<Board>().next_multiple_of(uncopy_core::addr::PAGE_BYTES)
}
