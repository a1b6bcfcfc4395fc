//! One thing that is done or left out: what is known of it, and how often it is tried.
//!
//! ```text
//!              ┌────────── tried in every pair, ever more rarely while nothing shows ──────────┐
//!   Exploring ─┤                                                                               │
//!              └─► Settled: on, where it saves · off, where it costs or makes no difference ───┘
//!                     tried in one pair of 32, or of ever more while it stays off; what these pairs say by themselves
//!                     confirms the decision, or turns it round
//! ```

use super::evidence::Evidence;
use super::finding::{Finding, SHOWN_ALPHA};
use super::standing::Standing;

/// At first every pair is a trial, after so many trials every second, after twice as many every third: a trial costs half of
/// the difference, whichever slice is the better, and changing over something itself (GET of 1 MiB from Redis: 8 % of the
/// time of pairs that follow one another). With 16 instead, the first 12 s cost a program that saves 40 % twice as much.
const EXPLORED_PAIRS: u32 = 4;
/// Where it looks like a loss after [`LEANING_PAIRS`], one pair in so many at most is, and as few as it takes to lose no more
/// than this part of the time: half of each pair is a slice with it, and what it leaves behind costs as much again (pages that
/// eliding took are missing afterwards: SET of 128 KiB to Redis).
const LEANING_SHARE: u32 = 6;
const LEANING_PAIRS: u32 = 4;
const MAX_LOSS: f64 = 0.01;
/// What looks like a loss is one in nine of ten cases: standard errors of the mean.
const LEANING_ERRORS: f64 = 1.3;
/// When it is taken for one, before anything is decided.
const SURE_PAIRS: u32 = 6;
const SURE_ERRORS: f64 = 3.0;
/// One pair in so many remains, and in so many once it is settled.
const MAX_EXPLORED_SHARE: u32 = 16;
const SETTLED_SHARE: u32 = 32;
/// How often the second doubles at most for what stays off.
const MAX_DOUBLINGS: u32 = 6;

/// One thing that is done or left out.
#[derive(Clone, Copy, Debug)]
pub struct Factor {
    /// What the decision rests on; while there is none, all pairs so far.
    evidence: Evidence,
    finding: Finding,
    /// Pairs since the decision.
    recent: Evidence,
    doublings: u32,
}

impl Default for Factor {
    fn default() -> Self {
        Self::NEW
    }
}

impl Factor {
    /// Not tried yet; done.
    pub const NEW: Self =
        Self { evidence: Evidence::NONE, finding: Finding::Unknown, recent: Evidence::NONE, doublings: 0 };

    /// Whether it is done outside trials: what has been found, else what looks better so far.
    #[must_use]
    pub fn is_on(&self) -> bool {
        match self.finding {
            Finding::Unknown => self.evidence.pairs() < LEANING_PAIRS || self.evidence.mean() <= 0.0,
            finding => finding.is_on(),
        }
    }

    /// Whether it was found to pay.
    #[must_use]
    pub fn is_a_gain(&self) -> bool {
        self.finding.is_on()
    }

    fn looks_like_a_loss(&self) -> bool {
        self.evidence.pairs() >= LEANING_PAIRS
            && self.evidence.mean() > LEANING_ERRORS * self.evidence.standard_error()
    }

    /// Whether it was found not to pay, or is most likely to be: the interval of three standard errors is above 0.
    #[must_use]
    pub fn is_a_loss(&self) -> bool {
        let errors = if self.evidence.pairs() < SURE_PAIRS { f64::INFINITY } else { SURE_ERRORS };
        match self.finding {
            Finding::Unknown => self.evidence.mean() > errors * self.evidence.standard_error(),
            finding => !finding.is_on(),
        }
    }

    /// One pair of slices in so many is a trial.
    #[must_use]
    pub fn share(&self) -> u32 {
        match self.finding {
            Finding::Unknown => {
                let share = (1 + self.evidence.pairs() / EXPLORED_PAIRS).min(MAX_EXPLORED_SHARE);
                if self.looks_like_a_loss() {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "a small number"
                    )]
                    let share_by_loss = (self.evidence.mean() / MAX_LOSS) as u32;
                    share.max(LEANING_SHARE).max(share_by_loss)
                } else {
                    share
                }
            }
            Finding::Saves => SETTLED_SHARE,
            Finding::Costs | Finding::Equal => SETTLED_SHARE << self.doublings,
        }
    }

    /// Takes a trial into account: the logarithm of the ratio of its slices' costs, with over without; it is worth it
    /// if it saves more than `min_gain`, as a part.
    pub fn enter(&mut self, difference: f64, min_gain: f64) {
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

    /// What is told of it.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let ratio = libm::exp(self.evidence.mean());
        Standing {
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

    /// Enters trials of a difference that scatters until something is found.
    fn settle(factor: &mut Factor, difference: f64) -> u32 {
        (0..10_000)
            .find(|pair| {
                let scatter = if pair % 2 == 0 { 0.05 } else { -0.05 };
                factor.enter(difference + scatter, 0.0);
                factor.finding != Finding::Unknown && factor.recent == Evidence::NONE
            })
            .expect("found")
    }

    #[test]
    fn what_saves_is_on_and_what_costs_or_makes_no_difference_is_off() {
        for (difference, finding) in [(-0.3, Finding::Saves), (0.3, Finding::Costs), (0.0, Finding::Equal)] {
            let mut factor = Factor::NEW;
            assert!(factor.is_on());
            let pairs = settle(&mut factor, difference);
            assert_eq!((factor.finding, factor.is_on()), (finding, finding == Finding::Saves));
            assert!(pairs < if finding == Finding::Equal { 1_000 } else { MIN_PAIRS }, "{pairs}");
        }
    }

    #[test]
    fn what_stays_off_is_tried_ever_more_rarely_and_comes_back_when_it_saves() {
        let mut factor = Factor::NEW;
        settle(&mut factor, 0.3);
        let mut shares = vec![factor.share()];
        for _ in 0..10 {
            settle(&mut factor, 0.3);
            shares.push(factor.share());
        }
        assert!(shares.is_sorted() && shares[0] == SETTLED_SHARE, "{shares:?}");
        assert_eq!(shares[10], SETTLED_SHARE << MAX_DOUBLINGS);
        settle(&mut factor, -0.3);
        assert!(factor.is_on() && factor.share() == SETTLED_SHARE);
    }

    #[test]
    fn what_saves_less_than_it_must_is_off() {
        let settled = |min_gain| {
            let mut factor = Factor::NEW;
            (0..1_000).for_each(|pair| factor.enter(if pair % 2 == 0 { 0.02 } else { -0.08 }, min_gain));
            factor.finding
        };
        assert_eq!((settled(0.0), settled(0.05)), (Finding::Saves, Finding::Equal));
    }

    #[test]
    fn until_something_is_found_it_is_tried_in_ever_fewer_pairs() {
        let mut factor = Factor::NEW;
        for pair in 0..4 * EXPLORED_PAIRS * MAX_EXPLORED_SHARE {
            assert_eq!(factor.finding, Finding::Unknown);
            factor.enter(if pair % 2 == 0 { 0.6 } else { -0.6 }, 0.0);
        }
        assert_eq!(factor.share(), MAX_EXPLORED_SHARE);
    }
}
