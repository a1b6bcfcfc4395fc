//! The command line of `uncopy top`.

use clap::{Arg, Command, value_parser};
use std::ffi::OsString;

pub const PROCESSES: &str = "processes";
pub const INTERVAL: &str = "interval";

const NOTES: &str = "\
Examples:
  uncopy top
      What runs under uncopy, live.
  sudo uncopy top nginx
      Only processes of this name, of all users.

Keys: up and down select a process, whose measurements and call sites stand below; < and > choose what the list is
sorted by; space holds the picture; + and - change how often it looks; q ends.

STATE and MEMORY are those of 'uncopy ps'. CPU is the process's processor time. SAVES is what it would need on top
of that without eliding, from what was measured in the process itself; ? until enough has passed. Call sites are
known of processes that 'uncopy run --explain' started. Exit status: 0, or 1 without a terminal, or 2 if the
command line is wrong.";

/// Returns the definition of `uncopy top`.
pub fn command() -> Command {
    Command::new("top")
        .about("Watch the processes under uncopy, and what it does for each")
        .arg(
            Arg::new(PROCESSES)
                .value_name("PID|NAME")
                .help("Only these [default: all of this user; for root: of all users]")
                .num_args(0..)
                .allow_negative_numbers(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(
            Arg::new(INTERVAL)
                .long(INTERVAL)
                .short('i')
                .value_name("S")
                .help("Look every S seconds")
                .default_value("1")
                .value_parser(value_parser!(u32).range(1..=3600)),
        )
        .after_help(NOTES)
}
