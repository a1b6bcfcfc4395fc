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
        help: "Run the program with uncopy loaded but doing nothing",
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
        help: "When to elide: by a running account, whatever is legal, or never [default: auto]",
    },
    OptionSpec {
        flag: "begin-after",
        variable: "UNCOPY_BEGIN_AFTER",
        value: Some("SIZE"),
        bare: None,
        help: "What a process that accepts no connections receives by large inputs before eliding begins in it, under --policy auto (0 to 1T) [default: 64M]",
    },
    OptionSpec {
        flag: "heap",
        variable: "UNCOPY_HEAP",
        value: Some("auto|on|off"),
        bare: None,
        help: "Large allocations that the block heap serves: those of sites whose buffers carry large input or output, all, or none, and then nothing is elided [default: auto]",
    },
    OptionSpec {
        flag: "foreign",
        variable: "UNCOPY_FOREIGN",
        value: Some("on|off"),
        bare: None,
        help: "Let memory outside the block heap (static buffers, the program's own mappings) hold views too [default: on]",
    },
    OptionSpec {
        flag: "move",
        variable: "UNCOPY_MOVE",
        value: Some("on|off"),
        bare: None,
        help: "Move pages where the kernel can (Linux 6.8 and later); off: drop and copy them, as is done on older kernels [default: on]",
    },
    OptionSpec {
        flag: "memory",
        variable: "UNCOPY_MEMORY",
        value: Some("SIZE"),
        bare: None,
        help: "Most memory that uncopy keeps for itself (1M to 64T) [default: what the program uses, and its limits, allow]",
    },
    OptionSpec {
        flag: "costs",
        variable: "UNCOPY_COSTS",
        value: Some("COSTS"),
        bare: None,
        help: "What copies, moves and faults cost here: measure (when they are first needed), assume, or NAME=NS,... as 'uncopy doctor --calibrate' prints [default: what that has stored, else measure]",
    },
    OptionSpec {
        flag: "slice-ms",
        variable: "UNCOPY_SLICE_MS",
        value: Some("MS"),
        bare: None,
        help: "Length of the slices of time in which eliding is compared with doing nothing, in ms (4 to 10000) [default: 40]",
    },
    OptionSpec {
        flag: "lanes",
        variable: "UNCOPY_LANES",
        value: Some("WHAT"),
        bare: Some("all"),
        help: "Let large parts of streams between programs under uncopy pass by reference: all streams, none (off), or a list of unix, tcp, ADDRESS and ADDRESS:PORT [default: off; without WHAT: all]",
    },
    OptionSpec {
        flag: "lanes-dir",
        variable: "UNCOPY_LANES_DIR",
        value: Some("DIR"),
        bare: None,
        help: "Where programs meet whose streams may be lanes: a directory of the user's own that nobody else can enter [default: one for all programs of the user]",
    },
    OptionSpec {
        flag: "net",
        variable: "UNCOPY_NET",
        value: Some("SOCKET"),
        bare: None,
        help: "Let TCP connections to addresses that a service of 'uncopy net' has go through it: its control socket, or its name [default: through the kernel]",
    },
    OptionSpec {
        flag: "log",
        variable: "UNCOPY_LOG",
        value: Some("DIR"),
        bare: None,
        help: "Let files that the program writes and syncs survive by a log in DIR, a directory of the user's own that nobody else can enter [default: by their file system]",
    },
    OptionSpec {
        flag: "log-files",
        variable: "UNCOPY_LOG_FILES",
        value: Some("GLOBS"),
        bare: None,
        help: "Let just these files survive by the log, from their first sync on: absolute paths in which * ? and [] stand for what is within a directory's name, separated by colons [default: those for which it pays]",
    },
    OptionSpec {
        flag: "log-size",
        variable: "UNCOPY_LOG_SIZE",
        value: Some("SIZE"),
        bare: None,
        help: "Length of the log of each process (16M to 1T) [default: 1G]",
    },
    OptionSpec {
        flag: "log-emulate-dax",
        variable: "UNCOPY_LOG_EMULATE_DAX",
        value: None,
        bare: None,
        help: "For experiments: let the log lie in memory (DIR on tmpfs), as if that were persistent; nothing survives power loss",
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
        help: "Write what each call site saved and cost, and why, to FILE (- for standard output; JSON if it ends in .json) when the program has ended",
    },
    OptionSpec {
        flag: "no-follow",
        variable: "UNCOPY_NO_FOLLOW",
        value: None,
        bare: None,
        help: "Do not accelerate the programs that the program starts",
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
