//! `differential`: runs, replays and shrinks random programs under `libuncopy.so`, against a model.
//!
//! ```text
//! differential [run] [--ops N] [--seed S] [--jobs J] [--minutes M] [--length N]
//!                    [--mode MODE] [--mates N] [--failures DIR]
//! differential replay [--mode MODE] [--mates N] [--times N] FILE…
//! differential shrink [--mode MODE] [--mates N] [--minutes M] FILE
//! differential print --seed S --length N
//! differential run|replay|shrink|print --files yes …    programs of files, plain and with a log
//! differential execute --progress FILE (--seed S --length N | --program FILE) [--mate SOCKET]… [--mates-may-end yes]
//! differential mate --listen SOCKET                     a mate: started by the other commands
//! ```
//!
//! Exit status: 0 no difference, 1 differences (the files are named), 2 wrong usage.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uncopy_differential::drive::{Plan, drive};
use uncopy_differential::files::{self, interpreter::Run};
use uncopy_differential::generator::generate;
use uncopy_differential::interpreter;
use uncopy_differential::mate;
use uncopy_differential::program::Program;
use uncopy_differential::shrink::shrink;
use uncopy_differential::trial::{Subject, Trial};
use uncopy_tests::launch::Mode;

/// Parsed command line: options with one value each, and file names.
#[derive(Default)]
struct Line {
    options: Vec<(String, String)>,
    files: Vec<PathBuf>,
}

impl Line {
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

    fn text(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|option| option.0 == name).map(|option| option.1.as_str())
    }

    fn number(&self, name: &str, default: u64) -> Result<u64, String> {
        self.text(name).map_or(Ok(default), |text| {
            text.parse().map_err(|_| format!("--{name} is {text:?}; it must be a whole number"))
        })
    }

    fn mates(&self) -> Result<usize, String> {
        self.number("mates", 0).map(usize_of)
    }

    fn of_files(&self) -> bool {
        self.text("files") == Some("yes")
    }

    fn trial(&self, mode: Mode) -> Result<Trial, String> {
        Ok(Trial::new(machine()?, mode)
            .with_mates(self.mates()?)
            .of_files(self.of_files().then_some(uncopy_differential::files::trial::run)))
    }

    fn modes(&self) -> Result<Vec<Mode>, String> {
        match self.text("mode").unwrap_or("always") {
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

fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn read(path: &Path) -> Result<Program, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Program::parse(&text).map_err(|what| format!("{}: {what}", path.display()))
}

fn machine() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("the path of this program: {error}"))
}

fn execute(line: &Line) -> Result<bool, String> {
    let program = match line.text("program") {
        Some(path) => read(Path::new(path))?,
        None => generate(line.number("seed", 1)?, usize_of(line.number("length", 20_000)?)),
    };
    let progress = line.text("progress").ok_or("--progress is missing")?;
    let paths = line.options.iter().filter(|option| option.0 == "mate").map(|option| option.1.clone().into());
    mate::meet(paths.collect(), line.text("mates-may-end") == Some("yes"));
    interpreter::run(&program, Path::new(progress));
    Ok(true)
}

/// Executes a program of files in this process.
fn execute_files(line: &Line) -> Result<bool, String> {
    let path = |name| line.text(name).map(PathBuf::from).ok_or_else(|| format!("--{name} is missing"));
    let number = |name, default| line.number(name, default).map(usize_of);
    let slots = line.text("slots").unwrap_or("").split(',').filter_map(|word| word.parse().ok()).collect();
    let run = Run {
        program: path("program")?,
        progress: path("progress")?,
        trace: path("trace")?,
        operations: number("from", 0)?..number("to", u64::MAX)?,
        slots,
        depth: number("depth", 0)?,
    };
    if let Some(warm) = line.text("warm") {
        files::interpreter::warm_up(Path::new(warm));
    }
    files::interpreter::run(&run);
    Ok(true)
}

fn run(line: &Line) -> Result<bool, String> {
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs() << 20);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let plan = Plan {
        seed: line.number("seed", fresh)?,
        operations: line.number("ops", 1_000_000)?,
        length: usize_of(line.number("length", 20_000)?).max(1),
        jobs: usize_of(line.number("jobs", cores as u64)?).max(1),
        time: Duration::from_secs(60 * line.number("minutes", 600)?),
        modes: line.modes()?,
        mates: line.mates()?,
        of_files: line.of_files(),
        machine: machine()?,
        failures: line.text("failures").unwrap_or("target/differential-failures").into(),
        shrink_time: Duration::from_secs(60 * line.number("shrink-minutes", 5)?),
        max_failures: usize_of(line.number("most", 3)?),
    };
    eprintln!("seeds from {} on, {} operations each", plan.seed, plan.length);
    let outcome = drive(&plan);
    print!("{}", outcome.sum);
    for path in &outcome.failures {
        println!("FAILED: {}", path.display());
    }
    println!("{} differences, seeds from {} on", outcome.failures.len(), plan.seed);
    Ok(outcome.failures.is_empty())
}

fn replay(line: &Line) -> Result<bool, String> {
    let mut good = true;
    for path in &line.files {
        let program = read(path)?;
        for mode in line.modes()? {
            for _ in 0..line.number("times", 1)? {
                let report = line.trial(mode)?.run(Subject::Program(&program));
                match report.failure {
                    None => println!("{}: no difference ({mode:?})", path.display()),
                    Some(failure) => {
                        good = false;
                        println!("{}: {failure}", path.display());
                    }
                }
            }
        }
    }
    Ok(good)
}

fn shrink_file(line: &Line) -> Result<bool, String> {
    let path = line.files.first().ok_or("the file to shrink is missing")?;
    let time = Duration::from_secs(60 * line.number("minutes", 5)?);
    let trial = line.trial(line.modes()?[0])?;
    match shrink(&trial, &read(path)?, time) {
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
    let done = Line::parse(words).and_then(|line| match command.as_str() {
        "run" => run(&line),
        "replay" => replay(&line),
        "shrink" => shrink_file(&line),
        "execute" => execute(&line),
        "execute-files" => execute_files(&line),
        "mate" => {
            mate::run(Path::new(line.text("listen").ok_or("--listen is missing")?));
            Ok(true)
        }
        "print" => {
            let length = usize_of(line.number("length", 20_000)?);
            print!("{}", line.trial(Mode::Plain)?.program(line.number("seed", 1)?, length));
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
