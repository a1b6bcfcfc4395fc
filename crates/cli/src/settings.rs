//! Options of one `uncopy run`: those of the environment, then those of the command line. The table
//! that the library uses checks both, so that both refuse the same values.

use crate::environment::Environment;
use crate::live;
use crate::os;
use crate::output::InvalidValue;
use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use uncopy_core::options::{Escaped, LogMode, OptionError, OptionSpec, Options};

/// Variable with the pid of the process whose counters go to the `--stats` file.
pub const STATS_ROOT: &str = "UNCOPY_STATS_ROOT";
/// Variable with the inherited descriptor of `/dev/userfaultfd`.
pub const UFFD_FD: &str = "UNCOPY_UFFD_FD";
/// Variable with the path of the ledger of `--explain`.
pub const LEDGER: &str = "UNCOPY_LEDGER";
/// Variable with the directory for the recordings of `uncopy profile`.
pub const RECORD: &str = "UNCOPY_RECORD";
pub const HEAP: &str = "UNCOPY_HEAP";
const STATS: &str = "UNCOPY_STATS";
const LANES_DIR: &str = "UNCOPY_LANES_DIR";
const NET: &str = "UNCOPY_NET";
const LOG: &str = "UNCOPY_LOG";
const LOG_FILES: &str = "UNCOPY_LOG_FILES";
/// Variable with the socket of the log keeper.
pub const LOG_SOCKET: &str = "UNCOPY_LOG_SOCKET";
const EXPLAIN: &str = "UNCOPY_EXPLAIN";

/// Option given on the command line, with its value (`1` for a switch).
pub type OptionValue = (&'static OptionSpec, OsString);

/// Options that `uncopy run` itself acts on; the library reads the rest.
#[derive(Debug, PartialEq, Eq)]
pub struct Settings {
    pub off: bool,
    /// File for this process's counters; `None` if an outer process writes its own.
    pub stats: Option<OsString>,
    /// File for the report on call sites; `None` if an outer process writes one.
    pub explain: Option<OsString>,
    /// Logs to be kept; `None` if an outer process has them kept.
    pub log: Option<LogSettings>,
    /// Whether the program's connections go through a service (`--net`).
    pub uses_net: bool,
    pub no_follow: bool,
    /// Descriptor of `/dev/userfaultfd` that an outer `uncopy run` left.
    pub uffd_fd: Option<RawFd>,
    /// Warning about unknown variables, one line.
    pub warning: Option<String>,
}

/// Directory and properties of the logs to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    pub directory: std::path::PathBuf,
    /// Length of each log (`--log-size`), bytes.
    pub len_bytes: u64,
    pub mode: LogMode,
    pub emulates_dax: bool,
}

/// Checks every option and puts those of the command line into `environment`.
///
/// # Errors
/// The option or variable, its value and the legal values.
pub fn resolve(
    environment: &mut Environment,
    given: &[OptionValue],
    pid: u32,
) -> Result<Settings, InvalidValue> {
    let mut options = Options::default();
    let mut unknown = Vec::new();
    // In reverse, so that of repeated entries the first counts, as for getenv(3).
    for (name, value) in environment.variables().rev() {
        if Options::is_unknown_variable(name) {
            unknown.insert(0, name);
        }
        options.apply(name, value).map_err(|error| invalid_value(&name.escape_ascii().to_string(), error))?;
    }
    let warning = unknown.first().map(|name| {
        let more = match unknown.len() {
            1 => String::new(),
            count => format!(" (and {} more unknown)", count - 1),
        };
        format!("{}{more}", OptionError::UnknownVariable(name))
    });
    // Paths become absolute because programs change their directory.
    let given: Vec<OptionValue> = given
        .iter()
        .map(|(option, value)| {
            let resolved = match option.variable {
                LANES_DIR | LOG => absolute(value.as_bytes()),
                NET => control_socket(value),
                LOG_FILES => {
                    let globs: Vec<OsString> =
                        value.as_bytes().split(|byte| *byte == b':').map(absolute).collect();
                    globs.join(OsStr::new(":"))
                }
                _ => value.clone(),
            };
            (*option, resolved)
        })
        .collect();
    for (option, value) in &given {
        options
            .apply(option.variable.as_bytes(), value.as_bytes())
            .map_err(|error| invalid_value(&format!("--{}", option.flag), error))?;
    }
    if let Some(directory) = options.lanes_dir {
        check_lanes_dir(OsStr::from_bytes(directory))?;
    }
    if let Some(socket) = options.net {
        check_net(OsStr::from_bytes(socket))?;
    }
    let is_given = |variable| given.iter().any(|(option, _)| option.variable == variable);
    let output = |value: Option<&[u8]>, flag, variable| {
        let name = if is_given(variable) { flag } else { variable };
        value.map(|value| output_path(OsStr::from_bytes(value), name)).transpose()
    };
    let given_stats = is_given(STATS);
    let stats = output(options.stats, "--stats", STATS)?;
    let explain = output(options.explain, "--explain", EXPLAIN)?;
    let writes_explanation = is_given(EXPLAIN) || options.ledger.is_none();
    // Requested on the command line, or by no process above this one.
    let writes_stats = given_stats || options.stats_root.is_none_or(|root| root == pid);
    let settings = Settings {
        off: options.off,
        stats: stats.clone().filter(|_| writes_stats),
        explain: explain.filter(|_| writes_explanation),
        // Requested on the command line, or not kept by an outer run yet.
        log: options.log.filter(|_| !options.off && (is_given(LOG) || options.log_socket.is_none())).map(
            |directory| LogSettings {
                directory: Path::new(OsStr::from_bytes(directory)).to_owned(),
                len_bytes: options.log_bytes,
                mode: options.log_mode,
                emulates_dax: options.log_emulates_dax,
            },
        ),
        uses_net: options.net.is_some() && !options.off,
        no_follow: options.no_follow,
        uffd_fd: options.uffd_fd,
        warning,
    };
    for (option, value) in &given {
        environment.set(option.variable, value.as_bytes());
    }
    if let Some(path) = stats {
        environment.set(STATS, path.as_bytes());
    }
    if settings.stats.is_some() {
        environment.set(STATS_ROOT, pid.to_string().as_bytes());
    }
    Ok(settings)
}

/// Makes a path absolute; leaves what is not a path unchanged.
fn absolute(value: &[u8]) -> OsString {
    let value = OsStr::from_bytes(value);
    std::path::absolute(value).map_or_else(|_| value.to_owned(), std::path::PathBuf::into_os_string)
}

/// Returns the control socket that `--net` names: a path or, without a slash, the name of one of
/// the user's services.
fn control_socket(value: &OsStr) -> OsString {
    if value.is_empty() || value.as_bytes().contains(&b'/') {
        return absolute(value.as_bytes());
    }
    let live = live::directory_of(live::shared_memory(), os::effective_user_id());
    live.join("net").join(value).join(uncopy_net::paths::CONTROL).into_os_string()
}

/// Checks that the control socket exists.
fn check_net(socket: &OsStr) -> Result<(), InvalidValue> {
    if std::fs::metadata(socket).is_ok_and(|found| found.file_type().is_socket()) {
        Ok(())
    } else {
        Err(InvalidValue::new("--net", socket, "the name or the control socket of a running 'uncopy net'"))
    }
}

/// Converts the library's error, under the name by which the option was given.
fn invalid_value(name: &str, error: OptionError<'_>) -> InvalidValue {
    let (value, legal) = match error {
        OptionError::BadValue { value, legal, .. } => (value, legal),
        OptionError::UnknownVariable(variable) => (variable, "a variable that uncopy knows"),
    };
    // The value is most likely the program.
    let hint = if name == "--lanes" { "; put -- before the program" } else { "" };
    InvalidValue {
        name: name.to_owned(),
        value: format!("\"{}\"", Escaped(value)),
        legal: format!("{legal}{hint}"),
    }
}

/// Checks that programs can meet in the directory of `--lanes-dir`.
fn check_lanes_dir(directory: &OsStr) -> Result<(), InvalidValue> {
    let legal = "your own directory with mode 0700, or a path where it can be created";
    if is_private_or_creatable(Path::new(directory)) {
        Ok(())
    } else {
        Err(InvalidValue::new("--lanes-dir", directory, legal))
    }
}

/// Whether a directory is the user's own and nobody else can enter it, or can be created.
pub fn is_private_or_creatable(path: &Path) -> bool {
    match std::fs::symlink_metadata(path) {
        Ok(found) => {
            let is_own = found.uid() == os::effective_user_id();
            found.is_dir() && is_own && found.mode() & 0o777 == 0o700
        }
        Err(_) => path.parent().is_some_and(Path::is_dir),
    }
}

/// Returns an output file's absolute path: servers change their directory before they exit.
fn output_path(value: &OsStr, name: &str) -> Result<OsString, InvalidValue> {
    if value == "-" {
        return Ok(value.to_os_string());
    }
    let path = std::path::absolute(value).unwrap_or_else(|_| Path::new(value).to_path_buf());
    if path.is_dir() || !path.parent().is_some_and(Path::is_dir) {
        return Err(InvalidValue::new(name, value, "a file in an existing directory, or -"));
    }
    Ok(path.into_os_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use uncopy_core::options::OPTIONS;

    const PID: u32 = 77;

    fn environment(variables: &[(&str, &[u8])]) -> Environment {
        let mut environment = Environment::inherited();
        let names: Vec<Vec<u8>> = environment
            .variables()
            .filter(|(name, _)| name.starts_with(b"UNCOPY_"))
            .map(|(name, _)| name.to_vec())
            .collect();
        for name in names {
            environment.remove(&String::from_utf8_lossy(&name));
        }
        for (name, value) in variables {
            environment.set(name, value);
        }
        environment
    }

    fn given(flag: &str, value: &[u8]) -> Vec<OptionValue> {
        let option = OPTIONS.iter().find(|option| option.flag == flag).expect("an option");
        vec![(option, OsStr::from_bytes(value).to_os_string())]
    }

    #[test]
    fn command_line_wins_over_environment_and_reaches_the_program() {
        let mut subject = environment(&[("UNCOPY_MIN_SIZE", b"8192"), ("UNCOPY_OFF", b"0")]);
        resolve(&mut subject, &given("min-size", b"4096"), PID).expect("legal");
        assert_eq!(subject.get(b"UNCOPY_MIN_SIZE"), Some(b"4096".as_slice()));
        assert_eq!(subject.get(b"UNCOPY_OFF"), Some(b"0".as_slice()));
        assert_eq!(subject.get(b"UNCOPY_STATS_ROOT"), None);
    }

    #[test]
    fn bad_values_name_where_they_came_from() {
        let refused = resolve(&mut environment(&[]), &given("min-size", b"16KB"), PID).expect_err("bad");
        let message = refused.to_string();
        assert!(message.starts_with("--min-size is \"16KB\"; it must be "), "{message}");
        let mut subject = environment(&[("UNCOPY_POLICY", b"\xff")]);
        let message = resolve(&mut subject, &[], PID).expect_err("bad").to_string();
        assert!(message.starts_with("UNCOPY_POLICY is \"\\xff\"; it must be auto"), "{message}");
    }

    #[test]
    fn a_program_is_not_taken_for_what_lanes_are_limited_to() {
        let refused = resolve(&mut environment(&[]), &given("lanes", b"redis-server"), PID).expect_err("bad");
        let message = refused.to_string();
        assert!(
            message.starts_with("--lanes is \"redis-server\"; it must be all, off, or a list"),
            "{message}"
        );
        assert!(message.ends_with("; put -- before the program"), "{message}");
    }

    #[test]
    fn files_are_named_from_the_root_on() {
        let mut subject = environment(&[]);
        resolve(&mut subject, &given("log-files", b"/srv/*.wal:journal"), PID).expect("legal");
        let globs = subject.get(b"UNCOPY_LOG_FILES").expect("set");
        assert!(globs.starts_with(b"/srv/*.wal:/") && globs.ends_with(b"/journal"));
        resolve(&mut environment(&[]), &given("log-files", b"/srv/*.wal:"), PID).expect_err("an empty one");
    }

    #[test]
    fn programs_meet_where_nobody_else_can_enter() {
        let mut subject = environment(&[]);
        resolve(&mut subject, &given("lanes-dir", b"lanes"), PID).expect("it can be made");
        let path = subject.get(b"UNCOPY_LANES_DIR").expect("set");
        assert!(path.starts_with(b"/") && path.ends_with(b"/lanes"));
        for value in ["/tmp", "/nonexistent/lanes", "/etc/passwd", ""] {
            let refused = resolve(&mut environment(&[]), &given("lanes-dir", value.as_bytes()), PID);
            let message = refused.expect_err(value).to_string();
            assert!(message.starts_with(&format!("--lanes-dir is \"{value}\"; it must be ")), "{message}");
        }
    }

    #[test]
    fn a_service_is_found_by_its_name_or_its_socket() {
        let directory = std::env::temp_dir().join(format!("uncopy-net-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let socket = directory.join("control");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let mut subject = environment(&[]);
        let given_socket = given("net", socket.as_os_str().as_bytes());
        assert!(resolve(&mut subject, &given_socket, PID).expect("a socket").uses_net);
        assert_eq!(subject.get(b"UNCOPY_NET"), Some(socket.as_os_str().as_bytes()));
        let live = live::directory_of(live::shared_memory(), os::effective_user_id());
        assert_eq!(control_socket("utun0".as_ref()), live.join("net/utun0/control").into_os_string());
        std::fs::remove_dir_all(&directory).expect("removed");
        let long = format!("/{}", "x".repeat(uncopy_net::paths::MAX_CONTROL_PATH_BYTES));
        for value in [socket.to_str().expect("UTF-8"), "/etc/passwd", "/tmp", "no-such-service", "", &long] {
            let refused = resolve(&mut environment(&[]), &given("net", value.as_bytes()), PID);
            let message = refused.expect_err(value).to_string();
            assert!(message.starts_with("--net is \"") && message.contains("it must be the "), "{message}");
        }
    }

    #[test]
    fn refused_options_leave_the_environment_unchanged() {
        let mut subject = environment(&[("UNCOPY_HEAP", b"on")]);
        let before: Vec<_> = subject.entries().into_iter().map(ToOwned::to_owned).collect();
        let mut options = given("off", b"1");
        options.extend(given("policy", b"maybe"));
        resolve(&mut subject, &options, PID).expect_err("bad policy");
        assert_eq!(subject.entries(), before.iter().map(AsRef::as_ref).collect::<Vec<_>>());
    }

    #[test]
    fn unknown_variables_are_one_warning() {
        let mut subject =
            environment(&[("UNCOPY_MINSIZE", b"1"), ("UNCOPY_\u{1}", b"2"), ("XUNCOPY_", b"3")]);
        let warning = resolve(&mut subject, &[], PID).expect("legal").warning.expect("a warning");
        assert!(warning.starts_with("unknown variable UNCOPY_MINSIZE in the environment"), "{warning}");
        assert!(warning.ends_with("(and 1 more unknown)"), "{warning}");
        assert_eq!(resolve(&mut environment(&[]), &[], PID).expect("legal").warning, None);
    }

    #[test]
    fn stats_belong_to_the_outermost_process_that_was_asked() {
        let outer = [("UNCOPY_STATS", b"-".as_slice()), ("UNCOPY_STATS_ROOT", b"5")];
        let mut subject = environment(&outer);
        assert_eq!(resolve(&mut subject, &[], PID).expect("legal").stats, None);
        assert_eq!(subject.get(b"UNCOPY_STATS_ROOT"), Some(b"5".as_slice()));
        let settings = resolve(&mut subject, &given("stats", b"-"), PID).expect("legal");
        assert_eq!(settings.stats.as_deref(), Some(OsStr::new("-")));
        assert_eq!(subject.get(b"UNCOPY_STATS_ROOT"), Some(b"77".as_slice()));
        let mut subject = environment(&outer[..1]);
        assert!(resolve(&mut subject, &[], PID).expect("legal").stats.is_some());
    }

    #[test]
    fn stats_path_is_made_absolute_and_its_directory_must_exist() {
        let mut subject = environment(&[]);
        resolve(&mut subject, &given("stats", b"counters-\xff.json"), PID).expect("legal");
        let path = subject.get(b"UNCOPY_STATS").expect("set");
        assert!(path.starts_with(b"/") && path.ends_with(b"/counters-\xff.json"));
        for value in ["/nonexistent/counters.json", "/tmp"] {
            let refused =
                resolve(&mut environment(&[]), &given("stats", value.as_bytes()), PID).expect_err(value);
            let message = refused.to_string();
            assert!(message.starts_with(&format!("--stats is \"{value}\"; it must be ")), "{message}");
        }
    }
}
