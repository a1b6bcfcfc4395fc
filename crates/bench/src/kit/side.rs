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
use crate::kit::processes::{keeper, process};

/// Path of the `uncopy` command to use in place of this program itself; for tests.
const EXE_VARIABLE: &str = "UNCOPY_BENCH_EXE";

/// Where distributions have libraries.
const LIBRARIES: [&str; 5] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib64", "/usr/local/lib"];
/// What makes glibc keep what is freed.
const TUNABLES: &str = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=1073741824:glibc.malloc.top_pad=67108864";

/// Under what a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// Nothing
    Plain,
    /// Nothing once more: how much two of the same differ
    #[value(skip)]
    PlainAgain,
    /// `uncopy run`
    Uncopy,
    /// `uncopy run` with mimalloc preloaded behind it, which serves the blocks that uncopy leaves to malloc
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
    /// The same with the block heap
    #[value(skip)]
    NetHeapOnly,
    /// `uncopy run --net`, and a service that makes the copies of a stack's API; those in the program are elided
    #[value(skip)]
    NetApiCopying,
    /// `uncopy run --net`: large parts pass by reference between service and program, and copies are elided there
    #[value(skip)]
    Net,
    /// The same with `--log`: what is synced goes to a log
    #[value(skip)]
    NetLog,
    /// [`Side::NetCopying`] with a log in memory: what both stacks would be on persistent memory
    #[value(skip)]
    NetDaxCopying,
    /// The same with the block heap
    #[value(skip)]
    NetDaxHeapOnly,
    /// [`Side::NetApiCopying`] with such a log
    #[value(skip)]
    NetDaxApiCopying,
    /// [`Side::Net`] with such a log
    #[value(skip)]
    NetDax,
    /// `uncopy run --heap on --policy never`: what the block heap gives without any elision
    HeapOnly,
    /// glibc told by GLIBC_TUNABLES to keep memory
    TunedGlibc,
    /// mimalloc preloaded
    Mimalloc,
    /// jemalloc preloaded
    Jemalloc,
    /// `uncopy run --policy always --min-size 4096`: every copy elided, whether that pays or not
    Always,
    /// `uncopy run`, recorded as by `uncopy profile`
    #[value(skip)]
    Recording,
    /// Nothing, and the same server without its copies: what the best elision could reach
    Limit,
    /// Nothing, and a server of our own whose values lie in twin memory and are sent by reference
    #[value(skip)]
    Twin,
    /// Nothing, and a server of our own that is told to send, or a loop to write, in this way
    #[value(skip)]
    Way(&'static str),
}

impl Side {
    /// Those that show what uncopy does; the others are there to compare with.
    pub const UNCOPY: [Self; 11] = [
        Self::Uncopy,
        Self::UncopyMimalloc,
        Self::Twin,
        Self::Lanes,
        Self::Log,
        Self::LogInMemory,
        Self::NetApiCopying,
        Self::Net,
        Self::NetLog,
        Self::NetDaxApiCopying,
        Self::NetDax,
    ];

    /// Its name in tables and JSON.
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
            Self::NetDaxCopying => "net, DAX, all copied",
            Self::NetDaxHeapOnly => "net, DAX, heap only",
            Self::NetDaxApiCopying => "net, DAX, API copied",
            Self::NetDax => "net, DAX",
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

    /// Its name as a JSON key.
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
            Self::NetDaxCopying => "net_dax_all_copied",
            Self::NetDaxHeapOnly => "net_dax_heap_only",
            Self::NetDaxApiCopying => "net_dax_api_copied",
            Self::NetDax => "net_dax",
            Self::HeapOnly => "heap_only",
            Self::TunedGlibc => "tuned_glibc",
            Self::Limit => "zero_copy_limit",
            side => side.name(),
        }
    }

    /// Whether `uncopy run` starts it.
    #[must_use]
    pub const fn is_under_uncopy(self) -> bool {
        self.run_words().is_some()
    }

    /// What is set in the environment of a program by itself, for another allocator.
    ///
    /// # Errors
    /// [`Failure`] that says how to install it when it is missing.
    pub fn environment(self) -> Result<Option<(&'static str, OsString)>> {
        let preload = |library: &str, package: &str| {
            let found = LIBRARIES.iter().map(|directory| Path::new(directory).join(library));
            let path = found.into_iter().find(|path| path.is_file()).ok_or_else(|| {
                Failure::new(format!(
                    "{library} is not installed; install it with: apt-get install {package}"
                ))
            })?;
            Ok(Some(("LD_PRELOAD", path.into_os_string())))
        };
        match self {
            Self::TunedGlibc => Ok(Some(("GLIBC_TUNABLES", TUNABLES.into()))),
            Self::Mimalloc | Self::UncopyMimalloc => preload("libmimalloc.so.2", "libmimalloc2.0"),
            Self::Jemalloc => preload("libjemalloc.so.2", "libjemalloc2"),
            _ => Ok(None),
        }
    }

    /// Whether a user could have it in place of eliding: what uncopy has to be better than.
    #[must_use]
    pub const fn is_rival(self) -> bool {
        matches!(self, Self::Plain | Self::HeapOnly | Self::TunedGlibc | Self::Mimalloc | Self::Jemalloc)
    }

    /// Whether there is a log, and who keeps it.
    #[must_use]
    pub const fn has_log(self) -> bool {
        !self.log_words().is_empty()
    }

    /// Whether there is a log in memory, as if that were persistent.
    #[must_use]
    pub const fn logs_in_memory(self) -> bool {
        self.has_log() && !matches!(self, Self::Log | Self::NetLog)
    }

    /// Whether its connections are a service's, and whether that copies between TCP and the program.
    #[must_use]
    pub const fn service(self) -> Option<ApiCopies> {
        match self {
            Self::NetApiCopying | Self::NetDaxApiCopying => Some(ApiCopies::Make),
            // Where nothing is elided in the program it makes the copies itself, as that of an ordinary stack does.
            Self::Net
            | Self::NetCopying
            | Self::NetHeapOnly
            | Self::NetLog
            | Self::NetDax
            | Self::NetDaxCopying
            | Self::NetDaxHeapOnly => Some(ApiCopies::Elide),
            _ => None,
        }
    }

    /// The words after `uncopy`, but for those of a log; `None` where the program runs by itself.
    const fn run_words(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Uncopy
            | Self::UncopyMimalloc
            | Self::Recording
            | Self::Log
            | Self::LogInMemory
            | Self::NetApiCopying
            | Self::Net
            | Self::NetLog
            | Self::NetDaxApiCopying
            | Self::NetDax => Some(&["run"]),
            Self::Lanes => Some(&["run", "--lanes"]),
            Self::NetCopying | Self::NetDaxCopying => Some(&["run", "--heap", "off", "--policy", "never"]),
            Self::HeapOnly | Self::NetHeapOnly | Self::NetDaxHeapOnly => {
                Some(&["run", "--heap", "on", "--policy", "never"])
            }
            Self::Always => Some(&["run", "--policy", "always", "--min-size", "4096"]),
            _ => None,
        }
    }

    /// The words before a log's directory; none where there is no log.
    const fn log_words(self) -> &'static [&'static str] {
        match self {
            Self::Log | Self::NetLog => &["--log-size", "268435456", "--log"],
            Self::LogInMemory => &["--log-size", "67108864", "--log-emulate-dax", "--log"],
            Self::NetDaxCopying | Self::NetDaxHeapOnly | Self::NetDaxApiCopying | Self::NetDax => {
                &["--log-size", "268435456", "--log-emulate-dax", "--log"]
            }
            _ => &[],
        }
    }
}

/// What a service of user-level TCP does at its API (`uncopy net --api-copies`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiCopies {
    /// It copies, as the kernel does.
    Make,
    /// Large parts pass by reference.
    Elide,
}

/// What uncopy did in a process, as `uncopy stats PID` tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Why nothing is elided, or `None`.
    pub reason: Option<String>,
    /// Bytes that were not copied.
    pub elided_bytes: u64,
    /// Bytes that hooks copied.
    pub copied_bytes: u64,
    /// Bytes that were sent by reference.
    pub lent_bytes: u64,
    /// Page faults that were served.
    pub faults: u64,
    /// Peak number of views alive.
    pub views_peak: u64,
    /// What the process has measured of itself, a list.
    pub trials: Value,
}

impl Activity {
    fn parse(json: &str) -> Result<Self> {
        let bad = |what: &str| Failure::new(format!("uncopy stats wrote {what}"));
        let value: Value =
            serde_json::from_str(json.trim()).map_err(|_| bad("something that is not JSON"))?;
        let counter = |counter: Counter| {
            let name = counter.name();
            value.get(name).and_then(Value::as_u64).ok_or_else(|| bad(&format!("no {name}")))
        };
        let reason = value.get("reason").and_then(Value::as_str).map(str::to_owned);
        Ok(Self {
            reason,
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
    exe: PathBuf,
    /// Shortest call that `uncopy profile` records, bytes; `None`: its own default.
    profiled_bytes: Option<usize>,
    /// The log's directory where there is one.
    log: PathBuf,
    /// The service's control socket where there is one.
    service: PathBuf,
}

impl Launcher {
    /// A launcher of this program itself, or of `$UNCOPY_BENCH_EXE`.
    ///
    /// # Errors
    /// [`Failure`] when the program's path is not known, or when this program itself runs under
    /// uncopy, which would accelerate the plain side.
    pub fn from_environment() -> Result<Self> {
        let preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        if preload.to_string_lossy().contains("libuncopy") {
            let message = "bench runs under uncopy itself, so nothing would be plain; unset LD_PRELOAD";
            return Err(Failure::new(message));
        }
        match std::env::var_os(EXE_VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => Ok(Self::of(path)),
            None => Self::inherited(),
        }
    }

    /// A launcher of this program itself, where it is under a side already, and so is what it starts as plain.
    ///
    /// # Errors
    /// [`Failure`] when the program's path is not known.
    pub fn inherited() -> Result<Self> {
        let exe = std::env::current_exe().doing("finding the path of uncopy")?;
        Ok(Self::of(exe))
    }

    /// A launcher of `exe`.
    pub fn of(exe: impl Into<PathBuf>) -> Self {
        Self { exe: exe.into(), profiled_bytes: None, log: keeper::LOG.into(), service: PathBuf::new() }
    }

    /// The same for a server whose log is in `directory`.
    #[must_use]
    pub fn logging_in(&self, directory: &Path) -> Self {
        Self { log: directory.join(keeper::LOG), ..self.clone() }
    }

    /// The same for a server whose connections are those of the service with this control socket.
    #[must_use]
    pub fn served_by(&self, control: &Path) -> Self {
        Self { service: control.to_owned(), ..self.clone() }
    }

    /// `uncopy net`, to be given its options.
    #[must_use]
    pub fn net(&self) -> Command {
        let mut command = self.uncopy();
        command.arg("net");
        command
    }

    /// The same, whose profiles have calls from `bytes` on.
    #[must_use]
    pub fn profiling_from(mut self, bytes: Option<usize>) -> Self {
        self.profiled_bytes = bytes;
        self
    }

    /// Where another program of ours would be: beside `uncopy`.
    #[must_use]
    pub fn beside(&self, name: &str) -> PathBuf {
        self.exe.with_file_name(name)
    }

    /// `uncopy bench` with `arguments`, under `uncopy profile`, which writes what it found to `file`.
    #[must_use]
    pub fn profile_bench(&self, file: &Path, arguments: &[String]) -> Command {
        let words: Vec<&str> = std::iter::once("bench").chain(arguments.iter().map(String::as_str)).collect();
        self.profile(file, self.exe.as_os_str(), &words)
    }

    fn uncopy(&self) -> Command {
        let mut command = Command::new(&self.exe);
        // Not an option of `uncopy run`, which would report it as unknown.
        command.env_remove(EXE_VARIABLE);
        command
    }

    /// `program` with `arguments`, under `side`.
    pub fn command<A: AsRef<OsStr>>(&self, side: Side, program: &OsStr, arguments: &[A]) -> Command {
        let mut command = match side.run_words() {
            None => {
                let mut command = Command::new(program);
                command.env_remove(EXE_VARIABLE);
                command
            }
            Some(words) => {
                let mut command = self.uncopy();
                command.args(words).args(side.log_words()).args(side.has_log().then_some(&self.log));
                if side.service().is_some() {
                    command.arg("--net").arg(&self.service);
                }
                command.arg("--").arg(program);
                command
            }
        };
        // What is missing was told before anything was started.
        command.envs(side.environment().ok().flatten());
        command.args(arguments);
        command
    }

    /// `program` with `arguments`, under `uncopy profile`, which writes what it found to `file` when the program has
    /// ended.
    pub fn profile<A: AsRef<OsStr>>(&self, file: &Path, program: &OsStr, arguments: &[A]) -> Command {
        let mut command = self.uncopy();
        command.args(["profile", "-o"]).arg(file);
        if let Some(bytes) = self.profiled_bytes {
            command.arg(format!("--min-size={bytes}"));
        }
        command.arg("--").arg(program).args(arguments);
        command
    }

    /// `uncopy bench` with `arguments`, under `side`.
    #[must_use]
    pub fn bench(&self, side: Side, arguments: &[String]) -> Command {
        let words: Vec<OsString> =
            std::iter::once("bench").chain(arguments.iter().map(String::as_str)).map(Into::into).collect();
        self.command(side, self.exe.as_os_str(), &words)
    }

    /// What uncopy did so far in the process `pid`.
    ///
    /// # Errors
    /// [`Failure`] when `uncopy stats` does not tell.
    pub fn activity(&self, pid: Pid) -> Result<Activity> {
        let mut command = self.uncopy();
        command.arg("stats").arg(pid.as_raw_pid().to_string());
        let output =
            process::run(command, "uncopy stats", Duration::from_secs(5))?.success("uncopy stats")?;
        Activity::parse(&output.stdout)
    }

    /// What a reader of the result must know about how uncopy worked in `pid`: nothing if it
    /// worked as it should. `stderr` is what the process wrote there.
    #[must_use]
    pub fn notes(&self, side: Side, pid: Pid, stderr: &str, elision_expected: bool) -> Vec<String> {
        self.inspect(side, pid, stderr, elision_expected).0
    }

    /// [`Launcher::notes`], and what uncopy did in `pid` if it tells.
    #[must_use]
    pub fn inspect(
        &self,
        side: Side,
        pid: Pid,
        stderr: &str,
        elision_expected: bool,
    ) -> (Vec<String>, Option<Activity>) {
        if side.run_words().is_none() {
            return (Vec::new(), None);
        }
        let activity = self.activity(pid);
        let mut notes: Vec<String> = match &activity {
            Err(failure) => vec![format!("uncopy may have been inactive: {failure}")],
            Ok(_) if side == Side::Recording => Vec::new(),
            Ok(Activity { reason: Some(reason), .. }) => vec![format!("uncopy was inactive: {reason}")],
            Ok(Activity { elided_bytes: 0, .. }) if elision_expected && side != Side::HeapOnly => {
                vec!["uncopy elided nothing".to_owned()]
            }
            Ok(_) => Vec::new(),
        };
        let said = stderr.lines().filter(|line| line.starts_with("uncopy: ")).take(2);
        notes.extend(said.map(|line| format!("stderr: {}", line.chars().take(200).collect::<String>())));
        (notes, activity.ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<String> {
        std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn each_side_has_its_command_line() {
        let launcher = Launcher::of("/opt/uncopy");
        let line = |side| words(&launcher.command(side, OsStr::new("redis-server"), &["--port", "7"]));
        assert_eq!(line(Side::Plain), ["redis-server", "--port", "7"]);
        assert_eq!(line(Side::Uncopy), ["/opt/uncopy", "run", "--", "redis-server", "--port", "7"]);
        assert_eq!(line(Side::HeapOnly)[1..6], ["run", "--heap", "on", "--policy", "never"]);
        assert_eq!(line(Side::Lanes)[1..4], ["run", "--lanes", "--"]);
        let logging = launcher.logging_in(Path::new("/srv")).command(Side::Log, OsStr::new("x"), &["y"]);
        let log = ["run", "--log-size", "268435456", "--log", "/srv/uncopy-log", "--", "x", "y"];
        assert_eq!(words(&logging)[1..], log);
        let both = launcher.logging_in(Path::new("/srv")).served_by(Path::new("/net/control"));
        let both = words(&both.command(Side::NetLog, OsStr::new("x"), &["y"]));
        assert_eq!(both[1..], [&log[..5], &["--net", "/net/control"], &log[5..]].concat());
        let dax = words(&launcher.command(Side::NetDaxCopying, OsStr::new("x"), &["y"]));
        assert_eq!(dax[1..6], ["run", "--heap", "off", "--policy", "never"]);
        assert_eq!(dax[6..10], ["--log-size", "268435456", "--log-emulate-dax", "--log"]);
        let in_memory = [Side::Log, Side::Net, Side::LogInMemory, Side::NetDax].map(Side::logs_in_memory);
        assert_eq!(in_memory, [false, false, true, true]);
        assert_eq!(line(Side::Limit), line(Side::Plain));
        assert_eq!(line(Side::PlainAgain), line(Side::Plain));
        let tuned = launcher.command(Side::TunedGlibc, OsStr::new("redis-server"), &["--port", "7"]);
        assert_eq!(words(&tuned), line(Side::Plain));
        assert!(tuned.get_envs().any(|(name, value)| name == "GLIBC_TUNABLES" && value.is_some()));
        assert_eq!(line(Side::UncopyMimalloc), line(Side::Uncopy));
        assert_eq!(line(Side::Always)[1..6], ["run", "--policy", "always", "--min-size", "4096"]);
        let own = words(&launcher.bench(Side::Uncopy, &["echo-server".into()]));
        assert_eq!(own, ["/opt/uncopy", "run", "--", "/opt/uncopy", "bench", "echo-server"]);
    }

    #[test]
    fn counters_are_read_from_what_stats_prints() {
        let mut snapshot = uncopy_core::stats::Snapshot::empty(5, None);
        snapshot.values[Counter::ElidedBytes as usize] = 77;
        snapshot.values[Counter::Faults as usize] = 3;
        let active = Activity::parse(&snapshot.to_json()).expect("well-formed");
        assert_eq!((active.elided_bytes, active.faults, active.views_peak), (77, 3, 0));
        assert_eq!(active.reason, None);
        let inactive = uncopy_core::stats::Snapshot::empty(5, Some("no \"permission\"".into()));
        let activity = Activity::parse(&inactive.to_json()).expect("well-formed");
        assert_eq!(activity.reason.as_deref(), Some("no \"permission\""));
    }

    #[test]
    fn anything_else_from_stats_is_a_failure() {
        for text in ["", "null", "[]", "{\"elided_bytes\": -1}", "{\"reason\": null}", "{"] {
            assert!(Activity::parse(text).is_err(), "{text}");
        }
    }
}
