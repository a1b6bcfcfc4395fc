//! `uncopy stats`: prints the live counters of running processes.

use crate::args;
use crate::live::shared_memory;
use crate::metrics::text::{self, Format};
use crate::output::{self, EXIT_FAILURE, EXIT_OK};
use crate::processes::{self, Process, Selector};
use crate::sweep::sweep;
use clap::ArgMatches;
use std::thread;
use std::time::Duration;

/// Prints the counters of the processes that the command line names.
pub fn main(matches: &ArgMatches) -> u8 {
    let wanted = match Selector::parse_all(matches, args::PID) {
        Ok(wanted) => wanted,
        Err(status) => return status,
    };
    sweep(shared_memory());
    let is_openmetrics = matches.get_flag(args::OPENMETRICS);
    let Some(period_s) = matches.get_one::<u32>(args::WATCH) else {
        return print(&wanted, is_openmetrics).0;
    };
    loop {
        let (status, count) = print(&wanted, is_openmetrics);
        if status != EXIT_OK || count == 0 {
            return status;
        }
        thread::sleep(Duration::from_secs((*period_s).into()));
    }
}

/// Prints the counters once. Returns the exit status and the number of processes.
fn print(wanted: &[Selector], is_openmetrics: bool) -> (u8, usize) {
    let mut status = EXIT_OK;
    let mut processes = if wanted.is_empty() { processes::read_all() } else { Vec::new() };
    let mut pids = Vec::new();
    for wanted in wanted {
        match wanted.pids() {
            Ok(found) => pids.extend(found),
            Err(message) => {
                output::print_message(message);
                status = EXIT_FAILURE;
            }
        }
    }
    for pid in pids {
        match Process::read(pid) {
            Ok(process) => processes.push(process),
            Err(failure) => {
                output::print_message(failure);
                status = EXIT_FAILURE;
            }
        }
    }
    let text: String = if is_openmetrics {
        text::render(&processes, Format::OpenMetrics)
    } else {
        processes.iter().map(|process| format!("{}\n", process.snapshot.to_json())).collect()
    };
    (output::print(text.as_bytes(), status), processes.len())
}
