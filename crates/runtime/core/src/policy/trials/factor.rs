//! One factor: what is known of it, and how often it is tried.
//!
//! ```text
//! Exploring: a trial in every pair at first, more rarely the longer no difference shows
//!    │ finding
//!    ▼
//! Settled: on if it saves; off if it costs or makes no difference
//!    └ a trial in one of 32 pairs, or ever fewer while it stays off; these alone confirm or reverse the finding
//! ```

use super::evidence::Evidence;
use super::finding::{Finding, SHOWN_ALPHA};
use super::report::FactorReport;

/// Number of trials after which every second pair is one; after twice as many, every third, and so on. A
/// trial costs half of the difference, and switching costs time itself (GET of 1 MiB from Redis: 8 % if all
/// pairs are trials). With 16, a program that saves 40 % lost twice as much in its first 12 s.
const EXPLORED_PAIRS: u32 = 4;
/// Minimum number of pairs per trial once [`MIN_LIKELY_PAIRS`] trials look like a loss. The number is higher
/// if needed to lose at most [`MAX_LOSS`] of the time: half of a pair is a slice with the factor, whose
/// effects cost as much again (SET of 128 KiB to Redis lacks the pages that eliding took).
const LIKELY_LOSS_PAIRS_PER_TRIAL: u32 = 6;
const MIN_LIKELY_PAIRS: u32 = 4;
const MAX_LOSS: f64 = 0.01;
/// Number of standard errors from 0 at which a gain or loss is likely: nine of ten cases.
const LIKELY_ERRORS: f64 = 1.3;
/// Minimum number of trials for treating a factor as a loss before a finding, if the mean is
/// [`SURE_ERRORS`] standard errors above 0. After [`DOUBTFUL_PAIRS`] it is one unless it looks like a gain.
/// GET of 256 KiB from Redis costs 6 %, in pairs that scatter by 10 to 40 %: a finding takes minutes.
const SURE_PAIRS: u32 = 6;
const SURE_ERRORS: f64 = 3.0;
const DOUBTFUL_PAIRS: u32 = 12;
/// Maximum number of pairs per trial before a finding; below, the number after one.
const MAX_PAIRS_PER_TRIAL: u32 = 16;
const SETTLED_PAIRS_PER_TRIAL: u32 = 32;
/// Maximum number of times that [`SETTLED_PAIRS_PER_TRIAL`] doubles while the factor stays off.
const MAX_DOUBLINGS: u32 = 6;

/// State of one factor.
#[derive(Clone, Copy, Debug)]
pub struct Factor {
    /// Evidence for the finding, or all pairs so far.
    evidence: Evidence,
    finding: Finding,
    /// Pairs since the finding.
    recent: Evidence,
    doublings: u32,
}

impl Default for Factor {
    fn default() -> Self {
        Self::NEW
    }
}

impl Factor {
    /// A factor that has not been tried, and is on.
    pub const NEW: Self =
        Self { evidence: Evidence::NONE, finding: Finding::Unknown, recent: Evidence::NONE, doublings: 0 };

    /// Whether the factor is on outside trials: by the finding, or by what looks likely.
    #[must_use]
    pub fn is_on(&self) -> bool {
        match self.finding {
            Finding::Unknown => self.evidence.pairs() < MIN_LIKELY_PAIRS || self.is_likely_gain(),
            finding => finding.is_on(),
        }
    }

    /// True if the factor was found to save time.
    #[must_use]
    pub fn is_gain(&self) -> bool {
        self.finding.is_on()
    }

    fn is_likely_gain(&self) -> bool {
        self.evidence.mean() < -LIKELY_ERRORS * self.evidence.standard_error()
    }

    fn is_likely_loss(&self) -> bool {
        self.evidence.pairs() >= MIN_LIKELY_PAIRS
            && self.evidence.mean() > LIKELY_ERRORS * self.evidence.standard_error()
    }

    /// True if the factor was found not to pay, or probably will be.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        match self.finding {
            Finding::Unknown => match self.evidence.pairs() {
                0..SURE_PAIRS => false,
                SURE_PAIRS..DOUBTFUL_PAIRS => {
                    self.evidence.mean() > SURE_ERRORS * self.evidence.standard_error()
                }
                _ => !self.is_likely_gain(),
            },
            finding => !finding.is_on(),
        }
    }

    /// Returns the number of pairs per trial.
    #[must_use]
    pub fn pairs_per_trial(&self) -> u32 {
        match self.finding {
            Finding::Unknown => {
                let pairs_per_trial = (1 + self.evidence.pairs() / EXPLORED_PAIRS).min(MAX_PAIRS_PER_TRIAL);
                if self.is_likely_loss() {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "a small number"
                    )]
                    let pairs_by_loss = (self.evidence.mean() / MAX_LOSS) as u32;
                    pairs_per_trial.max(LIKELY_LOSS_PAIRS_PER_TRIAL).max(pairs_by_loss)
                } else {
                    pairs_per_trial
                }
            }
            Finding::Saves => SETTLED_PAIRS_PER_TRIAL,
            Finding::Costs | Finding::Equal => SETTLED_PAIRS_PER_TRIAL << self.doublings,
        }
    }

    /// Adds the sample of a trial: the logarithm of the cost ratio, with over without. The factor pays if
    /// it saves more than the fraction `min_gain`.
    pub fn add_sample(&mut self, difference: f64, min_gain: f64) {
        if self.finding == Finding::Unknown {
            self.evidence.add(difference);
            self.finding = Finding::of(&self.evidence, min_gain);
        } else {
            self.recent.add(difference);
            match Finding::of(&self.recent, min_gain) {
                Finding::Unknown => return,
                same if same == self.finding => self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS),
                other => (self.finding, self.doublings) = (other, 0),
            }
            self.evidence = core::mem::take(&mut self.recent);
        }
    }

    /// Returns the report on the factor.
    #[must_use]
    pub fn report(&self) -> FactorReport {
        let ratio = libm::exp(self.evidence.mean());
        FactorReport {
            finding: self.finding,
            is_on: self.is_on(),
            pairs: self.evidence.pairs(),
            ratio,
            radius: ratio * self.evidence.radius(SHOWN_ALPHA),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::trials::finding::MIN_PAIRS;

    /// Adds scattered samples with mean `difference` until a finding; returns the number of pairs.
    fn settle(factor: &mut Factor, difference: f64) -> u32 {
        (0..10_000)
            .find(|pair| {
                let scatter = if pair % 2 == 0 { 0.05 } else { -0.05 };
                factor.add_sample(difference + scatter, 0.0);
                factor.finding != Finding::Unknown && factor.recent == Evidence::NONE
            })
            .expect("found")
    }

    #[test]
    fn a_factor_is_on_only_if_it_saves_time() {
        for (difference, finding) in [(-0.3, Finding::Saves), (0.3, Finding::Costs), (0.0, Finding::Equal)] {
            let mut factor = Factor::NEW;
            assert!(factor.is_on());
            let pairs = settle(&mut factor, difference);
            assert_eq!((factor.finding, factor.is_on()), (finding, finding == Finding::Saves));
            assert!(pairs < if finding == Finding::Equal { 1_000 } else { MIN_PAIRS }, "{pairs}");
        }
    }

    #[test]
    fn a_factor_that_stays_off_is_tried_more_rarely_and_returns_when_it_saves() {
        let mut factor = Factor::NEW;
        settle(&mut factor, 0.3);
        let mut shares = vec![factor.pairs_per_trial()];
        for _ in 0..10 {
            settle(&mut factor, 0.3);
            shares.push(factor.pairs_per_trial());
        }
        assert!(shares.is_sorted() && shares[0] == SETTLED_PAIRS_PER_TRIAL, "{shares:?}");
        assert_eq!(shares[10], SETTLED_PAIRS_PER_TRIAL << MAX_DOUBLINGS);
        settle(&mut factor, -0.3);
        assert!(factor.is_on() && factor.pairs_per_trial() == SETTLED_PAIRS_PER_TRIAL);
    }

    #[test]
    fn a_factor_below_its_minimum_gain_is_off() {
        let settled = |min_gain| {
            let mut factor = Factor::NEW;
            (0..1_000).for_each(|pair| factor.add_sample(if pair % 2 == 0 { 0.02 } else { -0.08 }, min_gain));
            factor.finding
        };
        assert_eq!((settled(0.0), settled(0.05)), (Finding::Saves, Finding::Equal));
    }

    #[test]
    fn until_something_is_found_it_is_tried_in_ever_fewer_pairs() {
        let mut factor = Factor::NEW;
        for pair in 0..4 * EXPLORED_PAIRS * MAX_PAIRS_PER_TRIAL {
            assert_eq!(factor.finding, Finding::Unknown);
            factor.add_sample(if pair % 2 == 0 { 0.6 } else { -0.6 }, 0.0);
        }
        assert_eq!(factor.pairs_per_trial(), MAX_PAIRS_PER_TRIAL);
    }
}
