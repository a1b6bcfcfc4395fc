//! Programs that write files which a log may have, one for each kind of operation (`uncopy run --log-mode`). What
//! they print, and the files that they leave, are the same without a log.
//!
//! ```text
//! log_only [--warm FILE] SCENARIO [ARGUMENTS…]     in the directory of its files
//! ```
//!
//! With `--warm` it first waits until a log has FILE, so that the log is ready.
//!
//! Each file is first written and synced until a log has it, if there is one. Results of calls are printed as they
//! are; what depends on the time or on the file system (times, blocks) is not.

#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of a test: lengths, offsets and flags are small"
)]

mod file;
mod names;
mod processes;
mod reads;
mod threads;
mod writes;

/// A scenario: its name, and what it does with the arguments.
type Scenario = (&'static str, fn(&[String]));

const SCENARIOS: &[Scenario] = &[
    ("write", |_| writes::sequential()),
    ("pwrite", |_| writes::at_offsets()),
    ("writev", |_| writes::vectors()),
    ("append", |_| writes::appends()),
    ("faults", |_| writes::faults()),
    ("limits", |_| writes::limits()),
    ("overlapping", |_| writes::overlapping()),
    ("holes", |_| writes::holes()),
    ("far", |_| writes::far()),
    ("syncs", |_| writes::syncs()),
    ("quiet-syncs", |_| writes::quiet_syncs()),
    ("seek", |_| writes::seeks()),
    ("flags", |_| writes::flags()),
    ("status", |_| names::status()),
    ("closed", |_| names::closed_files()),
    ("readers", |_| names::readers()),
    ("mapping", |_| names::mappings()),
    ("sendfile", |_| names::transfers()),
    ("truncate", |_| names::truncation()),
    ("reopen", |_| names::reopened()),
    ("fallocate", |_| names::allocation()),
    ("rename", |_| names::renames()),
    ("unlink", |_| names::removals()),
    ("link", |_| names::links()),
    ("times", |_| names::times()),
    ("modification", |_| names::modification()),
    ("streams", |_| names::streams()),
    ("dup", |_| processes::duplicates()),
    ("fork", |_| processes::forks()),
    ("reopen-beside-child", |_| processes::reopened_beside_a_child()),
    ("orphan", |_| processes::orphan()),
    ("exec", processes::execs),
    ("spawn", |_| processes::spawns()),
    ("passed", |_| processes::passed()),
    ("exit", |_| processes::exits_without_close(0)),
    ("abort", |_| processes::exits_without_close(1)),
    ("threads", |_| threads::appenders()),
    ("writers", |_| threads::one_offset()),
    ("cancelled", |_| threads::cancelled()),
    ("records", threads::records),
    ("reads", |_| reads::every_call(0)),
    ("reads-append", |_| reads::every_call(libc::O_APPEND)),
    ("reads-around-libc", |_| reads::around_libc()),
    ("own-mapping", |_| reads::own_mappings()),
    ("transfers-out", |_| reads::transfers_out()),
    ("reading-threads", |_| reads::threads()),
    ("random", reads::random),
];

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments[0] == "--warm" {
        file::wait_until_logged(&arguments[1]);
        arguments.drain(..2);
    }
    let (name, arguments) = arguments.split_first().expect("a scenario");
    let (_, scenario) = SCENARIOS.iter().find(|(known, _)| known == name).expect("a known scenario");
    scenario(arguments);
    println!("done");
}
