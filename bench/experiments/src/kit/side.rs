//! The sides that an experiment compares, and the `uncopy` command that starts them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use rustix::process::Pid;
use serde_json::Value;
use uncopy_core::stats::Counter;

use crate::kit::failure::{Failure, Result, While};
use crate::kit::{keeper, processes::process};

/// Environment variable with the path of the `uncopy` command, if none lies beside this program.
const EXE_VARIABLE: &str = "UNCOPY_BENCH_EXE";

/// Library directories of distributions.
const LIBRARY_DIRECTORIES: [&str; 5] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib64", "/usr/local/lib"];
/// glibc tunables that make malloc keep freed memory.
const TUNABLES: &str = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=1073741824:glibc.malloc.top_pad=67108864";

/// The environment that a program is measured under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// Plain Linux, with nothing preloaded
    Plain,
    /// Plain once more: the difference between two equal sides
    #[value(skip)]
    PlainAgain,
    /// `uncopy run` with its default options
    Uncopy,
    /// `uncopy run` with mimalloc for the allocations that uncopy leaves to malloc
    UncopyMimalloc,
    /// `uncopy run --lanes`, at both ends of each connection
    #[value(skip)]
    Lanes,
    /// `uncopy run --log`: what is synced goes to a log
    #[value(skip)]
    Log,
    /// `uncopy run --log`, with the log in memory: what it would be on persistent memory
    #[value(skip)]
    LogInMemory,
    /// `uncopy run --net --heap off --policy never`: the program copies at each end of the stack's API and within
    #[value(skip)]
    NetCopying,
    /// [`Side::NetCopying`] with the block heap
    #[value(skip)]
    NetHeapOnly,
    /// `uncopy run --net`, and a service that makes the copies of a stack's API; those in the program are elided
    #[value(skip)]
    NetApiCopying,
    /// `uncopy run --net`: large parts pass by reference between service and program, and copies are elided there
    #[value(skip)]
    Net,
    /// [`Side::Net`] with `--log`: what is synced goes to a log
    #[value(skip)]
    NetLog,
    /// [`Side::NetCopying`] with the log of [`Side::OnlyCopying`]: both stacks, nothing elided
    #[value(skip)]
    NetOnlyCopying,
    /// [`Side::NetOnlyCopying`] with the block heap
    #[value(skip)]
    NetOnlyHeapOnly,
    /// [`Side::NetApiCopying`] with the log of [`Side::OnlyApiCopying`]
    #[value(skip)]
    NetOnlyApiCopying,
    /// [`Side::Net`] with the log of [`Side::Only`]
    #[value(skip)]
    NetOnly,
    /// [`Side::NetOnly`] whose service receives into memory that records refer to
    #[value(skip)]
    NetOnlyReceiving,
    /// A log that has the only copy, in memory that emulates DAX, and all copies made
    #[value(skip)]
    OnlyCopying,
    /// [`Side::OnlyCopying`] with the block heap
    #[value(skip)]
    OnlyHeapOnly,
    /// Copies in the program elided; the log's record is a copy
    #[value(skip)]
    OnlyApiCopying,
    /// Copies in the program elided, and input received into the log's memory, which records refer to
    #[value(skip)]
    Only,
    /// `uncopy run --heap on --policy never`: the block heap alone, without elision
    HeapOnly,
    /// glibc malloc, tuned by GLIBC_TUNABLES to keep freed memory
    TunedGlibc,
    /// mimalloc as a preloaded allocator
    Mimalloc,
    /// jemalloc as a preloaded allocator
    Jemalloc,
    /// `uncopy run --policy always --min-size 4096`: every copy elided, even where that takes longer
    Always,
    /// `uncopy run`, recorded as by `uncopy profile`
    #[value(skip)]
    Recording,
    /// Plain Linux, and a server that makes no copies: the upper limit of eliding copies
    Limit,
    /// Plain, and a server whose values lie in twin memory and are sent by reference
    #[value(skip)]
    Twin,
    /// Plain, and a server of our own that sends, or a loop that writes, in this way
    #[value(skip)]
    Way(&'static str),
}

impl Side {
    /// Sides that show what uncopy does; the others are for comparison.
    pub const UNCOPY: [Self; 14] = [
        Self::Uncopy,
        Self::UncopyMimalloc,
        Self::Twin,
        Self::Lanes,
        Self::Log,
        Self::LogInMemory,
        Self::NetApiCopying,
        Self::Net,
        Self::NetLog,
        Self::NetOnlyApiCopying,
        Self::NetOnly,
        Self::NetOnlyReceiving,
        Self::OnlyApiCopying,
        Self::Only,
    ];

    /// Returns the name in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::PlainAgain => "plain again",
            Self::Uncopy => "uncopy",
            Self::UncopyMimalloc => "uncopy, mimalloc",
            Self::Lanes => "lanes",
            Self::Log => "uncopy, log",
            Self::LogInMemory => "log, emulated DAX",
            Self::NetCopying => "net, all copied",
            Self::NetHeapOnly => "net, heap only",
            Self::NetApiCopying => "net, API copied",
            Self::Net => "net",
            Self::NetLog => "net, log",
            Self::NetOnlyCopying => "net, only copy, all copied",
            Self::NetOnlyHeapOnly => "net, only copy, heap only",
            Self::NetOnlyApiCopying => "net, only copy, API copied",
            Self::NetOnly => "net, only copy",
            Self::NetOnlyReceiving => "net, only copy, received there",
            Self::OnlyCopying => "only copy, all copied",
            Self::OnlyHeapOnly => "only copy, heap only",
            Self::OnlyApiCopying => "only copy, API copied",
            Self::Only => "only copy",
            Self::HeapOnly => "heap only",
            Self::TunedGlibc => "tuned glibc",
            Self::Mimalloc => "mimalloc",
            Self::Jemalloc => "jemalloc",
            Self::Always => "always",
            Self::Recording => "recording",
            Self::Limit => "0 copies",
            Self::Twin => "twin",
            Self::Way(name) => name,
        }
    }

    /// Returns the name as a JSON key.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::PlainAgain => "plain_again",
            Self::UncopyMimalloc => "uncopy_mimalloc",
            Self::Log => "uncopy_log",
            Self::LogInMemory => "log_emulated_dax",
            Self::NetCopying => "net_all_copied",
            Self::NetHeapOnly => "net_heap_only",
            Self::NetApiCopying => "net_api_copied",
            Self::NetLog => "net_log",
            Self::NetOnlyCopying => "net_only_copy_all_copied",
            Self::NetOnlyHeapOnly => "net_only_copy_heap_only",
            Self::NetOnlyApiCopying => "net_only_copy_api_copied",
            Self::NetOnly => "net_only_copy",
            Self::NetOnlyReceiving => "net_only_copy_received_there",
            Self::OnlyCopying => "only_copy_all_copied",
            Self::OnlyHeapOnly => "only_copy_heap_only",
            Self::OnlyApiCopying => "only_copy_api_copied",
            Self::Only => "only_copy",
            Self::HeapOnly => "heap_only",
            Self::TunedGlibc => "tuned_glibc",
            Self::Limit => "zero_copy_limit",
            side => side.name(),
        }
    }

    /// True if `uncopy run` starts the program.
    #[must_use]
    pub const fn is_under_uncopy(self) -> bool {
        self.run_arguments().is_some()
    }

    /// Returns the environment variable that selects another allocator for a program without uncopy.
    ///
    /// # Errors
    /// [`Failure`] with the installation command when the allocator is missing.
    pub fn allocator_environment(self) -> Result<Option<(&'static str, OsString)>> {
        let preload = |libraries: &[&str], package: &str| {
            let in_directories = |library: &&str| {
                LIBRARY_DIRECTORIES.map(|directory| Path::new(directory).join(library)).into_iter()
            };
            let found = libraries.iter().flat_map(in_directories).find(|path| path.is_file());
            let path = found.ok_or_else(|| {
                Failure::new(format!(
                    "{} is not installed; install it with: apt-get install {package}",
                    libraries[0]
                ))
            })?;
            Ok(Some(("LD_PRELOAD", path.into_os_string())))
        };
        match self {
            Self::TunedGlibc => Ok(Some(("GLIBC_TUNABLES", TUNABLES.into()))),
            Self::Mimalloc | Self::UncopyMimalloc => {
                preload(&["libmimalloc.so.2", "libmimalloc.so.3"], "libmimalloc2.0")
            }
            Self::Jemalloc => preload(&["libjemalloc.so.2"], "libjemalloc2"),
            _ => Ok(None),
        }
    }

    /// True if the side is an alternative to eliding that users have, so that uncopy must be better.
    #[must_use]
    pub const fn is_rival(self) -> bool {
        matches!(self, Self::Plain | Self::HeapOnly | Self::TunedGlibc | Self::Mimalloc | Self::Jemalloc)
    }

    /// True if the side has a log, and so a log keeper.
    #[must_use]
    pub const fn has_log(self) -> bool {
        !self.log_arguments().is_empty()
    }

    /// True if the log is in memory, as if that were persistent.
    #[must_use]
    pub const fn logs_in_memory(self) -> bool {
        self.has_log() && !matches!(self, Self::Log | Self::NetLog)
    }

    /// True if the log has the only copy of what is written.
    #[must_use]
    pub const fn logs_only(self) -> bool {
        matches!(
            self,
            Self::OnlyCopying
                | Self::OnlyHeapOnly
                | Self::OnlyApiCopying
                | Self::Only
                | Self::NetOnlyCopying
                | Self::NetOnlyHeapOnly
                | Self::NetOnlyApiCopying
                | Self::NetOnly
                | Self::NetOnlyReceiving
        )
    }

    /// True if the service's memory is in the directory of the log (`uncopy net --memory-dir`).
    #[must_use]
    pub const fn receives_into_log(self) -> bool {
        matches!(self, Self::NetOnlyReceiving)
    }

    /// Returns how the side's user-level TCP service treats copies at its API; `None` without a service.
    #[must_use]
    pub const fn service(self) -> Option<ApiCopies> {
        match self {
            Self::NetApiCopying | Self::NetOnlyApiCopying => Some(ApiCopies::Make),
            // In a program that elides nothing, its own end of the API makes the copies, as in an ordinary stack.
            Self::Net
            | Self::NetCopying
            | Self::NetHeapOnly
            | Self::NetLog
            | Self::NetOnly
            | Self::NetOnlyReceiving
            | Self::NetOnlyCopying
            | Self::NetOnlyHeapOnly => Some(ApiCopies::Elide),
            _ => None,
        }
    }

    /// Returns the words after `uncopy`, except those of a log; `None` where the program runs without uncopy.
    const fn run_arguments(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Uncopy
            | Self::UncopyMimalloc
            | Self::Recording
            | Self::Log
            | Self::LogInMemory
            | Self::NetApiCopying
            | Self::Net
            | Self::NetLog
            | Self::NetOnly
            | Self::NetOnlyReceiving
            | Self::Only => Some(&["run"]),
            Self::OnlyApiCopying | Self::NetOnlyApiCopying => Some(&["run", "--api-copies", "make"]),
            Self::Lanes => Some(&["run", "--lanes"]),
            Self::NetCopying | Self::NetOnlyCopying | Self::OnlyCopying => {
                Some(&["run", "--heap", "off", "--policy", "never"])
            }
            Self::HeapOnly | Self::NetHeapOnly | Self::NetOnlyHeapOnly | Self::OnlyHeapOnly => {
                Some(&["run", "--heap", "on", "--policy", "never"])
            }
            Self::Always => Some(&["run", "--policy", "always", "--min-size", "4096"]),
            _ => None,
        }
    }

    /// Returns the words before a log's directory; empty without a log.
    const fn log_arguments(self) -> &'static [&'static str] {
        match self {
            Self::Log | Self::NetLog => &["--log-size", "268435456", "--log"],
            Self::LogInMemory => &["--log-size", "67108864", "--log-emulate-dax", "--log"],
            _ if self.logs_only() => {
                &["--log-mode", "only", "--log-size", "134217728", "--log-emulate-dax", "--log"]
            }
            _ => &[],
        }
    }
}

/// Treatment of copies at the API of a user-level TCP service (`uncopy net --api-copies`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiCopies {
    /// The service copies, as the kernel does.
    Make,
    /// Large parts pass by reference.
    Elide,
}

/// Activity of uncopy in a process, as reported by `uncopy stats PID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Reason why nothing is elided, if uncopy is inactive.
    pub inactive_reason: Option<String>,
    /// Bytes whose copy was elided.
    pub elided_bytes: u64,
    /// Bytes that hooks copied.
    pub copied_bytes: u64,
    /// Bytes that were sent by reference.
    pub lent_bytes: u64,
    /// Page faults that uncopy resolved.
    pub faults: u64,
    /// Peak number of live views.
    pub views_peak: u64,
    /// Savings that the process measured by itself, as a JSON list.
    pub trials: Value,
}

impl Activity {
    fn parse(json: &str) -> Result<Self> {
        let bad = |what: &str| Failure::new(format!("uncopy stats printed {what}"));
        let value: Value = serde_json::from_str(json.trim()).map_err(|_| bad("invalid JSON"))?;
        let counter = |counter: Counter| {
            let name = counter.name();
            value.get(name).and_then(Value::as_u64).ok_or_else(|| bad(&format!("no {name}")))
        };
        let inactive_reason = value.get("reason").and_then(Value::as_str).map(str::to_owned);
        Ok(Self {
            inactive_reason,
            elided_bytes: counter(Counter::ElidedBytes)?,
            copied_bytes: counter(Counter::CopiedBytes)?,
            lent_bytes: counter(Counter::LentBytes)? + counter(Counter::LaneSentBytes)?,
            faults: counter(Counter::Faults)?,
            views_peak: counter(Counter::ViewsPeak)?,
            trials: value
                .get("trials")
                .filter(|trials| trials.is_array())
                .cloned()
                .ok_or_else(|| bad("no trials"))?,
        })
    }
}

/// Starts programs under each side.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// Path of this program.
    bench_path: PathBuf,
    /// Path of the `uncopy` command.
    uncopy_path: PathBuf,
    /// Minimum length of the calls that `uncopy profile` records, bytes; `None` for its default.
    min_profiled_bytes: Option<usize>,
    /// Directory of the log, if the side has one.
    log_directory: PathBuf,
    /// Patterns of the files to log; `None`: those for which it pays.
    logged_files: Option<String>,
    /// Control socket of the service, if the side has one.
    service_socket: PathBuf,
}

impl Launcher {
    /// Returns a launcher of this program and of the `uncopy` beside it, or else of `$UNCOPY_BENCH_EXE`.
    ///
    /// # Errors
    /// [`Failure`] when there is no `uncopy`, or when this program itself runs under uncopy.
    pub fn from_environment() -> Result<Self> {
        let preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        if preload.to_string_lossy().contains("libuncopy") {
            let message =
                "uncopy-bench itself runs under uncopy, so no side would be plain; unset LD_PRELOAD";
            return Err(Failure::new(message));
        }
        let mut launcher = Self::for_current_process()?;
        if !launcher.uncopy_path.is_file() {
            let named = std::env::var_os(EXE_VARIABLE).filter(|path| !path.is_empty());
            launcher.uncopy_path = named.map(PathBuf::from).ok_or_else(|| {
                let missing_path = launcher.uncopy_path.display();
                Failure::new(format!(
                    "{missing_path} is missing; build it with make bench, or set {EXE_VARIABLE} to the path of uncopy"
                ))
            })?;
        }
        Ok(launcher)
    }

    /// Returns a launcher for a process that already runs under a side; programs started as plain inherit that side.
    ///
    /// # Errors
    /// [`Failure`] when the program's path is not known.
    pub fn for_current_process() -> Result<Self> {
        let bench_path = std::env::current_exe().doing("finding the path of uncopy-bench")?;
        Ok(Self::of(bench_path))
    }

    /// Returns a launcher for the program `bench_path`, with `uncopy` beside it.
    pub fn of(bench_path: impl Into<PathBuf>) -> Self {
        let bench_path = bench_path.into();
        let uncopy_path = bench_path.with_file_name("uncopy");
        Self {
            bench_path,
            uncopy_path,
            min_profiled_bytes: None,
            log_directory: keeper::LOG_DIRECTORY.into(),
            logged_files: None,
            service_socket: PathBuf::new(),
        }
    }

    /// Returns a launcher for a server whose log is in `directory`.
    #[must_use]
    pub fn with_log_in(&self, directory: &Path) -> Self {
        Self { log_directory: directory.join(keeper::LOG_DIRECTORY), ..self.clone() }
    }

    /// Returns a launcher for a server whose files in `directory`, and in directories there, are logged without trials,
    /// by sides whose log has the only copy.
    #[must_use]
    pub fn with_logged_files(&self, directory: &Path) -> Self {
        let directory = directory.display();
        Self { logged_files: Some(format!("{directory}/*:{directory}/*/*")), ..self.clone() }
    }

    /// Returns a launcher for a server whose connections belong to the service with this control socket.
    #[must_use]
    pub fn with_service(&self, control: &Path) -> Self {
        Self { service_socket: control.to_owned(), ..self.clone() }
    }

    /// Returns the directory of the service, if the launcher has one.
    #[must_use]
    pub fn service_directory(&self) -> Option<&Path> {
        self.service_socket.parent()?.parent()
    }

    /// Returns the command `uncopy net`, without its options.
    #[must_use]
    pub fn net_command(&self) -> Command {
        let mut command = self.uncopy_command();
        command.arg("net");
        command
    }

    /// Sets the minimum length of the calls in profiles.
    #[must_use]
    pub fn with_min_profiled_bytes(mut self, bytes: Option<usize>) -> Self {
        self.min_profiled_bytes = bytes;
        self
    }

    /// Returns the path of another program of this project, which lies beside `uncopy`.
    #[must_use]
    pub fn sibling_program(&self, name: &str) -> PathBuf {
        self.uncopy_path.with_file_name(name)
    }

    /// Returns the command that runs `uncopy-bench` with `arguments` under `uncopy profile`, which writes `file`.
    #[must_use]
    pub fn profile_bench_command(&self, file: &Path, arguments: &[String]) -> Command {
        self.profile_command(file, self.bench_path.as_os_str(), arguments)
    }

    fn uncopy_command(&self) -> Command {
        let mut command = Command::new(&self.uncopy_path);
        // `uncopy run` would report the variable as an unknown option.
        command.env_remove(EXE_VARIABLE);
        command
    }

    /// Returns the command that runs `program` with `arguments` under `side`.
    pub fn command<A: AsRef<OsStr>>(&self, side: Side, program: &OsStr, arguments: &[A]) -> Command {
        let mut command = match side.run_arguments() {
            None => {
                let mut command = Command::new(program);
                command.env_remove(EXE_VARIABLE);
                command
            }
            Some(words) => {
                let mut command = self.uncopy_command();
                command
                    .args(words)
                    .args(side.log_arguments())
                    .args(side.has_log().then_some(&self.log_directory));
                if let Some(files) = self.logged_files.as_ref().filter(|_| side.logs_only()) {
                    command.arg("--log-files").arg(files);
                }
                if side.service().is_some() {
                    command.arg("--net").arg(&self.service_socket);
                }
                command.arg("--").arg(program);
                command
            }
        };
        // A missing allocator was already reported before anything was started.
        command.envs(side.allocator_environment().ok().flatten());
        command.args(arguments);
        command
    }

    /// Returns the command that runs `program` with `arguments` under `uncopy profile`, which writes `file` at its
    /// end.
    pub fn profile_command<A: AsRef<OsStr>>(&self, file: &Path, program: &OsStr, arguments: &[A]) -> Command {
        let mut command = self.uncopy_command();
        command.args(["profile", "-o"]).arg(file);
        if let Some(bytes) = self.min_profiled_bytes {
            command.arg(format!("--min-size={bytes}"));
        }
        command.arg("--").arg(program).args(arguments);
        command
    }

    /// Returns the command by which `uncopy profile` samples `processes` from outside for `duration`, and prints JSON.
    pub fn sampling_command(&self, processes: &[Pid], duration: Duration) -> Command {
        let mut command = self.uncopy_command();
        command.args(["profile", "--json", "--duration", &duration.as_secs_f64().to_string(), "--pid"]);
        command.args(processes.iter().map(|pid| pid.as_raw_pid().to_string()));
        command
    }

    /// Returns the command that runs `uncopy-bench` with `arguments` under `side`.
    #[must_use]
    pub fn bench_command(&self, side: Side, arguments: &[String]) -> Command {
        self.command(side, self.bench_path.as_os_str(), arguments)
    }

    /// Returns the activity of uncopy so far in the process `pid`.
    ///
    /// # Errors
    /// [`Failure`] when `uncopy stats` fails or prints something else.
    pub fn activity(&self, pid: Pid) -> Result<Activity> {
        let mut command = self.uncopy_command();
        command.arg("stats").arg(pid.as_raw_pid().to_string());
        let output =
            process::run(command, "uncopy stats", Duration::from_secs(5))?.success("uncopy stats")?;
        Activity::parse(&output.stdout)
    }

    /// Returns notes about how uncopy worked in `pid`, none if all is well. `stderr` is the process's output.
    #[must_use]
    pub fn notes(&self, side: Side, pid: Pid, stderr: &str, elision_expected: bool) -> Vec<String> {
        self.inspect(side, pid, stderr, elision_expected).0
    }

    /// Returns [`Launcher::notes`], and the activity of uncopy in `pid` if it can be read.
    #[must_use]
    pub fn inspect(
        &self,
        side: Side,
        pid: Pid,
        stderr: &str,
        elision_expected: bool,
    ) -> (Vec<String>, Option<Activity>) {
        if side.run_arguments().is_none() {
            return (Vec::new(), None);
        }
        let activity = self.activity(pid);
        let mut notes: Vec<String> = match &activity {
            Err(failure) => vec![format!("uncopy may have been inactive: {failure}")],
            Ok(_) if side == Side::Recording => Vec::new(),
            Ok(Activity { inactive_reason: Some(reason), .. }) => {
                vec![format!("uncopy was inactive: {reason}")]
            }
            Ok(Activity { elided_bytes: 0, .. }) if elision_expected && side != Side::HeapOnly => {
                vec!["uncopy elided no copies".to_owned()]
            }
            Ok(_) => Vec::new(),
        };
        let lines = stderr.lines().filter(|line| line.starts_with("uncopy: ")).take(2);
        notes.extend(lines.map(|line| format!("stderr: {}", line.chars().take(200).collect::<String>())));
        (notes, activity.ok())
    }
}

#[cfg(test)]
mod tests;
