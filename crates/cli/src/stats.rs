//! `uncopy stats PID`: prints the live counters of a running process.

use crate::line;
use crate::live::{counters, parse_pid, shared_memory};
use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE};
use crate::sweep::sweep;
use clap::ArgMatches;
use std::ffi::OsString;

/// Prints the counters of the process that the command line names.
pub fn main(matches: &ArgMatches) -> u8 {
    let text = matches.get_one::<OsString>(line::PID).map(OsString::as_os_str).unwrap_or_default();
    let pid = match parse_pid(text) {
        Ok(pid) => pid,
        Err(message) => {
            output::complain(message);
            return EXIT_USAGE;
        }
    };
    sweep(shared_memory());
    match counters(pid) {
        Ok(snapshot) => output::print(format!("{}\n", snapshot.to_json()).as_bytes(), EXIT_OK),
        Err(failure) => {
            output::complain(failure);
            EXIT_FAILURE
        }
    }
}
