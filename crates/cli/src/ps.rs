//! `uncopy ps`: lists the processes that run under uncopy, and its effect on each.

use crate::output::{self, EXIT_FAILURE, EXIT_OK};
use crate::processes::{self, Process, State};
use crate::table::{self, bytes};
use crate::{args, live, os, sweep};
use clap::ArgMatches;
use serde_json::{Value, json};
use std::fmt::Write as _;
use uncopy_core::policy::trials::Finding;
use uncopy_core::schema;
use uncopy_core::stats::Counter;

/// Prints the list of processes.
pub fn main(matches: &ArgMatches) -> u8 {
    sweep::sweep(live::shared_memory());
    let processes = processes::read_all();
    if matches.get_flag(args::JSON) {
        return match serde_json::to_string_pretty(&json!({
            "schema": schema::PS,
            "processes": processes.iter().map(to_json).collect::<Vec<_>>(),
        })) {
            Ok(text) => output::print(format!("{text}\n").as_bytes(), EXIT_OK),
            Err(error) => {
                output::print_message(error);
                EXIT_FAILURE
            }
        };
    }
    if processes.is_empty() {
        let whose = if os::effective_user_id() == 0 { "" } else { " of yours" };
        return output::print(
            format!("no process{whose} runs under uncopy; start one with: uncopy run -- CMD\n").as_bytes(),
            EXIT_OK,
        );
    }
    output::print(list(&processes).as_bytes(), EXIT_OK)
}

fn to_json(process: &Process) -> Value {
    let counters = serde_json::from_str::<Value>(&process.snapshot.to_json()).unwrap_or_default();
    json!({
        "pid": process.pid,
        "uid": process.user,
        "command": process.name,
        "up_s": process.up_s,
        "state": process.state().name(),
        "memory_bytes": process.memory_bytes(),
        "counters": counters,
    })
}

fn list(processes: &[Process]) -> String {
    let head = ["PID", "USER", "UP", "STATE", "ELIDED", "COPIED", "FAULTS", "MEMORY", "CPU", "COMMAND"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(processes.iter().map(|process| {
        let count = |counter| process.snapshot.get(counter);
        [
            process.pid.to_string(),
            os::user_name(process.user).unwrap_or_else(|| process.user.to_string()),
            process.up_s.map_or_else(|| "?".to_owned(), format_age),
            process.state().name().to_owned(),
            bytes(count(Counter::ElidedBytes)),
            bytes(count(Counter::CopiedBytes)),
            count(Counter::Faults).to_string(),
            bytes(process.memory_bytes()),
            cpu_change(process),
            process.name.clone(),
        ]
    }));
    let mut text = table::align_columns(&rows, |column| matches!(column, 1 | 3 | 9));
    for process in processes.iter().filter(|process| process.state() == State::Plain) {
        let reason = process.snapshot.reason.as_deref().unwrap_or_default();
        let _ = writeln!(text, "{} cannot elide: {}", process.pid, reason.escape_default());
    }
    text
}

/// Returns the change of processor time per byte by eliding, as measured in the process.
fn cpu_change(process: &Process) -> String {
    match process.elision() {
        Some(standing) if standing.finding != Finding::Unknown => {
            format!("{:+.0} %", 100.0 * (standing.ratio - 1.0))
        }
        _ => "?".to_owned(),
    }
}

/// Formats a time span in its largest unit.
pub fn format_age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uncopy_core::stats::Snapshot;

    #[test]
    fn a_process_that_cannot_elide_says_why_below_the_table() {
        let process = |pid, reason: Option<&str>| Process {
            pid,
            user: u32::MAX - 1,
            name: "server".to_owned(),
            up_s: Some(130),
            snapshot: Snapshot::empty(u64::from(pid), reason.map(str::to_owned)),
        };
        let mut busy = process(9, None);
        busy.snapshot.values[Counter::ElidedBytes as usize] = 1 << 30;
        let text = list(&[process(7, Some("no userfaultfd")), process(8, None), busy]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("PID  USER"), "{text}");
        assert!(lines[1].contains("plain") && lines[1].contains("2 min"), "{text}");
        assert!(lines[2].contains("idle"), "{text}");
        assert!(lines[3].contains("active") && lines[3].contains("1.0 GiB"), "{text}");
        assert_eq!(lines[4], "7 cannot elide: no userfaultfd");
        assert!(lines.iter().all(|line| line.len() <= 100), "{text}");
    }
}
