//! Starts the threads, accepts clients and gives them out in turn, and ends all of it.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::admission::raise_descriptor_limit;
use crate::cached::arguments::{Settings, Transmit};
use crate::cached::cache::Cache;
use crate::cached::expiry;
use crate::cached::listening::Listening;
use crate::cached::worker::{Inbox, Worker};
use crate::{command_line, event_loop, signals, transmit};

/// Descriptors besides those of connections.
const OTHER_DESCRIPTORS: u64 = 512;
/// Wait where the kernel has no descriptor or memory left for a connection.
const SHORT_OF_DESCRIPTORS: Duration = Duration::from_millis(20);
/// Connections accepted before the other listening sockets have their turn.
const ROUNDS: usize = 64;
/// What a client gets that is one too many.
const REFUSAL: &[u8] = b"ERROR Too many open connections\r\n";

/// Serves until a signal ends it.
///
/// # Errors
/// Why it cannot, in words.
pub fn run(settings: Settings) -> Result<(), String> {
    // Time begins here.
    let _ = expiry::now();
    let signal = signals::ending().map_err(|error| format!("cannot wait for signals: {error}"))?;
    raise_descriptor_limit(u64::from(settings.connections) + OTHER_DESCRIPTORS);
    transmit::prepare((settings.transmit == Transmit::Splice).then_some(1));
    if settings.transmit != Transmit::Copy {
        uncopy_twin::probe();
    }
    let mut listening = Listening::begin(&settings)?;
    let cache = Cache::new(settings);
    let inboxes = cache.counters.iter().map(|_| Inbox::new()).collect::<io::Result<Vec<_>>>();
    let inboxes = inboxes.map_err(|error| event_loop::Failure::Start(error).to_string())?;
    let sockets = std::mem::take(&mut listening.datagrams);
    let workers = sockets.into_iter().zip(&inboxes).zip(&cache.counters);
    let workers = workers
        .map(|((sockets, inbox), counters)| (Worker::new(&cache, counters, inbox, sockets), &inbox.waker));
    let accept = || {
        let listening = listening;
        let (names, threads) = (listening.names.join(" "), cache.settings.threads);
        let transmit = command_line::word(cache.settings.transmit);
        let line = format!("uncopy-cached: listening on {names}; {threads} threads, transmit {transmit}");
        // Whoever started it may not be there to read.
        let _ = writeln!(io::stdout(), "{line}");
        accept_until(&signal, &listening, &cache, &inboxes)
    };
    event_loop::run(workers, accept).map(drop).map_err(|failure| failure.to_string())
}

fn accept_until(signal: &OwnedFd, listening: &Listening, cache: &Cache, inboxes: &[Inbox]) -> io::Result<()> {
    let mut inboxes = inboxes.iter().cycle();
    let mut welcome = |client| {
        if let Some(inbox) = inboxes.next() {
            inbox.give(client);
        }
    };
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
        for (listener, polled) in listening.streams.iter().zip(&polled[1..]) {
            if !polled.revents().is_empty()
                && cache.admission.accept(listener, ROUNDS, REFUSAL, &mut welcome).is_err()
            {
                // Until a connection ends there is nothing to be done; a signal still ends the wait.
                let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(SHORT_OF_DESCRIPTORS.subsec_nanos()) };
                let _ = poll(&mut [PollFd::new(signal, PollFlags::IN)], Some(&wait));
            }
        }
    }
}
