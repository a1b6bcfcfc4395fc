//! Tells on stderr what is being measured, because measuring takes minutes.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What stands in front of every line: which of many experiments this is.
static AHEAD: Mutex<String> = Mutex::new(String::new());

/// Puts `ahead` in front of every line from now on.
pub fn put_ahead(ahead: &str) {
    let mut known = AHEAD.lock().unwrap_or_else(PoisonError::into_inner);
    ahead.clone_into(&mut known);
}

/// How often steps are told where there is no terminal.
const PERIOD: Duration = Duration::from_secs(5);

/// One line on a terminal that is replaced again and again; elsewhere a line for each new thing.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    last: String,
    /// When a step was told last.
    told: Option<Instant>,
}

impl Progress {
    /// Nothing told yet.
    #[must_use]
    pub fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), last: String::new(), told: None }
    }

    /// Tells that `what` is being measured, in round `round` (from 0) of `rounds`, under `side`.
    pub fn tell(&mut self, what: &str, round: usize, rounds: impl fmt::Display, side: &str) {
        let line = format!("{what}, round {} of {rounds}", round + 1);
        self.line(&format!("{line}, {side}"), line);
    }

    /// Tells what is being done, at each step of it; where there is no terminal, at most once in [`PERIOD`].
    pub fn step(&mut self, what: fmt::Arguments<'_>) {
        if self.terminal || self.told.is_none_or(|told| told.elapsed() >= PERIOD) {
            self.told = Some(Instant::now());
            let line = what.to_string();
            self.line(&line, line.clone());
        }
    }

    /// Tells that `percent` of what takes long without rounds, `what`, are done.
    pub fn part(&mut self, what: &str, percent: usize) {
        self.line(&format!("{what}, {percent} %"), format!("{what}, {} %", percent / 10 * 10));
    }

    /// Shows `exact` on a terminal, and elsewhere `rough` if it is not what was shown last.
    fn line(&mut self, exact: &str, rough: String) {
        let ahead = AHEAD.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut stderr = std::io::stderr().lock();
        // Nobody may be listening; that is no reason to stop.
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
