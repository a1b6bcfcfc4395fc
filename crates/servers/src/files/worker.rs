//! One thread that serves clients, which it accepts itself: the listener is in every thread's epoll.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;

use crate::admission::Admission;
use crate::event_loop::{Connections, Next, Service};
use crate::files::connection::{Connection, Shared, Tally};

/// Connections accepted before those that wait get their turn.
const MAX_ACCEPTED_AT_ONCE: usize = 16;
/// The number of the listener as a source of events, the only one.
const LISTENER: u64 = 0;
/// What a client gets that is one too many.
const REFUSAL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 24\r\n\r\n503 Service Unavailable\n";

/// What all threads of a server share.
#[derive(Debug)]
pub struct Pool {
    /// Where clients come in; it does not block.
    pub listener: OwnedFd,
    /// Connections of all threads.
    pub admission: Arc<Admission>,
    /// Longest time that answers under way may take at the end, ms.
    pub grace_ms: u64,
}

/// What belongs to one thread.
#[derive(Debug)]
pub struct Worker<'a> {
    pool: &'a Pool,
    shared: Shared<'a>,
    /// Whether the listener is watched.
    is_accepting: bool,
    /// Whether clients that do nothing keep others out.
    is_crowded: bool,
}

impl<'a> Worker<'a> {
    /// A worker that accepts from `pool`.
    pub const fn new(pool: &'a Pool, shared: Shared<'a>) -> Self {
        Self { pool, shared, is_accepting: false, is_crowded: false }
    }

    /// What happened.
    pub const fn tally(&self) -> Tally {
        self.shared.tally
    }

    fn stop_accepting(&mut self, connections: &Connections<Connection>) {
        if std::mem::replace(&mut self.is_accepting, false) {
            connections.unwatch(&self.pool.listener);
        }
    }
}

impl Service for Worker<'_> {
    type Connection = Connection;

    const TICK_MS: u32 = 500;

    /// Watches the listener; one thread is woken up for one client.
    fn begin(&mut self, connections: &mut Connections<Connection>) -> io::Result<()> {
        connections.watch(&self.pool.listener, LISTENER, EventFlags::IN | EventFlags::EXCLUSIVE)?;
        self.is_accepting = true;
        Ok(())
    }

    fn now_ms(&mut self) -> u64 {
        self.shared.clock.update();
        self.shared.clock.now_ms()
    }

    fn on_source(&mut self, connections: &mut Connections<Connection>, _: u64) {
        let welcome = |client| connections.add(Connection::new(client, &self.shared));
        let Pool { admission, listener, .. } = self.pool;
        if self.is_accepting && admission.accept(listener, MAX_ACCEPTED_AT_ONCE, REFUSAL, welcome).is_err() {
            // Clients wait in the kernel's queue until the next tick.
            self.stop_accepting(connections);
        }
    }

    fn on_event(&mut self, connection: &mut Connection, flags: EventFlags) -> Next {
        connection.drive(&mut self.shared, flags.contains(EventFlags::ERR))
    }

    fn on_tick(&mut self, connections: &mut Connections<Connection>) {
        self.is_crowded = self.pool.admission.open() > self.pool.admission.limit * 7 / 8;
        if !self.is_accepting && !self.shared.ending {
            // If it fails again, the next tick tries again.
            let _ = self.begin(connections);
        }
    }

    fn on_deadline(&mut self, connection: &mut Connection, now_ms: u64) -> Option<Next> {
        let idle_ms = self.shared.timeouts.idle_ms / 4;
        if self.shared.ending && connection.is_idle() {
            Some(Next::Close)
        } else if connection.is_late(now_ms) || self.is_crowded && connection.is_idle_for(now_ms, idle_ms) {
            Some(connection.expire(&mut self.shared))
        } else {
            None
        }
    }

    fn needs_ticks(&self) -> bool {
        !self.is_accepting
    }

    fn begin_end(&mut self, connections: &mut Connections<Connection>) -> u64 {
        self.stop_accepting(connections);
        self.shared.ending = true;
        self.pool.grace_ms
    }
}
