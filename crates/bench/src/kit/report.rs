//! What an experiment gives its reader: a table with notes, or JSON, and a plot where one is asked for.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::kit::arguments::Form;
use crate::kit::comparison::Comparison;
use crate::kit::failure::{Result, While};
use crate::kit::figures::RATE;
use crate::kit::host::Machine;
use crate::kit::plot::Plot;
use crate::kit::side::Side;
use crate::kit::statistics::NOISE;

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

    /// The report of `comparisons`, without findings and versions.
    #[must_use]
    pub fn of(
        comparisons: Vec<Comparison>,
        render: impl FnOnce(&[Comparison]) -> String,
        plot: impl FnOnce(&[Comparison]) -> Plot,
    ) -> Self {
        let (text, plot) = (render(&comparisons), plot(&comparisons));
        Self::new(comparisons, text, plot)
    }

    /// The same with what follows from the comparisons.
    #[must_use]
    pub fn finding(mut self, find: impl FnOnce(&[Comparison]) -> Vec<(&'static str, Value)>) -> Self {
        self.findings = find(&self.comparisons);
        self
    }

    /// Whether everything was verified and nothing else went wrong.
    #[must_use]
    pub fn is_flawless(&self) -> bool {
        self.comparisons.iter().all(Comparison::is_flawless)
    }

    /// Writes the plot if `form` asks for it, and returns what goes to standard output.
    ///
    /// # Errors
    /// [`crate::kit::failure::Failure`] when the plot cannot be drawn or written.
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
        let noise = noise(&self.comparisons).unwrap_or_default();
        Ok(format!("{}\n{}{noise}{}", machine.render(), self.text, notes(&self.comparisons)))
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

/// Ratios that a line about noise names.
const MAX_NAMED: usize = 4;

/// A line that tells which ratios of throughput would not come out again, the worst first; `None` where all would.
fn noise(comparisons: &[Comparison]) -> Option<String> {
    let sides = |comparison: &'_ Comparison| {
        let others = comparison.sides().iter().filter(|side| **side != Side::Plain);
        let part = |side: &Side| Some((comparison.difference_of_runs(*side, RATE)?, side.name()));
        others
            .filter_map(part)
            .map(|(part, side)| (part, format!("{}, {side}", comparison.title())))
            .collect()
    };
    let all: Vec<(f64, String)> =
        comparisons.iter().flat_map(|comparison| -> Vec<_> { sides(comparison) }).collect();
    let mut noisy: Vec<&(f64, String)> = all.iter().filter(|(part, _)| *part > NOISE).collect();
    noisy.sort_by(|one, other| other.0.total_cmp(&one.0));
    let named: Vec<String> =
        noisy.iter().take(MAX_NAMED).map(|(part, name)| format!("{name} by {:.0} %", part * 100.0)).collect();
    let more = if noisy.len() > MAX_NAMED { "; …" } else { "" };
    (!noisy.is_empty()).then(|| {
        format!(
            "note: too noisy: between two runs like this one, the medians of {} of {} ratios would differ by more than \
             {:.0} %: {}{more}; believe their spreads, or take more rounds, as by --rounds 7..50\n",
            noisy.len(),
            all.len(),
            NOISE * 100.0,
            named.join("; ")
        )
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::comparison::Sample;

    fn compared(title: &str, gains: &[f64]) -> Comparison {
        let mut comparison = Comparison::new(title, 1, &[Side::Plain, Side::Uncopy]);
        for gain in gains {
            comparison.round(|side| {
                let operations_per_s = if side == Side::Plain { 1.0 } else { *gain };
                Ok(Sample {
                    operations_per_s: Some(operations_per_s),
                    verified_bytes: Some(1),
                    ..Sample::default()
                })
            });
        }
        comparison
    }

    #[test]
    fn ratios_that_would_not_come_out_again_are_named() {
        let steady = compared("steady", &[1.2; 7]);
        assert_eq!(noise(std::slice::from_ref(&steady)), None);
        let line = noise(&[steady, compared("wild", &[0.5, 2.0, 0.9, 1.6, 1.1])]).expect("noise");
        assert!(line.starts_with("note: too noisy: ") && line.ends_with('\n'), "{line}");
        assert!(line.contains("1 of 2 ratios") && line.contains("wild, uncopy by "), "{line}");
    }
}
