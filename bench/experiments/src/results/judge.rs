//! Judgement of a case, by one rule for all cases.

use crate::kit::verdict::{self, Verdict};
use crate::kit::{Criterion, Interval, Side, format_count};
use crate::results::model::{Quantity, Results};
use crate::results::pool::PooledCase;

/// Minimum measurements of a headline case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinMeasurements {
    /// Number of rounds that count.
    pub rounds: usize,
    /// Number of fresh processes of each side.
    pub processes: usize,
}

impl MinMeasurements {
    /// Requirements for a full report.
    const FULL: Self = Self { rounds: 25, processes: 5 };
    /// Requirements for a quick report, which is too rough for conclusions anyway.
    const QUICK: Self = Self { rounds: verdict::MIN_ROUNDS, processes: 2 };

    /// Returns the requirements for `results`.
    #[must_use]
    pub fn of(results: &Results) -> Self {
        if results.runs.iter().any(|run| run.quick) { Self::QUICK } else { Self::FULL }
    }
}

/// The verdict on a case, with its basis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// Ratio that the case is judged by; the worse one if there are two.
    pub ratio: Interval,
    /// Quantity of the ratio.
    pub of: Quantity,
    /// Side that the ratio is over.
    pub over: &'static str,
    /// Verdict on the ratio.
    pub verdict: Verdict,
}

/// True if this side shows uncopy; the others are for comparison.
#[must_use]
pub fn is_uncopy_side(side: &str) -> bool {
    Side::UNCOPY.iter().any(|known| known.name() == side)
}

/// Judges `side` in `case`; `None` if the side is not uncopy, or no quantity that can be judged was measured.
#[must_use]
pub fn judge(case: &PooledCase<'_>, side: &str, by: Criterion) -> Option<Judgement> {
    if !is_uncopy_side(side) || case.obstacle().is_some() {
        return None;
    }
    let judgement = |ratio, of, over: &'static str| Judgement {
        ratio,
        of,
        over,
        verdict: Verdict::of(ratio, case.round_count()),
    };
    let of = |of, over: &'static str| Some(judgement(case.ratio(side, of, over)?, of, over));
    let over_best = || {
        let best = case.best_rival()?;
        Some(judgement(case.ratio_to_best(side, best)?, Quantity::Cpu, best))
    };
    let plain = Side::Plain.name();
    match by {
        Criterion::NotJudged => None,
        // Less memory at the cost of processor time is no saving.
        Criterion::Memory => Some(worse(of(Quantity::Memory, plain)?, of(Quantity::Cpu, plain)?)),
        Criterion::Speed => over_best()
            .or_else(|| of(Quantity::Cpu, plain))
            .or_else(|| of(Quantity::Time, plain))
            .or_else(|| of(Quantity::Load, plain)),
    }
}

/// Returns the judgement with the worse verdict.
fn worse(one: Judgement, other: Judgement) -> Judgement {
    if one.verdict.worse(other.verdict) == one.verdict { one } else { other }
}

/// Returns the reason why `case` has too few measurements for a headline, if it has.
#[must_use]
pub fn insufficient_reason(case: &PooledCase<'_>, minimum: MinMeasurements) -> Option<String> {
    let (rounds, processes) = (case.round_count(), case.process_count());
    case.obstacle().map(str::to_owned).or_else(|| match () {
        () if rounds < minimum.rounds => Some(format!(
            "{}, {} more were disturbed; {} are needed",
            format_count(rounds, "round", "rounds"),
            case.dropped_count(),
            minimum.rounds
        )),
        () if processes < minimum.processes => {
            Some(format!("{processes} fresh processes of each side; {} are needed", minimum.processes))
        }
        () => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::model::{Case, Figures, Ratio};
    use crate::results::pool::tests::{case, results};

    fn judged(case: Case, side: &str, by: Criterion) -> Option<(Quantity, &'static str, String)> {
        let title = case.title.clone();
        let results = results("x", &[vec![case]]);
        let judgement = judge(&PooledCase::find(&results, "x", &title)?, side, by)?;
        Some((judgement.of, judgement.over, judgement.verdict.to_string()))
    }

    #[test]
    fn a_program_is_judged_against_the_best_rival() {
        // Relative processor time: uncopy takes 0.9 of plain's, mimalloc 0.8.
        let get = case("get", "uncopy", &[0.90, 0.91, 0.89, 0.90, 0.90]);
        assert_eq!(
            judged(get.clone(), "uncopy", Criterion::Speed),
            Some((Quantity::Cpu, "mimalloc", "costs".into()))
        );
        assert_eq!(judged(get.clone(), "mimalloc", Criterion::Speed), None);
        assert_eq!(judged(get.clone(), "uncopy", Criterion::NotJudged), None);
        let alone = Case { sides: get.sides[..2].to_vec(), ..get.clone() };
        assert_eq!(judged(alone, "uncopy", Criterion::Speed), Some((Quantity::Cpu, "plain", "helps".into())));
        let failed = Case { obstacle: Some("no".into()), ..get };
        assert_eq!(judged(failed, "uncopy", Criterion::Speed), None);
    }

    #[test]
    fn memory_is_not_saved_where_it_takes_processor_time() {
        let ratio = |of, median: f64| {
            let interval = Interval { median, low: median - 0.01, high: median + 0.01 };
            Ratio { of, over: "plain".into(), interval, processes: Vec::new() }
        };
        for (memory, cpu, of, verdict) in [
            (0.8, 2.37, Quantity::Cpu, "costs"),
            (0.8, 1.0, Quantity::Memory, "helps"),
            (1.2, 0.8, Quantity::Memory, "costs"),
            (1.0, 0.8, Quantity::Cpu, "helps"),
            (1.0, 1.0, Quantity::Memory, "harmless"),
            (0.8, 1.03, Quantity::Cpu, "between 1.02 and 1.04"),
        ] {
            let ratios = vec![ratio(Quantity::Memory, memory), ratio(Quantity::Cpu, cpu)];
            let sides = vec![Figures { side: "uncopy".into(), ratios, ..Figures::default() }];
            let case = Case { title: "mixed".into(), rounds: 30, processes: 5, sides, ..Case::default() };
            let expected = Some((of, "plain", verdict.to_owned()));
            assert_eq!(judged(case, "uncopy", Criterion::Memory), expected, "{memory} {cpu}");
        }
    }

    #[test]
    fn too_few_rounds_or_processes_are_no_headline() {
        let why = |costs: &[f64]| {
            let results = results("x", &[vec![case("get", "uncopy", costs)]]);
            insufficient_reason(
                &PooledCase::find(&results, "x", "get").expect("the case"),
                MinMeasurements::of(&results),
            )
        };
        assert_eq!(why(&[0.9; 5]), None);
        assert_eq!(why(&[0.9; 4]), Some("20 rounds, 3 more were disturbed; 25 are needed".into()));
        let mut few = case("get", "uncopy", &[0.9; 4]);
        few.rounds = 100;
        let results = results("x", &[vec![few]]);
        let why = insufficient_reason(
            &PooledCase::find(&results, "x", "get").expect("the case"),
            MinMeasurements::of(&results),
        );
        assert_eq!(why, Some("4 fresh processes of each side; 5 are needed".into()));
    }
}
