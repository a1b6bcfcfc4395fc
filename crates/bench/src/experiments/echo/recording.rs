//! What a recording costs: the echo server under `uncopy run`, recorded as `uncopy profile` has it recorded, while this
//! program drains what comes.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::Args;
use uncopy_core::recording::{Call, Memory, RING_OFFSET, Ring, parse_file_name};

use crate::experiments::echo::copies;
use crate::experiments::echo::point::Point;
use crate::kit::arguments::{Form, copies_parser, count_parser, seconds, size_parser};
use crate::kit::comparison::Comparison;
use crate::kit::failure::Result;
use crate::kit::figures::{self, CPU, LEGEND, median};
use crate::kit::processes::cleanup::TemporaryDirectory;
use crate::kit::side::Side;

/// Where files in memory are made.
const SHARED_MEMORY: &str = "/dev/shm";
/// Pause between two looks at the recordings, as `uncopy profile` makes it.
const PAUSE: Duration = Duration::from_millis(50);

/// Arguments of `recording`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Length of a message, in bytes
    #[arg(long, value_name = "BYTES", default_value = "65536", value_parser = size_parser())]
    pub size: usize,
    /// Numbers of copies
    #[arg(long, value_name = "N,N,...", default_value = "0,5", value_delimiter = ',', value_parser = copies_parser())]
    pub copies: Vec<usize>,
    /// Rounds; each runs every side once
    #[arg(long, value_name = "N", default_value = "7", default_value_if("quick", "true", "3"), value_parser = count_parser())]
    pub rounds: usize,
    /// Length of each measurement, about
    #[arg(long, value_name = "SECONDS", default_value = "0.6", default_value_if("quick", "true", "0.1"), value_parser = seconds)]
    pub seconds: Duration,
    #[command(flatten)]
    pub form: Form,
}

/// What is compared.
pub const SIDES: [Side; 3] = [Side::Plain, Side::HeapOnly, Side::Recording];

/// One point for each number of copies.
#[must_use]
pub fn points(size_bytes: usize, copies: &[usize]) -> Vec<Point> {
    copies::points(size_bytes, copies, 0)
}

/// The figures, with what an event costs: an input, an output and each copy are one.
#[must_use]
pub fn render(comparisons: &[Comparison]) -> String {
    let event: figures::Extra<'_> = (
        "ns/event",
        Box::new(|comparison, side| {
            if side != Side::Recording {
                return String::new();
            }
            let events = comparison.parameter("copies").unwrap_or(0.0) + 2.0;
            let added_us = median(comparison, side, CPU) - median(comparison, Side::HeapOnly, CPU);
            format!("{:.0}", added_us * 1e3 / events)
        }),
    );
    let table = figures::table(comparisons, &[event]);
    format!(
        "{table}\n{LEGEND}ns/event: processor time that recording adds to 'heap only', by inputs, copies and outputs\n"
    )
}

/// A directory for recordings, and a thread that drains what is recorded there.
pub struct Drain {
    directory: TemporaryDirectory,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Drained>>,
}

/// What a [`Drain`] has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Events.
    pub events: u64,
    /// Gaps between them.
    pub gaps: u64,
}

impl Drain {
    /// Begins to drain a fresh directory.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub fn begin() -> Result<Self> {
        let directory = TemporaryDirectory::make_in(Path::new(SHARED_MEMORY))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (path, ends) = (directory.path().to_path_buf(), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || drain(&path, &ends));
        Ok(Self { directory, is_over, thread: Some(thread) })
    }

    /// Has what `command` starts recorded.
    pub fn record(&self, command: &mut Command) {
        command.env("UNCOPY_RECORD", self.directory.path());
    }

    /// What was recorded until now, and no more from here on.
    #[must_use]
    pub fn finish(mut self) -> Drained {
        self.stop()
    }

    fn stop(&mut self) -> Drained {
        self.is_over.store(true, Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.stop();
    }
}

struct File(std::fs::File);

impl Memory for File {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.0.read_exact_at(into, offset)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> std::io::Result<()> {
        self.0.write_all_at(from, offset)
    }
}

fn drain(directory: &Path, is_over: &AtomicBool) -> Drained {
    let mut drained = Drained::default();
    let mut known = std::collections::BTreeMap::new();
    loop {
        let is_last = is_over.load(Relaxed);
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let Some(key) = parse_file_name(entry.file_name().as_encoded_bytes()) else { continue };
            let opened = std::fs::OpenOptions::new().read(true).write(true).open(entry.path());
            let is_whole =
                |file: &std::fs::File| file.metadata().is_ok_and(|found| found.len() > RING_OFFSET as u64);
            if !known.contains_key(&key)
                && let Some(file) = opened.ok().filter(is_whole)
            {
                known.insert(key, (File(file), Ring::new()));
            }
        }
        for (file, ring) in known.values_mut() {
            // What cannot be read any more has been counted before.
            let _ = ring.drain(file, false, |event| match event.call {
                Call::Gap => drained.gaps += 1,
                Call::Input | Call::Copy | Call::Output => drained.events += 1,
                _ => {}
            });
        }
        if is_last {
            return drained;
        }
        std::thread::sleep(PAUSE);
    }
}
