//! Switchback trials: whether a factor such as eliding pays, found by turning it off for short times.
//!
//! Gains and costs arise in many places, most of them outside our code: in caches, in the kernel, in pages
//! that are given back later. So they are not added up. Time is cut into slices, and the processor time of
//! the whole process per byte moved is compared between slices with and without the factor:
//!
//! ```text
//! pair        │  settle │ measured │  settle │ measured │ …
//! factor 0    │        with        │      without       │      a trial, in random order
//! factor 1    │        with        │        with        │      no trial: as usual
//! ```
//!
//! Each factor draws its trials and their order independently, so a pair can be a trial of several factors.
//! To each factor the others are noise without bias.
//!
//! Factors are listed in [`catalogue`], samples collected in [`evidence`], conclusions drawn in [`finding`],
//! and their frequency chosen in [`factor`]. All of it is arithmetic; clocks and counters are the caller's.

pub mod catalogue;
pub mod evidence;
pub mod factor;
pub mod finding;
pub mod report;
#[cfg(test)]
mod simulation;

use crate::random::{STEP, splitmix64};
pub use evidence::Evidence;
pub use factor::Factor;
pub use finding::Finding;
pub use report::{FactorReport, FactorReports, TRIALS_BYTES};

/// Maximum number of factors, which have a bit each in masks.
pub const MAX_FACTORS: usize = 32;

/// All factors, and the current pair of slices.
#[derive(Clone, Debug)]
pub struct Trials {
    factors: [Factor; MAX_FACTORS],
    /// Factors of which this pair is a trial.
    tried: u32,
    /// Factors that are on in each slice of the pair.
    arms: [u32; 2],
    random: u64,
}

impl Default for Trials {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Trials {
    /// Returns a state without findings, in which every factor is on.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { factors: [Factor::NEW; MAX_FACTORS], tried: 0, arms: [u32::MAX; 2], random: seed }
    }

    /// Restarts the random numbers, for a process that is a copy of another one.
    pub const fn reseed(&mut self, seed: u64) {
        self.random = seed;
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(STEP);
        splitmix64(self.random)
    }

    /// Begins the next pair with trials of factors in `candidates`, those used lately. False if there are none.
    pub fn begin_pair(&mut self, candidates: u32) -> bool {
        let usual = self.enabled();
        (self.tried, self.arms) = (0, [usual; 2]);
        for index in 0..MAX_FACTORS {
            let bit = 1 << index;
            let drawn = self.random();
            let pairs_per_trial = u64::from(self.factors[index].pairs_per_trial());
            if candidates & bit == 0 || !(drawn >> 32).is_multiple_of(pairs_per_trial) {
                continue;
            }
            self.tried |= bit;
            let with = usize::from(drawn & 1 != 0);
            self.arms[with] |= bit;
            self.arms[1 - with] &= !bit;
        }
        self.tried != 0
    }

    /// Returns the factors that are on in a slice of the pair, a bit each.
    #[must_use]
    pub const fn arm(&self, slice: usize) -> u32 {
        self.arms[slice % 2]
    }

    /// Returns the factors that are on outside trials, a bit each.
    #[must_use]
    pub fn enabled(&self) -> u32 {
        self.mask(Factor::is_on)
    }

    /// Returns the factors that were found to save time, a bit each.
    #[must_use]
    pub fn gains(&self) -> u32 {
        self.mask(Factor::is_gain)
    }

    /// Returns the factors that do not pay, a bit each.
    #[must_use]
    pub fn losses(&self) -> u32 {
        self.mask(Factor::is_loss)
    }

    fn mask(&self, predicate: impl Fn(&Factor) -> bool) -> u32 {
        let matching = self.factors.iter().enumerate().filter(|(_, factor)| predicate(factor));
        matching.fold(0, |mask, (index, _)| mask | 1 << index)
    }

    /// Ends a pair with the costs per byte of its slices; `exercised` has the factors that were used in both.
    /// Returns the factors of which the pair was a trial, a bit each.
    pub fn end_pair(&mut self, costs: [f64; 2], exercised: u32) -> u32 {
        let second_over_first = libm::log(costs[1] / costs[0]);
        let tried = core::mem::take(&mut self.tried) & exercised;
        for (index, factor) in self.factors.iter_mut().enumerate() {
            let bit = 1 << index;
            if tried & bit == 0 {
                continue;
            }
            let is_second = self.arms[1] & bit != 0;
            let difference = if is_second { second_over_first } else { -second_over_first };
            factor.add_sample(difference, catalogue::min_gain(index));
        }
        tried
    }

    /// Returns the report on a factor.
    #[must_use]
    pub fn report(&self, factor: usize) -> FactorReport {
        self.factors[factor % MAX_FACTORS].report()
    }
}
