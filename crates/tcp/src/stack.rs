//! All connections of a host: finding them by their tuple, listeners, what is due, what is to be sent.
//!
//! Bounds: connections, half-open ones of each listener and of all, answers that wait to be sent.

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

/// Ports that are chosen from (RFC 6335, section 6).
const FIRST_DYNAMIC_PORT: u16 = 49_152;
const DYNAMIC_PORTS: u16 = 16_384;
/// By how much a connection that takes over one in TIME-WAIT begins above it.
const REUSE_STEP: u32 = 1 << 16;

/// Bounds of a stack.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of any state.
    pub max_connections: usize,
    /// Connections whose handshake is not done, of all listeners.
    pub max_half_open: usize,
    /// Connections in TIME-WAIT; what would be one more ends at once, as with `tcp_max_tw_buckets`.
    pub max_time_wait: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_connections: 65_536, max_half_open: 1024, max_time_wait: 16_384 }
    }
}

/// A connection's name, which is not given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    index: u32,
    generation: u32,
}

/// What a program may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Something has changed at a connection that a program has.
    Connection(ConnectionId, Events),
    /// A listener has a connection to accept.
    Incoming(SocketAddr),
}

#[derive(Debug)]
struct Entry<P> {
    connection: Connection<P>,
    tuple: Tuple,
    /// The listener of one that no program has yet.
    listener: Option<SocketAddr>,
    is_half_open: bool,
    is_in_table: bool,
    is_time_wait: bool,
    /// The program has let go of it.
    is_released: bool,
    is_ready: bool,
    scheduled: Option<u64>,
}

#[derive(Debug)]
struct Slot<P> {
    generation: u32,
    entry: Option<Box<Entry<P>>>,
}

/// The TCP of a host.
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
    /// A stack without connections.
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

    /// A local port for a connection to `remote` (RFC 6056, section 3.3.3), none where all are taken. One that a listener has is
    /// left to its peers.
    pub fn choose_port(&mut self, local: IpAddr, remote: SocketAddr) -> Option<u16> {
        let offset = self.secret.port_offset(local, remote);
        for _ in 0..DYNAMIC_PORTS {
            self.next_port = self.next_port.wrapping_add(1);
            let port = FIRST_DYNAMIC_PORT + offset.wrapping_add(self.next_port) % DYNAMIC_PORTS;
            let local = SocketAddr::new(local, port);
            let is_taken =
                self.table.contains_key(&Tuple { local, remote }) || self.listening_address(local).is_some();
            if !is_taken {
                return Some(port);
            }
        }
        None
    }

    /// Begins a connection.
    ///
    /// # Errors
    ///
    /// EADDRINUSE if there is one between the two, ENOBUFS if there are too many.
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
            is_released: listener.is_some(),
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

    /// A connection, to look at.
    pub fn get(&self, id: ConnectionId) -> Option<&Connection<P>> {
        let slot = self.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        slot.entry.as_ref().map(|entry| &entry.connection)
    }

    /// Both ends of a connection.
    pub fn tuple(&self, id: ConnectionId) -> Option<Tuple> {
        let slot = self.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        slot.entry.as_ref().map(|entry| entry.tuple)
    }

    /// Does something with a connection, which may then have something to send.
    fn with<R>(
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
    /// As there; ENOTCONN if there is no such connection.
    pub fn send(&mut self, id: ConnectionId, piece: &P) -> Result<usize, Error> {
        self.with(id, |entry| entry.connection.send(piece))
    }

    /// See [`Connection::receive`].
    ///
    /// # Errors
    ///
    /// As there; ENOTCONN if there is no such connection.
    pub fn receive(&mut self, id: ConnectionId, max_bytes: usize) -> Result<Received<P>, Error> {
        self.with(id, |entry| entry.connection.receive(max_bytes))
    }

    /// See [`Connection::shutdown`].
    ///
    /// # Errors
    ///
    /// As there; ENOTCONN if there is no such connection.
    pub fn shutdown(&mut self, id: ConnectionId) -> Result<(), Error> {
        self.with(id, |entry| entry.connection.shutdown())
    }

    /// See [`Connection::configure`].
    ///
    /// # Errors
    ///
    /// ENOTCONN if there is no such connection.
    pub fn configure(&mut self, id: ConnectionId, change: impl FnOnce(&mut Config)) -> Result<(), Error> {
        self.with(id, |entry| {
            entry.connection.configure(change);
            Ok(())
        })
    }

    /// See [`Connection::take_error`].
    pub fn take_error(&mut self, id: ConnectionId) -> Option<Error> {
        self.with(id, |entry| Ok(entry.connection.take_error())).ok().flatten()
    }

    /// The program lets go of a connection: `id` stands for nothing afterwards.
    pub fn close(&mut self, id: ConnectionId, now_ns: u64) {
        let _ = self.with(id, |entry| {
            entry.is_released = true;
            entry.connection.close(now_ns);
            Ok(())
        });
    }

    /// As [`Stack::close`], by RST.
    pub fn abort(&mut self, id: ConnectionId) {
        let _ = self.with(id, |entry| {
            entry.is_released = true;
            entry.connection.abort();
            Ok(())
        });
    }

    /// A segment came.
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
            let least = entry.connection.last_sequence().wrapping_add(REUSE_STEP);
            entry.connection.expire();
            entry.is_in_table = false;
            self.table.remove(&tuple);
            self.touch(index);
            self.on_syn(tuple, segment, Some(least), now_ns);
            return;
        }
        self.on_syn(tuple, segment, None, now_ns);
    }

    /// ICMP says that a segment of ours, which began with `sequence`, did not reach the peer.
    pub fn on_unreachable(&mut self, tuple: &Tuple, sequence: u32, error: Error) {
        self.on_icmp(tuple, sequence, |connection| connection.on_unreachable(error));
    }

    /// ICMP says that a segment of ours was too long. See [`Connection::on_path_mtu`].
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

    /// When [`Stack::on_timer`] has something to do next, or a little earlier.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.deadlines.peek().map(|Reverse((at, ..))| *at)
    }

    /// Does what is due.
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

    /// A connection has an entry in the heap no later than it is due. What is due later than that costs no new one.
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

    /// The next segment to send. To be called until there is none, after everything that happened.
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
                // The others come first now.
                self.ready.push_back(index);
                return Some((tuple, segment));
            }
            entry.is_ready = false;
            self.schedule(index);
            self.remove_if_finished(index);
        }
        None
    }

    /// What has happened to connections.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// How many segments were sent again, of all connections there have been.
    pub fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Something happened to a connection: it may have something to send, and to say.
    fn touch(&mut self, index: u32) {
        let generation = self.slots[index as usize].generation;
        let max_time_wait = self.limits.max_time_wait;
        let time_wait = self.time_wait;
        let Some(entry) = self.entry(index) else { return };
        let events = entry.connection.take_events();
        let state = entry.connection.state();
        let enters_time_wait = state == State::TimeWait && !entry.is_time_wait;
        if enters_time_wait && time_wait >= max_time_wait {
            // Its last acknowledgement is lost with it; the peer gets a RST if it asks again.
            entry.connection.expire();
        } else if enters_time_wait {
            entry.is_time_wait = true;
        }
        let listener = entry.listener;
        let is_past_handshake = entry.is_half_open && state != State::SynReceived;
        if is_past_handshake {
            entry.is_half_open = false;
            entry.is_released = !events.established;
        }
        let is_programs = listener.is_none() && !entry.is_released;
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
        } else if is_programs && events != Events::default() {
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
        if slot.entry.as_ref().is_some_and(|entry| is_over && entry.is_released && !entry.is_ready) {
            slot.entry = None;
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(index);
        }
    }

    /// Which invariant does not hold, after everything was sent. For tests: it looks at all connections.
    pub fn violation(&self) -> Option<&'static str> {
        let entries = || self.slots.iter().filter_map(|slot| slot.entry.as_deref());
        if let Some(what) = entries().find_map(|entry| entry.connection.violation()) {
            return Some(what);
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
                entries().filter(|entry| is_settled(entry)).all(|entry| !entry.connection.is_forgotten()),
                "no connection waits for nothing",
            ),
            (self.connections() <= self.limits.max_connections, "connections are bounded"),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map(|(_, what)| what)
    }
}
