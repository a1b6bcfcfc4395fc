//! Icecast as a relay: how many listeners of a live stream it holds without falling behind (zIO, section 5.3, network
//! to network).

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::icecast::{ALONE, ICECAST, NEEDS, configure};
use super::listeners::Listeners;
use super::source::{RATE_BYTES_PER_S, Source};
use super::stage::{Stage, Unprivileged};
use super::{By, Case, Effort, Point, Work};
use crate::kit::processes::process::raise_descriptor_limit;
use crate::kit::traffic::Load;
use crate::kit::{Failure, Latencies, Result, Running, Server, size};

/// Listeners that the first search begins with.
const FIRST: usize = 32;
/// Upper bound of listeners: as many descriptors again are needed for other things.
const MAX: usize = 4000;
/// How close the search comes to the number: a step is this part of it.
const RESOLUTION: usize = 24;
/// How long listeners may take to join and to come to hear what is being sent, before their trial begins.
const MAX_SETTLE: Duration = Duration::from_secs(2);
/// Length of a trial at least: what a listener may be behind must be little of it.
const MIN_TRIAL: Duration = Duration::from_secs(1);
/// How many times as long as a measurement the search for it may take, within bounds; what was found by then counts.
const SEARCH_PART: u32 = 20;
const MIN_SEARCH: Duration = Duration::from_secs(3);
const MAX_SEARCH: Duration = Duration::from_secs(15);
/// How many times that, until the first number is found.
const SEARCH_FAILURES: u32 = 4;

/// One stream to as many listeners as can be.
pub const CASE: Case = Case {
    name: "icecast-relay",
    about: "Icecast relays a stream of 2 MiB/s of a source of ours; the largest number of listeners that get it at its \
            rate, found by doubling and bisection in limited time, each byte that they get compared",
    paper: "zIO section 5.3, Table 3: blocks of 64 KB relayed by one thread, 1.16 times as many listeners as plain with \
            a kernel-bypass stack",
    needs: NEEDS,
    points,
    remark: "an operation is one second of the stream for one listener, so that op/s is the number of listeners, to \
             about 4 %. The packaged Icecast relays blocks of 1,400 bytes, fixed where it is compiled: nothing is as \
             large as what uncopy elides. An icecast2 built with larger blocks is measured if it comes first on PATH",
    by: By::Runs,
};

fn points(_: Effort) -> Vec<Point> {
    let title = format!("icecast relay, listeners of {}/s", size(RATE_BYTES_PER_S as u64));
    vec![Point::new(title, RATE_BYTES_PER_S as u64, Relay { last: Cell::new(None) })]
}

#[derive(Debug)]
struct Relay {
    /// What the last search found: where the next one begins, whatever the side.
    last: Cell<Option<usize>>,
}

impl Work for Relay {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let user = Unprivileged::of(stage)?;
        let (server, address) = user.undisturbed_server(ICECAST.program, ALONE, configure)?;
        let most = max_listeners().min(MAX);
        let processors = stage.client_processors();
        let source = Source::start(address, processors)?;
        let listeners = Listeners::new(address, processors);
        let relaying = Relaying { listeners, source, server, last: &self.last, most, held: None };
        Ok(Box::new(user.running(relaying)))
    }
}

/// How many listeners there may be: a descriptor of each is here and another in the server, beside some of other kinds.
fn max_listeners() -> usize {
    let descriptors = raise_descriptor_limit().unwrap_or(u64::MAX);
    usize::try_from(descriptors).unwrap_or(usize::MAX).saturating_sub(100)
}

/// Icecast, its source and its listeners.
#[derive(Debug)]
struct Relaying<'a> {
    // Dropped in this order: listeners and source end before the server.
    listeners: Listeners,
    source: Source,
    server: Server,
    last: &'a Cell<Option<usize>>,
    most: usize,
    /// How many listeners the search found, and whether they were held in the measurement too.
    held: Option<(usize, bool)>,
}

impl Relaying<'_> {
    /// Whether `count` listeners are held for `duration`.
    fn holds(&mut self, count: usize, duration: Duration) -> Result<bool> {
        self.source.check()?;
        let held =
            self.listeners.settle(count, MAX_SETTLE, &self.source)? && self.listeners.hear(duration)?.held;
        if !held {
            // Nobody is to be behind because of what came before.
            self.listeners.resize(0)?;
        }
        Ok(held)
    }

    /// The largest number of listeners that are held, to a step; 0 where not even one is.
    fn search(&mut self, duration: Duration) -> Result<usize> {
        let limit = (duration * SEARCH_PART).clamp(MIN_SEARCH, MAX_SEARCH);
        let mut search = Search::from(self.last.get().unwrap_or(FIRST), self.most);
        let begin = Instant::now();
        // A machine that is busy with other things may hold none for a while.
        while begin.elapsed() < if search.found() == 0 { SEARCH_FAILURES * limit } else { limit } {
            let Some(count) = search.next() else { break };
            let held = self.holds(count, duration.max(MIN_TRIAL))?;
            search.tell(count, held);
        }
        Ok(search.found())
    }
}

impl Running for Relaying<'_> {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    fn prepare(&mut self, duration: Duration) -> Result<u64> {
        let before = self.listeners.verified_bytes();
        let found = self.search(duration)?;
        if found == 0 {
            // Any ratio to that would mean nothing.
            return Err(Failure::new("the relay held not even one listener: the machine is busy, try again"));
        }
        self.last.set(Some(found));
        self.held = Some((found, true));
        self.listeners.settle(found, MAX_SETTLE, &self.source)?;
        Ok(self.listeners.verified_bytes() - before)
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "numbers of listeners and seconds"
    )]
    fn load(&mut self, duration: Duration) -> Result<Load> {
        let count = match self.held {
            Some((count, _)) => count,
            // Not searched for: under the profiler, where figures do not count.
            None => FIRST,
        };
        self.listeners.settle(count, MAX_SETTLE, &self.source)?;
        let heard = self.listeners.hear(duration.max(MIN_TRIAL))?;
        self.source.check()?;
        let held_before = self.held.is_none_or(|(_, held)| held);
        self.held = Some((count, held_before && heard.held));
        // Whole operations, in the time that they took: their rate is the number of listeners.
        let exchanges = (heard.elapsed.as_secs_f64() * count as f64).round().max(1.0);
        Ok(Load {
            exchanges: exchanges as u64,
            verified_bytes: heard.verified_bytes,
            elapsed: Duration::from_secs_f64(exchanges / count as f64),
            latencies: Latencies::default(),
        })
    }

    fn notes(&mut self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some((_, false)) = self.held {
            notes.push(
                "in the measurement the relay fell behind with as many listeners as it held before".into(),
            );
        }
        if let Some((count, _)) = self.held.filter(|(count, _)| *count >= self.most) {
            notes.push(format!("it held {count} listeners, and no more were tried"));
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

/// A search for the largest number that holds: by doubling up or down from a guess, then by bisection.
#[derive(Debug)]
struct Search {
    holds: usize,
    /// The smallest number known not to hold; `most + 1` until there is one.
    fails: usize,
    guess: usize,
    most: usize,
    begun: bool,
}

impl Search {
    fn from(guess: usize, most: usize) -> Self {
        Self { holds: 0, fails: most + 1, guess: guess.clamp(1, most), most, begun: false }
    }

    /// The next number to try; `None` when the numbers known are close enough.
    fn next(&self) -> Option<usize> {
        let step = (self.holds / RESOLUTION).max(1);
        match (self.holds, self.fails) {
            _ if !self.begun => Some(self.guess),
            (holds, fails) if fails - holds <= step => None,
            // A quarter more, at the first trials: the guess is most often near.
            (holds, fails) if fails > self.most => {
                let factor = if holds == self.guess { 5 * holds / 4 } else { 2 * holds };
                Some(factor.max(holds + 1).min(self.most))
            }
            (0, fails) => Some((if fails == self.guess { 3 * fails / 4 } else { fails / 2 }).max(1)),
            (holds, fails) => Some(usize::midpoint(holds, fails)),
        }
    }

    fn tell(&mut self, count: usize, held: bool) {
        self.begun = true;
        if held {
            self.holds = self.holds.max(count);
        } else {
            self.fails = self.fails.min(count);
        }
    }

    fn found(&self) -> usize {
        self.holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_TRIALS: usize = 24;

    /// What a search finds where exactly up to `limit` hold, and in how many trials.
    fn searched(guess: usize, limit: usize) -> (usize, usize) {
        let mut search = Search::from(guess, 1000);
        for trials in 0..MAX_TRIALS {
            match search.next() {
                Some(count) => search.tell(count, count <= limit),
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
    fn a_number_that_held_once_is_not_doubted() {
        let mut search = Search::from(100, 1000);
        search.tell(100, true);
        search.tell(125, false);
        search.tell(112, true);
        assert_eq!((search.found(), search.next()), (112, Some(118)));
    }
}
