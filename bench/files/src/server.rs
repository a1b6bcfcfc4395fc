//! The server's threads, each with an epoll instance that watches the listener and the thread's connections.
//!
//! Connections are registered edge-triggered. An event drives its connection until the connection must wait, or its
//! turn is over; then the connection is registered again, so that its next event is queued behind the others.
//!
//! Invariants: `open` ≤ [`MAX_CONNECTIONS`], except for connections that are being refused. No token is used twice,
//! so that an event of a closed connection reaches no other.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, listen, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use uncopy_transmit::{ProgramFd, SocketOwner};

use crate::connection::{Connection, ServeConfig};
use crate::ways::{SpareBuffers, Way};

/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 2048;
/// Time to wait if the kernel has no descriptors or memory for another client.
const PAUSE: Duration = Duration::from_millis(10);
/// Time between two checks of the deadlines.
const TICK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// The listener's token. Tokens of connections are greater.
const LISTENER: u64 = 0;
/// Epoll events of a connection.
const EVENTS: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

/// A server with a listening socket.
pub struct Server {
    pub config: ServeConfig,
    pub listener: TcpListener,
    /// Number of open connections, of all threads.
    pub open_connections: AtomicUsize,
}

/// Listens at `address`. Returns the actual address, with a free port in place of port 0.
pub fn listen_at(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    // listen(2) may be called again to change the backlog, and connections inherit the option (Linux).
    listen(&listener, 4096)?;
    sockopt::set_tcp_nodelay(&listener, true)?;
    listener.set_nonblocking(true)?;
    listener.local_addr().map(|address| (listener, address))
}

impl Server {
    /// Starts the threads, which end with the process.
    pub fn start(self, threads: usize) -> io::Result<()> {
        let server = Arc::new(self);
        // A connection has up to four descriptors. With fewer, clients wait to be accepted.
        let maximum = getrlimit(Resource::Nofile).maximum;
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        for number in 0..threads {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            // EXCLUSIVE: one client does not wake every thread.
            let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
            epoll::add(&epoll, &server.listener, EventData::new_u64(LISTENER), flags)?;
            let (server, (connections, spare)) = (Arc::clone(&server), Default::default());
            let worker = Worker { server, epoll, connections, last_token: LISTENER, spare };
            std::thread::Builder::new().name(format!("worker-{number}")).spawn(|| worker.run())?;
        }
        Ok(())
    }
}

/// State of one thread of the server.
struct Worker {
    server: Arc<Server>,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    last_token: u64,
    spare: SpareBuffers,
}

impl Worker {
    fn run(mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(256);
        let mut next_tick = Instant::now();
        loop {
            let timeout = Some(&TICK).filter(|_| !self.connections.is_empty());
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => panic!("a thread cannot wait for its connections: {errno}"),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    token => self.drive(token),
                }
            }
            let now = Instant::now();
            if now >= next_tick {
                next_tick = now + Duration::from_secs(1);
                let before = self.connections.len();
                self.connections.retain(|_, connection| now < connection.deadline);
                self.server.open_connections.fetch_sub(before - self.connections.len(), Relaxed);
            }
        }
    }

    fn accept(&mut self) {
        // After these, connections accepted earlier get their turn.
        for _ in 0..16 {
            match accept_with(&self.server.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.add(socket),
                Err(Errno::AGAIN) => return,
                // The listener's event comes again at once.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => return sleep(PAUSE),
                // The client has already gone.
                Err(_) => {}
            }
        }
    }

    /// Adds a connection. Closes the connection if there are too many, or epoll has no memory for it.
    fn add(&mut self, socket: OwnedFd) {
        self.last_token += 1;
        if self.server.config.way == Way::Twin {
            // The socket does not block, one thread sends on it, and it is closed after an error.
            let owner = SocketOwner { ends_on_errors: true, sends_alone: true, reads_errors: false };
            uncopy_transmit::declare_owner(ProgramFd::of(&socket), owner);
        }
        let connection = Connection::new(socket, &self.server.config);
        let data = EventData::new_u64(self.last_token);
        let has_room = self.server.open_connections.fetch_add(1, Relaxed) < MAX_CONNECTIONS;
        if has_room && epoll::add(&self.epoll, &connection.socket.fd, data, EVENTS).is_ok() {
            self.connections.insert(self.last_token, connection);
        } else {
            self.server.open_connections.fetch_sub(1, Relaxed);
        }
    }

    fn drive(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let data = EventData::new_u64(token);
        let has_more = match connection.drive(&self.server.config, &mut self.spare) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => false,
            Ok(()) => epoll::modify(&self.epoll, &connection.socket.fd, data, EVENTS).is_ok(),
        };
        if !has_more {
            self.connections.remove(&token);
            self.server.open_connections.fetch_sub(1, Relaxed);
        }
    }
}
