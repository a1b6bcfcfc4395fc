//! `uncopy net`: the service of a user-level TCP, and lists of its connections.

pub mod args;
pub mod device;
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
use uncopy_net::paths::{CONTROL, MAX_CONTROL_PATH_BYTES};

/// Directory of services that were given no socket, in the user's live directory.
const SERVICES_DIRECTORY: &CStr = c"net";

/// Runs the command line `net …`.
pub fn main(matches: &ArgMatches) -> u8 {
    let named = |matches: &ArgMatches| {
        control_path(matches.get_one::<OsString>(args::SOCKET).map(OsString::as_os_str).unwrap_or_default())
    };
    match matches.subcommand() {
        Some(("ls", matches)) => show::list(&named(matches), matches.get_flag(args::JSON)),
        Some((_, matches)) => show::statistics(&named(matches), matches.get_flag(args::JSON)),
        None => serve::main(matches),
    }
}

/// Returns the control socket of a service, given the name of its device or the socket's path.
pub fn control_path(name: &OsStr) -> PathBuf {
    if name.as_bytes().contains(&b'/') {
        return std::path::absolute(name).unwrap_or_else(|_| Path::new(name).to_owned());
    }
    directory().join(name).join(CONTROL)
}

/// Returns the directory of services that were given no socket; each has a subdirectory named after
/// its device.
fn directory() -> PathBuf {
    let own = live::directory_of(live::shared_memory(), os::effective_user_id());
    own.join(OsStr::from_bytes(SERVICES_DIRECTORY.to_bytes()))
}

/// Returns the names of services that were given no socket, which are those of their devices.
pub fn service_names() -> Vec<String> {
    let Ok(folder) =
        live::open_own_directory(live::shared_memory()).and_then(|own| Ok(own.open_in(SERVICES_DIRECTORY)?))
    else {
        return Vec::new();
    };
    let names = os::names_in(&folder).unwrap_or_default();
    let mut names: Vec<String> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
    names.sort();
    names
}

/// Creates the directories above the service's own. Whether that one is private is checked when the
/// service begins.
fn make_parents(control: &Path) -> io::Result<()> {
    let Some(above) = control.parent().and_then(Path::parent) else { return Ok(()) };
    if above == directory() {
        live::make_own_directory(live::shared_memory())?.make_in(SERVICES_DIRECTORY)?;
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(above)
}

/// Removes the directory of services that were given no socket, if it is empty.
fn remove_parents(control: &Path) {
    if control.parent().and_then(Path::parent) == Some(&directory())
        && let Ok(own) = live::open_own_directory(live::shared_memory())
    {
        own.remove_directory(SERVICES_DIRECTORY);
    }
}

/// Whether the path of a control socket is too long for programs to connect. Prints an error if so.
fn is_too_long(control: &Path) -> bool {
    let is_too_long = control.as_os_str().len() > MAX_CONTROL_PATH_BYTES;
    if is_too_long {
        let name = output::Quoted(control.as_os_str());
        output::print_message(format_args!(
            "{name} is longer than {MAX_CONTROL_PATH_BYTES} bytes; give a shorter --socket"
        ));
    }
    is_too_long
}
