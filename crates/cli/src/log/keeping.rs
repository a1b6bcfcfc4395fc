//! The process that keeps logs for what `uncopy run --log` starts: `uncopy log keep`, which nobody types.

use super::recover;
use crate::line;
use crate::live;
use crate::os;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE, Quoted, Reason};
use crate::settings::Logs;
use crate::sweep::KEEPER_PREFIX;
use clap::ArgMatches;
use std::ffi::{CString, OsString};
use std::fs::{self, DirBuilder};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use uncopy_store::keeper::{Keeper, Settings};
use uncopy_store::places::{self, Ways};

/// What the keeper says once programs find it.
const READY: &str = "ready\n";

/// Recovers what is left of earlier logs in a directory, which is made if it is not there, and starts a keeper for new ones. The name
/// by which programs find it.
///
/// # Errors
/// Why there is none: the rest of a sentence.
pub fn begin(asked: &Logs) -> Result<PathBuf, String> {
    let directory = &asked.directory;
    let name = Quoted(directory.as_os_str());
    make_private(directory).map_err(|error| format!("{name}: {}", Reason(&error)))?;
    let logs = places::logs(directory).map_err(|error| format!("{name}: {}", Reason(&error)))?;
    // What is left says so.
    recover(&logs, &Ways::default(), false);
    let meeting = live::directory_of(live::shared_memory(), os::effective_user_id());
    let opened = live::make_own(live::shared_memory());
    let opened = opened.map_err(|error| format!("{}: {}", Quoted(meeting.as_os_str()), Reason(&error)))?;
    if asked.emulates_dax {
        output::complain(format_args!("the log emulates DAX: nothing survives power loss"));
    }
    let name = format!("{KEEPER_PREFIX}{}", std::process::id());
    let socket = meeting.join(&name);
    // Of a process with this number that has ended.
    opened.remove(&os::c_path(Path::new(&name)).unwrap_or_default());
    start(asked, &socket).map_err(|error| format!("its keeper did not start: {}", Reason(&error)))?;
    Ok(socket)
}

/// Makes a directory that only its owner can enter, or finds it.
fn make_private(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    let is_private = found.is_dir() && found.uid() == os::effective_user_id() && found.mode() & 0o077 == 0;
    let why = "it is not a directory of this user's that nobody else can enter (chmod 700)";
    if is_private { Ok(()) } else { Err(io::Error::other(why)) }
}

fn start(asked: &Logs, socket: &Path) -> io::Result<()> {
    let mut child = Command::new("/proc/self/exe")
        .args(["log", "keep"])
        .arg(&asked.directory)
        .args(["--log-size".into(), OsString::from(asked.len_bytes.to_string())])
        .args(asked.emulates_dax.then_some("--emulate-dax"))
        .arg("--socket")
        .arg(socket)
        .args(["--root".into(), OsString::from(std::process::id().to_string())])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut said = String::new();
    let read = child.stdout.take().map_or(Ok(0), |mut output| output.read_to_string(&mut said));
    child.wait()?;
    read?;
    if said == READY { Ok(()) } else { Err(io::Error::other(said.trim_end().to_owned())) }
}

/// Keeps logs until the programs have ended that were started for it.
pub fn keep(directory: &Path, matches: &ArgMatches) -> u8 {
    let number = |name| matches.get_one::<OsString>(name)?.to_str()?.parse::<u64>().ok();
    let (log_bytes, root) = (number(line::LOG_SIZE), number(line::ROOT));
    let socket =
        matches.get_one::<OsString>(line::SOCKET).and_then(|socket| CString::new(socket.as_bytes()).ok());
    let (Some(log_bytes), Some(root), Some(socket)) = (log_bytes, root, socket) else { return EXIT_USAGE };
    let Ok(root) = u32::try_from(root) else { return EXIT_USAGE };
    os::close_others();
    match os::detach() {
        Ok(false) => return EXIT_OK,
        Ok(true) => {}
        Err(error) => return output::print(format!("{}\n", Reason(&error)).as_bytes(), EXIT_FAILURE),
    }
    let directory = directory.to_owned();
    let emulates_dax = matches.get_flag(line::EMULATE_DAX);
    match Keeper::begin(Settings { directory, log_bytes, emulates_dax, socket, root }) {
        Ok(keeper) => {
            let said = io::stdout().write_all(READY.as_bytes()).and_then(|()| os::close_output());
            if said.is_err() {
                return EXIT_FAILURE;
            }
            keeper.keep();
            EXIT_OK
        }
        Err(errno) => output::print(format!("{errno}\n").as_bytes(), EXIT_FAILURE),
    }
}
