//! Icecast as a relay: the number of listeners to a live stream that it serves without falling behind (zIO,
//! section 5.3, network to network).

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use uncopy_testbed::servers::{Icecast, Service};

use super::environment::{Environment, Unprivileged};
use super::icecast::{CONFIGURATION, ICECAST, PACKAGES};
use super::listeners::Listeners;
use super::source::{RATE_BYTES_PER_S, Source};
use super::{AppServer, Case, Effort, Point, Scheme};
use crate::kit::processes::process::raise_descriptor_limit;
use crate::kit::traffic::LoadResult;
use crate::kit::{Failure, Latencies, Result, RunningServer, Server, format_size};

/// Number of listeners at the beginning of the first search.
const FIRST_GUESS: usize = 32;
/// Maximum number of listeners: other uses need as many descriptors again.
const MAX_LISTENERS: usize = 4000;
/// Resolution of the search: a step is the number found, divided by this.
const RESOLUTION: usize = 24;
/// Time for listeners to join and reach the current position of the stream, before their trial begins.
const MAX_SETTLE: Duration = Duration::from_secs(2);
/// Minimum length of a trial: the delay that a listener may have must be a small part of it.
const MIN_TRIAL: Duration = Duration::from_secs(1);
/// Time limit of a search as a multiple of the measurement's length, within bounds; the number found by then counts.
const SEARCH_FACTOR: u32 = 20;
const MIN_SEARCH: Duration = Duration::from_secs(3);
const MAX_SEARCH: Duration = Duration::from_secs(15);
/// Factor on that limit until the first number is found.
const FIRST_SEARCH_FACTOR: u32 = 4;

/// One stream to as many listeners as possible.
pub const CASE: Case = Case {
    name: "icecast-relay",
    description: "Icecast relays a live stream of 2 MiB/s; the result is the largest number of listeners that \
                  receive it at its rate, found by doubling and bisection in limited time; every received byte \
                  is compared",
    paper: "zIO section 5.3, Table 3: blocks of 64 KB relayed by one thread, 1.16 times as many listeners as plain with \
            a kernel-bypass stack",
    packages: PACKAGES,
    points,
    remark: "an operation is one second of the stream for one listener, so that op/s is the number of \
             listeners, to about 4 %. The packaged Icecast relays blocks of 1,400 bytes, fixed at compile \
             time: they are smaller than what uncopy elides. To measure an icecast2 built with larger blocks, \
             put it first on PATH",
    scheme: Scheme::Runs,
};

fn points(_: Effort) -> Vec<Point> {
    let title = format!("icecast relay, listeners of {}/s", format_size(RATE_BYTES_PER_S as u64));
    vec![Point::new(title, RATE_BYTES_PER_S as u64, Relay { last: Cell::new(None) })]
}

#[derive(Debug)]
struct Relay {
    /// Result of the last search, at which the next one begins, for any side.
    last: Cell<Option<usize>>,
}

impl AppServer for Relay {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let user = Unprivileged::new(environment)?;
        let arguments = |address, directory: &Path| CONFIGURATION.arguments(address, directory);
        let (server, address) = user.start_server(ICECAST.program, Icecast::ALONE, arguments)?;
        let max = max_listeners().min(MAX_LISTENERS);
        let processors = environment.client_processors();
        let source = Source::start(address, processors)?;
        let listeners = Listeners::new(address, processors);
        let relaying = Relaying { listeners, source, server, last: &self.last, max, result: None };
        Ok(Box::new(user.wrap(relaying)))
    }
}

/// Returns the maximum number of listeners: each needs a descriptor here and one in the server, which has others too.
fn max_listeners() -> usize {
    let descriptors = raise_descriptor_limit().unwrap_or(u64::MAX);
    usize::try_from(descriptors).unwrap_or(usize::MAX).saturating_sub(100)
}

/// A running Icecast with its source and its listeners.
#[derive(Debug)]
struct Relaying<'a> {
    // Fields drop in order: listeners and source end before the server.
    listeners: Listeners,
    source: Source,
    server: Server,
    last: &'a Cell<Option<usize>>,
    max: usize,
    /// The number of listeners that the search found, and whether the measurement held it, too.
    result: Option<(usize, bool)>,
}

impl Relaying<'_> {
    /// Returns whether the relay holds `count` listeners for `duration`.
    fn sustains(&mut self, count: usize, duration: Duration) -> Result<bool> {
        self.source.check()?;
        let is_sustained = self.listeners.wait_until_current(count, MAX_SETTLE, &self.source)?
            && self.listeners.listen(duration)?.kept_up;
        if !is_sustained {
            // No listener's delay may come from an earlier trial.
            self.listeners.resize(0)?;
        }
        Ok(is_sustained)
    }

    /// Returns the largest number of listeners that the relay holds, to a step; 0 if it holds none.
    fn search(&mut self, duration: Duration) -> Result<usize> {
        let limit = (duration * SEARCH_FACTOR).clamp(MIN_SEARCH, MAX_SEARCH);
        let mut search = Search::from(self.last.get().unwrap_or(FIRST_GUESS), self.max);
        let begin = Instant::now();
        // On a busy machine, the relay may hold no listener for a while.
        while begin.elapsed() < if search.found() == 0 { FIRST_SEARCH_FACTOR * limit } else { limit } {
            let Some(count) = search.next() else { break };
            let is_sustained = self.sustains(count, duration.max(MIN_TRIAL))?;
            search.add_trial(count, is_sustained);
        }
        Ok(search.found())
    }
}

impl RunningServer for Relaying<'_> {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn warm_up(&mut self, duration: Duration) -> Result<u64> {
        let before = self.listeners.verified_bytes();
        let found = self.search(duration)?;
        if found == 0 {
            // A ratio to zero would be meaningless.
            return Err(Failure::new(
                "the relay could not serve a single listener: the machine is busy, try \
                                     again",
            ));
        }
        self.last.set(Some(found));
        self.result = Some((found, true));
        self.listeners.wait_until_current(found, MAX_SETTLE, &self.source)?;
        Ok(self.listeners.verified_bytes() - before)
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "numbers of listeners and seconds"
    )]
    fn load(&mut self, duration: Duration) -> Result<LoadResult> {
        let count = match self.result {
            Some((count, _)) => count,
            // Under the profiler, where figures do not count, there is no search.
            None => FIRST_GUESS,
        };
        self.listeners.wait_until_current(count, MAX_SETTLE, &self.source)?;
        let received = self.listeners.listen(duration.max(MIN_TRIAL))?;
        self.source.check()?;
        let was_sustained = self.result.is_none_or(|(_, is_sustained)| is_sustained);
        self.result = Some((count, was_sustained && received.kept_up));
        // Whole operations in the elapsed time: their rate is the number of listeners.
        let exchanges = (received.elapsed.as_secs_f64() * count as f64).round().max(1.0);
        Ok(LoadResult {
            exchanges: exchanges as u64,
            verified_bytes: received.verified_bytes,
            elapsed: Duration::from_secs_f64(exchanges / count as f64),
            latencies: Latencies::default(),
        })
    }

    fn notes(&mut self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some((_, false)) = self.result {
            notes.push(
                "during the measurement, the relay fell behind with a number of listeners that it had served \
                 before".into(),
            );
        }
        if let Some((count, _)) = self.result.filter(|(count, _)| *count >= self.max) {
            notes.push(format!("it served {count} listeners, the maximum that is tried"));
        }
        notes
    }

    fn reconnect(&mut self) -> Result<()> {
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        self.source.stop()?;
        self.listeners.resize(0)?;
        self.server.process().stop()
    }
}

/// A search for the largest number that holds: doubling or halving from a guess, then bisection.
#[derive(Debug)]
struct Search {
    sustained: usize,
    /// Smallest number known to fail; `max + 1` until there is one.
    failed: usize,
    guess: usize,
    max: usize,
    has_begun: bool,
}

impl Search {
    fn from(guess: usize, max: usize) -> Self {
        Self { sustained: 0, failed: max + 1, guess: guess.clamp(1, max), max, has_begun: false }
    }

    /// Returns the next number to try; `None` if the bounds are close enough.
    fn next(&self) -> Option<usize> {
        let step = (self.sustained / RESOLUTION).max(1);
        match (self.sustained, self.failed) {
            _ if !self.has_begun => Some(self.guess),
            (sustained, failed) if failed - sustained <= step => None,
            // First trials go up by a quarter only, because the guess is usually near.
            (sustained, failed) if failed > self.max => {
                let factor = if sustained == self.guess { 5 * sustained / 4 } else { 2 * sustained };
                Some(factor.max(sustained + 1).min(self.max))
            }
            (0, failed) => Some((if failed == self.guess { 3 * failed / 4 } else { failed / 2 }).max(1)),
            (sustained, failed) => Some(usize::midpoint(sustained, failed)),
        }
    }

    fn add_trial(&mut self, count: usize, is_sustained: bool) {
        self.has_begun = true;
        if is_sustained {
            self.sustained = self.sustained.max(count);
        } else {
            self.failed = self.failed.min(count);
        }
    }

    fn found(&self) -> usize {
        self.sustained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_TRIALS: usize = 24;

    /// Returns the number found if exactly up to `limit` hold, and the number of trials.
    fn searched(guess: usize, limit: usize) -> (usize, usize) {
        let mut search = Search::from(guess, 1000);
        for trials in 0..MAX_TRIALS {
            match search.next() {
                Some(count) => search.add_trial(count, count <= limit),
                None => return (search.found(), trials),
            }
        }
        panic!("not found in {MAX_TRIALS} trials: {search:?}");
    }

    #[test]
    fn the_largest_number_is_found_to_a_step_from_any_guess() {
        for guess in [1, 32, 150, 1000] {
            for limit in [1, 2, 7, 31, 32, 33, 149, 150, 500, 999, 1000] {
                let (found, trials) = searched(guess, limit);
                assert!(found <= limit && limit - found <= limit / RESOLUTION, "{guess} {limit} {found}");
                assert!(trials <= MAX_TRIALS);
            }
            assert_eq!(searched(guess, 0).0, 0);
        }
        let (_, trials) = searched(150, 150);
        assert!(trials <= 5, "{trials} trials from a right guess");
    }

    #[test]
    fn a_number_that_passed_once_is_not_tried_again() {
        let mut search = Search::from(100, 1000);
        search.add_trial(100, true);
        search.add_trial(125, false);
        search.add_trial(112, true);
        assert_eq!((search.found(), search.next()), (112, Some(118)));
    }
}
