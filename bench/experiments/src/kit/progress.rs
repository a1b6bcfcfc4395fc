//! Status lines on stderr, because measuring takes minutes.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Prefix of every line: the running experiment among several.
static AHEAD: Mutex<String> = Mutex::new(String::new());

/// Sets the prefix of every later line.
pub fn put_ahead(ahead: &str) {
    let mut known = AHEAD.lock().unwrap_or_else(PoisonError::into_inner);
    ahead.clone_into(&mut known);
}

/// Minimum interval between steps where stderr is no terminal.
const PERIOD: Duration = Duration::from_secs(5);

/// A status line: replaced in place on a terminal, and elsewhere one line for each new text.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    last: String,
    /// Time of the last step that was printed.
    told: Option<Instant>,
}

impl Progress {
    /// Creates an empty status line.
    #[must_use]
    pub fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), last: String::new(), told: None }
    }

    /// Reports that `what` is being measured, in round `round` (from 0) of `rounds`, under `side`.
    pub fn tell(&mut self, what: &str, round: usize, rounds: impl fmt::Display, side: &str) {
        let line = format!("{what}, round {} of {rounds}", round + 1);
        self.line(&format!("{line}, {side}"), line);
    }

    /// Reports a step of the work; where stderr is no terminal, at most once in [`PERIOD`].
    pub fn step(&mut self, what: fmt::Arguments<'_>) {
        if self.terminal || self.told.is_none_or(|told| told.elapsed() >= PERIOD) {
            self.told = Some(Instant::now());
            let line = what.to_string();
            self.line(&line, line.clone());
        }
    }

    /// Reports that `percent` of the long work `what`, which has no rounds, are done.
    pub fn part(&mut self, what: &str, percent: usize) {
        self.line(&format!("{what}, {percent} %"), format!("{what}, {} %", percent / 10 * 10));
    }

    /// Prints `exact` on a terminal; elsewhere prints `rough` if it differs from the last line.
    fn line(&mut self, exact: &str, rough: String) {
        let ahead = AHEAD.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut stderr = std::io::stderr().lock();
        // A closed stderr must not stop the measurement.
        let _ = if self.terminal {
            write!(stderr, "\r\x1b[Kuncopy: {ahead}{exact}")
        } else {
            if rough == self.last {
                return;
            }
            let told = writeln!(stderr, "uncopy: {ahead}{rough}");
            self.last = rough;
            told
        };
        let _ = stderr.flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
