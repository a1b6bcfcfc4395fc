//! Number of rounds of whole runs: as many as requested, and up to a bound more while their ratios are uncertain.
//!
//! The stopping rule is a precision, not a result: rounds continue while medians are uncertain, so stopping favours no
//! side.

use std::fmt;
use std::str::FromStr;

use crate::kit::comparison::Comparison;
use crate::kit::failure::Result;
use crate::kit::figures::{CPU, RATE};
use crate::kit::progress::Progress;
use crate::kit::sample::Sample;
use crate::kit::side::Side;
use crate::kit::verdict::MIN_ROUNDS;

/// Maximum number of rounds on the command line.
const MAX_ROUNDS: usize = 1000;

/// A fixed number of rounds, or a minimum and a maximum. On the command line: `7`, or `7..25`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    min: usize,
    max: usize,
}

impl Rounds {
    /// Returns a fixed number of rounds, however noisy they are.
    #[must_use]
    pub const fn exactly(rounds: usize) -> Self {
        Self { min: rounds, max: rounds }
    }

    /// Runs the rounds, each of which runs every side of every comparison once: `sample` gets the comparison's point,
    /// the side and the number of the round. The rounds are the outer loop, so that different points can be compared
    /// round by round as well. After the minimum, settled comparisons are skipped.
    pub fn run<P>(
        self,
        comparisons: &mut [Comparison],
        points: &[P],
        progress: &mut Progress,
        mut sample: impl FnMut(&P, Side, usize) -> Result<Sample>,
    ) {
        for round in 0..self.max {
            let noisy = if round < self.min { "" } else { ", because of noise" };
            let mut all_are_settled = true;
            for (comparison, point) in comparisons.iter_mut().zip(points) {
                if round >= self.min && is_settled(comparison) {
                    continue;
                }
                all_are_settled = false;
                let title = comparison.title().to_owned();
                comparison.run_round(|side| {
                    progress.report_round(&title, round, format_args!("{self}{noisy}"), side.name());
                    sample(point, side, round)
                });
            }
            if all_are_settled {
                return;
            }
        }
    }

    /// Runs the rounds of a single comparison, as [`Self::run`] does.
    pub fn run_one(
        self,
        comparison: &mut Comparison,
        progress: &mut Progress,
        mut sample: impl FnMut(Side, usize) -> Result<Sample>,
    ) {
        self.run(std::slice::from_mut(comparison), &[()], progress, |(), side, round| sample(side, round));
    }
}

/// True if more rounds are pointless: the ratios are known precisely enough, or the comparison failed or was skipped.
fn is_settled(comparison: &Comparison) -> bool {
    comparison.obstacle().is_some()
        || comparison.round_count() >= MIN_ROUNDS
            && [RATE, CPU].into_iter().all(|metric| comparison.is_precise(metric))
}

impl From<usize> for Rounds {
    fn from(rounds: usize) -> Self {
        Self::exactly(rounds)
    }
}

/// Displayed as on the command line.
impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max { write!(f, "{}", self.min) } else { write!(f, "{}..{}", self.min, self.max) }
    }
}

impl FromStr for Rounds {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| text.parse().ok().filter(|number| (1..=MAX_ROUNDS).contains(number));
        match (number(min), number(max)) {
            (Some(min), Some(max)) if min <= max => Ok(Self { min, max }),
            _ => Err(format!(
                "it must be a number in 1..={MAX_ROUNDS}, or a minimum and a maximum, as in 7..25"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDES: [Side; 2] = [Side::Plain, Side::Uncopy];

    /// Runs two comparisons: the second gets the rates `gains` in turn, the first a constant one.
    fn run(rounds: Rounds, gains: &[f64]) -> [usize; 2] {
        let mut comparisons = ["steady", "wild"].map(|title| Comparison::new(title, 1, &SIDES));
        let mut calls = [0; 2];
        rounds.run(&mut comparisons, &[0, 1], &mut Progress::new(), |point: &usize, side, round| {
            calls[*point] += 1;
            let wild = side == Side::Uncopy && *point == 1;
            let operations_per_s = if wild { gains[round % gains.len()] } else { 1.0 };
            Ok(Sample {
                operations_per_s: Some(operations_per_s),
                cpu_us: Some(1.0),
                verified_bytes: Some(1),
                ..Sample::default()
            })
        });
        calls.map(|calls| calls / SIDES.len())
    }

    #[test]
    fn noisy_cases_get_more_rounds_up_to_the_maximum_and_others_get_none() {
        let rounds = "8..12".parse().expect("two numbers");
        assert_eq!(run(rounds, &[0.5, 2.0, 0.9, 1.6, 1.1]), [8, 12]);
        assert_eq!(run(rounds, &[1.2]), [8, 8]);
        assert_eq!(run(Rounds::exactly(4), &[0.5, 2.0]), [4, 4]);
        // A settled comparison stops for good: after nine rounds, of which most are alike.
        let late = [0.5, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        let [steady, wild] = run("7..100".parse().expect("two numbers"), &late);
        assert!(steady == 7 && (8..100).contains(&wild), "{wild}");
    }

    #[test]
    fn too_few_rounds_decide_nothing_and_a_failure_ends_the_case() {
        assert_eq!(run("1..20".parse().expect("two numbers"), &[1.0]), [7, 7]);
        let mut comparison = Comparison::new("fails", 1, &SIDES);
        let mut calls = 0;
        let rounds: Rounds = "2..50".parse().expect("two numbers");
        rounds.run_one(&mut comparison, &mut Progress::new(), |_, _| {
            calls += 1;
            Err(crate::kit::failure::Failure::new("no"))
        });
        assert_eq!(calls, 1);
    }

    #[test]
    fn rounds_are_read_as_they_are_written() {
        for text in ["7", "7..25", "1..1000"] {
            assert_eq!(text.parse::<Rounds>().expect("well-formed").to_string(), text);
        }
        assert_eq!("7..7".parse(), Ok(Rounds::exactly(7)));
        for text in ["", "0", "9..7", "..", "7..", "..7", "1..1001", "7...25", "-1", "7..25..30"] {
            assert!(text.parse::<Rounds>().is_err_and(|why| why.contains("7..25")), "{text}");
        }
    }
}
