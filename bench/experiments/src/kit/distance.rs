//! Distance between the server's processor and the clients': the round-trip time of a cache line between them.
//!
//! The processors of a virtual machine are threads of its host, which may run two of them on one core for some minutes
//! (50 ns round trip) and on cores without a common cache for the next (300 ns). The distance decides the cost of the
//! copies at the socket: an echo of 512 KiB alternated between 280 µs and 660 µs of processor time, and between 130 µs
//! and 500 µs under uncopy. So only rounds at the most common distance of a comparison are compared.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::kit::processors;

/// Round trips of one measurement, and of each of its parts, of which the fastest counts.
const ROUND_TRIPS: u32 = 300;
const BATCH_ROUND_TRIPS: u32 = 50;
/// A measurement that takes longer was disturbed and is discarded.
const TIMEOUT: Duration = Duration::from_millis(20);
/// Distances that differ by less than this factor are the same.
const SAME_DISTANCE_FACTOR: f64 = 1.6;
/// Maximum number of distances that [`describe`] lists.
const MAX_LISTED: usize = 3;

/// A distance, ns; `None` on a single processor, or if the measurement failed.
pub type Distance = Option<f64>;

/// All distances measured so far, ns.
static MEASURED: Mutex<Vec<f64>> = Mutex::new(Vec::new());

/// Measures the current distance.
#[must_use]
pub fn measure_now() -> Distance {
    let distance = measure()?;
    MEASURED.lock().unwrap_or_else(PoisonError::into_inner).push(distance);
    Some(distance)
}

/// True if both distances are the same. An unknown distance is the same as any other.
#[must_use]
pub fn is_same(one: Distance, other: Distance) -> bool {
    one.zip(other).is_none_or(|(one, other)| one.max(other) < one.min(other) * SAME_DISTANCE_FACTOR)
}

/// Returns the distance that most elements of `all` are the same as.
#[must_use]
pub fn most_common(all: impl Iterator<Item = f64>) -> Distance {
    let mut sorted: Vec<f64> = all.collect();
    sorted.sort_by(f64::total_cmp);
    let of = |least: f64| {
        let begin = sorted.partition_point(|other| *other < least);
        begin..sorted.partition_point(|other| *other < least * SAME_DISTANCE_FACTOR)
    };
    let most = sorted.iter().map(|least| of(*least)).max_by_key(ExactSizeIterator::len)?;
    Some(sorted[most.start + most.len() / 2])
}

/// Returns the distances found, for the machine's description, the most common first.
#[must_use]
pub fn describe() -> Option<String> {
    let mut left = MEASURED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let all = left.len();
    let mut listed = Vec::new();
    while let Some(common) = most_common(left.iter().copied()).filter(|_| listed.len() < MAX_LISTED) {
        let before = left.len();
        left.retain(|other| !is_same(Some(common), Some(*other)));
        listed.push(format!("{common:.0} ns {} %", 100 * (before - left.len()) / all));
    }
    (!listed.is_empty()).then(|| format!("distance of the processors: {}", listed.join(", ")))
}

/// Measures the round trip of a cache line between the server's processor and the clients'.
fn measure() -> Distance {
    let (servers, others) = processors::split(processors::ONE_THREAD)?;
    let line = CacheLine(AtomicU32::new(0));
    let begin = Instant::now();
    let wait_for = |value: u32| {
        while line.0.load(Ordering::Acquire) != value {
            if begin.elapsed() > TIMEOUT {
                return None;
            }
            std::hint::spin_loop();
        }
        Some(())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            processors::bind_thread(Some(others)).ok()?;
            for trip in 0..ROUND_TRIPS {
                wait_for(2 * trip + 1)?;
                line.0.store(2 * trip + 2, Ordering::Release);
            }
            Some(())
        });
        let near = scope.spawn(|| {
            processors::bind_thread(Some(servers)).ok()?;
            let (mut fastest, mut since) = (Duration::MAX, Instant::now());
            for trip in 0..ROUND_TRIPS {
                line.0.store(2 * trip + 1, Ordering::Release);
                wait_for(2 * trip + 2)?;
                if (trip + 1).is_multiple_of(BATCH_ROUND_TRIPS) {
                    fastest = fastest.min(since.elapsed());
                    since = Instant::now();
                }
            }
            Some(fastest.as_secs_f64() * 1e9 / f64::from(BATCH_ROUND_TRIPS))
        });
        near.join().ok().flatten()
    })
}

/// A counter alone in its cache line and in the adjacent line, which is prefetched with it.
#[repr(align(128))]
struct CacheLine(AtomicU32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_common_of_some_distances_is_found() {
        let seen = |near: usize, far: usize| [vec![50.0; near], vec![300.0; far]].concat().into_iter();
        for (near, far, expected) in [(10, 0, 50.0), (70, 30, 50.0), (30, 70, 300.0), (0, 1, 300.0)] {
            assert_eq!(most_common(seen(near, far)), Some(expected), "{near} {far}");
        }
        assert_eq!(most_common(std::iter::empty()), None);
        let spread = (0..100).map(|at| 100.0 + f64::from(at) / 4.0);
        assert!(is_same(most_common(spread), Some(112.0)));
        assert!(is_same(None, Some(1.0)) && !is_same(Some(50.0), Some(81.0)));
    }

    #[test]
    fn it_is_measured_where_there_are_two_processors() {
        let distance = measure();
        assert!(distance.is_none_or(|ns| ns > 5.0 && ns < 100_000.0), "{distance:?}");
        assert!(distance.is_none() || processors::available().len() > 1);
    }
}
