//! The recording of `uncopy profile`: what a process received, copied and sent. The process creates the
//! file in memory and writes to it while running; the command drains it.
//!
//! A process with `UNCOPY_RECORD=DIR` (absolute, mode 0700, owned by the process) creates
//! `DIR/PID-START.rec` (mode 0600; START in ns of CLOCK_MONOTONIC). Forked children and executed programs
//! create their own files. To record a running process, the command sends a message to its control pipe
//! ([`request`]). A process that recorded nothing leaves no file, or one without a magic.
//!
//! ```text
//! offset      0  header: see the constants *_OFFSET          HEADER_BYTES; magic is written last
//!          4096  modules, by number                          MODULE_BYTES each
//!                samples: bytes touched, by stack            SAMPLE_BYTES each
//!                index of the stacks, private to the process 8 bytes each
//!                stacks (words): count, return addresses …   a stack's id is the number of its first word
//!   RING_OFFSET  ring of events                              EVENT_BYTES each
//!
//! slot of the ring, words: 0  position + 1, written last
//!                          1  start, ns        2  duration, ns
//!                          3  call | object << 8 | function << 16 | flags << 24 | fd << 32
//!                          4  thread | stack << 32
//!                          5  to               6  from               7  len, bytes
//! ```
//!
//! An event's position is its place in the order of effects. An input, a copy and an output get theirs when
//! they are done, a Forget before the memory is given up. `head` is the next position, with [`GAP_BIT`] set
//! after events were dropped and until a Gap reports that. The command stores in `tail` the position up to
//! which it has read. Invariant: `head - tail <= SLOTS`. Each word is written atomically and outlives its
//! process.
//!
//! The contents are not trusted. Reading always ends, and a slot that cannot be an event counts as lost.

pub mod event;
pub mod request;
pub mod ring;

pub use event::{Call, Event, Flags, Function, Object};
pub use ring::{Drained, Memory, Ring};

use crate::policy::Costs;
use crate::policy::costs::Cost;

extern crate std;
use std::string::String;
use std::vec::Vec;

/// First bytes of a recording, once it has begun.
pub const MAGIC: [u8; 8] = *b"uncopyR\x01";
/// Offset of the pid.
pub const PID_OFFSET: usize = 8;
/// Offset of the parent's pid.
pub const PARENT_OFFSET: usize = 16;
/// Offset of the file's creation time, ns of CLOCK_MONOTONIC.
pub const BEGAN_OFFSET: usize = 24;
/// Offset of the minimum size that is recorded, bytes.
pub const MIN_SIZE_OFFSET: usize = 32;
/// Offset of the source of times: see [`Clock`].
pub const CLOCK_OFFSET: usize = 40;
/// Offset of the phase: see [`Phase`].
pub const PHASE_OFFSET: usize = 48;
/// Offset of the end of the recording, ns of CLOCK_MONOTONIC; 0 while it goes on.
pub const ENDED_OFFSET: usize = 56;
/// Offset of the cost constants in force, ns (u64 each, in the order of `Cost`; 0: not known).
pub const COSTS_OFFSET: usize = 64;
/// Offset of the program's name.
pub const NAME_OFFSET: usize = 192;
/// Maximum length of the name, bytes; a longer one is truncated.
pub const NAME_CAPACITY_BYTES: usize = 16;
/// Offset of `head`, the next position.
pub const HEAD_OFFSET: usize = 256;
/// Offset of `tail`, the only word that the command writes.
pub const TAIL_OFFSET: usize = 384;
/// Offset of the number of events dropped because the ring was full.
pub const DROPPED_OFFSET: usize = 512;
/// Offset of the number of stacks dropped for lack of room.
pub const STACKS_LOST_OFFSET: usize = 520;
/// Offset of the number of words of stacks in use.
pub const STACK_WORDS_USED_OFFSET: usize = 528;
/// Offset of the number of modules in use.
pub const MODULES_USED_OFFSET: usize = 536;
/// Offset of the state of sampling: see [`Sampled`].
pub const SAMPLED_OFFSET: usize = 544;
/// Size of the header, bytes.
pub const HEADER_BYTES: usize = 4096;

/// Offset of the first module.
pub const MODULES_OFFSET: usize = HEADER_BYTES;
/// Size of a module, bytes: start, end, bias, inode, path_len_bytes, build_id_len_bytes (u64 each), build
/// id, path.
pub const MODULE_BYTES: usize = 512;
/// Maximum number of modules.
pub const MODULES: usize = 512;
/// In a module: offset of the build id.
pub const BUILD_ID_OFFSET: usize = 48;
/// Maximum length of a build id, bytes.
pub const BUILD_ID_CAPACITY_BYTES: usize = 32;
/// In a module: offset of the path.
pub const PATH_OFFSET: usize = BUILD_ID_OFFSET + BUILD_ID_CAPACITY_BYTES;
/// Maximum length of a module's path, bytes; a longer one is truncated.
pub const PATH_CAPACITY_BYTES: usize = MODULE_BYTES - PATH_OFFSET;

/// Offset of the first sample.
pub const SAMPLES_OFFSET: usize = MODULES_OFFSET + MODULES * MODULE_BYTES;
/// Size of a sample, bytes: the key, then the words of a [`Tally`] (u64 each).
pub const SAMPLE_BYTES: usize = 64;
/// Maximum number of samples.
pub const SAMPLES: usize = 1024;

/// Offset of the index of the stacks.
pub const STACK_INDEX_OFFSET: usize = SAMPLES_OFFSET + SAMPLES * SAMPLE_BYTES;
/// Number of entries in the index.
pub const STACK_INDEX_ENTRIES: usize = 1 << 14;
/// Offset of the stacks.
pub const STACKS_OFFSET: usize = STACK_INDEX_OFFSET + STACK_INDEX_ENTRIES * 8;
/// Number of words for stacks. Word 0 is unused.
pub const STACK_WORDS: usize = 1 << 17;
/// Maximum number of return addresses in a stack.
pub const MAX_FRAMES: usize = 64;

/// Offset of the ring.
pub const RING_OFFSET: usize = STACKS_OFFSET + STACK_WORDS * 8;
/// Size of an event, bytes.
pub const EVENT_BYTES: usize = 64;
/// Number of events in the ring, a power of two: more than half a second of an echo server at 64 KiB.
pub const SLOTS: usize = 1 << 17;
/// Size of a recording's file, bytes.
pub const FILE_BYTES: usize = RING_OFFSET + SLOTS * EVENT_BYTES;
/// Flag in `head`: events were dropped after the last one in the ring.
pub const GAP_BIT: u64 = 1 << 63;

/// Suffix of a recording's file name.
pub const SUFFIX: &str = ".rec";

const _: () = assert!(COSTS_OFFSET + 8 * Cost::ALL.len() <= NAME_OFFSET && RING_OFFSET.is_multiple_of(4096));

/// Clock of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Clock {
    /// CLOCK_MONOTONIC, read for each event.
    Monotonic = 0,
    /// Time stamp counter, calibrated against CLOCK_MONOTONIC at the start of the recording.
    Counter = 1,
}

/// Phase of a recording, as last written by its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// Recording, or killed in this phase.
    Recording = 1,
    /// The recording has ended, the process goes on.
    Ended = 2,
    /// The process has exited or executed another program.
    Exited = 3,
}

/// Whether inputs are sampled to find out what the program touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Sampled {
    /// Sampling was not requested, or no input qualified.
    No = 0,
    /// Some inputs are sampled.
    Yes = 1,
    /// Sampling was requested, but there is no userfaultfd or no memory.
    Impossible = 2,
}

/// An object file whose code is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// First address of the code.
    pub start: u64,
    /// End address of the code, exclusive.
    pub end: u64,
    /// Difference between an address in memory and that in the file's tables.
    pub bias: u64,
    /// Inode of the file; 0 if unknown.
    pub inode: u64,
    /// Path of the file as the process sees it, perhaps truncated.
    pub path: Vec<u8>,
    /// Build id, empty if the file has none.
    pub build_id: Vec<u8>,
}

/// Result of sampling a site: how much of the bytes the program touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Id of the site's stack.
    pub stack: u32,
    /// Kind of calls made at the site.
    pub call: Call,
    /// Counts of the site.
    pub tally: Tally,
}

/// Counts of a sampled site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of sampled calls.
    pub events: u64,
    /// Number of bytes in these calls.
    pub sampled_bytes: u64,
    /// Number of these bytes on pages that the program touched.
    pub touched_bytes: u64,
    /// Number of pages that the program touched.
    pub touched_pages: u64,
    /// Number of faults that the touches caused.
    pub faults: u64,
}

impl Tally {
    /// Returns the words that follow a sample's key.
    #[must_use]
    pub const fn words(self) -> [u64; 5] {
        [self.events, self.sampled_bytes, self.touched_bytes, self.touched_pages, self.faults]
    }

    const fn from_words([events, sampled_bytes, touched_bytes, touched_pages, faults]: [u64; 5]) -> Self {
        Self { events, sampled_bytes, touched_bytes, touched_pages, faults }
    }
}

/// Returns the key of a sample, never 0. The key is written after the counts.
#[must_use]
pub const fn sample_key(stack: u32, call: Call) -> u64 {
    1 << 63 | (call as u64) << 32 | stack as u64
}

/// Call stacks of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    words: Vec<u64>,
}

impl Stacks {
    /// Returns the return addresses of a stack, innermost first; empty if there is no such stack.
    #[must_use]
    pub fn frames(&self, id: u32) -> &[u64] {
        let at = id as usize;
        let count = self.words.get(at).copied().filter(|_| at != 0).unwrap_or(0);
        let count = usize::try_from(count).ok().filter(|count| *count <= MAX_FRAMES).unwrap_or(0);
        self.words.get(at + 1..at + 1 + count).unwrap_or_default()
    }
}

/// Contents of a recording without the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// Pid of the process.
    pub pid: u32,
    /// Pid of the parent.
    pub parent: u32,
    /// Start of the recording, ns of CLOCK_MONOTONIC.
    pub began_ns: u64,
    /// End of the recording, ns of CLOCK_MONOTONIC, if it has ended.
    pub ended_ns: Option<u64>,
    /// Minimum size that is recorded, bytes.
    pub min_size_bytes: u64,
    /// Whether inputs are sampled.
    pub sampled: Sampled,
    /// Clock of the times.
    pub clock: Clock,
    /// Phase of the recording.
    pub phase: Phase,
    /// Name of the program, perhaps truncated.
    pub name: String,
    /// Cost constants, if the process knows them.
    pub costs: Option<Costs>,
    /// Number of events dropped because the ring was full.
    pub dropped: u64,
    /// Number of stacks dropped for lack of room.
    pub stacks_lost: u64,
    /// Object files whose code was mapped.
    pub modules: Vec<Module>,
    /// Call stacks of the events.
    pub stacks: Stacks,
    /// Results of sampling, by site.
    pub samples: Vec<Sample>,
}

fn word(bytes: &[u8], offset: usize) -> u64 {
    let mut raw = [0; 8];
    if let Some(found) = bytes.get(offset..offset + 8) {
        raw.copy_from_slice(found);
    }
    u64::from_ne_bytes(raw)
}

/// Returns the bytes at `offset`, limited to the capacity.
fn bytes_at(bytes: &[u8], offset: usize, len_bytes: u64, capacity_bytes: usize) -> Vec<u8> {
    let len_bytes = usize::try_from(len_bytes).unwrap_or(usize::MAX).min(capacity_bytes);
    bytes.get(offset..offset + len_bytes).unwrap_or_default().to_vec()
}

impl Recording {
    /// Parses the first [`RING_OFFSET`] bytes of a file, which precede the ring. The process adds each
    /// stack and module before the first event that refers to it. So a reader parses again when an event
    /// refers to an unknown one.
    ///
    /// # Errors
    /// The defect, as a sentence part ("is not …").
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() < RING_OFFSET {
            return Err("does not have the size of a recording");
        }
        if bytes[..8] == [0; 8] {
            return Err("has not begun");
        }
        if bytes[..8] != MAGIC {
            return Err("was not written by this version of uncopy");
        }
        let Ok(pid) = u32::try_from(word(bytes, PID_OFFSET)) else { return Err("names no process") };
        let name = &bytes[NAME_OFFSET..NAME_OFFSET + NAME_CAPACITY_BYTES];
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let words_used = usize::try_from(word(bytes, STACK_WORDS_USED_OFFSET)).unwrap_or(usize::MAX);
        let words = bytes[STACKS_OFFSET..RING_OFFSET].chunks_exact(8).take(words_used);
        let modules_used = usize::try_from(word(bytes, MODULES_USED_OFFSET)).unwrap_or(usize::MAX);
        let modules = bytes[MODULES_OFFSET..SAMPLES_OFFSET].chunks_exact(MODULE_BYTES).take(modules_used);
        let samples = bytes[SAMPLES_OFFSET..STACK_INDEX_OFFSET].chunks_exact(SAMPLE_BYTES);
        Ok(Self {
            pid,
            parent: u32::try_from(word(bytes, PARENT_OFFSET)).unwrap_or(0),
            began_ns: word(bytes, BEGAN_OFFSET),
            ended_ns: Some(word(bytes, ENDED_OFFSET)).filter(|ns| *ns != 0),
            min_size_bytes: word(bytes, MIN_SIZE_OFFSET),
            sampled: match word(bytes, SAMPLED_OFFSET) {
                1 => Sampled::Yes,
                2 => Sampled::Impossible,
                _ => Sampled::No,
            },
            clock: if word(bytes, CLOCK_OFFSET) == 1 { Clock::Counter } else { Clock::Monotonic },
            phase: match word(bytes, PHASE_OFFSET) {
                2 => Phase::Ended,
                3 => Phase::Exited,
                _ => Phase::Recording,
            },
            name: String::from_utf8_lossy(name).into_owned(),
            costs: costs(bytes),
            dropped: word(bytes, DROPPED_OFFSET),
            stacks_lost: word(bytes, STACKS_LOST_OFFSET),
            modules: modules.filter_map(Module::parse).collect(),
            stacks: Stacks { words: words.map(|bytes| word(bytes, 0)).collect() },
            samples: samples.filter_map(Sample::parse).collect(),
        })
    }

    /// Returns the module that contains an address, and the address in terms of the file's tables. If
    /// several contained it at different times, returns the last one.
    #[must_use]
    pub fn module_at(&self, address: u64) -> Option<(&Module, u64)> {
        let holds = |module: &&Module| (module.start..module.end).contains(&address);
        let module = self.modules.iter().rev().find(holds)?;
        Some((module, address.wrapping_sub(module.bias)))
    }
}

fn costs(bytes: &[u8]) -> Option<Costs> {
    let mut costs = Costs::DEFAULT;
    for which in Cost::ALL {
        match word(bytes, COSTS_OFFSET + 8 * *which as usize) {
            0 => return None,
            ns => costs.set(*which, ns),
        }
    }
    Some(costs)
}

impl Module {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let module = Self {
            start: word(bytes, 0),
            end: word(bytes, 8),
            bias: word(bytes, 16),
            inode: word(bytes, 24),
            path: bytes_at(bytes, PATH_OFFSET, word(bytes, 32), PATH_CAPACITY_BYTES),
            build_id: bytes_at(bytes, BUILD_ID_OFFSET, word(bytes, 40), BUILD_ID_CAPACITY_BYTES),
        };
        (module.start < module.end).then_some(module)
    }
}

impl Sample {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let key = word(bytes, 0);
        let call = Call::from_code((key >> 32) as u8)?;
        let stack = key as u32;
        let tally = Tally::from_words(core::array::from_fn(|index| word(bytes, 8 * (index + 1))));
        // A row without a tally is unused.
        let is_entered = key == sample_key(stack, call) && tally.sampled_bytes != 0;
        is_entered.then_some(Self { stack, call, tally })
    }
}

/// Returns the file name of a recording.
#[must_use]
pub fn file_name(pid: u32, began_ns: u64) -> String {
    std::format!("{pid}-{began_ns}{SUFFIX}")
}

/// Parses the file name of a recording into pid and start, ns of CLOCK_MONOTONIC.
#[must_use]
pub fn parse_file_name(name: &[u8]) -> Option<(u32, u64)> {
    let stem = name.strip_suffix(SUFFIX.as_bytes())?;
    let (pid, began) = stem.split_at(stem.iter().position(|byte| *byte == b'-')?);
    let number = |digits: &[u8]| core::str::from_utf8(digits).ok()?.parse::<u64>().ok();
    Some((u32::try_from(number(pid)?).ok()?, number(&began[1..])?))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
