//! Errors of experiments, as messages.

use std::fmt;
use std::io;

/// A complete message, without the prefix `uncopy: `.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(String);

/// Result of a step of an experiment.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Makes a failure from a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Makes a failure from an operating system error and the operation that failed.
    pub fn while_doing(what: impl fmt::Display, error: &io::Error) -> Self {
        match error.kind() {
            // A socket with a time limit fails so when the limit passes.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self(format!("{what}: timed out")),
            _ => Self(format!("{what}: {error}")),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Adds the failed operation to an operating system error.
pub trait While<T> {
    /// Turns the error into a [`Failure`] that begins with `what`.
    fn doing(self, what: impl fmt::Display) -> Result<T>;
}

impl<T> While<T> for io::Result<T> {
    fn doing(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Failure::while_doing(what, &error))
    }
}

impl<T> While<T> for rustix::io::Result<T> {
    fn doing(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Failure::while_doing(what, &error.into()))
    }
}
