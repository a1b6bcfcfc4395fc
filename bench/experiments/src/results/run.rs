//! Runs the experiments one after the other in a bounded time, whether or not some fail.

use std::path::Path;
use std::process;
use std::time::{Duration, Instant};

use clap::Parser;

use crate::experiments::{Command, entries};
use crate::kit::processes::process::run as run_process;
use crate::kit::{Failure, Launcher, Machine, Outcome, ReportEntry, Result, Side, TemporaryDirectory, While};
use crate::kit::{distance, network, progress};
use crate::results::collect;
use crate::results::model::{ExperimentResult, RESULTS_PATH, Results, Run};
use crate::results::register::HEADLINES;

/// Time after which no further experiment begins in a quick run.
pub const QUICK_LIMIT: Duration = Duration::from_secs(9 * 60);
/// Time limit of an experiment in a process of its own, in times of its [`ReportEntry::minutes`]: machines can be slow.
const SLOWEST: u32 = 4;

/// Returns a run of this machine and these sources, without experiments.
#[must_use]
pub fn new_run(quick: bool) -> Run {
    let machine = Machine::describe();
    let facts = machine.facts().iter().map(|(key, text)| ((*key).to_owned(), text.clone()));
    Run { quick, tree: source_tree(), machine: facts.collect(), ..Run::default() }
}

/// Runs the entries named in `only`, or all if it is empty, those of the page first, and adds them to the last run of
/// `results`. Entries that already have figures are skipped, and so are those that would take longer than what is left of
/// `limit`. `store` gets the results after each entry.
///
/// # Errors
/// [`Failure`] of `store`. A failure of an experiment is recorded in its results.
pub fn run_all(
    results: &mut Results,
    only: &[String],
    limit: Option<Duration>,
    mut store: impl FnMut(&Results) -> Result<()>,
) -> Result<()> {
    let started = Instant::now();
    let mut current = results.runs.last().cloned().unwrap_or_default();
    let (quick, before) = (current.quick, current.seconds);
    current.experiments.retain(|measured| measured.failure.is_none());
    let is_wanted = |entry: &&ReportEntry| {
        (only.is_empty() || only.iter().any(|name| name == entry.id))
            && !current.experiments.iter().any(|measured| measured.id == entry.id)
    };
    let mut wanted: Vec<&ReportEntry> = entries().into_iter().filter(is_wanted).collect();
    wanted.sort_by_key(|entry| !HEADLINES.iter().any(|headline| headline.entry == entry.id));
    for (at, entry) in wanted.iter().enumerate() {
        let minutes = started.elapsed().as_secs() / 60;
        let left =
            if quick { String::new() } else { format!(", at most {} to go", minutes_of(&wanted[at..])) };
        progress::set_prefix(&format!("{} of {}, {minutes} min{left}: ", at + 1, wanted.len()));
        let ends = started.elapsed() + time_of(entry, quick);
        let measured = match limit.filter(|limit| ends > *limit) {
            None => measure_entry(entry, quick),
            Some(limit) => {
                let minutes = limit.as_secs() / 60;
                let why = format!("not begun, because {minutes} minutes were allowed; --resume measures it");
                ExperimentResult { failure: Some(why), ..empty_result(entry, quick) }
            }
        };
        for (key, version) in &measured.versions {
            let fact = (key.clone(), version.clone());
            if !current.machine.contains(&fact) {
                current.machine.push(fact);
            }
        }
        if let Some(distance) = distance::describe() {
            current.machine.retain(|(key, _)| key != "distance");
            current.machine.push(("distance".to_owned(), distance));
        }
        current.experiments.push(measured);
        current.seconds = before + started.elapsed().as_secs_f64();
        if let Some(last) = results.runs.last_mut() {
            last.clone_from(&current);
        }
        store(results)?;
    }
    progress::set_prefix("");
    Ok(())
}

/// Returns the time that an entry takes at most; zero for a quick measurement, which begins while there is time.
fn time_of(entry: &ReportEntry, quick: bool) -> Duration {
    if quick { Duration::ZERO } else { Duration::from_secs(60 * u64::from(entry.minutes)) }
}

/// Returns the time that full measurements of these entries take at most, in words.
fn minutes_of(entries: &[&ReportEntry]) -> String {
    let minutes: u64 = entries.iter().map(|entry| u64::from(entry.minutes)).sum();
    format!("{} h {} min", minutes / 60, minutes % 60)
}

fn arguments(entry: &ReportEntry, quick: bool) -> Vec<String> {
    let words = if quick { entry.quick_arguments } else { entry.full_arguments };
    words.split(' ').map(str::to_owned).collect()
}

/// Returns the result of `entry` before any figures.
fn empty_result(entry: &ReportEntry, quick: bool) -> ExperimentResult {
    let network = entry.network.unwrap_or_else(|| network::current().name());
    ExperimentResult {
        id: entry.id.to_owned(),
        words: arguments(entry, quick),
        network: network.to_owned(),
        ..ExperimentResult::default()
    }
}

/// Measures `entry`, in this process if the network is the same.
fn measure_entry(entry: &ReportEntry, quick: bool) -> ExperimentResult {
    let begin = Instant::now();
    let result = empty_result(entry, quick);
    let needs_other_network = entry.network.is_some_and(|network| network != network::current().name());
    let measured =
        if needs_other_network { measure_in_child(entry, quick) } else { measure_here(entry, &result.words) };
    let measured = measured.unwrap_or_else(|failure| ExperimentResult {
        failure: Some(failure.to_string()),
        ..ExperimentResult::default()
    });
    let seconds = begin.elapsed().as_secs_f64();
    ExperimentResult { id: result.id, words: result.words, network: result.network, seconds, ..measured }
}

fn measure_here(entry: &ReportEntry, words: &[String]) -> Result<ExperimentResult> {
    let words = std::iter::once("uncopy-bench").chain(words.iter().map(String::as_str));
    let command = Command::try_parse_from(words)
        .map_err(|error| Failure::new(error.to_string().lines().next().unwrap_or_default()))?;
    match command.run()? {
        Outcome::Report(figures) => Ok(collect::convert(entry.id, *figures)),
        Outcome::Status(status) => {
            Err(Failure::new(format!("it gave no results and exited with status {status}")))
        }
    }
}

/// Measures `entry` over its network, in a new process, because a process has one network from its first thread on.
fn measure_in_child(entry: &ReportEntry, quick: bool) -> Result<ExperimentResult> {
    let network = entry.network.unwrap_or_default();
    let scratch = TemporaryDirectory::make()?;
    let launcher = Launcher::from_environment()?;
    let words = ["--network", network, "report", "--only", entry.id, "--out"].map(str::to_owned);
    let mut command = launcher.bench_command(Side::Plain, &words);
    command.arg(scratch.path());
    if quick {
        command.arg("--quick");
    }
    let name = format!("uncopy-bench --network {network}");
    let output = run_process(command, &name, SLOWEST * time_of(entry, false))?;
    let path = scratch.path().join(RESULTS_PATH);
    let text = std::fs::read_to_string(&path).doing(format_args!("{}: {}", name, output.stderr.trim()))?;
    let experiments = Results::parse(&text)?.runs.into_iter().flat_map(|run| run.experiments);
    let measured = experiments.into_iter().find(|measured| measured.id == entry.id);
    measured.ok_or_else(|| Failure::new(format!("{name} measured nothing")))
}

/// Returns the ID of the git tree of `crates` that contains this program, if there is one. It outlives the commit.
fn source_tree() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let directory = program.parent()?;
    let git = |words: &[&str]| git_output(directory, words);
    let tree = git(&["rev-parse", "HEAD:crates"])?;
    let is_changed = git(&["status", "--porcelain", "--untracked-files=no", ":/crates"])
        .is_none_or(|text| !text.is_empty());
    Some(if is_changed { tree + "+" } else { tree })
}

/// Returns the output of git in `directory`.
fn git_output(directory: &Path, words: &[&str]) -> Option<String> {
    let mut command = process::Command::new("git");
    command.arg("-C").arg(directory).args(words);
    let output = run_process(command, "git", Duration::from_secs(10)).ok()?.success("git").ok()?;
    Some(output.stdout.trim().to_owned())
}
