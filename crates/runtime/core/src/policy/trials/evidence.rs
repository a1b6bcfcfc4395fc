//! Statistics of paired slices: a confidence interval that is valid at every moment.
//!
//! A pair is two adjacent slices in random order, one with the factor and one without. The sample is the
//! logarithm of the ratio of their costs. Without a difference it is symmetric, however the costs scatter.
//! A sample is clamped to [`MAX_DIFFERENCE`] from the effect found so far, so that a pair that something
//! else disturbed counts no more than that.
//!
//! Intervals for a single look, when looked at until a difference appears, find one where there is none. So
//! these are a confidence sequence: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central
//! limit theory and asymptotic confidence sequences" (Annals of Statistics 52, 2024), equation 13.

/// Maximum distance of a sample from the effect found so far, as the logarithm of a ratio: twice or half.
/// That effect is the mean moved towards 0 by [`CENTRE_ERRORS`] standard errors. With the distance from 0
/// instead, a saving of 69 % (an echo with 12 copies, where memory is slow) would show as 50 % ± 4.5.
const MAX_DIFFERENCE: f64 = core::f64::consts::LN_2;
const CENTRE_ERRORS: f64 = 5.0;
/// Number of pairs at which the intervals are narrowest.
const TUNED_PAIRS: f64 = 40.0;
/// Assumed scatter, which weighs as much as [`PRIOR_PAIRS`] pairs, because few pairs do not show theirs.
const PRIOR_SCATTER: f64 = 0.2;
const PRIOR_PAIRS: f64 = 3.0;
/// Intervals are widened by the factor 1 + `FEW_PAIRS` / pairs. The theory is for many pairs; this makes
/// decisions after few pairs as reliable as promised (`simulation`), as Student's distribution does.
const FEW_PAIRS: f64 = 7.0;

/// Sample mean and variance of the pairs so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    pairs: f64,
    /// Mean logarithm of the cost ratio, with over without.
    mean: f64,
    /// Sum of squared deviations from the mean.
    squares: f64,
}

impl Evidence {
    /// Evidence before the first pair.
    pub const NONE: Self = Self { pairs: 0.0, mean: 0.0, squares: 0.0 };

    /// Adds a pair's sample: the logarithm of the cost ratio, with over without. NaN is ignored.
    pub fn add(&mut self, difference: f64) {
        if difference.is_nan() {
            return;
        }
        let effect = (self.mean.abs() - CENTRE_ERRORS * self.standard_error()).max(0.0);
        let centre = effect.copysign(self.mean);
        let difference = difference.clamp(centre - MAX_DIFFERENCE, centre + MAX_DIFFERENCE);
        self.pairs += 1.0;
        let from_mean = difference - self.mean;
        self.mean += from_mean / self.pairs;
        self.squares += from_mean * (difference - self.mean);
    }

    /// Returns the number of pairs.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number of pairs")]
    pub const fn pairs(&self) -> u32 {
        self.pairs as u32
    }

    /// Returns the mean logarithm of the cost ratio, with over without: below 0 if the factor saves time.
    #[must_use]
    pub const fn mean(&self) -> f64 {
        self.mean
    }

    fn variance(&self) -> f64 {
        let squares = self.squares + PRIOR_PAIRS * PRIOR_SCATTER * PRIOR_SCATTER;
        squares / (self.pairs - 1.0 + PRIOR_PAIRS).max(1.0)
    }

    /// Returns the standard error of the mean.
    #[must_use]
    pub fn standard_error(&self) -> f64 {
        (self.variance() / self.pairs.max(1.0)).sqrt()
    }

    /// Returns half the width of the interval, which ever misses the true value with probability `alpha` at
    /// most.
    #[must_use]
    pub fn radius(&self, alpha: f64) -> f64 {
        if self.pairs < 1.0 {
            return f64::INFINITY;
        }
        let variance = self.variance();
        let log_alpha = -2.0 * libm::log(alpha);
        let rho_squared = (log_alpha + libm::log(log_alpha) + 1.0) / TUNED_PAIRS;
        let spread = self.pairs * rho_squared + 1.0;
        let boundary =
            2.0 * spread / (self.pairs * self.pairs * rho_squared) * libm::log(spread.sqrt() / alpha);
        (variance * boundary).sqrt() * (1.0 + FEW_PAIRS / self.pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_narrows_around_the_mean_and_nonsense_is_left_out() {
        let mut evidence = Evidence::NONE;
        assert!(evidence.radius(0.05).is_infinite());
        let mut before = f64::INFINITY;
        for pair in 0..400 {
            evidence.add(if pair % 2 == 0 { -0.15 } else { -0.05 });
            evidence.add(f64::NAN);
            if pair % 50 == 49 {
                assert!(evidence.radius(0.05) < before);
                before = evidence.radius(0.05);
            }
        }
        assert_eq!(evidence.pairs(), 400);
        assert!((evidence.mean() + 0.1).abs() < 1e-9 && before < 0.012, "{evidence:?} ± {before}");
        assert!(evidence.radius(0.002) > before);
    }

    #[test]
    fn a_burst_weighs_no_more_than_a_factor_of_two() {
        let mut evidence = Evidence::NONE;
        (0..20).for_each(|pair| evidence.add(if pair % 2 == 0 { 0.3 } else { -0.3 }));
        for burst in [f64::INFINITY, -5.0, 4.0, f64::NEG_INFINITY] {
            evidence.add(burst);
            assert!(evidence.mean().abs() < 0.7 / 20.0, "{evidence:?}");
        }
    }

    #[test]
    fn savings_of_more_than_half_are_measured() {
        let mut evidence = Evidence::NONE;
        (0..16).for_each(|_| evidence.add(-1.2));
        assert!((-1.2..-1.05).contains(&evidence.mean()), "{evidence:?}");
        assert!(evidence.mean() - evidence.radius(0.05) < -1.2, "{evidence:?}");
    }
}
