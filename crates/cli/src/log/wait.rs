//! `uncopy log wait`: waits until no process uses the logs of a directory, or files in them.

use crate::args;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, Quoted, Reason};
use clap::ArgMatches;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use uncopy_store::{log_files, logs};

/// Interval between looks at the logs.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Delay before a message about the wait.
const NOTICE_DELAY: Duration = Duration::from_secs(1);

/// Longest wait for the keeper of a program that has ended.
const MAX_RELEASE: Duration = Duration::from_secs(30);

/// A wait that looks again and again, and says once what it waits for.
struct Wait {
    start: Instant,
    has_notified: bool,
}

impl Wait {
    fn begin() -> Self {
        Self { start: Instant::now(), has_notified: false }
    }

    /// Waits until the next look.
    fn pause(&mut self, notice: std::fmt::Arguments<'_>) {
        if self.start.elapsed() >= NOTICE_DELAY && !self.has_notified {
            self.has_notified = true;
            output::print_message(notice);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Waits while a log is in use although its program has ended: its files do not have all bytes yet.
pub fn until_released(log: &Path) {
    let mut wait = Wait::begin();
    while logs::is_being_released(log) && wait.start.elapsed() < MAX_RELEASE {
        let name = Quoted(log.as_os_str());
        wait.pause(format_args!("waiting until the keeper of {name} has written its files"));
    }
}

/// Waits until no process uses a log in this directory.
pub fn wait(directory: &Path, matches: &ArgMatches) -> u8 {
    let timeout = matches.get_one::<u64>(args::TIMEOUT).map(|seconds| Duration::from_secs(*seconds));
    let mut wait = Wait::begin();
    let name = Quoted(directory.as_os_str());
    loop {
        let paths = match logs::paths(directory) {
            Ok(paths) => paths,
            Err(error) => {
                output::print_message(format_args!("{name} cannot be read: {}", Reason(&error)));
                return EXIT_FAILURE;
            }
        };
        let used: Vec<&PathBuf> = paths.iter().filter(|log| logs::is_in_use(log)).collect();
        if used.is_empty() && !log_files::is_being_made(directory).unwrap_or(false) {
            return EXIT_OK;
        }
        if timeout.is_some_and(|timeout| wait.start.elapsed() >= timeout) {
            output::print_message(format_args!("logs in {name} are still in use; see 'uncopy log ls'"));
            return EXIT_FAILURE;
        }
        wait.pause(format_args!("waiting until the logs in {name} are no longer in use"));
    }
}
