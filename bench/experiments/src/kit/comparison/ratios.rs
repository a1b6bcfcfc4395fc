//! Figures of a comparison, and the ratios of one side to another.

use super::{Comparison, Generation, Round};
use crate::kit::sample::{Metric, Sample};
use crate::kit::side::Side;
use crate::kit::statistics::{Interval, Rival, median};
use crate::kit::verdict::Verdict;

/// Minimum part of a cycle's rounds that must count for the cycle to count.
const MIN_CYCLE_FRACTION: f64 = 0.9;

/// Figures of the rounds of one process, by connection.
type ByConnection = Vec<Vec<f64>>;

impl Comparison {
    /// Half-width of a ratio's interval, as a part of the ratio, that is precise enough.
    pub const PRECISION: f64 = 0.02;

    /// Returns `value` of each round that counts, by process and connection. If no round has it, the values of the
    /// processes as a whole; `None` if only some rounds have it.
    fn values(&self, value: impl Fn(&[Sample]) -> Option<f64>) -> Option<Vec<ByConnection>> {
        let distance = self.distance();
        let of_rounds = |generation: &Generation| {
            let rounds: Vec<&Round> = generation.counted_rounds(distance).collect();
            let connections = rounds.chunk_by(|one, other| one.connection == other.connection);
            let of_connection = |rounds: &[&Round]| {
                if self.is_cyclic {
                    let is_of_it = |round: &&Round| round.connection == rounds[0].connection;
                    let all = generation.rounds.iter().filter(is_of_it).count();
                    // An incomplete cycle is different work.
                    let is_whole = rounds.len() as f64 >= MIN_CYCLE_FRACTION * all as f64;
                    return if is_whole { Some(vec![value(&mean(rounds))?]) } else { Some(Vec::new()) };
                }
                rounds.iter().map(|round| value(&round.samples)).collect()
            };
            connections.map(of_connection).collect()
        };
        let of_ends = |generation: &Generation| Some(vec![vec![value(&generation.process_samples)?]]);
        let all = |of: &dyn Fn(&Generation) -> Option<ByConnection>| {
            self.generations.iter().map(of).collect::<Option<Vec<_>>>()
        };
        let is_measured = |all: &Vec<ByConnection>| all.iter().any(|process| !process.is_empty());
        all(&of_rounds).filter(is_measured).or_else(|| all(&of_ends))
    }

    /// Returns a figure under a side.
    #[must_use]
    pub fn figure(&self, side: Side, metric: Metric) -> Option<Interval> {
        let index = self.index(side)?;
        pooled(&self.values(|samples| metric(samples.get(index)?))?, Interval::of_groups)
    }

    /// Returns a figure under `side` over the same under [`Side::Plain`], round by round.
    #[must_use]
    pub fn ratio(&self, side: Side, metric: Metric) -> Option<Interval> {
        self.ratio_of(side, Side::Plain, metric)
    }

    /// Returns a figure under `side` over that under `other`, round by round; `None` unless everything is verified.
    #[must_use]
    pub fn ratio_of(&self, side: Side, other: Side, metric: Metric) -> Option<Interval> {
        pooled(&self.ratios(side, other, metric)?, Interval::of_ratios)
    }

    /// Returns the ratio of each process by itself, with the number of its rounds.
    #[must_use]
    pub fn ratio_by_process(&self, side: Side, other: Side, metric: Metric) -> Vec<(Interval, usize)> {
        let of_one = |process: ByConnection| {
            let rounds = process.iter().map(Vec::len).sum();
            Some((Interval::of_ratios(&process)?, rounds))
        };
        let ratios = self.ratios(side, other, metric).unwrap_or_default();
        if has_one_value_each(&ratios) { Vec::new() } else { ratios.into_iter().filter_map(of_one).collect() }
    }

    /// True if every ratio to plain of `metric` is known to [`Comparison::PRECISION`], or was not measured.
    #[must_use]
    pub fn is_precise(&self, metric: Metric) -> bool {
        self.is_precise_to(Self::PRECISION, metric)
    }

    /// True if half the width of every ratio's interval is at most `fraction` of the ratio.
    #[must_use]
    pub fn is_precise_to(&self, fraction: f64, metric: Metric) -> bool {
        self.sides
            .iter()
            .all(|side| self.ratio(*side, metric).is_none_or(|ratio| ratio.half_width() <= fraction))
    }

    /// Returns the verdict on `side` over `other`, by processor time per operation.
    #[must_use]
    pub fn verdict(&self, side: Side, other: Side) -> Option<Verdict> {
        Some(Verdict::of(self.ratio_of(side, other, |sample| sample.cpu_us)?, self.round_count()))
    }

    /// Returns the rival with the least processor time per operation; `None` if only plain was measured.
    #[must_use]
    pub fn best_rival(&self) -> Option<Side> {
        let cost = |side: Side| Some((side, self.ratio(side, |sample| sample.cpu_us)?.median));
        let costs: Vec<(Side, f64)> = self.rivals().filter_map(cost).collect();
        let least = costs.iter().min_by(|one, other| one.1.total_cmp(&other.1)).filter(|_| costs.len() > 1);
        least.map(|(side, _)| *side)
    }

    /// Returns a figure under `side` over the same under the best rival, with that rival. The rival is picked for each
    /// process by all other processes (with few processes, by all), and named by
    /// [`best_rival`](Comparison::best_rival). `None` if the best rival is `side`.
    #[must_use]
    pub fn ratio_to_best(&self, side: Side, metric: Metric) -> Option<(Interval, Side)> {
        let best = self.best_rival().filter(|best| *best != side)?;
        let medians = |side, other, metric| {
            let processes = self.ratio_by_process(side, other, metric);
            processes.iter().map(|(interval, _)| interval.median).collect()
        };
        let rival = |rival| Rival {
            costs: medians(rival, Side::Plain, |sample| sample.cpu_us),
            ratios: medians(side, rival, metric),
        };
        let rivals: Vec<Rival> = self.rivals().map(rival).collect();
        let ratio = Interval::over_best(&rivals).or_else(|| self.ratio_of(side, best, metric))?;
        Some((ratio, best))
    }

    fn rivals(&self) -> impl Iterator<Item = Side> {
        self.sides.iter().copied().filter(|side| side.is_rival())
    }

    /// Returns a figure under `side` over that under [`Side::Limit`], round by round; `None` for sides without it.
    #[must_use]
    pub fn ratio_to_limit(&self, side: Side, metric: Metric) -> Option<Interval> {
        self.ratio_of(side, Side::Limit, metric).filter(|_| side != Side::Limit)
    }

    /// Returns the processor time per MiB, µs, of an operation that takes `cpu_us`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
    pub fn cpu_us_per_mib(&self, cpu_us: f64) -> f64 {
        cpu_us * f64::from(1 << 20) / self.operation_bytes.max(1) as f64
    }

    /// Returns a figure of `side` over the same in `other`, which has other processes: one ratio for each process of
    /// both; `None` unless both comparisons are verified.
    #[must_use]
    pub fn ratio_to(&self, other: &Self, side: Side, metric: Metric) -> Option<Interval> {
        if !self.is_verified() || !other.is_verified() {
            return None;
        }
        let medians = |comparison: &Self| {
            let index = comparison.index(side)?;
            let values = comparison.values(|samples| metric(samples.get(index)?))?;
            Some(values.iter().filter_map(|process| median(&process.concat())).collect::<Vec<_>>())
        };
        let pairs = medians(self)?.into_iter().zip(medians(other)?);
        Interval::of_ratios(&pairs.map(|(mine, its)| vec![mine / its]).collect::<Vec<_>>())
    }

    fn ratios(&self, side: Side, other: Side, metric: Metric) -> Option<Vec<ByConnection>> {
        let (index, other) = (self.index(side)?, self.index(other)?);
        let ratio = |samples: &[Sample]| Some(metric(samples.get(index)?)? / metric(samples.get(other)?)?);
        self.values(ratio).filter(|_| self.is_verified())
    }

    /// Returns the difference between a figure under `side` and under [`Side::Plain`], round by round.
    #[must_use]
    pub fn difference(&self, side: Side, metric: Metric) -> Option<Interval> {
        let (index, plain) = (self.index(side)?, self.index(Side::Plain)?);
        let difference =
            |samples: &[Sample]| Some(metric(samples.get(index)?)? - metric(samples.get(plain)?)?);
        pooled(&self.values(difference).filter(|_| self.is_verified())?, Interval::of_groups)
    }
}

/// Returns the mean of each side's rate and processor time.
#[expect(clippy::cast_precision_loss, reason = "few rounds")]
fn mean(rounds: &[&Round]) -> Vec<Sample> {
    let of = |side: usize, metric: Metric| {
        let sum = rounds.iter().map(|round| metric(round.samples.get(side)?)).sum::<Option<f64>>();
        sum.map(|sum| sum / rounds.len() as f64)
    };
    let mean = |side| Sample {
        operations_per_s: of(side, |sample| sample.operations_per_s),
        cpu_us: of(side, |sample| sample.cpu_us),
        ..Sample::default()
    };
    (0..rounds.first().map_or(0, |round| round.samples.len())).map(mean).collect()
}

/// True if no process has more than one value, since each was run as a whole.
fn has_one_value_each(processes: &[ByConnection]) -> bool {
    processes.iter().all(|process| process.iter().map(Vec::len).sum::<usize>() <= 1)
}

/// Applies `interval` to the values of all processes, or of the connections of a single process.
fn pooled(
    processes: &[ByConnection],
    interval: impl Fn(&[Vec<f64>]) -> Option<Interval>,
) -> Option<Interval> {
    if has_one_value_each(processes) {
        return interval(&[processes.iter().flatten().flatten().copied().collect()]);
    }
    let of_connections =
        |process: &ByConnection| process.iter().filter_map(|values| median(values)).collect();
    // A single process varies by its connections only.
    match processes {
        [process] => interval(process),
        _ => interval(&processes.iter().map(of_connections).collect::<Vec<_>>()),
    }
}
