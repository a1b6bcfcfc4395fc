//! A file for a textfile collector, which must never see a part of it.

use super::fail;
use crate::output::{EXIT_OK, Quoted, Reason};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Collectors run as users of their own.
const MODE: u32 = 0o644;

/// Puts `text` in the place of `file`.
pub fn write(file: &OsStr, text: &str) -> u8 {
    match replace(Path::new(file), text.as_bytes()) {
        Ok(()) => EXIT_OK,
        Err(error) => fail(format_args!("cannot write {}: {}", Quoted(file), Reason(&error))),
    }
}

fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = file.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    // Collectors read names that end in .prom.
    let mut new = name.to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = file.with_file_name(new);
    // Whoever can write in the directory may have put something there.
    let _ = fs::remove_file(&new);
    let mut output = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new)?;
    let done = output.write_all(bytes).and_then(|()| fs::rename(&new, file));
    if done.is_err() {
        let _ = fs::remove_file(&new);
    }
    done
}
