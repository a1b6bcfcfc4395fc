//! The ledger of `uncopy run --explain`, which records what each call site did. The command creates this
//! file in memory, every process of the run writes to it, and the command reads it after the run.
//!
//! ```text
//! offset      0  magic (8 bytes), then the number of slots handed out (u64; may exceed SLOTS),
//!                then why the command ran its program without the library: length (u64), text (UTF-8)
//!          4096  slot 0, slot 1, …                                        SLOT_BYTES each
//!
//! slot        0  pid (u64; 0: unused)
//!             8  phase (u64, see Phase)
//!            16  reason_len_bytes (u64), then the reason (UTF-8, at most REASON_CAPACITY_BYTES)
//!           368  number of streams by outcome (see streams::Streams)
//!           432  cost constants in force, ns (u64 each, in the order of Cost; 0: not known yet)
//!           496  the program's name (at most NAME_CAPACITY_BYTES, then zeroes)
//!           512  trials (see policy::trials::report)
//!          1280  modules: inode (u64), path_len_bytes (u64), path          MODULE_BYTES each
//!         16384  entries, by site: fields (u64 each, in the order of Field)   ENTRY_BYTES each
//! ```
//!
//! Each word is written atomically and outlives its process. The entry of a killed process lacks at
//! most what the process was doing at that moment.

use crate::policy::Costs;
use crate::policy::SiteKind;
use crate::policy::costs::Cost;
use crate::policy::placement::ALLOCATION_SITES;
use crate::policy::sites::SITES;
use crate::policy::trials::{FactorReports, TRIALS_BYTES};
use crate::streams::{STREAMS_BYTES, Streams};

extern crate std;
use std::string::String;
use std::vec::Vec;

/// First bytes of the ledger.
pub const MAGIC: [u8; 8] = *b"uncopyL\x04";
/// Offset of the number of slots handed out.
pub const SLOTS_USED_OFFSET: usize = 8;
/// Maximum number of processes.
pub const SLOTS: usize = 40;
/// Offset of the length of the reason why the program ran without the library; the text follows.
pub const WHY_WITHOUT_LIBRARY_LEN_OFFSET: usize = 16;
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
/// Maximum length of the reason, bytes.
pub const REASON_CAPACITY_BYTES: usize = STREAMS_OFFSET - REASON_OFFSET;
/// In a slot: offset of the number of streams by outcome.
pub const STREAMS_OFFSET: usize = COSTS_OFFSET - STREAMS_BYTES;
/// In a slot: offset of the first cost constant.
pub const COSTS_OFFSET: usize = NAME_OFFSET - 8 * Cost::ALL.len();
/// In a slot: offset of the program's name.
pub const NAME_OFFSET: usize = TRIALS_OFFSET - NAME_CAPACITY_BYTES;
/// In a slot: offset of the results of trials.
pub const TRIALS_OFFSET: usize = 512;
/// Maximum length of the name, bytes; a longer one is truncated.
pub const NAME_CAPACITY_BYTES: usize = 16;
/// In a slot: offset of the first module.
pub const MODULES_OFFSET: usize = TRIALS_OFFSET + TRIALS_BYTES;
/// Size of a module, bytes.
pub const MODULE_BYTES: usize = 256;
/// Maximum length of a module's path, bytes.
pub const PATH_CAPACITY_BYTES: usize = MODULE_BYTES - 16;
/// Maximum number of modules of a process.
pub const MODULES: usize = (ENTRIES_OFFSET - MODULES_OFFSET) / MODULE_BYTES;
/// Number that stands for no module.
pub const NO_MODULE: u64 = 0xFFFF;
/// In a slot: offset of the first entry.
pub const ENTRIES_OFFSET: usize = 16384;
/// Size of an entry, bytes.
pub const ENTRY_BYTES: usize = 8 * Field::ALL.len();
/// Number of entries of a process: copies and inputs by site, then allocation sites.
pub const ENTRIES: usize = SITES + ALLOCATION_SITES;
/// Size of a slot, bytes.
pub const SLOT_BYTES: usize = (ENTRIES_OFFSET + ENTRIES * ENTRY_BYTES).next_multiple_of(4096);
/// Size of the ledger, bytes.
pub const LEDGER_BYTES: usize = SLOTS_OFFSET + SLOTS * SLOT_BYTES;

/// Phase in the life of a process, as last written by the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// Running, or killed in this phase.
    Running = 1,
    /// Exiting, or unable to make further system calls.
    Ended = 2,
}

macro_rules! fields {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// A word of an entry. The discriminant is the word's index.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Field { $($(#[$doc])* $variant,)* }

        impl Field {
            /// Every field, in order.
            pub const ALL: &'static [Field] = &[$(Field::$variant,)*];

            /// Returns the name in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

fields! {
    /// Return address in the program; 0 while the entry is unused.
    Caller => "caller",
    /// Kind, size class << 8, module << 16: see [`pack_kind`].
    PackedKind => "what",
    /// Offset of the caller in the module's file.
    FileOffset => "file_offset",
    /// Calls (of an allocation site: blocks handed out).
    Calls => "calls",
    /// Bytes that the calls asked for.
    Bytes => "bytes",
    /// Calls that elided something (of an allocation site: blocks that held a view when they were freed).
    Elided => "elided",
    /// Bytes that were not copied.
    ElidedBytes => "elided_bytes",
    /// Bytes that were copied by the engine.
    CopiedBytes => "copied_bytes",
    /// Copied bytes on pages that the program is known to touch.
    LearnedBytes => "learned_bytes",
    /// Time that eliding saved, ns.
    SavedNs => "saved_ns",
    /// Time that tracking, moving and faulting cost, ns.
    SpentNs => "spent_ns",
    /// Faults on views that the site made (of an allocation site: on empty pages of its blocks).
    Faults => "faults",
    /// Pages put in place by these faults.
    FaultPages => "fault_pages",
    /// Calls whose bytes were not a view (of an allocation site: blocks handed out as plain memory).
    Plain => "plain",
    /// Calls with too few bytes to elide.
    Small => "small",
    /// Calls left out for a trial, or because trials have shown that they do not pay.
    Withheld => "withheld",
    /// Calls while the site was switched off.
    Off => "off",
    /// Calls that could not elide: no memory, or a block that cannot hold views.
    Refused => "refused",
    /// Inputs passed over because their buffers have far more room than ever arrives.
    Roomy => "roomy",
    /// Times that the site was switched off.
    SwitchedOff => "switched_off",
    /// Remaining calls for which the site is switched off.
    OffCalls => "off_calls",
    /// Balance of the account, ns (signed); of an allocation site: its score.
    Balance => "balance",
    /// Learned pages by distance from the start of the buffer, a bit each.
    LearnedHead => "learned_head",
    /// Learned pages by distance from the end of the buffer, a bit each.
    LearnedTail => "learned_tail",
    /// Nonzero if several sites share the entry for lack of room.
    Shared => "shared",
}

/// A file that a process mapped code from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Inode of the file when mapped.
    pub inode: u64,
    /// Path of the file, as the process sees it.
    pub path: Vec<u8>,
}

/// A site of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Kind of calls made at the site.
    pub kind: SiteKind,
    /// Size class: see `policy::sites::size_class`.
    pub size_class: u32,
    /// Index of the caller's module in the process's modules.
    pub module: Option<usize>,
    values: [u64; Field::ALL.len()],
}

impl Entry {
    /// Returns the value of a field.
    #[must_use]
    pub fn get(&self, field: Field) -> u64 {
        self.values[field as usize]
    }

    /// Returns the balance, ns.
    #[must_use]
    pub fn balance(&self) -> i64 {
        self.get(Field::Balance).cast_signed()
    }
}

/// Part of the ledger that one process wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// Pid of the process.
    pub pid: u32,
    /// Name of the program, truncated to [`NAME_CAPACITY_BYTES`].
    pub name: String,
    /// True if the phase is [`Phase::Ended`].
    pub is_ended: bool,
    /// Reason why nothing is elided, or `None`.
    pub reason: Option<String>,
    /// Cost constants in force; `None` if the process needed none.
    pub costs: Option<Costs>,
    /// Number of streams by outcome.
    pub streams: Streams,
    /// Results of the trials.
    pub trials: FactorReports,
    /// Files that code was mapped from.
    pub modules: Vec<Module>,
    /// Sites that were called.
    pub entries: Vec<Entry>,
}

/// Contents of the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct Ledger {
    /// Processes, in the order of their first entry.
    pub processes: Vec<Process>,
    /// Number of processes for which there was no slot.
    pub processes_without_slot: u64,
    /// Reason why the command ran its program without the library, or `None`.
    pub why_without_library: Option<String>,
}

/// Encodes the value of [`Field::PackedKind`].
#[must_use]
pub const fn pack_kind(kind: SiteKind, size_class: u32, module: u64) -> u64 {
    kind as u64 | (size_class as u64) << 8 | module << 16
}

fn word(bytes: &[u8], offset: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_ne_bytes(raw)
}

/// Returns text that follows its length, limited to the capacity.
fn text(bytes: &[u8], len_offset: usize, capacity_bytes: usize) -> &[u8] {
    let len_bytes = usize::try_from(word(bytes, len_offset)).unwrap_or(0).min(capacity_bytes);
    &bytes[len_offset + 8..len_offset + 8 + len_bytes]
}

/// Returns text that follows its length as a `String`; `None` if it is empty.
fn reason(bytes: &[u8], len_offset: usize, capacity_bytes: usize) -> Option<String> {
    let text = text(bytes, len_offset, capacity_bytes);
    (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned())
}

/// Returns the cost constants in a slot, or `None` if one is missing.
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
    /// Parses a ledger. The processes are not trusted: any content is accepted, and garbage yields garbage.
    ///
    /// # Errors
    /// The defect, as a sentence part ("is not …").
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != LEDGER_BYTES {
            return Err("does not have the size of a ledger");
        }
        if bytes[..8] != MAGIC {
            return Err("was not written by this version of uncopy");
        }
        let handed_out = word(bytes, SLOTS_USED_OFFSET);
        let used = usize::try_from(handed_out).unwrap_or(SLOTS).min(SLOTS);
        let slots = bytes[SLOTS_OFFSET..].chunks_exact(SLOT_BYTES).take(used);
        Ok(Self {
            processes: slots.filter_map(Process::parse).collect(),
            processes_without_slot: handed_out.saturating_sub(SLOTS as u64),
            why_without_library: reason(
                bytes,
                WHY_WITHOUT_LIBRARY_LEN_OFFSET,
                SLOTS_OFFSET - WHY_WITHOUT_LIBRARY_LEN_OFFSET - 8,
            ),
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
            trials: FactorReports::parse(&slot[TRIALS_OFFSET..MODULES_OFFSET]),
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
        let what = values[Field::PackedKind as usize];
        let kinds = [SiteKind::Copy, SiteKind::Input, SiteKind::Allocation];
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
        put(&mut bytes, SLOTS_USED_OFFSET, 2);
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
        put(&mut bytes, entry + 8 * Field::PackedKind as usize, pack_kind(SiteKind::Allocation, 17, 1));
        put(&mut bytes, entry + 8 * Field::Balance as usize, (-8i64).cast_unsigned());
        bytes
    }

    #[test]
    fn entries_of_a_process_read_back() {
        let read = Ledger::parse(&ledger()).expect("well-formed");
        assert_eq!((read.processes.len(), read.processes_without_slot), (1, 0), "the first slot is nobody's");
        let process = &read.processes[0];
        assert_eq!((process.pid, process.is_ended, process.reason.as_ref()), (77, true, None));
        assert_eq!(process.streams.get(Outcome::Unpaired), 4);
        let [entry] = process.entries.as_slice() else { panic!("{:?}", process.entries) };
        assert_eq!((entry.kind, entry.size_class, entry.balance()), (SiteKind::Allocation, 17, -8));
        assert_eq!(process.modules[entry.module.expect("known")].path, b"/bin/sh");
    }

    #[test]
    fn garbage_in_a_ledger_is_survived() {
        let mut bytes = ledger();
        put(&mut bytes, SLOTS_USED_OFFSET, SLOTS as u64 + 3);
        for byte in &mut bytes[SLOTS_OFFSET + 2 * SLOT_BYTES..SLOTS_OFFSET + 3 * SLOT_BYTES] {
            *byte = 0xFF;
        }
        let read = Ledger::parse(&bytes).expect("well-formed");
        assert_eq!((read.processes.len(), read.processes_without_slot), (1, 3));
        assert!(Ledger::parse(&bytes[1..]).is_err());
        bytes[0] ^= 1;
        assert!(Ledger::parse(&bytes).is_err());
    }
}
