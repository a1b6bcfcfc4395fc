//! One run of a program in its own process, under the library or plain.

use std::path::{Path, PathBuf};
use std::time::Duration;

use uncopy_core::options::LogMode;
use uncopy_core::stats::Counter;
use uncopy_tests::counters::Counters;
use uncopy_tests::launch::{Mode, Program as Command};
use uncopy_tests::scratch::Scratch;

use crate::files;
use crate::generator::generate;
use crate::mates::Mates;
use crate::program::{Kind, MAX_WORKERS, Program};
use crate::progress::Progress;

/// The program of a test run.
#[derive(Clone, Copy, Debug)]
pub enum ProgramSource<'a> {
    /// The generated program of a seed, with its number of operations.
    Seed(u64, usize),
    /// A program given as data.
    Program(&'a Program),
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct TestRun {
    /// Path of the binary that executes programs.
    pub machine: PathBuf,
    /// Plain, or under the library with certain options.
    pub mode: Mode,
    /// Number of mates that the program's streams go to, by lanes.
    pub mates: usize,
    /// Runner for programs of files (see [`crate::files`]): each is run plain and with a log.
    pub file_runner: Option<FileRunner>,
    /// Mode of the log of programs of files.
    pub log_mode: LogMode,
    /// Time limit of one run.
    pub limit: Duration,
}

/// Function that runs a program of files: [`crate::files::test_run::run`].
pub type FileRunner = fn(&TestRun, ProgramSource) -> Report;

/// Result of one run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Operations done of each kind, in the order of [`Kind::ALL`].
    pub kinds: Vec<u64>,
    /// Number of those that forked children did.
    pub in_children: u64,
    /// The library's counters in the order of [`Counter::ALL`]; zero when run plain.
    pub counters: Vec<u64>,
    /// Failure: the program's messages, or every thread's stack if the program hung.
    pub failure: Option<String>,
    /// Last operation that each worker began.
    pub reached: [Option<usize>; MAX_WORKERS],
}

impl TestRun {
    /// Returns a test run of the binary `machine` in a mode, with a limit of two minutes.
    #[must_use]
    pub fn new(machine: impl AsRef<Path>, mode: Mode) -> Self {
        Self {
            machine: machine.as_ref().to_owned(),
            mode,
            mates: 0,
            file_runner: None,
            log_mode: LogMode::Beside,
            limit: Duration::from_secs(120),
        }
    }

    /// Sets the number of mates that streams go to.
    #[must_use]
    pub const fn with_mates(mut self, mates: usize) -> Self {
        self.mates = mates;
        self
    }

    /// Sets the runner for programs of files.
    #[must_use]
    pub const fn with_file_runner(mut self, file_runner: Option<FileRunner>) -> Self {
        self.file_runner = file_runner;
        self
    }

    /// Sets the mode of the log of programs of files.
    #[must_use]
    pub const fn with_log_mode(mut self, log_mode: LogMode) -> Self {
        self.log_mode = log_mode;
        self
    }

    /// Returns the program of a seed.
    #[must_use]
    pub fn program(&self, seed: u64, operations: usize) -> Program {
        if self.file_runner.is_some() {
            files::generator::generate(seed, operations, self.log_mode)
        } else {
            generate(seed, operations)
        }
    }

    /// Runs a program to its end.
    ///
    /// # Panics
    /// If the binary or the library does not exist.
    #[must_use]
    pub fn run(&self, source: ProgramSource) -> Report {
        if let Some(run) = self.file_runner {
            return run(self, source);
        }
        let scratch = Scratch::new("machine");
        let progress = scratch.join("progress");
        let page = Progress::open(&progress);
        let mut command = Command::new(&self.machine).args(["execute", "--progress"]).args([&progress]);
        command = match source {
            ProgramSource::Seed(seed, operations) => command.args([
                "--seed".to_owned(),
                seed.to_string(),
                "--length".to_owned(),
                operations.to_string(),
            ]),
            ProgramSource::Program(program) => {
                command.args(["--program"]).args([scratch.write("program", program.to_string())])
            }
        };
        let mates = Mates::start(&self.machine, self.mode, self.mates, &scratch);
        let command = mates.add_to_command(command);
        let running = command.mode(self.mode).directory(scratch.path()).start(&scratch, "run");
        let mut counters = vec![0; Counter::ALL.len()];
        let mut failure = match running.try_finish(self.limit) {
            Err(hang) => Some(hang),
            Ok(done) => {
                if let Some(found) = &done.counters {
                    counters = Counter::ALL.iter().map(|counter| found.get(*counter)).collect();
                }
                let has_failed = !done.status.success() || done.has_complaint();
                has_failed
                    .then(|| format!("{}\n{}{}", done.status, done.errors, text(done.counters.as_ref())))
            }
        };
        if let Some(mate_failures) = mates.end(self.limit) {
            failure = Some(failure.unwrap_or_default() + &mate_failures);
        }
        Report {
            kinds: page.kinds(),
            in_children: page.in_children(),
            counters,
            failure,
            reached: page.reached(),
        }
    }
}

fn text(counters: Option<&Counters>) -> String {
    counters.map_or_else(String::new, |counters| format!("counters: {counters}\n"))
}

/// Sums over many reports.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Number of programs run.
    pub programs: u64,
    kinds: Vec<u64>,
    in_children: u64,
    counters: Vec<u64>,
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            programs: 0,
            kinds: vec![0; Kind::ALL.len()],
            in_children: 0,
            counters: vec![0; Counter::ALL.len()],
        }
    }
}

impl Totals {
    /// Adds the figures of one report.
    pub fn add(&mut self, report: &Report) {
        self.programs += 1;
        self.in_children += report.in_children;
        for (sum, number) in self.kinds.iter_mut().zip(&report.kinds) {
            *sum += number;
        }
        for (counter, (sum, number)) in
            Counter::ALL.iter().zip(self.counters.iter_mut().zip(&report.counters))
        {
            let peak = matches!(counter, Counter::ViewsPeak | Counter::SegmentsPeakBytes);
            *sum = if peak { *number.max(sum) } else { *sum + number };
        }
    }

    /// Returns the number of operations done.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.kinds.iter().sum()
    }

    /// Returns one counter's sum.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} operations in {} programs ({} of them in forked children)",
            self.operations(),
            self.programs,
            self.in_children
        )?;
        for (kind, number) in Kind::ALL.iter().zip(&self.kinds).filter(|(_, number)| **number > 0) {
            writeln!(f, "  {:<14}{number:>12}", kind.name())?;
        }
        writeln!(f, "counters of the library")?;
        for (counter, number) in Counter::ALL.iter().zip(&self.counters) {
            writeln!(f, "  {:<20}{number:>20}", counter.name())?;
        }
        Ok(())
    }
}
