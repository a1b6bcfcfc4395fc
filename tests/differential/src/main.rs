//! `differential`: runs, replays and shrinks random programs under `libuncopy.so`, against a model.
//!
//! ```text
//! differential [run] [--ops N] [--seed S] [--jobs J] [--minutes M] [--length N]
//!                    [--mode MODE] [--mates N] [--failures DIR]
//! differential replay [--mode MODE] [--mates N] [--times N] FILE…
//! differential shrink [--mode MODE] [--mates N] [--minutes M] FILE
//! differential print --seed S --length N
//! differential run|replay|shrink|print --files yes|only …    programs of files, plain and with a log (of mode `only`)
//! differential execute --progress FILE (--seed S --length N | --program FILE) [--mate SOCKET]… [--mates-may-end yes]
//! differential mate --listen SOCKET                     a mate: started by the other commands
//! ```
//!
//! Exit status: 0 no difference, 1 differences (the files are named), 2 wrong usage.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uncopy_core::options::LogMode;
use uncopy_differential::drive::{Plan, drive};
use uncopy_differential::files::{self, interpreter::RunParameters};
use uncopy_differential::generator::generate;
use uncopy_differential::interpreter;
use uncopy_differential::mate;
use uncopy_differential::program::Program;
use uncopy_differential::shrink::shrink;
use uncopy_differential::test_run::{ProgramSource, TestRun};
use uncopy_tests::launch::Mode;

/// Parsed command line: options with one value each, and file names.
#[derive(Default)]
struct CommandLine {
    options: Vec<(String, String)>,
    files: Vec<PathBuf>,
}

impl CommandLine {
    fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        const KNOWN: &[&str] = &[
            "ops",
            "seed",
            "jobs",
            "minutes",
            "length",
            "mode",
            "failures",
            "times",
            "progress",
            "program",
            "shrink-minutes",
            "most",
            "mates",
            "mate",
            "mates-may-end",
            "files",
            "trace",
            "from",
            "to",
            "depth",
            "slots",
            "warm",
            "listen",
        ];
        let mut line = Self::default();
        let mut words = words;
        while let Some(word) = words.next() {
            if let Some(name) = word.strip_prefix("--") {
                if !KNOWN.contains(&name) {
                    return Err(format!("unknown option --{name}; known are {KNOWN:?}"));
                }
                let value = words.next().ok_or_else(|| format!("--{name} needs a value"))?;
                line.options.push((name.to_owned(), value));
            } else {
                line.files.push(word.into());
            }
        }
        Ok(line)
    }

    fn option_value(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|option| option.0 == name).map(|option| option.1.as_str())
    }

    fn number(&self, name: &str, default: u64) -> Result<u64, String> {
        self.option_value(name).map_or(Ok(default), |text| {
            text.parse().map_err(|_| format!("--{name} is {text:?}; it must be a whole number"))
        })
    }

    fn mates(&self) -> Result<usize, String> {
        self.number("mates", 0).map(saturating_usize)
    }

    /// Returns the mode of the log of programs of files; `None`: the programs are others.
    fn files(&self) -> Result<Option<LogMode>, String> {
        match self.option_value("files") {
            None | Some("no") => Ok(None),
            Some("yes" | "beside") => Ok(Some(LogMode::Beside)),
            Some("only") => Ok(Some(LogMode::Only)),
            Some(other) => Err(format!("--files is {other:?}; it must be yes, beside, only or no")),
        }
    }

    fn test_run(&self, mode: Mode) -> Result<TestRun, String> {
        let files = self.files()?;
        Ok(TestRun::new(machine()?, mode)
            .with_mates(self.mates()?)
            .with_file_runner(files.map(|_| uncopy_differential::files::test_run::run as _))
            .with_log_mode(files.unwrap_or(LogMode::Beside)))
    }

    fn modes(&self) -> Result<Vec<Mode>, String> {
        match self.option_value("mode").unwrap_or("always") {
            "always" => Ok(vec![Mode::Always]),
            "auto" => Ok(vec![Mode::Auto]),
            "sliced" => Ok(vec![Mode::Sliced]),
            "never" => Ok(vec![Mode::Never]),
            "recorded" => Ok(vec![Mode::Recorded]),
            "plain" => Ok(vec![Mode::Plain]),
            "mixed" => Ok(vec![Mode::Always, Mode::Sliced, Mode::Always, Mode::Auto]),
            other => Err(format!(
                "--mode is {other:?}; it must be always, auto, sliced, never, recorded, plain or mixed"
            )),
        }
    }
}

fn saturating_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn read_program(path: &Path) -> Result<Program, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Program::parse(&text).map_err(|what| format!("{}: {what}", path.display()))
}

fn machine() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("the path of this program: {error}"))
}

fn execute(line: &CommandLine) -> Result<bool, String> {
    let program = match line.option_value("program") {
        Some(path) => read_program(Path::new(path))?,
        None => generate(line.number("seed", 1)?, saturating_usize(line.number("length", 20_000)?)),
    };
    let progress = line.option_value("progress").ok_or("--progress is missing")?;
    let paths = line.options.iter().filter(|option| option.0 == "mate").map(|option| option.1.clone().into());
    mate::register(paths.collect(), line.option_value("mates-may-end") == Some("yes"));
    interpreter::run(&program, Path::new(progress));
    Ok(true)
}

/// Executes a program of files in this process.
fn execute_files(line: &CommandLine) -> Result<bool, String> {
    let path =
        |name| line.option_value(name).map(PathBuf::from).ok_or_else(|| format!("--{name} is missing"));
    let number = |name, default| line.number(name, default).map(saturating_usize);
    let slots =
        line.option_value("slots").unwrap_or("").split(',').filter_map(|word| word.parse().ok()).collect();
    let parameters = RunParameters {
        program: path("program")?,
        progress: path("progress")?,
        trace: path("trace")?,
        operations: number("from", 0)?..number("to", u64::MAX)?,
        slots,
        depth: number("depth", 0)?,
    };
    if let Some(warm) = line.option_value("warm") {
        files::interpreter::wait_until_logged(Path::new(warm));
    }
    files::interpreter::run(&parameters);
    Ok(true)
}

fn run(line: &CommandLine) -> Result<bool, String> {
    let fresh_seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs() << 20);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let plan = Plan {
        seed: line.number("seed", fresh_seed)?,
        operations: line.number("ops", 1_000_000)?,
        length: saturating_usize(line.number("length", 20_000)?).max(1),
        jobs: saturating_usize(line.number("jobs", cores as u64)?).max(1),
        time: Duration::from_secs(60 * line.number("minutes", 600)?),
        modes: line.modes()?,
        mates: line.mates()?,
        files: line.files()?,
        machine: machine()?,
        failures: line.option_value("failures").unwrap_or("target/differential-failures").into(),
        shrink_time: Duration::from_secs(60 * line.number("shrink-minutes", 5)?),
        max_failures: saturating_usize(line.number("most", 3)?),
    };
    eprintln!("seeds from {} on, {} operations each", plan.seed, plan.length);
    let outcome = drive(&plan);
    print!("{}", outcome.totals);
    for path in &outcome.failures {
        println!("FAILED: {}", path.display());
    }
    println!("{} differences, seeds from {} on", outcome.failures.len(), plan.seed);
    Ok(outcome.failures.is_empty())
}

fn replay(line: &CommandLine) -> Result<bool, String> {
    let mut passed = true;
    for path in &line.files {
        let program = read_program(path)?;
        for mode in line.modes()? {
            for _ in 0..line.number("times", 1)? {
                let report = line.test_run(mode)?.run(ProgramSource::Program(&program));
                match report.failure {
                    None => println!("{}: no difference ({mode:?})", path.display()),
                    Some(failure) => {
                        passed = false;
                        println!("{}: {failure}", path.display());
                    }
                }
            }
        }
    }
    Ok(passed)
}

fn shrink_file(line: &CommandLine) -> Result<bool, String> {
    let path = line.files.first().ok_or("the file to shrink is missing")?;
    let time = Duration::from_secs(60 * line.number("minutes", 5)?);
    let test_run = line.test_run(line.modes()?[0])?;
    match shrink(&test_run, &read_program(path)?, time) {
        None => println!("# does not fail"),
        Some(small) => {
            for line in small.failure.lines() {
                println!("# {line}");
            }
            print!("{}", small.program);
        }
    }
    Ok(true)
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    let command = match words.peek() {
        Some(word) if !word.starts_with("--") => words.next().unwrap_or_default(),
        _ => "run".to_owned(),
    };
    let done = CommandLine::parse(words).and_then(|line| match command.as_str() {
        "run" => run(&line),
        "replay" => replay(&line),
        "shrink" => shrink_file(&line),
        "execute" => execute(&line),
        "execute-files" => execute_files(&line),
        "mate" => {
            mate::run(Path::new(line.option_value("listen").ok_or("--listen is missing")?));
            Ok(true)
        }
        "print" => {
            let length = saturating_usize(line.number("length", 20_000)?);
            print!("{}", line.test_run(Mode::Plain)?.program(line.number("seed", 1)?, length));
            Ok(true)
        }
        other => {
            Err(format!("unknown command {other:?}; known are run, replay, shrink, print, execute, mate"))
        }
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(what) => {
            eprintln!("machine: {what}");
            ExitCode::from(2)
        }
    }
}
