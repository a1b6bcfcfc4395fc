//! Runs many programs, several at a time, until an operation count or a time limit is reached.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use uncopy_core::options::LogMode;
use uncopy_core::stats::Counter;
use uncopy_tests::launch::Mode;

use crate::shrink::shrink;
use crate::test_run::{ProgramSource, TestRun, Totals};

/// Parameters of a run of many programs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// First seed; program `n` has seed `seed + n`.
    pub seed: u64,
    /// Total number of operations.
    pub operations: u64,
    /// Number of operations per program.
    pub length: usize,
    /// Number of programs that run concurrently.
    pub jobs: usize,
    /// Time after which no program is started.
    pub time: Duration,
    /// Modes in which programs run, in turn.
    pub modes: Vec<Mode>,
    /// Number of mates: other programs that each program's streams go to, by lanes.
    pub mates: usize,
    /// Programs of files instead, each run plain and with a log of this mode.
    pub files: Option<LogMode>,
    /// Path of the binary that executes programs.
    pub machine: PathBuf,
    /// Directory for failing programs.
    pub failures: PathBuf,
    /// Time limit for shrinking one failing program.
    pub shrink_time: Duration,
    /// Number of failing programs after which to stop.
    pub max_failures: usize,
}

/// Result of a run of many programs.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Sums over all reports.
    pub totals: Totals,
    /// Path of each failing program.
    pub failures: Vec<PathBuf>,
}

/// Executes a plan, with progress on standard error.
///
/// # Panics
/// If the directory for failures cannot be written.
#[must_use]
pub fn drive(plan: &Plan) -> Outcome {
    let start = Instant::now();
    let begun = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let outcome = Mutex::new(Outcome::default());
    let last_shown = Mutex::new(Instant::now());
    let programs = plan.operations.div_ceil(plan.length as u64);
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs {
            scope.spawn(|| {
                loop {
                    let number = begun.fetch_add(1, Relaxed);
                    if number >= programs || start.elapsed() > plan.time || stop.load(Relaxed) {
                        return;
                    }
                    let failed = run_one(plan, number, &outcome);
                    if failed >= plan.max_failures {
                        stop.store(true, Relaxed);
                    }
                    show_progress(&outcome, &last_shown, start, plan.operations);
                }
            });
        }
    });
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one program and returns the number of failures so far.
fn run_one(plan: &Plan, number: u64, outcome: &Mutex<Outcome>) -> usize {
    let seed = plan.seed.wrapping_add(number);
    let mode = plan.modes[usize::try_from(number).unwrap_or(0) % plan.modes.len()];
    let test_run = TestRun::new(&plan.machine, mode)
        .with_mates(plan.mates)
        .with_file_runner(plan.files.map(|_| crate::files::test_run::run as _))
        .with_log_mode(plan.files.unwrap_or(LogMode::Beside));
    let report = test_run.run(ProgramSource::Seed(seed, plan.length));
    let lock = || outcome.lock().unwrap_or_else(PoisonError::into_inner);
    lock().totals.add(&report);
    let Some(failure) = report.failure else { return lock().failures.len() };
    std::fs::create_dir_all(&plan.failures).expect("directory for failing programs");
    let path = plan.failures.join(format!("seed-{seed}.txt"));
    let program = test_run.program(seed, plan.length);
    let comment = |text: &str| text.lines().map(|line| format!("# {line}\n")).collect::<String>();
    let head = format!("# mode {mode:?}, {} mates, seed {seed}, {} operations\n", plan.mates, plan.length);
    std::fs::write(&path, format!("{head}{}{program}", comment(&failure))).expect("failing program");
    eprintln!("\nseed {seed} in mode {mode:?} FAILED: {failure}\nmaking it smaller ({}) …", path.display());
    if let Some(small) = shrink(&test_run, &program, plan.shrink_time) {
        let text = format!("{head}{}{}", comment(&small.failure), small.program);
        std::fs::write(&path, text).expect("failing program");
        eprintln!(
            "seed {seed}: {} operations are left after {} tries, in {}",
            small.program.operations.len(),
            small.tried,
            path.display()
        );
    } else {
        eprintln!("seed {seed} did not fail again; the whole program is in {}", path.display());
    }
    let mut outcome = lock();
    outcome.failures.push(path);
    outcome.failures.len()
}

fn show_progress(outcome: &Mutex<Outcome>, last_shown: &Mutex<Instant>, start: Instant, goal: u64) {
    let terminal = std::io::stderr().is_terminal();
    let every = Duration::from_secs(if terminal { 1 } else { 30 });
    let mut last_shown = last_shown.lock().unwrap_or_else(PoisonError::into_inner);
    if last_shown.elapsed() < every {
        return;
    }
    *last_shown = Instant::now();
    let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
    let (done, seconds) = (outcome.totals.operations(), start.elapsed().as_secs().max(1));
    let line = format!(
        "{done} of {goal} operations, {} a second, {} programs, {} failed, {} MiB elided, {} MiB by lanes, {} faults, \
         {} syncs by the log",
        done / seconds,
        outcome.totals.programs,
        outcome.failures.len(),
        outcome.totals.counter(Counter::ElidedBytes) >> 20,
        (outcome.totals.counter(Counter::LaneSentBytes) + outcome.totals.counter(Counter::LaneReceivedBytes))
            >> 20,
        outcome.totals.counter(Counter::Faults),
        outcome.totals.counter(Counter::LogSyncs),
    );
    if terminal {
        eprint!("\r{line}\x1b[K")
    } else {
        eprintln!("{line}")
    }
    // A failed write loses only a progress report.
    let _ = std::io::stderr().flush();
}
