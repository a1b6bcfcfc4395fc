//! `uncopy profile`: runs a program with the hooks recording, or attaches to one that runs under uncopy, and writes
//! what was found.
//!
//! While the program runs, its recordings are taken in some twenty times a second and replayed at once: what is kept
//! in memory does not grow with the length of the recording. SIGINT and `--duration` end the recording, not the
//! program; every other signal that somebody sends goes to the program.
//!
//! On a terminal the program has a process group of its own, so that Ctrl-C ends only the recording. One that reads
//! from the terminal is given it, and has it until it ends: Ctrl-C is the program's then, and this command waits for it.

mod collector;
mod directory;
pub mod out;

use crate::atomic_write;
use crate::costs;
use crate::environment::Environment;
use crate::library;
use crate::line;
use crate::live;
use crate::os::child::{self, Change, Child, Ending, Watch};
use crate::os::{self, Disposition};
use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE, Illegal, Quoted, Reason};
use crate::processes::Wanted;
use crate::program;
use crate::run;
use crate::settings::{self, Given};
use clap::ArgMatches;
use collector::Collector;
use directory::Directory;
use out::Refused;
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use uncopy_core::options::{OPTIONS, Options};
use uncopy_core::policy::trials::Standings;
use uncopy_core::recording::request::Request;
use uncopy_core::size;
use uncopy_profile::Profile;
use uncopy_profile::assemble::{Run, assemble};
use uncopy_profile::model::Machine;

/// How often recordings are taken in.
const TICK: Duration = Duration::from_millis(50);
/// How often progress is shown, ticks.
const PROGRESS_TICKS: u32 = 10;
/// How long a process has to begin its recording when it is asked.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long it has to end it.
const LAST_TIMEOUT: Duration = Duration::from_secs(1);
/// How a recording ended that was told to.
const BY_SIGNAL: &str = "the recording was ended by a signal";
/// The signal that ends the recording, and is not passed on to the program.
const OWN_SIGNAL: Option<i32> = Some(libc::SIGINT);
/// Longest recording that can be asked for, seconds.
const MAX_DURATION_SECONDS: f64 = 1e7;

/// What the command line says.
struct RecordingRequest {
    out: PathBuf,
    duration: Option<Duration>,
    given: Vec<Given>,
    min_size_bytes: Option<u64>,
}

/// How a recording ended.
enum Outcome {
    /// The program ended, and with it everything that was recorded.
    Program(Ending),
    /// Somebody asked for it, or its time was up; in words. The program goes on.
    Asked(String),
}

/// Runs the command line `profile …`.
pub fn main(matches: &ArgMatches, sigpipe: &Disposition) -> u8 {
    let command = line::command(matches);
    let wanted = match Wanted::all_of(matches, line::PID) {
        Ok(wanted) => wanted,
        Err(status) => return status,
    };
    let request = match request(matches, &command, &wanted) {
        Ok(request) => request,
        Err(message) => {
            output::complain(message);
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
                output::complain(unfound);
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
    wanted: &[Wanted],
) -> Result<RecordingRequest, Refused> {
    let duration = match matches.get_one::<OsString>(line::DURATION) {
        None => None,
        Some(text) => {
            let seconds = text.to_str().and_then(|text| text.parse::<f64>().ok());
            let legal = seconds.filter(|seconds| (0.001..=MAX_DURATION_SECONDS).contains(seconds));
            let seconds = legal
                .ok_or_else(|| Illegal::new("--duration", text, "a number of seconds from 0.001 to 1e7"))?;
            Some(Duration::from_secs_f64(seconds))
        }
    };
    let spec = OPTIONS.iter().find(|spec| spec.flag == line::MIN_SIZE);
    let min_size = matches.get_one::<OsString>(line::MIN_SIZE);
    let given: Vec<Given> = spec.zip(min_size.cloned()).into_iter().collect();
    // Checked by the table that the library uses.
    settings::settle(&mut Environment::inherited(), &given, std::process::id())?;
    let name = || match (command.first(), wanted.first()) {
        (Some(program), _) | (None, Some(Wanted::Named(program))) => out::default_name(program),
        (None, Some(Wanted::Pid(pid))) => out::default_name(&name_of(*pid)),
        (None, None) => out::default_name(OsStr::new("")),
    };
    let out = matches.get_one::<OsString>(line::OUT).cloned().unwrap_or_else(name);
    let min_size_bytes = min_size.and_then(|text| size::parse(text.as_bytes()));
    Ok(RecordingRequest { out: out::settle(&out)?, duration, given, min_size_bytes })
}

/// The name of a running program, `program` if it cannot be had.
fn name_of(pid: u32) -> OsString {
    command_of(pid).into_iter().next().unwrap_or_else(|| "program".into())
}

/// The command line of a running process; of one that has written a title over it, its program.
fn command_of(pid: u32) -> Vec<OsString> {
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
    if let Some(why) = library::locate().err().or_else(|| program::why_out_of_reach(&path)) {
        output::complain(format_args!("cannot record {}: {why}; see 'uncopy doctor'", Quoted(name)));
        return EXIT_FAILURE;
    }
    let directory = match Directory::make(os::effective_user_id()) {
        Ok(directory) => directory,
        Err(error) => {
            output::complain(format_args!("cannot make a directory in shared memory: {}", Reason(&error)));
            return EXIT_FAILURE;
        }
    };
    let watch = Watch::begin();
    let started = Instant::now();
    let own_group = child::has_terminal();
    let child = watch.start(own_group, || {
        let prepare = |environment: &mut Environment| {
            environment.set(settings::RECORD, directory.path().as_os_str().as_bytes());
        };
        run::start(
            command,
            &request.given,
            sigpipe,
            &run::SpawnOptions { prepare: &prepare, plain: &|_| (), needs_uffd: false },
        )
    });
    let child = match child {
        Ok(child) => child,
        Err(error) => {
            output::complain(format_args!("cannot start a process: {}", Reason(&error)));
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
        measured: Standings::default(),
        warnings: Vec::new(),
        is_asked_to_end: false,
        child_ended: None,
        gave_terminal: false,
        seconds: 0.0,
        name: name.clone(),
    };
    let outcome = session.record();
    let ended = session.child_ended;
    let gave_terminal = session.gave_terminal;
    let status = session.finish(command, &outcome);
    let status = match outcome {
        Outcome::Program(ending) => {
            watch.end();
            return if status == EXIT_OK { child::end_like(ending) } else { status };
        }
        Outcome::Asked(_) if gave_terminal && ended.is_none() => {
            // The program has the terminal: it is the job that whoever typed this waits for.
            let ending = child.wait(OWN_SIGNAL);
            child::take_terminal();
            watch.end();
            return if status == EXIT_OK { child::end_like(ending) } else { status };
        }
        Outcome::Asked(_) => status,
    };
    if gave_terminal {
        child::take_terminal();
    }
    watch.end();
    if ended.is_none() {
        output::complain(format_args!(
            "{} goes on running as process {}, recorded no more",
            Quoted(name),
            child.pid()
        ));
    }
    status
}

/// Attaches to processes that run under uncopy. Of several, those that cannot be recorded are told of and left out.
fn attach(pids: &[u32], request: &RecordingRequest) -> u8 {
    let watch = Watch::begin();
    let mut session = Session {
        directories: Vec::new(),
        collector: Collector::default(),
        started: Instant::now(),
        request,
        child: None,
        attached: Vec::new(),
        measured: Standings::default(),
        warnings: Vec::new(),
        is_asked_to_end: false,
        child_ended: None,
        gave_terminal: false,
        seconds: 0.0,
        name: OsString::new(),
    };
    let mut refused: Vec<String> = Vec::new();
    for pid in pids {
        match session.ask(*pid) {
            Ok(()) => session.attached.push(*pid),
            Err(why) => refused.push(why),
        }
    }
    refused.extend(session.wait_for_beginning());
    refused.iter().for_each(output::complain);
    let Some(first) = session.attached.first() else {
        watch.end();
        return EXIT_FAILURE;
    };
    let command = command_of(*first);
    session.name = name_of(*first);
    session.warnings.extend(refused.into_iter().map(|why| format!("not recorded: {why}")));
    let outcome = session.record();
    let status = session.finish(&command, &outcome);
    watch.end();
    status
}

/// A recording that goes on.
struct Session<'a> {
    /// With the user that each belongs to: a process writes to one of its own user.
    directories: Vec<(u32, Directory)>,
    collector: Collector,
    started: Instant,
    request: &'a RecordingRequest,
    /// The program, if this command started it and it has not ended.
    child: Option<Child>,
    /// The processes that ran already and were asked to record.
    attached: Vec<u32>,
    /// What the one among them had measured by itself that has measured most.
    measured: Standings,
    warnings: Vec<String>,
    /// Whether it was told to end before it began.
    is_asked_to_end: bool,
    child_ended: Option<(Ending, f64)>,
    gave_terminal: bool,
    /// How long it took.
    seconds: f64,
    name: OsString,
}

impl Session<'_> {
    /// Asks a process to record.
    ///
    /// # Errors
    /// Why it cannot be; a whole message.
    fn ask(&mut self, pid: u32) -> Result<(), String> {
        let told = |failure: live::Failure| failure.to_string();
        let live::Counted { owner, snapshot } = live::counters(pid).map_err(told)?;
        let measured = snapshot.trials;
        if !self.directories.iter().any(|(user, _)| *user == owner) {
            let directory = Directory::make(owner)
                .map_err(|error| told(live::Failure::Io { path: live::shared_memory().into(), error }))?;
            self.directories.push((owner, directory));
        }
        let directory = self.directories.iter().find(|(user, _)| *user == owner);
        let request = Request::Record {
            directory: directory.map_or(&[], |(_, directory)| directory.path().as_os_str().as_bytes()),
            min_size_bytes: self.request.min_size_bytes.unwrap_or(Options::default().min_size_bytes as u64),
        };
        if !live::command(pid, &request.encode().unwrap_or_default()).map_err(told)? {
            return Err(format!(
                "process {pid} has done no work yet that uncopy could record; try again later"
            ));
        }
        let pairs = |standings: &Standings| standings.elision().map_or(0, |elision| elision.pairs);
        if self.attached.is_empty() || pairs(&measured) > pairs(&self.measured) {
            self.measured = measured;
        }
        Ok(())
    }

    fn collect(&mut self) -> bool {
        self.collector.collect(self.directories.iter().map(|(_, directory)| directory.opened()))
    }

    /// Waits until every process that was asked has made its file, which it writes to once it moves anything. Those that do
    /// not are not recorded; why, in whole messages.
    fn wait_for_beginning(&mut self) -> Vec<String> {
        let asked = Instant::now();
        let mut has_begun = false;
        loop {
            let begun: Vec<u32> = self
                .directories
                .iter()
                .flat_map(|(_, directory)| collector::begun(directory.opened()))
                .collect();
            if !has_begun && !begun.is_empty() {
                (self.started, has_begun) = (Instant::now(), true);
            }
            let timeout = if self.is_asked_to_end { LAST_TIMEOUT } else { TIMEOUT };
            if asked.elapsed() >= timeout || self.attached.iter().all(|pid| begun.contains(pid)) {
                let late: Vec<u32> =
                    self.attached.iter().copied().filter(|pid| !begun.contains(pid)).collect();
                self.attached.retain(|pid| begun.contains(pid));
                let seconds = TIMEOUT.as_secs();
                return late
                    .iter()
                    .map(|pid| format!("process {pid} did not begin to record within {seconds} s"))
                    .collect();
            }
            self.collect();
            if let Some(signal) = child::next_signal(Some(TICK))
                && matches!(signal.number, libc::SIGINT | libc::SIGTERM | libc::SIGHUP)
            {
                self.is_asked_to_end = true;
            }
        }
    }

    /// Pids of the processes that record, also of those that have moved nothing yet.
    fn recording(&self) -> Vec<u32> {
        let idle = self.attached.iter().copied();
        let idle = idle.filter(|pid| !self.collector.has(*pid) && collector::cpu_seconds(*pid).is_some());
        self.collector.recording().into_iter().chain(idle).collect()
    }

    /// Takes in what the processes record until the program has ended or the recording is to.
    fn record(&mut self) -> Outcome {
        let mut ticks = 0;
        let shows_progress = std::io::stderr().is_terminal();
        let outcome = loop {
            let has_more = self.collect();
            if let Some(outcome) = self.outcome() {
                break outcome;
            }
            if self.is_asked_to_end {
                break Outcome::Asked(BY_SIGNAL.to_owned());
            }
            ticks += 1;
            if shows_progress && ticks % PROGRESS_TICKS == 0 {
                self.show_progress();
            }
            let timeout = if has_more { Duration::ZERO } else { TICK };
            let Some(signal) = child::next_signal(Some(timeout)) else { continue };
            let ends = match self.child {
                Some(_) => Some(signal.number) == OWN_SIGNAL,
                None => matches!(signal.number, libc::SIGINT | libc::SIGTERM | libc::SIGHUP),
            };
            if ends {
                break Outcome::Asked(BY_SIGNAL.to_owned());
            }
            if signal.number == libc::SIGTSTP && self.child.is_none() {
                child::stop();
            }
            if let Some(child) = self.child {
                child.pass_on(signal, OWN_SIGNAL);
            }
        };
        if shows_progress {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
        self.seconds = self.started.elapsed().as_secs_f64();
        if let Outcome::Asked(_) = outcome {
            self.stop();
        }
        outcome
    }

    /// How it ended, if it has.
    fn outcome(&mut self) -> Option<Outcome> {
        if let Some(child) = self.child {
            match child.change() {
                Some(Change::Ended(ending, cpu_seconds)) => {
                    self.child_ended = Some((ending, cpu_seconds));
                    self.child = None;
                }
                Some(Change::Stopped(libc::SIGTTIN | libc::SIGTTOU)) if child.give_terminal() => {
                    self.gave_terminal = true;
                }
                Some(Change::Stopped(_)) => child::stop(),
                None => {}
            }
        }
        // A server that went into the background is recorded on.
        if self.child.is_none() && self.recording().is_empty() {
            return Some(match self.child_ended {
                Some((ending, _)) => Outcome::Program(ending),
                None if self.attached.len() > 1 => Outcome::Asked("the processes ended".to_owned()),
                None => Outcome::Asked("the process ended".to_owned()),
            });
        }
        let is_up = self.request.duration.is_some_and(|duration| self.started.elapsed() >= duration);
        is_up.then(|| {
            Outcome::Asked(format!("the recording took its {:.1} s", self.started.elapsed().as_secs_f64()))
        })
    }

    fn show_progress(&self) {
        let processes = self.collector.recording().len();
        let line = format!(
            "\r\x1b[Kuncopy: recording {}: {:.0} s, {} events, {processes} process{}; Ctrl-C ends the recording",
            Quoted(&self.name),
            self.started.elapsed().as_secs_f64(),
            self.collector.events(),
            if processes == 1 { "" } else { "es" }
        );
        // Nobody misses a line of progress.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    /// Asks every process to end its recording, and takes in the rest.
    fn stop(&mut self) {
        let end = Request::End.encode().unwrap_or_default();
        let mut asked = self.recording();
        // One that is gone says nothing more; one that does not listen drops what there is no room for any more.
        asked.retain(|pid| matches!(live::command(*pid, &end), Ok(true)));
        let since = Instant::now();
        while since.elapsed() < LAST_TIMEOUT {
            self.collect();
            let recording = self.collector.recording();
            if !asked.iter().any(|pid| recording.contains(pid)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Puts the profile together, writes it and shows it; the exit status if the program does not give one.
    fn finish(self, command: &[OsString], outcome: &Outcome) -> u8 {
        let mut warnings = self.warnings;
        if self.collector.without_room > 0 {
            let more = self.collector.without_room;
            warnings.push(format!("{more} further processes were not recorded, for which there was no room"));
        }
        let mut processes = self.collector.finish();
        drop(self.directories);
        if let ([only], Some((_, cpu_seconds))) = (processes.as_mut_slice(), self.child_ended) {
            // Better than the last look at a process that ended since.
            only.cpu_seconds = cpu_seconds;
        }
        if processes.is_empty() && self.attached.is_empty() {
            warnings.push(
                "no process said that it was recorded: the program may have ended at once, or was started without the library"
                    .to_owned(),
            );
        }
        let default_bytes = Options::default().min_size_bytes as u64;
        let run = Run {
            uncopy: env!("CARGO_PKG_VERSION").to_owned(),
            command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            ending: match outcome {
                Outcome::Program(Ending::Exited(status)) => {
                    format!("the program exited with status {status}")
                }
                Outcome::Program(Ending::Killed(signal)) => {
                    format!("the program was ended by signal {signal}")
                }
                Outcome::Asked(why) => why.clone(),
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

/// Writes the profile to its file, and the report to standard output.
fn write(profile: &Profile, request: &RecordingRequest) -> u8 {
    let out = request.out.as_os_str();
    if let Err(error) = atomic_write::write(&request.out, profile.to_json().as_bytes()) {
        output::complain(format_args!("cannot write {}: {}", Quoted(out), Reason(&error)));
        return EXIT_FAILURE;
    }
    let name = shown_name(&request.out);
    let text = uncopy_profile::text::report(profile, &name, output::columns());
    let status = output::print(text.as_bytes(), EXIT_OK);
    output::complain(format_args!("wrote {}", Quoted(out)));
    status
}

/// A file's name as short as it can be typed here.
fn shown_name(path: &std::path::Path) -> String {
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
