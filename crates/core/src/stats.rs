//! The counters that `--stats` and `uncopy stats PID` print, and the file that carries them from
//! a running program to its owner.
//!
//! The file is one page, mapped shared by the program that counts and read by `uncopy stats`:
//!
//! ```text
//! offset   0  magic (8 bytes)          b"uncopy\0" and the layout's version
//!          8  pid (u64)
//!         16  reason_len_bytes (u64)   0: active or not yet needed
//!         24  reason (UTF-8, at most REASON_CAPACITY_BYTES)
//!        512  trials (see policy::trials::standing)
//!       1280  shards of SHARD_BYTES: counters (u64 each, native byte order, in the order of Counter)
//! ```

use crate::policy::trials::{Standings, TRIALS_BYTES};
use core::fmt::Write as _;

extern crate std;
use std::string::String;

/// Size of the stats file, bytes.
pub const FILE_BYTES: usize = 4096;
/// What follows the pid in the name of the pipe, beside the stats file, that takes commands.
pub const CONTROL_SUFFIX: &str = ".control";
/// Written to that pipe: turn every view back into plain memory.
pub const CONTROL_RELEASE: u8 = b'r';
/// Reason of a process that was told to.
pub const REASON_RELEASED: &str = "released: every view was turned back into plain memory";
/// First bytes of the stats file.
pub const MAGIC: [u8; 8] = *b"uncopy\0\x03";
/// Offset of the pid.
pub const PID_OFFSET: usize = 8;
/// Offset of the reason's length.
pub const REASON_LEN_OFFSET: usize = 16;
/// Offset of the reason's text.
pub const REASON_OFFSET: usize = 24;
/// Longest reason, bytes.
pub const REASON_CAPACITY_BYTES: usize = TRIALS_OFFSET - REASON_OFFSET;
/// Offset of what trials have shown.
pub const TRIALS_OFFSET: usize = 512;
/// Offset of the first counter.
pub const COUNTERS_OFFSET: usize = TRIALS_OFFSET + TRIALS_BYTES;
/// Length of a shard, bytes: cache lines that no other shard shares.
pub const SHARD_BYTES: usize = 256;
/// Shards: threads count in different ones. A counter's value is the sum of its shards' (modulo 2^64), a
/// highest value the largest of them.
pub const SHARDS: usize = (FILE_BYTES - COUNTERS_OFFSET) / SHARD_BYTES;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $variant:ident => $name:literal,)*) => {
        /// What is counted. The discriminant is the counter's place in the file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($(#[doc = $doc])* $variant,)* }

        impl Counter {
            /// Every counter, in file order.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];

            /// Name in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What is counted, in a sentence.
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
    /// Page faults served.
    Faults => "faults",
    /// Bytes of views put into pages because the program touched them.
    MaterializedBytes => "materialized_bytes",
    /// Pages moved with `UFFDIO_MOVE`.
    MovedPages => "moved_pages",
    /// Bytes of segments alive.
    SegmentsBytes => "segments_bytes",
    /// Highest value of `segments_bytes`.
    SegmentsPeakBytes => "segments_peak_bytes",
    /// Views alive.
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
    /// Times that something failed inside and plain copying took over.
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
    /// Streams at which references were received from some moment on.
    Lanes => "lanes",
    /// Bytes that were received by reference from another program.
    LaneReceivedBytes => "lane_received_bytes",
    /// Bytes that were sent by reference to another program.
    LaneSentBytes => "lane_sent_bytes",
    /// Bytes that were copied into shared memory to be sent by reference.
    LaneCopiedBytes => "lane_copied_bytes",
    /// Bytes that were received at a lane through the kernel, as they are.
    LaneLiteralBytes => "lane_literal_bytes",
    /// Syncs of files that the log has answered.
    LogSyncs => "log_syncs",
    /// Bytes that survive by those.
    LogBytes => "log_bytes",
}

impl Counter {
    /// Whether it tells what is there now, and goes down as well.
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

    /// Whether it is the highest value that another one had.
    #[must_use]
    pub const fn is_peak(self) -> bool {
        matches!(self, Self::SegmentsPeakBytes | Self::ViewsPeak)
    }
}

/// A snapshot of the counters.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Process the counters belong to.
    pub pid: u64,
    /// Why nothing is elided, or `None`.
    pub reason: Option<String>,
    /// Values, indexed by `Counter as usize`.
    pub values: [u64; Counter::ALL.len()],
    /// What trials have shown.
    pub trials: Standings,
}

impl Snapshot {
    /// A snapshot with all counters at zero.
    #[must_use]
    pub fn empty(pid: u64, reason: Option<String>) -> Self {
        Self { pid, reason, values: [0; Counter::ALL.len()], trials: Standings::default() }
    }

    /// Reads the stats file's bytes.
    ///
    /// # Errors
    /// What is wrong with them, as a sentence part ("is not …").
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
            trials: Standings::parse(&bytes[TRIALS_OFFSET..COUNTERS_OFFSET]),
        })
    }

    /// One counter's value.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// The JSON object that `--stats` writes and `uncopy stats` prints: one line, no newline.
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
        // One thread counted more than there are, another fewer than none.
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
