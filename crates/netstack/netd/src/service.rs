//! The service's event loop: packets, timers, streams and requests.

mod kept_bytes;
mod packets;
mod streams;

use crate::connection::Connection;
use crate::directory::{Directory, name};
use crate::listeners::Listeners;
use crate::packet_buffer::PacketBuffer;
use crate::payload::Bytes;
use crate::receive_buffers::Buffer;
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
use uncopy_net::state_table::{ConnectionState, STATE_TABLE_BYTES, StateTable};
use uncopy_sys::descriptor::Descriptor as _;
use uncopy_sys::ids;
use uncopy_sys::lock::Critical;
use uncopy_sys::mem::SharedMemory;
use uncopy_tcp::error::Error;
use uncopy_tcp::secret::Secret;
use uncopy_tcp::segment::Segment;
use uncopy_tcp::stack::{ConnectionId, Limits, Stack};
use uncopy_tcp::wire::Tuple;

/// Expected length of the first packet's headers, in bytes: IPv4, TCP and timestamps.
const USUAL_HEADER_BYTES: usize = 52;
/// Interval of retries after a lack of memory.
const RETRY: Duration = Duration::from_millis(2);
/// Interval at which sockets without a program are removed.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
const MAX_EVENTS: usize = 256;

/// Event data: the slot of a stream, or one of these.
const LINK: u64 = 1 << 40;
const CONTROL: u64 = LINK + 1;
const SIGNALS: u64 = LINK + 2;
const CLIENT: u64 = 1 << 41;

/// The service of `uncopy net`.
pub struct Service {
    pub(crate) settings: Settings,
    pub(crate) directory: Directory,
    pub(crate) state_table: &'static StateTable,
    pub(crate) state_table_file: SharedMemory,
    pub(crate) id: u64,
    pub(crate) process: &'static Process,
    pub(crate) link: Box<dyn Link>,
    pub(crate) stack: Stack<Bytes>,
    pub(crate) connections: Slots<Connection>,
    by_id: HashMap<ConnectionId, u32>,
    pub(crate) listeners: Listeners,
    epoll: OwnedFd,
    signals: OwnedFd,
    pub(crate) clients: HashMap<RawFd, OwnedFd>,
    /// Clients that arrived over other links, the oldest first.
    pub(crate) forwarded: VecDeque<RawFd>,
    /// Reserve descriptor, closed so that a link can be refused when no other is free.
    pub(crate) reserve: Option<OwnedFd>,
    packet_buffer: Option<PacketBuffer>,
    read_buffer: Option<Buffer>,
    header_bytes: usize,
    /// Segment for which the link had no room.
    unsent: Option<(Tuple, Segment<Bytes>)>,
    /// Segments from this host to itself.
    loopback: VecDeque<(Tuple, Segment<Bytes>)>,
    /// Accepted connections not yet delivered to a program.
    accepted: VecDeque<(ConnectionId, SocketAddr)>,
    pub(crate) awaiting_buffer: Vec<u32>,
    pub(crate) began: Instant,
    housekept_at: Instant,
    pub(crate) copied_bytes: u64,
    pub(crate) dropped_packets: u64,
    pub(crate) connections_begun: u64,
}

pub(crate) fn reserve() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

/// Blocks these signals and returns a descriptor that is readable once one is pending.
fn signals() -> io::Result<OwnedFd> {
    // SAFETY: all-zero bytes are a valid `sigset_t`; `set` outlives the calls; signalfd(2) returns
    // a new descriptor.
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
    /// Creates the directory, its sockets, and the shared memory, which lasts as long as the process.
    ///
    /// # Errors
    /// The error of creating the directory, the sockets, the memory, or the thread for lanes.
    pub fn begin(settings: Settings, link: Box<dyn Link>) -> io::Result<Self> {
        let signals = signals()?;
        let directory = Directory::make(&settings.control)?;
        let scope = Scope::parse(b"unix").expect("it is one");
        if let Some(directory) = &settings.memory_directory {
            uncopy_lanes::chunks::make_in_directory(name(directory)?)?;
        }
        uncopy_lanes::lane_thread::trust_all();
        uncopy_lanes::begin::begin(&directory.paths.lanes, scope, settings.memory_bytes)?;
        let process = process().ok_or_else(|| io::Error::other("lanes have not begun"))?;
        let state_table_file = SharedMemory::make(c"uncopy-net", STATE_TABLE_BYTES)?;
        // SAFETY: `SharedMemory` never unmaps its STATE_TABLE_BYTES of zeroes, which are valid as a state table's
        // atomic words.
        let state_table = unsafe { &*(state_table_file.base() as *const StateTable) };
        let random = || ids::random().ok_or_else(|| io::Error::other("no random numbers"));
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&random()?.to_ne_bytes());
        secret[8..].copy_from_slice(&random()?.to_ne_bytes());
        let limits = Limits { max_connections: settings.max_connections, ..Limits::default() };
        let stack = Stack::new(config(&*link, &settings, false), limits, Secret::new(secret));
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let watch =
            |fd: BorrowedFd<'_>, source| epoll::add(&epoll, fd, EventData::new_u64(source), EventFlags::IN);
        // SAFETY: the link and the directory keep their descriptors open during the calls.
        unsafe {
            watch(BorrowedFd::borrow_raw(link.fd()), LINK)?;
            watch(BorrowedFd::borrow_raw((&directory.control).number()), CONTROL)?;
        }
        watch(signals.as_fd(), SIGNALS)?;
        let max_connections = settings.max_connections.min(uncopy_net::state_table::MAX_CONNECTIONS);
        Ok(Self {
            id: random()?,
            process,
            directory,
            state_table,
            state_table_file,
            link,
            stack,
            connections: Slots::new(max_connections),
            by_id: HashMap::new(),
            listeners: Listeners::new(),
            epoll,
            signals,
            clients: HashMap::new(),
            forwarded: VecDeque::new(),
            reserve: reserve(),
            packet_buffer: None,
            read_buffer: None,
            header_bytes: USUAL_HEADER_BYTES,
            unsent: None,
            loopback: VecDeque::new(),
            accepted: VecDeque::new(),
            awaiting_buffer: Vec::new(),
            began: Instant::now(),
            housekept_at: Instant::now(),
            copied_bytes: 0,
            dropped_packets: 0,
            connections_begun: 0,
            settings,
        })
    }

    /// Serves until SIGINT, SIGTERM or SIGHUP arrives, or the link is gone.
    ///
    /// # Errors
    /// The error of epoll_wait(2) or of the link.
    pub fn run(mut self) -> io::Result<()> {
        let result = self.serve_all();
        uncopy_lanes::chunks::remove_files();
        result
    }

    fn serve_all(&mut self) -> io::Result<()> {
        // Locks of lanes require blocked signals; the signals that end the loop arrive by descriptor.
        let _critical = Critical::enter();
        loop {
            let mut buffer = [const { MaybeUninit::<Event>::uninit() }; MAX_EVENTS];
            let timeout = self.timeout();
            let events = match epoll::wait(&self.epoll, &mut buffer, Some(&timeout)) {
                Ok((events, _)) => &*events,
                Err(rustix::io::Errno::INTR) => &[],
                Err(errno) => return Err(errno.into()),
            };
            for event in events {
                let (source, flags) = (event.data.u64(), event.flags);
                match source {
                    LINK => self.receive_packets()?,
                    CONTROL => self.accept_clients(),
                    SIGNALS => {
                        self.end();
                        return Ok(());
                    }
                    source if source >= CLIENT => self.handle_request((source - CLIENT) as RawFd),
                    slot => self.on_stream_event(slot as u32, flags),
                }
                self.advance()?;
            }
            self.stack.on_timer(self.now_ns());
            for slot in std::mem::take(&mut self.awaiting_buffer) {
                self.serve(slot);
            }
            self.deliver_accepted();
            if self.housekept_at.elapsed() >= HOUSEKEEPING {
                self.housekeep();
            }
            self.advance()?;
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn timeout(&self) -> Timespec {
        let needs_retry =
            self.unsent.is_some() || !self.awaiting_buffer.is_empty() || !self.accepted.is_empty();
        let longest = if needs_retry { RETRY } else { HOUSEKEEPING };
        let due_ns = self.stack.deadline_ns().map_or(u64::MAX, |due| due.saturating_sub(self.now_ns()));
        let wait = longest.min(Duration::from_nanos(due_ns));
        Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) }
    }

    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        self.settings.prefixes.iter().any(|prefix| prefix.service_address == address)
    }

    /// Processes TCP's events and pending segments until there are none.
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
                        self.deliver_accepted();
                    }
                    uncopy_tcp::stack::Event::Connection(id, _) => {
                        if let Some(slot) = self.by_id.get(&id).copied() {
                            self.serve(slot);
                        }
                    }
                }
            }
            self.send_segments()?;
            while let Some((tuple, segment)) = self.loopback.pop_front() {
                is_idle = false;
                self.process_segment(tuple, segment);
            }
            if is_idle {
                return Ok(());
            }
        }
    }

    /// Adds a connection and announces it in the state table. `None` if the table is full.
    pub(crate) fn add(&mut self, connection: Connection) -> Option<(u32, u32)> {
        let (slot, serial) = self.connections.add(connection)?;
        self.state_table.set(slot, serial, ConnectionState::Connecting);
        self.connections_begun += 1;
        Some((slot, serial))
    }

    pub(crate) fn remove_gone_listeners(&mut self, matches: impl Fn(&SocketAddr) -> bool) {
        for address in self.listeners.remove_gone(matches) {
            self.stack.unlisten(address);
        }
    }

    fn housekeep(&mut self) {
        self.housekept_at = Instant::now();
        self.remove_gone_listeners(|_| true);
    }

    /// Resets all connections, for peers and programs.
    fn end(&mut self) {
        let _ = &self.signals;
        let all: Vec<u32> = self.connections.all().map(|(slot, _)| slot).collect();
        for slot in all {
            self.fail_connection(slot, Error::ConnectionReset);
        }
        let _ = self.send_segments();
    }

    /// Adds a client and watches its link.
    pub(crate) fn watch_client(&mut self, fd: OwnedFd) {
        let number = fd.as_raw_fd();
        let data = EventData::new_u64(CLIENT + number as u64);
        if epoll::add(&self.epoll, &fd, data, EventFlags::IN).is_ok() {
            self.clients.insert(number, fd);
        }
    }
}
