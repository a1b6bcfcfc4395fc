//! Counters in the text formats of OpenMetrics 1.0 and of Prometheus (0.0.4), which textfile
//! collectors read.

use crate::processes::{Process, State};
use std::fmt::Write as _;
use uncopy_core::stats::Counter;

/// Text format of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Prometheus,
}

impl Format {
    /// Returns the format's media type for HTTP.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Formats the counters of `processes`, each with the labels `pid` and `command`.
pub fn render(processes: &[Process], format: Format) -> String {
    let labels: Vec<String> = processes
        .iter()
        .map(|process| format!("{{pid=\"{}\",command=\"{}\"}}", process.pid, Escaped(&process.name)))
        .collect();
    let mut text = String::new();
    let mut family = |name: &str, is_gauge: bool, help: &str, value: &dyn Fn(&Process) -> Option<f64>| {
        let (kind, suffix) = if is_gauge { ("gauge", "") } else { ("counter", "_total") };
        // Prometheus's format declares the name with its suffix.
        let declared = if format == Format::OpenMetrics { "" } else { suffix };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# TYPE {name}{declared} {kind}");
        let unit = ["bytes", "ratio"].into_iter().find(|unit| name.ends_with(&format!("_{unit}")));
        if let (Format::OpenMetrics, Some(unit)) = (format, unit) {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(text, "# HELP {name}{declared} {}", Escaped(help));
        for (process, labels) in processes.iter().zip(&labels) {
            if let Some(value) = value(process) {
                let _ = writeln!(text, "{name}{suffix}{labels} {value}");
            }
        }
    };
    for counter in Counter::ALL {
        let value = |process: &Process| Some(process.snapshot.get(*counter) as f64);
        family(&format!("uncopy_{}", counter.name()), counter.is_gauge(), counter.help(), &value);
    }
    let is_active = |process: &Process| Some(f64::from(u8::from(process.state() == State::Active)));
    family("uncopy_active", true, "Whether the process elides.", &is_active);
    let ratio = |process: &Process| process.elision().map(|standing| standing.ratio);
    family(
        "uncopy_elision_cpu_ratio",
        true,
        "Processor time per byte with eliding, divided by that without.",
        &ratio,
    );
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

/// Label value or help text, escaped.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uncopy_core::policy::trials::{FactorReport, FactorReports, Finding};
    use uncopy_core::stats::Snapshot;

    #[test]
    fn names_types_and_values_are_those_of_the_format() {
        let mut snapshot = Snapshot::empty(7, None);
        snapshot.values[Counter::ElidedBytes as usize] = 65536;
        snapshot.values[Counter::Views as usize] = 3;
        let process = Process { pid: 7, user: 0, name: "a\"b\\".to_owned(), up_s: None, snapshot };
        let processes = [process];
        let text = render(&processes, Format::OpenMetrics);
        let labels = r#"{pid="7",command="a\"b\\"}"#;
        for line in [
            "# TYPE uncopy_elided_bytes counter".to_owned(),
            "# UNIT uncopy_elided_bytes bytes".to_owned(),
            format!("uncopy_elided_bytes_total{labels} 65536"),
            "# TYPE uncopy_views gauge".to_owned(),
            format!("uncopy_views{labels} 3"),
            format!("uncopy_active{labels} 1"),
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
        assert!(text.lines().all(|line| line.is_ascii() && !line.is_empty()));
        let text = render(&processes, Format::Prometheus);
        for line in [
            "# TYPE uncopy_elided_bytes_total counter".to_owned(),
            format!("uncopy_elided_bytes_total{labels} 65536"),
            "# TYPE uncopy_views gauge".to_owned(),
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
    }

    #[test]
    fn the_dashboard_asks_for_what_is_there() {
        let dashboard: serde_json::Value =
            serde_json::from_str(include_str!("../../grafana/dashboard.json")).expect("JSON");
        let mut snapshot = Snapshot::empty(7, None);
        snapshot.trials = FactorReports(vec![(
            0,
            FactorReport { finding: Finding::Saves, is_on: true, pairs: 100, ratio: 0.5, radius: 0.1 },
        )]);
        let process = Process { pid: 7, user: 0, name: "a".to_owned(), up_s: None, snapshot };
        let text = render(&[process], Format::OpenMetrics);
        let panels = dashboard["panels"].as_array().expect("panels");
        let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
        let names = targets.flat_map(|target| {
            let words = target["expr"]
                .as_str()
                .expect("text")
                .split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
            words.filter(|word| word.starts_with("uncopy_"))
        });
        let names: Vec<&str> = names.collect();
        assert!(names.len() >= panels.len(), "{names:?}");
        for name in names {
            assert!(text.contains(&format!("\n{name}{{")), "{name}\n{text}");
        }
    }
}
