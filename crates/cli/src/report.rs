//! `uncopy report`: shows a profile that `uncopy profile` wrote.

use crate::explain::write_whole;
use crate::line;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, Quoted, Reason};
use crate::profile::out::{Unreadable, read_profile};
use clap::ArgMatches;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::Path;

/// Runs the command line `report …`.
pub fn main(matches: &ArgMatches) -> u8 {
    let Some(path) = matches.get_one::<OsString>(line::FILE) else { return EXIT_FAILURE };
    let profile = match File::open(path).map_err(Unreadable::Io).and_then(read_profile) {
        Ok(profile) => profile,
        Err(why) => {
            output::complain(format_args!("{} {why}", Quoted(path)));
            return EXIT_FAILURE;
        }
    };
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

/// Writes a file, or standard output if its name is `-`; the exit status if that failed.
fn write(file: &OsStr, text: &str) -> Option<u8> {
    if file == "-" {
        return Some(output::print(text.as_bytes(), EXIT_OK)).filter(|status| *status != EXIT_OK);
    }
    let error = write_whole(Path::new(file), text.as_bytes()).err()?;
    output::complain(format_args!("cannot write {}: {}", Quoted(file), Reason(&error)));
    Some(EXIT_FAILURE)
}
