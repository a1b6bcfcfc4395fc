//! The service: packets, timers, streams and questions, in one loop.

use crate::directory::Directory;
use crate::icmp::{self, Meaning};
use crate::listeners::Listeners;
use crate::payload::Bytes;
use crate::rooms::{MAX_FEW_BYTES, Room, copied};
use crate::settings::Settings;
use crate::slots::Slots;
use crate::stream::{Pulled, Stream};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::time::{Duration, Instant};
use uncopy_core::scope::Scope;
use uncopy_lanes::process::{Process, process};
use uncopy_link::Link;
use uncopy_net::board::{BOARD_BYTES, Board, Condition};
use uncopy_net::message::Options;
use uncopy_net::name;
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::Critical;
use uncopy_sys::mem::Shared;
use uncopy_sys::{ids, unix};
use uncopy_tcp::config::{Config, Keepalive, SECOND_NS};
use uncopy_tcp::connection::Received;
use uncopy_tcp::error::Error;
use uncopy_tcp::payload::{Payload as _, len_bytes};
use uncopy_tcp::secret::Secret;
use uncopy_tcp::segment::Segment;
use uncopy_tcp::stack::{ConnectionId, Limits, Stack};
use uncopy_tcp::wire::{self, Tuple};

/// Packets that are received before something else has its turn.
const MAX_PACKETS_A_TURN: usize = 64;
/// Bytes that are taken out of TCP before a program has taken them.
const MAX_WAITING_BYTES: usize = 1 << 20;
/// Bytes of the page in front of payload: headers end where it does.
const HEAD_BYTES: usize = uncopy_core::addr::PAGE_BYTES;
/// IPv4, TCP and timestamps: what headers of the next packet are taken to have until one has come.
const USUAL_HEADER_BYTES: usize = 52;
/// How long a connection waits for the stream that its program has announced.
const STREAM_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon what found no room is tried again.
const RETRY: Duration = Duration::from_millis(2);
/// How often what is gone is looked for.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Parts of one packet that are handed to the link as they are.
const MAX_PARTS: usize = 512;
/// Events of one wait.
const MAX_EVENTS: usize = 256;

/// Who an event is for: a stream by its place, or one of these.
const LINK: u64 = 1 << 40;
const CONTROL: u64 = LINK + 1;
const STREAMS: u64 = LINK + 2;
const SIGNALS: u64 = LINK + 3;
const QUESTIONER: u64 = 1 << 41;

/// How far a program's connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its program has announced it.
    Announced,
    /// Its program has a stream, which it fills.
    Filling,
    /// Its program has a stream that cannot be written to.
    Opening,
    /// Bytes go both ways.
    Open,
}

/// A connection that a program has.
pub(crate) struct Connection {
    pub stage: Stage,
    pub tuple: Tuple,
    pub options: Options,
    pub id: Option<ConnectionId>,
    pub stream: Option<Stream>,
    pub since: Instant,
    /// The peer's stream ends behind what waits.
    has_ended: bool,
    /// It fails behind what waits.
    failure: Option<Error>,
    /// The program's stream has ended, and TCP knows it.
    has_shut_down: bool,
    /// The program does not take anything any more.
    is_deaf: bool,
    /// Bytes that the program was given.
    pub received_bytes: u64,
}

impl Connection {
    pub(crate) fn new(stage: Stage, tuple: Tuple, options: Options) -> Self {
        Self {
            stage,
            tuple,
            options,
            id: None,
            stream: None,
            since: Instant::now(),
            has_ended: false,
            failure: None,
            has_shut_down: false,
            is_deaf: false,
            received_bytes: 0,
        }
    }
}

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
    packet_room: Option<Room>,
    read_room: Option<Room>,
    header_bytes: usize,
    /// What the link has had no room for.
    unsent: Option<(Tuple, Segment<Bytes>)>,
    /// Segments from this host to itself.
    looped: VecDeque<(Tuple, Segment<Bytes>)>,
    /// Connections that no program has been given yet.
    accepted: VecDeque<(ConnectionId, SocketAddr)>,
    /// Places of streams for which there was no room.
    starved: Vec<u32>,
    pub(crate) began: Instant,
    housekept: Instant,
    pub(crate) copied_bytes: u64,
    pub(crate) dropped_packets: u64,
    pub(crate) connections_begun: u64,
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

/// What TCP is told of connections of a family over a link.
pub(crate) fn config(link: &dyn Link, settings: &Settings, is_v6: bool) -> Config {
    // Fixed headers of IP and TCP, and timestamps.
    let header_bytes = if is_v6 { 60 } else { 40 };
    let mss =
        link.mtu_bytes().saturating_sub(header_bytes).clamp(usize::from(uncopy_tcp::config::MIN_MSS), 0xffff);
    let segment_bytes = mss - 12;
    let max_payload_bytes = wire::MAX_SUPER_PAYLOAD_BYTES.min(link.max_packet_bytes().saturating_sub(100));
    Config {
        mss: mss as u16,
        max_super_payload_bytes: (max_payload_bytes / segment_bytes).max(1) * segment_bytes,
        congestion_control: settings.congestion_control,
        ecn: settings.ecn,
        ..Config::default()
    }
}

/// A configuration with a program's options.
pub(crate) fn with_options(mut config: Config, options: Options) -> Config {
    config.nagle = !options.no_delay;
    config.keepalive = options.keepalive.map(|[idle, interval, probes]| Keepalive {
        idle_ns: u64::from(idle) * SECOND_NS,
        interval_ns: u64::from(interval) * SECOND_NS,
        max_probes: probes.into(),
    });
    config
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
            watch(BorrowedFd::borrow_raw(directory.streams), STREAMS)?;
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
            packet_room: None,
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
                    STREAMS => self.take_streams(),
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

    // ---- packets ----

    fn receive_packets(&mut self) -> io::Result<()> {
        let max_bytes = HEAD_BYTES + self.link.max_packet_bytes();
        for _ in 0..MAX_PACKETS_A_TURN {
            let taken = self.packet_room.take().or_else(|| Room::take(self.process, max_bytes));
            let mut spare = Vec::new();
            let (mut room, begin) = match taken {
                Some(room) => (Some(room), HEAD_BYTES - self.header_bytes),
                None => {
                    // Only headers can be kept: TCP sends again what is dropped.
                    spare.resize(max_bytes, 0);
                    (None, 0)
                }
            };
            let bytes = room.as_mut().map_or(&mut spare[..], Room::bytes);
            let Some(packet_bytes) = self.link.receive(&mut bytes[begin..])? else {
                self.packet_room = room;
                return Ok(());
            };
            let packet = &bytes[begin..begin + packet_bytes];
            match wire::parse(packet, packet_bytes) {
                Ok(parsed)
                    if self.settings.prefixes.iter().any(|prefix| prefix.own == parsed.tuple.local.ip()) =>
                {
                    let payload = begin + parsed.payload.start..begin + parsed.payload.end;
                    let piece = match room {
                        _ if payload.len() < MAX_FEW_BYTES => {
                            let piece = Bytes::copy_of(&bytes[payload.clone()]);
                            self.packet_room = room;
                            piece
                        }
                        Some(room) => {
                            self.header_bytes = parsed.payload.start.min(HEAD_BYTES);
                            room.filled(payload.end).part(payload.clone())
                        }
                        None => {
                            self.dropped_packets += 1;
                            continue;
                        }
                    };
                    let mut segment = Segment::bare(parsed.header);
                    if !payload.is_empty() {
                        segment.payload.push(piece);
                    }
                    self.take_segment(parsed.tuple, segment);
                }
                Ok(_) => self.packet_room = room,
                Err(_) => {
                    let meaning = icmp::parse(packet, |address| {
                        self.settings.prefixes.iter().any(|prefix| prefix.own == address)
                    });
                    self.packet_room = room;
                    self.obey(meaning);
                }
            }
        }
        Ok(())
    }

    fn take_segment(&mut self, tuple: Tuple, segment: Segment<Bytes>) {
        let flags = segment.header.flags;
        if flags.syn && !flags.ack {
            self.forget_listeners(|address| address.port() == tuple.local.port());
        }
        self.stack.on_segment(tuple, segment, self.now_ns());
    }

    fn obey(&mut self, meaning: Option<Meaning>) {
        match meaning {
            Some(Meaning::Unreachable(tuple, sequence, error)) => {
                self.stack.on_unreachable(&tuple, sequence, error);
            }
            Some(Meaning::PathMtu(tuple, sequence, mtu)) => {
                let headers = if tuple.local.is_ipv4() { 40 } else { 60 };
                self.stack.on_path_mtu(&tuple, sequence, mtu.saturating_sub(headers));
            }
            Some(Meaning::Echo(mut packet)) => _ = self.link.send(&mut packet, &[], usize::MAX),
            None => {}
        }
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

    fn send_segments(&mut self) -> io::Result<()> {
        loop {
            let next = self.unsent.take().or_else(|| self.stack.poll_transmit(self.now_ns()));
            let Some((tuple, segment)) = next else { return Ok(()) };
            if self.is_own(tuple.remote.ip()) {
                self.looped.push_back((Tuple { local: tuple.remote, remote: tuple.local }, segment));
                continue;
            }
            let mut header = wire::write(&tuple, &segment.header, len_bytes(&segment.payload));
            let mut parts: Vec<IoSlice<'_>> =
                segment.payload.iter().map(|piece| IoSlice::new(piece.as_slice())).collect();
            let joined;
            if parts.len() > MAX_PARTS {
                // The kernel takes 1024 (IOV_MAX); they are small then.
                joined =
                    segment.payload.iter().flat_map(|piece| piece.as_slice()).copied().collect::<Vec<u8>>();
                parts = vec![IoSlice::new(&joined)];
            }
            let max_bytes = usize::from(segment.max_payload_bytes).max(1);
            match self.link.send(&mut header, &parts, max_bytes) {
                Ok(true) => {}
                Ok(false) => {
                    self.unsent = Some((tuple, segment));
                    return Ok(());
                }
                // No packet, or the device is down: lost, as on any network.
                Err(error)
                    if error.kind() == io::ErrorKind::InvalidInput
                        || matches!(
                            error.raw_os_error(),
                            Some(libc::EIO | libc::EINVAL | libc::ENETDOWN)
                        ) =>
                {
                    self.dropped_packets += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    // ---- streams ----

    /// Puts a connection at a place, where there is one.
    pub(crate) fn add(&mut self, connection: Connection) -> Option<(u32, u32)> {
        let (slot, serial) = self.connections.add(connection)?;
        self.board.set(slot, serial, Condition::Connecting);
        self.connections_begun += 1;
        Some((slot, serial))
    }

    fn take_streams(&mut self) {
        while let Ok((fd, peer)) = unix::accept(self.directory.streams) {
            // SAFETY: just made.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            let known = peer.and_then(|peer| name::Connection::parse(&peer));
            let Some(known) = known.filter(|known| known.service == self.id) else { continue };
            let announced = |connection: &&mut Connection| connection.stage == Stage::Announced;
            let Some(connection) = self.connections.known(known.slot, known.serial).filter(announced) else {
                continue;
            };
            connection.stage = Stage::Filling;
            self.begin_stream(known.slot, fd);
        }
    }

    /// Begins a connection that a program has announced, whose stream is there.
    fn begin_connection(&mut self, slot: u32) {
        let now_ns = self.now_ns();
        let Some(connection) = self.connections.get(slot) else { return };
        connection.stage = Stage::Opening;
        let base = config(&*self.link, &self.settings, connection.tuple.local.is_ipv6());
        let options = with_options(base, connection.options);
        match self.stack.connect(connection.tuple, Some(options), now_ns) {
            Ok(id) => {
                connection.id = Some(id);
                self.by_id.insert(id, slot);
            }
            Err(error) => self.lose(slot, error),
        }
    }

    fn begin_stream(&mut self, slot: u32, fd: OwnedFd) {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let watched = epoll::add(&self.epoll, &fd, EventData::new_u64(slot.into()), flags);
        if let Some(connection) = self.connections.get(slot) {
            connection.stream = Some(Stream::new(fd, self.process));
        }
        if watched.is_err() {
            self.lose(slot, Error::NoBuffers);
        }
    }

    /// Gives programs the connections that have come.
    fn hand_out(&mut self) {
        for _ in 0..self.accepted.len() {
            let Some((id, address)) = self.accepted.pop_front() else { return };
            match self.hand(id, address) {
                Ok(()) => {}
                Err(Errno::EAGAIN) => self.accepted.push_back((id, address)),
                Err(_) => self.stack.abort(id),
            }
        }
    }

    fn hand(&mut self, id: ConnectionId, address: SocketAddr) -> Result<(), Errno> {
        let tuple = self.stack.tuple(id).ok_or(Errno(libc::ENOTCONN))?;
        let path = self.listeners.next(address).ok_or(Errno(libc::ECONNREFUSED))?;
        let fd = unix::stream_without_waiting()?;
        // SAFETY: just made.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        let connection =
            Connection { id: Some(id), ..Connection::new(Stage::Open, tuple, Options::default()) };
        let (slot, serial) = self.add(connection).ok_or(Errno(libc::ENOBUFS))?;
        let Tuple { local, remote } = tuple;
        let named = name::Connection { service: self.id, slot, serial, local, remote };
        self.board.set(slot, serial, Condition::Established);
        match unix::bind(fd, &named.name()).and_then(|()| unix::connect(fd, &path)) {
            Ok(()) => {
                self.by_id.insert(id, slot);
                self.begin_stream(slot, owned);
                self.serve(slot);
                Ok(())
            }
            Err(errno) => {
                self.connections.remove(slot);
                if errno != Errno::EAGAIN {
                    self.forget_listeners(|at| at.port() == address.port());
                }
                Err(errno)
            }
        }
    }

    fn note(&mut self, slot: u32, flags: EventFlags) {
        if let Some(stream) = self.connections.get(slot).and_then(|connection| connection.stream.as_mut()) {
            stream.is_readable |=
                flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            stream.is_writable |= flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
            stream.has_hung_up |= flags.intersects(EventFlags::HUP | EventFlags::ERR);
            self.serve(slot);
        }
    }

    /// A connection has failed: its program is told so.
    fn lose(&mut self, slot: u32, error: Error) {
        let serial = self.connections.serial(slot);
        self.board.set(slot, serial, Condition::Failed(error.number()));
        self.forget(slot, true);
    }

    /// A connection is the program's no more.
    fn forget(&mut self, slot: u32, resets: bool) {
        let Some(connection) = self.connections.remove(slot) else { return };
        if let Some(id) = connection.id {
            self.by_id.remove(&id);
            if resets {
                self.stack.abort(id);
            } else {
                self.stack.close(id, self.now_ns());
            }
        }
    }

    /// Moves what can be moved at a stream, both ways.
    fn serve(&mut self, slot: u32) {
        let Some(connection) = self.connections.get(slot) else { return };
        if connection.stage == Stage::Filling
            && let Some(stream) = &connection.stream
        {
            match (stream.is_filled(), stream.has_hung_up) {
                (true, _) => self.begin_connection(slot),
                (false, true) => self.forget(slot, true),
                (false, false) => {}
            }
            return;
        }
        let Some(id) = connection.id else { return };
        if connection.stage == Stage::Opening {
            let state = self.stack.get(id).map(|tcp| tcp.state());
            match state {
                Some(uncopy_tcp::connection::State::SynSent | uncopy_tcp::connection::State::SynReceived) => {
                    if connection.stream.as_ref().is_some_and(|stream| stream.has_hung_up) {
                        self.forget(slot, true);
                    }
                    return;
                }
                Some(uncopy_tcp::connection::State::Closed) | None => {
                    let error = self.stack.take_error(id).unwrap_or(Error::ConnectionReset);
                    self.lose(slot, error);
                    return;
                }
                Some(_) => {
                    let serial = self.connections.serial(slot);
                    self.board.set(slot, serial, Condition::Established);
                    let Some(connection) = self.connections.get(slot) else { return };
                    let Some(stream) = connection.stream.as_mut() else { return };
                    if stream.empty().is_err() {
                        self.forget(slot, true);
                        return;
                    }
                    connection.stage = Stage::Open;
                }
            }
        }
        self.give(slot, id);
        self.take(slot, id);
    }

    /// From TCP to the program.
    fn give(&mut self, slot: u32, id: ConnectionId) {
        let serial = self.connections.serial(slot);
        let Some(connection) = self.connections.get(slot) else { return };
        let Some(stream) = connection.stream.as_mut() else { return };
        while stream.is_writable && !connection.is_deaf {
            while stream.waiting_bytes() < MAX_WAITING_BYTES
                && !connection.has_ended
                && connection.failure.is_none()
            {
                match self.stack.receive(id, usize::MAX) {
                    Ok(Received::Piece(piece)) => {
                        let piece = if self.settings.makes_api_copies {
                            self.copied_bytes += piece.len_bytes() as u64;
                            copied(self.process, &piece)
                        } else {
                            piece
                        };
                        connection.received_bytes += piece.len_bytes() as u64;
                        stream.put(piece);
                    }
                    Ok(Received::Pending) => break,
                    Ok(Received::End) => connection.has_ended = true,
                    Err(error) => connection.failure = Some(error),
                }
            }
            if stream.waiting_bytes() == 0 {
                break;
            }
            connection.is_deaf = stream.flush().is_err();
        }
        if connection.is_deaf {
            // What it has sent is still to be read.
            stream.has_hung_up = true;
            stream.is_readable = true;
            return;
        }
        if stream.waiting_bytes() > 0 {
            return;
        }
        if let Some(error) = connection.failure {
            self.lose(slot, error);
        } else if connection.has_ended && self.board.get(slot, serial) == Some(Condition::Established) {
            self.board.set(slot, serial, Condition::Ended);
            stream.end();
        }
    }

    /// From the program to TCP.
    fn take(&mut self, slot: u32, id: ConnectionId) {
        loop {
            let Some(connection) = self.connections.get(slot) else { return };
            let Some(stream) = connection.stream.as_mut() else { return };
            while let Some(front) = stream.from_program.front_mut() {
                match self.stack.send(id, front) {
                    Ok(sent) if sent == front.len_bytes() => _ = stream.from_program.pop_front(),
                    Ok(sent) => {
                        *front = front.slice(sent..front.len_bytes());
                        // An event tells when there is room.
                        return;
                    }
                    Err(error) => {
                        if connection.failure.is_none() && error != Error::BrokenPipe {
                            connection.failure = Some(error);
                        }
                        // Nobody takes it any more.
                        stream.from_program.clear();
                    }
                }
            }
            if let Some(error) = connection.failure
                && stream.waiting_bytes() == 0
            {
                self.lose(slot, error);
                return;
            }
            if stream.has_ended && stream.has_hung_up {
                // What the program has said of it before it has closed it.
                self.hear_all();
                let Some(connection) = self.connections.get(slot) else { return };
                let Some(stream) = connection.stream.as_ref() else { return };
                let resets = connection.options.resets || stream.waiting_bytes() > 0;
                self.forget(slot, resets);
                return;
            }
            if stream.has_ended {
                if !std::mem::replace(&mut connection.has_shut_down, true) {
                    let _ = self.stack.shutdown(id);
                }
                return;
            }
            if !stream.is_readable {
                return;
            }
            match stream.pull(&mut self.read_room) {
                Pulled::Bytes if self.settings.makes_api_copies => {
                    for piece in &mut stream.from_program {
                        self.copied_bytes += piece.len_bytes() as u64;
                        *piece = copied(self.process, piece);
                    }
                }
                Pulled::Bytes | Pulled::End => {}
                Pulled::Nothing => return,
                Pulled::NoRoom => {
                    self.starved.push(slot);
                    return;
                }
                Pulled::Broken => {
                    self.forget(slot, true);
                    return;
                }
            }
        }
    }

    // ---- what is gone ----

    pub(crate) fn forget_listeners(&mut self, concerns: impl Fn(&SocketAddr) -> bool) {
        for address in self.listeners.forget_gone(concerns) {
            self.stack.unlisten(address);
        }
    }

    fn housekeep(&mut self) {
        self.housekept = Instant::now();
        self.forget_listeners(|_| true);
        let is_late = |connection: &Connection| {
            connection.stage == Stage::Announced && connection.since.elapsed() >= STREAM_TIMEOUT
        };
        let late: Vec<u32> = self
            .connections
            .all()
            .filter(|(_, connection)| is_late(connection))
            .map(|(slot, _)| slot)
            .collect();
        for slot in late {
            self.connections.remove(slot);
        }
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
