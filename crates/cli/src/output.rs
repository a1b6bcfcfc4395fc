//! What the command prints, and the exit statuses it uses.
//!
//! Whoever reads standard output may stop reading: a broken pipe is not an error. Whoever reads
//! standard error may be gone: that changes nothing either.

use crate::os;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write as _};

/// All well, and for `doctor`: `run` will be active.
pub const EXIT_OK: u8 = 0;
/// The thing asked for was not to be had.
pub const EXIT_FAILURE: u8 = 1;
/// The command line or an `UNCOPY_` variable is wrong.
pub const EXIT_USAGE: u8 = 2;
/// CMD exists and could not be executed.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// CMD was not found.
pub const EXIT_NOT_FOUND: u8 = 127;

/// Prints one line on standard error, in one write, with `uncopy: ` in front.
pub fn complain(message: impl fmt::Display) {
    let line = format!("uncopy: {message}\n");
    // There is nowhere left to report that standard error cannot be written.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Prints `bytes` on standard output and returns `status`, or 1 if they could not be written.
pub fn print(bytes: &[u8], status: u8) -> u8 {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Ok(()) => status,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => status,
        Err(error) => {
            complain(format_args!("cannot write to standard output: {}", Reason(&error)));
            EXIT_FAILURE
        }
    }
}

/// Columns of the terminal that standard output is; `COLUMNS` or 80 if it is none.
pub fn columns() -> usize {
    let given = || std::env::var("COLUMNS").ok()?.parse().ok();
    os::child::columns(&io::stdout()).or_else(given).unwrap_or(80)
}

/// Shows a name in quotes, with control characters and bytes that are not UTF-8 escaped.
pub struct Quoted<'a>(pub &'a OsStr);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Shows an error of the operating system in lower case and without its number.
pub struct Reason<'a>(pub &'a io::Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let text = text.split(" (os error").next().unwrap_or("");
        let mut characters = text.chars();
        match characters.next() {
            Some(first) => write!(f, "{}{}", first.to_lowercase(), characters.as_str()),
            None => f.write_str("unknown error"),
        }
    }
}

/// A value that somebody gave and that is not legal. `Display` is a whole message.
#[derive(Debug, PartialEq, Eq)]
pub struct Illegal {
    /// What was to be set: an option with its dashes, a variable, an argument.
    pub name: String,
    /// The value as it is shown.
    pub value: String,
    /// What it may be.
    pub legal: String,
}

impl Illegal {
    /// For a value as it was typed.
    pub fn new(name: &str, value: &OsStr, legal: impl Into<String>) -> Self {
        Self { name: name.to_owned(), value: Quoted(value).to_string(), legal: legal.into() }
    }
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}; it must be {}", self.name, self.value, self.legal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;

    #[test]
    fn reasons_read_as_part_of_a_sentence() {
        assert_eq!(Reason(&io::Error::from_raw_os_error(2)).to_string(), "no such file or directory");
    }

    #[test]
    fn names_cannot_carry_terminal_escapes() {
        let shown = Quoted(OsStr::from_bytes(b"a\x1b[31m\xff\n")).to_string();
        assert!(shown.is_ascii() && !shown.contains(['\x1b', '\n']), "{shown}");
    }
}
