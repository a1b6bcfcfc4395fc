//! Entries of the ledger (`uncopy_core::ledger`) for `uncopy run --explain`: the accounts of each site.
//!
//! Without a ledger, the usual case, every function here is a load and a comparison. With one, each process
//! takes a slot when its first site is entered, and a forked child takes another. No function here waits,
//! allocates or touches the program's memory.

use crate::state::policy::POLICY;
use crate::state::recording;
use core::ffi::CStr;
use core::sync::atomic::AtomicU64;
use uncopy_core::ledger::{
    COSTS_OFFSET, ENTRIES_OFFSET, ENTRY_BYTES, Field, LEDGER_BYTES, MAGIC, MODULE_BYTES, MODULES,
    MODULES_OFFSET, NAME_OFFSET, NO_MODULE, PATH_CAPACITY_BYTES, PHASE_OFFSET, PID_OFFSET, Phase,
    REASON_CAPACITY_BYTES, REASON_LEN_OFFSET, REASON_OFFSET, SLOT_BYTES, SLOTS, SLOTS_OFFSET,
    SLOTS_USED_OFFSET, STREAMS_OFFSET, TRIALS_OFFSET, pack_kind,
};
use uncopy_core::page_map::SiteId;
use uncopy_core::policy::costs::Cost;
use uncopy_core::policy::sites::{SITES, size_class};
use uncopy_core::policy::trials::{FactorReport, report};
use uncopy_core::policy::{Costs, SiteKind};
use uncopy_core::streams::Outcome;
use uncopy_sys::filter::{self, CallGroup};
use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

uncopy_sys::statics! {
    /// Address of the ledger; 0: none is open.
    static LEDGER: AtomicUsize = AtomicUsize::new(0);
    /// Address of this process's slot; 0: not taken yet.
    static SLOT: AtomicUsize = AtomicUsize::new(0);
    /// True while a thread takes the slot, and for good if none is left.
    static IS_TAKING: AtomicBool = AtomicBool::new(false);
    static IS_ENTERING: AtomicBool = AtomicBool::new(false);
    /// True once the program has forbidden itself system calls, or ends.
    static IS_SEALED: AtomicBool = AtomicBool::new(false);
}

/// Opens the ledger at `path`; a file without the ledger's magic is ignored. Called once, before any other
/// thread exists.
pub fn open(path: &CStr) {
    let Ok(address) = uncopy_sys::mem::map_file(path, LEDGER_BYTES) else { return };
    if word(address).load(Relaxed) == u64::from_ne_bytes(MAGIC) {
        LEDGER.store(address, Release);
    } else {
        // SAFETY: the mapping was made by this call and its address was not stored: nothing refers to it.
        let _ = unsafe { uncopy_sys::mem::unmap(address, LEDGER_BYTES) };
    }
}

/// Whether accounts are kept.
#[inline]
#[must_use]
pub fn are_kept() -> bool {
    LEDGER.load(Relaxed) != 0
}

fn word(address: usize) -> &'static AtomicU64 {
    // SAFETY: callers pass addresses within the mapping that `open` made, aligned to 8; it is never
    // unmapped, and its words are accessed as atomics only.
    unsafe { &*(address as *const AtomicU64) }
}

/// Address of this process's slot, taken on first use.
fn slot() -> Option<usize> {
    match SLOT.load(Acquire) {
        0 if are_kept() => take_slot(),
        0 => None,
        slot => Some(slot),
    }
}

#[cold]
fn take_slot() -> Option<usize> {
    if IS_TAKING.swap(true, AcqRel) {
        // Another thread is taking the slot; this entry is lost.
        return None;
    }
    let ledger = LEDGER.load(Relaxed);
    let index = word(ledger + SLOTS_USED_OFFSET).fetch_add(1, Relaxed) as usize;
    if index >= SLOTS {
        return None;
    }
    let slot = ledger + SLOTS_OFFSET + index * SLOT_BYTES;
    word(slot + PHASE_OFFSET).store(Phase::Running as u64, Relaxed);
    write_text(slot + NAME_OFFSET, &uncopy_sys::ids::program_name());
    word(slot + PID_OFFSET).store(u64::from(std::process::id()), Relaxed);
    SLOT.store(slot, Release);
    Some(slot)
}

/// Forgets the parent's slot, in a forked child, which takes one of its own.
pub fn restart_in_child() {
    SLOT.store(0, Relaxed);
    IS_TAKING.store(false, Relaxed);
    IS_ENTERING.store(false, Relaxed);
}

/// Marks the slot as ended: the process ends, or makes no system calls from here on.
pub fn end() {
    IS_SEALED.store(true, Relaxed);
    let slot = SLOT.load(Acquire);
    // The child of a vfork shares its parent's slot.
    if slot != 0 && word(slot + PID_OFFSET).load(Relaxed) == u64::from(std::process::id()) {
        word(slot + PHASE_OFFSET).store(Phase::Ended as u64, Relaxed);
    }
}

/// Records why nothing is elided any more.
pub fn set_reason(why: &str) {
    let Some(slot) = slot() else { return };
    write_text(slot + REASON_OFFSET, &why.as_bytes()[..why.len().min(REASON_CAPACITY_BYTES)]);
    word(slot + REASON_LEN_OFFSET).store(why.len().min(REASON_CAPACITY_BYTES) as u64, Release);
}

/// Publishes the machine's constants in force.
pub fn set_costs(costs: &Costs) {
    let Some(slot) = slot() else { return };
    for which in Cost::ALL {
        word(slot + COSTS_OFFSET + 8 * *which as usize).store(u64::from(costs.get(*which)), Relaxed);
    }
}

/// Publishes the standing of a factor's trials.
pub fn set_trial(factor: usize, standing: &FactorReport) {
    let Some(slot) = slot() else { return };
    for (at, value) in standing.to_words().into_iter().enumerate() {
        word(slot + TRIALS_OFFSET + report::offset(factor) + 8 * at).store(value, Relaxed);
    }
}

/// Adds `change` to the number of streams with this outcome.
pub fn add_stream(outcome: Outcome, change: i64) {
    let Some(slot) = slot() else { return };
    word(slot + STREAMS_OFFSET + 8 * outcome as usize).fetch_add(change.cast_unsigned(), Relaxed);
}

fn write_text(address: usize, text: &[u8]) {
    for (index, chunk) in text.chunks(8).enumerate() {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        word(address + 8 * index).store(u64::from_ne_bytes(bytes), Relaxed);
    }
}

/// Whether the text at an address begins with this one.
fn is_text(address: usize, text: &[u8]) -> bool {
    text.chunks(8).enumerate().all(|(index, chunk)| {
        let bytes = word(address + 8 * index).load(Relaxed).to_ne_bytes();
        bytes.starts_with(chunk)
    })
}

/// The entry of a site, by address.
#[derive(Clone, Copy)]
pub struct Entry(usize);

impl Entry {
    fn at(position: usize) -> Option<Self> {
        Some(Self(slot()? + ENTRIES_OFFSET + position * ENTRY_BYTES))
    }

    fn field(self, field: Field) -> &'static AtomicU64 {
        word(self.0 + 8 * field as usize)
    }

    /// Adds to a field.
    pub fn add(self, field: Field, value: u64) {
        if value != 0 {
            self.field(field).fetch_add(value, Relaxed);
        }
    }

    fn set(self, field: Field, value: u64) {
        self.field(field).store(value, Relaxed);
    }

    /// Enters a call, and the identity of the site if the entry has none yet.
    fn call(self, kind: SiteKind, caller: usize, len_bytes: usize) {
        let known = self.field(Field::Caller).load(Relaxed);
        if known == 0 {
            self.introduce(kind, caller, len_bytes);
        } else if known != caller as u64 {
            self.set(Field::Shared, 1);
        }
        self.add(Field::Calls, 1);
        self.add(Field::Bytes, len_bytes as u64);
    }

    #[cold]
    fn introduce(self, kind: SiteKind, caller: usize, len_bytes: usize) {
        if self.field(Field::Caller).compare_exchange(0, caller as u64, Relaxed, Relaxed).is_err() {
            return;
        }
        let (module, file_offset) = find_module(caller).unwrap_or((NO_MODULE, 0));
        self.set(Field::FileOffset, file_offset);
        self.set(Field::PackedKind, pack_kind(kind, size_class(len_bytes), module));
    }
}

/// Index of the module that holds an address, and the address's offset in the module's file.
fn find_module(address: usize) -> Option<(u64, u64)> {
    if IS_SEALED.load(Relaxed) || !filter::allows(CallGroup::Proc) {
        return None;
    }
    let _errno = uncopy_sys::errno::SavedErrno::new();
    let mut path = [0; PATH_CAPACITY_BYTES];
    let position = uncopy_sys::procmap::file_at(address, &mut path).ok()??;
    let path = &path[..position.path_len_bytes];
    let modules = slot()? + MODULES_OFFSET;
    if IS_ENTERING.swap(true, AcqRel) {
        return None;
    }
    let found = (0..MODULES).find(|index| {
        let module = modules + index * MODULE_BYTES;
        let inode = word(module).load(Relaxed);
        if inode == 0 {
            write_text(module + 16, path);
            word(module + 8).store(path.len() as u64, Relaxed);
            word(module).store(position.inode, Relaxed);
        }
        inode == 0 || (inode == position.inode && is_text(module + 16, path))
    });
    IS_ENTERING.store(false, Release);
    found.map(|index| (index as u64, position.offset))
}

/// The entry of a copy or an input site, if accounts are kept.
#[inline]
#[must_use]
pub fn entry(site: SiteId) -> Option<Entry> {
    if are_kept() && !recording::is_row(site) { Entry::at(usize::from(site) % SITES) } else { None }
}

/// Enters a call of a copy or an input site, if accounts are kept.
#[inline]
pub fn record_call(site: SiteId, kind: SiteKind, caller: usize, len_bytes: usize) {
    if let Some(entry) = entry(site) {
        entry.call(kind, caller, len_bytes);
    }
}

/// Adds to a field of a copy or an input site, if accounts are kept.
#[inline]
pub fn add(site: SiteId, field: Field, value: u64) {
    if let Some(entry) = entry(site) {
        entry.add(field, value);
    }
}

impl Entry {
    /// Enters a fault that put `pages` pages in place.
    pub fn fault(self, pages: u32) {
        self.add(Field::Faults, 1);
        self.add(Field::FaultPages, u64::from(pages));
    }

    /// Publishes the balance, the calls left off and the learned pages of the site.
    pub(crate) fn publish_standing(self, site: SiteId) {
        let (balance_ns, off_calls, _) = POLICY.sites.snapshot(site);
        self.set(Field::Balance, balance_ns.cast_unsigned());
        self.set(Field::OffCalls, u64::from(off_calls));
        let learned = POLICY.touches.learned(site);
        self.set(Field::LearnedHead, learned.head);
        self.set(Field::LearnedTail, learned.tail);
    }
}

/// Enters a call that was not elided, for the reason `why`.
#[inline]
pub fn record_refusal(site: SiteId, why: Field) {
    if let Some(entry) = entry(site) {
        entry.add(why, 1);
        entry.publish_standing(site);
    }
}

/// The entry of an allocation site, if accounts are kept.
#[inline]
#[must_use]
pub fn allocation_entry(site: u16) -> Option<Entry> {
    if are_kept() { Entry::at(SITES + usize::from(site)) } else { None }
}

/// Enters a block that is handed out.
#[inline]
pub fn record_allocation(site: u16, caller: usize, len_bytes: usize, is_registered: bool) {
    if let Some(entry) = allocation_entry(site) {
        entry.call(SiteKind::Allocation, caller, len_bytes);
        entry.add(Field::Plain, u64::from(!is_registered));
        entry.set(Field::Balance, i64::from(POLICY.placement.score(site)).cast_unsigned());
    }
}
