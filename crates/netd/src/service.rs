//! The service: packets, timers, streams and questions, in one loop.

mod kept;
mod packets;
mod streams;

use crate::connection::Connection;
use crate::directory::Directory;
use crate::filling::Filling;
use crate::listeners::Listeners;
use crate::payload::Bytes;
use crate::rooms::Room;
use crate::settings::{Settings, config};
use crate::slots::Slots;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::time::{Duration, Instant};
use uncopy_core::scope::Scope;
use uncopy_lanes::process::{Process, process};
use uncopy_link::Link;
use uncopy_net::board::{BOARD_BYTES, Board, Condition};
use uncopy_sys::ids;
use uncopy_sys::lock::Critical;
use uncopy_sys::mem::Shared;
use uncopy_tcp::error::Error;
use uncopy_tcp::secret::Secret;
use uncopy_tcp::segment::Segment;
use uncopy_tcp::stack::{ConnectionId, Limits, Stack};
use uncopy_tcp::wire::Tuple;

/// IPv4, TCP and timestamps: what headers of the next packet are taken to have until one has come.
const USUAL_HEADER_BYTES: usize = 52;
/// How soon what found no room is tried again.
const RETRY: Duration = Duration::from_millis(2);
/// How often what is gone is looked for.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Events of one wait.
const MAX_EVENTS: usize = 256;

/// Who an event is for: a stream by its place, or one of these.
const LINK: u64 = 1 << 40;
const CONTROL: u64 = LINK + 1;
const SIGNALS: u64 = LINK + 2;
const QUESTIONER: u64 = 1 << 41;

/// The service.
pub struct Service {
    pub(crate) settings: Settings,
    pub(crate) directory: Directory,
    pub(crate) board: &'static Board,
    pub(crate) board_file: Shared,
    pub(crate) id: u64,
    pub(crate) process: &'static Process,
    pub(crate) link: Box<dyn Link>,
    pub(crate) stack: Stack<Bytes>,
    pub(crate) connections: Slots<Connection>,
    by_id: HashMap<ConnectionId, u32>,
    pub(crate) listeners: Listeners,
    epoll: OwnedFd,
    signals: OwnedFd,
    pub(crate) questioners: HashMap<RawFd, OwnedFd>,
    /// Links that came over other links, the oldest first.
    pub(crate) lent: VecDeque<RawFd>,
    /// Is closed so that a link can be refused when there are no descriptors.
    pub(crate) spare: Option<OwnedFd>,
    filling: Option<Filling>,
    read_room: Option<Room>,
    header_bytes: usize,
    /// What the link has had no room for.
    unsent: Option<(Tuple, Segment<Bytes>)>,
    /// Segments from this host to itself.
    looped: VecDeque<(Tuple, Segment<Bytes>)>,
    /// Connections that no program has been given yet.
    accepted: VecDeque<(ConnectionId, SocketAddr)>,
    /// Places of streams for which there was no room.
    pub(crate) starved: Vec<u32>,
    pub(crate) began: Instant,
    housekept: Instant,
    pub(crate) copied_bytes: u64,
    pub(crate) dropped_packets: u64,
    pub(crate) connections_begun: u64,
}

/// A descriptor that nobody needs.
pub(crate) fn spare() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

/// Has the kernel keep these signals for a descriptor, which is readable once one has come.
fn signals() -> io::Result<OwnedFd> {
    // SAFETY: an all-zero set is valid; the descriptor is new.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

impl Service {
    /// Begins: makes the sockets that programs find, and shared memory. For the process's life.
    ///
    /// # Errors
    /// What making the folder, the sockets, the memory and the thread for lanes says.
    pub fn begin(settings: Settings, link: Box<dyn Link>) -> io::Result<Self> {
        let signals = signals()?;
        let directory = Directory::make(&settings.control)?;
        let scope = Scope::parse(b"unix").expect("it is one");
        uncopy_lanes::service::trust_all();
        uncopy_lanes::begin::begin(&directory.places.lanes, scope, settings.memory_bytes)?;
        let process = process().ok_or_else(|| io::Error::other("lanes have not begun"))?;
        let board_file = Shared::make(c"uncopy-net", BOARD_BYTES)?;
        // SAFETY: zeroed memory of that length, mapped for the process's life; all of a board is atomic words, for which zero is valid.
        let board = unsafe { &*(board_file.base() as *const Board) };
        let random = || ids::random().ok_or_else(|| io::Error::other("no random numbers"));
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&random()?.to_ne_bytes());
        secret[8..].copy_from_slice(&random()?.to_ne_bytes());
        let limits = Limits { max_connections: settings.max_connections, ..Limits::default() };
        let stack = Stack::new(config(&*link, &settings, false), limits, Secret::new(secret));
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let watch = |fd: BorrowedFd<'_>, who| epoll::add(&epoll, fd, EventData::new_u64(who), EventFlags::IN);
        // SAFETY: the link's and the folder's own, open as long as those are.
        unsafe {
            watch(BorrowedFd::borrow_raw(link.fd()), LINK)?;
            watch(BorrowedFd::borrow_raw(directory.control), CONTROL)?;
        }
        watch(signals.as_fd(), SIGNALS)?;
        let max_connections = settings.max_connections.min(uncopy_net::board::MAX_CONNECTIONS);
        Ok(Self {
            id: random()?,
            process,
            directory,
            board,
            board_file,
            link,
            stack,
            connections: Slots::new(max_connections),
            by_id: HashMap::new(),
            listeners: Listeners::new(),
            epoll,
            signals,
            questioners: HashMap::new(),
            lent: VecDeque::new(),
            spare: spare(),
            filling: None,
            read_room: None,
            header_bytes: USUAL_HEADER_BYTES,
            unsent: None,
            looped: VecDeque::new(),
            accepted: VecDeque::new(),
            starved: Vec::new(),
            began: Instant::now(),
            housekept: Instant::now(),
            copied_bytes: 0,
            dropped_packets: 0,
            connections_begun: 0,
            settings,
        })
    }

    /// Serves until SIGINT, SIGTERM or SIGHUP comes, or the link is no more.
    ///
    /// # Errors
    /// What waiting and the link say.
    pub fn run(mut self) -> io::Result<()> {
        // Locks of lanes are taken with signals blocked; those that end this come by a descriptor.
        let _critical = Critical::enter();
        loop {
            let mut room = [const { MaybeUninit::<Event>::uninit() }; MAX_EVENTS];
            let timeout = self.timeout();
            let events = match epoll::wait(&self.epoll, &mut room, Some(&timeout)) {
                Ok((events, _)) => &*events,
                Err(rustix::io::Errno::INTR) => &[],
                Err(errno) => return Err(errno.into()),
            };
            for event in events {
                let (who, flags) = (event.data.u64(), event.flags);
                match who {
                    LINK => self.receive_packets()?,
                    CONTROL => self.take_questioners(),
                    SIGNALS => {
                        self.end();
                        return Ok(());
                    }
                    who if who >= QUESTIONER => self.hear((who - QUESTIONER) as RawFd),
                    slot => self.note(slot as u32, flags),
                }
                self.advance()?;
            }
            self.stack.on_timer(self.now_ns());
            for slot in std::mem::take(&mut self.starved) {
                self.serve(slot);
            }
            self.hand_out();
            if self.housekept.elapsed() >= HOUSEKEEPING {
                self.housekeep();
            }
            self.advance()?;
        }
    }

    /// The clock of TCP.
    pub(crate) fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn timeout(&self) -> Timespec {
        let is_hurried = self.unsent.is_some() || !self.starved.is_empty() || !self.accepted.is_empty();
        let longest = if is_hurried { RETRY } else { HOUSEKEEPING };
        let due_ns = self.stack.deadline_ns().map_or(u64::MAX, |due| due.saturating_sub(self.now_ns()));
        let wait = longest.min(Duration::from_nanos(due_ns));
        Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) }
    }

    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        self.settings.prefixes.iter().any(|prefix| prefix.own == address)
    }

    /// Does all that follows from what has happened.
    fn advance(&mut self) -> io::Result<()> {
        loop {
            let mut is_idle = true;
            while let Some(event) = self.stack.poll_event() {
                is_idle = false;
                match event {
                    uncopy_tcp::stack::Event::Incoming(address) => {
                        while let Some(id) = self.stack.accept(address) {
                            self.accepted.push_back((id, address));
                        }
                        self.hand_out();
                    }
                    uncopy_tcp::stack::Event::Connection(id, _) => {
                        if let Some(slot) = self.by_id.get(&id).copied() {
                            self.serve(slot);
                        }
                    }
                }
            }
            self.send_segments()?;
            while let Some((tuple, segment)) = self.looped.pop_front() {
                is_idle = false;
                self.take_segment(tuple, segment);
            }
            if is_idle {
                return Ok(());
            }
        }
    }

    /// Puts a connection at a place, where there is one.
    pub(crate) fn add(&mut self, connection: Connection) -> Option<(u32, u32)> {
        let (slot, serial) = self.connections.add(connection)?;
        self.board.set(slot, serial, Condition::Connecting);
        self.connections_begun += 1;
        Some((slot, serial))
    }

    pub(crate) fn forget_listeners(&mut self, concerns: impl Fn(&SocketAddr) -> bool) {
        for address in self.listeners.forget_gone(concerns) {
            self.stack.unlisten(address);
        }
    }

    fn housekeep(&mut self) {
        self.housekept = Instant::now();
        self.forget_listeners(|_| true);
    }

    /// Everything ends: peers and programs are told so.
    fn end(&mut self) {
        let _ = &self.signals;
        let all: Vec<u32> = self.connections.all().map(|(slot, _)| slot).collect();
        for slot in all {
            self.lose(slot, Error::ConnectionReset);
        }
        let _ = self.send_segments();
    }

    /// Watches the link of one that asks.
    pub(crate) fn watch_questioner(&mut self, fd: OwnedFd) {
        let number = fd.as_raw_fd();
        let data = EventData::new_u64(QUESTIONER + number as u64);
        if epoll::add(&self.epoll, &fd, data, EventFlags::IN).is_ok() {
            self.questioners.insert(number, fd);
        }
    }
}
