//! The threads of a server, each with an epoll and connections of its own, from their begin to their end.
//!
//! A connection is registered once, edge-triggered: an event drives it until nothing more can be done without waiting
//! ([`Next::Event`]) or it has had its share ([`Next::Turn`]: again, once the others had theirs). Deadlines are looked at
//! once a tick.
//!
//! ```text
//!            events               turns of those        tick: deadlines
//!   wait ──► of connections, ──► that have more  ──►  of all             ──► wait, unless it is the end
//!            sources, the waker   to do                connections            and no connection is left
//! ```
//!
//! Invariant: a token names a connection by its slot and the slot's generation, so that an event of a connection that is
//! closed never reaches the next one in its slot.

use std::collections::VecDeque;
use std::fmt::{Display, Formatter};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

/// Events taken by one call.
const MAX_EVENTS: usize = 256;
/// The waker's token.
const WAKER: u64 = u64::MAX;
/// Set in the tokens of sources, whose other bits are the source's number. Those of connections: generation (31 bits),
/// slot (32 bits).
const SOURCE: u64 = 1 << 63;
const GENERATION_SHIFT: u32 = 32;
const GENERATION_MASK: u32 = (1 << 31) - 1;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Its socket.
    Event,
    /// Another turn, once the others had theirs.
    Turn,
    /// Nothing: it is to be closed.
    Close,
}

/// What one thread serves.
pub trait Service {
    /// A client, and what is known of it. Dropping it closes its socket.
    type Connection: AsFd;

    /// Time between two looks at the deadlines, milliseconds.
    const TICK_MS: u32;

    /// Has sources watched, before the thread starts.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    fn begin(&mut self, connections: &mut Connections<Self::Connection>) -> io::Result<()>;

    /// The time, milliseconds: asked once after each wait.
    fn now_ms(&mut self) -> u64;

    /// The waker was rung.
    fn on_wake(&mut self, _connections: &mut Connections<Self::Connection>) {}

    /// A source has an event.
    fn on_source(&mut self, connections: &mut Connections<Self::Connection>, source: u64);

    /// A connection has an event, or its turn (without flags).
    fn on_event(&mut self, connection: &mut Self::Connection, flags: EventFlags) -> Next;

    /// A tick, before the deadlines of the connections.
    fn on_tick(&mut self, connections: &mut Connections<Self::Connection>);

    /// The deadlines of one connection; `None` leaves it as it is.
    fn on_deadline(&mut self, connection: &mut Self::Connection, now_ms: u64) -> Option<Next>;

    /// Whether there are to be ticks even without connections.
    fn needs_ticks(&self) -> bool {
        false
    }

    /// The server is to end; how long connections may still take, milliseconds. What is open is asked for its deadline
    /// at once.
    fn begin_end(&mut self, connections: &mut Connections<Self::Connection>) -> u64;
}

/// Wakes a thread: something was left for it, or it is to end.
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
    is_ending: AtomicBool,
}

impl Waker {
    /// One that nobody has rung.
    ///
    /// # Errors
    /// As eventfd(2).
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, is_ending: AtomicBool::new(false) })
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        // It fails only where 2^64 - 2 calls were not taken note of yet.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.wake();
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

#[derive(Debug)]
struct Slot<C> {
    connection: Option<C>,
    generation: u32,
    /// Whether it is among the turns.
    has_turn: bool,
}

/// One thread's connections and the epoll that tells of their events.
#[derive(Debug)]
pub struct Connections<C> {
    epoll: OwnedFd,
    slots: Vec<Slot<C>>,
    free: Vec<u32>,
    turns: VecDeque<u32>,
}

impl<C: AsFd> Connections<C> {
    fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, slots: Vec::new(), free: Vec::new(), turns: VecDeque::new() })
    }

    /// Has a source's events told with its number, which is below 2^63 - 1.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn watch(&self, source: &OwnedFd, number: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, source, EventData::new_u64(SOURCE | number), flags)?)
    }

    /// Has a source's events told no more.
    pub fn unwatch(&self, source: &OwnedFd) {
        let _ = epoll::delete(&self.epoll, source);
    }

    /// Adds a connection; it is closed where the kernel has no memory to watch it.
    pub fn add(&mut self, connection: C) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { connection: None, generation: 0, has_turn: false });
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1) & GENERATION_MASK;
        let token = u64::from(slot.generation) << GENERATION_SHIFT | u64::from(index);
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        match epoll::add(&self.epoll, connection.as_fd(), EventData::new_u64(token), flags) {
            Ok(()) => slot.connection = Some(connection),
            Err(_) => self.free.push(index),
        }
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// The slot that a token means, unless its connection is closed.
    #[expect(clippy::cast_possible_truncation, reason = "cut into its two halves")]
    fn slot(&self, token: u64) -> Option<u32> {
        let (index, generation) = (token as u32, (token >> GENERATION_SHIFT) as u32);
        self.slots.get(index as usize).is_some_and(|slot| slot.generation == generation).then_some(index)
    }

    fn follow(&mut self, index: u32, next: Next) {
        let slot = &mut self.slots[index as usize];
        match next {
            Next::Event => {}
            Next::Turn if slot.has_turn => {}
            Next::Turn => {
                slot.has_turn = true;
                self.turns.push_back(index);
            }
            Next::Close => {
                // Closing the socket takes it out of epoll.
                slot.connection = None;
                self.free.push(index);
            }
        }
    }
}

/// One thread's work.
struct EventLoop<'a, S: Service> {
    service: S,
    connections: Connections<S::Connection>,
    waker: &'a Waker,
    next_tick_ms: u64,
    /// When connections that are still open are closed.
    end_ms: Option<u64>,
}

impl<'a, S: Service> EventLoop<'a, S> {
    fn new(mut service: S, waker: &'a Waker) -> io::Result<Self> {
        let mut connections = Connections::new()?;
        epoll::add(&connections.epoll, &waker.event, EventData::new_u64(WAKER), EventFlags::IN)?;
        service.begin(&mut connections)?;
        Ok(Self { service, connections, waker, next_tick_ms: 0, end_ms: None })
    }

    /// Serves until the waker says that it is the end, and all connections are closed.
    fn run(mut self) -> io::Result<S> {
        let mut events: Vec<Event> = Vec::with_capacity(MAX_EVENTS);
        while self.end_ms.is_none() || !self.connections.is_empty() {
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.connections.epoll, room, self.timeout().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let now_ms = self.service.now_ms();
            for event in events.drain(..) {
                let flags = event.flags;
                match event.data.u64() {
                    WAKER => self.on_wake(now_ms),
                    token if token & SOURCE != 0 => {
                        self.service.on_source(&mut self.connections, token & !SOURCE);
                    }
                    token => {
                        if let Some(index) = self.connections.slot(token) {
                            self.drive(index, flags);
                        }
                    }
                }
            }
            for _ in 0..self.connections.turns.len() {
                if let Some(index) = self.connections.turns.pop_front() {
                    self.connections.slots[index as usize].has_turn = false;
                    self.drive(index, EventFlags::empty());
                }
            }
            if now_ms >= self.next_tick_ms {
                self.next_tick_ms = now_ms + u64::from(S::TICK_MS);
                self.tick(now_ms);
            }
        }
        Ok(self.service)
    }

    /// How long to wait for events; `None` for as long as it takes.
    fn timeout(&self) -> Option<Timespec> {
        if !self.connections.turns.is_empty() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let (seconds, ms) = (S::TICK_MS / 1000, S::TICK_MS % 1000);
        let tick = Timespec { tv_sec: seconds.into(), tv_nsec: i64::from(ms) * 1_000_000 };
        (!self.connections.is_empty() || self.service.needs_ticks()).then_some(tick)
    }

    fn on_wake(&mut self, now_ms: u64) {
        self.waker.clear();
        self.service.on_wake(&mut self.connections);
        if self.end_ms.is_none() && self.waker.is_ending.load(Ordering::Acquire) {
            self.end_ms = Some(now_ms + self.service.begin_end(&mut self.connections));
            self.next_tick_ms = 0;
        }
    }

    fn drive(&mut self, index: u32, flags: EventFlags) {
        if let Some(connection) = &mut self.connections.slots[index as usize].connection {
            let next = self.service.on_event(connection, flags);
            self.connections.follow(index, next);
        }
    }

    fn tick(&mut self, now_ms: u64) {
        self.service.on_tick(&mut self.connections);
        let is_over = self.end_ms.is_some_and(|end_ms| now_ms >= end_ms);
        for index in 0..self.connections.slots.len() {
            let Some(connection) = &mut self.connections.slots[index].connection else { continue };
            let next = if is_over { Some(Next::Close) } else { self.service.on_deadline(connection, now_ms) };
            if let Some(next) = next {
                self.connections.follow(u32::try_from(index).unwrap_or(u32::MAX), next);
            }
        }
    }
}

/// Why serving ended otherwise than by a signal.
#[derive(Debug)]
pub enum Failure {
    /// A thread could not be started.
    Start(io::Error),
    /// Clients cannot be waited for.
    Accept(io::Error),
    /// A thread cannot wait for its connections.
    Wait(io::Error),
    /// A thread panicked.
    Panic,
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start(error) => write!(f, "cannot start a thread: {error}"),
            Self::Accept(error) => write!(f, "cannot accept connections: {error}"),
            Self::Wait(error) => write!(f, "a thread ended: {error}"),
            Self::Panic => f.write_str("a thread panicked"),
        }
    }
}

/// Serves in a thread for each of `services`, which its waker wakes, until `wait` returns; then all end. The services as
/// they are then.
///
/// # Errors
/// The first failure of any thread.
pub fn run<'a, S: Service<Connection: Send> + Send>(
    services: impl IntoIterator<Item = (S, &'a Waker)>,
    wait: impl FnOnce() -> io::Result<()>,
) -> Result<Vec<S>, Failure> {
    let loops = services.into_iter().map(|(service, waker)| EventLoop::new(service, waker));
    let loops = loops.collect::<io::Result<Vec<_>>>().map_err(Failure::Start)?;
    let wakers: Vec<_> = loops.iter().map(|event_loop| event_loop.waker).collect();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut outcome = Ok(());
        for (index, event_loop) in loops.into_iter().enumerate() {
            let thread = thread::Builder::new().name(format!("worker-{index}"));
            match thread.spawn_scoped(scope, || event_loop.run()) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    outcome = Err(Failure::Start(error));
                    break;
                }
            }
        }
        let outcome = outcome.and_then(|()| wait().map_err(Failure::Accept));
        wakers.iter().for_each(|waker| waker.end());
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(service) => service.map_err(Failure::Wait),
            Err(_) => Err(Failure::Panic),
        });
        // All are joined, whatever came of the first.
        let ended: Vec<_> = ended.collect();
        outcome?;
        ended.into_iter().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;

    /// Counts what it is told of; a connection has as many turns as bytes were read, and is closed at its end.
    #[derive(Default)]
    struct Counting<'a> {
        inbox: Option<&'a Mutex<Vec<UnixStream>>>,
        turns: Vec<usize>,
        ends: usize,
    }

    struct Reader(UnixStream, usize);

    impl AsFd for Reader {
        fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl Service for Counting<'_> {
        type Connection = Reader;
        const TICK_MS: u32 = 10;

        fn begin(&mut self, _: &mut Connections<Reader>) -> io::Result<()> {
            Ok(())
        }

        fn now_ms(&mut self) -> u64 {
            crate::clock::now_ms()
        }

        fn on_wake(&mut self, connections: &mut Connections<Reader>) {
            let arrived = self.inbox.map(|inbox| std::mem::take(&mut *inbox.lock().expect("no panic")));
            arrived.into_iter().flatten().for_each(|stream| connections.add(Reader(stream, 0)));
        }

        fn on_source(&mut self, _: &mut Connections<Reader>, _: u64) {}

        fn on_event(&mut self, reader: &mut Reader, flags: EventFlags) -> Next {
            assert!(!flags.is_empty() || reader.1 > 0);
            if reader.1 > 0 {
                self.turns.push(reader.1);
                reader.1 -= 1;
            }
            match (reader.1, rustix::io::read(&reader.0, &mut [0; 100])) {
                (1.., Err(_) | Ok(0)) => Next::Turn,
                (0, Ok(0)) => Next::Close,
                (0, Err(_)) => Next::Event,
                (_, Ok(read)) => {
                    reader.1 += read;
                    Next::Turn
                }
            }
        }

        fn on_tick(&mut self, _: &mut Connections<Reader>) {}

        fn on_deadline(&mut self, _: &mut Reader, _: u64) -> Option<Next> {
            None
        }

        fn begin_end(&mut self, _: &mut Connections<Reader>) -> u64 {
            self.ends += 1;
            20
        }
    }

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("a socket");
        (ours, theirs)
    }

    #[test]
    fn connections_have_turns_one_after_the_other_and_what_is_open_at_the_end_is_closed() {
        use std::io::{Read, Write};
        let (inbox, waker) = (Mutex::new(Vec::new()), Waker::new().expect("an event"));
        let service = Counting { inbox: Some(&inbox), ..Counting::default() };
        let (mut gone, mut silent) = (None, None);
        let ended = run([(service, &waker)], || {
            let ((first, mut client), (second, other)) = (pair(), pair());
            client.write_all(b"123").expect("room");
            inbox.lock().expect("no panic").extend([first, second]);
            waker.wake();
            (gone, silent) = (Some(client), Some(other));
            // It is closed by the service once it has read all of it and its end.
            let client = gone.as_mut().expect("here");
            client.shutdown(std::net::Shutdown::Write).expect("connected");
            client.read(&mut [0]).map(|read| assert_eq!(read, 0))
        });
        let services = ended.expect("no failure");
        assert_eq!((&services[0].turns[..], services[0].ends), (&[3, 2, 1][..], 1));
        assert_eq!(silent.expect("here").read(&mut [0]).expect("closed"), 0, "cut off at the end");
    }

    #[test]
    fn an_event_of_a_closed_connection_does_not_reach_the_next_one_in_its_slot() {
        let mut connections = Connections::new().expect("epoll");
        let ((first, _client), (second, _other)) = (pair(), pair());
        connections.add(Reader(first, 0));
        let token = |connections: &Connections<Reader>| {
            u64::from(connections.slots[0].generation) << GENERATION_SHIFT
        };
        let stale = token(&connections);
        assert_eq!(connections.slot(stale), Some(0));
        connections.follow(0, Next::Close);
        assert!(connections.is_empty());
        connections.add(Reader(second, 0));
        assert_eq!((connections.slot(stale), connections.slot(token(&connections))), (None, Some(0)));
        assert_eq!(connections.slots.len(), 1);
    }

    #[test]
    fn a_failure_to_wait_for_clients_ends_all_threads_and_is_told() {
        let waker = Waker::new().expect("an event");
        let failed = run([(Counting::default(), &waker)], || Err(io::ErrorKind::OutOfMemory.into()));
        assert!(failed.is_err_and(|failure| failure.to_string().starts_with("cannot accept connections")));
    }
}
