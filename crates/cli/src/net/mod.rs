//! `uncopy net`: the service of a user-level TCP, and what there is of it.

pub mod line;
pub mod link;
mod serve;
mod show;

use crate::live;
use crate::os;
use crate::output;
use clap::ArgMatches;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use uncopy_net::places::{CONTROL, MAX_CONTROL_BYTES};

/// Runs the command line `net …`.
pub fn main(matches: &ArgMatches) -> u8 {
    let named = |matches: &ArgMatches| {
        control(matches.get_one::<OsString>(line::SOCKET).map(OsString::as_os_str).unwrap_or_default())
    };
    match matches.subcommand() {
        Some(("ls", matches)) => show::list(&named(matches), matches.get_flag(line::JSON)),
        Some((_, matches)) => show::statistics(&named(matches), matches.get_flag(line::JSON)),
        None => serve::main(matches),
    }
}

/// The control socket of a service that is called by the name of its device or by the socket's path.
pub fn control(name: &OsStr) -> PathBuf {
    if name.as_bytes().contains(&b'/') {
        return std::path::absolute(name).unwrap_or_else(|_| Path::new(name).to_owned());
    }
    directory().join(name).join(CONTROL)
}

/// Where services are that were given no socket: a folder for each by its device's name.
fn directory() -> PathBuf {
    live::directory_of(live::shared_memory(), os::effective_user_id()).join("net")
}

/// The names of services that were given no socket: those of their devices.
pub fn services() -> Vec<String> {
    let Ok(folders) = std::fs::read_dir(directory()) else { return Vec::new() };
    let mut names: Vec<String> =
        folders.filter_map(|folder| folder.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Whether programs could not find a control socket because its path is too long. Says so.
fn is_too_long(control: &Path) -> bool {
    let is_too_long = control.as_os_str().len() > MAX_CONTROL_BYTES;
    if is_too_long {
        let name = output::Quoted(control.as_os_str());
        output::complain(format_args!(
            "{name} is longer than {MAX_CONTROL_BYTES} bytes; give a shorter --socket"
        ));
    }
    is_too_long
}
