//! Whether uncopy helped in a case, as a rule that treats every case alike.

use crate::kit::{Interval, Judge};
use crate::results::model::Row;

/// The largest difference between the medians of two runs, as a part, that is not called too noisy.
pub const NOISE: f64 = 0.05;
/// A ratio this far from 1 is a difference.
const DIFFERENCE: f64 = 0.03;

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Slower, more processor time, or more memory.
    Costs,
    /// Faster for more processor time, or slower for less.
    Mixed,
    /// The spread reaches over both sides of 1, and runs differ by too much to tell.
    Unclear,
    /// Not measured, or bytes were wrong.
    Unknown,
    /// No difference.
    Same,
    /// Faster, or less processor time, or less memory.
    Helps,
}

impl Verdict {
    /// The words in tables.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Costs => "costs",
            Self::Mixed => "mixed",
            Self::Unclear => "too noisy to tell",
            Self::Unknown => "not measured",
            Self::Same => "no difference",
            Self::Helps => "helps",
        }
    }

    /// The class of the style sheet.
    #[must_use]
    pub const fn class(self) -> &'static str {
        match self {
            Self::Costs => "bad",
            Self::Helps => "good",
            Self::Mixed | Self::Unclear | Self::Unknown => "noisy",
            Self::Same => "quiet",
        }
    }
}

/// What uncopy does, among the sides; the others are there to compare with.
fn is_uncopy(side: &str) -> bool {
    matches!(side, "uncopy" | "twin")
}

/// Whether the medians of two runs differ, or would, by more than [`NOISE`].
#[must_use]
pub fn is_noisy(row: &Row) -> bool {
    let Some((ratio, difference_of_runs)) = row.main_ratio() else { return false };
    let again = row.second_ratio.is_some_and(|second| differ(ratio.median, second) > NOISE);
    again || difference_of_runs.is_some_and(|part| part > NOISE)
}

/// By how much two medians differ, as a part of the smaller.
#[must_use]
pub fn differ(one: f64, other: f64) -> f64 {
    let least = one.min(other);
    if least > 0.0 { (one - other).abs() / least } else { 0.0 }
}

/// The verdict on a case; `None` where it is not uncopy that is measured.
#[must_use]
pub fn verdict(row: &Row, judge: Judge) -> Option<Verdict> {
    if !is_uncopy(&row.side) || judge == Judge::Cost {
        return None;
    }
    if judge == Judge::Memory {
        let ratio = row.resident_ratio?.median;
        return Some(match ratio {
            ratio if ratio < 1.0 - DIFFERENCE => Verdict::Helps,
            ratio if ratio > 1.0 + DIFFERENCE => Verdict::Costs,
            _ => Verdict::Same,
        });
    }
    let Some((ratio, difference_of_runs)) = row.main_ratio().filter(|_| row.obstacle.is_none()) else {
        return Some(Verdict::Unknown);
    };
    // Of time and of processor time less is better.
    let speed = effect(ratio, difference_of_runs, if row.ratio.is_some() { 1.0 } else { -1.0 });
    let cpu = row.cpu_ratio.map_or(Effect::None, |ratio| effect(ratio, row.cpu_difference_of_runs, -1.0));
    Some(match (speed, cpu) {
        (Effect::Better, Effect::Worse) | (Effect::Worse, Effect::Better) => Verdict::Mixed,
        // Whether the other is worse, or better, cannot be told, but it looks so.
        (Effect::Better, Effect::Unclear(gain)) | (Effect::Unclear(gain), Effect::Better)
            if gain <= -DIFFERENCE =>
        {
            Verdict::Unclear
        }
        (Effect::Worse, Effect::Unclear(gain)) | (Effect::Unclear(gain), Effect::Worse)
            if gain >= DIFFERENCE =>
        {
            Verdict::Unclear
        }
        (Effect::Better, _) | (_, Effect::Better) => Verdict::Helps,
        (Effect::Worse, _) | (_, Effect::Worse) => Verdict::Costs,
        (Effect::Unclear(_), _) | (_, Effect::Unclear(_)) => Verdict::Unclear,
        (Effect::None, Effect::None) => Verdict::Same,
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Effect {
    Better,
    Worse,
    None,
    /// There may be one, but the noise is as large: what the median gains.
    Unclear(f64),
}

/// The effect that a ratio shows; `sense` is 1 where more is better and −1 where less is.
fn effect(ratio: Interval, difference_of_runs: Option<f64>, sense: f64) -> Effect {
    let noisy = difference_of_runs.is_none_or(|part| part > NOISE);
    let straddles = ratio.low < 1.0 && ratio.high > 1.0;
    let gain = (ratio.median - 1.0) * sense;
    match () {
        () if noisy && straddles => Effect::Unclear(gain),
        () if gain >= DIFFERENCE => Effect::Better,
        () if gain <= -DIFFERENCE => Effect::Worse,
        () => Effect::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::model::TimeRatio;

    fn spread(median: f64, low: f64, high: f64) -> Option<Interval> {
        Some(Interval { median, low, high })
    }

    fn row(ratio: Option<Interval>, noise: f64, cpu: Option<Interval>) -> Row {
        Row {
            side: "uncopy".into(),
            ratio,
            cpu_ratio: cpu,
            difference_of_runs: Some(noise),
            cpu_difference_of_runs: Some(0.01),
            ..Row::default()
        }
    }

    #[test]
    fn each_case_is_judged_by_rate_and_processor_time() {
        let even = spread(1.0, 0.99, 1.01);
        for (ratio, noise, cpu, expected) in [
            (spread(1.4, 1.3, 1.8), 0.02, even, Verdict::Helps),
            (spread(1.0, 0.98, 1.02), 0.02, spread(0.7, 0.6, 0.8), Verdict::Helps),
            (spread(1.01, 0.98, 1.02), 0.02, even, Verdict::Same),
            (spread(0.9, 0.85, 0.95), 0.02, even, Verdict::Costs),
            (even, 0.02, spread(1.4, 1.3, 1.5), Verdict::Costs),
            (spread(1.2, 1.1, 1.3), 0.02, spread(1.3, 1.2, 1.4), Verdict::Mixed),
            (spread(1.1, 0.5, 2.4), 0.3, even, Verdict::Unclear),
            // Every round was faster: noisy, but not in doubt.
            (spread(1.6, 1.2, 2.4), 0.3, even, Verdict::Helps),
            // Less processor time for certain, but perhaps less speed; and the reverse.
            (spread(0.63, 0.59, 1.24), 0.37, spread(0.74, 0.67, 0.99), Verdict::Unclear),
            (spread(1.3, 0.9, 1.5), 0.37, spread(1.2, 1.1, 1.3), Verdict::Unclear),
            (spread(0.99, 0.7, 1.24), 0.37, spread(0.74, 0.67, 0.99), Verdict::Helps),
            (None, 0.0, None, Verdict::Unknown),
        ] {
            assert_eq!(verdict(&row(ratio, noise, cpu), Judge::Speed), Some(expected), "{ratio:?} {cpu:?}");
        }
    }

    #[test]
    fn where_there_is_no_rate_less_time_is_better() {
        let mut row = row(None, 0.0, None);
        for (median, expected) in [(0.8, Verdict::Helps), (1.3, Verdict::Costs), (1.01, Verdict::Same)] {
            let ratio = Interval { median, low: median - 0.01, high: median + 0.01 };
            row.time_ratio = Some(TimeRatio { of: "time".into(), ratio, difference_of_runs: Some(0.01) });
            assert_eq!(verdict(&row, Judge::Speed), Some(expected), "{median}");
        }
    }

    #[test]
    fn only_uncopy_is_judged_and_memory_by_memory() {
        let mut row = row(spread(0.5, 0.4, 0.6), 0.01, None);
        row.resident_ratio = spread(1.3, 1.3, 1.3);
        assert_eq!(verdict(&row, Judge::Memory), Some(Verdict::Costs));
        assert_eq!(verdict(&row, Judge::Cost), None);
        row.side = "plain".into();
        assert_eq!(verdict(&row, Judge::Speed), None);
    }

    #[test]
    fn a_second_run_that_differs_is_noise_whatever_the_first_one_promised() {
        let mut row = row(spread(1.0, 0.99, 1.01), 0.01, None);
        assert!(!is_noisy(&row));
        row.second_ratio = Some(1.04);
        assert!(!is_noisy(&row));
        row.second_ratio = Some(1.06);
        assert!(is_noisy(&row));
        assert!(!is_noisy(&Row::default()));
        assert!((differ(1.2, 1.0) - 0.2).abs() < 1e-9 && differ(0.0, 1.0).abs() < 1e-9);
    }
}
