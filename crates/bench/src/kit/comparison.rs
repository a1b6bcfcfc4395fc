//! Samples of the same work under several sides, taken in alternating order, and the ratios
//! between them.
//!
//! Rounds of two sides A and B run as A B, B A, A B, …, so that a machine that slowly gets faster
//! or slower favours neither. A ratio is taken within each round and then the median over the
//! rounds. Invariant: there is no ratio unless every byte of every sample was verified.

use serde_json::{Map, Value, json};

use crate::kit::failure::Result;
use crate::kit::side::Side;
use crate::kit::statistics::{Spread, difference_of_runs};

/// What one run under one side gave. A figure that was not measured is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Operations (exchanges, SETs, GETs) per second.
    pub operations_per_s: Option<f64>,
    /// Median latency, µs.
    pub latency_p50_us: Option<f64>,
    /// 99th percentile of the latency, µs.
    pub latency_p99_us: Option<f64>,
    /// 99.9th percentile of the latency, µs.
    pub latency_p999_us: Option<f64>,
    /// Server's processor time per operation, µs.
    pub cpu_us: Option<f64>,
    /// Page faults per operation that uncopy served.
    pub faults: Option<f64>,
    /// How long the server took to touch a page, ns.
    pub touch_ns: Option<f64>,
    /// What was transmitted in a second, Mbit.
    pub megabits_per_s: Option<f64>,
    /// The part of all processors' time that the work took from others, interrupts included, percent.
    pub load_percent: Option<f64>,
    /// The part of all processors' time that is the server's by its own account, percent.
    pub server_percent: Option<f64>,
    /// The same of the client.
    pub client_percent: Option<f64>,
    /// The part of all processors' time that others than the soakers had, percent: the work's own tasks, kernel threads,
    /// other programs. Not interrupts.
    pub others_percent: Option<f64>,
    /// Bytes whose copy uncopy left out in the server.
    pub elided_bytes: Option<f64>,
    /// How long the whole of it took, s.
    pub elapsed_s: Option<f64>,
    /// Server's processor time in user mode, s.
    pub user_s: Option<f64>,
    /// Server's processor time in the kernel, s.
    pub system_s: Option<f64>,
    /// Server's resident memory after the work, bytes.
    pub resident_bytes: Option<f64>,
    /// Bytes that were compared with what they should be, all of them right; `None` if nothing was
    /// checked.
    pub verified_bytes: Option<u64>,
    /// What the reader must know.
    pub notes: Vec<String>,
    /// What went wrong although the figures are right, such as a crash at the server's end.
    pub defect: Option<String>,
}

impl Sample {
    /// The load without the client's own processor time, percent.
    #[must_use]
    pub fn sending_percent(&self) -> Option<f64> {
        Some(self.load_percent? - self.client_percent?)
    }

    /// The load that is time of neither server nor client, percent: kernel threads and other programs.
    #[must_use]
    pub fn background_percent(&self) -> Option<f64> {
        Some(self.others_percent? - self.client_percent? - self.server_percent?)
    }

    /// The load that is nobody's time, percent: interrupts, and what lost caches cost the soakers.
    #[must_use]
    pub fn interrupts_percent(&self) -> Option<f64> {
        Some(self.load_percent? - self.others_percent?)
    }
}

/// One figure of a sample, if it was measured.
pub type Metric = fn(&Sample) -> Option<f64>;

/// Figures that go to JSON, by key.
const METRICS: [(&str, Metric); 20] = [
    ("operations_per_s", |sample| sample.operations_per_s),
    ("latency_p50_us", |sample| sample.latency_p50_us),
    ("latency_p99_us", |sample| sample.latency_p99_us),
    ("latency_p999_us", |sample| sample.latency_p999_us),
    ("server_cpu_us_per_operation", |sample| sample.cpu_us),
    ("faults_per_operation", |sample| sample.faults),
    ("server_touch_ns_per_page", |sample| sample.touch_ns),
    ("server_resident_bytes", |sample| sample.resident_bytes),
    ("megabits_per_s", |sample| sample.megabits_per_s),
    ("machine_load_percent", |sample| sample.load_percent),
    ("sending_load_percent", Sample::sending_percent),
    ("server_cpu_percent", |sample| sample.server_percent),
    ("client_cpu_percent", |sample| sample.client_percent),
    ("other_tasks_percent", Sample::background_percent),
    ("interrupts_percent", Sample::interrupts_percent),
    ("others_percent", |sample| sample.others_percent),
    ("server_elided_bytes", |sample| sample.elided_bytes),
    ("elapsed_s", |sample| sample.elapsed_s),
    ("server_user_s", |sample| sample.user_s),
    ("server_system_s", |sample| sample.system_s),
];

/// One line of an experiment: the same work under each of some sides.
#[derive(Clone, Debug)]
pub struct Comparison {
    title: String,
    operation_bytes: u64,
    parameters: Vec<(&'static str, f64)>,
    sides: Vec<Side>,
    /// Samples of each complete round, in the order of `sides`.
    rounds: Vec<Vec<Sample>>,
    failure: Option<String>,
    /// Why it was left out.
    skipped: Option<String>,
}

impl Comparison {
    /// No samples yet of work that moves `operation_bytes` per operation.
    #[must_use]
    pub fn new(title: impl Into<String>, operation_bytes: u64, sides: &[Side]) -> Self {
        let title = title.into();
        Self {
            title,
            operation_bytes,
            parameters: Vec::new(),
            sides: sides.to_vec(),
            rounds: Vec::new(),
            failure: None,
            skipped: None,
        }
    }

    /// The same with a parameter of the work, which goes to JSON and to the axes of plots.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.parameters.push((name, value));
        self
    }

    /// The value of a parameter.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<f64> {
        self.parameters.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The parameters of the work.
    #[must_use]
    pub fn parameters(&self) -> &[(&'static str, f64)] {
        &self.parameters
    }

    /// Why it failed or was left out.
    #[must_use]
    pub fn obstacle(&self) -> Option<String> {
        let left_out = || self.skipped.as_ref().map(|why| format!("left out: {why}"));
        self.failure.clone().or_else(left_out)
    }

    /// Number of complete rounds.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// What is compared.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Bytes per operation.
    #[must_use]
    pub fn operation_bytes(&self) -> u64 {
        self.operation_bytes
    }

    /// The sides, in the order of the report.
    #[must_use]
    pub fn sides(&self) -> &[Side] {
        &self.sides
    }

    /// Runs every side once, in reverse order in every second round. A side that fails ends this
    /// comparison: later rounds do nothing.
    pub fn round(&mut self, mut run: impl FnMut(Side) -> Result<Sample>) {
        if self.failure.is_some() {
            return;
        }
        let mut order: Vec<usize> = (0..self.sides.len()).collect();
        if self.rounds.len() % 2 == 1 {
            order.reverse();
        }
        let mut samples = vec![Sample::default(); order.len()];
        for index in order {
            match run(self.sides[index]) {
                Ok(sample) => samples[index] = sample,
                Err(failure) => {
                    self.failure = Some(format!("{}: {failure}", self.sides[index].name()));
                    return;
                }
            }
        }
        self.rounds.push(samples);
    }

    /// Records why the work could not even begin.
    pub fn fail(&mut self, failure: &crate::kit::failure::Failure) {
        self.failure.get_or_insert_with(|| failure.to_string());
    }

    /// Leaves the work out because of something that this machine lacks; no failure.
    pub fn skip(&mut self, why: impl Into<String>) {
        self.skipped = Some(why.into());
    }

    fn samples(&self, side: Side) -> Option<impl Iterator<Item = &Sample>> {
        let index = self.sides.iter().position(|known| *known == side)?;
        Some(self.rounds.iter().map(move |round| &round[index]))
    }

    /// The spread of a figure under a side.
    #[must_use]
    pub fn spread(&self, side: Side, metric: Metric) -> Option<Spread> {
        Spread::of(&self.samples(side)?.map(metric).collect::<Option<Vec<_>>>()?)
    }

    /// Whether every sample of every side was verified.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.failure.is_none()
            && !self.rounds.is_empty()
            && self.rounds.iter().flatten().all(|sample| sample.verified_bytes.is_some())
    }

    /// Whether everything was verified and nothing else went wrong either.
    #[must_use]
    pub fn is_flawless(&self) -> bool {
        self.skipped.is_some()
            || self.is_verified() && self.rounds.iter().flatten().all(|sample| sample.defect.is_none())
    }

    /// Bytes verified under a side.
    #[must_use]
    pub fn verified_bytes(&self, side: Side) -> u64 {
        self.samples(side).map_or(0, |samples| samples.filter_map(|sample| sample.verified_bytes).sum())
    }

    /// The spread of a figure under `side` over the same under [`Side::Plain`], round by round.
    #[must_use]
    pub fn ratio(&self, side: Side, metric: Metric) -> Option<Spread> {
        self.ratio_to(self, side, Side::Plain, metric)
    }

    /// The spread of a figure under `side` over the same under [`Side::Limit`], round by round;
    /// `None` for sides that it is no limit of.
    #[must_use]
    pub fn ratio_to_limit(&self, side: Side, metric: Metric) -> Option<Spread> {
        self.ratio_to(self, side, Side::Limit, metric).filter(|_| side != Side::Limit)
    }

    /// Processor time per MiB, µs, of one sample.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
    pub fn cpu_us_per_mib(&self, cpu_us: f64) -> f64 {
        cpu_us * f64::from(1 << 20) / self.operation_bytes.max(1) as f64
    }

    /// The spread of a figure under `side` over the same in `other` under `other_side`, round by
    /// round; `None` unless both comparisons are verified.
    #[must_use]
    pub fn ratio_to(&self, other: &Self, side: Side, other_side: Side, metric: Metric) -> Option<Spread> {
        Spread::of(&self.ratios_to(other, side, other_side, metric)?)
    }

    /// By how much the medians of the ratio to plain would differ between two runs like this one, as a part.
    #[must_use]
    pub fn difference_of_runs(&self, side: Side, metric: Metric) -> Option<f64> {
        difference_of_runs(&self.ratios_to(self, side, Side::Plain, metric)?)
    }

    fn ratios_to(&self, other: &Self, side: Side, other_side: Side, metric: Metric) -> Option<Vec<f64>> {
        if !self.is_verified() || !other.is_verified() {
            return None;
        }
        let pairs = self.samples(side)?.map(metric).zip(other.samples(other_side)?.map(metric));
        pairs.map(|(mine, its)| Some(mine? / its?)).collect()
    }

    /// The spread of the difference between a figure under `side` and under [`Side::Plain`],
    /// round by round.
    #[must_use]
    pub fn difference(&self, side: Side, metric: Metric) -> Option<Spread> {
        if !self.is_verified() {
            return None;
        }
        let pairs = self.samples(side)?.map(metric).zip(self.samples(Side::Plain)?.map(metric));
        Spread::of(&pairs.map(|(mine, its)| Some(mine? - its?)).collect::<Option<Vec<_>>>()?)
    }

    /// What a reader must know, each thing once, with the side it concerns.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for side in &self.sides {
            let samples = self.samples(*side).into_iter().flatten();
            for note in samples.flat_map(|sample| sample.notes.iter().chain(&sample.defect)) {
                let note = format!("{}: {note}", side.name());
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
        notes.extend(self.failure.clone());
        notes.extend(self.skipped.as_ref().map(|why| format!("left out: {why}")));
        notes
    }

    /// Everything, for programs.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut sides = Map::new();
        for side in &self.sides {
            let mut figures = Map::new();
            let samples = |metric| self.samples(*side).into_iter().flatten().map(metric).collect::<Vec<_>>();
            for (key, metric) in METRICS {
                let Some(mut figure) = figure_json(&samples(metric)) else { continue };
                if let (Some(ratio), true) = (self.ratio(*side, metric), *side != Side::Plain) {
                    figure["ratio_to_plain"] = spread_json(ratio);
                    if let Some(part) = self.difference_of_runs(*side, metric) {
                        figure["ratio_to_plain"]["difference_of_runs"] = json!(part);
                    }
                }
                if let Some(ratio) = self.ratio_to_limit(*side, metric) {
                    figure["ratio_to_zero_copy_limit"] = spread_json(ratio);
                }
                figures.insert(key.to_owned(), figure);
            }
            let cpu = samples(|sample| sample.cpu_us).into_iter();
            let per_mib: Vec<_> = cpu.map(|cpu_us| cpu_us.map(|us| self.cpu_us_per_mib(us))).collect();
            if let Some(figure) = figure_json(&per_mib).filter(|_| self.operation_bytes > 0) {
                figures.insert("server_cpu_us_per_mib".to_owned(), figure);
            }
            figures.insert("verified_bytes".to_owned(), json!(self.verified_bytes(*side)));
            sides.insert(side.key().to_owned(), Value::Object(figures));
        }
        json!({
            "experiment": self.title,
            "bytes_per_operation": self.operation_bytes,
            "parameters": self.parameters.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<Map<_, _>>(),
            "rounds": self.rounds.len(),
            "sides": sides,
            "verified": self.is_verified(),
            "failure": self.failure,
            "skipped": self.skipped,
            "notes": self.notes(),
        })
    }
}

/// A spread for programs.
pub fn spread_json(spread: Spread) -> Value {
    json!({ "median": spread.median, "low": spread.low, "high": spread.high })
}

/// A figure for programs, `null` for each round in which it was not measured; `None` if it never was.
fn figure_json(samples: &[Option<f64>]) -> Option<Value> {
    samples.iter().any(Option::is_some).then(|| {
        let spread = samples.iter().copied().collect::<Option<Vec<f64>>>().and_then(|all| Spread::of(&all));
        let mut value = spread.map_or_else(|| json!({}), spread_json);
        value["samples"] = json!(samples);
        value
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::failure::Failure;

    const BOTH: [Side; 2] = [Side::Plain, Side::Uncopy];
    const RATE: Metric = |sample| sample.operations_per_s;

    fn sample(operations_per_s: f64) -> Sample {
        Sample { operations_per_s: Some(operations_per_s), verified_bytes: Some(10), ..Sample::default() }
    }

    /// Rounds of (plain, uncopy) rates.
    fn compared(rates: &[(f64, f64)]) -> Comparison {
        let mut comparison = Comparison::new("work", 1, &BOTH);
        for (plain, uncopy) in rates {
            comparison.round(|side| Ok(sample(if side == Side::Plain { *plain } else { *uncopy })));
        }
        comparison
    }

    #[test]
    fn sides_alternate_in_order() {
        let mut comparison = Comparison::new("work", 1, &BOTH);
        let mut order = Vec::new();
        for _ in 0..3 {
            comparison.round(|side| {
                order.push(side);
                Ok(sample(1.0))
            });
        }
        use Side::{Plain, Uncopy};
        assert_eq!(order, [Plain, Uncopy, Uncopy, Plain, Plain, Uncopy]);
    }

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_ratios() {
        // The machine slows down tenfold in the last round; the ratio does not care.
        let comparison = compared(&[(100.0, 200.0), (100.0, 190.0), (10.0, 21.0)]);
        let ratio = comparison.ratio(Side::Uncopy, RATE).expect("verified");
        assert!((ratio.median - 2.0).abs() < 1e-9 && (ratio.high - 2.1).abs() < 1e-9, "{ratio:?}");
        let difference = comparison.difference(Side::Uncopy, RATE).expect("verified");
        assert!((difference.median - 90.0).abs() < 1e-9);
        assert_eq!(comparison.verified_bytes(Side::Uncopy), 30);
    }

    #[test]
    fn nothing_unverified_has_a_ratio() {
        let mut comparison = compared(&[(100.0, 200.0)]);
        comparison.round(|side| {
            let verified_bytes = (side == Side::Plain).then_some(10);
            Ok(Sample { verified_bytes, ..sample(1.0) })
        });
        assert_eq!(comparison.ratio(Side::Uncopy, RATE), None);
        assert_eq!(compared(&[]).ratio(Side::Uncopy, RATE), None);
    }

    #[test]
    fn a_failure_ends_the_comparison_and_is_told() {
        let mut comparison = compared(&[(100.0, 200.0)]);
        let mut runs = 0;
        for _ in 0..2 {
            comparison.round(|side| {
                runs += 1;
                if side == Side::Uncopy { Err(Failure::new("wrong echo")) } else { Ok(sample(1.0)) }
            });
        }
        assert_eq!(runs, 1);
        assert_eq!(comparison.ratio(Side::Uncopy, RATE), None);
        assert_eq!(comparison.notes(), ["uncopy: wrong echo"]);
        assert_eq!(comparison.to_json()["verified"], json!(false));
        assert!(comparison.to_json()["sides"]["uncopy"]["operations_per_s"]["ratio_to_plain"].is_null());
    }

    #[test]
    fn a_defect_is_told_and_counts_although_the_figures_are_right() {
        let mut comparison = Comparison::new("work", 1, &BOTH);
        comparison.round(|side| {
            let defect = (side == Side::Uncopy).then(|| "signal 11 at its end".to_owned());
            Ok(Sample { defect, ..sample(1.0) })
        });
        assert!(comparison.is_verified() && !comparison.is_flawless());
        assert_eq!(comparison.notes(), ["uncopy: signal 11 at its end"]);
        assert!(compared(&[(1.0, 1.0)]).is_flawless());
    }

    #[test]
    fn notes_are_told_once() {
        let mut comparison = Comparison::new("work", 1, &BOTH);
        for _ in 0..3 {
            comparison.round(|side| {
                let notes = if side == Side::Uncopy { vec!["inactive".to_owned()] } else { Vec::new() };
                Ok(Sample { notes, ..sample(1.0) })
            });
        }
        assert_eq!(comparison.notes(), ["uncopy: inactive"]);
    }
    #[test]
    fn what_was_not_measured_is_no_zero() {
        let mut comparison = Comparison::new("work", 1, &BOTH);
        for faults in [Some(0.0), None] {
            comparison.round(|side| {
                let faults = faults.filter(|_| side == Side::Uncopy);
                Ok(Sample { faults, ..sample(1.0) })
            });
        }
        assert_eq!(comparison.spread(Side::Uncopy, |sample| sample.faults), None);
        let sides = &comparison.to_json()["sides"];
        assert_eq!(sides["uncopy"]["faults_per_operation"], json!({ "samples": [0.0, null] }));
        assert!(sides["plain"]["faults_per_operation"].is_null());
    }
}
