//! The server as a whole: the listening socket, the threads, the end.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, bind, getsockname, listen, shutdown, socket_with,
    sockopt,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::files::answer::Site;
use crate::files::clock::Clock;
use crate::files::connection::{Shared, Tally, Timeouts, room};
use crate::files::os::EndSignals;
use crate::files::ways::{Tools, Way};
use crate::files::worker::{Pool, Worker, wake, wake_up};

/// Clients that wait in the kernel to be accepted; it allows `net.core.somaxconn` of them at most.
const BACKLOG: i32 = 4096;
/// Descriptors that are no connection's: streams, the root; and for each thread epoll, an event, pipes.
const OWN_DESCRIPTORS: u64 = 48;
const THREAD_DESCRIPTORS: u64 = 16;

/// How a server is to work.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Threads.
    pub threads: usize,
    /// Most connections at a time.
    pub connections: usize,
    /// How long clients may take.
    pub timeouts: Timeouts,
    /// How long answers may take once the server is to end, ms.
    pub grace_ms: u64,
    /// Length of a buffer of `read-send`, bytes.
    pub buffer_bytes: usize,
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    pool: Pool,
    site: Site,
    settings: Settings,
    wakes: Vec<OwnedFd>,
    signals: EndSignals,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Listens. SIGTERM and SIGINT are blocked from here on, and end the server once it runs.
    ///
    /// # Errors
    /// The kernel's: the address is in use, say.
    pub fn listen(site: Site, settings: Settings) -> io::Result<Self> {
        let signals = EndSignals::block();
        let family = if settings.listen.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let listener = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&listener, true)?;
        bind(&listener, &settings.listen)?;
        listen(&listener, BACKLOG)?;
        let address = SocketAddr::try_from(getsockname(&listener)?).map_err(io::Error::from)?;
        let limit = settings.connections.min(room_for_connections(site.way, settings.threads));
        let pool = Pool {
            listener,
            open: AtomicUsize::new(0),
            limit,
            ending: AtomicBool::new(false),
            grace_ms: settings.grace_ms,
        };
        let wakes = (0..settings.threads).map(|_| wake()).collect::<io::Result<_>>()?;
        Ok(Self { pool, site, settings, wakes, signals, address })
    }

    /// How many connections there may be at a time: as many as asked for, or as descriptors allow.
    #[must_use]
    pub const fn connections(&self) -> usize {
        self.pool.limit
    }

    /// Serves until a signal ends it; returns what happened, and the bytes held in twin memory at the end.
    ///
    /// # Errors
    /// The first of any thread's.
    pub fn run(&self) -> io::Result<(Tally, u64)> {
        let tallies: Vec<io::Result<Tally>> = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .wakes
                .iter()
                .map(|wake| scope.spawn(|| Worker::new(&self.pool, self.shared(), wake)?.run()))
                .collect();
            self.signals.wait();
            self.pool.ending.store(true, Ordering::Relaxed);
            // From here on clients are refused, while threads still hold the descriptor.
            let _ = shutdown(&self.pool.listener, Shutdown::Both);
            for wake in &self.wakes {
                // An event counter that was never read has room for this.
                let _ = wake_up(wake);
            }
            let lost = |_| Err(io::Error::other("a thread panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
        });
        let mut all = Tally::default();
        for tally in tallies {
            let tally = tally?;
            all.connections += tally.connections;
            all.turned_away += tally.turned_away;
            all.answers += tally.answers;
            all.sent_bytes += tally.sent_bytes;
            all.timed_out += tally.timed_out;
        }
        Ok((all, self.site.cache.held_bytes()))
    }

    fn shared(&self) -> Shared<'_> {
        Shared {
            site: &self.site,
            timeouts: self.settings.timeouts,
            tools: Tools::new(self.settings.buffer_bytes),
            clock: Clock::default(),
            ending: false,
            received: room(),
            tally: Tally::default(),
        }
    }
}

/// How many connections the limit of descriptors allows, once it is as high as this process may set it.
fn room_for_connections(way: Way, threads: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    // A socket and a file; splice has a pipe besides.
    let each = if way == Way::Splice { 4 } else { 2 };
    let own = OWN_DESCRIPTORS + THREAD_DESCRIPTORS * threads as u64;
    let room = current.map_or(u64::MAX, |current| current.saturating_sub(own) / each);
    usize::try_from(room).unwrap_or(usize::MAX).max(1)
}
