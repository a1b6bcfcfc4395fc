//! The experiments behind `uncopy bench`.
//!
//! ```text
//!   arguments     the command line
//!   demo          echo server and Redis in one table
//!   copies        echo_server ⇄ echo_client, messages of pattern
//!   redis         redis_server (log_trimmer) ⇄ redis_load (redis-benchmark), values read back through resp
//!   small         a short memcpy, the start of a program
//!   comparison    samples of alternating sides, ratios; statistics, table, machine, load
//!   side          what runs under uncopy and what plain
//!   process       servers and helpers; cleanup and signals end them whatever happens
//! ```
//!
//! Invariants: sides are compared only within one run, in alternating order; no ratio is given
//! unless both sides' bytes were verified; nothing that was started outlives this program.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::Path;

use clap::{CommandFactory, Parser};
use serde_json::{Value, json};

mod arguments;
mod cleanup;
mod comparison;
mod copies;
mod demo;
mod echo_client;
mod echo_server;
mod failure;
mod load;
mod log_trimmer;
mod machine;
mod pattern;
mod process;
mod progress;
mod random;
mod redis;
mod redis_load;
mod redis_server;
mod resp;
mod side;
mod signals;
mod small;
mod statistics;
mod table;
mod wait;

use arguments::{Arguments, Experiment};
use comparison::Comparison;
use failure::{Failure, Result, While};
use load::Load;
use machine::Machine;
use progress::Progress;
use redis_load::Operation;
use side::{Launcher, Side};

/// Exit status of an experiment that failed, in whole or in part.
const STATUS_FAILED: u8 = 1;
/// Exit status of a wrong command line.
const STATUS_USAGE: u8 = 2;

/// Runs `uncopy bench` with the arguments that follow the word `bench`; returns the exit status:
/// 0, 1 when something failed or bytes were wrong, 2 for a wrong command line.
#[must_use]
pub fn main(args: &[OsString]) -> u8 {
    let words = std::iter::once(OsString::from("uncopy bench")).chain(args.iter().cloned());
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            let message = error.to_string();
            eprint!("uncopy: {}", message.strip_prefix("error: ").unwrap_or(&message));
            return STATUS_USAGE;
        }
        Err(help) => {
            let _ = help.print();
            return 0;
        }
    };
    if let Experiment::EchoServer(server) = &arguments.experiment
        && !server.listen.ip().is_loopback()
        && !server.allow_remote
    {
        let address = server.listen;
        eprintln!(
            "uncopy: {address} may be reachable from other machines; add --allow-remote to listen there"
        );
        return STATUS_USAGE;
    }
    match run(&arguments.experiment) {
        Ok(status) => status,
        Err(failure) => {
            eprintln!("uncopy: {failure}");
            STATUS_FAILED
        }
    }
}

/// The definition of the command line, for the manual and completions.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

fn run(experiment: &Experiment) -> Result<u8> {
    match experiment {
        Experiment::EchoServer(server) => {
            let work = echo_server::Work {
                size_bytes: server.size,
                copies: server.copies,
                touched_pages: server.touch,
            };
            echo_server::run(server.listen, work, server.threads).map(|()| 0)
        }
        Experiment::MemcpyLoop(memcpy) => {
            print(&small::memcpy_line(small::memcpy_loop(memcpy.size, memcpy.calls)?))
        }
        Experiment::Copies(arguments) => run_copies(arguments),
        Experiment::Redis(arguments) => run_redis(arguments),
        Experiment::Small(arguments) => {
            let launcher = begin()?;
            let before = Load::read();
            let (rounds, starts) = (arguments.rounds, arguments.starts);
            let comparisons = small::measure(&launcher, rounds, starts, &mut Progress::new())?;
            report(&machine_after(before), &comparisons, arguments.json, || small::render(&comparisons))
        }
        Experiment::Demo(arguments) => run_demo(arguments),
    }
}

/// What every experiment does before it starts anything.
fn begin() -> Result<Launcher> {
    let launcher = Launcher::from_environment()?;
    cleanup::end_all_on_signals()?;
    Ok(launcher)
}

/// The machine, once everything was measured, with how busy it was since `before`.
fn machine_after(before: Option<Load>) -> Machine {
    let mut machine = Machine::describe();
    if let Some(warning) = load::warning(before) {
        machine.warn(warning);
    }
    machine
}

fn run_copies(arguments: &arguments::Copies) -> Result<u8> {
    let launcher = begin()?;
    let mut sides = vec![Side::Plain, Side::Uncopy, Side::HeapOnly];
    sides.truncate(if arguments.no_heap_only { 2 } else { 3 });
    let settings = copies::Settings {
        size_bytes: arguments.size,
        copies: arguments.copies.clone(),
        touched_pages: arguments.touch,
        rounds: arguments.rounds,
        duration: arguments.seconds,
        sides,
    };
    let before = Load::read();
    let comparisons = copies::measure(&launcher, &settings, &mut Progress::new());
    report(&machine_after(before), &comparisons, arguments.json, || copies::render(&comparisons, &settings))
}

fn run_redis(arguments: &arguments::Redis) -> Result<u8> {
    let launcher = begin()?;
    let programs = redis_server::Programs::find()?;
    let sizes = || arguments.sizes.iter().map(|size| *size as u64);
    let settings = redis::Settings {
        work: [Operation::Set, Operation::Get]
            .into_iter()
            .flat_map(|operation| sizes().map(move |size_bytes| (operation, size_bytes)))
            .collect(),
        rounds: arguments.rounds,
        duration: arguments.seconds,
        clients: arguments.clients,
    };
    redis::check_room()?;
    let before = Load::read();
    let comparisons = redis::measure(&launcher, &programs, &settings, &mut Progress::new());
    let mut machine = machine_after(before);
    machine.add("redis", programs.version);
    report(&machine, &comparisons, arguments.json, || redis::render(&comparisons))
}

fn run_demo(arguments: &arguments::Demo) -> Result<u8> {
    let launcher = begin()?;
    // Before the first minute is spent.
    let programs = redis_server::Programs::find()?;
    redis::check_room()?;
    let before = Load::read();
    let mut demo = demo::Demo::run(&launcher, &programs, arguments.quick);
    demo.machine = machine_after(before);
    demo.machine.add("redis", programs.version);
    let comparisons: Vec<Comparison> = demo.comparisons().cloned().collect();
    let status = status(&comparisons);
    let json = || pretty(&demo.to_json());
    match arguments.json.as_deref() {
        Some(path) if path == Path::new("-") => print(&json())?,
        path => {
            if let Some(path) = path {
                std::fs::write(path, json()).doing(format_args!("writing {}", path.display()))?;
            }
            print(&(demo.render() + &notes(&comparisons)))?
        }
    };
    Ok(status)
}

/// Prints the result of one experiment as a table with notes, or as JSON.
fn report(
    machine: &Machine,
    comparisons: &[Comparison],
    as_json: bool,
    render: impl FnOnce() -> String,
) -> Result<u8> {
    let text = if as_json {
        let comparisons: Vec<Value> = comparisons.iter().map(Comparison::to_json).collect();
        pretty(&json!({ "machine": machine.to_json(), "comparisons": comparisons }))
    } else {
        format!("{}\n{}{}", machine.render(), render(), notes(comparisons))
    };
    print(&text)?;
    Ok(status(comparisons))
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// The comparisons' notes, a line each.
fn notes(comparisons: &[Comparison]) -> String {
    let line = |title: &str, note: &str| {
        let note: String = note.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("note: {title}: {note}\n")
    };
    comparisons
        .iter()
        .flat_map(|comparison| comparison.notes().into_iter().map(|note| line(comparison.title(), &note)))
        .collect()
}

fn status(comparisons: &[Comparison]) -> u8 {
    if comparisons.iter().all(Comparison::is_flawless) { 0 } else { STATUS_FAILED }
}

/// Prints to stdout; a reader that went away is not an error.
fn print(text: &str) -> Result<u8> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::while_doing("writing to standard output", &error))
        }
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn main_of(words: &[&str]) -> u8 {
        main(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn wrong_command_lines_end_with_status_2() {
        assert_eq!(main_of(&[]), STATUS_USAGE);
        assert_eq!(main_of(&["nonsense"]), STATUS_USAGE);
        assert_eq!(main_of(&["copies", "--size", "-1"]), STATUS_USAGE);
        let remote = ["echo-server", "--size=1", "--copies=0", "--listen=0.0.0.0:0"];
        assert_eq!(main_of(&remote), STATUS_USAGE);
    }

    #[test]
    fn arguments_need_not_be_utf_8() {
        use std::os::unix::ffi::OsStringExt;
        assert_eq!(main(&[OsString::from_vec(vec![b'c', 0xff])]), STATUS_USAGE);
    }

    #[test]
    fn help_ends_with_status_0() {
        assert_eq!(main_of(&["--help"]), 0);
        assert_eq!(main_of(&["copies", "--help"]), 0);
    }
}
