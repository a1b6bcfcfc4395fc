//! The ledger of `uncopy run --explain`: what each call site did, in a file in memory that the command makes,
//! every process of the run writes to, and the command reads when the run is over.
//!
//! ```text
//! offset      0  magic (8 bytes), then the number of slots handed out (u64; may exceed SLOTS),
//!                then why the command started its program plainly: length (u64), text (UTF-8)
//!          4096  slot 0, slot 1, …                                        SLOT_BYTES each
//!
//! slot        0  pid (u64; 0: nobody's)
//!             8  phase (u64, see Phase)
//!            16  reason_len_bytes (u64), then the reason (UTF-8, at most REASON_CAPACITY_BYTES)
//!           368  what became of streams (see streams::Streams)
//!           432  the constants of the machine in force, ns (u64 each, in the order of Cost; 0: not known yet)
//!           496  the program's name (at most NAME_CAPACITY_BYTES, then zeroes)
//!           512  trials (see policy::trials::standing)
//!          1280  modules: inode (u64), path_len_bytes (u64), path          MODULE_BYTES each
//!         16384  entries, by place: fields (u64 each, in the order of Field)  ENTRY_BYTES each
//! ```
//!
//! Every word is written on its own and stays when its process ends, however it ends: the account of a
//! killed process is complete but for what it was doing at that moment.

use crate::policy::Costs;
use crate::policy::Kind;
use crate::policy::costs::Cost;
use crate::policy::placement::ALLOCATION_SITES;
use crate::policy::sites::SITES;
use crate::policy::trials::{Standings, TRIALS_BYTES};
use crate::streams::{STREAMS_BYTES, Streams};

extern crate std;
use std::string::String;
use std::vec::Vec;

/// First bytes of the ledger.
pub const MAGIC: [u8; 8] = *b"uncopyL\x04";
/// Offset of the number of slots handed out.
pub const HANDED_OUT_OFFSET: usize = 8;
/// Processes that find room.
pub const SLOTS: usize = 40;
/// Offset of the length of why the program was started plainly; its text follows.
pub const WHY_PLAIN_LEN_OFFSET: usize = 16;
/// Offset of the first slot.
pub const SLOTS_OFFSET: usize = 4096;
/// In a slot: offset of the pid.
pub const PID_OFFSET: usize = 0;
/// In a slot: offset of the phase.
pub const PHASE_OFFSET: usize = 8;
/// In a slot: offset of the reason's length.
pub const REASON_LEN_OFFSET: usize = 16;
/// In a slot: offset of the reason's text.
pub const REASON_OFFSET: usize = 24;
/// Longest reason, bytes.
pub const REASON_CAPACITY_BYTES: usize = STREAMS_OFFSET - REASON_OFFSET;
/// In a slot: offset of what became of streams.
pub const STREAMS_OFFSET: usize = COSTS_OFFSET - STREAMS_BYTES;
/// In a slot: offset of the first of the machine's constants.
pub const COSTS_OFFSET: usize = NAME_OFFSET - 8 * Cost::ALL.len();
/// In a slot: offset of the program's name.
pub const NAME_OFFSET: usize = TRIALS_OFFSET - NAME_CAPACITY_BYTES;
/// In a slot: offset of what trials have shown.
pub const TRIALS_OFFSET: usize = 512;
/// Longest name, bytes; a longer one is cut.
pub const NAME_CAPACITY_BYTES: usize = 16;
/// In a slot: offset of the first module.
pub const MODULES_OFFSET: usize = TRIALS_OFFSET + TRIALS_BYTES;
/// Bytes of a module.
pub const MODULE_BYTES: usize = 256;
/// Longest path of a module, bytes.
pub const PATH_CAPACITY_BYTES: usize = MODULE_BYTES - 16;
/// Modules of a process.
pub const MODULES: usize = (ENTRIES_OFFSET - MODULES_OFFSET) / MODULE_BYTES;
/// Stands for no module.
pub const NO_MODULE: u64 = 0xFFFF;
/// In a slot: offset of the first entry.
pub const ENTRIES_OFFSET: usize = 16384;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 8 * Field::ALL.len();
/// Entries of a process: copies and inputs by their site, then allocation sites.
pub const ENTRIES: usize = SITES + ALLOCATION_SITES;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = (ENTRIES_OFFSET + ENTRIES * ENTRY_BYTES).next_multiple_of(4096);
/// Size of the ledger, bytes.
pub const LEDGER_BYTES: usize = SLOTS_OFFSET + SLOTS * SLOT_BYTES;

/// Where a process is in its life, as it said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// It runs, or ended without saying so.
    Running = 1,
    /// It ended in an orderly way.
    Ended = 2,
}

macro_rules! fields {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// A word of an entry. The discriminant is its place.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Field { $($(#[$doc])* $variant,)* }

        impl Field {
            /// Every field, in order.
            pub const ALL: &'static [Field] = &[$(Field::$variant,)*];

            /// Name in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

fields! {
    /// Return address in the program; 0: nobody has the entry.
    Caller => "caller",
    /// Kind, size class << 8, module << 16.
    What => "what",
    /// Offset of the caller in the module's file.
    FileOffset => "file_offset",
    /// Calls (of an allocation site: blocks handed out).
    Calls => "calls",
    /// Bytes that they asked for.
    Bytes => "bytes",
    /// Calls that elided something (of an allocation site: blocks that held a view when they were freed).
    Elided => "elided",
    /// Bytes that were not copied.
    ElidedBytes => "elided_bytes",
    /// Bytes that were copied by the engine.
    CopiedBytes => "copied_bytes",
    /// Of these, bytes copied because the program was known to touch them.
    LearnedBytes => "learned_bytes",
    /// Time that eliding saved, ns.
    SavedNs => "saved_ns",
    /// Time that tracking, moving and faulting cost, ns.
    SpentNs => "spent_ns",
    /// Faults on views that the site made (of an allocation site: on empty pages of its blocks).
    Faults => "faults",
    /// Pages that these put in place.
    FaultPages => "fault_pages",
    /// Calls with nothing to elide: the bytes were not a view (of an allocation site: blocks that were handed
    /// out as plain memory).
    Plain => "plain",
    /// Calls with too little to elide to pay.
    Small => "small",
    /// Calls that were left out because it does not pay, or to see whether it does: see `policy::trials`.
    Withheld => "withheld",
    /// Calls while the site was switched off.
    Off => "off",
    /// Calls that could not elide: a block that can hold no view, no memory.
    Refused => "refused",
    /// Inputs with far more room than ever arrives, which were passed over.
    Roomy => "roomy",
    /// Times that the site was switched off.
    SwitchedOff => "switched_off",
    /// Calls for which it is switched off still.
    OffCalls => "off_calls",
    /// The balance that decides, ns (signed; of an allocation site: its score).
    Balance => "balance",
    /// Learned pages from the start of the buffer, a bit each.
    LearnedHead => "learned_head",
    /// Learned pages from its end.
    LearnedTail => "learned_tail",
    /// Whether the entry stands for several sites, for which there was no room.
    Shared => "shared",
}

/// A module of a process: a file that code was mapped from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Inode of the file when it was mapped.
    pub inode: u64,
    /// Its path, in the eyes of the process.
    pub path: Vec<u8>,
}

/// One site of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it does.
    pub kind: Kind,
    /// See `policy::sites::size_class`.
    pub size_class: u32,
    /// Index in the process's modules.
    pub module: Option<usize>,
    values: [u64; Field::ALL.len()],
}

impl Entry {
    /// One field.
    #[must_use]
    pub fn get(&self, field: Field) -> u64 {
        self.values[field as usize]
    }

    /// The balance, ns.
    #[must_use]
    pub fn balance(&self) -> i64 {
        self.get(Field::Balance).cast_signed()
    }
}

/// What one process wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// Its program's name, perhaps cut.
    pub name: String,
    /// Whether it said that it ended.
    pub is_ended: bool,
    /// Why nothing is elided, or `None`.
    pub reason: Option<String>,
    /// The constants of the machine that it went by; `None` if it needed none.
    pub costs: Option<Costs>,
    /// What became of streams.
    pub streams: Streams,
    /// What trials have shown.
    pub trials: Standings,
    /// What code it ran.
    pub modules: Vec<Module>,
    /// Its sites that were called.
    pub entries: Vec<Entry>,
}

/// What all processes wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Ledger {
    /// In the order in which they first did something.
    pub processes: Vec<Process>,
    /// Processes that found no room.
    pub without_room: u64,
    /// Why the command started its program plainly, or `None`.
    pub why_plain: Option<String>,
}

/// The word to write into [`Field::What`].
#[must_use]
pub const fn what(kind: Kind, size_class: u32, module: u64) -> u64 {
    kind as u64 | (size_class as u64) << 8 | module << 16
}

fn word(bytes: &[u8], offset: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_ne_bytes(raw)
}

/// Text that is preceded by its length; cut to what there is.
fn text(bytes: &[u8], len_offset: usize, capacity_bytes: usize) -> &[u8] {
    let len_bytes = usize::try_from(word(bytes, len_offset)).unwrap_or(0).min(capacity_bytes);
    &bytes[len_offset + 8..len_offset + 8 + len_bytes]
}

/// The same as a sentence part; `None` if it is empty.
fn reason(bytes: &[u8], len_offset: usize, capacity_bytes: usize) -> Option<String> {
    let text = text(bytes, len_offset, capacity_bytes);
    (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned())
}

/// The constants of the machine in a slot.
fn costs(slot: &[u8]) -> Option<Costs> {
    let mut costs = Costs::DEFAULT;
    for which in Cost::ALL {
        match word(slot, COSTS_OFFSET + 8 * *which as usize) {
            0 => return None,
            ns => costs.set(*which, ns),
        }
    }
    Some(costs)
}

impl Ledger {
    /// Reads a ledger's bytes. What the processes wrote is not trusted: whatever it is, this returns.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence part ("is not …").
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != LEDGER_BYTES {
            return Err("does not have the size of a ledger");
        }
        if bytes[..8] != MAGIC {
            return Err("was not written by this version of uncopy");
        }
        let handed_out = word(bytes, HANDED_OUT_OFFSET);
        let used = usize::try_from(handed_out).unwrap_or(SLOTS).min(SLOTS);
        let slots = bytes[SLOTS_OFFSET..].chunks_exact(SLOT_BYTES).take(used);
        Ok(Self {
            processes: slots.filter_map(Process::parse).collect(),
            without_room: handed_out.saturating_sub(SLOTS as u64),
            why_plain: reason(bytes, WHY_PLAIN_LEN_OFFSET, SLOTS_OFFSET - WHY_PLAIN_LEN_OFFSET - 8),
        })
    }
}

impl Process {
    fn parse(slot: &[u8]) -> Option<Self> {
        let pid = u32::try_from(word(slot, PID_OFFSET)).ok().filter(|pid| *pid != 0)?;
        let name = &slot[NAME_OFFSET..NAME_OFFSET + NAME_CAPACITY_BYTES];
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let modules = slot[MODULES_OFFSET..ENTRIES_OFFSET].chunks_exact(MODULE_BYTES).map(|module| Module {
            inode: word(module, 0),
            path: text(module, 8, PATH_CAPACITY_BYTES).to_vec(),
        });
        let entries = slot[ENTRIES_OFFSET..].chunks_exact(ENTRY_BYTES).take(ENTRIES);
        Some(Self {
            pid,
            is_ended: word(slot, PHASE_OFFSET) == Phase::Ended as u64,
            name: String::from_utf8_lossy(name).into_owned(),
            reason: reason(slot, REASON_LEN_OFFSET, REASON_CAPACITY_BYTES),
            costs: costs(slot),
            streams: Streams::parse(&slot[STREAMS_OFFSET..COSTS_OFFSET]),
            trials: Standings::parse(&slot[TRIALS_OFFSET..MODULES_OFFSET]),
            modules: modules.collect(),
            entries: entries.filter_map(Entry::parse).collect(),
        })
    }
}

impl Entry {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut values = [0; Field::ALL.len()];
        for (index, value) in values.iter_mut().enumerate() {
            *value = word(bytes, 8 * index);
        }
        let what = values[Field::What as usize];
        let kinds = [Kind::Copy, Kind::Input, Kind::Allocation];
        let kind = kinds.into_iter().find(|kind| *kind as u64 == what & 0xFF)?;
        let module = usize::try_from(what >> 16).ok().filter(|module| *module < MODULES);
        let entry = Self { kind, size_class: (what >> 8 & 0xFF) as u32, module, values };
        (entry.get(Field::Caller) != 0).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::Outcome;
    use std::vec;

    fn put(bytes: &mut [u8], offset: usize, value: u64) {
        bytes[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
    }

    fn ledger() -> Vec<u8> {
        let mut bytes = vec![0; LEDGER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        put(&mut bytes, HANDED_OUT_OFFSET, 2);
        let slot = SLOTS_OFFSET + SLOT_BYTES;
        put(&mut bytes, slot + PID_OFFSET, 77);
        put(&mut bytes, slot + PHASE_OFFSET, Phase::Ended as u64);
        put(&mut bytes, slot + STREAMS_OFFSET + 8 * Outcome::Unpaired as usize, 4);
        let module = slot + MODULES_OFFSET + MODULE_BYTES;
        put(&mut bytes, module, 5);
        put(&mut bytes, module + 8, 7);
        bytes[module + 16..module + 23].copy_from_slice(b"/bin/sh");
        let entry = slot + ENTRIES_OFFSET + (ENTRIES - 1) * ENTRY_BYTES;
        put(&mut bytes, entry, 0x1234);
        put(&mut bytes, entry + 8 * Field::What as usize, what(Kind::Allocation, 17, 1));
        put(&mut bytes, entry + 8 * Field::Balance as usize, (-8i64).cast_unsigned());
        bytes
    }

    #[test]
    fn what_processes_wrote_reads_back() {
        let read = Ledger::parse(&ledger()).expect("well-formed");
        assert_eq!((read.processes.len(), read.without_room), (1, 0), "the first slot is nobody's");
        let process = &read.processes[0];
        assert_eq!((process.pid, process.is_ended, process.reason.as_ref()), (77, true, None));
        assert_eq!(process.streams.get(Outcome::Unpaired), 4);
        let [entry] = process.entries.as_slice() else { panic!("{:?}", process.entries) };
        assert_eq!((entry.kind, entry.size_class, entry.balance()), (Kind::Allocation, 17, -8));
        assert_eq!(process.modules[entry.module.expect("known")].path, b"/bin/sh");
    }

    #[test]
    fn whatever_is_written_reading_returns() {
        let mut bytes = ledger();
        put(&mut bytes, HANDED_OUT_OFFSET, SLOTS as u64 + 3);
        for byte in &mut bytes[SLOTS_OFFSET + 2 * SLOT_BYTES..SLOTS_OFFSET + 3 * SLOT_BYTES] {
            *byte = 0xFF;
        }
        let read = Ledger::parse(&bytes).expect("well-formed");
        assert_eq!((read.processes.len(), read.without_room), (1, 3));
        assert!(Ledger::parse(&bytes[1..]).is_err());
        bytes[0] ^= 1;
        assert!(Ledger::parse(&bytes).is_err());
    }
}
