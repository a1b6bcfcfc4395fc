//! Recordings of a server, drained as `uncopy profile` drains them.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use uncopy_core::recording::{Call, Memory, RING_OFFSET, Ring, parse_file_name};

use crate::kit::{Result, TemporaryDirectory};

/// Where files in memory are made.
const SHARED_MEMORY: &str = "/dev/shm";
/// Pause between two looks at the recordings, as `uncopy profile` makes it.
const PAUSE: Duration = Duration::from_millis(50);

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
