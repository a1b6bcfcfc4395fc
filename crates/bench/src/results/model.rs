//! The results: what `uncopy bench report` measured, run by run, as it stores it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::kit::{Failure, Interval, Result};

/// Where they are stored, below the directory of the page.
pub const FILE: &str = "results/results.json";
/// What [`Results::format`] says.
const FORMAT: &str = "uncopy-results";
/// What [`Results::version`] says; raised when a reader of the old one would go wrong.
const VERSION: u32 = 2;

/// Everything that was measured of the same sources on the same machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The runs of the report, the earliest first.
    pub runs: Vec<Run>,
}

impl Default for Results {
    fn default() -> Self {
        Self { format: FORMAT.to_owned(), version: VERSION, runs: Vec::new() }
    }
}

/// What one `uncopy bench report` measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Whether less was measured, and shorter.
    pub quick: bool,
    /// Id of the tree of `crates` that the command was built from (`git rev-parse HEAD:crates`), `+` behind it if files
    /// of it were changed; `None` outside of a working tree.
    pub tree: Option<String>,
    /// The machine and the versions, in the order in which they are shown.
    pub machine: Vec<(String, String)>,
    /// How long it took, seconds.
    pub seconds: f64,
    /// The experiments in the order in which they were run.
    pub experiments: Vec<Measured>,
}

/// What became of one experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Its name in the register.
    pub id: String,
    /// The words behind `uncopy bench`.
    pub words: Vec<String>,
    /// What lay between clients and servers.
    pub network: String,
    /// How long it took, seconds.
    pub seconds: f64,
    /// Why there are no figures.
    pub failure: Option<String>,
    /// What the reader must know about the machine meanwhile.
    pub warning: Option<String>,
    /// Versions of what was measured.
    pub versions: Vec<(String, String)>,
    /// What was compared.
    pub cases: Vec<Case>,
    /// What follows from the figures, by JSON key.
    pub findings: BTreeMap<String, Value>,
    /// What the reader must know, each a line.
    pub notes: Vec<String>,
    /// The table as the command by itself prints it.
    pub text: String,
}

/// The same work under several sides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// What is compared.
    pub title: String,
    /// Bytes of one operation.
    pub operation_bytes: u64,
    /// Parameters of the work.
    pub parameters: BTreeMap<String, f64>,
    /// Why there are no figures.
    pub obstacle: Option<String>,
    /// Rounds that count.
    pub rounds: usize,
    /// Rounds that do not, because others disturbed them.
    pub dropped: usize,
    /// Fresh processes of each side.
    pub processes: usize,
    /// How far server and clients were apart in the rounds that count, ns; `None`: not known.
    #[serde(default)]
    pub distance_ns: Option<f64>,
    /// Bytes that were compared with what they should be, under every side at least.
    pub verified_bytes: u64,
    /// The sides; plain is the first.
    pub sides: Vec<Figures>,
    /// Every sample of every process ([`crate::kit::Comparison::to_json`]).
    pub samples: Value,
}

/// What one side of a case gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The side's name.
    pub side: String,
    /// Operations per second.
    pub rate: Option<Interval>,
    /// Processor time per operation, µs.
    pub cpu_us: Option<Interval>,
    /// Its figures over those of other sides.
    pub ratios: Vec<Ratio>,
}

/// What a ratio is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Processor time per operation: less is better.
    Cpu,
    /// Operations per second: more is better.
    Rate,
    /// Resident memory: less is better.
    Memory,
    /// Where there is no rate, the time that the work took: less is better.
    Time,
    /// Where there is no rate, the part of the machine that the work took: less is better.
    Load,
}

/// A figure of one side over the same of another, round by round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Of what.
    pub of: Quantity,
    /// The other side.
    pub over: String,
    /// The ratio.
    #[serde(flatten)]
    pub interval: Interval,
    /// What each process by itself says, with the number of its rounds; nothing where each had one.
    pub processes: Vec<(Interval, usize)>,
}

impl Results {
    /// Reads a file that [`Results::to_json`] wrote.
    ///
    /// # Errors
    /// [`Failure`] that says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self> {
        let not_ours = |why: &str| Failure::new(format!("these are no results: {why}"));
        let value: Value = serde_json::from_str(text).map_err(|error| not_ours(&error.to_string()))?;
        if value["format"] != FORMAT || value["version"] != VERSION {
            return Err(not_ours(&format!(
                "their form is {} {}; this uncopy reads \"{FORMAT}\" {VERSION}",
                value["format"], value["version"]
            )));
        }
        serde_json::from_value(value).map_err(|error| not_ours(&error.to_string()))
    }

    /// The file's text.
    ///
    /// # Errors
    /// [`Failure`] if something in it cannot be written.
    pub fn to_json(&self) -> Result<String> {
        let text = serde_json::to_string(self);
        text.map(|text| text + "\n").map_err(|error| Failure::new(format!("writing the results: {error}")))
    }
}

impl Case {
    /// What the side with this name gave.
    #[must_use]
    pub fn side(&self, name: &str) -> Option<&Figures> {
        self.sides.iter().find(|figures| figures.side == name)
    }
}

impl Figures {
    /// The ratio of `of` over the side `over`.
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
        let measured = Measured { id: "copies".into(), cases: vec![case], ..Measured::default() };
        let run = Run { tree: Some("abc".into()), experiments: vec![measured], ..Run::default() };
        let results = Results { runs: vec![run], ..Results::default() };
        let text = results.to_json().expect("written");
        assert_eq!(Results::parse(&text), Ok(results));
        for bad in ["", "{}", "[]", &text[..text.len() / 2], &text.replacen("uncopy-results", "other", 1)] {
            assert!(Results::parse(bad).is_err(), "{bad}");
        }
    }
}
