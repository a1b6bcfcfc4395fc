//! Comparison of the same work under several sides, and the ratios between them.
//!
//! ```text
//!   comparison ─ generations: fresh processes, one of each side, alive at the same time
//!                 └ rounds: a slice of every side, in random order; some dropped, because others disturbed them
//!                    those of one connection have more in common than those of two
//! ```
//!
//! A program that is run as a whole has a generation of its own for each round. A ratio is taken within each round,
//! and its [`Interval`](crate::kit::statistics::Interval) comes from the rounds of one process, or of all processes.
//! Invariant: there is no ratio unless every byte of every sample was verified.

mod json;
mod ratios;

use crate::kit::distance::{self, Distance};
use crate::kit::failure::Result;
use crate::kit::sample::Sample;
use crate::kit::side::Side;

/// One round: a sample of each side, in the order of the comparison's sides.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Number of the connections used, ascending within a generation.
    pub connection: usize,
    /// Sample of each side, in the order of the comparison's sides.
    pub samples: Vec<Sample>,
    /// Reason why the round does not count.
    pub drop_reason: Option<String>,
    /// Number of slices that were retaken, because others disturbed them.
    pub retries: u32,
    /// Distance between server and clients.
    pub distance: Distance,
}

/// Measurements of fresh processes, one of each side.
#[derive(Clone, Debug, Default)]
pub struct Generation {
    /// Rounds in the order of measurement.
    pub rounds: Vec<Round>,
    /// Figures of each side's process as a whole: memory, counts, notes; empty if there are none.
    pub process_samples: Vec<Sample>,
}

impl Generation {
    /// Returns the rounds at this distance that count.
    fn counted_rounds(&self, distance: Distance) -> impl Iterator<Item = &Round> {
        let counts =
            move |round: &&Round| round.drop_reason.is_none() && distance::is_same(round.distance, distance);
        self.rounds.iter().filter(counts)
    }

    fn samples(&self, side: usize) -> impl Iterator<Item = &Sample> {
        self.rounds.iter().map(move |round| &round.samples[side]).chain(self.process_samples.get(side))
    }
}

/// The same work under each of several sides: one line of an experiment.
#[derive(Clone, Debug)]
pub struct Comparison {
    title: String,
    operation_bytes: u64,
    parameters: Vec<(&'static str, f64)>,
    sides: Vec<Side>,
    generations: Vec<Generation>,
    failure: Option<String>,
    /// Reason why the work was skipped.
    skip_reason: Option<String>,
    /// Sides that were skipped, with the reason.
    skipped_sides: Vec<String>,
    /// True if the rounds of a connection are different work, so that their mean counts.
    is_cyclic: bool,
}

impl Comparison {
    /// Creates a comparison without samples, of work that moves `operation_bytes` per operation.
    #[must_use]
    pub fn new(title: impl Into<String>, operation_bytes: u64, sides: &[Side]) -> Self {
        let title = title.into();
        Self {
            title,
            operation_bytes,
            parameters: Vec::new(),
            sides: sides.to_vec(),
            generations: Vec::new(),
            failure: None,
            skip_reason: None,
            skipped_sides: Vec::new(),
            is_cyclic: false,
        }
    }

    /// Adds a parameter of the work, which appears in JSON and on the axes of plots.
    #[must_use]
    pub fn with_parameter(mut self, name: &'static str, value: f64) -> Self {
        self.parameters.push((name, value));
        self
    }

    /// Marks the work as cyclic: the rounds of a connection are different phases, whose mean rate and time count.
    #[must_use]
    pub fn cyclic(mut self) -> Self {
        self.is_cyclic = true;
        self
    }

    /// Returns the comparison without any measurement.
    #[must_use]
    pub fn without_samples(&self) -> Self {
        Self {
            parameters: self.parameters.clone(),
            is_cyclic: self.is_cyclic,
            ..Self::new(self.title.clone(), self.operation_bytes, &self.sides)
        }
    }

    /// Returns the value of a parameter.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<f64> {
        self.parameters.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Returns the parameters of the work.
    #[must_use]
    pub fn parameters(&self) -> &[(&'static str, f64)] {
        &self.parameters
    }

    /// Returns the reason why the work failed or was skipped.
    #[must_use]
    pub fn obstacle(&self) -> Option<String> {
        let skip_message = || self.skip_reason.as_ref().map(|why| format!("skipped: {why}"));
        self.failure.clone().or_else(skip_message)
    }

    fn all_rounds(&self) -> impl Iterator<Item = &Round> {
        self.generations.iter().flat_map(|generation| &generation.rounds)
    }

    /// Returns the distance of the rounds that count: the most common one among undisturbed rounds.
    #[must_use]
    pub fn distance(&self) -> Distance {
        let undisturbed = self.all_rounds().filter(|round| round.drop_reason.is_none());
        distance::most_common(undisturbed.filter_map(|round| round.distance))
    }

    /// Returns the number of rounds that count.
    #[must_use]
    pub fn round_count(&self) -> usize {
        let distance = self.distance();
        self.generations.iter().map(|generation| generation.counted_rounds(distance).count()).sum()
    }

    /// Returns the number of rounds that were dropped.
    #[must_use]
    pub fn dropped_count(&self) -> usize {
        self.all_rounds().count() - self.round_count()
    }

    /// Returns the reason for each dropped round.
    pub fn drop_reasons(&self) -> impl Iterator<Item = &str> {
        let distance = self.distance();
        let distance_reason = move |round: &Round| {
            (!distance::is_same(round.distance, distance))
                .then_some("the processors were at another distance")
        };
        self.all_rounds()
            .filter_map(move |round| round.drop_reason.as_deref().or_else(|| distance_reason(round)))
    }

    /// Returns the number of generations with a round that counts, or without rounds, where each is a single run.
    #[must_use]
    pub fn process_count(&self) -> usize {
        let distance = self.distance();
        let counts = |generation: &&Generation| {
            generation.rounds.is_empty() || generation.counted_rounds(distance).next().is_some()
        };
        self.generations.iter().filter(counts).count()
    }

    /// Returns the title of the work.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Returns the bytes per operation.
    #[must_use]
    pub fn operation_bytes(&self) -> u64 {
        self.operation_bytes
    }

    /// Returns the sides, in the order of the report.
    #[must_use]
    pub fn sides(&self) -> &[Side] {
        &self.sides
    }

    /// Leaves out a side because this machine lacks something that it needs.
    pub fn skip_side(&mut self, side: Side, why: &crate::kit::failure::Failure) {
        debug_assert!(self.generations.is_empty(), "samples are by side");
        self.sides.retain(|known| *known != side);
        self.skipped_sides.push(format!("{} skipped: {why}", side.name()));
    }

    /// Runs every side once, each in a process of its own, in reverse order in every second round. A side that fails
    /// ends this comparison: later rounds do nothing.
    pub fn run_round(&mut self, mut run: impl FnMut(Side) -> Result<Sample>) {
        if self.failure.is_some() {
            return;
        }
        let mut order: Vec<usize> = (0..self.sides.len()).collect();
        if self.generations.len() % 2 == 1 {
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
        let round = Round { samples, ..Round::default() };
        self.generations.push(Generation { rounds: vec![round], process_samples: Vec::new() });
    }

    /// Adds the measurements of fresh processes.
    pub fn add(&mut self, generation: Generation) {
        self.generations.push(generation);
    }

    /// Records the failure that kept the work from beginning.
    pub fn fail(&mut self, failure: &crate::kit::failure::Failure) {
        self.failure.get_or_insert_with(|| failure.to_string());
    }

    /// Leaves the work out because this machine lacks something that it needs; this is no failure.
    pub fn skip(&mut self, why: impl Into<String>) {
        self.skip_reason = Some(why.into());
    }

    fn index(&self, side: Side) -> Option<usize> {
        self.sides.iter().position(|known| *known == side)
    }

    /// Returns every sample of `side`.
    fn samples(&self, side: Side) -> impl Iterator<Item = &Sample> {
        let index = self.index(side);
        let of = move |generation| index.map(|index| Generation::samples(generation, index));
        self.generations.iter().filter_map(of).flatten()
    }

    /// True if every sample of every side was verified.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.failure.is_none()
            && !self.generations.is_empty()
            && (0..self.sides.len()).all(|side| {
                self.generations
                    .iter()
                    .all(|generation| generation.samples(side).any(|sample| sample.verified_bytes.is_some()))
            })
    }

    /// True if everything was verified and nothing else went wrong either.
    #[must_use]
    pub fn is_flawless(&self) -> bool {
        let has_no_defect = |side: &Side| self.samples(*side).all(|sample| sample.defect.is_none());
        self.skip_reason.is_some() || self.is_verified() && self.sides.iter().all(has_no_defect)
    }

    /// Returns the number of bytes verified under a side.
    #[must_use]
    pub fn verified_bytes(&self, side: Side) -> u64 {
        self.samples(side).filter_map(|sample| sample.verified_bytes).sum()
    }

    /// Returns the notes for the reader, without duplicates, each with its side.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for side in &self.sides {
            for note in self.samples(*side).flat_map(|sample| sample.notes.iter().chain(&sample.defect)) {
                let note = format!("{}: {note}", side.name());
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
        notes.extend(self.skipped_sides.iter().cloned());
        notes.extend(self.failure.clone());
        notes.extend(self.skip_reason.as_ref().map(|why| format!("skipped: {why}")));
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::counts::Counts;
    use crate::kit::failure::Failure;
    use crate::kit::sample::{Metric, RawSlice};
    use crate::kit::verdict::Verdict;
    use serde_json::{Value, json};

    const BOTH: [Side; 2] = [Side::Plain, Side::Uncopy];
    const RATE: Metric = |sample| sample.operations_per_s;

    fn sample(operations_per_s: f64) -> Sample {
        Sample { operations_per_s: Some(operations_per_s), verified_bytes: Some(10), ..Sample::default() }
    }

    /// Returns a comparison of rounds with (plain, uncopy) rates.
    fn compared(rates: &[(f64, f64)]) -> Comparison {
        let mut comparison = Comparison::new("work", 1, &BOTH);
        for (plain, uncopy) in rates {
            comparison.run_round(|side| Ok(sample(if side == Side::Plain { *plain } else { *uncopy })));
        }
        comparison
    }

    #[test]
    fn sides_alternate_in_order() {
        let mut comparison = Comparison::new("work", 1, &BOTH);
        let mut order = Vec::new();
        for _ in 0..3 {
            comparison.run_round(|side| {
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
        assert!((ratio.median - 2.0).abs() < 1e-9 && (ratio.high - 2.1).abs() < 1e-9, "{ratio}");
        let difference = comparison.difference(Side::Uncopy, RATE).expect("verified");
        assert!((difference.median - 90.0).abs() < 1e-9);
        assert_eq!(comparison.verified_bytes(Side::Uncopy), 30);
    }

    #[test]
    fn nothing_unverified_has_a_ratio() {
        let mut comparison = compared(&[(100.0, 200.0)]);
        comparison.run_round(|side| {
            let verified_bytes = (side == Side::Plain).then_some(10);
            Ok(Sample { verified_bytes, ..sample(1.0) })
        });
        assert_eq!(comparison.ratio(Side::Uncopy, RATE), None);
        assert_eq!(compared(&[]).ratio(Side::Uncopy, RATE), None);
    }

    #[test]
    fn a_failure_ends_the_comparison_and_is_reported() {
        let mut comparison = compared(&[(100.0, 200.0)]);
        let mut runs = 0;
        for _ in 0..2 {
            comparison.run_round(|side| {
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
    fn a_defect_is_reported_although_the_figures_are_right() {
        let mut comparison = Comparison::new("work", 1, &BOTH);
        comparison.run_round(|side| {
            let defect = (side == Side::Uncopy).then(|| "signal 11 at its end".to_owned());
            Ok(Sample { defect, ..sample(1.0) })
        });
        assert!(comparison.is_verified() && !comparison.is_flawless());
        assert_eq!(comparison.notes(), ["uncopy: signal 11 at its end"]);
        assert!(compared(&[(1.0, 1.0)]).is_flawless());
    }

    #[test]
    fn notes_are_listed_once() {
        let mut comparison = Comparison::new("work", 1, &BOTH);
        for _ in 0..3 {
            comparison.run_round(|side| {
                let notes = if side == Side::Uncopy { vec!["inactive".to_owned()] } else { Vec::new() };
                Ok(Sample { notes, ..sample(1.0) })
            });
        }
        assert_eq!(comparison.notes(), ["uncopy: inactive"]);
    }
    #[test]
    fn missing_measurements_are_not_zero() {
        let mut comparison = Comparison::new("work", 1, &BOTH);
        for faults in [Some(0.0), None] {
            comparison.run_round(|side| {
                let served_faults = faults.filter(|_| side == Side::Uncopy);
                let counts = Counts { served_faults, ..Counts::default() };
                Ok(Sample { counts, ..sample(1.0) })
            });
        }
        assert_eq!(comparison.figure(Side::Uncopy, |sample| sample.counts.served_faults), None);
        let json = comparison.to_json();
        assert!(json["sides"]["uncopy"]["faults_per_operation"].is_null());
        let kept =
            |process: usize| json["samples"][process]["sides"]["uncopy"]["faults_per_operation"].clone();
        assert_eq!((kept(0), kept(1)), (json!([0.0]), Value::Null));
    }

    /// Returns a generation in which uncopy takes `cost` times plain's processor time, two rounds per connection.
    fn generation(costs: &[f64], dropped: usize) -> Generation {
        let round = |(at, cost): (usize, &f64)| {
            let raw = |cpu_ns| Sample::from(RawSlice { cpu_ns, operations: 10, elapsed_ns: 1_000_000 });
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small cost")]
            let samples = vec![raw(1_000_000), raw((1e6 * cost) as u64)];
            let drop_reason = (at < dropped).then(|| "steal 9 %".to_owned());
            Round { connection: at / 2, samples, drop_reason, ..Round::default() }
        };
        let end = Sample { resident_bytes: Some(costs[0]), verified_bytes: Some(1), ..Sample::default() };
        Generation {
            rounds: costs.iter().enumerate().map(round).collect(),
            process_samples: vec![end.clone(), end],
        }
    }

    #[test]
    fn rounds_count_by_process_and_connection_unless_they_were_dropped() {
        let mut comparison = Comparison::new("work", 1, &BOTH);
        for costs in [[9.0, 0.9, 0.9, 0.92, 0.88, 0.9], [9.0, 0.8, 0.8, 0.82, 0.78, 0.8]] {
            comparison.add(generation(&costs, 1));
        }
        assert_eq!(
            (comparison.round_count(), comparison.dropped_count(), comparison.process_count()),
            (10, 2, 2)
        );
        let json = comparison.to_json();
        let cpu = &json["sides"]["uncopy"]["server_cpu_us_per_operation"]["ratio_to_plain"];
        assert!((cpu["median"].as_f64().expect("a ratio") - (0.9f64 * 0.8).sqrt()).abs() < 1e-3, "{cpu:#}");
        assert_eq!((&cpu["rounds"], &cpu["dropped"]), (&json!(10), &json!(2)));
        assert_eq!(cpu["processes"][1]["rounds"], json!(5));
        assert!((cpu["processes"][1]["median"].as_f64().expect("a ratio") - 0.8).abs() < 1e-3, "{cpu:#}");
        // Two processes that differ that much do not predict a third.
        assert!(matches!(comparison.verdict(Side::Uncopy, Side::Plain), Some(Verdict::Undecided(..))));
        assert_eq!(json["samples"][0]["dropped"], json!(["steal 9 %", null, null, null, null, null]));
        assert_eq!(json["samples"][0]["connection"], json!([0, 0, 1, 1, 2, 2]));
        assert_eq!(json["samples"][0]["sides"]["uncopy"]["cpu_ns"][1], json!(900_000));
        let resident =
            comparison.figure(Side::Plain, |sample| sample.resident_bytes).expect("of both processes");
        assert!((resident.median - 9.0).abs() < 1e-9);
    }

    #[test]
    fn rounds_at_another_distance_than_most_do_not_count() {
        let mut comparison = Comparison::new("work", 1, &BOTH);
        for (cost, distance) in [(0.5, 50.0), (0.9, 300.0), (0.9, 290.0)] {
            let mut generation = generation(&[cost; 4], 0);
            generation.rounds.iter_mut().for_each(|round| round.distance = Some(distance));
            comparison.add(generation);
        }
        assert_eq!(
            (comparison.round_count(), comparison.dropped_count(), comparison.process_count()),
            (8, 4, 2)
        );
        assert_eq!(comparison.distance(), Some(300.0));
        let ratio = comparison.ratio(Side::Uncopy, |sample| sample.cpu_us).expect("verified");
        assert!((ratio.median - 0.9).abs() < 1e-3, "{ratio}");
        assert_eq!(comparison.drop_reasons().count(), 4);
        assert_eq!(comparison.to_json()["samples"][0]["distance_ns"][3], json!(50.0));
    }

    #[test]
    fn drifting_work_counts_by_the_mean_of_each_connection() {
        let mut comparison = Comparison::new("work", 1, &BOTH).cyclic();
        for _ in 0..2 {
            // Each connection has one round at half the cost and one at 1.9 times.
            comparison.add(generation(&[0.5, 1.9, 0.5, 1.9], 0));
        }
        let ratio = comparison.ratio(Side::Uncopy, |sample| sample.cpu_us).expect("verified");
        assert!((ratio.median - 1.2).abs() < 1e-3 && ratio.half_width() < 1e-3, "{ratio}");
    }

    #[test]
    fn the_best_rival_takes_the_least_processor_time() {
        let sides = [Side::Plain, Side::Uncopy, Side::Mimalloc, Side::HeapOnly];
        let mut comparison = Comparison::new("work", 1, &sides);
        for _ in 0..7 {
            comparison.run_round(|side| {
                let cpu_us = match side {
                    Side::Uncopy => 0.5,
                    Side::Mimalloc => 0.8,
                    _ => 1.0,
                };
                Ok(Sample { cpu_us: Some(cpu_us), ..sample(1.0) })
            });
        }
        assert_eq!(comparison.best_rival(), Some(Side::Mimalloc));
        let json = comparison.to_json();
        assert_eq!(
            (&json["best_rival"], &json["sides"]["uncopy"]["verdict"]),
            (&json!("mimalloc"), &json!("helps"))
        );
        let of_best =
            &json["sides"]["uncopy"]["server_cpu_us_per_operation"]["ratio_to_best_rival"]["median"];
        assert!((of_best.as_f64().expect("a ratio") - 0.625).abs() < 1e-9, "{of_best}");
        assert_eq!(compared(&[(1.0, 1.0)]).best_rival(), None);
    }
}
