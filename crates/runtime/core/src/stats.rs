//! Counters that `--stats` and `uncopy stats PID` print, and the file that holds them.
//!
//! The file is one page. The program that counts maps it shared, and `uncopy stats` reads it:
//!
//! ```text
//! offset   0  magic (8 bytes)          b"uncopy\0" and the layout's version
//!          8  pid (u64)
//!         16  reason_len_bytes (u64)   0: active or not yet needed
//!         24  reason (UTF-8, at most REASON_CAPACITY_BYTES)
//!        512  trials (see policy::trials::report)
//!       1280  shards of SHARD_BYTES: counters (u64 each, native byte order, in the order of Counter)
//! ```

use crate::policy::trials::{FactorReports, TRIALS_BYTES};
use core::fmt::Write as _;

extern crate std;
use std::string::String;

/// Size of the stats file, bytes.
pub const FILE_BYTES: usize = 4096;
/// Suffix of the name of the control pipe beside the stats file.
pub const CONTROL_SUFFIX: &str = ".control";
/// Inode of the initial pid namespace, as in `/proc/self/ns/pid` (PROC_PID_INIT_INO, Linux 3.8).
pub const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Name of a process's stats file in its user's directory: `PID`, or `PID.INODE` in another pid namespace
/// than the initial one. Containers that share `/dev/shm` may have processes with equal pids, and cannot
/// see each other's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatsName {
    /// Pid in the process's own pid namespace.
    pub pid: u32,
    /// Inode of the process's pid namespace.
    pub namespace: u64,
}

impl StatsName {
    /// Parses a file name; `None` if it is not that of a stats file.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let number =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
        let (pid, namespace) = match name.split_once('.') {
            Some((pid, namespace)) => (pid, number(namespace)?),
            None => (name, INITIAL_PID_NAMESPACE),
        };
        Some(Self { pid: u32::try_from(number(pid)?).ok()?, namespace })
    }
}

impl core::fmt::Display for StatsName {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.namespace {
            INITIAL_PID_NAMESPACE => write!(out, "{}", self.pid),
            namespace => write!(out, "{}.{namespace}", self.pid),
        }
    }
}

/// Message to the control pipe: turn every view back into plain memory.
pub const CONTROL_RELEASE: u8 = b'r';
/// Reason in the stats file after [`CONTROL_RELEASE`].
pub const REASON_RELEASED: &str = "released: every view was turned back into plain memory";
/// First bytes of the stats file: a name and the layout's version.
pub const MAGIC: [u8; 8] = *b"uncopy\0\x04";
/// Offset of the pid.
pub const PID_OFFSET: usize = 8;
/// Offset of the reason's length.
pub const REASON_LEN_OFFSET: usize = 16;
/// Offset of the reason's text.
pub const REASON_OFFSET: usize = 24;
/// Maximum length of the reason, bytes.
pub const REASON_CAPACITY_BYTES: usize = TRIALS_OFFSET - REASON_OFFSET;
/// Offset of the results of trials.
pub const TRIALS_OFFSET: usize = 512;
/// Offset of the first shard of counters.
pub const COUNTERS_OFFSET: usize = TRIALS_OFFSET + TRIALS_BYTES;
/// Length of a shard, bytes: whole cache lines.
pub const SHARD_BYTES: usize = 384;
/// Number of shards, over which threads are spread. A counter's value is the sum over all shards (modulo
/// 2^64), that of a peak the maximum.
pub const SHARDS: usize = (FILE_BYTES - COUNTERS_OFFSET) / SHARD_BYTES;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $variant:ident => $name:literal,)*) => {
        /// A counter. The discriminant is its index in a shard.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])* $variant,)* }

        impl Counter {
            /// Every counter, in file order.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];

            /// Returns the name in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns a one-sentence description, for metrics.
            #[must_use]
            pub fn help(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),*).trim(),)* }
            }
        }
    };
}

counters! {
    /// Bytes that a memcpy or memmove did not copy because the destination became a view.
    ElidedBytes => "elided_bytes",
    /// Bytes really copied by hooks that considered eliding (fringes, short runs, refused copies).
    CopiedBytes => "copied_bytes",
    /// Number of page faults served.
    Faults => "faults",
    /// Bytes of views put into pages because the program touched them.
    MaterializedBytes => "materialized_bytes",
    /// Pages moved with `UFFDIO_MOVE`.
    MovedPages => "moved_pages",
    /// Bytes of the segments that exist.
    SegmentsBytes => "segments_bytes",
    /// Highest value of `segments_bytes`.
    SegmentsPeakBytes => "segments_peak_bytes",
    /// Number of views that exist.
    Views => "views",
    /// Highest value of `views`.
    ViewsPeak => "views_peak",
    /// Bytes received into segments.
    InputBytes => "input_bytes",
    /// Bytes sent from segments.
    OutputBytes => "output_bytes",
    /// Copies whose destination became a view, at least in part.
    ElidedCopies => "elided_copies",
    /// Inputs received into a segment.
    ElidedInputs => "elided_inputs",
    /// Outputs gathered from segments.
    GatheredOutputs => "gathered_outputs",
    /// Bytes of resident free pages kept for segments.
    ReservoirBytes => "reservoir_bytes",
    /// Bytes of blocks handed to the program and not freed.
    BlocksBytes => "blocks_bytes",
    /// Blocks registered with userfaultfd.
    RegisteredBlocks => "registered_blocks",
    /// Number of internal failures after which bytes were copied.
    Fallbacks => "fallbacks",
    /// Ranges outside the block heap that can hold views.
    ForeignRanges => "foreign_ranges",
    /// Bytes of segments that no view needs, when they were last looked at.
    WasteBytes => "waste_bytes",
    /// Bytes of segments given back while older views kept the rest.
    CompactedBytes => "compacted_bytes",
    /// Bytes of resident pages and of free blocks given back to the kernel because nobody needed them.
    TrimmedBytes => "trimmed_bytes",
    /// Bytes that were not received or copied into a segment because of the bound on memory.
    RefusedBytes => "refused_bytes",
    /// Bytes that were sent by reference: pages of segments, or memory that is only read.
    LentBytes => "lent_bytes",
    /// Bytes of pages given back to the kernel because it may still have been holding them.
    DroppedBytes => "dropped_bytes",
    /// Number of streams that became lanes.
    Lanes => "lanes",
    /// Bytes that were received by reference from another program.
    LaneReceivedBytes => "lane_received_bytes",
    /// Bytes that were sent by reference to another program.
    LaneSentBytes => "lane_sent_bytes",
    /// Bytes that were copied into shared memory to be sent by reference.
    LaneCopiedBytes => "lane_copied_bytes",
    /// Bytes received at lanes through the kernel.
    LaneLiteralBytes => "lane_literal_bytes",
    /// Syncs of files that the log has answered.
    LogSyncs => "log_syncs",
    /// Bytes written before those syncs, which the log keeps.
    LogBytes => "log_bytes",
    /// Writes that went to a log alone (`--log-mode only`).
    LogAppends => "log_appends",
    /// Bytes of those writes.
    LogAppendedBytes => "log_appended_bytes",
    /// Those of the bytes that records refer to, instead of having a copy.
    LogReferencedBytes => "log_referenced_bytes",
    /// Inputs that were received into the memory of such a log.
    LogOptimisticInputs => "log_optimistic_inputs",
    /// Those of the inputs that were released and had never been logged.
    LogOptimisticMisses => "log_optimistic_misses",
    /// Number of times that a file left such a log.
    LogDepartures => "log_departures",
}

impl Counter {
    /// True if the counter is a current level, which may go down.
    #[must_use]
    pub const fn is_gauge(self) -> bool {
        matches!(
            self,
            Self::SegmentsBytes
                | Self::SegmentsPeakBytes
                | Self::Views
                | Self::ViewsPeak
                | Self::ReservoirBytes
                | Self::BlocksBytes
                | Self::RegisteredBlocks
                | Self::ForeignRanges
                | Self::WasteBytes
        )
    }

    /// True if the counter is the highest value of another one.
    #[must_use]
    pub const fn is_peak(self) -> bool {
        matches!(self, Self::SegmentsPeakBytes | Self::ViewsPeak)
    }
}

/// A snapshot of the counters.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Pid of the process that counts.
    pub pid: u64,
    /// Reason why nothing is elided, or `None`.
    pub reason: Option<String>,
    /// Values of the counters, indexed by `Counter as usize`.
    pub values: [u64; Counter::ALL.len()],
    /// Results of the trials.
    pub trials: FactorReports,
}

impl Snapshot {
    /// Returns a snapshot with all counters at zero.
    #[must_use]
    pub fn empty(pid: u64, reason: Option<String>) -> Self {
        Self { pid, reason, values: [0; Counter::ALL.len()], trials: FactorReports::default() }
    }

    /// Parses the bytes of a stats file.
    ///
    /// # Errors
    /// The defect, as a sentence part ("is not …").
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != FILE_BYTES {
            return Err("does not have the size of a stats file");
        }
        if bytes[..8] != MAGIC {
            return Err("was not written by this version of uncopy");
        }
        let word = |offset: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&bytes[offset..offset + 8]);
            u64::from_ne_bytes(raw)
        };
        let reason_len_bytes = usize::try_from(word(REASON_LEN_OFFSET)).unwrap_or(usize::MAX);
        if reason_len_bytes > REASON_CAPACITY_BYTES {
            return Err("holds a reason that is too long");
        }
        let reason = &bytes[REASON_OFFSET..REASON_OFFSET + reason_len_bytes];
        let mut values = [0; Counter::ALL.len()];
        for (index, value) in values.iter_mut().enumerate() {
            let in_shards = (0..SHARDS).map(|shard| word(COUNTERS_OFFSET + shard * SHARD_BYTES + 8 * index));
            *value = if Counter::ALL[index].is_peak() {
                in_shards.max().unwrap_or(0)
            } else {
                in_shards.fold(0, u64::wrapping_add)
            };
        }
        Ok(Self {
            pid: word(PID_OFFSET),
            reason: (!reason.is_empty()).then(|| String::from_utf8_lossy(reason).into_owned()),
            values,
            trials: FactorReports::parse(&bytes[TRIALS_OFFSET..COUNTERS_OFFSET]),
        })
    }

    /// Returns the value of one counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Returns the JSON object that `--stats` writes and `uncopy stats` prints: one line without a newline.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = String::with_capacity(1024);
        // Writing to a String cannot fail.
        let _ = write!(json, "{{\"schema\": {}, \"pid\": {}", crate::schema::STATS, self.pid);
        for counter in Counter::ALL {
            let _ = write!(json, ", \"{}\": {}", counter.name(), self.get(*counter));
        }
        let _ = write!(json, ", \"trials\": {}", self.trials.to_json());
        json.push_str(", \"reason\": ");
        match &self.reason {
            None => json.push_str("null"),
            Some(reason) => {
                json.push('"');
                for character in reason.chars() {
                    match character {
                        '"' => json.push_str("\\\""),
                        '\\' => json.push_str("\\\\"),
                        control if control < ' ' => {
                            let _ = write!(json, "\\u{:04x}", control as u32);
                        }
                        other => json.push(other),
                    }
                }
                json.push('"');
            }
        }
        json.push('}');
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn file(reason: &str) -> std::vec::Vec<u8> {
        let mut bytes = vec![0; FILE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&77u64.to_ne_bytes());
        bytes[16..24].copy_from_slice(&(reason.len() as u64).to_ne_bytes());
        bytes[24..24 + reason.len()].copy_from_slice(reason.as_bytes());
        // A thread may drop more than it created: single shards may be below zero, their sum is not.
        let faults = COUNTERS_OFFSET + 8 * Counter::Faults as usize;
        bytes[faults..faults + 8].copy_from_slice(&7u64.to_ne_bytes());
        let last = faults + (SHARDS - 1) * SHARD_BYTES;
        bytes[last..last + 8].copy_from_slice(&2u64.wrapping_neg().to_ne_bytes());
        for (shard, value) in [(0, 20u64), (1, 30)] {
            let peak = COUNTERS_OFFSET + shard * SHARD_BYTES + 8 * Counter::ViewsPeak as usize;
            bytes[peak..peak + 8].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_name_tells_the_process_and_its_pid_namespace() {
        for (namespace, name) in [(INITIAL_PID_NAMESPACE, "77"), (4_026_532_281, "77.4026532281")] {
            let parts = StatsName { pid: 77, namespace };
            assert_eq!(std::format!("{parts}"), name);
            assert_eq!(StatsName::parse(name), Some(parts));
        }
        for other in ["", ".", "77.", ".5", "+7", "7.-5", "note", "77.control", "1.2.3", "4294967296"] {
            assert_eq!(StatsName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_written_file_reads_back() {
        let snapshot = Snapshot::parse(&file("a \"quoted\" reason\n")).expect("well-formed");
        assert_eq!((snapshot.pid, snapshot.get(Counter::Faults)), (77, 5));
        assert_eq!(snapshot.get(Counter::ViewsPeak), 30, "the largest of the shards");
        let json = snapshot.to_json();
        assert!(json.contains("\"faults\": 5") && json.contains("\\\"quoted\\\" reason\\u000a"), "{json}");
        assert!(Snapshot::parse(&file("")).expect("well-formed").to_json().ends_with("\"reason\": null}"));
    }

    #[test]
    fn foreign_or_damaged_files_are_refused() {
        let good = file("");
        assert!(Snapshot::parse(&good[..100]).is_err());
        let mut wrong_magic = good.clone();
        wrong_magic[0] = b'x';
        assert!(Snapshot::parse(&wrong_magic).is_err());
        let mut long_reason = good;
        long_reason[16..24].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert!(Snapshot::parse(&long_reason).is_err());
    }

    #[test]
    fn the_counters_fit_the_file() {
        const { assert!(8 * Counter::ALL.len() <= SHARD_BYTES && SHARDS > 1) };
        const { assert!(COUNTERS_OFFSET + SHARDS * SHARD_BYTES <= FILE_BYTES) };
    }
}
