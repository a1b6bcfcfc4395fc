//! Replaces a file for a textfile collector, which must never see a part of it.

use super::fail;
use crate::atomic_write;
use crate::output::{EXIT_OK, Quoted, Reason};
use std::ffi::OsStr;
use std::path::Path;

/// Mode that lets collectors read the file, which run as users of their own.
const MODE: u32 = 0o644;

/// Replaces `file` by `text`. Returns the exit status.
pub fn write(file: &OsStr, text: &str) -> u8 {
    match atomic_write::replace(Path::new(file), text.as_bytes(), MODE) {
        Ok(()) => EXIT_OK,
        Err(error) => fail(format_args!("cannot write {}: {}", Quoted(file), Reason(&error))),
    }
}
