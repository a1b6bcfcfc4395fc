//! `uncopy net`: the service of a user-level TCP, and what there is of it.

pub mod line;
pub mod link;
mod serve;
mod show;

use crate::live;
use crate::os;
use crate::output;
use clap::ArgMatches;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use uncopy_net::places::{CONTROL, MAX_CONTROL_BYTES};

/// The folder of services that were given no socket, in the user's live directory.
const FOLDER: &CStr = c"net";

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
    let own = live::directory_of(live::shared_memory(), os::effective_user_id());
    own.join(OsStr::from_bytes(FOLDER.to_bytes()))
}

/// The names of services that were given no socket: those of their devices.
pub fn services() -> Vec<String> {
    let Ok(folder) = live::open_own(live::shared_memory()).and_then(|own| Ok(own.open_in(FOLDER)?)) else {
        return Vec::new();
    };
    let names = os::names_in(&folder).unwrap_or_default();
    let mut names: Vec<String> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
    names.sort();
    names
}

/// Makes the folders above that of a service that was given no socket. Those above a socket that was given are made as they are
/// needed; whether the last is the user's alone is looked at when the service begins.
fn make_parents(control: &Path) -> io::Result<()> {
    let Some(above) = control.parent().and_then(Path::parent) else { return Ok(()) };
    if above == directory() {
        live::make_own(live::shared_memory())?.make_in(FOLDER)?;
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(above)
}

/// Removes the folder of services that were given no socket, if this was the last.
fn remove_parents(control: &Path) {
    if control.parent().and_then(Path::parent) == Some(&directory())
        && let Ok(own) = live::open_own(live::shared_memory())
    {
        own.remove_directory(FOLDER);
    }
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
