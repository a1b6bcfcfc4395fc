//! One thread that serves clients: its epoll, the connections that were given to it, and its UDP sockets, which no
//! other thread touches.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::cached::cache::Cache;
use crate::cached::clock;
use crate::cached::connection::{Connection, SCRATCH_BYTES, Turn};
use crate::cached::datagrams::Endpoint;
use crate::cached::statistics::Counter;

/// Events taken at once.
const EVENTS: usize = 128;
/// How often idle and stalled connections are looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// A client that reads nothing for so long while memory is short loses its connection.
const STALL_LIMIT_MS: u64 = 5000;
/// How long the answers under way may take when the server ends.
const FAREWELL: Duration = Duration::from_secs(2);
/// The event of [`Inbox`].
const DOOR: u64 = u64::MAX;
/// Events of UDP sockets have this bit and their number, those of connections are descriptors.
const DATAGRAMS: u64 = 1 << 32;
/// The number of an endpoint's socket stands above that of the endpoint.
const SOCKET_SHIFT: u32 = 16;
const SOCKET_MASK: u64 = (1 << SOCKET_SHIFT) - 1;

/// Where connections are handed to a worker.
#[derive(Debug)]
pub struct Inbox {
    sockets: Mutex<Vec<OwnedFd>>,
    bell: OwnedFd,
}

impl Inbox {
    /// A inbox without anybody at it.
    ///
    /// # Errors
    /// As eventfd(2).
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { sockets: Mutex::default(), bell })
    }

    /// Hands a connection over.
    pub fn give(&self, socket: OwnedFd) {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        self.ring();
    }

    /// Wakes the worker.
    pub fn ring(&self) {
        // It fails only when it rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<OwnedFd> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *self.sockets.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A thread's own things.
#[derive(Debug)]
pub struct Worker {
    cache: Arc<Cache>,
    /// Which thread this is, and which counters are its own.
    index: usize,
    inbox: Arc<Inbox>,
    epoll: OwnedFd,
    /// By descriptor.
    connections: Vec<Option<Box<Connection>>>,
    count: usize,
    /// Connections that had to stop for others' sake.
    again: VecDeque<usize>,
    endpoints: Vec<Endpoint>,
    scratch: Box<[u8; SCRATCH_BYTES]>,
    refusals_seen: u64,
}

impl Worker {
    /// The worker that takes connections from `inbox` and datagrams from `sockets`.
    ///
    /// # Errors
    /// As epoll_create(2) and epoll_ctl(2).
    pub fn new(
        cache: Arc<Cache>,
        index: usize,
        inbox: Arc<Inbox>,
        sockets: Vec<OwnedFd>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &inbox.bell, EventData::new_u64(DOOR), EventFlags::IN)?;
        let mut endpoints = Vec::new();
        for (number, socket) in sockets.into_iter().enumerate() {
            let event = EventData::new_u64(DATAGRAMS | number as u64);
            epoll::add(&epoll, &socket, event, EventFlags::IN)?;
            endpoints.push(Endpoint::new(socket));
        }
        let scratch = Box::new([0; SCRATCH_BYTES]);
        let (connections, again) = (Vec::new(), VecDeque::new());
        Ok(Self {
            cache,
            index,
            inbox,
            epoll,
            connections,
            count: 0,
            again,
            endpoints,
            scratch,
            refusals_seen: 0,
        })
    }

    /// Serves until the server ends.
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let mut swept = Instant::now();
        while !self.cache.is_ending.load(Relaxed) {
            self.wait(&mut events)?;
            for (data, flags) in events.drain(..) {
                match data {
                    DOOR => self.welcome(),
                    _ if data & DATAGRAMS != 0 => {
                        self.serve_datagrams(data & !DATAGRAMS);
                    }
                    _ => {
                        let at = usize::try_from(data).unwrap_or(usize::MAX);
                        self.serve(at, flags);
                    }
                }
            }
            for _ in 0..self.again.len() {
                if let Some(at) = self.again.pop_front() {
                    self.serve(at, EventFlags::empty());
                }
            }
            if self.count > 0 && swept.elapsed() >= SWEEP {
                self.sweep();
                swept = Instant::now();
            }
        }
        self.say_farewell(&mut events)
    }

    fn wait(&mut self, events: &mut Vec<(u64, EventFlags)>) -> io::Result<()> {
        let sweep = Timespec { tv_sec: 1, tv_nsec: 0 };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = match (self.again.is_empty(), self.count) {
            (false, _) => Some(&now),
            (true, 0) => None,
            _ => Some(&sweep),
        };
        let mut buffer = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
        let (ready, _) = match epoll::wait(&self.epoll, &mut buffer[..], timeout) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        events.extend(ready.iter().map(|event| {
            let event: epoll::Event = *event;
            (event.data.u64(), event.flags)
        }));
        Ok(())
    }

    fn welcome(&mut self) {
        for socket in self.inbox.take() {
            let Ok(at) = usize::try_from(socket.as_raw_fd()) else { continue };
            let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            if epoll::add(&self.epoll, &socket, EventData::new_u64(at as u64), events).is_err() {
                self.cache.connections.fetch_sub(1, Relaxed);
                continue;
            }
            if self.connections.len() <= at {
                self.connections.resize_with(at + 1, || None);
            }
            self.connections[at] = Some(Box::new(Connection::new(socket, self.cache.settings.transmit)));
            self.count += 1;
        }
    }

    fn serve(&mut self, at: usize, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { return };
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP) {
            connection.note_hang_up();
        }
        if flags.contains(EventFlags::ERR) {
            connection.note_error();
        }
        match connection.turn(&self.cache, &self.cache.counters[self.index], &mut self.scratch) {
            Turn::Wait => {}
            Turn::Again => self.again.push_back(at),
            Turn::Close => self.close(at),
        }
    }

    /// Serves the UDP socket with this number: the endpoint's is the lower half, its socket's the upper one.
    fn serve_datagrams(&mut self, number: u64) {
        let (endpoint, socket) = (number & SOCKET_MASK, number >> SOCKET_SHIFT);
        let index = |number| usize::try_from(number).unwrap_or(usize::MAX);
        let epoll = &self.epoll;
        let watch = |new: &OwnedFd, number: usize| {
            let event = DATAGRAMS | endpoint | (number as u64) << SOCKET_SHIFT;
            epoll::add(epoll, new, EventData::new_u64(event), EventFlags::IN).is_ok()
        };
        if let Some(known) = self.endpoints.get_mut(index(endpoint)) {
            known.turn(index(socket), &self.cache, &self.cache.counters[self.index], &watch);
        }
    }

    fn close(&mut self, at: usize) {
        if self.connections[at].take().is_some() {
            self.count -= 1;
            self.cache.connections.fetch_sub(1, Relaxed);
        }
    }

    /// Closes connections that are idle for too long, and such as hold memory by not reading while it is short.
    fn sweep(&mut self) {
        let now_ms = clock::now_ms();
        let idle_limit_ms = u64::try_from(self.cache.settings.idle_timeout.as_millis()).unwrap_or(u64::MAX);
        let refusals = self.cache.store.budget().refusals();
        let is_short = std::mem::replace(&mut self.refusals_seen, refusals) != refusals;
        for at in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[at] else { continue };
            let quiet_ms = now_ms.saturating_sub(connection.progress_ms());
            let is_idle = idle_limit_ms > 0 && quiet_ms > idle_limit_ms;
            let is_stalled = is_short && quiet_ms > STALL_LIMIT_MS && connection.holds_memory();
            if is_idle || is_stalled {
                let counter = if is_idle { Counter::IdleKicks } else { Counter::StalledKicks };
                self.cache.counters[self.index].count(counter);
                if self.cache.verbosity.load(Relaxed) > 0 {
                    let why = if is_idle { "idle" } else { "not reading while memory is short" };
                    eprintln!("uncopy-cached: connection {at} closed: {why} for {} s", quiet_ms / 1000);
                }
                self.close(at);
            }
        }
    }

    /// Lets clients read the answers that are under way, for a while.
    fn say_farewell(&mut self, events: &mut Vec<(u64, EventFlags)>) -> io::Result<()> {
        let begin = Instant::now();
        let idle = |connection: &Option<Box<Connection>>| {
            connection.as_ref().is_some_and(|connection| !connection.is_blocked())
        };
        loop {
            for at in 0..self.connections.len() {
                if idle(&self.connections[at]) {
                    self.close(at);
                }
            }
            let left = FAREWELL.saturating_sub(begin.elapsed());
            if self.count == 0 || left.is_zero() {
                return Ok(());
            }
            self.wait(events)?;
            for (data, _) in events.drain(..) {
                let at = usize::try_from(data).unwrap_or(usize::MAX);
                let counters = &self.cache.counters[self.index];
                if let Some(Some(connection)) = self.connections.get_mut(at)
                    && connection.finish(&self.cache, counters)
                {
                    self.close(at);
                }
            }
        }
    }
}
