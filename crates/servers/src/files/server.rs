//! The server as a whole: the listening socket, the threads, the end.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::net::{Shutdown, SocketType, shutdown};

use crate::admission::{Admission, raise_descriptor_limit};
use crate::event_loop::{Failure, Waker, run};
use crate::files::answer::Site;
use crate::files::clock::Clock;
use crate::files::connection::{Shared, Tally, Timeouts, room};
use crate::files::ways::{Tools, Way};
use crate::files::worker::{Pool, Worker};
use crate::{signals, sockets};

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
    wakers: Vec<Waker>,
    /// Readable once a signal has come that ends the server.
    signal: OwnedFd,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Listens. SIGTERM and SIGINT are blocked from here on, and end the server once it runs.
    ///
    /// # Errors
    /// The kernel's: the address is in use, say.
    pub fn listen(site: Site, settings: Settings) -> io::Result<Self> {
        let signal = signals::ending()?;
        let listener = sockets::inet(settings.listen, SocketType::STREAM)?;
        let address = sockets::listen_tcp(&listener, settings.listen, BACKLOG)?;
        let limit = settings.connections.min(room_for_connections(site.way, settings.threads));
        let pool = Pool { listener, admission: Admission::new(limit), grace_ms: settings.grace_ms };
        let wakers = (0..settings.threads).map(|_| Waker::new()).collect::<io::Result<_>>()?;
        Ok(Self { pool, site, settings, wakers, signal, address })
    }

    /// How many connections there may be at a time: as many as asked for, or as descriptors allow.
    pub fn connections(&self) -> usize {
        self.pool.admission.limit
    }

    /// Serves until a signal ends it; returns what happened.
    ///
    /// # Errors
    /// The first of any thread's.
    pub fn run(&self) -> Result<Tally, Failure> {
        let workers = self.wakers.iter().map(|waker| (Worker::new(&self.pool, self.shared()), waker));
        let workers = run(workers, || {
            retry_on_intr(|| poll(&mut [PollFd::new(&self.signal, PollFlags::IN)], None))?;
            // From here on clients are refused, while threads still hold the descriptor.
            let _ = shutdown(&self.pool.listener, Shutdown::Both);
            Ok(())
        })?;
        Ok(workers.iter().map(Worker::tally).fold(Tally::default(), Tally::plus))
    }

    /// What was served, as a line of JSON.
    pub fn statistics(&self, tally: &Tally) -> String {
        let admission = &self.pool.admission;
        format!(
            "{{\"schema\": {}, \"connections\": {}, \"turned_away\": {}, \"answers\": {}, \"sent_bytes\": {}, \"timed_out\": {}, \
             \"cached_bytes\": {}}}",
            uncopy_core::schema::FILES,
            admission.accepted(),
            admission.refused(),
            tally.answers,
            tally.sent_bytes,
            tally.timed_out,
            self.site.cache.held_bytes()
        )
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
    // A socket and a file; splice has a pipe besides.
    let each = if way == Way::Splice { 4 } else { 2 };
    let own = OWN_DESCRIPTORS + THREAD_DESCRIPTORS * threads as u64;
    let room = raise_descriptor_limit(u64::MAX).map_or(u64::MAX, |limit| limit.saturating_sub(own) / each);
    usize::try_from(room).unwrap_or(usize::MAX).max(1)
}
