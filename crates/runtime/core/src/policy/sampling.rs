//! Choice of inputs that are sampled while a program is recorded. A sampled input is received into a
//! segment and its copies are elided, so that faults show which pages the program touches.
//!
//! ```text
//! interval (calls)   ▲  refused: sampling has used up its share of the processor's time
//!                    │  ×2
//!  FIRST_INTERVAL ───┼──────────────────────────────
//!                    │  ÷2
//!                    ▼  sampled
//! ```
//!
//! Each site has an interval. The first call after it is sampled, provided that sampling as a whole has
//! used at most 1/[`SHARE`] of the processor's time. The interval then halves, else it doubles. Its length
//! is drawn between half and one and a half times the nominal one: programs repeat themselves, and every
//! 16th input might always be the first of two.

use crate::page_map::SiteId;
use crate::policy::sites::SITES;
use crate::random::{STEP, splitmix64};
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Divisor of the processor's time that sampling may use: half of one percent, as charges are estimates.
pub const SHARE: i64 = 200;
/// Allowance on top of that, ns: a hundred samples, so that short programs have some.
const ALLOWANCE_NS: i64 = 1_000_000;
const FIRST_INTERVAL: u32 = 8;
const MIN_INTERVAL: u32 = 4;
const MAX_INTERVAL: u32 = 1 << 16;

struct Site {
    calls_left: AtomicU32,
    /// Nominal length in calls; 0 stands for [`FIRST_INTERVAL`].
    interval: AtomicU32,
}

/// Intervals of all sites, and the time spent on samples.
pub struct Sampling {
    sites: [Site; SITES],
    spent_ns: AtomicI64,
    random: AtomicU64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self::new()
    }
}

impl Sampling {
    /// Returns the initial state.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sites: [const { Site { calls_left: AtomicU32::new(0), interval: AtomicU32::new(0) } }; SITES],
            spent_ns: AtomicI64::new(0),
            random: AtomicU64::new(0),
        }
    }

    fn slot(&self, site: SiteId) -> &Site {
        &self.sites[usize::from(site) % SITES]
    }

    /// Whether to sample this call of the site; else counts it. Concurrent calls may both be sampled.
    pub fn is_due(&self, site: SiteId) -> bool {
        let calls_left = &self.slot(site).calls_left;
        let calls = calls_left.load(Relaxed);
        if calls > 0 {
            calls_left.store(calls - 1, Relaxed);
        }
        calls == 0
    }

    /// Whether the interval of a site is over.
    #[must_use]
    pub fn is_over(&self, site: SiteId) -> bool {
        self.slot(site).calls_left.load(Relaxed) == 0
    }

    /// Starts the site's next interval. Returns whether the call that is due may be sampled, given that the
    /// process has used `used_ns` of processor time.
    pub fn start_interval(&self, site: SiteId, used_ns: i64) -> bool {
        let site = self.slot(site);
        let is_affordable = self.spent_ns.load(Relaxed) <= used_ns / SHARE + ALLOWANCE_NS;
        let interval = match site.interval.load(Relaxed) {
            0 => FIRST_INTERVAL,
            interval if is_affordable => (interval / 2).max(MIN_INTERVAL),
            interval => (interval * 2).min(MAX_INTERVAL),
        };
        site.interval.store(interval, Relaxed);
        site.calls_left.store(interval / 2 + self.random() % interval, Relaxed);
        is_affordable
    }

    /// Adds the cost of sampling.
    pub fn spend(&self, ns: i64) {
        self.spent_ns.fetch_add(ns, Relaxed);
    }

    #[allow(clippy::cast_possible_truncation, reason = "any bits are as random as all")]
    fn random(&self) -> u32 {
        splitmix64(self.random.fetch_add(STEP, Relaxed).wrapping_add(STEP)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes `calls` calls of `call_ns`, where a sampled one takes `sample_ns` more. Returns the number of
    /// samples and their share of the time.
    fn run(sampling: &Sampling, site: SiteId, calls: u32, call_ns: i64, sample_ns: i64) -> (u32, f64) {
        let (mut used_ns, mut sampled) = (0, 0);
        for _ in 0..calls {
            used_ns += call_ns;
            if sampling.is_due(site) && sampling.start_interval(site, used_ns) {
                sampling.spend(sample_ns);
                used_ns += sample_ns;
                sampled += 1;
            }
        }
        (sampled, (i64::from(sampled) * sample_ns) as f64 / used_ns as f64)
    }

    #[test]
    fn less_than_a_hundredth_of_the_time_is_spent_whatever_a_sample_costs() {
        for sample_ns in [2_000, 20_000, 200_000, 2_000_000] {
            let (sampled, share) = run(&Sampling::new(), 5, 200_000, 20_000, sample_ns);
            assert!(share < 0.007, "{sample_ns} ns: {share}");
            assert!(share > 0.002 || sampled > 20_000, "{sample_ns} ns: {share}");
        }
    }

    #[test]
    fn the_first_call_is_sampled_and_short_programs_have_some() {
        let sampling = Sampling::new();
        assert!(sampling.is_due(3) && sampling.start_interval(3, 0));
        let (sampled, _) = run(&Sampling::new(), 3, 100, 20_000, 10_000);
        assert!((8..40).contains(&sampled), "{sampled}");
    }

    #[test]
    fn every_place_of_a_pattern_is_sampled() {
        let sampling = Sampling::new();
        let mut found = [0; 4];
        for call in 0..10_000 {
            if sampling.is_due(7) && sampling.start_interval(7, i64::MAX / 2) {
                found[call % 4] += 1;
            }
        }
        let (least, most) = (found.iter().min(), found.iter().max());
        assert!(least.zip(most).is_some_and(|(least, most)| least * 2 > *most), "{found:?}");
    }
}
