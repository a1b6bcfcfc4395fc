//! The command line: help, man pages and completions are made from what is built here, and the
//! options of `run` from the one table that the library reads too.

use crate::output::{self, EXIT_OK, EXIT_USAGE};
use crate::settings::Given;
use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};
use clap_complete::Shell;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use uncopy_core::options::{OPTIONS, OptionSpec};

/// Id of CMD and its arguments.
pub const COMMAND: &str = "command";
/// Id of the process that `stats` asks about.
pub const PID: &str = "pid";
/// Id of `stats --all`.
pub const ALL: &str = "all";
/// Id of `stats --openmetrics`.
pub const OPENMETRICS: &str = "openmetrics";
/// Id of `stats --watch`.
pub const WATCH: &str = "watch";
/// Id of `profile -o`.
pub const OUT: &str = "output";
/// Id of `profile --duration`.
pub const DURATION: &str = "duration";
/// Id of `profile --min-size`, its name in the table of options too.
pub const MIN_SIZE: &str = "min-size";
/// Id of the file that `report` reads.
pub const FILE: &str = "file";
/// Id of `report --diff`.
pub const DIFF: &str = "diff";
/// Id of `report --html`.
pub const HTML: &str = "html";
/// Id of `report --flamegraph`.
pub const FLAMEGRAPH: &str = "flamegraph";
/// Id of `doctor --json` and `report --json`.
pub const JSON: &str = "json";
/// Id of `doctor --calibrate`.
pub const CALIBRATE: &str = "calibrate";
/// Id of what `doctor --calibrate` starts under the library.
pub const CALIBRATE_HERE: &str = "calibrate-here";
/// Id of the shell that completions are for.
pub const SHELL: &str = "shell";
/// Id of `man --dir`, and of where logs lie.
pub const DIRECTORY: &str = "dir";
/// Id of `log recover --search`.
pub const SEARCH: &str = "search";
/// Id of `log recover --give-up` and `log rm --give-up`.
pub const GIVE_UP: &str = "give-up";
/// Id of `doctor --log`.
pub const LOG: &str = "log";
/// Id of how long logs are, for who keeps them.
pub const LOG_SIZE: &str = "log-size";
/// Id of whether logs may lie in memory, for who keeps them.
pub const EMULATE_DAX: &str = "emulate-dax";
/// Id of the name under which programs find who keeps logs.
pub const SOCKET: &str = "socket";
/// Id of the process that logs are kept for.
pub const ROOT: &str = "root";

const STATUSES: &str = "\
Exit status of run:
  CMD's own   CMD was started, accelerated or not (same process, same signals)
  127         CMD was not found
  126         CMD was found but could not be executed
  2           an option or an UNCOPY_ variable has a value that is not legal";

const RUN_EXAMPLES: &str = "\
Examples:
  uncopy run -- redis-server --port 7000
      Redis with the copies inside it elided.
  uncopy run --stats counters.json -- nginx -g 'daemon off;'
      The same for nginx; what was elided is in counters.json when it exits.
  uncopy run --policy always --min-size 4K -- ./server
      Elide every copy that can be, for testing a program under uncopy.
  uncopy run --explain sites.txt -- nginx -g 'daemon off;'
      Which calls saved time, which cost time, and why, by function.
  uncopy run --log /var/lib/app/log -- ./server
      What ./server writes and syncs survives by a log there.
  uncopy run --lanes -- redis-server & uncopy run --lanes -- ./client
      Between these two, large values pass by reference.
  uncopy run --net utun0 -- ./server
      What ./server accepts from the service's addresses goes through 'uncopy net', not the kernel.
  UNCOPY_HEAP=off uncopy run -- ./server
      Every option can also come from the environment; the command line wins.

CMD replaces this process: its pid, its signals and its exit status are those of CMD. With --explain
it is a child process that gets the same signals, and this one ends as it did. Where uncopy
cannot work, one line on standard error says why and CMD runs plainly. An unknown variable that
begins with UNCOPY_ is reported on one line and ignored.";

const EXAMPLES: &str = "\
Examples:
  uncopy doctor -- redis-server      does it work here, and for this program?
  uncopy run -- redis-server         run it with the copies inside it elided
  uncopy profile -- redis-server     where does it copy, and what would eliding give?
  uncopy ps                          what runs so, and what it saves
  uncopy bench --help                measure it";

const DOCTOR_NOTES: &str = "\
Examples:
  uncopy doctor
      Check this machine.
  uncopy doctor -- nginx
      Check this machine, whether nginx can be reached, and whether that is worth trying.
  uncopy doctor --json -- nginx
      The same for a program to read.
  uncopy doctor --calibrate
      Measure once, so that programs under run need not when they start.

Each line says what was checked, its state (ok, warning or missing) and what was found; under it is
the command that mends it; the last line is the verdict. For CMD it says whether it is worth trying, by what its
file and its libraries tell, and by CMD.profile.json in this directory, if uncopy profile has made one since.
Exit status: 0 if run will be active (for CMD, if one is given), 1 if not, 2 if the command line is wrong.

What --calibrate measures is kept in $XDG_CACHE_HOME/uncopy/costs, or ~/.cache/uncopy/costs, and
ignored with another processor or kernel.";

const STATS_NOTES: &str = "\
Examples:
  uncopy stats $(pidof nginx)
      The counters of each of them.
  uncopy stats --watch redis-server | jq .elided_bytes
      Every second, by the program's name.
  uncopy stats --all --openmetrics
      The same in the format of OpenMetrics; 'uncopy metrics' serves it.

Prints one JSON object for each process, on a line, the same that `run --stats` writes at exit. Only
the user that the process runs as, and root, can read it. Exit status: 0, or 1 if there is no such
process, it does not run under uncopy or its counters cannot be read, or 2 if the command line is
wrong.";

const PS_NOTES: &str = "\
Examples:
  uncopy ps
      Whether what was started under uncopy elides, and what that saves.
  sudo uncopy ps --json
      Of all users, for programs to read.

STATE is active; idle: nothing large has passed yet; off: it was measured that eliding does not pay;
plain: it cannot elide, for a reason that stands below the table. MEMORY is what uncopy keeps for the
process. CPU is what eliding does to its processor time per byte, measured in the process itself; ?
until enough has passed. Exit status: 0, also if there is none, or 2 if the command line is wrong.";

const PROFILE_NOTES: &str = "\
Examples:
  uncopy profile -- redis-server --port 7000
      Where does Redis copy what it receives? Give it work, then type Ctrl-C.
  uncopy profile --duration 10 -o set.json -- ./server
      Record for ten seconds, and leave the server running.
  uncopy profile --pid nginx
      The same for all processes of that name that were started with uncopy run.
  uncopy report set.json --html set.html
      What was found, as a page.

Every input, copy and output of at least --min-size bytes is recorded with its call stack, and which
bytes of which input reach which copies and outputs; nothing is elided meanwhile but for a few
inputs, to see what is touched. The report says where the copies are, what eliding them would give,
and what to type next. OUT is JSON; it is written over only if it is a profile.

On a terminal CMD has a process group of its own: Ctrl-C ends the recording, not CMD, which goes on
running. A CMD that reads from the terminal is given it, and Ctrl-C with it; uncopy then waits until
CMD has ended. SIGINT ends the recording, other signals go to CMD. A server that goes into the
background is recorded until it ends or the recording is ended.

Exit status: that of CMD if CMD has ended, 0 if the recording was ended before, 1 if nothing could be
recorded or OUT not be written, 2 if the command line is wrong, 126 and 127 as for run.";

const REPORT_NOTES: &str = "\
Examples:
  uncopy report redis-server.profile.json
      What uncopy profile showed when it ended.
  uncopy report redis-server.profile.json --html redis.html
      A page that needs no network: the flow of bytes, a flame graph, the tables.
  uncopy report redis-server.profile.json --flamegraph redis.folded
      Bytes by call stack, for flamegraph.pl, inferno or speedscope.
  uncopy report redis-server.profile.json --json | jq .prediction
      For programs; docs/profile.schema.json says what it holds.
  uncopy report --diff before.json after.json
      What the program copies before and after a change, by site and by chain.

FILE - is standard output. --diff takes profiles of one program with the same --min-size; a site is the
same in both if the same function calls the same one. Exit status: 0, or 1 if a profile cannot be read, two
cannot be compared or a file not be written, or 2 if the command line is wrong.";

const RELEASE_NOTES: &str = "\
Example:
  uncopy release $(pidof redis-server) && gcore $(pidof redis-server)

For debuggers, core dumps and checkpoints, which do not find the bytes of pages that are views. The
process goes on with plain copies and elides nothing from then on; its children likewise. It must be
running: release it before it is stopped. Exit status: 0, or 1 if there is no such process, it does
not run under uncopy, cannot be reached or does not answer, or 2 if the command line is wrong.";

const LOG_NOTES: &str = "\
Examples:
  uncopy run --log /var/lib/app/log -- ./server
      What ./server writes and syncs survives by a log there.
  uncopy log recover /var/lib/app/log
      After a crash: put what the logs have into the files. 'uncopy run --log' does it too.
  uncopy log sync /var/lib/app/data.wal && cp /var/lib/app/data.wal backup/
      Wait until a file is the file system's.

docs/store.md says what survives what. Exit status: 0, or 1 if something could not be done or, for check
and recover, a log is damaged or has bytes that it could not put anywhere, or 2 if the command line is
wrong.";

/// Takes any bytes, and lists the legal words for completions. The table in the core judges them.
#[derive(Clone)]
struct Words(Vec<&'static str>);

impl TypedValueParser for Words {
    type Value = OsString;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<OsString, clap::Error> {
        OsStringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(|word| PossibleValue::new(*word))))
    }
}

fn option(spec: &'static OptionSpec) -> Arg {
    let argument =
        Arg::new(spec.flag).long(spec.flag).help(format!("{} [env: {}]", spec.help, spec.variable));
    let Some(value) = spec.value else {
        return argument.action(ArgAction::SetTrue);
    };
    let argument = argument.value_name(value).allow_hyphen_values(true).action(ArgAction::Set);
    if let Some(bare) = spec.bare {
        // A hyphen begins the next option, or `--`.
        let argument = argument.num_args(0..=1).default_missing_value(bare).allow_hyphen_values(false);
        return argument.value_parser(value_parser!(OsString));
    }
    if value.contains("FILE") {
        argument.value_parser(value_parser!(OsString)).value_hint(ValueHint::FilePath)
    } else if value == "DIR" {
        argument.value_parser(value_parser!(OsString)).value_hint(ValueHint::DirPath)
    } else if value.contains('|') {
        let words = value.split('|').collect();
        argument.value_parser(ValueParser::new(Words(words))).hide_possible_values(true)
    } else {
        argument.value_parser(value_parser!(OsString))
    }
}

fn program(help: &'static str) -> Arg {
    Arg::new(COMMAND)
        .value_name("CMD")
        .help(help)
        .num_args(1..)
        .value_parser(value_parser!(OsString))
        .trailing_var_arg(true)
        .value_hint(ValueHint::CommandWithArguments)
}

/// `uncopy run`.
pub fn run() -> Command {
    Command::new("run")
        .bin_name("uncopy run")
        .about("Run a program with the copies inside it elided")
        .override_usage("uncopy run [OPTIONS] -- CMD [ARGS]...")
        .args_override_self(true)
        .args(OPTIONS.iter().map(option))
        .arg(program("The program and its arguments").required(true))
        .after_help(format!("{RUN_EXAMPLES}\n\n{STATUSES}"))
}

fn doctor() -> Command {
    Command::new("doctor")
        .about("Check whether uncopy can work on this machine, and for a program")
        .override_usage("uncopy doctor [--json] [--log DIR] [--calibrate | -- CMD [ARGS]...]")
        .arg(
            Arg::new(JSON)
                .long("json")
                .help("Print one JSON object: checks (an array), active, worth, verdict and next")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new(CALIBRATE)
                .long("calibrate")
                .help("Measure what copies, moves and faults cost here, and store it for run")
                .conflicts_with(COMMAND)
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new(LOG)
                .long(LOG)
                .value_name("DIR")
                .help("Check also what run --log DIR needs, and the logs that are there")
                .value_parser(value_parser!(OsString))
                .value_hint(ValueHint::DirPath),
        )
        .arg(Arg::new(CALIBRATE_HERE).long("calibrate-here").hide(true).action(ArgAction::SetTrue))
        .arg(program("The program that is to run under uncopy"))
        .after_help(DOCTOR_NOTES)
}

fn process() -> Arg {
    Arg::new(PID)
        .value_name("PID")
        .help("A process that runs under uncopy")
        .required(true)
        .allow_hyphen_values(true)
        .value_parser(value_parser!(OsString))
}

fn file_option(id: &'static str, help: &'static str) -> Arg {
    Arg::new(id)
        .long(id)
        .value_name("FILE")
        .help(help)
        .value_parser(value_parser!(OsString))
        .value_hint(ValueHint::FilePath)
}

fn profile() -> Command {
    Command::new("profile")
        .about("Show where a program copies its I/O, and what eliding would give")
        .override_usage(
            "uncopy profile [OPTIONS] -- CMD [ARGS]...\n       uncopy profile [OPTIONS] --pid <PID|NAME>...",
        )
        .arg(
            file_option(OUT, "Write the profile to OUT [default: CMD.profile.json]")
                .short('o')
                .value_name("OUT"),
        )
        .arg(
            Arg::new(DURATION)
                .long(DURATION)
                .value_name("S")
                .help("End the recording after so many seconds, not the program")
                .allow_hyphen_values(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(
            Arg::new(MIN_SIZE)
                .long(MIN_SIZE)
                .value_name("SIZE")
                .help("Record calls of at least so many bytes [default: 16K]")
                .allow_hyphen_values(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(
            Arg::new(PID)
                .long(PID)
                .value_name("PID|NAME")
                .help("Record processes that were started with uncopy run")
                .num_args(1..)
                .conflicts_with(COMMAND)
                .allow_negative_numbers(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(program("The program and its arguments").required_unless_present(PID))
        .after_help(PROFILE_NOTES)
}

fn report() -> Command {
    Command::new("report")
        .about("Show a profile, or two beside each other")
        .override_usage("uncopy report [OPTIONS] OUT\n       uncopy report [OPTIONS] --diff A B")
        .arg(
            Arg::new(FILE)
                .value_name("OUT")
                .help("A file that uncopy profile wrote")
                .required_unless_present(DIFF)
                .value_parser(value_parser!(OsString))
                .value_hint(ValueHint::FilePath),
        )
        .arg(
            file_option(
                DIFF,
                "Show two profiles of a program beside each other: what it copies in A and in B",
            )
            .value_names(["A", "B"])
            .num_args(2)
            .conflicts_with_all([FILE, FLAMEGRAPH]),
        )
        .arg(file_option(HTML, "Write a page that needs nothing but itself"))
        .arg(
            Arg::new(JSON).long(JSON).help("Print what is shown as JSON, checked").action(ArgAction::SetTrue),
        )
        .arg(file_option(FLAMEGRAPH, "Write bytes by call stack in the folded format of flame graphs"))
        .after_help(REPORT_NOTES)
}

fn stats() -> Command {
    Command::new("stats")
        .about("Print the counters of running processes as JSON")
        .arg(
            Arg::new(PID)
                .value_name("PID|NAME")
                .help("Processes that run under uncopy")
                .num_args(1..)
                .required_unless_present(ALL)
                .allow_negative_numbers(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(
            Arg::new(ALL)
                .long(ALL)
                .help("Every process under uncopy of this user; for root: of all users")
                .conflicts_with(PID)
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new(OPENMETRICS)
                .long(OPENMETRICS)
                .help("In the text format of OpenMetrics")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new(WATCH)
                .long(WATCH)
                .value_name("S")
                .help("Print them again every S seconds [default: 1], until a process ends")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("1")
                .value_parser(value_parser!(u32).range(1..=86_400)),
        )
        .after_help(STATS_NOTES)
}

fn ps() -> Command {
    Command::new("ps")
        .about("List the processes under uncopy, and what it does for each")
        .arg(Arg::new(JSON).long(JSON).help("Print one JSON object").action(ArgAction::SetTrue))
        .after_help(PS_NOTES)
}

fn release() -> Command {
    Command::new("release")
        .about("Turn every view of a running process back into plain memory")
        .arg(process())
        .after_help(RELEASE_NOTES)
}

fn log() -> Command {
    let directory = || {
        Arg::new(DIRECTORY)
            .value_name("DIR")
            .help("Where the logs lie")
            .required(true)
            .value_parser(value_parser!(OsString))
            .value_hint(ValueHint::DirPath)
    };
    let give_up = |help: &'static str| Arg::new(GIVE_UP).long(GIVE_UP).help(help).action(ArgAction::SetTrue);
    let value = |id: &'static str| {
        Arg::new(id).long(id).value_name("VALUE").required(true).value_parser(value_parser!(OsString))
    };
    let search = Arg::new(SEARCH)
        .long(SEARCH)
        .value_name("DIR")
        .help("Look for files there too")
        .action(ArgAction::Append)
        .value_parser(value_parser!(OsString))
        .value_hint(ValueHint::DirPath);
    Command::new("log")
        .about("Show and recover the logs of run --log")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            Command::new("ls")
                .about("List logs, what they hold and for which files")
                .arg(directory())
                .arg(Arg::new(JSON).long(JSON).help("Print one JSON object").action(ArgAction::SetTrue)),
            Command::new("check").about("Check every record of every log").arg(directory()),
            Command::new("recover")
                .about("Put into files what logs have for them")
                .arg(directory())
                .arg(search)
                .arg(give_up("Give up what cannot be put anywhere")),
            Command::new("sync").about("Wait until a file, or those of all logs, are the file system's").arg(
                directory()
                    .value_name("DIR|FILE")
                    .help("Where the logs lie, or a file")
                    .value_hint(ValueHint::AnyPath),
            ),
            Command::new("rm")
                .about("Remove logs of which nothing is needed")
                .arg(directory())
                .arg(give_up("Remove also those that were not recovered: what they have for files is lost")),
            Command::new("keep")
                .hide(true)
                .about("Keep logs for programs: run starts it")
                .arg(directory())
                .arg(Arg::new(EMULATE_DAX).long(EMULATE_DAX).action(ArgAction::SetTrue))
                .args([value(LOG_SIZE), value(SOCKET), value(ROOT)]),
        ])
        .after_help(LOG_NOTES)
}

/// `bench`, which parses its own command line; here it is for help, man pages and completions.
fn bench() -> Command {
    uncopy_bench::command().name("bench")
}

fn completions() -> Command {
    Command::new("completions")
        .about("Print a shell's completion script")
        .arg(
            Arg::new(SHELL)
                .value_name("SHELL")
                .help("The shell")
                .required(true)
                .value_parser(value_parser!(Shell)),
        )
        .after_help("Example:\n  uncopy completions bash > ~/.local/share/bash-completion/completions/uncopy")
}

fn man() -> Command {
    Command::new("man")
        .about("Print the man page")
        .arg(
            Arg::new(DIRECTORY)
                .long("dir")
                .value_name("DIR")
                .help("Write uncopy.1 and a page for each subcommand to DIR instead")
                .hide(true)
                .value_parser(value_parser!(PathBuf)),
        )
        .after_help("Example:\n  uncopy man | man -l -")
}

/// The whole command.
pub fn whole() -> Command {
    Command::new("uncopy")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Runs unmodified programs with their I/O copies elided")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            run(),
            doctor(),
            profile(),
            report(),
            ps(),
            crate::top::line::command(),
            stats(),
            crate::metrics::line::command(),
            release(),
            log(),
            crate::net::line::command(),
            crate::service::line::command(),
            bench(),
            completions(),
            man(),
        ])
        .after_help(format!("{EXAMPLES}\n\n{STATUSES}"))
}

/// The options that were given to `run`, in the table's order.
pub fn given(matches: &ArgMatches) -> Vec<Given> {
    OPTIONS
        .iter()
        .filter_map(|spec| match spec.value {
            None => matches.get_flag(spec.flag).then(|| (spec, OsString::from("1"))),
            Some(_) => matches.get_one::<OsString>(spec.flag).map(|value| (spec, value.clone())),
        })
        .collect()
}

/// CMD and its arguments; empty if none were given.
pub fn command(matches: &ArgMatches) -> Vec<OsString> {
    matches.get_many::<OsString>(COMMAND).unwrap_or_default().cloned().collect()
}

/// Prints help that was asked for, or what is wrong with the command line, and returns the status.
pub fn answer(error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        return print_help(error, EXIT_OK);
    }
    let text = error.to_string();
    match text.strip_prefix("error: ") {
        Some(message) => output::complain(message.trim_end()),
        // Help in place of a missing subcommand.
        None => {
            let _ = error.print();
        }
    }
    EXIT_USAGE
}

fn print_help(error: &clap::Error, status: u8) -> u8 {
    match error.print() {
        Err(problem) if problem.kind() != std::io::ErrorKind::BrokenPipe => {
            output::complain(format_args!("cannot write to standard output: {}", output::Reason(&problem)));
            output::EXIT_FAILURE
        }
        _ => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;

    fn parse(arguments: &[&str]) -> ArgMatches {
        run().try_get_matches_from(["run"].iter().chain(arguments)).expect("legal")
    }

    #[test]
    fn definition_is_consistent() {
        whole().debug_assert();
        run().debug_assert();
    }

    #[test]
    fn every_option_of_the_table_is_on_the_command_line_and_in_help() {
        let help = run().render_long_help().to_string();
        for spec in OPTIONS {
            assert!(help.contains(&format!("--{}", spec.flag)), "{}", spec.flag);
            assert!(help.contains(spec.variable), "{}", spec.variable);
        }
        for status in ["127", "126"] {
            assert!(help.contains(status));
        }
    }

    #[test]
    fn everything_after_the_program_belongs_to_it() {
        for (line, expected) in [
            (&["--", "sh", "-c", "x"][..], &["sh", "-c", "x"][..]),
            (&["--off", "sh", "--off", "--", "-h"], &["sh", "--off", "--", "-h"]),
            (&["--", "--help"], &["--help"]),
            (&["--", "sh", "--", "--", "x"], &["sh", "--", "--", "x"]),
            (&["--", ""], &[""]),
        ] {
            assert_eq!(command(&parse(line)), expected, "{line:?}");
        }
    }

    #[test]
    fn values_may_begin_with_a_hyphen_and_need_not_be_text() {
        let matches = parse(&["--min-size", "-1", "--stats", "-", "--", "x"]);
        let given = given(&matches);
        assert_eq!(given.len(), 2);
        assert_eq!(given[0].1, "-1");
        assert_eq!(given[1].1, "-");
        let bytes = OsStr::from_bytes(b"\xff\xfe");
        let matches = run()
            .try_get_matches_from([OsStr::new("run"), "--policy".as_ref(), bytes, "--".as_ref(), bytes])
            .expect("any bytes");
        assert_eq!(super::given(&matches)[0].1, bytes);
        assert_eq!(command(&matches), [bytes]);
    }

    #[test]
    fn lanes_may_stand_alone() {
        for (line, expected) in [
            (&["--lanes", "--", "x"][..], "all"),
            (&["--lanes", "--off", "x"], "all"),
            (&["--lanes", "unix", "x"], "unix"),
            (&["--lanes=127.0.0.1:80", "x"], "127.0.0.1:80"),
        ] {
            let matches = parse(line);
            let lanes = given(&matches).into_iter().find(|(spec, _)| spec.flag == "lanes");
            assert_eq!(lanes.map(|(_, value)| value), Some(expected.into()), "{line:?}");
            assert_eq!(command(&matches), ["x"], "{line:?}");
        }
    }

    #[test]
    fn unknown_options_are_not_taken_for_the_program() {
        for line in [&["--bogus", "--", "x"][..], &["--minsize=1", "x"], &[]] {
            assert!(run().try_get_matches_from(["run"].iter().chain(line)).is_err(), "{line:?}");
        }
    }
}
