//! A case over all runs: ratios from the processes of every run, and the difference between runs.

use crate::kit::{Interval, Rival, Side};
use crate::results::model::{Case, Quantity, Ratio, Results};

/// Alternatives to uncopy, besides plain.
const RIVALS: [Side; 4] = [Side::HeapOnly, Side::TunedGlibc, Side::Mimalloc, Side::Jemalloc];

/// The same case in every run that measured it, the earliest first. Invariant: never empty.
#[derive(Clone, Debug)]
pub struct PooledCase<'a>(Vec<&'a Case>);

impl<'a> PooledCase<'a> {
    /// Finds the case `title` of the experiment `id`. Failed runs are left out, unless all failed.
    #[must_use]
    pub fn find(results: &'a Results, id: &str, title: &str) -> Option<Self> {
        let experiments = results.runs.iter().flat_map(|run| &run.experiments);
        let cases = experiments.filter(|measured| measured.id == id).flat_map(|measured| &measured.cases);
        let all: Vec<&Case> = cases.filter(|case| case.title == title).collect();
        let complete: Vec<&Case> = all.iter().copied().filter(|case| case.obstacle.is_none()).collect();
        let found = if complete.is_empty() { all } else { complete };
        (!found.is_empty()).then_some(Self(found))
    }

    /// Returns the reason why there are no figures.
    #[must_use]
    pub fn obstacle(&self) -> Option<&str> {
        self.0[0].obstacle.as_deref()
    }

    /// Returns the number of rounds that count.
    #[must_use]
    pub fn round_count(&self) -> usize {
        self.0.iter().map(|case| case.rounds).sum()
    }

    /// Returns the number of rounds dropped.
    #[must_use]
    pub fn dropped_count(&self) -> usize {
        self.0.iter().map(|case| case.dropped).sum()
    }

    /// Returns the number of fresh processes of each side.
    #[must_use]
    pub fn process_count(&self) -> usize {
        self.0.iter().map(|case| case.processes).sum()
    }

    /// Returns the distance between server and clients in each run, ns, rounded; unknown ones are left out.
    #[must_use]
    pub fn distances(&self) -> Vec<String> {
        let known = self.0.iter().filter_map(|case| case.distance_ns);
        known.map(|ns| format!("{ns:.0}")).collect()
    }

    /// Returns the samples of each run.
    pub fn samples(&self) -> impl Iterator<Item = &'a serde_json::Value> {
        self.0.iter().map(|case| &case.samples)
    }

    /// Returns the ratio in each run that has it.
    fn ratios(&self, side: &str, of: Quantity, over: &str) -> Vec<&'a Ratio> {
        self.0.iter().filter_map(|case| case.side(side)?.ratio(of, over)).collect()
    }

    /// Returns the ratio over all processes of all runs; that of the last run if processes were not distinguished.
    #[must_use]
    pub fn ratio(&self, side: &str, of: Quantity, over: &str) -> Option<Interval> {
        let ratios = self.ratios(side, of, over);
        let last = ratios.last()?.interval;
        if ratios.len() == 1 || ratios.iter().any(|ratio| ratio.processes.is_empty()) {
            return Some(last);
        }
        let processes = self.by_process(side, of, over).map(|interval| vec![interval.median]);
        Interval::of_ratios(&processes.collect::<Vec<_>>())
    }

    /// Returns the ratio in each process of every run.
    pub fn by_process(
        &self,
        side: &str,
        of: Quantity,
        over: &str,
    ) -> impl Iterator<Item = Interval> + use<'a> {
        let ratios = self.ratios(side, of, over).into_iter();
        ratios.flat_map(|ratio| ratio.processes.iter().map(|(interval, _)| *interval))
    }

    /// Returns how much the largest median of a run exceeds the smallest, as a part; `None` with a single run.
    #[must_use]
    pub fn run_difference(&self, side: &str, of: Quantity, over: &str) -> Option<f64> {
        let medians: Vec<f64> =
            self.ratios(side, of, over).iter().map(|ratio| ratio.interval.median).collect();
        let (least, most) =
            (medians.iter().copied().reduce(f64::min)?, medians.iter().copied().reduce(f64::max)?);
        (medians.len() > 1).then_some(most / least - 1.0)
    }

    /// Returns the cheapest of plain and [`RIVALS`] in processor time; `None` if only plain was measured.
    #[must_use]
    pub fn best_rival(&self) -> Option<&'static str> {
        let cost = |side: &Side| {
            Some((side.name(), self.ratio(side.name(), Quantity::Cpu, Side::Plain.name())?.median))
        };
        let best = RIVALS.iter().filter_map(cost).min_by(|one, other| one.1.total_cmp(&other.1))?;
        Some(if best.1 < 1.0 { best.0 } else { Side::Plain.name() })
    }

    /// Returns the processor time of `side` over that of the best rival, picked for each process by all other
    /// processes; over `best` if processes were not distinguished.
    #[must_use]
    pub fn ratio_to_best(&self, side: &str, best: &str) -> Option<Interval> {
        let plain = Side::Plain.name();
        let medians = |side: &str, over: &str| -> Vec<f64> {
            self.by_process(side, Quantity::Cpu, over).map(|interval| interval.median).collect()
        };
        let over_plain = medians(side, plain);
        let plain_rival = Rival { costs: vec![1.0; over_plain.len()], ratios: over_plain };
        let rival =
            |rival: &Side| Rival { costs: medians(rival.name(), plain), ratios: medians(side, rival.name()) };
        let is_measured = |rival: &Rival| !rival.costs.is_empty();
        let rivals = RIVALS.iter().map(rival).filter(is_measured);
        Interval::over_best(&std::iter::once(plain_rival).chain(rivals).collect::<Vec<_>>())
            .or_else(|| self.ratio(side, Quantity::Cpu, best))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::results::model::{ExperimentResult, Figures, Run};

    /// Returns a case with processes of five rounds each, whose processor time over plain's is `costs`.
    pub(in crate::results) fn case(title: &str, side: &str, costs: &[f64]) -> Case {
        let of = |of, over: &str, factor: f64| {
            let process = |cost: &f64| {
                (Interval { median: cost * factor, low: cost * factor * 0.98, high: cost * factor * 1.02 }, 5)
            };
            let processes: Vec<_> = costs.iter().map(process).collect();
            let medians: Vec<_> = processes.iter().map(|(interval, _)| vec![interval.median]).collect();
            Ratio {
                of,
                over: over.to_owned(),
                interval: Interval::of_ratios(&medians).expect("costs"),
                processes,
            }
        };
        let figures = |side: &str, ratios| Figures { side: side.to_owned(), ratios, ..Figures::default() };
        let ratios = vec![
            of(Quantity::Cpu, "plain", 1.0),
            of(Quantity::Cpu, "mimalloc", 1.25),
            of(Quantity::Rate, "plain", 1.1),
        ];
        let mut rival = of(Quantity::Cpu, "plain", 1.0);
        rival.interval = Interval { median: 0.8, low: 0.79, high: 0.81 };
        for process in &mut rival.processes {
            process.0 = rival.interval;
        }
        Case {
            title: title.to_owned(),
            rounds: costs.len() * 5,
            dropped: 3,
            processes: costs.len(),
            distance_ns: Some(300.2),
            sides: vec![figures("plain", vec![]), figures(side, ratios), figures("mimalloc", vec![rival])],
            ..Case::default()
        }
    }

    /// Returns results with one run for each of `runs`, each with these cases of the experiment `id`.
    pub(in crate::results) fn results(id: &str, runs: &[Vec<Case>]) -> Results {
        let run = |cases: &Vec<Case>| {
            let measured = ExperimentResult {
                id: id.to_owned(),
                words: vec![id.to_owned()],
                network: "loopback".to_owned(),
                cases: cases.clone(),
                text: "the <table>\n".to_owned(),
                ..ExperimentResult::default()
            };
            let machine = vec![("kernel".to_owned(), "6.18 <x>".to_owned())];
            Run { tree: Some("abc123".to_owned()), machine, experiments: vec![measured], ..Run::default() }
        };
        Results { runs: runs.iter().map(run).collect(), ..Results::default() }
    }

    #[test]
    fn the_processes_of_all_runs_count_alike_and_the_medians_of_runs_are_compared() {
        let runs = [0.80, 0.90].map(|cost| vec![case("get", "uncopy", &[cost; 5])]);
        let results = results("redis", &runs);
        let pooled = PooledCase::find(&results, "redis", "get").expect("the case");
        assert_eq!((pooled.round_count(), pooled.dropped_count(), pooled.process_count()), (50, 6, 10));
        let ratio = pooled.ratio("uncopy", Quantity::Cpu, "plain").expect("a ratio");
        assert!((ratio.median - 0.72f64.sqrt()).abs() < 1e-9, "{ratio}");
        assert!(ratio.low > 0.80 && ratio.low < ratio.median && ratio.high < 0.90, "{ratio}");
        let difference = pooled.run_difference("uncopy", Quantity::Cpu, "plain").expect("two runs");
        assert!((difference - 0.125).abs() < 1e-9, "{difference}");
        assert_eq!(pooled.best_rival(), Some("mimalloc"));
        assert!(
            PooledCase::find(&results, "redis", "set").is_none()
                && PooledCase::find(&results, "x", "get").is_none()
        );
    }

    #[test]
    fn a_single_run_has_its_own_interval_and_no_difference() {
        let results = results("redis", &[vec![case("get", "uncopy", &[0.7, 0.8, 0.9])]]);
        let pooled = PooledCase::find(&results, "redis", "get").expect("the case");
        let own =
            results.runs[0].experiments[0].cases[0].side("uncopy").expect("the side").ratios[0].interval;
        assert_eq!(pooled.ratio("uncopy", Quantity::Cpu, "plain"), Some(own));
        assert_eq!(pooled.run_difference("uncopy", Quantity::Cpu, "plain"), None);
    }

    #[test]
    fn a_run_in_which_the_case_failed_does_not_count() {
        let failed = Case { title: "get".into(), obstacle: Some("no".into()), ..Case::default() };
        let results = results("redis", &[vec![case("get", "uncopy", &[0.7; 5])], vec![failed.clone()]]);
        let pooled = PooledCase::find(&results, "redis", "get").expect("the case");
        assert_eq!((pooled.obstacle(), pooled.process_count()), (None, 5));
        let results = self::results("redis", &[vec![failed]]);
        assert_eq!(
            PooledCase::find(&results, "redis", "get")
                .and_then(|pooled| pooled.obstacle().map(str::to_owned)),
            Some("no".into())
        );
    }
}
