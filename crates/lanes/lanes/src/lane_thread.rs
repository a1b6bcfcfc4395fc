//! The lanes' thread: links this process with others, shares memory with them, and pairs the ends of streams.
//!
//! The thread has a descriptor table of its own, so a program that closes all its descriptors does not close the
//! links. Other threads queue work and then wake it by connecting to its socket; it accepts such a connection and
//! drops it.

extern crate alloc;
use crate::board::{Board, MAX_LINKS};
use crate::chunks::{Chunks, each_round};
use crate::detach::detach;
use crate::ends::{End, Ends, RemoteEnd};
use crate::peers::{Peer, Peers};
use crate::pool::CHUNK_BYTES;
use crate::protocol::{Message, Words};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::ffi::CString;
use core::ffi::CStr;
use core::sync::atomic::AtomicU32;
use uncopy_sys::descriptor::{OwnFd, OwnRef};
use uncopy_sys::errno::Errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::mem::SharedMemory;
use uncopy_sys::sync::Arc;
use uncopy_sys::sync::atomic::{AtomicBool, Ordering::Relaxed};
use uncopy_sys::{ids, rights, seqpacket};

/// Maximum number of messages queued for a peer; beyond it, the link is closed.
const MAX_WAITING: usize = 4096;
/// Maximum number of a peer's chunks.
const MAX_PEERS_CHUNKS: u32 = crate::pool::MAX_CHUNKS as u32;

/// State that the lanes of a process share.
pub struct Lanes {
    /// Board of this process.
    pub board: &'static Board,
    /// Linked processes and shared memory.
    pub peers: Peers,
    /// Stream ends of this process.
    pub ends: Ends,
    /// Ends that are to be announced to the peers.
    unannounced: Guarded<Vec<Arc<End>>>,
    /// True in a forked child, where this state is the parent's.
    is_abandoned: AtomicBool,
}

impl Lanes {
    /// Returns the state of a process without links.
    #[must_use]
    pub const fn new(id: u64, board: &'static Board) -> Self {
        Self {
            board,
            peers: Peers::new(id),
            ends: Ends::new(),
            unannounced: Guarded::new(Vec::new()),
            is_abandoned: AtomicBool::new(false),
        }
    }

    /// Marks this state as the parent's, in a forked child.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Relaxed);
    }

    /// True if this state is that of a forked child's parent.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Relaxed)
    }

    /// Queues an end to be announced to the peers.
    pub fn announce_end(&self, end: Arc<End>) {
        self.unannounced.lock().push(end);
    }
}

/// Id of a process that is linked regardless of its rights; 0: none. [`ALL`]: every process of this user.
static TRUSTED: AtomicU32 = AtomicU32::new(0);
const ALL: u32 = u32::MAX;

/// Allows links with this process regardless of its rights. It is the service of this process's connections: it
/// has their bytes anyway, and has dropped its own rights.
pub fn trust(process: u32) {
    TRUSTED.store(process, Relaxed);
}

/// Allows links with every process of the same user. For a service, whose only data are its peers' own.
pub fn trust_all() {
    TRUSTED.store(ALL, Relaxed);
}

fn is_trusted(process: u32) -> bool {
    [process, ALL].contains(&TRUSTED.load(Relaxed))
}

/// Whether a process is the service of this process's connections, whose memory may be files.
fn is_service(process: u32) -> bool {
    process != ALL && TRUSTED.load(Relaxed) == process
}

struct Link {
    fd: OwnFd,
    /// Index of the part of this process's board that is for the peer.
    part: usize,
    /// Id of the peer, if this process made the link; `None` if the peer did.
    to: Option<u64>,
    peer: Option<Arc<Peer>>,
    waiting: VecDeque<(Words, Option<OwnRef>)>,
}

/// Suffix of the names of sockets in the directory.
pub const SOCKET_SUFFIX: &str = ".lane";

/// State of the lanes' thread.
pub struct LaneThread {
    lanes: &'static Lanes,
    board: SharedMemory,
    listener: OwnFd,
    links: BTreeMap<OwnRef, Link>,
    chunks: Chunks,
}

/// Reason for closing a link.
enum Ending {
    /// The peer has closed the link.
    Closed,
    /// The peer has sent something invalid.
    Broken,
}

impl LaneThread {
    /// Listens at `path`, then links with the processes that `others` finds, by socket name. Since each process
    /// listens before it searches, of two that start at the same time at least one finds the other.
    ///
    /// # Errors
    /// The error of making the socket.
    pub fn begin(
        lanes: &'static Lanes,
        board: SharedMemory,
        path: &CStr,
        others: impl FnOnce() -> Vec<(u64, CString)>,
    ) -> Result<Self, Errno> {
        let listener = seqpacket::listen(path)?;
        let chunks = Chunks::default();
        let mut service = Self { lanes, board, listener, links: BTreeMap::new(), chunks };
        for (process, name) in others().iter().filter(|(process, _)| *process != lanes.peers.id()) {
            match seqpacket::connect(name) {
                Ok(fd) => service.greet(fd, Some(*process)),
                // A stale socket: its process has ended.
                Err(Errno(libc::ECONNREFUSED)) => uncopy_sys::mem::unlink(name),
                Err(_) => {}
            }
        }
        Ok(service)
    }

    /// Returns the descriptors to poll for input.
    pub fn descriptors(&self) -> impl Iterator<Item = OwnRef> + '_ {
        core::iter::once(self.listener.reference()).chain(self.links.keys().copied())
    }

    /// Ends every link of this process, which lives on; held memory becomes private, see
    /// [`crate::detach`](mod@crate::detach). Links must not be closed, by dropping this value, before: peers then
    /// reuse the memory that this process held.
    ///
    /// # Errors
    /// The error of the mapping that failed.
    pub fn detach(&self) -> Result<(), Errno> {
        for (_, end) in self.lanes.ends.with_descriptors() {
            end.end();
            end.await_references();
        }
        self.board.make_private()?;
        self.chunks.all().iter().try_for_each(SharedMemory::make_private)?;
        detach(&self.lanes.peers, &self.lanes.ends)
    }

    /// Handles all pending input and work without blocking.
    pub fn run_pending(&mut self) {
        loop {
            match seqpacket::accept(&self.listener) {
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
        for end in core::mem::take(&mut *self.lanes.unannounced.lock()) {
            self.announce_end_to_all(&end);
        }
        self.lanes.peers.read_returns();
        self.lanes.peers.forget_gone(|process| self.lanes.ends.may_receive_from(process));
        self.chunks.release_logged(&self.lanes.peers.pool);
        if self.lanes.peers.pool.take_chunk_request() {
            self.add_chunk();
        }
        each_round();
        let silent: Vec<OwnRef> =
            self.links.iter_mut().filter_map(|(fd, link)| (!link.send_waiting()).then_some(*fd)).collect();
        for fd in silent {
            self.drop_link(fd, &Ending::Closed);
        }
    }

    fn greet(&mut self, fd: OwnFd, to: Option<u64>) {
        // A process in an invisible PID namespace was given access to the directory by whoever made that
        // namespace.
        if seqpacket::peer_process(&fd)
            .is_some_and(|process| !is_trusted(process) && !rights::may_access_this_process(process))
        {
            return;
        }
        let is_free = |part: &usize| self.links.values().all(|link| link.part != *part);
        let Some(part) = (0..MAX_LINKS).find(is_free) else { return };
        let key = fd.reference();
        let mut link = Link { fd, part, to, peer: None, waiting: VecDeque::new() };
        let greeting = Message::Greeting { process: self.lanes.peers.id(), link: part as u32 };
        link.send_message(&greeting, self.board.fd());
        for (number, chunk) in self.chunks.all().iter().enumerate() {
            link.send_message(&Message::Chunk { number: number as u32 }, chunk.fd());
        }
        self.links.insert(key, link);
        self.expect_unlinked();
    }

    /// Counts processes that were sent this one's memory and have not sent their greeting yet.
    fn expect_unlinked(&self) {
        self.lanes.peers.set_unlinked(self.links.values().filter(|link| link.peer.is_none()).count());
    }

    fn listen_to(&mut self, fd: OwnRef) -> Result<(), Ending> {
        let mut words = [0; seqpacket::MAX_WORDS];
        loop {
            // A greeting from a peer that is linked already may have closed this link.
            let Some(link) = self.links.get_mut(&fd) else { return Ok(()) };
            let came = match seqpacket::receive(fd, &mut words) {
                Ok(came) => came,
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return Ok(()),
                Err(Errno(libc::EPROTO)) => return Err(Ending::Broken),
                Err(_) => return Err(Ending::Closed),
            };
            if came.words == 0 {
                return Err(Ending::Closed);
            }
            // A link may be inherited by a process that has changed its user since.
            if came.user.is_some_and(|user| user != ids::effective_user()) {
                return Err(Ending::Broken);
            }
            match (Message::parse(&words[..came.words]), came.fd) {
                (Some(Message::Greeting { process, link }), Some(board)) => {
                    let board = SharedMemory::map_others(board, board_bytes()).map_err(|_| Ending::Broken)?;
                    self.greeted(fd, process, link, board)?;
                }
                (Some(Message::Chunk { number }), Some(chunk)) => {
                    let is_service = seqpacket::peer_process(fd).is_some_and(is_service);
                    let map =
                        if is_service { SharedMemory::map_others_or_file } else { SharedMemory::map_others };
                    let chunk = map(chunk, CHUNK_BYTES).map_err(|_| Ending::Broken)?;
                    let peer = link.peer.as_ref().filter(|peer| peer.chunks() == number);
                    peer.filter(|_| number < MAX_PEERS_CHUNKS).ok_or(Ending::Broken)?.add_chunk(chunk);
                }
                (Some(Message::End { stream, slot, lane }), None) => {
                    let peer = link.peer.clone().filter(|peer| peer.slot(slot).is_some() && lane != 0);
                    let far = RemoteEnd { peer: peer.ok_or(Ending::Broken)?, slot, lane };
                    // The peer has not been told of this end yet.
                    if let Some(end) = self.lanes.ends.bind(stream, far) {
                        link.announce_end(&end);
                    }
                }
                _ => return Err(Ending::Broken),
            }
        }
    }

    fn greeted(&mut self, fd: OwnRef, process: u64, theirs: u32, board: SharedMemory) -> Result<(), Ending> {
        let is_smaller = self.lanes.peers.id() < process;
        let is_theirs =
            |(_, link): &(&OwnRef, &Link)| link.peer.as_ref().is_some_and(|peer| peer.id() == process);
        let other = self.links.iter().find(is_theirs).map(|(fd, _)| *fd);
        let Some(link) = self.links.get(&fd).filter(|link| link.peer.is_none()) else {
            return Err(Ending::Broken);
        };
        if theirs as usize >= MAX_LINKS || process == 0 {
            return Err(Ending::Broken);
        }
        // If two processes link with each other at the same time, the link made by the one with the smaller id
        // stays. That process knows so from the beginning, and announces no ends on the other link.
        let has_own = is_smaller && self.links.values().any(|link| link.to == Some(process));
        match other {
            _ if link.to.is_none() && has_own => return Err(Ending::Closed),
            Some(_) if link.to.is_some() != is_smaller => return Err(Ending::Closed),
            Some(other) => self.drop_link(other, &Ending::Closed),
            None => {}
        }
        let Some(link) = self.links.get_mut(&fd) else { return Ok(()) };
        let own = &self.lanes.board.links[link.part];
        let peer = Peer::new(process, board, theirs as usize, own).with_process(seqpacket::peer_process(fd));
        let peer = Arc::new(peer);
        if !self.lanes.peers.add(Arc::clone(&peer)) {
            // A link to this process itself.
            return Err(Ending::Closed);
        }
        own.begin(process);
        link.peer = Some(peer);
        if self.chunks.all().is_empty() {
            // The chunk takes no memory before it is used.
            let _ = self.lanes.peers.pool.request_chunk();
        }
        for end in self.lanes.ends.all() {
            link.announce_end(&end);
        }
        self.expect_unlinked();
        Ok(())
    }

    fn announce_end_to_all(&mut self, end: &End) {
        for link in self.links.values_mut().filter(|link| link.peer.is_some()) {
            link.announce_end(end);
        }
    }

    fn add_chunk(&mut self) {
        let Ok(chunk) = self.chunks.make() else { return };
        let number = self.lanes.peers.pool.add_chunk(chunk.base());
        for link in self.links.values_mut() {
            link.send_message(&Message::Chunk { number }, chunk.fd());
        }
        self.chunks.add(chunk);
    }

    fn drop_link(&mut self, fd: OwnRef, ending: &Ending) {
        let Some(Link { fd, peer, .. }) = self.links.remove(&fd) else { return };
        drop(fd);
        self.expect_unlinked();
        if let Some(peer) = peer {
            if matches!(ending, Ending::Broken) {
                uncopy_sys::mem::write_stderr(format_args!(
                    "uncopy: a peer process sent an invalid message; its lanes end\n"
                ));
            }
            self.lanes.peers.remove(peer.id(), &self.chunks.logged_by(peer.id()));
            self.lanes.ends.unbind(self.lanes.board);
        }
    }
}

impl Link {
    fn send_message(&mut self, message: &Message, with: Option<&OwnFd>) {
        self.waiting.push_back((message.words(), with.map(OwnFd::reference)));
    }

    fn announce_end(&mut self, end: &End) {
        self.send_message(&Message::End { stream: end.stream, slot: end.slot, lane: end.lane }, None);
    }

    /// Sends queued messages. False if the link has ended or the queue is too long.
    fn send_waiting(&mut self) -> bool {
        while let Some((words, with)) = self.waiting.front() {
            match seqpacket::send_with(&self.fd, words, *with) {
                Ok(()) => _ = self.waiting.pop_front(),
                Err(Errno(libc::EAGAIN)) => return self.waiting.len() <= MAX_WAITING,
                Err(_) => return false,
            }
        }
        true
    }
}

/// Returns the length of a board, bytes, in whole pages.
#[must_use]
pub const fn board_bytes() -> usize {
    size_of::<Board>().next_multiple_of(uncopy_core::addr::PAGE_BYTES)
}
