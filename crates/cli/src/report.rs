//! `uncopy report`: shows a profile that `uncopy profile` wrote, or two beside each other.

use crate::atomic_write;
use crate::line;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE, Quoted, Reason};
use crate::profile::out::{Unreadable, read_profile};
use clap::ArgMatches;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::Path;
use uncopy_profile::Profile;
use uncopy_profile::diff::Diff;

/// Runs the command line `report …`.
pub fn main(matches: &ArgMatches) -> u8 {
    if let Some(files) = matches.get_many::<OsString>(line::DIFF) {
        let files: Vec<&OsString> = files.collect();
        return match files.as_slice() {
            [a, b] => show_diff(matches, a, b),
            _ => EXIT_USAGE,
        };
    }
    let Some(path) = matches.get_one::<OsString>(line::FILE) else { return EXIT_FAILURE };
    let Some(profile) = read(path) else { return EXIT_FAILURE };
    let mut is_shown = false;
    if let Some(file) = matches.get_one::<OsString>(line::HTML) {
        is_shown = true;
        if let Some(status) = write(file, &uncopy_html::profile_page(&profile)) {
            return status;
        }
    }
    if let Some(file) = matches.get_one::<OsString>(line::FLAMEGRAPH) {
        is_shown = true;
        if let Some(status) = write(file, &uncopy_profile::folded::folded(&profile)) {
            return status;
        }
    }
    if matches.get_flag(line::JSON) {
        return output::print(profile.to_json().as_bytes(), EXIT_OK);
    }
    if is_shown {
        return EXIT_OK;
    }
    let text = uncopy_profile::text::report(&profile, &path.to_string_lossy(), output::columns());
    output::print(text.as_bytes(), EXIT_OK)
}

/// Reads a profile, or says why not.
fn read(path: &OsStr) -> Option<Profile> {
    match File::open(path).map_err(Unreadable::Io).and_then(read_profile) {
        Ok(profile) => Some(profile),
        Err(why) => {
            output::complain(format_args!("{} {why}", Quoted(path)));
            None
        }
    }
}

/// Shows two profiles beside each other.
fn show_diff(matches: &ArgMatches, a: &OsStr, b: &OsStr) -> u8 {
    // Both are read, so that what is wrong with either is said at once.
    let (Some(first), Some(second)) = (read(a), read(b)) else { return EXIT_FAILURE };
    let diff = match Diff::between((&first, &a.to_string_lossy()), (&second, &b.to_string_lossy())) {
        Ok(diff) => diff,
        Err(unlike) => {
            output::complain(unlike);
            return EXIT_FAILURE;
        }
    };
    let html = matches.get_one::<OsString>(line::HTML);
    if let Some(file) = html
        && let Some(status) = write(file, &uncopy_html::diff_page(&diff))
    {
        return status;
    }
    if matches.get_flag(line::JSON) {
        return output::print(diff.to_json().as_bytes(), EXIT_OK);
    }
    if html.is_some() {
        return EXIT_OK;
    }
    output::print(diff.text(output::columns()).as_bytes(), EXIT_OK)
}

/// Writes a file, or standard output if its name is `-`; the exit status if that failed.
fn write(file: &OsStr, text: &str) -> Option<u8> {
    if file == "-" {
        return Some(output::print(text.as_bytes(), EXIT_OK)).filter(|status| *status != EXIT_OK);
    }
    let error = atomic_write::write(Path::new(file), text.as_bytes()).err()?;
    output::complain(format_args!("cannot write {}: {}", Quoted(file), Reason(&error)));
    Some(EXIT_FAILURE)
}
