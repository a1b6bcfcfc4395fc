//! Why an experiment could not be done.

use std::fmt;
use std::io;

/// A whole message, without the `uncopy: ` in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(String);

/// What every step of an experiment returns.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Wraps a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// An operating system error together with what was being done.
    pub fn while_doing(what: impl fmt::Display, error: &io::Error) -> Self {
        match error.kind() {
            // What a socket with a time limit reports when the limit passes.
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

/// Adds what was being done to an operating system error.
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
