//! The result of an experiment for its reader: a table with notes, or JSON, and a plot on request.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::kit::arguments::CommonOptions;
use crate::kit::comparison::Comparison;
use crate::kit::failure::{Result, While};
use crate::kit::host::Machine;
use crate::kit::plot::Plot;
use crate::kit::side::Side;
use crate::kit::verdict::{Verdict, expected_false_differences};

/// The result of one experiment.
#[derive(Debug)]
pub struct Report {
    /// All comparisons of the experiment.
    pub comparisons: Vec<Comparison>,
    /// The table with the explanation of its columns.
    pub text: String,
    /// Conclusions from the figures, by JSON key.
    pub findings: Vec<(&'static str, Value)>,
    /// Versions of the measured programs.
    pub versions: Vec<(&'static str, String)>,
    /// The plot of the figures.
    pub plot: Plot,
}

impl Report {
    /// Creates a report without findings and versions.
    #[must_use]
    pub fn new(comparisons: Vec<Comparison>, text: String, plot: Plot) -> Self {
        Self { comparisons, text, findings: Vec::new(), versions: Vec::new(), plot }
    }

    /// Creates the report of `comparisons`, without findings and versions.
    #[must_use]
    pub fn of(
        comparisons: Vec<Comparison>,
        render: impl FnOnce(&[Comparison]) -> String,
        plot: impl FnOnce(&[Comparison]) -> Plot,
    ) -> Self {
        let (text, plot) = (render(&comparisons), plot(&comparisons));
        Self::new(comparisons, text, plot)
    }

    /// Adds the findings that `find` derives from the comparisons.
    #[must_use]
    pub fn with_findings(mut self, find: impl FnOnce(&[Comparison]) -> Vec<(&'static str, Value)>) -> Self {
        self.findings = find(&self.comparisons);
        self
    }

    /// True if everything was verified and nothing else went wrong.
    #[must_use]
    pub fn is_flawless(&self) -> bool {
        self.comparisons.iter().all(Comparison::is_flawless)
    }

    /// Writes the plot if `common` asks for it, and returns the text for standard output.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when the plot cannot be drawn or written.
    pub fn render(&self, mut machine: Machine, common: &CommonOptions) -> Result<String> {
        for (key, version) in &self.versions {
            machine.add(key, version);
        }
        if let Some(path) = &common.svg {
            write(path, &self.plot.to_svg()?)?;
        }
        if common.json {
            return Ok(format!("{:#}\n", self.to_json(&machine)));
        }
        let verdicts = verdict_summary(&self.comparisons).unwrap_or_default();
        Ok(format!("{}\n{}{verdicts}{}", machine.render(), self.text, notes(&self.comparisons)))
    }

    fn to_json(&self, machine: &Machine) -> Value {
        let comparisons: Vec<Value> = self.comparisons.iter().map(Comparison::to_json).collect();
        let fixed = [
            ("schema", json!(uncopy_core::schema::BENCH)),
            ("machine", machine.to_json()),
            ("comparisons", json!(comparisons)),
        ];
        let found = self.findings.iter().cloned();
        Value::Object(
            fixed.into_iter().chain(found).map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>(),
        )
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).doing(format_args!("writing {}", path.display()))
}

/// Returns the number of verdicts, and the number of false differences among them that chance alone would give.
fn verdict_summary(comparisons: &[Comparison]) -> Option<String> {
    let of = |comparison: &Comparison| -> Vec<Verdict> {
        let sides = comparison.sides().iter().filter(|side| **side != Side::Plain);
        sides.filter_map(|side| comparison.verdict(*side, Side::Plain)).collect()
    };
    let verdicts: Vec<Verdict> = comparisons.iter().flat_map(of).collect();
    let differences = verdicts.iter().filter(|verdict| verdict.is_difference()).count();
    let (kept, dropped) = comparisons.iter().fold((0, 0), |(kept, dropped), comparison| {
        (kept + comparison.round_count(), dropped + comparison.dropped_count())
    });
    let busy = match dropped {
        0 => String::new(),
        _ => {
            format!("{dropped} of {} rounds were dropped because the machine was too busy\n", kept + dropped)
        }
    };
    (!verdicts.is_empty()).then(|| {
        format!(
            "{} verdicts, {differences} of them helps or costs; at most {:.1} expected by chance\n{busy}",
            verdicts.len(),
            expected_false_differences(verdicts.len())
        )
    })
}

/// Returns the comparisons' notes, one per line.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::sample::Sample;

    #[test]
    fn verdicts_are_counted_with_those_that_chance_would_give() {
        let mut comparison = Comparison::new("work", 1, &[Side::Plain, Side::PlainAgain, Side::Uncopy]);
        assert_eq!(verdict_summary(std::slice::from_ref(&comparison)), None);
        for _ in 0..7 {
            comparison.run_round(|side| {
                let cpu_us = Some(if side == Side::Uncopy { 0.5 } else { 1.0 });
                Ok(Sample { cpu_us, verified_bytes: Some(1), ..Sample::default() })
            });
        }
        let line = verdict_summary(&[comparison]).expect("verdicts");
        assert_eq!(line, "2 verdicts, 1 of them helps or costs; at most 0.1 expected by chance\n");
    }
}
