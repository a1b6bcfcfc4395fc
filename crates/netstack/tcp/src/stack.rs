//! All connections of a host: lookup by tuple, listeners, timers, and segments to send.
//!
//! Bounds: connections, half-open ones per listener and in total, TIME-WAIT, and queued answers.

mod listening;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::config::Config;
use crate::connection::{Connection, Events, Received, State};
use crate::error::Error;
use crate::payload::Payload;
use crate::secret::Secret;
use crate::segment::{Header, Segment};
use crate::wire::Tuple;
use listening::Listener;

/// Range of ephemeral ports (RFC 6335, section 6).
const FIRST_DYNAMIC_PORT: u16 = 49_152;
const DYNAMIC_PORTS: u16 = 16_384;
/// Distance of the new ISN from the last sequence number of a connection replaced in TIME-WAIT.
const REUSE_STEP: u32 = 1 << 16;

/// Limits of a stack.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of connections in any state.
    pub max_connections: usize,
    /// Maximum number of connections in the handshake, over all listeners.
    pub max_half_open: usize,
    /// Maximum number of connections in TIME-WAIT; further ones end immediately, as with
    /// `tcp_max_tw_buckets`.
    pub max_time_wait: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_connections: 65_536, max_half_open: 1024, max_time_wait: 16_384 }
    }
}

/// Identifier of a connection, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    index: u32,
    generation: u32,
}

/// An event for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Changes of a connection that the program owns.
    Connection(ConnectionId, Events),
    /// A listener has a connection to accept.
    Incoming(SocketAddr),
}

#[derive(Debug)]
struct Entry<P> {
    connection: Connection<P>,
    tuple: Tuple,
    /// The listener, until the program accepts the connection.
    listener: Option<SocketAddr>,
    is_half_open: bool,
    is_in_table: bool,
    is_time_wait: bool,
    /// Whether no program owns the connection.
    is_orphaned: bool,
    is_ready: bool,
    scheduled: Option<u64>,
}

#[derive(Debug)]
struct Slot<P> {
    generation: u32,
    entry: Option<Box<Entry<P>>>,
}

/// The TCP stack of a host.
#[derive(Debug)]
pub struct Stack<P> {
    config: Arc<Config>,
    limits: Limits,
    secret: Secret,
    slots: Vec<Slot<P>>,
    free: Vec<u32>,
    table: HashMap<Tuple, u32, Secret>,
    listeners: HashMap<SocketAddr, Listener, Secret>,
    deadlines: BinaryHeap<Reverse<(u64, u32, u32)>>,
    ready: VecDeque<u32>,
    answers: VecDeque<(Tuple, Header)>,
    events: VecDeque<Event>,
    half_open: usize,
    time_wait: usize,
    retransmissions: u64,
    next_port: u16,
}

impl<P: Payload> Stack<P> {
    /// Returns a stack without connections.
    pub fn new(config: Config, limits: Limits, secret: Secret) -> Self {
        Self {
            config: Arc::new(config),
            limits,
            slots: Vec::new(),
            free: Vec::new(),
            table: HashMap::with_hasher(secret.clone()),
            listeners: HashMap::with_hasher(secret.clone()),
            secret,
            deadlines: BinaryHeap::new(),
            ready: VecDeque::new(),
            answers: VecDeque::new(),
            events: VecDeque::new(),
            half_open: 0,
            time_wait: 0,
            retransmissions: 0,
            next_port: 0,
        }
    }

    /// Returns a free local port for a connection to `remote` (RFC 6056, section 3.3.3), or `None`.
    /// Ports with a listener are never chosen.
    pub fn choose_port(&mut self, local: IpAddr, remote: SocketAddr) -> Option<u16> {
        let offset = self.secret.port_offset(local, remote);
        for _ in 0..DYNAMIC_PORTS {
            self.next_port = self.next_port.wrapping_add(1);
            let port = FIRST_DYNAMIC_PORT + offset.wrapping_add(self.next_port) % DYNAMIC_PORTS;
            let local = SocketAddr::new(local, port);
            let is_in_use =
                self.table.contains_key(&Tuple { local, remote }) || self.listening_address(local).is_some();
            if !is_in_use {
                return Some(port);
            }
        }
        None
    }

    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// EADDRINUSE if the tuple is in use, ENOBUFS if the limit on connections is reached.
    pub fn connect(
        &mut self,
        tuple: Tuple,
        config: Option<Config>,
        now_ns: u64,
    ) -> Result<ConnectionId, Error> {
        if self.table.contains_key(&tuple) {
            return Err(Error::AddressInUse);
        }
        let config = config.map_or_else(|| Arc::clone(&self.config), Arc::new);
        let offset = self.secret.timestamp_offset(tuple.local.ip(), tuple.remote.ip());
        let initial = self.secret.initial_sequence(&tuple, now_ns);
        self.add(tuple, None, Connection::connect(config, initial, offset, now_ns)).ok_or(Error::NoBuffers)
    }

    fn add(
        &mut self,
        tuple: Tuple,
        listener: Option<SocketAddr>,
        connection: Connection<P>,
    ) -> Option<ConnectionId> {
        if self.slots.len() - self.free.len() >= self.limits.max_connections {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, entry: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.entry = Some(Box::new(Entry {
            connection,
            tuple,
            listener,
            is_half_open: listener.is_some(),
            is_in_table: true,
            is_time_wait: false,
            is_orphaned: listener.is_some(),
            is_ready: false,
            scheduled: None,
        }));
        let id = ConnectionId { index, generation: slot.generation };
        self.table.insert(tuple, index);
        self.touch(index);
        Some(id)
    }

    fn entry(&mut self, index: u32) -> Option<&mut Entry<P>> {
        self.slots.get_mut(index as usize)?.entry.as_deref_mut()
    }

    /// Returns the connection, unless it is gone.
    pub fn get(&self, id: ConnectionId) -> Option<&Connection<P>> {
        let slot = self.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        slot.entry.as_ref().map(|entry| &entry.connection)
    }

    /// Returns both endpoints of a connection.
    pub fn tuple(&self, id: ConnectionId) -> Option<Tuple> {
        let slot = self.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        slot.entry.as_ref().map(|entry| entry.tuple)
    }

    /// Runs `act` on a connection, then `touch`.
    fn update<R>(
        &mut self,
        id: ConnectionId,
        act: impl FnOnce(&mut Entry<P>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.get(id).ok_or(Error::NotConnected)?;
        let entry = self.entry(id.index).ok_or(Error::NotConnected)?;
        let result = act(entry);
        self.touch(id.index);
        result
    }

    /// See [`Connection::send`].
    ///
    /// # Errors
    ///
    /// Those of [`Connection::send`]; ENOTCONN if the connection does not exist.
    pub fn send(&mut self, id: ConnectionId, piece: &P) -> Result<usize, Error> {
        self.update(id, |entry| entry.connection.send(piece))
    }

    /// See [`Connection::receive`].
    ///
    /// # Errors
    ///
    /// Those of [`Connection::receive`]; ENOTCONN if the connection does not exist.
    pub fn receive(&mut self, id: ConnectionId, max_bytes: usize) -> Result<Received<P>, Error> {
        self.update(id, |entry| entry.connection.receive(max_bytes))
    }

    /// See [`Connection::shutdown`].
    ///
    /// # Errors
    ///
    /// Those of [`Connection::shutdown`]; ENOTCONN if the connection does not exist.
    pub fn shutdown(&mut self, id: ConnectionId) -> Result<(), Error> {
        self.update(id, |entry| entry.connection.shutdown())
    }

    /// See [`Connection::configure`].
    ///
    /// # Errors
    ///
    /// ENOTCONN if the connection does not exist.
    pub fn configure(&mut self, id: ConnectionId, change: impl FnOnce(&mut Config)) -> Result<(), Error> {
        self.update(id, |entry| {
            entry.connection.configure(change);
            Ok(())
        })
    }

    /// See [`Connection::take_error`].
    pub fn take_error(&mut self, id: ConnectionId) -> Option<Error> {
        self.update(id, |entry| Ok(entry.connection.take_error())).ok().flatten()
    }

    /// Closes a connection; `id` becomes invalid.
    pub fn close(&mut self, id: ConnectionId, now_ns: u64) {
        let _ = self.update(id, |entry| {
            entry.is_orphaned = true;
            entry.connection.close(now_ns);
            Ok(())
        });
    }

    /// Aborts a connection by RST; `id` becomes invalid.
    pub fn abort(&mut self, id: ConnectionId) {
        let _ = self.update(id, |entry| {
            entry.is_orphaned = true;
            entry.connection.abort();
            Ok(())
        });
    }

    /// Processes a received segment.
    pub fn on_segment(&mut self, tuple: Tuple, segment: Segment<P>, now_ns: u64) {
        if let Some(&index) = self.table.get(&tuple)
            && let Some(entry) = self.entry(index)
        {
            let flags = segment.header.flags;
            let is_new = flags.syn && !flags.ack && !flags.rst;
            if !is_new || !entry.connection.is_replaceable_by(&segment.header) {
                entry.connection.on_segment(segment, now_ns);
                self.touch(index);
                return;
            }
            let reuse_initial = entry.connection.last_sequence().wrapping_add(REUSE_STEP);
            entry.connection.expire();
            entry.is_in_table = false;
            self.table.remove(&tuple);
            self.touch(index);
            self.on_syn(tuple, segment, Some(reuse_initial), now_ns);
            return;
        }
        self.on_syn(tuple, segment, None, now_ns);
    }

    /// Handles ICMP unreachable for a sent segment that began with `sequence`.
    pub fn on_unreachable(&mut self, tuple: &Tuple, sequence: u32, error: Error) {
        self.on_icmp(tuple, sequence, |connection| connection.on_unreachable(error));
    }

    /// Handles ICMP "packet too big" for a sent segment. See [`Connection::on_path_mtu`].
    pub fn on_path_mtu(&mut self, tuple: &Tuple, sequence: u32, mss: u16) {
        self.on_icmp(tuple, sequence, |connection| connection.on_path_mtu(mss));
    }

    fn on_icmp(&mut self, tuple: &Tuple, sequence: u32, act: impl FnOnce(&mut Connection<P>)) {
        if let Some(&index) = self.table.get(tuple)
            && let Some(entry) = self.entry(index)
            && entry.connection.is_in_flight(sequence)
        {
            act(&mut entry.connection);
            self.touch(index);
        }
    }

    /// Returns the time at which [`Stack::on_timer`] must be called, or an earlier one.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.deadlines.peek().map(|Reverse((at, ..))| *at)
    }

    /// Runs the timers that have expired.
    pub fn on_timer(&mut self, now_ns: u64) {
        while let Some(&Reverse((at, index, generation))) = self.deadlines.peek()
            && at <= now_ns
        {
            self.deadlines.pop();
            if self.slots[index as usize].generation != generation {
                continue;
            }
            let Some(entry) = self.entry(index).filter(|entry| entry.scheduled == Some(at)) else { continue };
            entry.scheduled = None;
            if entry.connection.deadline_ns().is_some_and(|deadline| deadline <= now_ns) {
                entry.connection.on_timer(now_ns);
                self.touch(index);
            } else {
                self.schedule(index);
            }
        }
    }

    /// Ensures that the heap has an entry no later than the connection's deadline. A deadline that
    /// moves later adds none.
    fn schedule(&mut self, index: u32) {
        let generation = self.slots[index as usize].generation;
        let Some(entry) = self.entry(index) else { return };
        if let Some(deadline) = entry.connection.deadline_ns()
            && entry.scheduled.is_none_or(|scheduled| deadline < scheduled)
        {
            entry.scheduled = Some(deadline);
            self.deadlines.push(Reverse((deadline, index, generation)));
        }
    }

    /// Returns the next segment to send. Must be called until `None` after every event.
    pub fn poll_transmit(&mut self, now_ns: u64) -> Option<(Tuple, Segment<P>)> {
        if let Some((tuple, header)) = self.answers.pop_front() {
            return Some((tuple, Segment::bare(header)));
        }
        while let Some(index) = self.ready.pop_front() {
            let Some(entry) = self.entry(index) else { continue };
            let before = entry.connection.retransmissions();
            if let Some(segment) = entry.connection.poll_transmit(now_ns) {
                let tuple = entry.tuple;
                let again = entry.connection.retransmissions() - before;
                self.retransmissions += again;
                // Round robin: the other connections come first now.
                self.ready.push_back(index);
                return Some((tuple, segment));
            }
            entry.is_ready = false;
            self.schedule(index);
            self.remove_if_finished(index);
        }
        None
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the number of segments retransmitted, over all connections ever.
    pub fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    /// Returns the number of connections.
    pub fn connections(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Queues a connection for transmission, and its events for the program.
    fn touch(&mut self, index: u32) {
        let generation = self.slots[index as usize].generation;
        let max_time_wait = self.limits.max_time_wait;
        let time_wait = self.time_wait;
        let Some(entry) = self.entry(index) else { return };
        let events = entry.connection.take_events();
        let state = entry.connection.state();
        let enters_time_wait = state == State::TimeWait && !entry.is_time_wait;
        if enters_time_wait && time_wait >= max_time_wait {
            // The last acknowledgement is not sent; a peer that retransmits gets a RST.
            entry.connection.expire();
        } else if enters_time_wait {
            entry.is_time_wait = true;
        }
        let listener = entry.listener;
        let is_past_handshake = entry.is_half_open && state != State::SynReceived;
        if is_past_handshake {
            entry.is_half_open = false;
            entry.is_orphaned = !events.established;
        }
        let has_program = listener.is_none() && !entry.is_orphaned;
        let is_newly_ready = !std::mem::replace(&mut entry.is_ready, true);
        if enters_time_wait && time_wait < max_time_wait {
            self.time_wait += 1;
        }
        if is_newly_ready {
            self.ready.push_back(index);
        }
        let id = ConnectionId { index, generation };
        if is_past_handshake {
            self.half_open -= 1;
            if let Some(address) = listener
                && let Some(listener) = self.listeners.get_mut(&address)
            {
                listener.half_open -= 1;
                if events.established {
                    listener.accepted.push_back(id);
                    self.events.push_back(Event::Incoming(address));
                }
            }
        } else if has_program && events != Events::default() {
            self.events.push_back(Event::Connection(id, events));
        }
    }

    fn remove_if_finished(&mut self, index: u32) {
        let Some(entry) = self.entry(index) else { return };
        let is_over = entry.connection.is_finished();
        if is_over && entry.is_time_wait {
            entry.is_time_wait = false;
            self.time_wait -= 1;
        }
        let Some(entry) = self.entry(index) else { return };
        if is_over && std::mem::take(&mut entry.is_in_table) {
            let tuple = entry.tuple;
            self.table.remove(&tuple);
        }
        let slot = &mut self.slots[index as usize];
        if slot.entry.as_ref().is_some_and(|entry| is_over && entry.is_orphaned && !entry.is_ready) {
            slot.entry = None;
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(index);
        }
    }

    /// Returns the first invariant that does not hold once everything is sent. For tests: linear in
    /// connections.
    pub fn violation(&self) -> Option<&'static str> {
        let entries = || self.slots.iter().filter_map(|slot| slot.entry.as_deref());
        if let Some(rule) = entries().find_map(|entry| entry.connection.violation()) {
            return Some(rule);
        }
        let is_settled = |entry: &Entry<P>| !entry.is_ready;
        let count = |is: fn(&Entry<P>) -> bool| entries().filter(|entry| is(entry)).count();
        let rules = [
            (count(|entry| entry.is_in_table) == self.table.len(), "the table has every connection once"),
            (count(|entry| entry.is_half_open) == self.half_open, "half-open connections are counted"),
            (self.half_open <= self.limits.max_half_open, "half-open connections are bounded"),
            (count(|entry| entry.is_time_wait) == self.time_wait, "connections in TIME-WAIT are counted"),
            (
                entries().filter(|entry| is_settled(entry)).all(|entry| {
                    entry
                        .connection
                        .deadline_ns()
                        .is_none_or(|at| entry.scheduled.is_some_and(|until| until <= at))
                }),
                "what is due is in the heap",
            ),
            (
                entries().filter(|entry| is_settled(entry)).all(|entry| !entry.connection.is_stalled()),
                "no connection waits for nothing",
            ),
            (self.connections() <= self.limits.max_connections, "connections are bounded"),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map(|(_, rule)| rule)
    }
}
