//! Status lines on stderr, because measuring takes minutes.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Prefix of every line: the running experiment among several.
static PREFIX: Mutex<String> = Mutex::new(String::new());

/// Sets the prefix of every later line.
pub fn set_prefix(prefix: &str) {
    let mut current = PREFIX.lock().unwrap_or_else(PoisonError::into_inner);
    prefix.clone_into(&mut current);
}

/// Minimum interval between steps where stderr is no terminal.
const MIN_STEP_INTERVAL: Duration = Duration::from_secs(5);

/// A status line: replaced in place on a terminal, and elsewhere one line for each new text.
#[derive(Debug)]
pub struct Progress {
    is_terminal: bool,
    last: String,
    /// Time of the last step that was printed.
    last_printed: Option<Instant>,
}

impl Progress {
    /// Creates an empty status line.
    #[must_use]
    pub fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), last: String::new(), last_printed: None }
    }

    /// Reports that `what` is being measured, in round `round` (from 0) of `rounds`, under `side`.
    pub fn report_round(&mut self, what: &str, round: usize, rounds: impl fmt::Display, side: &str) {
        let line = format!("{what}, round {} of {rounds}", round + 1);
        self.line(&format!("{line}, {side}"), line);
    }

    /// Reports a step of the work; where stderr is no terminal, at most once in [`MIN_STEP_INTERVAL`].
    pub fn step(&mut self, what: fmt::Arguments<'_>) {
        if self.is_terminal || self.last_printed.is_none_or(|printed| printed.elapsed() >= MIN_STEP_INTERVAL)
        {
            self.last_printed = Some(Instant::now());
            let line = what.to_string();
            self.line(&line, line.clone());
        }
    }

    /// Reports that `percent` of the long work `what`, which has no rounds, are done.
    pub fn report_percent(&mut self, what: &str, percent: usize) {
        self.line(&format!("{what}, {percent} %"), format!("{what}, {} %", percent / 10 * 10));
    }

    /// Prints `exact` on a terminal; elsewhere prints `rough` if it differs from the last line.
    fn line(&mut self, exact: &str, rough: String) {
        let prefix = PREFIX.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut stderr = std::io::stderr().lock();
        // A closed stderr must not stop the measurement.
        let _ = if self.is_terminal {
            write!(stderr, "\r\x1b[Kuncopy: {prefix}{exact}")
        } else {
            if rough == self.last {
                return;
            }
            let written = writeln!(stderr, "uncopy: {prefix}{rough}");
            self.last = rough;
            written
        };
        let _ = stderr.flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
