//! Recordings of a server, drained in the way of `uncopy profile`.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use uncopy_core::recording::{Call, Memory, RING_OFFSET, Ring, parse_file_name};

use crate::kit::{Result, TemporaryDirectory};

/// Directory of an in-memory file system.
const SHARED_MEMORY: &str = "/dev/shm";
/// Interval between two scans of the recordings, the same as that of `uncopy profile`.
const SCAN_INTERVAL: Duration = Duration::from_millis(50);

/// A directory for recordings, and a thread that drains the recordings there until this is dropped.
#[derive(Debug)]
pub struct Drain {
    _directory: TemporaryDirectory,
    /// Channel that ends the thread when it is dropped. Nothing is sent.
    end: Sender<()>,
    thread: JoinHandle<DrainCounts>,
}

/// Counts of a [`Drain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainCounts {
    /// Number of input, copy and output events.
    pub events: u64,
    /// Number of gaps between the events.
    pub gaps: u64,
}

impl Drain {
    /// Makes `command` record into a new directory, and starts to drain it.
    ///
    /// # Errors
    /// [`crate::kit::Failure`] when the directory cannot be made.
    pub fn begin(command: &mut Command) -> Result<Self> {
        let directory = TemporaryDirectory::make_in(Path::new(SHARED_MEMORY))?;
        command.env("UNCOPY_RECORD", directory.path());
        let (end, is_over) = channel();
        let path = directory.path().to_path_buf();
        let thread = std::thread::spawn(move || drain(&path, &is_over));
        Ok(Self { _directory: directory, end, thread })
    }

    /// Drains the rest, ends the thread and returns its counts.
    #[must_use]
    pub fn finish(self) -> DrainCounts {
        drop(self.end);
        self.thread.join().unwrap_or_default()
    }
}

struct RecordingFile(std::fs::File);

impl Memory for RecordingFile {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.0.read_exact_at(into, offset)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> std::io::Result<()> {
        self.0.write_all_at(from, offset)
    }
}

fn drain(directory: &Path, end: &Receiver<()>) -> DrainCounts {
    let mut counts = DrainCounts::default();
    let mut known = std::collections::BTreeMap::new();
    loop {
        // Checked before the scan, so that events recorded until the end are counted.
        let is_last = matches!(end.recv_timeout(SCAN_INTERVAL), Err(RecvTimeoutError::Disconnected));
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let Some(key) = parse_file_name(entry.file_name().as_encoded_bytes()) else { continue };
            let opened = std::fs::OpenOptions::new().read(true).write(true).open(entry.path());
            let is_whole =
                |file: &std::fs::File| file.metadata().is_ok_and(|found| found.len() > RING_OFFSET as u64);
            if !known.contains_key(&key)
                && let Some(file) = opened.ok().filter(is_whole)
            {
                known.insert(key, (RecordingFile(file), Ring::new()));
            }
        }
        for (file, ring) in known.values_mut() {
            // A recording that can no longer be read was counted by earlier scans.
            let _ = ring.drain(file, false, |event| match event.call {
                Call::Gap => counts.gaps += 1,
                Call::Input | Call::Copy | Call::Output => counts.events += 1,
                _ => {}
            });
        }
        if is_last {
            return counts;
        }
    }
}
