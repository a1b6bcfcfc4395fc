//! Load by this program's own clients: one thread per connection, one exchange at a time, every answer checked.

use std::collections::VecDeque;
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;

use crate::kit::failure::{Failure, Result};
use crate::kit::latencies::Latencies;
use crate::kit::processors::bind_thread;

/// One exchange whose answer was correct.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// Time before the request's first byte was sent.
    pub sent: Instant,
    /// Time after the answer's last byte was received, before the answer was checked.
    pub received: Instant,
    /// Bytes compared with the expected ones.
    pub verified_bytes: u64,
}

/// The result of a period of load.
#[derive(Clone, Debug, Default)]
pub struct LoadResult {
    /// Number of exchanges, all of them correct.
    pub exchanges: u64,
    /// Bytes compared with the expected ones.
    pub verified_bytes: u64,
    /// Time from the common start of all clients to the last answer's last byte, including the clients' own work.
    pub elapsed: Duration,
    /// Time of each exchange, from sending the request's first byte to receiving the answer's last.
    pub latencies: Latencies,
}

impl LoadResult {
    /// Returns the sum of the loads of several connections at the same time.
    #[must_use]
    pub fn merged(loads: Vec<Self>) -> Self {
        let mut all = Self::default();
        for load in loads {
            all.exchanges += load.exchanges;
            all.verified_bytes += load.verified_bytes;
            all.elapsed = all.elapsed.max(load.elapsed);
            all.latencies.add(&load.latencies);
        }
        all
    }
}

impl LoadResult {
    /// Counts a correctly answered exchange, of a load that began at `begin`.
    fn add_exchange(&mut self, begin: Instant, done: Exchange) {
        self.exchanges += 1;
        self.verified_bytes += done.verified_bytes;
        self.latencies.record(done.received.duration_since(done.sent));
        self.elapsed = done.received.duration_since(begin);
    }
}

/// The period of a load, with a common start for all clients. With a start of its own, a client that gets a processor
/// late would miss time in which the others exchanged, and that time would count twice.
#[derive(Clone, Copy, Debug)]
pub struct Period {
    begin: Instant,
    duration: Duration,
}

impl Period {
    /// Returns the period of `duration` from now on.
    #[must_use]
    pub fn from_now(duration: Duration) -> Self {
        Self { begin: Instant::now(), duration }
    }

    fn is_over(&self, load: &LoadResult) -> bool {
        load.exchanges > 0 && load.elapsed >= self.duration
    }
}

/// Exchanges for `period`, at least once. `exchange` gets the number of exchanges done before it.
///
/// # Errors
/// The first failure of `exchange`.
pub fn repeat(period: Period, mut exchange: impl FnMut(u64) -> Result<Exchange>) -> Result<LoadResult> {
    let mut load = LoadResult::default();
    while !period.is_over(&load) {
        load.add_exchange(period.begin, exchange(load.exchanges)?);
    }
    Ok(load)
}

/// Exchanges for `period`, at least once on each of `connections`. Until the period is over, each connection has a
/// request in flight, so that the server is never idle.
///
/// # Errors
/// The first failure of `send` or `receive`.
pub fn in_turn<C>(
    connections: &mut [C],
    period: Period,
    mut send: impl FnMut(&mut C) -> Result<()>,
    mut receive: impl FnMut(&mut C) -> Result<Exchange>,
) -> Result<LoadResult> {
    let mut load = LoadResult::default();
    connections.iter_mut().try_for_each(&mut send)?;
    let mut waiting: VecDeque<&mut C> = connections.iter_mut().collect();
    while let Some(connection) = waiting.pop_front() {
        load.add_exchange(period.begin, receive(connection)?);
        if !period.is_over(&load) {
            send(connection)?;
            waiting.push_back(connection);
        }
    }
    Ok(load)
}

/// Runs `work` for each of `clients` for the same `duration`, each in a thread of its own on `processors`. A single
/// client without processors of its own runs in the calling thread.
///
/// # Errors
/// The first failure of any client.
pub fn in_parallel<C: Send>(
    clients: &mut [C],
    processors: Option<CpuSet>,
    duration: Duration,
    work: impl Fn(&mut C, Period) -> Result<LoadResult> + Sync,
) -> Result<LoadResult> {
    if let ([client], None) = (&mut *clients, processors) {
        return work(client, Period::from_now(duration));
    }
    let (together, period) = (Barrier::new(clients.len()), OnceLock::new());
    let loads: Vec<Result<LoadResult>> = std::thread::scope(|scope| {
        let run = |client| {
            let (together, period, work) = (&together, &period, &work);
            scope.spawn(move || {
                let bound = bind_thread(processors);
                together.wait();
                let period = *period.get_or_init(|| Period::from_now(duration));
                bound.and_then(|()| work(client, period))
            })
        };
        let threads: Vec<_> = clients.iter_mut().map(run).collect();
        let lost = |_| Err(Failure::new("a client's thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
    });
    loads.into_iter().collect::<Result<_>>().map(LoadResult::merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_of_several_connections_are_added_and_a_failure_of_one_is_reported() {
        let load = |exchanges: u64, ms| LoadResult {
            exchanges,
            verified_bytes: 10 * exchanges,
            elapsed: Duration::from_millis(ms),
            latencies: (0..exchanges).map(|at| Duration::from_nanos(at * ms)).collect(),
        };
        let second = Duration::from_secs(1);
        let all =
            in_parallel(&mut [(2, 5), (3, 4)], None, second, |(exchanges, ms), _| Ok(load(*exchanges, *ms)));
        let all = all.expect("no failure");
        assert_eq!((all.exchanges, all.verified_bytes, all.elapsed), (5, 50, Duration::from_millis(5)));
        let us = [0.2, 0.4, 0.6, 0.8, 1.0].map(|part| all.latencies.quantile_us(part));
        assert_eq!((all.latencies.len(), us), (5, [0.0, 0.0, 0.004, 0.005, 0.008].map(Some)));
        let fails = |at: &mut u64, _| if *at == 2 { Err(Failure::new("gone")) } else { Ok(load(1, 1)) };
        assert_eq!(
            in_parallel(&mut [1, 2, 3], None, second, fails).expect_err("one failed"),
            Failure::new("gone")
        );
    }

    #[test]
    fn every_answer_to_a_request_under_way_is_counted() {
        let mut connections = [0, 0, 0];
        let now = Instant::now();
        let send = |under_way: &mut i32| {
            *under_way += 1;
            Ok(())
        };
        let receive = |under_way: &mut i32| {
            *under_way -= 1;
            Ok(Exchange { sent: now, received: Instant::now(), verified_bytes: 1 })
        };
        let load = in_turn(&mut connections, Period::from_now(Duration::from_millis(1)), send, receive)
            .expect("right");
        // Each connection is asked once at least, however short the period.
        assert!(load.exchanges >= 3 && load.verified_bytes == load.exchanges);
        assert_eq!(connections, [0; 3]);
    }

    #[test]
    fn clients_that_had_to_wait_for_one_another_do_not_count_that_time_twice() {
        let (turn, pause) = (std::sync::Mutex::new(()), Duration::from_millis(5));
        let load = in_parallel(&mut [(), (), ()], None, Duration::ZERO, |(), period| {
            let _turn = turn.lock();
            repeat(period, |_| {
                let sent = Instant::now();
                std::thread::sleep(pause);
                Ok(Exchange { sent, received: Instant::now(), verified_bytes: 1 })
            })
        });
        let load = load.expect("right");
        assert!(load.exchanges == 3 && load.elapsed >= 3 * pause, "{load:?}");
    }

    #[test]
    fn a_load_has_at_least_one_exchange_and_ends_at_a_wrong_answer() {
        let now = Instant::now();
        let right = |_| Ok(Exchange { sent: now, received: Instant::now(), verified_bytes: 7 });
        let load = repeat(Period::from_now(Duration::ZERO), right).expect("right");
        assert_eq!((load.exchanges, load.verified_bytes, load.latencies.len()), (1, 7, 1));
        let wrong = |number| if number == 3 { Err(Failure::new("wrong")) } else { right(number) };
        assert_eq!(
            repeat(Period::from_now(Duration::from_secs(60)), wrong).expect_err("wrong"),
            Failure::new("wrong")
        );
    }
}
