//! The results of `uncopy-bench report`, run by run, as they are stored.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::kit::{Failure, Interval, Result};

/// Path of the stored results, below the directory of the page.
pub const RESULTS_PATH: &str = "results/results.json";
/// Only valid value of [`Results::format`].
const FORMAT: &str = "uncopy-results";
/// Value of [`Results::version`]; raised when a reader of the old version would go wrong.
const VERSION: u32 = 2;

/// All measurements of the same sources on the same machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Always [`FORMAT`] in a valid file.
    pub format: String,
    /// Always [`VERSION`] in a valid file.
    pub version: u32,
    /// The runs of the report, the earliest first.
    pub runs: Vec<Run>,
}

impl Default for Results {
    fn default() -> Self {
        Self { format: FORMAT.to_owned(), version: VERSION, runs: Vec::new() }
    }
}

/// The measurements of one `uncopy-bench report`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// True for a quick run, which measures less and shorter.
    pub quick: bool,
    /// Id of the tree of `crates` that the command was built from (`git rev-parse HEAD:crates`), followed by `+` if
    /// its files were changed; `None` outside of a working tree.
    pub tree: Option<String>,
    /// The machine and the versions, in the order in which they are shown.
    pub machine: Vec<(String, String)>,
    /// Duration of the run, seconds.
    pub seconds: f64,
    /// The experiments in the order in which they were run.
    pub experiments: Vec<ExperimentResult>,
}

/// The result of one experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExperimentResult {
    /// Name of the entry in the register.
    pub id: String,
    /// Command-line arguments of `uncopy-bench`.
    pub words: Vec<String>,
    /// Network between clients and servers.
    pub network: String,
    /// Duration of the experiment, seconds.
    pub seconds: f64,
    /// Reason why there are no figures.
    pub failure: Option<String>,
    /// Warning about the machine during the experiment.
    pub warning: Option<String>,
    /// Versions of the measured programs.
    pub versions: Vec<(String, String)>,
    /// Measured cases, in the order of the experiment.
    pub cases: Vec<Case>,
    /// Conclusions from the figures, by JSON key.
    pub findings: BTreeMap<String, Value>,
    /// Notes for the reader, one per line.
    pub notes: Vec<String>,
    /// The table as the command prints it by itself.
    pub text: String,
}

/// The same work under several sides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Title of the compared work.
    pub title: String,
    /// Bytes per operation.
    pub operation_bytes: u64,
    /// Parameters of the work.
    pub parameters: BTreeMap<String, f64>,
    /// Reason why there are no figures.
    pub obstacle: Option<String>,
    /// Number of rounds that count.
    pub rounds: usize,
    /// Number of rounds dropped, because others disturbed them.
    pub dropped: usize,
    /// Number of fresh processes of each side.
    pub processes: usize,
    /// Distance between server and clients in the rounds that count, ns; `None` if unknown.
    #[serde(default)]
    pub distance_ns: Option<f64>,
    /// Minimum over the sides of the bytes compared with the expected ones.
    pub verified_bytes: u64,
    /// Figures of each side, plain first.
    pub sides: Vec<Figures>,
    /// Every sample of every process ([`crate::kit::Comparison::to_json`]).
    pub samples: Value,
}

/// Figures of one side of a case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Name of the side.
    pub side: String,
    /// Rate of operations per second.
    pub rate: Option<Interval>,
    /// Processor time per operation, µs.
    pub cpu_us: Option<Interval>,
    /// Ratios of the side's figures over those of other sides.
    pub ratios: Vec<Ratio>,
}

/// The quantity of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Processor time per operation: less is better.
    Cpu,
    /// Operations per second: more is better.
    Rate,
    /// Resident memory: less is better.
    Memory,
    /// Time that the work took, where there is no rate: less is better.
    Time,
    /// Part of the machine that the work took, where there is no rate: less is better.
    Load,
}

/// A figure of one side over the same of another, round by round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Quantity of both figures.
    pub of: Quantity,
    /// Name of the other side.
    pub over: String,
    /// Median of the ratio, with its interval.
    #[serde(flatten)]
    pub interval: Interval,
    /// Ratio of each process by itself, with the number of its rounds; empty if each had one round.
    pub processes: Vec<(Interval, usize)>,
}

/// Results by the system that the measured programs are from.
#[derive(Clone, Debug, Default)]
pub struct Systems {
    /// Those of the first run's system.
    pub first: Results,
    /// Those of further systems, by name.
    pub others: Vec<(String, Results)>,
}

impl Run {
    /// Name of the system that the measured programs are from.
    fn system(&self) -> &str {
        self.machine.iter().find(|(key, _)| key == "system").map_or("", |(_, system)| system)
    }
}

impl Results {
    /// Returns every case once, as experiment and title.
    #[must_use]
    pub fn cases(&self) -> BTreeSet<(&str, &str)> {
        let experiments = self.runs.iter().flat_map(|run| &run.experiments);
        experiments
            .flat_map(|measured| {
                measured.cases.iter().map(|case| (measured.id.as_str(), case.title.as_str()))
            })
            .collect()
    }

    /// Splits the runs by the system that the measured programs are from.
    #[must_use]
    pub fn by_system(&self) -> Systems {
        let mut systems = Systems::default();
        for run in &self.runs {
            if systems.first.runs.first().is_none_or(|first| first.system() == run.system()) {
                systems.first.runs.push(run.clone());
                continue;
            }
            let known = systems.others.iter().position(|(name, _)| name == run.system());
            let at = known.unwrap_or(systems.others.len());
            if known.is_none() {
                systems.others.push((run.system().to_owned(), Self::default()));
            }
            systems.others[at].1.runs.push(run.clone());
        }
        systems
    }

    /// Parses a file that [`Results::to_json`] wrote.
    ///
    /// # Errors
    /// [`Failure`] with the defect of the file.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = |why: &str| Failure::new(format!("not a results file: {why}"));
        let value: Value = serde_json::from_str(text).map_err(|error| invalid(&error.to_string()))?;
        if value["format"] != FORMAT || value["version"] != VERSION {
            return Err(invalid(&format!(
                "its format is {} {}, but this program reads \"{FORMAT}\" {VERSION}",
                value["format"], value["version"]
            )));
        }
        serde_json::from_value(value).map_err(|error| invalid(&error.to_string()))
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    /// [`Failure`] if a value cannot be serialized.
    pub fn to_json(&self) -> Result<String> {
        let text = serde_json::to_string(self);
        text.map(|text| text + "\n").map_err(|error| Failure::new(format!("writing the results: {error}")))
    }
}

impl Case {
    /// Returns the figures of the side called `name`.
    #[must_use]
    pub fn side(&self, name: &str) -> Option<&Figures> {
        self.sides.iter().find(|figures| figures.side == name)
    }
}

impl Figures {
    /// Returns the ratio of `of` over the side `over`.
    #[must_use]
    pub fn ratio(&self, of: Quantity, over: &str) -> Option<&Ratio> {
        self.ratios.iter().find(|ratio| ratio.of == of && ratio.over == over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_read_back_and_others_are_refused() {
        let interval = Interval { median: 1.25, low: 1.1, high: 1.4 };
        let ratio =
            Ratio { of: Quantity::Cpu, over: "plain".into(), interval, processes: vec![(interval, 9)] };
        let side = Figures { side: "uncopy".into(), ratios: vec![ratio], ..Figures::default() };
        let case = Case { title: "echo".into(), sides: vec![side], ..Case::default() };
        let measured =
            ExperimentResult { id: "copies".into(), cases: vec![case], ..ExperimentResult::default() };
        let run = Run { tree: Some("abc".into()), experiments: vec![measured], ..Run::default() };
        let results = Results { runs: vec![run], ..Results::default() };
        let text = results.to_json().expect("written");
        assert_eq!(Results::parse(&text), Ok(results));
        for bad in ["", "{}", "[]", &text[..text.len() / 2], &text.replacen("uncopy-results", "other", 1)] {
            assert!(Results::parse(bad).is_err(), "{bad}");
        }
    }
}
