//! Reads the recordings of all processes while they run, and replays their events.
//!
//! Recordings are not trusted. A file must be regular, of the right size and without another name,
//! and must belong to the directory's owner or to root. The reader (`uncopy_core::recording`) ends
//! whatever the bytes are.

use crate::os;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use uncopy_core::policy::Costs;
use uncopy_core::recording::{
    FILE_BYTES, MAGIC, Memory, Phase, RING_OFFSET, Recording, Ring, parse_file_name,
};
use uncopy_profile::assemble::RecordedProcess;
use uncopy_profile::elision::Elision;
use uncopy_profile::flow::Flow;
use uncopy_sys::private_directory::PrivateDirectory;

/// Ticks between two reads of a process's mappings.
const MAPPINGS_TICKS: u32 = 20;
/// Maximum number of recorded processes.
const MAX_PROCESSES: usize = 256;

/// File of one recording.
struct RecordingFile(File);

impl Memory for RecordingFile {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, offset)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0.write_all_at(from, offset)
    }
}

/// Process that is being recorded.
struct OngoingRecording {
    name: CString,
    file: RecordingFile,
    /// Second handle of the file, for the part before the ring.
    head: File,
    recording: Recording,
    ring: Ring,
    flow: Flow,
    /// Processor time at the first and the last look, seconds.
    cpu_seconds: Option<(f64, f64)>,
    has_ended: bool,
    /// Number of calls of `drain` so far.
    ticks: u32,
}

/// Recordings of all processes of a run.
#[derive(Default)]
pub struct Collector {
    sources: Vec<OngoingRecording>,
    /// Number of processes beyond [`MAX_PROCESSES`].
    pub unrecorded_processes: u64,
    refused: Vec<CString>,
}

impl Collector {
    /// Finds new recordings and reads new events. Returns whether any process has more right away.
    pub fn collect<'a>(&mut self, directories: impl Iterator<Item = &'a PrivateDirectory>) -> bool {
        directories.for_each(|directory| self.find_recordings(directory));
        let mut has_more = false;
        for process in &mut self.sources {
            has_more |= process.drain();
        }
        has_more
    }

    fn find_recordings(&mut self, directory: &PrivateDirectory) {
        for name in os::names_in(directory).unwrap_or_default() {
            let is_known =
                self.sources.iter().any(|process| process.name == name) || self.refused.contains(&name);
            if is_known || parse_file_name(name.to_bytes()).is_none() {
                continue;
            }
            if self.sources.len() == MAX_PROCESSES {
                self.unrecorded_processes += 1;
                self.refused.push(name);
                continue;
            }
            // A recording that has not begun is tried again.
            match OngoingRecording::open(directory, name) {
                Ok(Some(process)) => self.sources.push(process),
                Ok(None) => {}
                Err(name) => self.refused.push(name),
            }
        }
    }

    /// Returns the number of events so far.
    pub fn events(&self) -> u64 {
        self.sources.iter().map(|process| process.flow.events).sum()
    }

    /// Returns the pids of processes that still record.
    pub fn recording_pids(&self) -> Vec<u32> {
        let running = self.sources.iter().filter(|process| !process.has_ended);
        running.map(|process| process.recording.pid).collect()
    }

    /// Whether this process was recorded.
    pub fn has_recorded(&self, pid: u32) -> bool {
        self.sources.iter().any(|process| process.recording.pid == pid)
    }

    /// Reads the remaining events and returns the recordings.
    pub fn finish(mut self) -> Vec<RecordedProcess> {
        for process in &mut self.sources {
            process.has_ended = true;
            process.drain();
            process.refresh();
            process.flow.end_all();
        }
        self.sources
            .into_iter()
            .map(|process| RecordedProcess {
                cpu_seconds: process.cpu_seconds.map_or(0.0, |(first, last)| (last - first).max(0.0)),
                recording: process.recording,
                flow: process.flow,
            })
            .collect()
    }
}

impl OngoingRecording {
    /// Opens a recording; `None` if it has not begun yet.
    ///
    /// # Errors
    /// `name`, if the file is not a recording.
    fn open(directory: &PrivateDirectory, name: CString) -> Result<Option<Self>, CString> {
        let Ok(head) = os::open_recording_in(directory, &name) else { return Err(name) };
        let Ok(metadata) = head.metadata() else { return Err(name) };
        if metadata.len() != FILE_BYTES as u64 {
            return Ok(None);
        }
        let mut magic = [0; MAGIC.len()];
        if head.read_exact_at(&mut magic, 0).is_err() || magic == [0; MAGIC.len()] {
            return Ok(None);
        }
        let Ok(file) = head.try_clone() else { return Err(name) };
        let Some(recording) = read_head(&head) else { return Err(name) };
        let elision = Elision::new(&recording.costs.unwrap_or(Costs::DEFAULT));
        let flow = Flow::new(recording.min_size_bytes, elision);
        let mut process = Self {
            name,
            file: RecordingFile(file),
            head,
            recording,
            ring: Ring::new(),
            flow,
            cpu_seconds: None,
            has_ended: false,
            ticks: 0,
        };
        process.sample_cpu_time();
        Ok(Some(process))
    }

    /// Reads new events. Returns whether there are more right away.
    fn drain(&mut self) -> bool {
        self.sample_cpu_time();
        self.update_mappings();
        let Self { file, head, recording, ring, flow, .. } = self;
        let mut leaf = |stack: u32| {
            if recording.stacks.frames(stack).is_empty()
                && stack != 0
                && let Some(fresh) = read_head(head)
            {
                *recording = fresh;
            }
            recording.stacks.frames(stack).first().copied().unwrap_or(0)
        };
        let drained = ring.drain(file, self.has_ended, |event| flow.replay(event, &mut leaf));
        drained.is_ok_and(|drained| drained.is_full)
    }

    /// Reads the part before the ring again.
    fn refresh(&mut self) {
        if let Some(fresh) = read_head(&self.head) {
            self.recording = fresh;
        }
    }

    /// Passes the shared mappings to the replay once in [`MAPPINGS_TICKS`] calls.
    fn update_mappings(&mut self) {
        let is_due = self.ticks.is_multiple_of(MAPPINGS_TICKS);
        self.ticks = self.ticks.wrapping_add(1);
        if is_due
            && !self.has_ended
            && let Ok(maps) = fs::read(format!("/proc/{}/maps", self.recording.pid))
        {
            self.flow.set_shared(shared_ranges(&maps));
        }
    }

    fn sample_cpu_time(&mut self) {
        if self.has_ended {
            return;
        }
        match cpu_seconds(self.recording.pid) {
            // Processor time from before the recording does not count.
            Some(now) => {
                let first = self.cpu_seconds.map_or(now, |(first, _)| first);
                self.cpu_seconds = Some((first, now));
            }
            None => self.has_ended = true,
        }
        let mut phase = [0; 8];
        let offset = uncopy_core::recording::PHASE_OFFSET as u64;
        if self.head.read_exact_at(&mut phase, offset).is_ok()
            && u64::from_ne_bytes(phase) >= Phase::Ended as u64
        {
            self.has_ended = true;
        }
    }
}

/// Reads the part of the file before the ring.
fn read_head(file: &File) -> Option<Recording> {
    let mut bytes = vec![0; RING_OFFSET];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Recording::parse(&bytes).ok()
}

/// Returns the ranges of mappings in `/proc/PID/maps` that are shared or backed by a file.
fn shared_ranges(maps: &[u8]) -> Vec<(u64, u64)> {
    let text = String::from_utf8_lossy(maps);
    let range = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let is_shared = fields.next()?.ends_with('s');
        let is_file = fields.nth(2)? != "0";
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(start)?, number(end)?)).filter(|_| is_shared || is_file)
    };
    text.lines().filter_map(range).collect()
}

/// Returns the pids of processes that have created their files in the directory.
pub fn started_pids(directory: &PrivateDirectory) -> Vec<u32> {
    let names = os::names_in(directory).unwrap_or_default();
    names.iter().filter_map(|name| Some(parse_file_name(name.to_bytes())?.0)).collect()
}

/// Returns the user and system time of a process, seconds; `None` if it does not run.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    // The name may contain anything, also ") ".
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    if matches!(*fields.first()?, "Z" | "X") {
        return None;
    }
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()?.saturating_add(fields.get(12)?.parse().ok()?);
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_and_file_backed_mappings_are_told_from_private_memory() {
        let maps = b"1000-2000 rw-p 00000000 00:00 0 \n\
                     2000-3000 rw-s 00000000 00:01 77 /dev/zero (deleted)\n\
                     3000-4000 r--p 00001000 fe:00 12 /bin/a program\n\
                     7000-8000 rw-p 00000000 00:00 0 [heap]\nnonsense\n";
        assert_eq!(shared_ranges(maps), [(0x2000, 0x3000), (0x3000, 0x4000)]);
    }

    #[test]
    fn a_process_that_runs_has_spent_some_time() {
        assert!(cpu_seconds(std::process::id()).is_some_and(|seconds| seconds >= 0.0));
        // Above the largest pid of any kernel.
        assert_eq!(cpu_seconds(4_194_999), None);
    }
}
