//! Definition of the command line, from which help, man pages and completions are made. The options
//! of `run` come from the table that the library reads too.

mod notes;

use crate::output::{self, EXIT_OK, EXIT_USAGE};
use crate::settings::OptionValue;
use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};
use clap_complete::Shell;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use uncopy_core::options::{OPTIONS, OptionSpec};

// Ids of arguments; most are also the option's name.
pub const COMMAND: &str = "command";
pub const PID: &str = "pid";
pub const ALL: &str = "all";
pub const OPENMETRICS: &str = "openmetrics";
pub const WATCH: &str = "watch";
pub const OUT: &str = "output";
pub const DURATION: &str = "duration";
pub const MIN_SIZE: &str = "min-size";
pub const FREQUENCY: &str = "frequency";
pub const FOLDED: &str = "folded";
pub const FILE: &str = "file";
pub const DIFF: &str = "diff";
pub const HTML: &str = "html";
pub const FLAMEGRAPH: &str = "flamegraph";
pub const PPROF: &str = "pprof";
pub const JSON: &str = "json";
pub const CALIBRATE: &str = "calibrate";
/// Hidden option of the processes that `doctor --calibrate` starts under the library.
pub const CALIBRATE_HERE: &str = "calibrate-here";
pub const SHELL: &str = "shell";
/// Id of `man --dir`, and of the log directory.
pub const DIRECTORY: &str = "dir";
pub const SEARCH: &str = "search";
pub const GIVE_UP: &str = "give-up";
pub const OVERWRITE: &str = "overwrite";
pub const TIMEOUT: &str = "timeout";
pub const LOG: &str = "log";
// Hidden options of `log keep`.
pub const LOG_SIZE: &str = "log-size";
pub const EMULATE_DAX: &str = "emulate-dax";
pub const LOG_MODE: &str = "mode";
pub const SOCKET: &str = "socket";
pub const ROOT: &str = "root";

/// Parser that accepts any bytes and lists the legal words for completions. The option table in
/// core checks the value.
#[derive(Clone)]
struct WordHints(Vec<&'static str>);

impl TypedValueParser for WordHints {
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

fn option_arg(spec: &'static OptionSpec) -> Arg {
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
        argument.value_parser(ValueParser::new(WordHints(words))).hide_possible_values(true)
    } else {
        argument.value_parser(value_parser!(OsString))
    }
}

fn command_arg(help: &'static str) -> Arg {
    Arg::new(COMMAND)
        .value_name("CMD")
        .help(help)
        .num_args(1..)
        .value_parser(value_parser!(OsString))
        .trailing_var_arg(true)
        .value_hint(ValueHint::CommandWithArguments)
}

/// Returns the definition of `uncopy run`.
pub fn run() -> Command {
    Command::new("run")
        .bin_name("uncopy run")
        .about("Run a program with its I/O copies elided")
        .override_usage("uncopy run [OPTIONS] -- CMD [ARGS]...")
        .args_override_self(true)
        .args(OPTIONS.iter().map(option_arg))
        .arg(command_arg("The program and its arguments").required(true))
        .after_help(format!("{}\n\n{}", notes::RUN, notes::STATUSES))
}

fn doctor() -> Command {
    Command::new("doctor")
        .about("Check whether uncopy works on this machine and for a program")
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
                .help("Measure the costs of copies, page moves and page faults, and store them for 'uncopy run'")
                .conflicts_with(COMMAND)
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new(LOG)
                .long(LOG)
                .value_name("DIR")
                .help("Also check what 'uncopy run --log DIR' needs, and the logs in DIR")
                .value_parser(value_parser!(OsString))
                .value_hint(ValueHint::DirPath),
        )
        .arg(Arg::new(CALIBRATE_HERE).long("calibrate-here").hide(true).action(ArgAction::SetTrue))
        .arg(command_arg("The program to check, and its arguments"))
        .after_help(notes::DOCTOR)
}

fn pid_arg() -> Arg {
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

/// Help of `--pprof`, of both `profile` and `report`.
const PPROF_HELP: &str = "Write calls, bytes and times per call stack, in the format of 'go tool pprof'";

fn profile() -> Command {
    Command::new("profile")
        .about("Show where a program copies its I/O, and what eliding would save")
        .override_usage(
            "uncopy profile [OPTIONS] -- CMD [ARGS]...\n       uncopy profile [OPTIONS] --pid <PID|NAME>...\n       \
             uncopy profile [OPTIONS] -a",
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
                .help("End after S seconds; the program goes on [default: 10 where samples are taken]")
                .allow_hyphen_values(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(
            Arg::new(MIN_SIZE)
                .long(MIN_SIZE)
                .value_name("SIZE")
                .help("Smallest copy, input or output that is recorded [default: 16K]")
                .allow_hyphen_values(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(
            Arg::new(PID)
                .long(PID)
                .value_name("PID|NAME")
                .help("Record running processes that 'uncopy run' started; sample others")
                .num_args(1..)
                .conflicts_with(COMMAND)
                .allow_negative_numbers(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(
            Arg::new(ALL)
                .short('a')
                .long(ALL)
                .help("Sample the whole machine, and show its processes as a table")
                .conflicts_with_all([COMMAND, PID, OUT, MIN_SIZE])
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new(FREQUENCY)
                .long(FREQUENCY)
                .value_name("HZ")
                .help("Samples per second of processor time [default: 997]")
                .conflicts_with_all([COMMAND, OUT, MIN_SIZE])
                .allow_hyphen_values(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(
            Arg::new(JSON)
                .long(JSON)
                .help("Sample, and print one JSON object")
                .conflicts_with_all([COMMAND, OUT, MIN_SIZE])
                .action(ArgAction::SetTrue),
        )
        .arg(
            file_option(FOLDED, "Sample, and write samples per call stack, in the folded format of flame graphs")
                .conflicts_with_all([COMMAND, OUT, MIN_SIZE]),
        )
        .arg(file_option(PPROF, PPROF_HELP))
        .arg(command_arg("The program and its arguments").required_unless_present_any([PID, ALL]))
        .after_help(notes::PROFILE)
}

fn report() -> Command {
    Command::new("report")
        .about("Show a profile, or compare two")
        .override_usage("uncopy report [OPTIONS] OUT\n       uncopy report [OPTIONS] --diff A B")
        .arg(
            Arg::new(FILE)
                .value_name("OUT")
                .help("The profile, as 'uncopy profile' wrote it")
                .required_unless_present(DIFF)
                .value_parser(value_parser!(OsString))
                .value_hint(ValueHint::FilePath),
        )
        .arg(
            file_option(DIFF, "Compare two profiles of one program")
                .value_names(["A", "B"])
                .num_args(2)
                .conflicts_with_all([FILE, FLAMEGRAPH, PPROF]),
        )
        .arg(file_option(HTML, "Write an HTML page that needs no other file"))
        .arg(
            Arg::new(JSON)
                .long(JSON)
                .help("Print the profile, or the comparison, as JSON")
                .action(ArgAction::SetTrue),
        )
        .arg(file_option(FLAMEGRAPH, "Write bytes per call stack, in the folded format of flame graphs"))
        .arg(file_option(PPROF, PPROF_HELP))
        .after_help(notes::REPORT)
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
                .help("Every process under uncopy of this user, or for root of all users")
                .conflicts_with(PID)
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new(OPENMETRICS)
                .long(OPENMETRICS)
                .help("Print the OpenMetrics text format instead of JSON")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new(WATCH)
                .long(WATCH)
                .value_name("S")
                .help("Repeat every S seconds [default: 1] until a process ends")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("1")
                .value_parser(value_parser!(u32).range(1..=86_400)),
        )
        .after_help(notes::STATS)
}

fn ps() -> Command {
    Command::new("ps")
        .about("List the processes under uncopy, and what eliding saves in each")
        .arg(Arg::new(JSON).long(JSON).help("Print one JSON object").action(ArgAction::SetTrue))
        .after_help(notes::PS)
}

fn release() -> Command {
    Command::new("release")
        .about("Put all elided bytes into a process's memory, for a debugger or core dump")
        .arg(pid_arg())
        .after_help(notes::RELEASE)
}

fn log() -> Command {
    let directory = || {
        Arg::new(DIRECTORY)
            .value_name("DIR")
            .help("The directory of the logs")
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
        .help("Also look for moved files in DIR")
        .action(ArgAction::Append)
        .value_parser(value_parser!(OsString))
        .value_hint(ValueHint::DirPath);
    Command::new("log")
        .about("List, check and recover the logs of 'uncopy run --log'")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            Command::new("ls")
                .about("List the logs, their contents and their files")
                .arg(directory())
                .arg(Arg::new(JSON).long(JSON).help("Print one JSON object").action(ArgAction::SetTrue)),
            Command::new("check").about("Check every record of every log").arg(directory()),
            Command::new("recover")
                .about("Write the records of the logs to their files")
                .arg(directory())
                .arg(search)
                .arg(
                    Arg::new(OVERWRITE)
                        .long(OVERWRITE)
                        .help("Also write to files that were modified since, over their newer bytes")
                        .action(ArgAction::SetTrue),
                )
                .arg(give_up("Discard what cannot be recovered")),
            Command::new("wait")
                .about("Wait until no process uses the logs, so that their file systems can be unmounted")
                .arg(directory())
                .arg(
                    Arg::new(TIMEOUT)
                        .long(TIMEOUT)
                        .value_name("SECONDS")
                        .help("Give up after SECONDS [default: no limit]")
                        .value_parser(value_parser!(u64)),
                ),
            Command::new("sync")
                .about("Wait until a file, or every logged file, is synced to its file system")
                .arg(
                    directory()
                        .value_name("DIR|FILE")
                        .help("The directory of the logs, or one file")
                        .value_hint(ValueHint::AnyPath),
                ),
            Command::new("rm")
                .about("Remove logs that are no longer needed")
                .arg(directory())
                .arg(give_up("Also remove logs that were not recovered; their records are lost")),
            Command::new("keep")
                .hide(true)
                .about("Keep logs for programs: run starts it")
                .arg(directory())
                .arg(Arg::new(EMULATE_DAX).long(EMULATE_DAX).action(ArgAction::SetTrue))
                .args([value(LOG_SIZE), value(LOG_MODE), value(SOCKET), value(ROOT)]),
        ])
        .after_help(notes::LOG)
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

type Define = fn() -> Command;

/// Subcommands in the order of help, with their definitions.
const SUBCOMMANDS: [(&str, Define); 14] = [
    ("run", run),
    ("doctor", doctor),
    ("profile", profile),
    ("report", report),
    ("ps", ps),
    ("top", crate::top::args::command),
    ("stats", stats),
    ("metrics", crate::metrics::args::command),
    ("release", release),
    ("log", log),
    ("net", crate::net::args::command),
    ("service", crate::service::args::command),
    ("completions", completions),
    ("man", man),
];

/// Returns the command with these subcommands.
fn with_subcommands(subcommands: impl Iterator<Item = Command>) -> Command {
    Command::new("uncopy")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Runs unmodified programs with their I/O copies elided")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(subcommands)
        .after_help(format!("{}\n\n{}", notes::OVERVIEW, notes::STATUSES))
}

/// Returns the definition of the whole command.
pub fn full_command() -> Command {
    with_subcommands(SUBCOMMANDS.iter().map(|(_, define)| define()))
}

/// Returns the definition that a command line needs: only the subcommand that it names, because
/// defining all takes longer than most of them run. Without a known name, the whole command.
pub fn for_arguments(arguments: &[OsString]) -> Command {
    let named = arguments.get(1).and_then(|word| SUBCOMMANDS.iter().find(|(name, _)| word == name));
    named.map_or_else(full_command, |(_, define)| with_subcommands([define()].into_iter()))
}

/// Returns the options that were given to `run`, in the table's order.
pub fn option_values(matches: &ArgMatches) -> Vec<OptionValue> {
    OPTIONS
        .iter()
        .filter_map(|spec| match spec.value {
            None => matches.get_flag(spec.flag).then(|| (spec, OsString::from("1"))),
            Some(_) => matches.get_one::<OsString>(spec.flag).map(|value| (spec, value.clone())),
        })
        .collect()
}

/// Returns CMD and its arguments; empty if none was given.
pub fn command(matches: &ArgMatches) -> Vec<OsString> {
    matches.get_many::<OsString>(COMMAND).unwrap_or_default().cloned().collect()
}

/// Prints the requested help, or the error in the command line, and returns the exit status.
pub fn print_clap_error(error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        return print_help(error, EXIT_OK);
    }
    let text = error.to_string();
    match text.strip_prefix("error: ") {
        Some(message) => output::print_message(message.trim_end()),
        // Help that clap prints in place of a missing subcommand.
        None => {
            let _ = error.print();
        }
    }
    EXIT_USAGE
}

fn print_help(error: &clap::Error, status: u8) -> u8 {
    match error.print() {
        Err(problem) if problem.kind() != std::io::ErrorKind::BrokenPipe => {
            output::print_message(format_args!(
                "cannot write to standard output: {}",
                output::Reason(&problem)
            ));
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
        full_command().debug_assert();
        run().debug_assert();
    }

    #[test]
    fn each_subcommand_stands_under_its_name() {
        for (name, define) in SUBCOMMANDS {
            assert_eq!(define().get_name(), name);
        }
        let lines = |command: &str| for_arguments(&["uncopy".into(), command.into()]);
        assert_eq!(lines("stats").get_subcommands().count(), 1);
        assert_eq!(lines("stat").get_subcommands().count(), SUBCOMMANDS.len());
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
        let given = option_values(&matches);
        assert_eq!(given.len(), 2);
        assert_eq!(given[0].1, "-1");
        assert_eq!(given[1].1, "-");
        let bytes = OsStr::from_bytes(b"\xff\xfe");
        let matches = run()
            .try_get_matches_from([OsStr::new("run"), "--policy".as_ref(), bytes, "--".as_ref(), bytes])
            .expect("any bytes");
        assert_eq!(super::option_values(&matches)[0].1, bytes);
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
            let lanes = option_values(&matches).into_iter().find(|(spec, _)| spec.flag == "lanes");
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
