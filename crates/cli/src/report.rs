//! `uncopy report`: shows a profile that `uncopy profile` wrote, or compares two.

use crate::args;
use crate::atomic_write;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE, InvalidValue, Quoted, Reason};
use crate::profile::file::{ReadError, read_profile};
use clap::ArgMatches;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::IsTerminal as _;
use std::path::Path;
use uncopy_profile::Profile;
use uncopy_profile::diff::Diff;

/// Runs the command line `report …`.
pub fn main(matches: &ArgMatches) -> u8 {
    if let Some(files) = matches.get_many::<OsString>(args::DIFF) {
        let files: Vec<&OsString> = files.collect();
        return match files.as_slice() {
            [a, b] => show_diff(matches, a, b),
            _ => EXIT_USAGE,
        };
    }
    let Some(path) = matches.get_one::<OsString>(args::FILE) else { return EXIT_FAILURE };
    let Some(profile) = read(path) else { return EXIT_FAILURE };
    let mut is_written = false;
    if let Some(file) = matches.get_one::<OsString>(args::HTML) {
        is_written = true;
        if let Some(status) = write(file, uncopy_html::profile_page(&profile).as_bytes()) {
            return status;
        }
    }
    if let Some(file) = matches.get_one::<OsString>(args::FLAMEGRAPH) {
        is_written = true;
        if let Some(status) = write(file, uncopy_profile::folded::folded(&profile).as_bytes()) {
            return status;
        }
    }
    if let Some(file) = matches.get_one::<OsString>(args::PPROF) {
        is_written = true;
        if let Some(status) = write_pprof(file, &profile) {
            return status;
        }
    }
    if matches.get_flag(args::JSON) {
        return output::print(profile.to_json().as_bytes(), EXIT_OK);
    }
    if is_written {
        return EXIT_OK;
    }
    let text = uncopy_profile::text::report(&profile, &path.to_string_lossy(), output::columns());
    output::print(text.as_bytes(), EXIT_OK)
}

/// Reads a profile, or prints why it cannot be read.
fn read(path: &OsStr) -> Option<Profile> {
    match File::open(path).map_err(ReadError::Io).and_then(read_profile) {
        Ok(profile) => Some(profile),
        Err(why) => {
            output::print_message(format_args!("{} {why}", Quoted(path)));
            None
        }
    }
}

/// Shows two profiles side by side.
fn show_diff(matches: &ArgMatches, a: &OsStr, b: &OsStr) -> u8 {
    // Both are read first, so that errors in both are reported.
    let (Some(first), Some(second)) = (read(a), read(b)) else { return EXIT_FAILURE };
    let diff = match Diff::between((&first, &a.to_string_lossy()), (&second, &b.to_string_lossy())) {
        Ok(diff) => diff,
        Err(error) => {
            output::print_message(error);
            return EXIT_FAILURE;
        }
    };
    let html = matches.get_one::<OsString>(args::HTML);
    if let Some(file) = html
        && let Some(status) = write(file, uncopy_html::diff_page(&diff).as_bytes())
    {
        return status;
    }
    if matches.get_flag(args::JSON) {
        return output::print(diff.to_json().as_bytes(), EXIT_OK);
    }
    if html.is_some() {
        return EXIT_OK;
    }
    output::print(diff.text(output::columns()).as_bytes(), EXIT_OK)
}

/// Writes a profile in pprof's format. Returns the exit status on failure.
fn write_pprof(file: &OsStr, profile: &Profile) -> Option<u8> {
    if file == "-" && std::io::stdout().is_terminal() {
        let illegal =
            InvalidValue::new("--pprof", file, "a file, because a terminal cannot show compressed data");
        output::print_message(illegal);
        return Some(EXIT_USAGE);
    }
    write(file, &uncopy_profile::pprof::encode(profile))
}

/// Writes a file, or standard output if its name is `-`. Returns the exit status on failure.
fn write(file: &OsStr, bytes: &[u8]) -> Option<u8> {
    if file == "-" {
        return Some(output::print(bytes, EXIT_OK)).filter(|status| *status != EXIT_OK);
    }
    let error = atomic_write::write(Path::new(file), bytes).err()?;
    output::print_message(format_args!("cannot write {}: {}", Quoted(file), Reason(&error)));
    Some(EXIT_FAILURE)
}
