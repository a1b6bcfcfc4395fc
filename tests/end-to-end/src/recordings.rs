//! Recordings that processes make (`UNCOPY_RECORD`), read while they run, as `uncopy profile` does.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use uncopy_core::recording::{Event, Memory, RING_OFFSET, Recording, Ring, parse_file_name};

use crate::Scratch;

/// File of a recording, read by offset.
pub struct RecordingFile(pub File);

impl Memory for RecordingFile {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, offset)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0.write_all_at(from, offset)
    }
}

/// The recording of one process.
pub struct ProcessRecording {
    /// Everything in the recording except the events.
    pub recording: Recording,
    /// Events of the process, in order.
    pub events: Vec<Event>,
    /// Events that were in the ring and could not be read.
    pub lost: u64,
}

struct Reader {
    file: RecordingFile,
    ring: Ring,
    events: Vec<Event>,
}

impl Reader {
    fn drain(&mut self, is_over: bool) {
        let Self { file, ring, events } = self;
        while ring.drain(file, is_over, |event| events.push(*event)).expect("a whole file").is_full {}
    }
}

/// A directory for recordings, and a thread that drains the recordings made there.
pub struct Recordings {
    directory: PathBuf,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<BTreeMap<(u32, u64), Reader>>>,
}

impl Recordings {
    /// Makes an empty directory inside `scratch`.
    ///
    /// # Panics
    /// When the directory cannot be made.
    #[must_use]
    pub fn new(scratch: &Scratch, name: &str) -> Self {
        let directory = scratch.join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&directory).expect("a directory");
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = {
            let (directory, is_over) = (directory.clone(), Arc::clone(&is_over));
            std::thread::spawn(move || drain_all(&directory, &is_over))
        };
        Self { directory, is_over, thread: Some(thread) }
    }

    /// Returns the directory of the recordings.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the recordings, by pid, with events in order of time. To be called when every process has ended.
    ///
    /// # Panics
    /// When a file cannot be read.
    #[must_use]
    pub fn finish(mut self) -> Vec<ProcessRecording> {
        self.is_over.store(true, Relaxed);
        let readers = self.thread.take().expect("not finished yet").join().expect("the reader");
        let recordings = readers.into_values().filter_map(|mut reader| {
            let mut bytes = vec![0; RING_OFFSET];
            reader.file.read(0, &mut bytes).expect("a whole file");
            let recording = Recording::parse(&bytes).ok()?;
            reader.drain(true);
            Some(ProcessRecording { recording, events: reader.events, lost: reader.ring.lost() })
        });
        recordings.collect()
    }
}

fn drain_all(directory: &Path, is_over: &AtomicBool) -> BTreeMap<(u32, u64), Reader> {
    let mut readers = BTreeMap::new();
    loop {
        // Loaded before the directory is listed, so that the last pass sees every file.
        let is_last = is_over.load(Relaxed);
        for entry in std::fs::read_dir(directory).expect("the directory").flatten() {
            let Some(key) = parse_file_name(entry.file_name().as_encoded_bytes()) else { continue };
            if readers.contains_key(&key) {
                continue;
            }
            // The process removes its file when nothing was recorded.
            let Ok(file) = OpenOptions::new().read(true).write(true).open(entry.path()) else { continue };
            // The process is still writing the header of a shorter file.
            if file.metadata().is_ok_and(|found| found.len() > RING_OFFSET as u64) {
                let reader = Reader { file: RecordingFile(file), ring: Ring::new(), events: Vec::new() };
                readers.insert(key, reader);
            }
        }
        readers.values_mut().for_each(|reader| reader.drain(false));
        if is_last {
            return readers;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
