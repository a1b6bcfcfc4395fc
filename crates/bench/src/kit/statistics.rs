//! Medians, quantiles and spreads of samples. Nothing here knows what was measured.

use serde::{Deserialize, Serialize};

use crate::kit::random::Random;

/// From this many samples on, a spread is the middle half of them: the extremes of many samples
/// tell of the rarest disturbance only.
const MANY: usize = 20;

/// Median and spread of samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Median; the mean of the two middle samples where their number is even.
    pub median: f64,
    /// Smallest sample; the first quartile where there are 20 or more.
    pub low: f64,
    /// Largest sample; the third quartile where there are 20 or more.
    pub high: f64,
}

impl Spread {
    /// The spread of `samples`; `None` if there are none or one of them is not a finite number.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle)?;
        let median = if sorted.len() % 2 == 1 { upper } else { f64::midpoint(sorted[middle - 1], upper) };
        let outside = if sorted.len() >= MANY { 0.25 } else { 0.0 };
        Some(Self { median, low: quantile(&sorted, outside)?, high: quantile(&sorted, 1.0 - outside)? })
    }

    /// The same in another unit, of which one of this one has `factor`.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { median: self.median * factor, low: self.low * factor, high: self.high * factor }
    }
}

/// From fewer samples than these, [`difference_of_runs`] tells nothing.
pub const MIN_SAMPLES: usize = 3;
/// Pairs of runs that [`difference_of_runs`] imagines.
const PAIRS: u64 = 400;
/// The part of them that differs by no more than it tells.
const MAX_PAIRS: f64 = 0.9;

/// The largest difference between the medians of two runs, as a part, that is not called too noisy.
pub const NOISE: f64 = 0.05;

/// By how much the medians of two runs like the one that gave `samples` would differ, as a part of the
/// median: in nine of ten pairs by no more than this. `None` for fewer than three samples, and where there
/// is no median to speak of.
///
/// The bootstrap (Efron 1979): a run is imagined by drawing as many samples from those that there are.
/// The same samples always give the same answer.
#[must_use]
pub fn difference_of_runs(samples: &[f64]) -> Option<f64> {
    let median = Spread::of(samples)?.median;
    if samples.len() < MIN_SAMPLES || median == 0.0 {
        return None;
    }
    let len = samples.len() as u64;
    let mut random = Random::new(len);
    let mut run = || {
        #[expect(clippy::cast_possible_truncation, reason = "less than the number of samples")]
        let drawn: Vec<f64> = samples.iter().map(|_| samples[(random.next() % len) as usize]).collect();
        Spread::of(&drawn).map_or(median, |spread| spread.median)
    };
    let mut differences: Vec<f64> = (0..PAIRS).map(|_| ((run() - run()) / median).abs()).collect();
    differences.sort_unstable_by(f64::total_cmp);
    quantile(&differences, MAX_PAIRS)
}

/// The `quantile` (0 to 1) of `sorted` by the nearest rank; `None` if it is empty.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "ranks are small and not negative"
)]
pub fn quantile<T: Copy>(sorted: &[T], quantile: f64) -> Option<T> {
    let rank = (quantile.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_the_middle_of_the_middle_two() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]).expect("finite samples");
        assert_eq!(spread, Spread { median: 2.5, low: 1.0, high: 4.0 });
        assert_eq!(Spread::of(&[7.0]).expect("one sample").median.to_bits(), 7f64.to_bits());
    }

    #[test]
    fn the_spread_of_many_samples_is_their_middle_half() {
        let mut samples: Vec<f64> = (1..=100).map(f64::from).collect();
        samples[0] = -1e9;
        let spread = Spread::of(&samples).expect("finite samples");
        assert_eq!(spread, Spread { median: 50.5, low: 25.0, high: 75.0 });
    }

    #[test]
    fn no_samples_or_meaningless_samples_have_no_spread() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[1.0, f64::NAN]), None);
        assert_eq!(Spread::of(&[f64::INFINITY]), None);
    }

    #[test]
    fn runs_of_equal_samples_do_not_differ_and_those_of_scattered_ones_do() {
        assert_eq!(difference_of_runs(&[1.1; 7]), Some(0.0));
        let steady = [1.20, 1.21, 1.19, 1.20, 1.22, 1.18, 1.20];
        assert!(difference_of_runs(&steady).is_some_and(|part| part > 0.0 && part < 0.03));
        let scattered = [0.5, 1.0, 2.0, 0.7, 1.6, 1.1, 0.9];
        let part = difference_of_runs(&scattered).expect("enough samples");
        assert!(part > 0.2, "{part}");
        assert_eq!(difference_of_runs(&scattered), Some(part), "the same samples give the same answer");
    }

    #[test]
    fn of_too_few_samples_nothing_is_told() {
        for samples in [&[1.0, 2.0][..], &[], &[1.0, f64::NAN, 1.0], &[0.0, 0.0, 0.0]] {
            assert_eq!(difference_of_runs(samples), None, "{samples:?}");
        }
    }

    #[test]
    fn quantiles_are_samples_by_nearest_rank() {
        let sorted: Vec<u32> = (1..=100).collect();
        assert_eq!(quantile(&sorted, 0.5), Some(50));
        assert_eq!(quantile(&sorted, 0.99), Some(99));
        assert_eq!(quantile(&sorted, 1.0), Some(100));
        assert_eq!(quantile(&sorted, 0.0), Some(1));
        assert_eq!(quantile(&sorted, 7.0), Some(100));
        assert_eq!(quantile::<u32>(&[], 0.5), None);
    }
}
