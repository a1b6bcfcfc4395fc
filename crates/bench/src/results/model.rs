//! The results of all experiments: what `uncopy bench report` measures, stores and shows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::kit::{Failure, Interval, Plot, Result};

/// What [`Results::format`] says.
const FORMAT: &str = "uncopy-results";
/// What [`Results::version`] says; raised when a reader of the old one would go wrong.
const VERSION: u32 = 1;

/// Everything that one `uncopy bench report` measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Whether less was measured, and shorter.
    pub quick: bool,
    /// The commit of the working tree that the command lies in, `+` behind it if files of it were changed.
    pub commit: Option<String>,
    /// The machine and the versions, in the order in which they are shown.
    pub machine: Vec<(String, String)>,
    /// How long it took, seconds.
    pub seconds: f64,
    /// The experiments in the order of the register.
    pub experiments: Vec<Measured>,
}

impl Default for Results {
    fn default() -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            quick: false,
            commit: None,
            machine: Vec::new(),
            seconds: 0.0,
            experiments: Vec::new(),
        }
    }
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
    /// A line for each case and side.
    pub rows: Vec<Row>,
    /// What follows from the figures, by JSON key.
    pub findings: BTreeMap<String, Value>,
    /// What the reader must know, each a line.
    pub notes: Vec<String>,
    /// The table as the command by itself prints it.
    pub text: String,
    /// The figures as lines.
    pub plot: Option<Plot>,
    /// Whether it was measured a second time, to see whether the same comes out.
    pub repeated: bool,
}

/// One case under one side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What is compared.
    pub case: String,
    /// Under what.
    pub side: String,
    /// Bytes of one operation.
    pub operation_bytes: u64,
    /// Parameters of the work.
    pub parameters: BTreeMap<String, f64>,
    /// Why there are no figures.
    pub obstacle: Option<String>,
    /// Bytes that were compared with what they should be.
    pub verified_bytes: u64,
    /// Operations per second.
    pub rate: Option<Interval>,
    /// Processor time per operation, µs.
    pub cpu_us: Option<Interval>,
    /// Rate over plain's.
    pub ratio: Option<Interval>,
    /// Where there is no rate: time, latency or load over plain's.
    pub time_ratio: Option<TimeRatio>,
    /// Processor time over plain's.
    pub cpu_ratio: Option<Interval>,
    /// Resident memory over plain's.
    pub resident_ratio: Option<Interval>,
    /// Rate over that of the same server without copies.
    pub of_limit: Option<Interval>,
    /// By how much the medians of `ratio` would differ between two runs like this one, as a part.
    pub difference_of_runs: Option<f64>,
    /// The same of `cpu_ratio`.
    pub cpu_difference_of_runs: Option<f64>,
    /// The median of the ratio by which it is judged when it was measured a second time.
    pub second_ratio: Option<f64>,
}

/// A ratio of which less is better.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeRatio {
    /// Of what: `time`, `load`.
    pub of: String,
    /// The ratio to plain.
    pub ratio: Interval,
    /// By how much its medians would differ between two runs like this one, as a part.
    pub difference_of_runs: Option<f64>,
}

impl Row {
    /// The ratio by which the row is judged, and by how much it would differ between two runs.
    #[must_use]
    pub fn main_ratio(&self) -> Option<(Interval, Option<f64>)> {
        let time = || self.time_ratio.as_ref().map(|time| (time.ratio, time.difference_of_runs));
        self.ratio.map(|ratio| (ratio, self.difference_of_runs)).or_else(time)
    }
}

impl Results {
    /// Reads a file that [`Results::to_json`] wrote.
    ///
    /// # Errors
    /// [`Failure`] that says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self> {
        let results: Self = serde_json::from_str(text)
            .map_err(|error| Failure::new(format!("these are no results: {error}")))?;
        if results.format != FORMAT || results.version != VERSION {
            return Err(Failure::new(format!(
                "these are results in the form {} {}; this uncopy reads {FORMAT} {VERSION}",
                results.format, results.version
            )));
        }
        Ok(results)
    }

    /// The file's text.
    ///
    /// # Errors
    /// [`Failure`] if something in it cannot be written.
    pub fn to_json(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self);
        text.map(|text| text + "\n").map_err(|error| Failure::new(format!("writing the results: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_read_back_and_others_are_refused() {
        let mut results = Results { commit: Some("abc".into()), ..Results::default() };
        let spread = Interval { median: 1.25, low: 1.1, high: 1.4 };
        let row = Row { case: "echo".into(), ratio: Some(spread), ..Row::default() };
        results.experiments.push(Measured { id: "copies".into(), rows: vec![row], ..Measured::default() });
        let text = results.to_json().expect("written");
        assert_eq!(Results::parse(&text), Ok(results));
        for bad in ["", "{}", "[]", &text[..text.len() / 2], &text.replacen("uncopy-results", "other", 1)] {
            assert!(Results::parse(bad).is_err(), "{bad}");
        }
    }
}
