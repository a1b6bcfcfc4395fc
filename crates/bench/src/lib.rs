//! The experiments behind `uncopy bench`.
//!
//! ```text
//!   arguments     the command line
//!   demo          echo server and Redis in one table
//!   copies, sizes, threads, touched, faults, stores
//!                 points for echo: echo_server ⇄ echo_client, messages of pattern, checksum
//!   recording     echo, recorded as uncopy profile has it
//!   tracking      copies that replace a view, in this program itself
//!   transmit      ways to send bodies, in this program itself; mutations: the first write to a page
//!   redis         redis_server (log_trimmer) ⇄ redis_load (redis-benchmark), values read back through resp
//!   ycsb, memory  redis_server ⇄ this program's own clients over resp
//!   cache         cache_server (uncopy-cached) ⇄ cache_client, sending by reference and copying
//!   files         uncopy-files ⇄ files_client, by each way of sending a file
//!   cycles        what traffic, or any command, takes of the machine: load
//!   lab           read and send, sendfile, uncopy; both send files by sending
//!   small         a short memcpy, the start of a program; small_servers: packaged servers
//!   traffic       load by own clients, and the sample that comes of it
//!   comparison    samples of alternating sides, ratios; rounds: how many; statistics, machine, load
//!   report        what comes of an experiment: figures in a table, JSON, plot
//!   results       all experiments, beside what the papers say, as pages
//!   side          what runs under uncopy and what plain
//!   network       what lies between clients and servers
//!   apps          packaged applications, each a case of one harness
//!   clients       protocols of stores and brokers, every byte compared
//!   processors    the servers' and the clients'
//!   process       servers and helpers; descendants: what came of them; cleanup and signals end them whatever happens
//! ```
//!
//! Invariants: sides are compared only within one run, in alternating order; no ratio is given
//! unless both sides' bytes were verified; nothing that was started outlives this program.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Once;

use clap::{CommandFactory, Parser};
use serde_json::Value;

mod apps;
mod clients;
mod experiments;
mod kit;
mod results;
mod servers;

use clients::redis_benchmark::Operation;
use experiments::echo::point::{self, Schedule};
use experiments::echo::{checksum, copies, faults, recording, sizes, threads, touched};
use experiments::load as cycles;
use experiments::redis::ycsb;
use experiments::small::servers as small_servers;
use experiments::transmit::mutations;
use experiments::{cache, demo, files, lab, memory, redis, small, tracking, transmit};
use kit::arguments::{self, Arguments, Experiment, Form, Repeat, SmallRow, Workload};
use kit::comparison::Comparison;
use kit::failure::{Failure, Result, While};
use kit::figures;
use kit::host::Machine;
use kit::load::{self, Load};
use kit::network::{self, Network};
use kit::processes::cleanup;
use kit::progress::Progress;
use kit::report::{Report, notes};
use kit::rounds::Rounds;
use kit::side::{Launcher, Side};
use servers::echo::{self as echo_server, Reply, Work};
use servers::redis as redis_server;
use servers::sending;

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
    if arguments.experiment.is_server() && arguments.network != Network::Loopback {
        eprintln!("uncopy: --network is for experiments, which start servers; this is a server itself");
        return STATUS_USAGE;
    }
    let done = network::set_up(arguments.network).and_then(|()| perform(&arguments.experiment));
    match done {
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

/// Does what the command line asks for, and prints what comes of it.
fn perform(experiment: &Experiment) -> Result<u8> {
    match run(experiment)? {
        Outcome::Status(status) => Ok(status),
        Outcome::Measured(measured) => {
            print(&measured.report.present(measured.machine, &measured.form)?)?;
            Ok(if measured.report.is_flawless() { 0 } else { STATUS_FAILED })
        }
    }
}

/// What came of a command.
enum Outcome {
    /// It has printed what it has to say; its exit status.
    Status(u8),
    /// Figures.
    Measured(Box<Measured>),
}

/// The figures of an experiment, not yet shown.
struct Measured {
    report: Report,
    machine: Machine,
    form: Form,
}

fn run(experiment: &Experiment) -> Result<Outcome> {
    match experiment {
        Experiment::EchoServer(server) => {
            let reply = if server.checksum { Reply::Checksum } else { Reply::Echo };
            let work = Work {
                size_bytes: server.size,
                copies: server.copies,
                touched_pages: server.touch,
                order: server.order,
                read_bytes: server.read,
                reply,
            };
            echo_server::run(server.listen, work, server.threads).map(|()| Outcome::Status(0))
        }
        Experiment::MemcpyLoop(memcpy) => {
            print(&small::memcpy_line(small::memcpy_loop(memcpy.size, memcpy.calls)?)).map(Outcome::Status)
        }
        Experiment::Demo(arguments) => run_demo(arguments).map(Outcome::Status),
        Experiment::Report(arguments) => results::run(arguments).map(Outcome::Status),
        Experiment::Copies(arguments) => measured(&arguments.form, |launcher, progress| {
            let points = copies::points(arguments.size, &arguments.copies, arguments.touch);
            let comparisons = point::measure(launcher, &points, &schedule(&arguments.repeat), progress);
            let (text, plot) = (copies::render(&comparisons), copies::plot(&comparisons));
            Ok(Report::new(comparisons, text, plot))
        }),
        Experiment::Sizes(arguments) => measured(&arguments.form, |launcher, progress| {
            let points = sizes::points(&arguments.sizes, arguments.copies);
            let comparisons = point::measure(launcher, &points, &schedule(&arguments.repeat), progress);
            let (text, plot) = (sizes::render(&comparisons), sizes::plot(&comparisons));
            Ok(Report::new(comparisons, text, plot))
        }),
        Experiment::Threads(arguments) => measured(&arguments.form, |launcher, progress| {
            let points = threads::points(arguments.size, arguments.copies, &arguments.threads);
            let comparisons = point::measure(launcher, &points, &schedule(&arguments.repeat), progress);
            let (text, plot) = (threads::render(&comparisons), threads::plot(&comparisons));
            let findings = threads::findings(&comparisons);
            Ok(Report { findings, ..Report::new(comparisons, text, plot) })
        }),
        Experiment::Touched(arguments) => measured(&arguments.form, |launcher, progress| {
            let points = touched::points(&arguments.sizes, &arguments.copies, &arguments.shares);
            let comparisons = point::measure(launcher, &points, &schedule(&arguments.repeat), progress);
            let (text, plot) = (touched::render(&comparisons), touched::plot(&comparisons));
            let findings = touched::findings(&comparisons);
            Ok(Report { findings, ..Report::new(comparisons, text, plot) })
        }),
        Experiment::Faults(arguments) => measured(&arguments.form, |launcher, progress| {
            let settings = faults::Settings {
                size_bytes: arguments.size,
                copies: arguments.copies,
                pages: arguments.pages.clone(),
                orders: arguments.orders.clone(),
                threads: arguments.threads.clone(),
            };
            let sides = vec![Side::Plain, Side::Uncopy, Side::Always];
            let schedule = Schedule { rounds: arguments.rounds, duration: arguments.seconds, sides };
            let comparisons = point::measure(launcher, &faults::points(&settings), &schedule, progress);
            let (text, plot) = (faults::render(&comparisons), faults::plot(&comparisons, &settings));
            Ok(Report::new(comparisons, text, plot))
        }),
        Experiment::Checksum(arguments) => measured(&arguments.form, |launcher, progress| {
            let points = checksum::points(&arguments.sizes, arguments.copies);
            let comparisons = point::measure(launcher, &points, &schedule(&arguments.repeat), progress);
            let (text, plot) = (checksum::render(&comparisons), checksum::plot(&comparisons));
            Ok(Report::new(comparisons, text, plot))
        }),
        Experiment::ViewLoop(views) => {
            tracking::view_loop(views.views, u64::from(views.calls)).map(|()| Outcome::Status(0))
        }
        Experiment::Tracking(arguments) => measured(&arguments.form, |launcher, progress| {
            let (calls, rounds) = (u64::from(arguments.calls), arguments.rounds);
            let comparisons = tracking::measure(launcher, &arguments.views, calls, rounds, progress);
            let (text, plot) = (tracking::render(&comparisons), tracking::plot(&comparisons));
            Ok(Report::new(comparisons, text, plot))
        }),
        Experiment::Transmit(arguments) => measured(&arguments.form, |_, progress| {
            let (sockets, sizes) = (&arguments.sockets, &arguments.sizes);
            let mut comparisons = transmit::measure(
                sockets,
                sizes,
                arguments.set,
                arguments.rounds,
                arguments.seconds,
                progress,
            );
            comparisons.push(mutations::measure(arguments.rounds, progress));
            let (text, plot) = (transmit::render(&comparisons), transmit::plot(&comparisons));
            Ok(Report::new(comparisons, text, plot))
        }),
        Experiment::Recording(arguments) => measured(&arguments.form, |launcher, progress| {
            let points = recording::points(arguments.size, &arguments.copies);
            let sides = recording::SIDES.to_vec();
            let rounds = Rounds::exactly(arguments.rounds);
            let schedule = Schedule { rounds, duration: arguments.seconds, sides };
            let comparisons = point::measure(launcher, &points, &schedule, progress);
            let (text, plot) = (recording::render(&comparisons), copies::plot(&comparisons));
            Ok(Report::new(comparisons, text, plot))
        }),
        Experiment::Redis(arguments) => {
            measured(&arguments.form, |launcher, progress| run_redis(arguments, launcher, progress))
        }
        Experiment::Cache(arguments) => {
            measured(&arguments.form, |launcher, progress| run_cache(arguments, launcher, progress))
        }
        Experiment::Files(arguments) => {
            measured(&arguments.form, |launcher, progress| run_files(arguments, launcher, progress))
        }
        Experiment::Apps(arguments) => run_apps(arguments),
        Experiment::SendFiles(arguments) => sending::server::run(arguments).map(|()| Outcome::Status(0)),
        Experiment::Soak(arguments) => cycles::soak::run(arguments).map(|()| Outcome::Status(0)),
        Experiment::Load(arguments) if !arguments.command.is_empty() => {
            run_command_load(arguments).map(Outcome::Status)
        }
        Experiment::Load(arguments) => measured(&arguments.form, |launcher, progress| {
            let measured = cycles::traffic::measure(launcher, &arguments.settings(), progress)?;
            let (text, plot) = (cycles::traffic::render(&measured), cycles::traffic::plot(&measured));
            let findings = cycles::traffic::findings(&measured);
            Ok(Report { findings, ..Report::new(measured.comparisons, text, plot) })
        }),
        Experiment::Lab(arguments) => measured(&arguments.form, |launcher, progress| {
            let (size, chunk) = (arguments.size, arguments.chunk);
            let comparison = lab::measure(launcher, size, chunk, arguments.rounds, progress)?;
            let (text, plot) = (lab::render(&comparison), lab::plot(&comparison));
            let findings = lab::findings(&comparison);
            Ok(Report { findings, ..Report::new(vec![comparison], text, plot) })
        }),
        Experiment::Small(arguments) => {
            measured(&arguments.form, |launcher, progress| run_small(arguments, launcher, progress))
        }
        Experiment::Memory(arguments) => {
            measured(&arguments.form, |launcher, progress| run_memory(arguments, launcher, progress))
        }
    }
}

/// Does what every experiment needs before and after `experiment`.
fn measured(
    form: &Form,
    experiment: impl FnOnce(&Launcher, &mut Progress) -> Result<Report>,
) -> Result<Outcome> {
    let launcher = begin()?;
    let before = Load::read();
    let mut progress = Progress::new();
    let report = experiment(&launcher, &mut progress)?;
    let measured = Measured { report, machine: machine_after(before), form: form.clone() };
    Ok(Outcome::Measured(Box::new(measured)))
}

fn schedule(repeat: &Repeat) -> Schedule {
    Schedule { rounds: repeat.rounds, duration: repeat.seconds, sides: repeat.all_sides() }
}

/// What every experiment does before it starts anything.
fn begin() -> Result<Launcher> {
    static WATCHED: Once = Once::new();
    let launcher = Launcher::from_environment()?;
    let mut watched = Ok(());
    WATCHED.call_once(|| watched = cleanup::end_all_on_signals());
    watched.map(|()| launcher)
}

/// The machine, once everything was measured, with how busy it was since `before`.
fn machine_after(before: Option<Load>) -> Machine {
    let mut machine = Machine::describe();
    if let Some(warning) = load::warning(before) {
        machine.warn(warning);
    }
    machine
}

fn run_apps(arguments: &experiments::apps::arguments::Apps) -> Result<Outcome> {
    let cases = arguments.cases();
    if arguments.list {
        return print(&experiments::apps::measure::list(&cases)).map(Outcome::Status);
    }
    if let Some(directory) = &arguments.profile {
        let launcher = begin()?.profiling_from(arguments.min_size);
        let mut progress = Progress::new();
        let told = experiments::apps::measure::profile(
            &launcher,
            &cases,
            directory,
            arguments.seconds,
            &mut progress,
        )?;
        drop(progress);
        return print(&told).map(Outcome::Status);
    }
    measured(&arguments.form, |launcher, progress| {
        let (effort, schedule) = (arguments.effort(), arguments.schedule());
        Ok(experiments::apps::measure::measure(launcher, &cases, effort, &schedule, progress))
    })
}

/// Measures a command. What is told of it goes to standard error: standard output is the command's.
fn run_command_load(arguments: &cycles::traffic::Arguments) -> Result<u8> {
    if network::current() != Network::Loopback || arguments.form.svg.is_some() {
        return Err(Failure::new("--network and --svg are for experiments, not for a command of yours"));
    }
    let launcher = begin()?;
    let (words, lines, duration) = (&arguments.command, arguments.lines, arguments.seconds);
    let taken = cycles::command::measure(&launcher, words, lines, duration)?;
    let machine = Machine::describe();
    if arguments.form.json {
        eprintln!("{:#}", taken.to_json(&machine));
    } else {
        eprint!("{}", taken.render(&machine));
    }
    Ok(taken.exit_status())
}

fn run_redis(arguments: &arguments::Redis, launcher: &Launcher, progress: &mut Progress) -> Result<Report> {
    let programs = redis_server::Programs::find()?;
    redis::check_room()?;
    let mut schedule = schedule(&arguments.repeat);
    // Redis has no version without copies.
    schedule.sides.retain(|side| *side != Side::Limit);
    let mut comparisons = Vec::new();
    for workload in &arguments.workload {
        let operation = match workload {
            Workload::Set => Operation::Set,
            Workload::Get => Operation::Get,
            Workload::YcsbA => {
                let (sizes, clients) = (&arguments.sizes, arguments.clients);
                comparisons.extend(ycsb::measure(launcher, &programs, sizes, clients, &schedule, progress));
                continue;
            }
        };
        let settings = redis::Settings {
            work: arguments.sizes.iter().map(|size_bytes| (operation, *size_bytes as u64)).collect(),
            rounds: schedule.rounds,
            duration: schedule.duration,
            clients: arguments.clients,
            sides: schedule.sides.clone(),
        };
        comparisons.extend(redis::measure(launcher, &programs, &settings, progress));
    }
    let (text, plot) = (redis::render(&comparisons), redis::plot(&comparisons));
    let versions = vec![("redis", programs.version)];
    Ok(Report { versions, ..Report::new(comparisons, text, plot) })
}

fn run_cache(arguments: &arguments::Cache, launcher: &Launcher, progress: &mut Progress) -> Result<Report> {
    let settings = cache::Settings {
        sizes_bytes: arguments.sizes.clone(),
        loads: arguments.only.clone(),
        threads: arguments.threads.clone(),
        clients: arguments.clients,
        keys: arguments.keys,
        transmit: arguments.transmit.clone(),
        rounds: arguments.rounds,
        duration: arguments.seconds,
    };
    let comparisons = cache::measure(launcher, &settings, progress)?;
    let (text, plot) = (cache::render(&comparisons), cache::plot(&comparisons));
    let findings = cache::findings(&comparisons);
    Ok(Report { findings, ..Report::new(comparisons, text, plot) })
}

fn run_files(arguments: &arguments::Files, launcher: &Launcher, progress: &mut Progress) -> Result<Report> {
    let way = |name: &String| files::WAYS.iter().copied().find(|known| known == name);
    let settings = files::Settings {
        sizes_bytes: arguments.sizes.clone(),
        ways: arguments.ways.iter().filter_map(way).collect(),
        uncopy: arguments.ways.iter().any(|name| name == Side::Uncopy.name()),
        threads: arguments.threads.clone(),
        clients: arguments.clients,
        rounds: arguments.rounds,
        duration: arguments.seconds,
    };
    let comparisons = files::measure(launcher, &settings, progress)?;
    let (text, plot) = (files::render(&comparisons), files::plot(&comparisons));
    let findings = files::findings(&comparisons);
    Ok(Report { findings, ..Report::new(comparisons, text, plot) })
}

fn run_small(arguments: &arguments::Small, launcher: &Launcher, progress: &mut Progress) -> Result<Report> {
    let sides = vec![Side::Plain, Side::Uncopy];
    let schedule = Schedule { rounds: arguments.rounds, duration: arguments.seconds, sides };
    let calls = if arguments.form.quick { small::QUICK_CALLS } else { small::CALLS };
    let (mut own, mut servers) = (Vec::new(), Vec::new());
    for row in &arguments.only {
        let mut server = |kind| {
            servers.push(small_servers::measure(launcher, kind, arguments.clients, &schedule, progress));
        };
        match row {
            SmallRow::Memcached => server(small_servers::Kind::Memcached),
            SmallRow::Nginx => server(small_servers::Kind::Nginx),
            SmallRow::Memcpy => own.push(small::measure_memcpy(launcher, schedule.rounds, calls, progress)),
            SmallRow::Start => own.push(small::measure_start(launcher, arguments.starts, progress)?),
            SmallRow::Redis => {
                let work = [Operation::Set, Operation::Get].map(|operation| (operation, 64)).to_vec();
                servers.extend(small_redis(arguments, launcher, &schedule, work, progress));
            }
        }
    }
    let mut text = String::new();
    if !own.is_empty() {
        text = small::render(&own) + "\n";
    }
    if !servers.is_empty() {
        text += &format!("{}\n{}", figures::table(&servers, &[]), figures::LEGEND);
    }
    own.extend(servers);
    let plot = small::plot(&own);
    Ok(Report::new(own, text, plot))
}

/// Redis's rows of `small`; left out where it is not installed.
fn small_redis(
    arguments: &arguments::Small,
    launcher: &Launcher,
    schedule: &Schedule,
    work: Vec<(Operation, u64)>,
    progress: &mut Progress,
) -> Vec<Comparison> {
    let settings = redis::Settings {
        work,
        rounds: schedule.rounds,
        duration: schedule.duration,
        clients: arguments.clients,
        sides: schedule.sides.clone(),
    };
    match redis_server::Programs::find() {
        Ok(programs) => redis::measure(launcher, &programs, &settings, progress),
        Err(missing) => {
            let mut comparison = Comparison::new("redis 64 B", 64, &settings.sides);
            comparison.skip(missing.to_string());
            vec![comparison]
        }
    }
}

fn run_memory(arguments: &arguments::Memory, launcher: &Launcher, progress: &mut Progress) -> Result<Report> {
    let programs = redis_server::Programs::find()?;
    redis::check_room()?;
    if arguments.smallest > arguments.largest || arguments.smallest < ycsb::STAMP_BYTES {
        return Err(Failure::new(format!(
            "--smallest is {}; it must be from {} to --largest, which is {}",
            arguments.smallest,
            ycsb::STAMP_BYTES,
            arguments.largest
        )));
    }
    let settings = memory::Settings {
        sizes_bytes: (arguments.smallest, arguments.largest),
        keys: arguments.keys as u64,
        duration: arguments.minutes,
        interval: (arguments.minutes / 200).max(std::time::Duration::from_millis(100)),
        sides: vec![Side::Plain, Side::Uncopy, Side::HeapOnly],
    };
    let (comparison, moments) = memory::measure(launcher, &programs, &settings, progress);
    let (text, plot) = (memory::render(&comparison, &moments), memory::plot(&comparison, &moments));
    let findings = memory::findings(&comparison, &moments);
    let versions = vec![("redis", programs.version)];
    Ok(Report { findings, versions, ..Report::new(vec![comparison], text, plot) })
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

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
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
