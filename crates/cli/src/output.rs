//! Output and exit statuses of the command.
//!
//! A broken pipe is not an error: readers of standard output and standard error may go away.

use crate::os;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write as _};

/// Success; of `doctor`: `run` will be active.
pub const EXIT_OK: u8 = 0;
/// The request could not be fulfilled.
pub const EXIT_FAILURE: u8 = 1;
/// The command line or an `UNCOPY_` variable is wrong.
pub const EXIT_USAGE: u8 = 2;
/// CMD exists but could not be executed.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// CMD was not found.
pub const EXIT_NOT_FOUND: u8 = 127;

/// Prints `uncopy: ` and the message as one line on standard error, in one write.
pub fn print_message(message: impl fmt::Display) {
    let line = format!("uncopy: {message}\n");
    // A failure to write to standard error can be reported nowhere.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Prints `bytes` on standard output and returns `status`, or 1 if they could not be written.
pub fn print(bytes: &[u8], status: u8) -> u8 {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Ok(()) => status,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => status,
        Err(error) => {
            print_message(format_args!("cannot write to standard output: {}", Reason(&error)));
            EXIT_FAILURE
        }
    }
}

/// Returns the columns of the terminal on standard output; without one, `COLUMNS` or 80.
pub fn columns() -> usize {
    let given = || std::env::var("COLUMNS").ok()?.parse().ok();
    os::child::columns(&io::stdout()).or_else(given).unwrap_or(80)
}

/// Name in quotes, with control characters and bytes that are not UTF-8 escaped.
pub struct Quoted<'a>(pub &'a OsStr);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Operating system error in lower case, without its number.
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

/// Illegal value of an option, variable or argument. `Display` is a complete message.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidValue {
    /// Option with its dashes, variable, or argument.
    pub name: String,
    /// Value as it is shown.
    pub value: String,
    /// Description of legal values.
    pub legal: String,
}

impl InvalidValue {
    /// Returns the error for a value as it was typed.
    pub fn new(name: &str, value: &OsStr, legal: impl Into<String>) -> Self {
        Self { name: name.to_owned(), value: Quoted(value).to_string(), legal: legal.into() }
    }
}

impl fmt::Display for InvalidValue {
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
