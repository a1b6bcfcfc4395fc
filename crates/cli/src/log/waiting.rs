//! `uncopy log wait`: until the logs of a directory, and the files that take part in them, are nobody's any more.

use crate::line;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, Quoted, Reason};
use clap::ArgMatches;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use uncopy_store::places;

/// How often it is looked.
const STEP: Duration = Duration::from_millis(20);
/// After how long it is said what is waited for.
const SILENCE: Duration = Duration::from_secs(1);

/// Waits until nobody has a log in this directory.
pub fn wait(directory: &Path, matches: &ArgMatches) -> u8 {
    let timeout = matches.get_one::<u64>(line::TIMEOUT).map(|seconds| Duration::from_secs(*seconds));
    let begun = Instant::now();
    let mut is_said = false;
    let name = Quoted(directory.as_os_str());
    loop {
        let logs = match places::logs(directory) {
            Ok(logs) => logs,
            Err(error) => {
                output::complain(format_args!("{name} cannot be read: {}", Reason(&error)));
                return EXIT_FAILURE;
            }
        };
        let used: Vec<&PathBuf> = logs.iter().filter(|log| places::is_in_use(log)).collect();
        if used.is_empty() && !places::is_being_made(directory).unwrap_or(false) {
            return EXIT_OK;
        }
        let elapsed = begun.elapsed();
        if timeout.is_some_and(|timeout| elapsed >= timeout) {
            output::complain(format_args!("logs in {name} are in use still; see 'uncopy log ls'"));
            return EXIT_FAILURE;
        }
        if elapsed >= SILENCE && !is_said {
            is_said = true;
            output::complain(format_args!("waiting for logs in {name} that are in use"));
        }
        thread::sleep(STEP);
    }
}
