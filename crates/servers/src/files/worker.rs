//! A thread with its own connections, and epoll to wait for all of them.
//!
//! Sockets are registered once, edge-triggered: a connection is driven until nothing more can be done
//! without waiting, or its turn is over. Every wait is bounded by the tick at which deadlines are looked at.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send, sockopt};

use crate::files::connection::{Connection, Next, Shared};

/// How often deadlines are looked at.
const TICK_MS: u64 = 500;
/// Most connections accepted before those that wait get their turn.
const ACCEPTED_AT_ONCE: usize = 16;
/// Most events taken by one call.
const EVENTS: usize = 256;
/// Tokens that are no connection's.
const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
/// What a client gets that is one too many.
const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 24\r\n\r\n503 Service Unavailable\n";

/// What all threads of a server share.
#[derive(Debug)]
pub struct Pool {
    /// Where clients come in; it does not block.
    pub listener: OwnedFd,
    /// Connections of all threads.
    pub open: AtomicUsize,
    /// Most of them.
    pub limit: usize,
    /// The server is to end.
    pub ending: AtomicBool,
    /// How long answers that are under way then may take, ms.
    pub grace_ms: u64,
}

/// What wakes a thread up so that it sees that the server is to end.
///
/// # Errors
/// The kernel's, where there are no descriptors left.
pub fn wake() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// A place for a connection; the number of its user tells events of an earlier one.
#[derive(Debug, Default)]
struct Place {
    connection: Option<Connection>,
    user: u32,
    /// Whether it is among `turns`.
    has_turn: bool,
}

/// A thread's work.
#[derive(Debug)]
pub struct Worker<'a> {
    pool: &'a Pool,
    shared: Shared<'a>,
    epoll: OwnedFd,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Connections that have more to do.
    turns: Vec<u32>,
    /// Whether the listener is watched.
    accepting: bool,
    next_tick_ms: u64,
    /// When connections that are still open are cut off.
    end_ms: Option<u64>,
}

impl<'a> Worker<'a> {
    /// A worker without connections; `wake` becomes readable when the server is to end.
    ///
    /// # Errors
    /// The kernel's, where there are no descriptors left.
    pub fn new(pool: &'a Pool, shared: Shared<'a>, wake: &OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // Once is enough: nobody reads it.
        epoll::add(&epoll, wake, EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
        let mut worker = Self {
            pool,
            shared,
            epoll,
            places: Vec::new(),
            free: Vec::new(),
            turns: Vec::new(),
            accepting: false,
            next_tick_ms: 0,
            end_ms: None,
        };
        worker.accept_more()?;
        Ok(worker)
    }

    /// Serves until the server is to end and all connections are over.
    ///
    /// # Errors
    /// The kernel's, if waiting itself fails.
    pub fn run(mut self) -> io::Result<crate::files::connection::Tally> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        loop {
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.shared.clock.look();
            for event in events.drain(..) {
                let flags = event.flags;
                match event.data.u64() {
                    LISTENER => self.accept(),
                    WAKE => self.begin_end(),
                    token => self.on_event(token, flags.contains(EventFlags::ERR)),
                }
            }
            for index in std::mem::take(&mut self.turns) {
                self.places[index as usize].has_turn = false;
                self.drive(index, false);
            }
            let now_ms = self.shared.clock.now_ms();
            if now_ms >= self.next_tick_ms {
                self.next_tick_ms = now_ms + TICK_MS;
                self.tick(now_ms);
            }
            if self.end_ms.is_some() && self.free.len() == self.places.len() {
                return Ok(self.shared.tally);
            }
        }
    }

    fn timeout(&self) -> Timespec {
        let waits = self.turns.is_empty();
        let idle = self.accepting && self.free.len() == self.places.len();
        match (waits, idle) {
            (false, _) => Timespec { tv_sec: 0, tv_nsec: 0 },
            (true, true) => Timespec { tv_sec: 3600, tv_nsec: 0 },
            (true, false) => Timespec { tv_sec: 0, tv_nsec: i64::try_from(TICK_MS).unwrap_or(0) * 1_000_000 },
        }
    }

    /// Watches the listener; one thread is woken up for one client.
    fn accept_more(&mut self) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
        epoll::add(&self.epoll, &self.pool.listener, EventData::new_u64(LISTENER), flags)?;
        self.accepting = true;
        Ok(())
    }

    fn accept_no_more(&mut self) {
        if self.accepting {
            let _ = epoll::delete(&self.epoll, &self.pool.listener);
            self.accepting = false;
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED_AT_ONCE {
            if !self.accepting {
                return;
            }
            match accept_with(&self.pool.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => self.welcome(socket),
                // That client has gone again, or a firewall did not like it; others may wait.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PERM | Errno::PROTO) => {}
                Err(Errno::AGAIN) => return,
                // No descriptors or no memory: clients wait in the kernel's queue until the next tick.
                Err(_) => return self.accept_no_more(),
            }
        }
    }

    fn welcome(&mut self, socket: OwnedFd) {
        if self.pool.open.fetch_add(1, Ordering::Relaxed) >= self.pool.limit {
            self.pool.open.fetch_sub(1, Ordering::Relaxed);
            self.shared.tally.turned_away += 1;
            // A socket that was just accepted has room for this. A request that came already is taken out,
            // so that closing does not reset the connection.
            let _ = send(&socket, TURNED_AWAY, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            let _ = recv(&socket, &mut self.shared.received[..], RecvFlags::DONTWAIT);
            return;
        }
        self.shared.tally.connections += 1;
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        let place = &mut self.places[index as usize];
        place.user = place.user.wrapping_add(1) & 0x7fff_ffff;
        let token = u64::from(place.user) << 32 | u64::from(index);
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let added = epoll::add(&self.epoll, &socket, EventData::new_u64(token), flags);
        place.connection = Some(Connection::new(socket, &self.shared));
        if added.is_err() {
            self.end(index);
        }
    }

    /// Something happened on the socket of the connection that `token` names, if it is still there.
    fn on_event(&mut self, token: u64, completed: bool) {
        let index = u32::try_from(token & 0xffff_ffff).unwrap_or(u32::MAX);
        match self.places.get(index as usize) {
            Some(place) if u64::from(place.user) == token >> 32 => self.drive(index, completed),
            _ => {}
        }
    }

    fn drive(&mut self, index: u32, completed: bool) {
        let Some(connection) = &mut self.places[index as usize].connection else { return };
        let next = connection.drive(&mut self.shared, completed);
        self.follow(index, next);
    }

    fn follow(&mut self, index: u32, next: Next) {
        let place = &mut self.places[index as usize];
        match next {
            Next::Event => {}
            Next::Turn if place.has_turn => {}
            Next::Turn => {
                place.has_turn = true;
                self.turns.push(index);
            }
            Next::Nothing => self.end(index),
        }
    }

    fn end(&mut self, index: u32) {
        // Closing the socket takes it out of epoll.
        self.places[index as usize].connection = None;
        self.free.push(index);
        self.pool.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn begin_end(&mut self) {
        if self.end_ms.is_some() || !self.pool.ending.load(Ordering::Relaxed) {
            return;
        }
        self.accept_no_more();
        self.shared.ending = true;
        let now_ms = self.shared.clock.now_ms();
        self.end_ms = Some(now_ms + self.pool.grace_ms);
        self.next_tick_ms = 0;
    }

    /// Looks at the deadlines.
    fn tick(&mut self, now_ms: u64) {
        let ending = self.end_ms.is_some();
        let cut = self.end_ms.is_some_and(|end_ms| now_ms >= end_ms);
        // Clients that do nothing must not keep others out.
        let crowded = self.pool.open.load(Ordering::Relaxed) > self.pool.limit * 7 / 8;
        for index in 0..self.places.len() {
            let Some(connection) = &mut self.places[index].connection else { continue };
            let idle = connection.is_idle();
            let idle_ms = self.shared.timeouts.idle_ms / 4;
            let late = connection.is_late(now_ms) || crowded && connection.is_idle_for(now_ms, idle_ms);
            let next = if cut || ending && idle {
                Next::Nothing
            } else if late {
                connection.expire(&mut self.shared)
            } else {
                continue;
            };
            self.follow(u32::try_from(index).unwrap_or(u32::MAX), next);
        }
        if !self.accepting && !ending {
            // If it fails again, the next tick tries again.
            let _ = self.accept_more();
        }
    }
}

/// What a worker waits on, for those who wake it.
///
/// # Errors
/// The kernel's.
pub fn wake_up(wake: &OwnedFd) -> io::Result<()> {
    rustix::io::write(wake.as_fd(), &1u64.to_ne_bytes())?;
    Ok(())
}
