//! Medians with their 95 % intervals, independent of the quantity measured.

use std::fmt;

use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};

/// Probability that an interval misses the true value on a given end.
const TAIL: f64 = 0.025;
/// Variance of the median of many normally distributed values, as a multiple of the variance of their mean.
const MEDIAN_VARIANCE: f64 = std::f64::consts::FRAC_PI_2;

/// Median and the ends of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Median of the values; of grouped values, the mean of the groups' medians (the geometric mean for ratios).
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Interval {
    /// Returns the interval of the median of independent `values` of any distribution: two order statistics, by the
    /// sign test. With fewer than six values, the smallest and the largest, which cover less than 95 %. `None` for no
    /// values or non-finite ones.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let median = middle(&sorted)?;
        // The number of values below the true median is binomially distributed.
        let below = Binomial::new(0.5, sorted.len() as u64).ok()?;
        let outside = (0..sorted.len() / 2).take_while(|count| below.cdf(*count as u64) <= TAIL).count();
        let cut = outside.saturating_sub(1);
        Some(Self { median, low: sorted[cut], high: sorted[sorted.len() - 1 - cut] })
    }

    /// Returns the interval for grouped values, where those of one group may be correlated (the rounds of one
    /// process): it predicts the median of a further group. `None` as in [`Interval::of`]; empty groups are left out.
    ///
    /// Student's t on the groups' medians. Where these differ by less than the variance within the groups predicts,
    /// the variance comes from the latter, with its degrees of freedom: five processes that do not differ count as
    /// more than five values. (A bootstrap over five groups covers the true value in only 85 of 100 cases.)
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "few values")]
    pub fn of_groups(groups: &[Vec<f64>]) -> Option<Self> {
        let groups: Vec<&Vec<f64>> = groups.iter().filter(|values| !values.is_empty()).collect();
        if let [values] = groups[..] {
            return Self::of(values);
        }
        let medians =
            groups.iter().map(|values| Some(Self::of(values)?.median)).collect::<Option<Vec<_>>>()?;
        let count = medians.len() as f64;
        let mean = medians.iter().sum::<f64>() / count;
        let between = sum_of_squares(&medians) / (count - 1.0);
        let freedom = groups.iter().map(|values| values.len() - 1).sum::<usize>() as f64;
        let of_values = groups.iter().map(|values| sum_of_squares(values)).sum::<f64>() / freedom;
        // Variance of a group's median: that of the value for a single one, π / 2 times that of the mean for many.
        let of_median =
            |values: &Vec<f64>| of_values * MEDIAN_VARIANCE / (values.len() as f64 + MEDIAN_VARIANCE - 1.0);
        let within = groups.iter().map(|values| of_median(values)).sum::<f64>() / count;
        let (variance, freedom) =
            if freedom > 0.0 && within > between { (within, freedom) } else { (between, count - 1.0) };
        let students = StudentsT::new(0.0, 1.0, freedom).ok()?;
        let half = students.inverse_cdf(1.0 - TAIL) * (variance / count).sqrt();
        (mean + half).is_finite().then_some(Self { median: mean, low: mean - half, high: mean + half })
    }

    /// [`Self::of_groups`] for ratios, on a logarithmic scale: twice as much and half as much cancel out.
    #[must_use]
    pub fn of_ratios(groups: &[Vec<f64>]) -> Option<Self> {
        let logarithms: Vec<Vec<f64>> =
            groups.iter().map(|ratios| ratios.iter().map(|ratio| ratio.ln()).collect()).collect();
        let Self { median, low, high } = Self::of_groups(&logarithms)?;
        Some(Self { median: median.exp(), low: low.exp(), high: high.exp() })
    }

    /// Returns the ratio over the best of `rivals`, without favouring the luckiest of equal ones: each process is
    /// compared with the rival that is cheapest in all other processes, so the measurement that picks a rival is not
    /// the one it is compared by. `None` with fewer than [`Self::MIN_PROCESSES_FOR_BEST`] processes or missing costs.
    #[must_use]
    pub fn over_best(rivals: &[Rival]) -> Option<Self> {
        let processes = rivals.first()?.costs.len();
        let is_complete = |rival: &Rival| rival.costs.len() == processes && rival.ratios.len() == processes;
        if processes < Self::MIN_PROCESSES_FOR_BEST || !rivals.iter().all(is_complete) {
            return None;
        }
        let cost_in_others = |rival: &Rival, at: usize| {
            let others = rival.costs.iter().enumerate().filter(|(other, _)| *other != at);
            others.map(|(_, cost)| cost.ln()).sum::<f64>()
        };
        let of_process = |at: usize| {
            let best = rivals
                .iter()
                .min_by(|one, other| cost_in_others(one, at).total_cmp(&cost_in_others(other, at)))?;
            Some(vec![best.ratios[at]])
        };
        let picked = Self::of_ratios(&(0..processes).map(of_process).collect::<Option<Vec<_>>>()?)?;
        // Each pick depends on all processes, which makes the picked ratios more alike than they are (simulated
        // below). So the interval must be at least as wide as that of the rival that is best overall.
        let total = |rival: &Rival| rival.costs.iter().map(|cost| cost.ln()).sum::<f64>();
        let best = rivals.iter().min_by(|one, other| total(one).total_cmp(&total(other)))?;
        let groups: Vec<_> = best.ratios.iter().map(|ratio| vec![*ratio]).collect();
        let factor = Self::of_ratios(&groups)?.half_width().max(picked.half_width()) + 1.0;
        Some(Self { low: picked.median / factor, high: picked.median * factor, ..picked })
    }

    /// Minimum number of processes for [`Self::over_best`].
    const MIN_PROCESSES_FOR_BEST: usize = 3;

    /// Returns half the width of a ratio's interval, as a part of the ratio.
    #[must_use]
    pub fn half_width(&self) -> f64 {
        (self.high / self.low).sqrt() - 1.0
    }

    /// Returns the interval multiplied by `factor`, to convert units.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { median: self.median * factor, low: self.low * factor, high: self.high * factor }
    }
}

/// An alternative to the compared side, with one value for each process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rival {
    /// Cost of the alternative, relative to a reference that is the same for all rivals.
    pub costs: Vec<f64>,
    /// Cost of the compared side, over that of the alternative.
    pub ratios: Vec<f64>,
}

/// Displayed as in `1.23 [1.19–1.27]`.
impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} [{:.2}–{:.2}]", self.median, self.low, self.high)
    }
}

/// Returns the median of `sorted`: the mean of the two middle values for an even number of values.
fn middle(sorted: &[f64]) -> Option<f64> {
    let at = sorted.len() / 2;
    let upper = *sorted.get(at)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(sorted[at - 1], upper) })
}

/// Returns the median of `values`; `None` as in [`Interval::of`].
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    Some(Interval::of(values)?.median)
}

/// Returns the sum of the squared differences from the mean.
#[expect(clippy::cast_precision_loss, reason = "few values")]
fn sum_of_squares(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter().map(|value| (value - mean).powi(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::random::Random;

    /// Noise of rounds: a relative `normal` part, and now and then a round that takes three times as long.
    struct Noise {
        random: Random,
        normal: f64,
        outliers: f64,
    }

    impl Noise {
        fn uniform(&mut self) -> f64 {
            ((self.random.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        }

        /// Returns a standard normal number (Box and Muller 1958).
        fn normal(&mut self) -> f64 {
            (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
        }

        fn cost(&mut self) -> f64 {
            let slow = if self.uniform() < self.outliers { 3.0 } else { 1.0 };
            (self.normal() * self.normal).exp() * slow
        }

        /// Returns ratios without effect: five processes that differ by `spread`, with four connections that differ by
        /// `connection`, of five rounds.
        fn processes(&mut self, spread: f64, connection: f64) -> Vec<Vec<Vec<f64>>> {
            let mut processes = vec![vec![Vec::new(); 4]; 5];
            for connections in &mut processes {
                let process = self.normal() * spread;
                for rounds in connections {
                    let level = (process + self.normal() * connection).exp();
                    rounds.extend((0..5).map(|_| level * self.cost() / self.cost()));
                }
            }
            processes
        }
    }

    fn pooled(processes: &[Vec<Vec<f64>>]) -> Interval {
        let connections =
            |process: &Vec<Vec<f64>>| process.iter().filter_map(|rounds| median(rounds)).collect();
        Interval::of_ratios(&processes.iter().map(connections).collect::<Vec<_>>()).expect("finite ratios")
    }

    #[test]
    fn intervals_hold_the_truth_in_95_of_100_cases_and_few_verdicts_without_effect_are_wrong() {
        const RUNS: u32 = 1000;
        for (noise, outliers) in [(0.05, 0.0), (0.2, 0.0), (0.05, 0.1), (0.2, 0.1)] {
            for (spread, connection) in [(0.0, 0.0), (0.0, 0.05), (0.01, 0.0), (0.03, 0.05), (0.1, 0.1)] {
                let mut source = Noise { random: Random::new(7), normal: noise, outliers };
                let (mut held, mut wrong, mut held_one) = (0, 0, 0);
                for _ in 0..RUNS {
                    let processes = source.processes(spread, connection);
                    let Interval { low, high, .. } = pooled(&processes);
                    held += u32::from(low <= 1.0 && high >= 1.0);
                    wrong += u32::from(low > 1.03 || high < 0.97);
                    if spread == 0.0 {
                        let Interval { low, high, .. } =
                            Interval::of_ratios(&processes[0]).expect("finite ratios");
                        held_one += u32::from(low <= 1.0 && high >= 1.0);
                    }
                }
                let what = format!("noise {noise}, {outliers}; spread {spread}, {connection}");
                assert!(held >= RUNS * 93 / 100, "{held} of {RUNS} hold it: {what}");
                assert!(spread > 0.0 || held_one >= RUNS * 93 / 100, "{held_one} of one process: {what}");
                assert!(wrong <= RUNS * 5 / 100, "{wrong} wrong verdicts of {RUNS}: {what}");
            }
        }
    }

    #[test]
    fn equal_sides_compare_as_equal_whichever_rival_was_lucky() {
        const RUNS: u32 = 400;
        let mut source = Noise { random: Random::new(11), normal: 0.05, outliers: 0.0 };
        let (mut picked, mut naive, mut held) = (0.0, 0.0, 0);
        for _ in 0..RUNS {
            let subject: Vec<f64> = (0..5).map(|_| source.cost()).collect();
            let mut rival = || {
                let costs: Vec<f64> = (0..5).map(|_| source.cost()).collect();
                let ratios = subject.iter().zip(&costs).map(|(mine, its)| mine / its).collect();
                Rival { costs, ratios }
            };
            let rivals: Vec<Rival> = (0..5).map(|_| rival()).collect();
            let found = Interval::over_best(&rivals).expect("five processes");
            let of = |rival: &Rival| {
                Interval::of_ratios(std::slice::from_ref(&rival.ratios)).expect("ratios").median
            };
            picked += found.median.ln() / f64::from(RUNS);
            naive += rivals.iter().map(of).fold(0.0, f64::max).ln() / f64::from(RUNS);
            held += u32::from(found.low <= 1.0 && found.high >= 1.0);
        }
        assert!(
            naive > 0.02 && picked.abs() < 0.005,
            "{naive} by the same processes, {picked} by the others"
        );
        assert!(held >= RUNS * 93 / 100, "{held} of {RUNS}");
        let (few, part) = (vec![1.0; 2], Rival { costs: vec![1.0; 3], ratios: vec![1.0; 2] });
        assert_eq!(Interval::over_best(&[Rival { costs: few.clone(), ratios: few }]), None);
        assert_eq!((Interval::over_best(&[part]), Interval::over_best(&[])), (None, None));
    }

    #[test]
    fn the_interval_of_few_values_is_all_of_them_and_of_many_the_middle_ones() {
        let interval = Interval::of(&[4.0, 1.0, 3.0, 2.0]).expect("finite values");
        assert_eq!(interval, Interval { median: 2.5, low: 1.0, high: 4.0 });
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        // Ranks from the tables of the sign test.
        for (count, low, high) in
            [(5, 1.0, 5.0), (8, 1.0, 8.0), (9, 2.0, 8.0), (25, 8.0, 18.0), (100, 40.0, 61.0)]
        {
            let interval = Interval::of(&values[..count]).expect("finite values");
            assert_eq!((interval.low, interval.high), (low, high), "{count}");
        }
    }

    #[test]
    fn a_single_group_is_its_values_and_a_group_without_any_is_none() {
        let values = vec![1.0, 2.0, 4.0, 2.0, 3.0, 1.5, 2.5];
        assert_eq!(Interval::of_groups(&[values.clone(), vec![]]), Interval::of(&values));
        let twice = Interval::of_ratios(&[vec![2.0], vec![0.5]]).expect("finite values");
        assert!((twice.median - 1.0).abs() < 1e-9 && twice.low < 0.01, "{twice}");
    }

    #[test]
    fn no_values_or_meaningless_values_have_no_interval() {
        for values in [&[][..], &[1.0, f64::NAN], &[f64::INFINITY]] {
            assert_eq!(Interval::of(values), None);
            assert_eq!(Interval::of_groups(&[values.to_vec()]), None);
        }
        assert_eq!(Interval::of_groups(&[]), None);
        assert_eq!(Interval::of_ratios(&[vec![1.0, -1.0], vec![1.0]]), None);
    }

    #[test]
    fn an_interval_is_shown_with_its_ends() {
        let interval = Interval { median: 1.234, low: 1.19, high: 1.27 };
        assert_eq!(interval.to_string(), "1.23 [1.19–1.27]");
        assert!((interval.half_width() - 0.033).abs() < 0.001);
    }
}
