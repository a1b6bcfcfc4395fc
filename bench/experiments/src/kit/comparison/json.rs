//! JSON form of a comparison: every figure with its ratios, and every slice by itself.

use serde_json::{Map, Value, json};

use super::{Comparison, Generation};
use crate::kit::sample::{METRICS, Metric, Sample};
use crate::kit::side::Side;
use crate::kit::statistics::Interval;

impl Comparison {
    /// Returns `ratio`, of `side` over `other`, with the ratios of the single processes.
    fn ratio_json(&self, ratio: Interval, side: Side, other: Side, metric: Metric) -> Value {
        let processes = self.ratio_by_process(side, other, metric).into_iter().map(|(interval, rounds)| {
            let mut value = json!(interval);
            value["rounds"] = json!(rounds);
            value
        });
        let mut value = json!(ratio);
        value["processes"] = processes.collect();
        value["rounds"] = json!(self.round_count());
        value["dropped"] = json!(self.dropped_count());
        value
    }

    /// Returns the samples of each process: a list for every figure, and the process's own trials.
    fn samples_json(&self) -> Value {
        let of_side = |generation: &Generation, side: usize| {
            let mut lists = Map::new();
            let mut list = |name: &str, of: &dyn Fn(&Sample) -> Option<Value>| {
                let all: Vec<_> = generation.rounds.iter().map(|round| of(&round.samples[side])).collect();
                if all.iter().any(Option::is_some) {
                    lists.insert(name.to_owned(), json!(all));
                }
            };
            list("cpu_ns", &|sample| Some(json!(sample.raw?.cpu_ns)));
            list("operations", &|sample| Some(json!(sample.raw?.operations)));
            list("elapsed_ns", &|sample| Some(json!(sample.raw?.elapsed_ns)));
            for (name, metric) in METRICS {
                // Figures of slices follow from the three lists above.
                list(name, &|sample| {
                    metric(sample).filter(|_| sample.raw.is_none()).map(|value| json!(value))
                });
            }
            Value::Object(lists)
        };
        let of_process = |generation: &Generation| {
            let sides = self.sides.iter().enumerate();
            let sides = sides.map(|(at, side)| (side.key().to_owned(), of_side(generation, at)));
            let trials = self.sides.iter().zip(&generation.process_samples);
            let trials = trials.filter_map(|(side, end)| Some((side.key().to_owned(), end.trials.clone()?)));
            json!({
                "trials": trials.collect::<Map<_, _>>(),
                "connection": generation.rounds.iter().map(|round| round.connection).collect::<Vec<_>>(),
                "dropped": generation.rounds.iter().map(|round| &round.drop_reason).collect::<Vec<_>>(),
                "distance_ns": generation.rounds.iter().map(|round| round.distance).collect::<Vec<_>>(),
                "retaken": generation.rounds.iter().map(|round| round.retries).collect::<Vec<_>>(),
                "sides": sides.collect::<Map<_, _>>(),
            })
        };
        self.generations.iter().map(of_process).collect()
    }

    /// Returns the whole comparison as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut sides = Map::new();
        for side in &self.sides {
            let mut figures = Map::new();
            for (key, metric) in METRICS {
                let Some(mut figure) = self.figure(*side, metric).map(|figure| json!(figure)) else {
                    continue;
                };
                let over = |other| Some((self.ratio_of(*side, other, metric)?, other));
                let ratios = [
                    ("ratio_to_plain", over(Side::Plain)),
                    ("ratio_to_zero_copy_limit", over(Side::Limit)),
                    ("ratio_to_best_rival", self.ratio_to_best(*side, metric)),
                ];
                for (name, ratio) in ratios {
                    if let Some((ratio, other)) = ratio.filter(|(_, other)| other != side) {
                        figure[name] = self.ratio_json(ratio, *side, other, metric);
                    }
                }
                figures.insert(key.to_owned(), figure);
            }
            let cpu = self.figure(*side, |sample| sample.cpu_us).filter(|_| self.operation_bytes > 0);
            if let Some(cpu) = cpu {
                let per_mib = cpu.scaled(self.cpu_us_per_mib(1.0));
                figures.insert("server_cpu_us_per_mib".to_owned(), json!(per_mib));
            }
            figures.insert("verified_bytes".to_owned(), json!(self.verified_bytes(*side)));
            if let Some(verdict) = self.verdict(*side, Side::Plain).filter(|_| *side != Side::Plain) {
                figures.insert("verdict".to_owned(), json!(verdict.to_string()));
            }
            sides.insert(side.key().to_owned(), Value::Object(figures));
        }
        json!({
            "experiment": self.title,
            "bytes_per_operation": self.operation_bytes,
            "parameters": self.parameters.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<Map<_, _>>(),
            "rounds": self.round_count(),
            "dropped": self.dropped_count(),
            "distance_ns": self.distance(),
            "best_rival": self.best_rival().map(Side::key),
            "sides": sides,
            "samples": self.samples_json(),
            "verified": self.is_verified(),
            "failure": self.failure,
            "skipped": self.skip_reason,
            "notes": self.notes(),
        })
    }
}
