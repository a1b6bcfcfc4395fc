//! One thread that serves clients: the connections that were given to it, and its UDP sockets, which no other thread
//! touches.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use rustix::event::epoll::EventFlags;

use crate::admission::Client;
use crate::cached::cache::Cache;
use crate::cached::connection::{Connection, SCRATCH_BYTES};
use crate::cached::datagrams::Endpoint;
use crate::cached::statistics::{Counter, Counters};
use crate::clock;
use crate::event_loop::{Connections, Next, Service, Waker};

/// Longest time that a client may read nothing while memory is short, before it loses its connection.
const STALL_LIMIT_MS: u64 = 5000;
/// Longest time that answers under way may take when the server ends.
const GRACE_MS: u64 = 2000;
/// A UDP socket's number as a source of events: that of its endpoint below, its own among the endpoint's above.
const SOCKET_SHIFT: u32 = 16;
const ENDPOINT_MASK: u64 = (1 << SOCKET_SHIFT) - 1;

/// Where clients are handed to a worker.
#[derive(Debug)]
pub struct Inbox {
    clients: Mutex<Vec<Client>>,
    /// Wakes the worker.
    pub waker: Waker,
}

impl Inbox {
    /// An empty inbox.
    ///
    /// # Errors
    /// As eventfd(2).
    pub fn new() -> io::Result<Self> {
        Ok(Self { clients: Mutex::default(), waker: Waker::new()? })
    }

    /// Hands a client over.
    pub fn give(&self, client: Client) {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        self.waker.wake();
    }

    fn take(&self) -> Vec<Client> {
        std::mem::take(&mut *self.clients.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What belongs to one thread.
#[derive(Debug)]
pub struct Worker<'a> {
    cache: &'a Cache,
    counters: &'a Counters,
    inbox: &'a Inbox,
    endpoints: Vec<Endpoint>,
    scratch: Box<[u8; SCRATCH_BYTES]>,
    refusals_seen: u64,
    /// Something was refused for want of memory since the last tick but one.
    is_memory_short: bool,
    is_ending: bool,
}

impl<'a> Worker<'a> {
    /// The worker that takes clients from `inbox` and datagrams from `sockets`, and counts in `counters`.
    pub fn new(cache: &'a Cache, counters: &'a Counters, inbox: &'a Inbox, sockets: Vec<OwnedFd>) -> Self {
        Self {
            cache,
            counters,
            inbox,
            endpoints: sockets.into_iter().map(Endpoint::new).collect(),
            scratch: Box::new([0; SCRATCH_BYTES]),
            refusals_seen: 0,
            is_memory_short: false,
            is_ending: false,
        }
    }
}

impl Service for Worker<'_> {
    type Connection = Connection;

    const TICK_MS: u32 = 1000;

    fn begin(&mut self, connections: &mut Connections<Connection>) -> io::Result<()> {
        let mut sockets = self.endpoints.iter().map(Endpoint::socket).zip(0..);
        sockets.try_for_each(|(socket, number)| connections.watch(socket, number, EventFlags::IN))
    }

    fn now_ms(&mut self) -> u64 {
        clock::now_ms()
    }

    fn on_wake(&mut self, connections: &mut Connections<Connection>) {
        for client in self.inbox.take() {
            connections.add(Connection::new(client, self.cache.settings.transmit));
        }
    }

    fn on_source(&mut self, connections: &mut Connections<Connection>, source: u64) {
        let (endpoint, socket) = (source & ENDPOINT_MASK, source >> SOCKET_SHIFT);
        let index = |number| usize::try_from(number).unwrap_or(usize::MAX);
        let watch = |new: &OwnedFd, number: usize| {
            let source = endpoint | (number as u64) << SOCKET_SHIFT;
            connections.watch(new, source, EventFlags::IN).is_ok()
        };
        if let Some(known) = self.endpoints.get_mut(index(endpoint)) {
            known.turn(index(socket), self.cache, self.counters, &watch);
        }
    }

    fn on_event(&mut self, connection: &mut Connection, flags: EventFlags) -> Next {
        if self.is_ending {
            let is_done = connection.finish(self.cache, self.counters);
            return if is_done { Next::Close } else { Next::Event };
        }
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP) {
            connection.note_hang_up();
        }
        if flags.contains(EventFlags::ERR) {
            connection.note_error();
        }
        connection.turn(self.cache, self.counters, &mut self.scratch)
    }

    fn on_tick(&mut self, _: &mut Connections<Connection>) {
        let refusals = self.cache.store.budget().refusals();
        self.is_memory_short = std::mem::replace(&mut self.refusals_seen, refusals) != refusals;
    }

    /// Closes what is idle for too long, and what holds memory by not reading while it is short.
    fn on_deadline(&mut self, connection: &mut Connection, now_ms: u64) -> Option<Next> {
        if self.is_ending {
            return (!connection.is_blocked()).then_some(Next::Close);
        }
        let idle_limit_ms = u64::try_from(self.cache.settings.idle_timeout.as_millis()).unwrap_or(u64::MAX);
        let quiet_ms = now_ms.saturating_sub(connection.progress_ms());
        let is_idle = idle_limit_ms > 0 && quiet_ms > idle_limit_ms;
        let is_stalled = self.is_memory_short && quiet_ms > STALL_LIMIT_MS && connection.holds_memory();
        if !is_idle && !is_stalled {
            return None;
        }
        self.counters.count(if is_idle { Counter::IdleKicks } else { Counter::StalledKicks });
        if self.cache.verbosity.load(Relaxed) > 0 {
            let fd = connection.as_fd().as_raw_fd();
            let why = if is_idle { "idle" } else { "not reading while memory is short" };
            eprintln!("uncopy-cached: connection {fd} closed: {why} for {} s", quiet_ms / 1000);
        }
        Some(Next::Close)
    }

    /// Clients may read the answers that are under way, for a while.
    fn begin_end(&mut self, _: &mut Connections<Connection>) -> u64 {
        self.is_ending = true;
        GRACE_MS
    }
}
