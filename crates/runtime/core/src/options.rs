//! Runtime options. One table defines `uncopy run`'s flags, the environment variables that carry them to
//! `libuncopy.so`, the man page and the completions.
//!
//! Values are parsed only here, from byte strings, because an environment need not be UTF-8. Parsing never
//! panics. A bad value is reported with the value and the legal range.

mod table;

use crate::policy::Costs;
use crate::scope::{self, Scope};
use crate::size::{self, decimal};
use core::fmt;

pub use table::{INTERNAL_VARIABLES, OPTIONS, OptionSpec};

/// Policy for eliding copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Decide by a running account for each call site and size.
    Auto,
    /// Elide whatever can be elided, for tests.
    Always,
    /// Elide nothing at all.
    Never,
}

impl Policy {
    /// Returns the word used on the command line, in the environment and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// Large allocations that the block heap serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heap {
    /// Those of allocation sites whose buffers carry large input or output; all under [`Policy::Always`],
    /// none under [`Policy::Never`].
    Auto,
    /// All large allocations come from it.
    On,
    /// No allocation comes from it.
    Off,
}

/// Place of the bytes that a program writes to a logged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogMode {
    /// In the page cache at once, and in the log when they are synced.
    Beside,
    /// In the log alone, until the keeper writes them to the file.
    Only,
}

impl LogMode {
    /// Returns the word that names the mode on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Beside => "beside",
            Self::Only => "only",
        }
    }

    /// Parses a word; `None` if it names no mode.
    #[must_use]
    pub fn parse(word: &[u8]) -> Option<Self> {
        [Self::Beside, Self::Only].into_iter().find(|mode| mode.word().as_bytes() == word)
    }
}

/// Smallest legal `--min-size`, bytes: one page, since less cannot hold a view.
pub const MIN_SIZE_LOW_BYTES: usize = 4096;
/// Largest legal `--min-size`, bytes.
pub const MIN_SIZE_HIGH_BYTES: usize = 1 << 30;
/// Default of `--min-size`, bytes (zIO §3.1.6).
pub const MIN_SIZE_DEFAULT_BYTES: usize = 16384;

/// Smallest legal `--memory`, bytes.
pub const MIN_MEMORY_BYTES: usize = 1 << 20;
/// Largest legal `--memory`, bytes.
pub const MAX_MEMORY_BYTES: usize = 1 << 46;

/// Largest legal `--begin-after`, bytes.
pub const MAX_BEGIN_AFTER_BYTES: usize = 1 << 40;

/// Longest legal `--lanes-dir`, bytes. A socket's path has at most 107 bytes (unix(7)).
pub const MAX_LANES_DIR_BYTES: usize = 80;

/// Longest legal `--net`, bytes. Sockets beside it have an address in their names and 107 bytes (unix(7)).
pub const MAX_NET_BYTES: usize = 56;

/// Smallest legal `--log-size`, bytes.
pub const MIN_LOG_BYTES: usize = 16 << 20;
/// Largest legal `--log-size`, bytes.
pub const MAX_LOG_BYTES: usize = 1 << 40;
/// Default of `--log-size`, bytes.
pub const LOG_DEFAULT_BYTES: u64 = 1 << 30;

/// Smallest legal `--slice-ms`.
pub const MIN_SLICE_MS: u64 = 4;
/// Largest legal `--slice-ms`.
pub const MAX_SLICE_MS: u64 = 10_000;

/// Source of the machine's cost constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// Measure them when the library starts to work.
    Measure,
    /// Use those of the machine that the defaults were measured on.
    Assume,
    /// Use the given constants.
    Given(Costs),
}

/// The options in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options<'a> {
    /// Whether `--off` was given.
    pub off: bool,
    /// Size set by `--min-size`, bytes.
    pub min_size_bytes: usize,
    /// Policy set by `--policy`.
    pub policy: Policy,
    /// Size set by `--begin-after`, bytes.
    pub begin_after_bytes: Option<usize>,
    /// Allocations set by `--heap`.
    pub heap: Heap,
    /// Whether `--foreign` is on.
    pub foreign: bool,
    /// Whether `--move` is on.
    pub moves: bool,
    /// Size set by `--memory`, bytes.
    pub memory_bytes: Option<usize>,
    /// Source set by `--costs`.
    pub costs: CostSource,
    /// Length set by `--slice-ms`.
    pub slice_ms: Option<u64>,
    /// Streams set by `--lanes`; `None` for no stream.
    pub lanes: Option<Scope<'a>>,
    /// Absolute path set by `--lanes-dir`.
    pub lanes_dir: Option<&'a [u8]>,
    /// Whether `--lanes off` was given.
    pub no_lanes: bool,
    /// Absolute path set by `--net`.
    pub net: Option<&'a [u8]>,
    /// Path set by `--stats`, or `-`.
    pub stats: Option<&'a [u8]>,
    /// Path set by `--explain`, or `-`.
    pub explain: Option<&'a [u8]>,
    /// Whether `--no-follow` was given.
    pub no_follow: bool,
    /// Pid whose counters are written to `stats` (internal).
    pub stats_root: Option<u32>,
    /// Inherited descriptor of `/dev/userfaultfd` (internal).
    pub uffd_fd: Option<i32>,
    /// Path of the ledger of `--explain` (internal).
    pub ledger: Option<&'a [u8]>,
    /// Directory for recordings (internal): see [`crate::recording`].
    pub record: Option<&'a [u8]>,
    /// Absolute path set by `--log`.
    pub log: Option<&'a [u8]>,
    /// Absolute paths with wildcards (fnmatch(3)) set by `--log-files`, separated by colons.
    pub log_files: Option<&'a [u8]>,
    /// Size set by `--log-size`, bytes.
    pub log_bytes: u64,
    /// Mode set by `--log-mode`.
    pub log_mode: LogMode,
    /// Whether records of a mapped log refer to bytes that lie in its memory, instead of copying them (`--api-copies`).
    pub elides_api_copies: bool,
    /// Whether input that is likely to be logged is received into the memory of a mapped log (`--optimistic`).
    pub optimistic: bool,
    /// Whether `--log-emulate-dax` was given.
    pub log_emulates_dax: bool,
    /// Path of the keeper's socket (internal).
    pub log_socket: Option<&'a [u8]>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            off: false,
            min_size_bytes: MIN_SIZE_DEFAULT_BYTES,
            policy: Policy::Auto,
            begin_after_bytes: None,
            heap: Heap::Auto,
            foreign: true,
            moves: true,
            memory_bytes: None,
            costs: CostSource::Measure,
            slice_ms: None,
            lanes: None,
            lanes_dir: None,
            no_lanes: false,
            net: None,
            stats: None,
            explain: None,
            no_follow: false,
            stats_root: None,
            uffd_fd: None,
            ledger: None,
            record: None,
            log: None,
            log_files: None,
            log_mode: LogMode::Beside,
            elides_api_copies: true,
            optimistic: true,
            log_emulates_dax: false,
            log_bytes: LOG_DEFAULT_BYTES,
            log_socket: None,
        }
    }
}

/// Reason why a setting was refused. `Display` gives a whole message without the leading `uncopy: `.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionError<'a> {
    /// The value of a known variable is not legal.
    BadValue {
        /// Name of the environment variable.
        variable: &'static str,
        /// Value of the variable.
        value: &'a [u8],
        /// Description of the legal values.
        legal: &'static str,
    },
    /// A variable begins with `UNCOPY_` but is not in the table.
    UnknownVariable(&'a [u8]),
}

/// Displays at most 64 bytes, with all but printable ASCII escaped.
pub struct Escaped<'a>(pub &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.len().min(64);
        write!(f, "{}", self.0[..shown].escape_ascii())?;
        if shown < self.0.len() { f.write_str("…") } else { Ok(()) }
    }
}

impl fmt::Display for OptionError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadValue { variable, value, legal } => {
                write!(f, "{variable} is \"{}\"; it must be {legal}", Escaped(value))
            }
            Self::UnknownVariable(name) => {
                write!(f, "unknown variable {} in the environment; known are", Escaped(name))?;
                for option in OPTIONS {
                    write!(f, " {}", option.variable)?;
                }
                Ok(())
            }
        }
    }
}

const LEGAL_SWITCH: &str = "1, 0, or empty";
const LEGAL_SIZE: &str = "a size from 4K to 1G, as 65536, 64K or 1MiB";
const LEGAL_BEGIN_AFTER: &str = "a size from 0 to 1T, as 64M or 1GiB";
const LEGAL_MEMORY: &str = "a size from 1M to 64T, as 64M or 1GiB";
const LEGAL_SLICE: &str = "a whole number of ms from 4 to 10000";
const LEGAL_POLICY: &str = "auto, always or never";
const LEGAL_HEAP: &str = "auto, on or off";
const LEGAL_ON_OFF: &str = "on or off";
const LEGAL_LANES_DIR: &str = "the absolute path of a directory, at most 80 bytes long";
const LEGAL_NET: &str = "the path of a control socket of uncopy net, at most 56 bytes long from the root on, or the name of a service";
const LEGAL_LOG: &str = "the absolute path of a directory";
const LEGAL_LOG_FILES: &str = "absolute paths, separated by colons";
const LEGAL_LOG_SIZE: &str = "a size from 16M to 1T, as 64M or 1GiB";
const LEGAL_LOG_MODE: &str = "beside or only";
const LEGAL_API_COPIES: &str = "elide or make";
const LEGAL_LOG_SOCKET: &str = "a path that uncopy run sets; unset it";
const LEGAL_STATS: &str = "a file's path, or -";
const LEGAL_COSTS: &str = "measure, assume, or the line that uncopy doctor --calibrate prints";
const LEGAL_LEDGER: &str = "a path that uncopy run sets; unset it";
const LEGAL_RECORD: &str = "the absolute path of a directory, which uncopy profile sets; unset it";
const LEGAL_NUMBER: &str = "a number that uncopy run sets; unset it";

fn parse_size(value: &[u8], legal: core::ops::RangeInclusive<usize>) -> Option<usize> {
    size::parse(value).and_then(|bytes| usize::try_from(bytes).ok()).filter(|bytes| legal.contains(bytes))
}

fn on_off(value: &[u8]) -> Option<bool> {
    match value {
        b"on" => Some(true),
        b"off" => Some(false),
        _ => None,
    }
}

fn switch(value: &[u8]) -> Option<bool> {
    match value {
        b"1" => Some(true),
        b"0" | b"" => Some(false),
        _ => None,
    }
}

impl<'a> Options<'a> {
    /// Applies one environment variable. An unknown one is ignored: see [`Self::is_unknown_variable`].
    ///
    /// # Errors
    /// [`OptionError::BadValue`] if the value is not legal; `self` is then unchanged.
    pub fn apply(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), OptionError<'a>> {
        let bad =
            |variable: &'static str, legal: &'static str| OptionError::BadValue { variable, value, legal };
        match name {
            b"UNCOPY_OFF" => self.off = switch(value).ok_or_else(|| bad("UNCOPY_OFF", LEGAL_SWITCH))?,
            b"UNCOPY_NO_FOLLOW" => {
                self.no_follow = switch(value).ok_or_else(|| bad("UNCOPY_NO_FOLLOW", LEGAL_SWITCH))?;
            }
            b"UNCOPY_LOG_EMULATE_DAX" => {
                self.log_emulates_dax =
                    switch(value).ok_or_else(|| bad("UNCOPY_LOG_EMULATE_DAX", LEGAL_SWITCH))?;
            }
            b"UNCOPY_MIN_SIZE" => {
                self.min_size_bytes = parse_size(value, MIN_SIZE_LOW_BYTES..=MIN_SIZE_HIGH_BYTES)
                    .ok_or_else(|| bad("UNCOPY_MIN_SIZE", LEGAL_SIZE))?;
            }
            b"UNCOPY_MEMORY" => {
                let max_bytes = parse_size(value, MIN_MEMORY_BYTES..=MAX_MEMORY_BYTES);
                self.memory_bytes = Some(max_bytes.ok_or_else(|| bad("UNCOPY_MEMORY", LEGAL_MEMORY))?);
            }
            b"UNCOPY_BEGIN_AFTER" => {
                let first_bytes = parse_size(value, 0..=MAX_BEGIN_AFTER_BYTES);
                self.begin_after_bytes =
                    Some(first_bytes.ok_or_else(|| bad("UNCOPY_BEGIN_AFTER", LEGAL_BEGIN_AFTER))?);
            }
            b"UNCOPY_SLICE_MS" => {
                let slice_ms = decimal(value).filter(|ms| (MIN_SLICE_MS..=MAX_SLICE_MS).contains(ms));
                self.slice_ms = Some(slice_ms.ok_or_else(|| bad("UNCOPY_SLICE_MS", LEGAL_SLICE))?);
            }
            b"UNCOPY_POLICY" => {
                self.policy = match value {
                    b"auto" => Policy::Auto,
                    b"always" => Policy::Always,
                    b"never" => Policy::Never,
                    _ => return Err(bad("UNCOPY_POLICY", LEGAL_POLICY)),
                }
            }
            b"UNCOPY_HEAP" => {
                self.heap = match value {
                    b"auto" => Heap::Auto,
                    b"on" => Heap::On,
                    b"off" => Heap::Off,
                    _ => return Err(bad("UNCOPY_HEAP", LEGAL_HEAP)),
                }
            }
            b"UNCOPY_FOREIGN" => self.foreign = on_off(value).ok_or(bad("UNCOPY_FOREIGN", LEGAL_ON_OFF))?,
            b"UNCOPY_MOVE" => self.moves = on_off(value).ok_or(bad("UNCOPY_MOVE", LEGAL_ON_OFF))?,
            b"UNCOPY_COSTS" => {
                self.costs = match value {
                    b"measure" => CostSource::Measure,
                    b"assume" => CostSource::Assume,
                    list => CostSource::Given(Costs::parse(list).ok_or(bad("UNCOPY_COSTS", LEGAL_COSTS))?),
                };
            }
            b"UNCOPY_LANES" => {
                let scope = Scope::parse(value).ok_or_else(|| bad("UNCOPY_LANES", scope::LEGAL))?;
                self.lanes = Some(scope).filter(|scope| !scope.is_empty());
                self.no_lanes = scope.is_empty();
            }
            b"UNCOPY_NET" => {
                let is_legal = value.starts_with(b"/") && value.len() <= MAX_NET_BYTES && value.is_ascii();
                self.net = Some(Some(value).filter(|_| is_legal).ok_or(bad("UNCOPY_NET", LEGAL_NET))?);
            }
            b"UNCOPY_LANES_DIR" => {
                let is_legal =
                    value.starts_with(b"/") && value.len() <= MAX_LANES_DIR_BYTES && value.is_ascii();
                self.lanes_dir =
                    Some(Some(value).filter(|_| is_legal).ok_or(bad("UNCOPY_LANES_DIR", LEGAL_LANES_DIR))?);
            }
            b"UNCOPY_LOG" => {
                self.log = Some(
                    Some(value).filter(|_| value.starts_with(b"/")).ok_or(bad("UNCOPY_LOG", LEGAL_LOG))?,
                );
            }
            b"UNCOPY_LOG_FILES" => {
                let is_legal = value.split(|byte| *byte == b':').all(|glob| glob.starts_with(b"/"));
                let globs = Some(value).filter(|_| is_legal);
                self.log_files = Some(globs.ok_or(bad("UNCOPY_LOG_FILES", LEGAL_LOG_FILES))?);
            }
            b"UNCOPY_LOG_SIZE" => {
                let log_bytes = parse_size(value, MIN_LOG_BYTES..=MAX_LOG_BYTES);
                self.log_bytes = log_bytes.ok_or_else(|| bad("UNCOPY_LOG_SIZE", LEGAL_LOG_SIZE))? as u64;
            }
            b"UNCOPY_LOG_MODE" => {
                self.log_mode = LogMode::parse(value).ok_or(bad("UNCOPY_LOG_MODE", LEGAL_LOG_MODE))?;
            }
            b"UNCOPY_API_COPIES" => {
                self.elides_api_copies = match value {
                    b"elide" => true,
                    b"make" => false,
                    _ => return Err(bad("UNCOPY_API_COPIES", LEGAL_API_COPIES)),
                }
            }
            b"UNCOPY_OPTIMISTIC" => {
                self.optimistic = on_off(value).ok_or(bad("UNCOPY_OPTIMISTIC", LEGAL_ON_OFF))?;
            }
            b"UNCOPY_LOG_SOCKET" => {
                if !value.starts_with(b"/") {
                    return Err(bad("UNCOPY_LOG_SOCKET", LEGAL_LOG_SOCKET));
                }
                self.log_socket = Some(value);
            }
            b"UNCOPY_STATS" => {
                if value.is_empty() {
                    return Err(bad("UNCOPY_STATS", LEGAL_STATS));
                }
                self.stats = Some(value);
            }
            b"UNCOPY_EXPLAIN" => {
                if value.is_empty() {
                    return Err(bad("UNCOPY_EXPLAIN", LEGAL_STATS));
                }
                self.explain = Some(value);
            }
            b"UNCOPY_LEDGER" => {
                // The command passes a descriptor of its own; nothing else is accepted.
                if !value.starts_with(b"/proc/") {
                    return Err(bad("UNCOPY_LEDGER", LEGAL_LEDGER));
                }
                self.ledger = Some(value);
            }
            b"UNCOPY_RECORD" => {
                if !value.starts_with(b"/") || value.len() > crate::recording::request::MAX_DIRECTORY_BYTES {
                    return Err(bad("UNCOPY_RECORD", LEGAL_RECORD));
                }
                self.record = Some(value);
            }
            b"UNCOPY_STATS_ROOT" => {
                self.stats_root = Some(
                    decimal(value)
                        .and_then(|pid| u32::try_from(pid).ok())
                        .ok_or_else(|| bad("UNCOPY_STATS_ROOT", LEGAL_NUMBER))?,
                );
            }
            b"UNCOPY_UFFD_FD" => {
                self.uffd_fd = Some(
                    decimal(value)
                        .and_then(|fd| i32::try_from(fd).ok())
                        .ok_or_else(|| bad("UNCOPY_UFFD_FD", LEGAL_NUMBER))?,
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether `name` begins with `UNCOPY_` and is neither an option's variable nor internal.
    #[must_use]
    pub fn is_unknown_variable(name: &[u8]) -> bool {
        name.starts_with(b"UNCOPY_")
            && !OPTIONS.iter().any(|option| option.variable.as_bytes() == name)
            && !INTERNAL_VARIABLES.iter().any(|variable| variable.as_bytes() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_documented_ones() {
        let options = Options::default();
        assert_eq!(options.min_size_bytes, 16384);
        assert_eq!(options.policy, Policy::Auto);
        assert!(options.heap == Heap::Auto && !options.off && !options.no_follow);
    }

    #[test]
    fn every_option_is_applied_from_its_variable() {
        let mut options = Options::default();
        for (name, value) in [
            ("UNCOPY_OFF", "1"),
            ("UNCOPY_MIN_SIZE", "4096"),
            ("UNCOPY_POLICY", "always"),
            ("UNCOPY_BEGIN_AFTER", "0"),
            ("UNCOPY_HEAP", "off"),
            ("UNCOPY_FOREIGN", "off"),
            ("UNCOPY_MEMORY", "1MiB"),
            ("UNCOPY_COSTS", "assume"),
            ("UNCOPY_SLICE_MS", "4"),
            ("UNCOPY_LANES", "unix"),
            ("UNCOPY_LANES_DIR", "/run/user/0/lanes"),
            ("UNCOPY_NET", "/dev/shm/uncopy-0/net/utun0/control"),
            ("UNCOPY_STATS", "-"),
            ("UNCOPY_EXPLAIN", "sites.txt"),
            ("UNCOPY_NO_FOLLOW", "1"),
            ("UNCOPY_RECORD", "/dev/shm/recordings"),
            ("UNCOPY_LOG", "/var/lib/logs"),
            ("UNCOPY_LOG_FILES", "/srv/*.wal:/srv/journal"),
            ("UNCOPY_LOG_SIZE", "16777216"),
            ("UNCOPY_LOG_MODE", "only"),
            ("UNCOPY_API_COPIES", "make"),
            ("UNCOPY_OPTIMISTIC", "off"),
            ("UNCOPY_LOG_EMULATE_DAX", "1"),
            ("UNCOPY_LOG_SOCKET", "/dev/shm/uncopy-0/log-1"),
        ] {
            let before = options;
            options.apply(name.as_bytes(), value.as_bytes()).expect("legal value");
            assert_ne!(before, options, "{name} changed nothing");
        }
    }

    #[test]
    fn bad_values_name_the_value_and_the_legal_range_and_change_nothing() {
        for (name, value) in [
            ("UNCOPY_OFF", "yes"),
            ("UNCOPY_MIN_SIZE", "4095"),
            ("UNCOPY_MIN_SIZE", "1073741825"),
            ("UNCOPY_MIN_SIZE", "16KB"),
            ("UNCOPY_MIN_SIZE", "-1"),
            ("UNCOPY_MIN_SIZE", ""),
            ("UNCOPY_MIN_SIZE", "99999999999999999999999"),
            ("UNCOPY_POLICY", "sometimes"),
            ("UNCOPY_BEGIN_AFTER", "2T"),
            ("UNCOPY_HEAP", "1"),
            ("UNCOPY_SLICE_MS", "3"),
            ("UNCOPY_SLICE_MS", "10001"),
            ("UNCOPY_FOREIGN", "yes"),
            ("UNCOPY_MEMORY", "1048575"),
            ("UNCOPY_MEMORY", "70368744177665"),
            ("UNCOPY_MEMORY", "64MB"),
            ("UNCOPY_COSTS", "fault=1"),
            ("UNCOPY_COSTS", ""),
            ("UNCOPY_LANES", "redis-server"),
            ("UNCOPY_LANES_DIR", "lanes"),
            ("UNCOPY_NET", "utun0"),
            ("UNCOPY_NET", "/234567890123456789012345678901234567890123456789012345678"),
            ("UNCOPY_STATS", ""),
            ("UNCOPY_EXPLAIN", ""),
            ("UNCOPY_LEDGER", "/etc/passwd"),
            ("UNCOPY_RECORD", "recordings"),
            ("UNCOPY_LOG", "logs"),
            ("UNCOPY_LOG_FILES", "/srv/*.wal:journal"),
            ("UNCOPY_LOG_FILES", ""),
            ("UNCOPY_LOG_SIZE", "1"),
            ("UNCOPY_LOG_MODE", "mapped"),
            ("UNCOPY_LOG_MODE", ""),
            ("UNCOPY_API_COPIES", "on"),
            ("UNCOPY_OPTIMISTIC", "1"),
            ("UNCOPY_LOG_EMULATE_DAX", "yes"),
            ("UNCOPY_LOG_SOCKET", "log-1"),
            ("UNCOPY_NO_FOLLOW", "x"),
        ] {
            let mut options = Options::default();
            let error = options.apply(name.as_bytes(), value.as_bytes()).expect_err("illegal value");
            let message = error.to_string();
            assert!(message.contains(name) && message.contains(&format!("\"{value}\"")), "{message}");
            assert_eq!(options, Options::default());
        }
    }

    #[test]
    fn lanes_off_differs_from_no_lanes_option() {
        let mut options = Options::default();
        assert!(!options.no_lanes);
        options.apply(b"UNCOPY_LANES", b"off").expect("legal");
        assert!(options.no_lanes && options.lanes.is_none());
        options.apply(b"UNCOPY_LANES", b"all").expect("legal");
        assert!(!options.no_lanes && options.lanes.is_some());
    }

    #[test]
    fn only_variables_outside_the_table_are_unknown() {
        assert!(Options::is_unknown_variable(b"UNCOPY_MINSIZE"));
        assert!(!Options::is_unknown_variable(b"UNCOPY_MIN_SIZE"));
        assert!(!Options::is_unknown_variable(b"UNCOPY_STATS_ROOT"));
        assert!(!Options::is_unknown_variable(b"PATH"));
    }

    #[test]
    fn messages_escape_bytes_that_are_not_printable() {
        let message = OptionError::UnknownVariable(b"UNCOPY_\x1b[31m\xff").to_string();
        assert!(message.is_ascii() && !message.contains('\x1b'), "{message}");
    }
}
