//! What an experiment gives its reader: a table with notes, or JSON, and a plot where one is asked for.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::arguments::Form;
use crate::comparison::Comparison;
use crate::failure::{Result, While};
use crate::machine::Machine;
use crate::plot::Plot;

/// The result of one experiment.
#[derive(Debug)]
pub struct Report {
    /// What was measured.
    pub comparisons: Vec<Comparison>,
    /// The table and what its columns mean.
    pub text: String,
    /// What follows from the figures, by JSON key.
    pub findings: Vec<(&'static str, Value)>,
    /// Versions of what was measured.
    pub versions: Vec<(&'static str, String)>,
    /// The figures as lines.
    pub plot: Plot,
}

impl Report {
    /// A report without findings and versions.
    #[must_use]
    pub fn new(comparisons: Vec<Comparison>, text: String, plot: Plot) -> Self {
        Self { comparisons, text, findings: Vec::new(), versions: Vec::new(), plot }
    }

    /// Whether everything was verified and nothing else went wrong.
    #[must_use]
    pub fn is_flawless(&self) -> bool {
        self.comparisons.iter().all(Comparison::is_flawless)
    }

    /// Writes the plot if `form` asks for it, and returns what goes to standard output.
    ///
    /// # Errors
    /// [`crate::failure::Failure`] when the plot cannot be drawn or written.
    pub fn present(&self, mut machine: Machine, form: &Form) -> Result<String> {
        for (key, version) in &self.versions {
            machine.add(key, version);
        }
        if let Some(path) = &form.svg {
            write(path, &self.plot.to_svg()?)?;
        }
        if form.json {
            return Ok(format!("{:#}\n", self.to_json(&machine)));
        }
        Ok(format!("{}\n{}{}", machine.render(), self.text, notes(&self.comparisons)))
    }

    fn to_json(&self, machine: &Machine) -> Value {
        let comparisons: Vec<Value> = self.comparisons.iter().map(Comparison::to_json).collect();
        let fixed = [("machine", machine.to_json()), ("comparisons", json!(comparisons))];
        let found = self.findings.iter().cloned();
        Value::Object(
            fixed.into_iter().chain(found).map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>(),
        )
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).doing(format_args!("writing {}", path.display()))
}

/// The comparisons' notes, a line each.
#[must_use]
pub fn notes(comparisons: &[Comparison]) -> String {
    let line = |title: &str, note: &str| {
        let note: String = note.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("note: {title}: {note}\n")
    };
    comparisons
        .iter()
        .flat_map(|comparison| comparison.notes().into_iter().map(|note| line(comparison.title(), &note)))
        .collect()
}
