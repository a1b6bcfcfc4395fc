//! The command line of `uncopy top`.

use clap::{Arg, Command, value_parser};
use std::ffi::OsString;

pub const PROCESSES: &str = "processes";
pub const INTERVAL: &str = "interval";

const NOTES: &str = "\
Examples:
  uncopy top
      Show the processes of this user.
  sudo uncopy top nginx
      Show only processes of this name, of all users.

Keys: up and down select the process whose measurements and call sites are shown below the list; < and > choose \
the column to sort by; space pauses; + and - change the interval; q quits.

STATE and MEMORY are those of 'uncopy ps'. CPU% is the processor time that the process uses. SAVES% is what it \
would use in addition without eliding, as measured in the process; ? means not measured yet. Call sites are shown \
for processes that 'uncopy run --explain' started. Exit status: 0; 1 without a terminal; 2 for a wrong command line.";

/// Returns the definition of `uncopy top`.
pub fn command() -> Command {
    Command::new("top")
        .about("Show the processes under uncopy live, with rates and call sites")
        .arg(
            Arg::new(PROCESSES)
                .value_name("PID|NAME")
                .help("Show only these [default: all of this user, or for root of all users]")
                .num_args(0..)
                .allow_negative_numbers(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(
            Arg::new(INTERVAL)
                .long(INTERVAL)
                .short('i')
                .value_name("S")
                .help("Refresh every S seconds")
                .default_value("1")
                .value_parser(value_parser!(u32).range(1..=3600)),
        )
        .after_help(NOTES)
}
