//! Table of the options, from which help, man page, completions and messages are made.

/// One option of `uncopy run`.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Long flag without the dashes (`min-size`).
    pub flag: &'static str,
    /// Name of the environment variable (`UNCOPY_MIN_SIZE`).
    pub variable: &'static str,
    /// Placeholder of the value in help; `None` for a switch.
    pub value: Option<&'static str>,
    /// Value that the flag has when given alone; `None` if it needs one.
    pub bare: Option<&'static str>,
    /// One line of help, without a final period.
    pub help: &'static str,
}

/// Every option of `uncopy run`, in the order of help.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        flag: "off",
        variable: "UNCOPY_OFF",
        value: None,
        bare: None,
        help: "Load the library, and do nothing",
    },
    OptionSpec {
        flag: "min-size",
        variable: "UNCOPY_MIN_SIZE",
        value: Some("SIZE"),
        bare: None,
        help: "Smallest copy, input or output considered (4K to 1G) [default: 16K]",
    },
    OptionSpec {
        flag: "policy",
        variable: "UNCOPY_POLICY",
        value: Some("auto|always|never"),
        bare: None,
        help: "When to elide copies: where it pays, wherever it is possible, or never [default: auto]",
    },
    OptionSpec {
        flag: "begin-after",
        variable: "UNCOPY_BEGIN_AFTER",
        value: Some("SIZE"),
        bare: None,
        help: "Bytes that a process receives in large inputs before eliding begins, under --policy auto, unless it accepts connections (0 to 1T) [default: 64M]",
    },
    OptionSpec {
        flag: "heap",
        variable: "UNCOPY_HEAP",
        value: Some("auto|on|off"),
        bare: None,
        help: "Which large allocations the block heap serves: those of allocation sites whose buffers carry large input or output, all, or none; with none, nothing is elided [default: auto]",
    },
    OptionSpec {
        flag: "foreign",
        variable: "UNCOPY_FOREIGN",
        value: Some("on|off"),
        bare: None,
        help: "Elide copies in memory outside the block heap too: static buffers and the program's own mappings [default: on]",
    },
    OptionSpec {
        flag: "move",
        variable: "UNCOPY_MOVE",
        value: Some("on|off"),
        bare: None,
        help: "Move pages by UFFDIO_MOVE (Linux 6.8 and later); off: copy and drop them, as on older kernels [default: on]",
    },
    OptionSpec {
        flag: "memory",
        variable: "UNCOPY_MEMORY",
        value: Some("SIZE"),
        bare: None,
        help: "Maximum memory that uncopy keeps for itself (1M to 64T) [default: in proportion to the program's memory, less under limits]",
    },
    OptionSpec {
        flag: "costs",
        variable: "UNCOPY_COSTS",
        value: Some("COSTS"),
        bare: None,
        help: "Costs of copies, page moves and faults: measure (at first use), assume, or NAME=NS,... as 'uncopy doctor --calibrate' prints [default: what that command stored, else measure]",
    },
    OptionSpec {
        flag: "slice-ms",
        variable: "UNCOPY_SLICE_MS",
        value: Some("MS"),
        bare: None,
        help: "Length in ms of the time slices in which a trial compares eliding with not eliding (4 to 10000) [default: 40]",
    },
    OptionSpec {
        flag: "lanes",
        variable: "UNCOPY_LANES",
        value: Some("WHAT"),
        bare: Some("all"),
        help: "Pass large parts of streams between programs under uncopy by reference: all streams, off, or a list of unix, tcp, ADDRESS and ADDRESS:PORT [default: off; without WHAT: all]",
    },
    OptionSpec {
        flag: "lanes-dir",
        variable: "UNCOPY_LANES_DIR",
        value: Some("DIR"),
        bare: None,
        help: "Directory in which programs with --lanes find each other; only its owner may have access [default: one for all programs of the user]",
    },
    OptionSpec {
        flag: "net",
        variable: "UNCOPY_NET",
        value: Some("SOCKET"),
        bare: None,
        help: "Use the service of 'uncopy net' with this control socket or name for TCP connections of its addresses [default: the kernel's TCP]",
    },
    OptionSpec {
        flag: "log",
        variable: "UNCOPY_LOG",
        value: Some("DIR"),
        bare: None,
        help: "Sync files by a log in DIR instead of by their file system; only the owner of DIR may have access [default: no log]",
    },
    OptionSpec {
        flag: "log-files",
        variable: "UNCOPY_LOG_FILES",
        value: Some("GLOBS"),
        bare: None,
        help: "Log exactly these files, from their first sync on: absolute paths separated by colons; * ? and [] match within one directory [default: files for which it pays]",
    },
    OptionSpec {
        flag: "log-size",
        variable: "UNCOPY_LOG_SIZE",
        value: Some("SIZE"),
        bare: None,
        help: "Size of each process's log (16M to 1T) [default: 1G]",
    },
    OptionSpec {
        flag: "log-mode",
        variable: "UNCOPY_LOG_MODE",
        value: Some("beside|only"),
        bare: None,
        help: "Whether writes go to the page cache and, when they are synced, to the log, or at first only to the log, which must lie in persistent memory (DAX) [default: beside]",
    },
    OptionSpec {
        flag: "api-copies",
        variable: "UNCOPY_API_COPIES",
        value: Some("elide|make"),
        bare: None,
        help: "With --log-mode only: whether a record refers to bytes that were received into the log's memory, or has a copy of them [default: elide]",
    },
    OptionSpec {
        flag: "optimistic",
        variable: "UNCOPY_OPTIMISTIC",
        value: Some("on|off"),
        bare: None,
        help: "With --log-mode only: whether input whose bytes usually reach the log is received straight into the log's memory [default: on]",
    },
    OptionSpec {
        flag: "log-emulate-dax",
        variable: "UNCOPY_LOG_EMULATE_DAX",
        value: None,
        bare: None,
        help: "For experiments: allow a log on tmpfs, as if memory were persistent; nothing survives power loss",
    },
    OptionSpec {
        flag: "stats",
        variable: "UNCOPY_STATS",
        value: Some("FILE|-"),
        bare: None,
        help: "Write counters as JSON to FILE (- for standard output) when the program exits",
    },
    OptionSpec {
        flag: "explain",
        variable: "UNCOPY_EXPLAIN",
        value: Some("FILE|-"),
        bare: None,
        help: "When the program has ended, write what each call site saved and cost, and why, to FILE (- for standard output; JSON if it ends in .json)",
    },
    OptionSpec {
        flag: "no-follow",
        variable: "UNCOPY_NO_FOLLOW",
        value: None,
        bare: None,
        help: "Do not preload the library into programs that CMD starts",
    },
];

/// Variables that `uncopy run` sets for the library and that are not options.
///
/// | variable | value |
/// |---|---|
/// | `UNCOPY_STATS_ROOT` | pid whose counters go to the `--stats` file |
/// | `UNCOPY_UFFD_FD` | inherited descriptor of `/dev/userfaultfd`, for programs that drop their privileges
/// |
/// | `UNCOPY_LEDGER` | file in memory from which `--explain` is made |
/// | `UNCOPY_RECORD` | directory from which `uncopy profile` reads recordings |
/// | `UNCOPY_LOG_SOCKET` | socket of the keeper of `--log` |
pub const INTERNAL_VARIABLES: &[&str] =
    &["UNCOPY_STATS_ROOT", "UNCOPY_UFFD_FD", "UNCOPY_LEDGER", "UNCOPY_RECORD", "UNCOPY_LOG_SOCKET"];
