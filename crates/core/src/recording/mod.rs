//! The recording of `uncopy profile`: what a process received, copied and sent, in a file in memory that the
//! process makes, writes to while it runs, and the command drains.
//!
//! A process that finds `UNCOPY_RECORD=DIR` (absolute, mode 0700, the process's own) makes `DIR/PID-START.rec`
//! (mode 0600; START: when, ns of CLOCK_MONOTONIC); forked children and programs that it executes make files of
//! their own. The command asks a process that runs already by a message to its pipe ([`request`]). A process that
//! has recorded nothing leaves no file when it ends, or one without a magic.
//!
//! ```text
//! offset      0  header: see the constants *_OFFSET          HEADER_BYTES; magic is written last
//!          4096  modules, by number                          MODULE_BYTES each
//!                samples, what was touched by stack          SAMPLE_BYTES each
//!                index of the stacks (the process's own)     8 bytes each
//!                stacks: count, return addresses … (words)   a stack's id is its word's number; 0: not known
//!   RING_OFFSET  ring of events                              EVENT_BYTES each
//!
//! slot of the ring, words: 0  position + 1, written last
//!                          1  start, ns        2  duration, ns
//!                          3  call | object << 8 | function << 16 | flags << 24 | fd << 32
//!                          4  thread | stack << 32
//!                          5  to               6  from               7  len, bytes
//! ```
//!
//! An event's position is its place in the order of effects: an input, a copy and an output take theirs when they
//! are done, a Forget before the memory is given up. `head` is the next position, with [`GAP_BIT`] while events
//! that found no room are not announced yet; the command stores in `tail` up to where it has read. Invariant:
//! `head - tail <= SLOTS`. Every word is written on its own and stays when its process ends, however it ends.
//!
//! Nothing that a process wrote is believed: whatever the bytes are, reading ends, and what cannot be an event
//! counts as lost.

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

/// First bytes of a recording that has begun.
pub const MAGIC: [u8; 8] = *b"uncopyR\x01";
/// Offset of the pid.
pub const PID_OFFSET: usize = 8;
/// Offset of the parent's pid.
pub const PARENT_OFFSET: usize = 16;
/// Offset of when the file was made, ns of CLOCK_MONOTONIC.
pub const BEGAN_OFFSET: usize = 24;
/// Offset of the smallest size that is recorded, bytes.
pub const MIN_SIZE_OFFSET: usize = 32;
/// Offset of where the times come from: see [`Clock`].
pub const CLOCK_OFFSET: usize = 40;
/// Offset of the phase: see [`Phase`].
pub const PHASE_OFFSET: usize = 48;
/// Offset of when the recording ended, ns; 0: it has not.
pub const ENDED_OFFSET: usize = 56;
/// Offset of the constants of the machine in force, ns (u64 each, in the order of `Cost`; 0: not known).
pub const COSTS_OFFSET: usize = 64;
/// Offset of the program's name.
pub const NAME_OFFSET: usize = 192;
/// Longest name, bytes; a longer one is cut.
pub const NAME_CAPACITY_BYTES: usize = 16;
/// Offset of `head`.
pub const HEAD_OFFSET: usize = 256;
/// Offset of `tail`, the only word that the command writes.
pub const TAIL_OFFSET: usize = 384;
/// Offset of the number of events that found no room in the ring.
pub const DROPPED_OFFSET: usize = 512;
/// Offset of the number of stacks that found no room.
pub const STACKS_LOST_OFFSET: usize = 520;
/// Offset of the number of words in use of the stacks.
pub const STACK_WORDS_USED_OFFSET: usize = 528;
/// Offset of the number of modules in use.
pub const MODULES_USED_OFFSET: usize = 536;
/// Offset of whether inputs are sampled: see [`Sampled`].
pub const SAMPLED_OFFSET: usize = 544;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;

/// Offset of the first module.
pub const MODULES_OFFSET: usize = HEADER_BYTES;
/// Bytes of a module: start, end, bias, inode, path_len_bytes, build_id_len_bytes (u64 each), build id, path.
pub const MODULE_BYTES: usize = 512;
/// Modules that find room.
pub const MODULES: usize = 512;
/// In a module: offset of the build id.
pub const BUILD_ID_OFFSET: usize = 48;
/// Longest build id, bytes.
pub const BUILD_ID_CAPACITY_BYTES: usize = 32;
/// In a module: offset of the path.
pub const PATH_OFFSET: usize = BUILD_ID_OFFSET + BUILD_ID_CAPACITY_BYTES;
/// Longest path of a module, bytes; a longer one is cut.
pub const PATH_CAPACITY_BYTES: usize = MODULE_BYTES - PATH_OFFSET;

/// Offset of the first sample.
pub const SAMPLES_OFFSET: usize = MODULES_OFFSET + MODULES * MODULE_BYTES;
/// Bytes of a sample: its key, then the words of its [`Tally`] (u64 each).
pub const SAMPLE_BYTES: usize = 64;
/// Samples that find room.
pub const SAMPLES: usize = 1024;

/// Offset of the index of the stacks.
pub const STACK_INDEX_OFFSET: usize = SAMPLES_OFFSET + SAMPLES * SAMPLE_BYTES;
/// Entries of the index.
pub const STACK_INDEX_ENTRIES: usize = 1 << 14;
/// Offset of the stacks.
pub const STACKS_OFFSET: usize = STACK_INDEX_OFFSET + STACK_INDEX_ENTRIES * 8;
/// Words of the stacks; word 0 is nobody's.
pub const STACK_WORDS: usize = 1 << 17;
/// Return addresses of a stack at most.
pub const MAX_FRAMES: usize = 64;

/// Offset of the ring.
pub const RING_OFFSET: usize = STACKS_OFFSET + STACK_WORDS * 8;
/// Bytes of an event.
pub const EVENT_BYTES: usize = 64;
/// Events that the ring holds (a power of two): more than half a second of an echo server at 64 KiB.
pub const SLOTS: usize = 1 << 17;
/// Size of a recording's file, bytes.
pub const FILE_BYTES: usize = RING_OFFSET + SLOTS * EVENT_BYTES;
/// In `head`: events were dropped since the last one in the ring.
pub const GAP_BIT: u64 = 1 << 63;

/// End of a recording's file name.
pub const SUFFIX: &str = ".rec";

const _: () = assert!(COSTS_OFFSET + 8 * Cost::ALL.len() <= NAME_OFFSET && RING_OFFSET.is_multiple_of(4096));

/// Where the times of a recording come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Clock {
    /// CLOCK_MONOTONIC, asked for each time.
    Monotonic = 0,
    /// The processor's time stamp counter, compared with CLOCK_MONOTONIC when the recording began.
    Counter = 1,
}

/// Where a recording is in its life, as its process said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// The process records, or ended without saying so.
    Recording = 1,
    /// The process goes on, the recording has ended.
    Ended = 2,
    /// The process ended in an orderly way, or executed another program.
    Exited = 3,
}

/// Whether it is found out what the program touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Sampled {
    /// Nobody asked for it, or nothing was received that could be sampled.
    No = 0,
    /// Some inputs are.
    Yes = 1,
    /// It was to be, but there is no userfaultfd, or no memory.
    Impossible = 2,
}

/// An object that code was loaded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// First address of its code.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// What is added to the addresses in the file's tables.
    pub bias: u64,
    /// Inode of the file; 0: not known.
    pub inode: u64,
    /// Its path, in the eyes of the process, perhaps cut.
    pub path: Vec<u8>,
    /// Its build id, if it has one.
    pub build_id: Vec<u8>,
}

/// What was found out by letting some inputs be elided: how much of what a site handled the program touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Where the site is: the id of its stack.
    pub stack: u32,
    /// What the site does.
    pub call: Call,
    /// How much.
    pub tally: Tally,
}

/// What is counted of a site that is sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that were sampled.
    pub events: u64,
    /// Bytes of these.
    pub sampled_bytes: u64,
    /// Of these, bytes on pages that the program touched.
    pub touched_bytes: u64,
    /// Pages that it touched.
    pub touched_pages: u64,
    /// Faults by which that showed.
    pub faults: u64,
}

impl Tally {
    /// The words behind a sample's key.
    #[must_use]
    pub const fn words(self) -> [u64; 5] {
        [self.events, self.sampled_bytes, self.touched_bytes, self.touched_pages, self.faults]
    }

    const fn from_words([events, sampled_bytes, touched_bytes, touched_pages, faults]: [u64; 5]) -> Self {
        Self { events, sampled_bytes, touched_bytes, touched_pages, faults }
    }
}

/// The word to write into a sample as its key, last: never 0.
#[must_use]
pub const fn sample_key(stack: u32, call: Call) -> u64 {
    1 << 63 | (call as u64) << 32 | stack as u64
}

/// The stacks of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    words: Vec<u64>,
}

impl Stacks {
    /// The return addresses of a stack, innermost first; none if there is no such stack.
    #[must_use]
    pub fn frames(&self, id: u32) -> &[u64] {
        let at = id as usize;
        let count = self.words.get(at).copied().filter(|_| at != 0).unwrap_or(0);
        let count = usize::try_from(count).ok().filter(|count| *count <= MAX_FRAMES).unwrap_or(0);
        self.words.get(at + 1..at + 1 + count).unwrap_or_default()
    }
}

/// What a recording holds beside its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// Pid of the process.
    pub pid: u32,
    /// Pid of its parent.
    pub parent: u32,
    /// When it began, ns of CLOCK_MONOTONIC.
    pub began_ns: u64,
    /// When it ended, if it said so.
    pub ended_ns: Option<u64>,
    /// Smallest size that is recorded, bytes.
    pub min_size_bytes: u64,
    /// Whether inputs are sampled.
    pub sampled: Sampled,
    /// Where the times come from.
    pub clock: Clock,
    /// Where it is in its life.
    pub phase: Phase,
    /// The program's name, perhaps cut.
    pub name: String,
    /// The constants of the machine, if the process knows them.
    pub costs: Option<Costs>,
    /// Events that found no room in the ring.
    pub dropped: u64,
    /// Stacks that found no room.
    pub stacks_lost: u64,
    /// What code it ran.
    pub modules: Vec<Module>,
    /// Where events came from.
    pub stacks: Stacks,
    /// What was touched.
    pub samples: Vec<Sample>,
}

fn word(bytes: &[u8], offset: usize) -> u64 {
    let mut raw = [0; 8];
    if let Some(found) = bytes.get(offset..offset + 8) {
        raw.copy_from_slice(found);
    }
    u64::from_ne_bytes(raw)
}

/// Bytes at `offset`, at most as many as there is room for.
fn text(bytes: &[u8], offset: usize, len_bytes: u64, capacity_bytes: usize) -> Vec<u8> {
    let len_bytes = usize::try_from(len_bytes).unwrap_or(usize::MAX).min(capacity_bytes);
    bytes.get(offset..offset + len_bytes).unwrap_or_default().to_vec()
}

impl Recording {
    /// Reads what lies before the ring: the first [`RING_OFFSET`] bytes of the file. Stacks and modules are added
    /// while the process runs, each before the first event that names it: to be read again when an event names
    /// one that is not known yet.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence part ("is not …").
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

    /// The module that holds an address, and the address as the file's tables have it. Of several that held it one
    /// after the other, the last.
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
            path: text(bytes, PATH_OFFSET, word(bytes, 32), PATH_CAPACITY_BYTES),
            build_id: text(bytes, BUILD_ID_OFFSET, word(bytes, 40), BUILD_ID_CAPACITY_BYTES),
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
        // A row in which nothing was entered is none.
        let is_entered = key == sample_key(stack, call) && tally.sampled_bytes != 0;
        is_entered.then_some(Self { stack, call, tally })
    }
}

/// The name of a recording's file.
#[must_use]
pub fn file_name(pid: u32, began_ns: u64) -> String {
    std::format!("{pid}-{began_ns}{SUFFIX}")
}

/// What the name of a file says, if it is a recording's: pid, and when it began.
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
