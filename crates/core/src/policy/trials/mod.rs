//! Whether something pays, found out by leaving it out for a moment: switchback trials.
//!
//! What eliding or lending saves and costs comes up in many places, most of them not in our own code: in the caches, in the
//! kernel, in pages that are given back later. So nothing is added up. Time is cut into slices, and the
//! processor time of the whole process for each byte moved is compared between slices with and slices without:
//!
//! ```text
//! pair        │  settle │ measured │  settle │ measured │ …
//! factor 0    │        with        │      without       │      a trial: in random order
//! factor 1    │        with        │        with        │      none: as usual
//! ```
//!
//! Every factor draws its trials and their order by itself, so one pair can be a trial of several: what the others do
//! is noise to each, and without bias. The pieces: [`catalogue`], what is tried; [`evidence`], what pairs say;
//! [`finding`], what follows from it; [`factor`], how often something is tried; [`Trials`], whose turn it is. All of it is arithmetic: clocks and counters are the caller's.

pub mod catalogue;
pub mod evidence;
pub mod factor;
pub mod finding;
#[cfg(test)]
mod simulation;
pub mod standing;

use crate::random::{STEP, splitmix64};
pub use evidence::Evidence;
pub use factor::Factor;
pub use finding::Finding;
pub use standing::{Standing, Standings, TRIALS_BYTES};

/// Factors, a bit of a mask each.
pub const MAX_FACTORS: usize = 32;

/// The factors, and the pair of slices that is under way.
#[derive(Clone, Debug)]
pub struct Trials {
    factors: [Factor; MAX_FACTORS],
    /// Factors that this pair is a trial of.
    tried: u32,
    /// What is done in the two slices of the pair.
    arms: [u32; 2],
    random: u64,
}

impl Default for Trials {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Trials {
    /// Nothing is known; everything is done.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { factors: [Factor::NEW; MAX_FACTORS], tried: 0, arms: [u32::MAX; 2], random: seed }
    }

    /// Another sequence of random choices: for a process that is a copy of another.
    pub const fn reseed(&mut self, seed: u64) {
        self.random = seed;
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(STEP);
        splitmix64(self.random)
    }

    /// Begins the next pair, of factors among `possible` (those that had something to do lately). Whether it is a
    /// trial of any.
    pub fn begin_pair(&mut self, possible: u32) -> bool {
        let usual = self.usual();
        (self.tried, self.arms) = (0, [usual; 2]);
        for index in 0..MAX_FACTORS {
            let bit = 1 << index;
            let drawn = self.random();
            let share = u64::from(self.factors[index].share());
            if possible & bit == 0 || !(drawn >> 32).is_multiple_of(share) {
                continue;
            }
            self.tried |= bit;
            let with = usize::from(drawn & 1 != 0);
            self.arms[with] |= bit;
            self.arms[1 - with] &= !bit;
        }
        self.tried != 0
    }

    /// What is done in a slice of the pair: a bit for each factor.
    #[must_use]
    pub const fn arm(&self, slice: usize) -> u32 {
        self.arms[slice % 2]
    }

    /// What is done outside trials.
    #[must_use]
    pub fn usual(&self) -> u32 {
        self.mask(Factor::is_on)
    }

    /// The factors that were found to pay, a bit each.
    #[must_use]
    pub fn gains(&self) -> u32 {
        self.mask(Factor::is_a_gain)
    }

    /// The factors that do not pay, a bit each.
    #[must_use]
    pub fn losses(&self) -> u32 {
        self.mask(Factor::is_a_loss)
    }

    /// A bit for each factor of which `is_so` holds.
    fn mask(&self, is_so: impl Fn(&Factor) -> bool) -> u32 {
        let those = self.factors.iter().enumerate().filter(|(_, factor)| is_so(factor));
        those.fold(0, |mask, (index, _)| mask | 1 << index)
    }

    /// Ends a pair whose slices cost so much for each byte, in any unit. `concerned`: the factors that had something to
    /// do.
    pub fn end_pair(&mut self, costs: [f64; 2], concerned: u32) {
        let second_over_first = libm::log(costs[1] / costs[0]);
        for (index, factor) in self.factors.iter_mut().enumerate() {
            let bit = 1 << index;
            if self.tried & concerned & bit == 0 {
                continue;
            }
            let is_second = self.arms[1] & bit != 0;
            let difference = if is_second { second_over_first } else { -second_over_first };
            factor.enter(difference, catalogue::min_gain(index));
        }
        self.tried = 0;
    }

    /// What is known of a factor.
    #[must_use]
    pub fn standing(&self, factor: usize) -> Standing {
        self.factors[factor % MAX_FACTORS].standing()
    }
}
