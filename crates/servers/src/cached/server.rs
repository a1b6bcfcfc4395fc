//! Starts the threads, accepts connections and gives them out in turn, and ends all of it.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cached::arguments::Settings;
use crate::cached::budget::Budget;
use crate::cached::cache::Cache;
use crate::cached::listening::Listening;
use crate::cached::signals;
use crate::cached::statistics::Counters;
use crate::cached::store::Store;
use crate::cached::worker::{Inbox, Worker};
use crate::cached::{clock, outlet};

/// Descriptors besides those of connections.
const OTHER_DESCRIPTORS: u64 = 512;
/// How long to wait where the kernel has no descriptor or memory left for a connection.
const SHORT_OF_DESCRIPTORS: Duration = Duration::from_millis(20);
/// Connections accepted before the other listening sockets have their turn.
const ROUNDS: usize = 64;

/// Serves until a signal ends it.
///
/// # Errors
/// Why it cannot, in words.
pub fn run(settings: Settings) -> Result<(), String> {
    // Time begins here.
    let _ = clock::now();
    let signal = signals::ending().map_err(|error| format!("cannot wait for signals: {error}"))?;
    raise_descriptor_limit(settings.connections.into());
    outlet::prepare(settings.transmit);
    let mut listening = Listening::begin(&settings)?;
    let threads = usize::try_from(settings.threads).unwrap_or(1);
    let limit_bytes = usize::try_from(settings.memory_limit).unwrap_or(usize::MAX).saturating_mul(1 << 20);
    let cache = Arc::new(Cache {
        store: Store::new(Arc::new(Budget::new(limit_bytes)), settings.item_limit),
        counters: std::iter::repeat_with(Counters::default).take(threads).collect(),
        connections: AtomicUsize::new(0),
        accepted: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        verbosity: AtomicU32::new(settings.verbose.into()),
        is_ending: AtomicBool::new(false),
        settings,
    });
    let mut workers = Vec::new();
    let mut inboxes = Vec::new();
    for (index, sockets) in std::mem::take(&mut listening.datagrams).into_iter().enumerate() {
        let start = || -> io::Result<_> {
            let inbox = Arc::new(Inbox::new()?);
            let worker = Worker::new(Arc::clone(&cache), index, Arc::clone(&inbox), sockets)?;
            let name = format!("worker-{index}");
            Ok((inbox, std::thread::Builder::new().name(name).spawn(|| worker.run())?))
        };
        let (inbox, thread) = start().map_err(|error| format!("cannot start a thread: {error}"))?;
        inboxes.push(inbox);
        workers.push(thread);
    }
    let names = listening.names.join(" ");
    let transmit = cache.settings.transmit.name();
    // Whoever started it may not be there to read.
    let _ =
        writeln!(io::stdout(), "uncopy-cached: listening on {names}; {threads} threads, transmit {transmit}");
    let accepted = accept_until(&signal, &listening, &cache, &inboxes);
    drop(listening);
    cache.is_ending.store(true, Relaxed);
    inboxes.iter().for_each(|inbox| inbox.ring());
    let mut ended = accepted.map_err(|error| format!("cannot accept connections: {error}"));
    for worker in workers {
        match worker.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => ended = Err(format!("a thread ended: {error}")),
            Err(_) => ended = Err("a thread panicked".to_owned()),
        }
    }
    ended
}

fn raise_descriptor_limit(connections: u64) {
    let wanted = connections + OTHER_DESCRIPTORS;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < wanted) {
        let current = Some(maximum.map_or(wanted, |maximum| maximum.min(wanted)));
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    }
}

fn accept_until(
    signal: &OwnedFd,
    listening: &Listening,
    cache: &Cache,
    inboxes: &[Arc<Inbox>],
) -> io::Result<()> {
    let mut next = inboxes.iter().cycle();
    loop {
        let sockets = std::iter::once(signal).chain(&listening.streams);
        let mut polled: Vec<PollFd<'_>> = sockets.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !polled[0].revents().is_empty() {
            return Ok(());
        }
        for (socket, polled) in listening.streams.iter().zip(&polled[1..]) {
            if polled.revents().is_empty() {
                continue;
            }
            for _ in 0..ROUNDS {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                match rustix::net::accept_with(socket, flags) {
                    Ok(connection) => welcome(connection, cache, &mut next),
                    Err(Errno::AGAIN) => break,
                    Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        // Until a connection ends there is nothing to be done; a signal still ends the wait.
                        let wait =
                            Timespec { tv_sec: 0, tv_nsec: i64::from(SHORT_OF_DESCRIPTORS.subsec_nanos()) };
                        let _ = poll(&mut [PollFd::new(signal, PollFlags::IN)], Some(&wait));
                        break;
                    }
                    // The client is gone already (accept(2) lists the others of its kind).
                    Err(_) => {}
                }
            }
        }
    }
}

fn welcome<'a>(connection: OwnedFd, cache: &Cache, inboxes: &mut impl Iterator<Item = &'a Arc<Inbox>>) {
    let limit = usize::try_from(cache.settings.connections).unwrap_or(usize::MAX);
    if cache.connections.fetch_add(1, Relaxed) >= limit {
        cache.connections.fetch_sub(1, Relaxed);
        cache.refused.fetch_add(1, Relaxed);
        let sorry = b"ERROR Too many open connections\r\n";
        let _ = rustix::net::send(&connection, sorry, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        return;
    }
    cache.accepted.fetch_add(1, Relaxed);
    if let Some(inbox) = inboxes.next() {
        inbox.give(connection);
    }
}
