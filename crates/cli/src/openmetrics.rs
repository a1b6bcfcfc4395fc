//! Counters in the text format of OpenMetrics 1.0.

use crate::processes::{Process, State};
use std::fmt::Write as _;
use uncopy_core::stats::Counter;

/// The counters of `processes`, each with the labels `pid` and `command`.
pub fn text(processes: &[Process]) -> String {
    let labels: Vec<String> = processes
        .iter()
        .map(|process| format!("{{pid=\"{}\",command=\"{}\"}}", process.pid, Escaped(&process.name)))
        .collect();
    let mut text = String::new();
    // Writing to a String cannot fail.
    for counter in Counter::ALL {
        let name = format!("uncopy_{}", counter.name());
        let (kind, suffix) = if counter.is_gauge() { ("gauge", "") } else { ("counter", "_total") };
        let _ = writeln!(text, "# TYPE {name} {kind}");
        if name.ends_with("_bytes") {
            let _ = writeln!(text, "# UNIT {name} bytes");
        }
        let _ = writeln!(text, "# HELP {name} {}", Escaped(counter.help()));
        for (process, labels) in processes.iter().zip(&labels) {
            let _ = writeln!(text, "{name}{suffix}{labels} {}", process.snapshot.get(*counter));
        }
    }
    let _ = writeln!(text, "# TYPE uncopy_active gauge\n# HELP uncopy_active Whether the process elides.");
    for (process, labels) in processes.iter().zip(&labels) {
        let _ = writeln!(text, "uncopy_active{labels} {}", u8::from(process.state() == State::Active));
    }
    let _ = writeln!(
        text,
        "# TYPE uncopy_elision_cpu_ratio gauge\n# UNIT uncopy_elision_cpu_ratio ratio\n\
         # HELP uncopy_elision_cpu_ratio Processor time per byte with eliding, as a part of that without."
    );
    for (process, labels) in processes.iter().zip(&labels) {
        if let Some(standing) = process.elision() {
            let _ = writeln!(text, "uncopy_elision_cpu_ratio{labels} {}", standing.ratio);
        }
    }
    text.push_str("# EOF\n");
    text
}

/// A label's value or a help text.
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
    use uncopy_core::stats::Snapshot;

    #[test]
    fn names_types_and_values_are_those_of_the_format() {
        let mut snapshot = Snapshot::empty(7, None);
        snapshot.values[Counter::ElidedBytes as usize] = 65536;
        snapshot.values[Counter::Views as usize] = 3;
        let process = Process { pid: 7, user: 0, name: "a\"b\\".to_owned(), up_s: None, snapshot };
        let text = text(&[process]);
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
    }
}
