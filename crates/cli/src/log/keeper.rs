//! Keeper process of the logs of `uncopy run --log`: the hidden command `uncopy log keep`.

use super::memory;
use super::recover;
use crate::args;
use crate::live;
use crate::os;
use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE, Quoted, Reason};
use crate::settings::LogSettings;
use crate::sweep::KEEPER_PREFIX;
use clap::ArgMatches;
use std::ffi::{CString, OsString};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use uncopy_core::options::LogMode;
use uncopy_core::stats::StatsName;
use uncopy_store::keeper::{Keeper, Settings};
use uncopy_store::log_files::RecoveryOptions;
use uncopy_store::logs;
use uncopy_store::mapped::file::Backing;

/// Line that the keeper prints once programs can find it.
const READY: &str = "ready\n";

/// Recovers earlier logs in the directory, creating it if missing, and starts a keeper for new
/// ones. Returns the keeper's socket.
///
/// # Errors
/// The reason, as the rest of a sentence.
pub fn start(options: &LogSettings) -> Result<PathBuf, String> {
    let directory = &options.directory;
    let name = Quoted(directory.as_os_str());
    memory::make_private(directory).map_err(|error| format!("{name}: {}", Reason(&error)))?;
    let is_emulated = match options.mode {
        LogMode::Beside => options.emulates_dax,
        LogMode::Only => memory::of_logs(directory, options.emulates_dax)? == Backing::Emulated,
    };
    let paths = logs::paths(directory).map_err(|error| format!("{name}: {}", Reason(&error)))?;
    // Logs that cannot be recovered are reported by `recover`.
    recover(&paths, &RecoveryOptions::default(), false);
    let live_directory = live::directory_of(live::shared_memory(), os::effective_user_id());
    let opened = live::make_own_directory(live::shared_memory());
    let opened =
        opened.map_err(|error| format!("{}: {}", Quoted(live_directory.as_os_str()), Reason(&error)))?;
    if is_emulated {
        output::print_message(format_args!("the log emulates DAX: nothing survives power loss"));
    }
    let name = StatsName { pid: std::process::id(), namespace: live::own_namespace() };
    let name = format!("{KEEPER_PREFIX}{name}");
    let socket = live_directory.join(&name);
    // Left by an ended process with the same pid.
    opened.remove(&os::c_path(Path::new(&name)).unwrap_or_default());
    spawn(options, &socket).map_err(|error| format!("the log's keeper did not start: {}", Reason(&error)))?;
    Ok(socket)
}

fn spawn(options: &LogSettings, socket: &Path) -> io::Result<()> {
    let mut child = Command::new("/proc/self/exe")
        .args(["log", "keep"])
        .arg(&options.directory)
        .args(["--log-size".into(), OsString::from(options.len_bytes.to_string())])
        .args(options.emulates_dax.then_some("--emulate-dax"))
        .args(["--mode", options.mode.word()])
        .arg("--socket")
        .arg(socket)
        .args(["--root".into(), OsString::from(std::process::id().to_string())])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut reply = String::new();
    let read = child.stdout.take().map_or(Ok(0), |mut output| output.read_to_string(&mut reply));
    child.wait()?;
    read?;
    if reply == READY { Ok(()) } else { Err(io::Error::other(reply.trim_end().to_owned())) }
}

/// Keeps logs until the programs that the keeper was started for have ended.
pub fn run(directory: &Path, matches: &ArgMatches) -> u8 {
    let number = |name| matches.get_one::<OsString>(name)?.to_str()?.parse::<u64>().ok();
    let (log_bytes, root) = (number(args::LOG_SIZE), number(args::ROOT));
    let socket =
        matches.get_one::<OsString>(args::SOCKET).and_then(|socket| CString::new(socket.as_bytes()).ok());
    let mode = matches.get_one::<OsString>(args::LOG_MODE).and_then(|word| LogMode::parse(word.as_bytes()));
    let (Some(log_bytes), Some(root), Some(socket), Some(mode)) = (log_bytes, root, socket, mode) else {
        return EXIT_USAGE;
    };
    let Ok(root) = u32::try_from(root) else { return EXIT_USAGE };
    os::close_inherited();
    match os::fork_detached() {
        Ok(false) => return EXIT_OK,
        Ok(true) => {}
        Err(error) => return output::print(format!("{}\n", Reason(&error)).as_bytes(), EXIT_FAILURE),
    }
    let directory = directory.to_owned();
    let emulates_dax = matches.get_flag(args::EMULATE_DAX);
    match Keeper::begin(Settings { directory, log_bytes, emulates_dax, mode, socket, root_pid: root }) {
        Ok(keeper) => {
            let written = io::stdout().write_all(READY.as_bytes()).and_then(|()| os::close_stdout());
            if written.is_err() {
                return EXIT_FAILURE;
            }
            keeper.keep();
            EXIT_OK
        }
        Err(errno) => output::print(format!("{errno}\n").as_bytes(), EXIT_FAILURE),
    }
}
