//! Which inputs are sampled while a program is recorded: received into a segment whose copies are elided, so that
//! faults show what of them the program touches.
//!
//! ```text
//! interval (calls)   ▲  refused: spent more than its share of the processor's time
//!                    │  ×2
//!     FIRST ─────────┼──────────────────────────────
//!                    │  ÷2
//!                    ▼  sampled
//! ```
//!
//! Each site has an interval. When it is over, the next call is sampled if sampling as a whole has not spent more than
//! 1/[`SHARE`] of the processor's time; the interval then halves, else it doubles. It is drawn at random between half
//! of it and one and a half, because programs repeat themselves: every 16th input would always be the first of two.

use crate::page_map::SiteId;
use crate::policy::sites::SITES;
use crate::random::{STEP, splitmix64};
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Of the processor's time, the share that sampling may spend, one in so many: half of the hundredth that it may cost, because
/// what is charged are estimates.
pub const SHARE: i64 = 200;
/// What it may spend before that: a hundred samples, so that short programs have some.
const ADVANCE_NS: i64 = 1_000_000;
const FIRST: u32 = 8;
const MIN: u32 = 4;
const MAX: u32 = 1 << 16;

struct Site {
    /// Calls until the interval is over.
    left: AtomicU32,
    /// 0: [`FIRST`].
    interval: AtomicU32,
}

/// The intervals of all sites, and what was spent.
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
    /// Nothing was sampled, nothing spent.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sites: [const { Site { left: AtomicU32::new(0), interval: AtomicU32::new(0) } }; SITES],
            spent_ns: AtomicI64::new(0),
            random: AtomicU64::new(0),
        }
    }

    fn at(&self, site: SiteId) -> &Site {
        &self.sites[usize::from(site) % SITES]
    }

    /// Whether a call of the site is the one to be sampled; if not, it is one less until then. Threads that ask at once
    /// may both be told so.
    pub fn is_due(&self, site: SiteId) -> bool {
        let left = &self.at(site).left;
        let calls = left.load(Relaxed);
        if calls > 0 {
            left.store(calls - 1, Relaxed);
        }
        calls == 0
    }

    /// Whether the interval of a site is over.
    #[must_use]
    pub fn is_over(&self, site: SiteId) -> bool {
        self.at(site).left.load(Relaxed) == 0
    }

    /// Begins the next interval of a site whose call is due, `used_ns` of the processor's time after the beginning; whether
    /// that call may be sampled.
    pub fn settle(&self, site: SiteId, used_ns: i64) -> bool {
        let site = self.at(site);
        let is_affordable = self.spent_ns.load(Relaxed) <= used_ns / SHARE + ADVANCE_NS;
        let interval = match site.interval.load(Relaxed) {
            0 => FIRST,
            interval if is_affordable => (interval / 2).max(MIN),
            interval => (interval * 2).min(MAX),
        };
        site.interval.store(interval, Relaxed);
        site.left.store(interval / 2 + self.random() % interval, Relaxed);
        is_affordable
    }

    /// Enters what sampling cost.
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

    /// So many calls of a site, `call_ns` each, of which a sampled one costs `sample_ns` more: how many were sampled, and
    /// the share of the time that they took.
    fn run(sampling: &Sampling, site: SiteId, calls: u32, call_ns: i64, sample_ns: i64) -> (u32, f64) {
        let (mut used_ns, mut sampled) = (0, 0);
        for _ in 0..calls {
            used_ns += call_ns;
            if sampling.is_due(site) && sampling.settle(site, used_ns) {
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
        assert!(sampling.is_due(3) && sampling.settle(3, 0));
        let (sampled, _) = run(&Sampling::new(), 3, 100, 20_000, 10_000);
        assert!((8..40).contains(&sampled), "{sampled}");
    }

    #[test]
    fn every_place_of_a_pattern_is_sampled() {
        let sampling = Sampling::new();
        let mut found = [0; 4];
        for call in 0..10_000 {
            if sampling.is_due(7) && sampling.settle(7, i64::MAX / 2) {
                found[call % 4] += 1;
            }
        }
        let (least, most) = (found.iter().min(), found.iter().max());
        assert!(least.zip(most).is_some_and(|(least, most)| least * 2 > *most), "{found:?}");
    }
}
