//! `uncopy profile --pid` for processes that are not under uncopy, and `uncopy profile -a`: samples
//! processor time, and reports what part of it copies memory.

use super::{duration, file};
use crate::args;
use crate::atomic_write;
use crate::live;
use crate::os::{self, child};
use crate::output::{self, EXIT_FAILURE, EXIT_OK, EXIT_USAGE, InvalidValue, Quoted, Reason};
use crate::processes::Selector;
use clap::ArgMatches;
use std::ffi::OsString;
use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uncopy_attach::{Report, Session, Targets, resolve};

const DEFAULT_DURATION: Duration = Duration::from_secs(10);
/// Samples per second by default, which tell a share to within 1 point after ten seconds. A prime, so that
/// samples do not keep step with timers.
const DEFAULT_FREQUENCY: u32 = 997;
/// Interval between updates of the progress line.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between checks whether the processes still run.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Highest rate that the kernel takes samples at.
const MAX_RATE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

/// Runs the command line `profile …` if it asks for samples; else returns `None`.
pub fn main(matches: &ArgMatches, wanted: &[Selector]) -> Option<u8> {
    let is_machine = matches.get_flag(args::ALL);
    if !is_machine && wanted.is_empty() {
        return None;
    }
    let targets = if is_machine {
        Targets::Machine
    } else {
        match select(matches, wanted)? {
            Ok(pids) => Targets::Processes(pids),
            Err(message) => {
                output::print_message(message);
                return Some(EXIT_FAILURE);
            }
        }
    };
    let request = match request(matches) {
        Ok(request) => request,
        Err(message) => {
            output::print_message(message);
            return Some(EXIT_USAGE);
        }
    };
    Some(sample(matches, &targets, &request))
}

/// Options of the command line.
struct SamplingRequest {
    duration: Duration,
    frequency: u32,
    folded: Option<PathBuf>,
    pprof: Option<PathBuf>,
}

fn request(matches: &ArgMatches) -> Result<SamplingRequest, InvalidValue> {
    let file = |id: &str, option: &str| {
        let name = matches.get_one::<OsString>(id);
        name.map(|name| file::resolve_export(option, name, Path::new(""))).transpose()
    };
    Ok(SamplingRequest {
        duration: duration(matches)?.unwrap_or(DEFAULT_DURATION),
        frequency: frequency(matches)?,
        folded: file(args::FOLDED, "--folded")?,
        pprof: file(args::PPROF, "--pprof")?,
    })
}

/// Returns the processes to sample, or `None` if those selected run under uncopy and record
/// themselves.
fn select(matches: &ArgMatches, wanted: &[Selector]) -> Option<Result<Vec<u32>, String>> {
    let asks_for_samples = matches.get_flag(args::JSON)
        || matches.contains_id(args::FREQUENCY)
        || matches.contains_id(args::FOLDED);
    let is_recordable = |wanted: &Selector| match wanted {
        Selector::Pid(pid) => live::is_under_uncopy(*pid),
        Selector::Named(_) => wanted.pids().is_ok(),
    };
    if !asks_for_samples && wanted.iter().all(is_recordable) {
        return None;
    }
    let records_only = [args::OUT, args::MIN_SIZE].into_iter().find(|option| matches.contains_id(option));
    if let Some(option) = records_only {
        // Says which process is not under uncopy.
        let unfit = wanted.iter().find(|wanted| !is_recordable(wanted));
        let name = match unfit {
            Some(Selector::Pid(pid)) => format!("process {pid}"),
            Some(Selector::Named(name)) => Quoted(name).to_string(),
            None => "the process".to_owned(),
        };
        return Some(Err(format!(
            "--{option} is for recordings, and {name} does not run under uncopy; start it with: uncopy run -- CMD, or \
             leave out --{option} to sample it"
        )));
    }
    let mut pids = Vec::new();
    for wanted in wanted {
        match wanted.pids_of_all() {
            Ok(found) => pids.extend(found),
            Err(unused) => return Some(Err(unused.to_string())),
        }
    }
    pids.sort_unstable();
    pids.dedup();
    Some(Ok(pids))
}

fn frequency(matches: &ArgMatches) -> Result<u32, InvalidValue> {
    let max: u32 = fs::read_to_string(MAX_RATE)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(DEFAULT_FREQUENCY)
        .max(1);
    let Some(text) = matches.get_one::<OsString>(args::FREQUENCY) else {
        // The kernel lowers its limit when samples take too long.
        return Ok(DEFAULT_FREQUENCY.min(max));
    };
    let frequency = text.to_str().and_then(|text| text.parse().ok());
    frequency.filter(|frequency| (1..=max).contains(frequency)).ok_or_else(|| {
        let legal =
            format!("a number of samples per second from 1 to {max} (kernel.perf_event_max_sample_rate)");
        InvalidValue::new("--frequency", text, legal)
    })
}

fn sample(matches: &ArgMatches, targets: &Targets, request: &SamplingRequest) -> u8 {
    os::raise_descriptor_limit();
    if let Targets::Processes(pids) = targets
        && let Some(message) = pids.iter().find_map(|pid| why_unreadable(*pid))
    {
        output::print_message(message);
        return EXIT_FAILURE;
    }
    let signals = child::BlockedSignals::begin();
    let session = match Session::begin(targets, request.frequency) {
        Ok(session) => session,
        Err(refusal) => {
            output::print_message(refusal);
            return EXIT_FAILURE;
        }
    };
    let session = watch(session, request.duration);
    let ended = session.end();
    signals.end();
    let profile = resolve(ended, request.frequency);
    let report = Report::new(&profile);
    let folded = request.folded.as_ref().map(|path| (path, report.folded().into_bytes()));
    let pprof = request.pprof.as_ref().map(|path| (path, report.pprof()));
    for (path, bytes) in folded.into_iter().chain(pprof) {
        if let Err(error) = atomic_write::write(path, &bytes) {
            let name = Quoted(path.as_os_str());
            output::print_message(format_args!("cannot write {name}: {}", Reason(&error)));
            return EXIT_FAILURE;
        }
    }
    let text = if matches.get_flag(args::JSON) {
        format!("{:#}\n", report.to_json(uncopy_core::schema::SAMPLES))
    } else if *targets == Targets::Machine {
        report.table()
    } else {
        report.text()
    };
    output::print(text.as_bytes(), EXIT_OK)
}

/// Returns why this user cannot inspect a process, as a complete message. Its files and mappings are
/// needed besides the samples.
fn why_unreadable(pid: u32) -> Option<String> {
    if !child::process_exists(pid) || uncopy_attach::may_inspect(pid) {
        return None;
    }
    let owner = uncopy_attach::owner(pid)?;
    let user = os::effective_user_id();
    let shown = |user: u32| os::user_name(user).unwrap_or_else(|| user.to_string());
    let why = if owner == user {
        "it has other privileges than this command, or forbids inspection (PR_SET_DUMPABLE)".to_owned()
    } else {
        format!("it belongs to user {}, this command runs as {}", shown(owner), shown(user))
    };
    Some(format!("cannot sample process {pid}: {why}; type: sudo uncopy profile --pid {pid}"))
}

/// Samples until the time is up, the processes have ended, or a signal comes.
fn watch(mut session: Session, duration: Duration) -> Session {
    let shows_progress = std::io::stderr().is_terminal();
    let (mut shown, mut checked) = (Instant::now(), Instant::now());
    while session.elapsed() < duration {
        let timeout = session.interval().min(duration.saturating_sub(session.elapsed()));
        if let Some(signal) = child::next_signal(Some(timeout)) {
            match signal.number {
                libc::SIGINT | libc::SIGTERM | libc::SIGHUP => break,
                libc::SIGTSTP => child::stop(),
                _ => {}
            }
        }
        session.collect();
        if checked.elapsed() >= CHECK_INTERVAL {
            checked = Instant::now();
            if !session.is_any_running() {
                break;
            }
        }
        if shows_progress && shown.elapsed() >= PROGRESS_INTERVAL {
            shown = Instant::now();
            let line = format!(
                "\r\x1b[Kuncopy: sampling: {:.0} of {:.0} s, {} samples; Ctrl-C ends it",
                session.elapsed().as_secs_f64(),
                duration.as_secs_f64(),
                session.count()
            );
            // A lost progress line does not matter.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
    if shows_progress {
        let _ = std::io::stderr().write_all(b"\r\x1b[K");
    }
    session
}
