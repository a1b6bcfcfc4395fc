//! Verdict on a ratio: its 95 % interval against a difference that matters, by one rule for all cases.

use std::fmt;

use crate::kit::statistics::Interval;

/// Smallest relative difference that matters.
pub const MIN_DIFFERENCE: f64 = 0.03;
/// Minimum number of rounds for a verdict.
pub const MIN_ROUNDS: usize = 7;
/// Maximum probability that, without any difference, the interval lies wholly beyond a given end.
const CHANCE_PER_END: f64 = 0.025;

/// Verdict on a ratio of processor time per operation, or of another cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The cost is at least 3 % lower.
    Helps,
    /// The cost differs by less than 3 % either way.
    Harmless,
    /// The cost is at least 3 % higher.
    Costs,
    /// Undecided, with the ends of the interval.
    Undecided(f64, f64),
    /// Fewer than [`MIN_ROUNDS`] rounds were kept.
    TooFewRounds,
}

impl Verdict {
    /// Returns the verdict on `ratio`, a cost over plain's, from `rounds` kept rounds.
    #[must_use]
    pub fn of(ratio: Interval, rounds: usize) -> Self {
        let Interval { low, high, .. } = ratio;
        match () {
            () if rounds < MIN_ROUNDS => Self::TooFewRounds,
            () if high < 1.0 - MIN_DIFFERENCE => Self::Helps,
            () if low > 1.0 + MIN_DIFFERENCE => Self::Costs,
            () if low >= 1.0 - MIN_DIFFERENCE && high <= 1.0 + MIN_DIFFERENCE => Self::Harmless,
            () => Self::Undecided(low, high),
        }
    }

    /// Returns the worse of two verdicts on one case; helping in one quantity counts if the other is harmless.
    #[must_use]
    pub const fn worse(self, other: Self) -> Self {
        const fn rank(verdict: Verdict) -> u8 {
            match verdict {
                Verdict::Harmless => 0,
                Verdict::Helps => 1,
                Verdict::Undecided(..) => 2,
                Verdict::TooFewRounds => 3,
                Verdict::Costs => 4,
            }
        }
        if rank(other) > rank(self) { other } else { self }
    }

    /// True if the verdict is that there is a difference.
    #[must_use]
    pub const fn is_difference(self) -> bool {
        matches!(self, Self::Helps | Self::Costs)
    }
}

/// Returns the maximum expected number of false differences among `verdicts` verdicts without any difference.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "few verdicts")]
pub fn expected_false_differences(verdicts: usize) -> f64 {
    2.0 * CHANCE_PER_END * verdicts as f64
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Helps => f.write_str("helps"),
            Self::Harmless => f.write_str("harmless"),
            Self::Costs => f.write_str("costs"),
            Self::Undecided(low, high) => write!(f, "between {low:.2} and {high:.2}"),
            Self::TooFewRounds => f.write_str("too few rounds"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_the_whole_interval_on_its_side_and_enough_rounds() {
        for (low, high, words) in [
            (0.90, 0.96, "helps"),
            (0.90, 0.98, "between 0.90 and 0.98"),
            (0.97, 1.03, "harmless"),
            (0.99, 1.05, "between 0.99 and 1.05"),
            (1.04, 1.20, "costs"),
            (0.50, 2.00, "between 0.50 and 2.00"),
        ] {
            let verdict = |rounds| Verdict::of(Interval { median: 1.0, low, high }, rounds);
            assert_eq!(verdict(MIN_ROUNDS).to_string(), words);
            assert_eq!(verdict(MIN_ROUNDS - 1), Verdict::TooFewRounds);
        }
        assert!((expected_false_differences(40) - 2.0).abs() < 1e-9);
    }
}
