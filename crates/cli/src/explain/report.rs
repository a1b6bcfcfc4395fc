//! Report of `--explain` as a table for people and as JSON for programs.

use super::describe;
use super::sites::{Site, sites};
use crate::os::child::Ending;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use uncopy_core::ledger::{Field, Ledger, Process};
use uncopy_core::policy::Costs;
use uncopy_core::policy::trials::FactorReports;
use uncopy_core::streams::{Outcome, Streams};
use uncopy_profile::format::{bytes, duration, one_line};
use uncopy_profile::symbols::Symbols;

const HEADINGS: [&str; 10] =
    ["kind", "size", "calls", "bytes", "elided", "copied", "saved", "spent", "state", "site and reason"];
/// Fields that the report combines with others or shows in another form.
const NOT_SHOWN: [Field; 3] = [Field::PackedKind, Field::Caller, Field::Shared];

/// Report on one process.
struct ProcessReport {
    pid: u32,
    name: String,
    /// Way the process ended, and whether its account is therefore complete.
    ending: String,
    reason: Option<String>,
    costs: Option<Costs>,
    streams: Streams,
    trials: FactorReports,
    /// Sites, those with the largest effect first.
    sites: Vec<Site>,
}

impl ProcessReport {
    /// Whether the sum of the sites' estimates has the opposite sign of what trials measured.
    fn has_wrong_estimates(&self) -> bool {
        let sum = |field| self.sites.iter().map(|site| i128::from(site.entry.get(field))).sum::<i128>();
        self.trials.contradicting(sum(Field::SavedNs) - sum(Field::SpentNs)).is_some()
    }
}

pub struct Report {
    command: String,
    ending: String,
    why_without_library: Option<String>,
    processes: Vec<ProcessReport>,
    processes_without_slot: u64,
}

impl Report {
    /// Resolves the names of sites and sorts them.
    pub fn new(ledger: &Ledger, command: &[OsString], ending: Ending) -> Self {
        let mut processes: Vec<ProcessReport> = Vec::new();
        let mut symbols = Symbols::new();
        for (index, process) in ledger.processes.iter().enumerate() {
            let is_replaced = ledger.processes[index + 1..].iter().any(|later| later.pid == process.pid);
            processes.push(ProcessReport {
                pid: process.pid,
                name: process.name.clone(),
                ending: describe_ending(process, is_replaced),
                reason: process.reason.clone(),
                costs: process.costs,
                streams: process.streams,
                trials: process.trials.clone(),
                sites: sites(process, &mut symbols),
            });
        }
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        Self {
            command: words.join(" "),
            ending: match ending {
                Ending::Exited(status) => format!("exited with status {status}"),
                Ending::Killed(signal) => format!("ended by signal {signal}"),
            },
            why_without_library: ledger.why_without_library.clone(),
            processes,
            processes_without_slot: ledger.processes_without_slot,
        }
    }

    /// Returns notes on the run as a whole.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(why) = &self.why_without_library {
            notes.push(format!("uncopy was not loaded: {why}"));
        } else if self.processes.is_empty() {
            notes.push(
                "no process made an allocation, copy or input that is large enough to be considered, or none \
                 loaded uncopy"
                    .to_owned(),
            );
        }
        match self.processes_without_slot {
            0 => {}
            more => notes.push(format!("missing: {more} further processes, because the ledger is full")),
        }
        notes
    }

    /// Returns the report as a table.
    pub fn to_table(&self) -> String {
        let mut table = format!("{}: {}\n", one_line(&self.command), self.ending);
        for note in self.notes() {
            // Writing to a String cannot fail.
            let _ = writeln!(table, "{}", one_line(&note));
        }
        for process in &self.processes {
            let _ = writeln!(
                table,
                "\nprocess {} ({}): {}",
                process.pid,
                one_line(&process.name),
                one_line(&process.ending)
            );
            if let Some(reason) = &process.reason {
                let _ = writeln!(table, "inactive: {}", one_line(reason));
            }
            if let Some(costs) = &process.costs {
                let _ = writeln!(table, "costs here, ns: {}", costs.to_text().replace(',', ", "));
            }
            for line in process.streams.lines() {
                let _ = writeln!(table, "{line}");
            }
            for line in process.trials.lines() {
                let _ = writeln!(table, "measured: {line}");
            }
            if process.has_wrong_estimates() {
                let _ = writeln!(
                    table,
                    "the estimates of the sites below contradict the measurement, which is what counts"
                );
            }
            if !process.sites.is_empty() {
                rows(&mut table, &process.sites);
            }
        }
        table
    }

    /// Returns the report as one JSON object.
    pub fn to_json(&self) -> Value {
        let processes: Vec<Value> = self
            .processes
            .iter()
            .map(|process| {
                json!({
                    "pid": process.pid,
                    "name": process.name,
                    "ending": process.ending,
                    "reason": process.reason,
                    "costs": process.costs.map(|costs| costs.to_text()),
                    "streams": streams(&process.streams),
                    "trials": serde_json::from_str::<Value>(&process.trials.to_json()).unwrap_or_default(),
                    "wrong_estimates": process.has_wrong_estimates(),
                    "sites": process.sites.iter().map(Site::to_json).collect::<Vec<_>>(),
                })
            })
            .collect();
        json!({
            "schema": uncopy_core::schema::EXPLAIN,
            "command": self.command,
            "ending": self.ending,
            "notes": self.notes(),
            "processes": processes,
        })
    }
}

fn streams(streams: &Streams) -> Map<String, Value> {
    Outcome::ALL.iter().map(|outcome| (outcome.name().to_owned(), json!(streams.get(*outcome)))).collect()
}

/// Describes how a process ended, as far as the ledger shows.
fn describe_ending(process: &Process, is_replaced: bool) -> String {
    if process.is_ended {
        return "ended; the account is complete".to_owned();
    }
    if is_replaced {
        return "executed another program; the account is complete".to_owned();
    }
    if Path::new("/proc").join(process.pid.to_string()).exists() {
        return "still running; what it does from now on is missing".to_owned();
    }
    "ended by a signal, or without running exit handlers; the account is complete except for calls that were in \
     progress"
        .to_owned()
}

impl Site {
    fn cells(&self) -> [String; HEADINGS.len() - 1] {
        let get = |field| self.entry.get(field);
        [
            self.entry.kind.name().to_owned(),
            describe::size_range(self.entry.size_class),
            get(Field::Calls).to_string(),
            bytes(get(Field::Bytes)),
            bytes(get(Field::ElidedBytes)),
            bytes(get(Field::CopiedBytes)),
            duration(get(Field::SavedNs)),
            duration(get(Field::SpentNs)),
            describe::state(&self.entry).to_owned(),
        ]
    }

    fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("site".to_owned(), json!(self.name()));
        object.insert("kind".to_owned(), json!(self.entry.kind.name()));
        object.insert("size".to_owned(), json!(describe::size_range(self.entry.size_class)));
        object.insert("module".to_owned(), json!(self.module));
        object.insert("function".to_owned(), json!(self.location.function));
        object.insert("line".to_owned(), json!(self.location.file_and_line()));
        object.insert("address".to_owned(), json!(format!("{:#x}", self.entry.get(Field::Caller))));
        for field in Field::ALL.iter().filter(|field| !NOT_SHOWN.contains(field)) {
            let value = match field {
                Field::Balance => json!(self.entry.balance()),
                field => json!(self.entry.get(*field)),
            };
            object.insert(field.name().to_owned(), value);
        }
        object.insert("state".to_owned(), json!(describe::state(&self.entry)));
        object.insert("reason".to_owned(), json!(describe::reason(&self.entry)));
        Value::Object(object)
    }
}

/// Appends two lines for each site: the figures with its name, then the reason.
fn rows(table: &mut String, sites: &[Site]) {
    let cells: Vec<_> = sites.iter().map(Site::cells).collect();
    let width = |column: usize| {
        let widths = cells.iter().map(|row| row[column].chars().count());
        widths.chain([HEADINGS[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEADINGS.len() - 1).map(width).collect();
    // Text is left-aligned, numbers are right-aligned.
    let line = |table: &mut String, row: &[&str], last: &str| {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 | 1 | 8 => write!(table, "{cell:<width$}  "),
                _ => write!(table, "{cell:>width$}  "),
            };
        }
        let _ = writeln!(table, "{last}");
    };
    line(table, &HEADINGS[..HEADINGS.len() - 1], HEADINGS[HEADINGS.len() - 1]);
    let indent: usize = widths.iter().map(|width| width + 2).sum();
    for (site, cells) in sites.iter().zip(&cells) {
        let row: Vec<&str> = cells.iter().map(String::as_str).collect();
        line(table, &row, &one_line(&site.name()));
        let reason = describe::reason(&site.entry);
        if !reason.is_empty() {
            let _ = writeln!(table, "{:indent$}{}", "", one_line(&reason));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty(why_without_library: Option<&str>, processes_without_slot: u64) -> Report {
        let ledger = Ledger {
            processes: Vec::new(),
            processes_without_slot,
            why_without_library: why_without_library.map(str::to_owned),
        };
        Report::new(&ledger, &["sh".into(), "-c".into(), "a\nb".into()], Ending::Killed(9))
    }

    #[test]
    fn a_report_without_sites_says_why() {
        let table = empty(None, 0).to_table();
        assert!(table.starts_with("sh -c a\u{fffd}b: ended by signal 9\nno process made"), "{table}");
        let table = empty(Some("no permission"), 2).to_table();
        assert!(table.contains("\nuncopy was not loaded: no permission\nmissing: 2 further"), "{table}");
        assert_eq!(empty(None, 0).to_json()["ending"], "ended by signal 9");
    }

    #[test]
    fn processes_that_did_not_say_that_they_ended_are_told_apart() {
        let mut process = Process {
            // Above the largest pid of any kernel.
            pid: 4_194_999,
            name: "sh".to_owned(),
            is_ended: false,
            reason: None,
            costs: None,
            streams: Streams::default(),
            trials: FactorReports::default(),
            modules: Vec::new(),
            entries: Vec::new(),
        };
        assert!(describe_ending(&process, false).starts_with("ended by a signal"));
        assert!(describe_ending(&process, true).starts_with("executed another"));
        process.pid = std::process::id();
        assert!(describe_ending(&process, false).starts_with("still running"));
        process.is_ended = true;
        assert!(describe_ending(&process, true).starts_with("ended;"));
    }
}
