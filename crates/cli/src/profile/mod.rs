//! `uncopy profile`: runs a program with the hooks recording, or attaches to one that runs under
//! uncopy, and writes a profile. Processes that are not under uncopy are sampled (`attach`).
//!
//! While the program runs, its recordings are read some twenty times a second and replayed at once,
//! so that memory use does not grow with the length of the recording. SIGINT and `--duration` end
//! the recording, not the program. Other signals that a process sends are forwarded to the program.
//!
//! On a terminal the program has its own process group, so that Ctrl-C ends only the recording. A
//! program that reads from the terminal is given it until the program ends: Ctrl-C then goes to the
//! program, and this command waits for its end.

mod attach;
mod collector;
mod directory;
pub mod file;

use crate::args;
use crate::atomic_write;
use crate::costs;
use crate::environment::Environment;
use crate::library;
use crate::live;
use crate::os::child::{self, BlockedSignals, Child, ChildEvent, Ending};
use crate::os::{self, Disposition};
use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE, InvalidValue, Quoted, Reason};
use crate::processes::Selector;
use crate::program;
use crate::run;
use crate::settings::{self, OptionValue};
use clap::ArgMatches;
use collector::Collector;
use directory::Directory;
use file::RequestError;
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use uncopy_core::options::{OPTIONS, Options};
use uncopy_core::policy::trials::FactorReports;
use uncopy_core::recording::request::Request;
use uncopy_core::size;
use uncopy_profile::Profile;
use uncopy_profile::assemble::{Run, assemble};
use uncopy_profile::model::Machine;

/// Interval between reads of the recordings.
const TICK: Duration = Duration::from_millis(50);
/// Interval between updates of the progress line, ticks.
const PROGRESS_TICKS: u32 = 10;
/// Time limit for a process to begin its recording when asked.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a process to end its recording.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// End of a recording that a signal ended, in words.
const ENDED_BY_SIGNAL: &str = "the recording was ended by a signal";
/// Signal that ends the recording and is not forwarded to the program.
const STOP_SIGNAL: Option<i32> = Some(libc::SIGINT);
/// Maximum duration of a recording, seconds.
const MAX_DURATION_SECONDS: f64 = 1e7;

/// Recording options of the command line.
struct RecordingRequest {
    out: PathBuf,
    /// File for the profile in pprof's format, absolute.
    pprof: Option<PathBuf>,
    duration: Option<Duration>,
    given: Vec<OptionValue>,
    min_size_bytes: Option<u64>,
}

/// End of a recording.
enum RecordingEnd {
    /// The program has ended, and with it everything that was recorded.
    Program(Ending),
    /// The recording has ended by request, by time, or with its processes; the reason in words. A
    /// program that was started goes on.
    Requested(String),
}

/// Runs the command line `profile …`.
pub fn main(matches: &ArgMatches, sigpipe: &Disposition) -> u8 {
    let command = args::command(matches);
    let wanted = match Selector::parse_all(matches, args::PID) {
        Ok(wanted) => wanted,
        Err(status) => return status,
    };
    if let Some(status) = attach::main(matches, &wanted) {
        return status;
    }
    let request = match request(matches, &command, &wanted) {
        Ok(request) => request,
        Err(message) => {
            output::print_message(message);
            return EXIT_USAGE;
        }
    };
    if wanted.is_empty() {
        return launch(&command, &request, sigpipe);
    }
    let mut pids = Vec::new();
    for wanted in &wanted {
        match wanted.pids() {
            Ok(found) => pids.extend(found),
            Err(unfound) => {
                output::print_message(unfound);
                return EXIT_FAILURE;
            }
        }
    }
    pids.sort_unstable();
    pids.dedup();
    attach(&pids, &request)
}

fn request(
    matches: &ArgMatches,
    command: &[OsString],
    wanted: &[Selector],
) -> Result<RecordingRequest, RequestError> {
    let duration = duration(matches)?;
    let spec = OPTIONS.iter().find(|spec| spec.flag == args::MIN_SIZE);
    let min_size = matches.get_one::<OsString>(args::MIN_SIZE);
    let given: Vec<OptionValue> = spec.zip(min_size.cloned()).into_iter().collect();
    // The library's own table checks the value.
    settings::resolve(&mut Environment::inherited(), &given, std::process::id())?;
    let name = || match (command.first(), wanted.first()) {
        (Some(program), _) | (None, Some(Selector::Named(program))) => file::default_name(program),
        (None, Some(Selector::Pid(pid))) => file::default_name(&program_name(*pid)),
        (None, None) => file::default_name(OsStr::new("")),
    };
    let out = matches.get_one::<OsString>(args::OUT).cloned().unwrap_or_else(name);
    let min_size_bytes = min_size.and_then(|text| size::parse(text.as_bytes()));
    let out = file::resolve(&out)?;
    let pprof = match matches.get_one::<OsString>(args::PPROF) {
        None => None,
        Some(name) => Some(file::resolve_export("--pprof", name, &out)?),
    };
    Ok(RecordingRequest { out, pprof, duration, given, min_size_bytes })
}

/// Returns the duration that the command line asks for.
fn duration(matches: &ArgMatches) -> Result<Option<Duration>, InvalidValue> {
    let Some(text) = matches.get_one::<OsString>(args::DURATION) else { return Ok(None) };
    let seconds = text.to_str().and_then(|text| text.parse::<f64>().ok());
    let legal = seconds.filter(|seconds| (0.001..=MAX_DURATION_SECONDS).contains(seconds));
    let seconds = legal
        .ok_or_else(|| InvalidValue::new("--duration", text, "a number of seconds from 0.001 to 1e7"))?;
    Ok(Some(Duration::from_secs_f64(seconds)))
}

/// Returns the name of a running program, or `program` if unknown.
fn program_name(pid: u32) -> OsString {
    command_line(pid).into_iter().next().unwrap_or_else(|| "program".into())
}

/// Returns the command line of a running process, or its program where a title has overwritten the
/// command line.
fn command_line(pid: u32) -> Vec<OsString> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes).split(|byte| *byte == 0);
    let words: Vec<OsString> =
        words.filter(|word| !word.is_empty()).map(|word| OsStr::from_bytes(word).to_owned()).collect();
    let is_title = matches!(words.as_slice(), [only] if only.as_bytes().contains(&b' '));
    match std::fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(program) if is_title => vec![program.into_os_string()],
        _ => words,
    }
}

/// Starts the program and records it.
fn launch(command: &[OsString], request: &RecordingRequest, sigpipe: &Disposition) -> u8 {
    let environment = Environment::inherited();
    let Some(name) = command.first() else { return EXIT_USAGE };
    let path = match run::find(name, &environment) {
        Ok(path) => path,
        Err(status) => return status,
    };
    if let Some(why) = library::locate().err().or_else(|| program::why_not_preloadable(&path)) {
        output::print_message(format_args!("cannot record {}: {why}; see 'uncopy doctor'", Quoted(name)));
        return EXIT_FAILURE;
    }
    let directory = match Directory::make(os::effective_user_id()) {
        Ok(directory) => directory,
        Err(error) => {
            output::print_message(format_args!(
                "cannot create a directory in shared memory: {}",
                Reason(&error)
            ));
            return EXIT_FAILURE;
        }
    };
    let signals = BlockedSignals::begin();
    let started = Instant::now();
    let own_group = child::has_terminal();
    let child = signals.fork(own_group, || {
        let prepare = |environment: &mut Environment| {
            environment.set(settings::RECORD, directory.path().as_os_str().as_bytes());
        };
        run::start(
            command,
            &request.given,
            sigpipe,
            &run::SpawnOptions { prepare: &prepare, on_inactive: &|_| (), needs_uffd: false },
        )
    });
    let child = match child {
        Ok(child) => child,
        Err(error) => {
            output::print_message(format_args!("cannot start a process: {}", Reason(&error)));
            return output::EXIT_NOT_EXECUTABLE;
        }
    };
    let mut session = Session {
        directories: vec![(os::effective_user_id(), directory)],
        collector: Collector::default(),
        started,
        request,
        child: Some(child),
        attached: Vec::new(),
        measured: FactorReports::default(),
        warnings: Vec::new(),
        must_stop: false,
        child_ended: None,
        gave_terminal: false,
        seconds: 0.0,
        name: name.clone(),
    };
    let end = session.record();
    let ended = session.child_ended;
    let gave_terminal = session.gave_terminal;
    let status = session.finish(command, &end);
    let status = match end {
        RecordingEnd::Program(ending) => {
            signals.end();
            return if status == EXIT_OK { child::exit_as(ending) } else { status };
        }
        RecordingEnd::Requested(_) if gave_terminal && ended.is_none() => {
            // The program has the terminal, so the user's shell waits for it as for its job.
            let ending = child.wait(STOP_SIGNAL);
            child::reclaim_terminal();
            signals.end();
            return if status == EXIT_OK { child::exit_as(ending) } else { status };
        }
        RecordingEnd::Requested(_) => status,
    };
    if gave_terminal {
        child::reclaim_terminal();
    }
    signals.end();
    if ended.is_none() {
        output::print_message(format_args!(
            "{} goes on running as process {} and is no longer recorded",
            Quoted(name),
            child.pid()
        ));
    }
    status
}

/// Attaches to processes that run under uncopy. Those that cannot be recorded are reported and left
/// out.
fn attach(pids: &[u32], request: &RecordingRequest) -> u8 {
    let signals = BlockedSignals::begin();
    let mut session = Session {
        directories: Vec::new(),
        collector: Collector::default(),
        started: Instant::now(),
        request,
        child: None,
        attached: Vec::new(),
        measured: FactorReports::default(),
        warnings: Vec::new(),
        must_stop: false,
        child_ended: None,
        gave_terminal: false,
        seconds: 0.0,
        name: OsString::new(),
    };
    let mut refused: Vec<String> = Vec::new();
    for pid in pids {
        match session.request_recording(*pid) {
            Ok(()) => session.attached.push(*pid),
            Err(why) => refused.push(why),
        }
    }
    refused.extend(session.wait_for_recordings());
    refused.iter().for_each(output::print_message);
    let Some(first) = session.attached.first() else {
        signals.end();
        return EXIT_FAILURE;
    };
    let command = command_line(*first);
    session.name = program_name(*first);
    session.warnings.extend(refused.into_iter().map(|why| format!("not recorded: {why}")));
    let end = session.record();
    let status = session.finish(&command, &end);
    signals.end();
    status
}

/// State of a recording in progress.
struct Session<'a> {
    /// Directories with the users that own them; a process writes to one of its own user.
    directories: Vec<(u32, Directory)>,
    collector: Collector,
    started: Instant,
    request: &'a RecordingRequest,
    /// Program, if this command started it and it has not ended.
    child: Option<Child>,
    /// Processes that were running already and were asked to record.
    attached: Vec<u32>,
    /// Trial results of the attached process that has the most pairs.
    measured: FactorReports,
    warnings: Vec<String>,
    /// Whether a signal asked for the end before the recording began.
    must_stop: bool,
    child_ended: Option<(Ending, f64)>,
    gave_terminal: bool,
    /// Duration of the recording.
    seconds: f64,
    name: OsString,
}

impl Session<'_> {
    /// Asks a process to record.
    ///
    /// # Errors
    /// A complete message.
    fn request_recording(&mut self, pid: u32) -> Result<(), String> {
        let message = |failure: live::LiveError| failure.to_string();
        let live::ProcessCounters { owner, snapshot } = live::counters(pid).map_err(message)?;
        let measured = snapshot.trials;
        if !self.directories.iter().any(|(user, _)| *user == owner) {
            let directory = Directory::make(owner).map_err(|error| {
                message(live::LiveError::Io { path: live::shared_memory().into(), error })
            })?;
            self.directories.push((owner, directory));
        }
        let directory = self.directories.iter().find(|(user, _)| *user == owner);
        let request = Request::Record {
            directory: directory.map_or(&[], |(_, directory)| directory.path().as_os_str().as_bytes()),
            min_size_bytes: self.request.min_size_bytes.unwrap_or(Options::default().min_size_bytes as u64),
        };
        if !live::send_request(pid, &request.encode().unwrap_or_default()).map_err(message)? {
            return Err(format!(
                "process {pid} has done no work yet that uncopy could record; try again later"
            ));
        }
        let pairs = |standings: &FactorReports| standings.elision().map_or(0, |elision| elision.pairs);
        if self.attached.is_empty() || pairs(&measured) > pairs(&self.measured) {
            self.measured = measured;
        }
        Ok(())
    }

    fn collect(&mut self) -> bool {
        self.collector.collect(self.directories.iter().map(|(_, directory)| directory.opened()))
    }

    /// Waits until every process that was asked has created its file. Those that do not are
    /// dropped; returns a complete message for each.
    fn wait_for_recordings(&mut self) -> Vec<String> {
        let asked = Instant::now();
        let mut has_begun = false;
        loop {
            let started: Vec<u32> = self
                .directories
                .iter()
                .flat_map(|(_, directory)| collector::started_pids(directory.opened()))
                .collect();
            if !has_begun && !started.is_empty() {
                (self.started, has_begun) = (Instant::now(), true);
            }
            let timeout = if self.must_stop { STOP_TIMEOUT } else { START_TIMEOUT };
            if asked.elapsed() >= timeout || self.attached.iter().all(|pid| started.contains(pid)) {
                let late: Vec<u32> =
                    self.attached.iter().copied().filter(|pid| !started.contains(pid)).collect();
                self.attached.retain(|pid| started.contains(pid));
                let seconds = START_TIMEOUT.as_secs();
                return late
                    .iter()
                    .map(|pid| format!("process {pid} did not start recording within {seconds} s"))
                    .collect();
            }
            self.collect();
            if let Some(signal) = child::next_signal(Some(TICK))
                && matches!(signal.number, libc::SIGINT | libc::SIGTERM | libc::SIGHUP)
            {
                self.must_stop = true;
            }
        }
    }

    /// Returns the pids of the processes that record, including those without an event yet.
    fn recording_pids(&self) -> Vec<u32> {
        let idle = self.attached.iter().copied();
        let idle =
            idle.filter(|pid| !self.collector.has_recorded(*pid) && collector::cpu_seconds(*pid).is_some());
        self.collector.recording_pids().into_iter().chain(idle).collect()
    }

    /// Reads what the processes record until the program or the recording ends.
    fn record(&mut self) -> RecordingEnd {
        let mut ticks = 0;
        let shows_progress = std::io::stderr().is_terminal();
        let end = loop {
            let has_more = self.collect();
            if let Some(end) = self.check_end() {
                break end;
            }
            if self.must_stop {
                break RecordingEnd::Requested(ENDED_BY_SIGNAL.to_owned());
            }
            ticks += 1;
            if shows_progress && ticks % PROGRESS_TICKS == 0 {
                self.show_progress();
            }
            let timeout = if has_more { Duration::ZERO } else { TICK };
            let Some(signal) = child::next_signal(Some(timeout)) else { continue };
            let ends = match self.child {
                Some(_) => Some(signal.number) == STOP_SIGNAL,
                None => matches!(signal.number, libc::SIGINT | libc::SIGTERM | libc::SIGHUP),
            };
            if ends {
                break RecordingEnd::Requested(ENDED_BY_SIGNAL.to_owned());
            }
            if signal.number == libc::SIGTSTP && self.child.is_none() {
                child::stop();
            }
            if let Some(child) = self.child {
                child.forward(signal, STOP_SIGNAL);
            }
        };
        if shows_progress {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
        self.seconds = self.started.elapsed().as_secs_f64();
        if let RecordingEnd::Requested(_) = end {
            self.stop();
        }
        end
    }

    /// Returns how the recording ended, if it has.
    fn check_end(&mut self) -> Option<RecordingEnd> {
        if let Some(child) = self.child {
            match child.poll() {
                Some(ChildEvent::Ended(ending, cpu_seconds)) => {
                    self.child_ended = Some((ending, cpu_seconds));
                    self.child = None;
                }
                Some(ChildEvent::Stopped(libc::SIGTTIN | libc::SIGTTOU)) if child.give_terminal() => {
                    self.gave_terminal = true;
                }
                Some(ChildEvent::Stopped(_)) => child::stop(),
                None => {}
            }
        }
        // A server that went into the background is still recorded.
        if self.child.is_none() && self.recording_pids().is_empty() {
            return Some(match self.child_ended {
                Some((ending, _)) => RecordingEnd::Program(ending),
                None if self.attached.len() > 1 => RecordingEnd::Requested("the processes ended".to_owned()),
                None => RecordingEnd::Requested("the process ended".to_owned()),
            });
        }
        let is_time_up = self.request.duration.is_some_and(|duration| self.started.elapsed() >= duration);
        is_time_up.then(|| {
            RecordingEnd::Requested(format!(
                "the recording ended after {:.1} s, as requested",
                self.started.elapsed().as_secs_f64()
            ))
        })
    }

    fn show_progress(&self) {
        let processes = self.collector.recording_pids().len();
        let line = format!(
            "\r\x1b[Kuncopy: recording {}: {:.0} s, {} events, {processes} process{}; Ctrl-C ends the recording",
            Quoted(&self.name),
            self.started.elapsed().as_secs_f64(),
            self.collector.events(),
            if processes == 1 { "" } else { "es" }
        );
        // A lost progress line does not matter.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    /// Asks every process to end its recording, and reads the rest.
    fn stop(&mut self) {
        let end = Request::End.encode().unwrap_or_default();
        let mut asked = self.recording_pids();
        // A process that has ended records nothing more. One that cannot be asked drops events once
        // its ring is full.
        asked.retain(|pid| matches!(live::send_request(*pid, &end), Ok(true)));
        let since = Instant::now();
        while since.elapsed() < STOP_TIMEOUT {
            self.collect();
            let recording = self.collector.recording_pids();
            if !asked.iter().any(|pid| recording.contains(pid)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Assembles the profile, writes it and shows it. Returns the exit status, for use if the
    /// program gives none.
    fn finish(self, command: &[OsString], end: &RecordingEnd) -> u8 {
        let mut warnings = self.warnings;
        if self.collector.unrecorded_processes > 0 {
            let more = self.collector.unrecorded_processes;
            warnings.push(format!("{more} further processes were not recorded: too many at once"));
        }
        let mut processes = self.collector.finish();
        drop(self.directories);
        if let ([only], Some((_, cpu_seconds))) = (processes.as_mut_slice(), self.child_ended) {
            // More exact than the last sample before the process ended.
            only.cpu_seconds = cpu_seconds;
        }
        if processes.is_empty() && self.attached.is_empty() {
            warnings.push(
                "no process was recorded: the program ended at once, or it did not load uncopy".to_owned(),
            );
        }
        let default_bytes = Options::default().min_size_bytes as u64;
        let run = Run {
            uncopy: env!("CARGO_PKG_VERSION").to_owned(),
            command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            ending: match end {
                RecordingEnd::Program(Ending::Exited(status)) => {
                    format!("the program exited with status {status}")
                }
                RecordingEnd::Program(Ending::Killed(signal)) => {
                    format!("the program was ended by signal {signal}")
                }
                RecordingEnd::Requested(why) => why.clone(),
            },
            machine: machine(),
            seconds: self.seconds,
            min_size_bytes: processes
                .first()
                .map_or(self.request.min_size_bytes.unwrap_or(default_bytes), |process| {
                    process.recording.min_size_bytes
                }),
            measured: self.measured,
            warnings,
        };
        let profile = assemble(run, &processes);
        write(&profile, self.request)
    }
}

/// Writes the profile to its files and the report to standard output.
fn write(profile: &Profile, request: &RecordingRequest) -> u8 {
    let json = profile.to_json();
    let mut files = vec![(&request.out, json.into_bytes())];
    files.extend(request.pprof.as_ref().map(|file| (file, uncopy_profile::pprof::encode(profile))));
    for (file, bytes) in &files {
        if let Err(error) = atomic_write::write(file, bytes) {
            let name = Quoted(file.as_os_str());
            output::print_message(format_args!("cannot write {name}: {}", Reason(&error)));
            return EXIT_FAILURE;
        }
    }
    let name = relative_name(&request.out);
    let text = uncopy_profile::text::report(profile, &name, output::columns());
    let status = output::print(text.as_bytes(), EXIT_OK);
    for (file, _) in &files {
        output::print_message(format_args!("wrote {}", Quoted(file.as_os_str())));
    }
    status
}

/// Returns a file's name, relative to the current directory where possible.
fn relative_name(path: &std::path::Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(&here).unwrap_or(path).to_string_lossy().into_owned()
}

fn machine() -> Machine {
    let processors = std::thread::available_parallelism().map_or(0, |count| count.get());
    Machine {
        kernel: os::kernel().0,
        processor: costs::processor(),
        processors: u32::try_from(processors).unwrap_or(0),
    }
}
