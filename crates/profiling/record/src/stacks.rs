//! Table of call stacks. Each stack is stored once, along with the modules that contain its addresses.

use crate::area::Area;
use crate::recent;
use crate::session;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use uncopy_core::recording::{
    BUILD_ID_CAPACITY_BYTES, BUILD_ID_OFFSET, MODULE_BYTES, MODULES, MODULES_OFFSET, MODULES_USED_OFFSET,
    PATH_CAPACITY_BYTES, PATH_OFFSET, STACK_INDEX_ENTRIES, STACK_INDEX_OFFSET, STACK_WORDS,
    STACK_WORDS_USED_OFFSET, STACKS_LOST_OFFSET, STACKS_OFFSET,
};
use uncopy_unwind::{Registers, module_at};

const PROBES: usize = 64;

/// A call site whose stack has not been unwound yet.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    start: Registers,
}

impl Stack {
    /// Captures the registers of the function that this is inlined into. That function must not return before
    /// [`Stack::id`] has run, which unwinds its frame.
    #[inline(always)]
    #[must_use]
    pub fn here() -> Self {
        Self { start: Registers::here() }
    }

    /// Returns the stack's id in the recording, or 0 if the stack is unknown.
    pub(crate) fn id(self, area: Area) -> u32 {
        recent::id(area, self.start, session::began_ns(), intern)
    }
}

/// Returns the stack's id in the current recording, or 0 if there is none or the stack is unknown.
#[must_use]
pub fn stack_id(stack: Stack) -> u32 {
    session::area().map_or(0, |area| stack.id(area))
}

fn hash(frames: &[usize]) -> u64 {
    // FxHash: rotate, XOR and multiply for each word.
    frames
        .iter()
        .fold(0, |hash: u64, frame| (hash.rotate_left(5) ^ *frame as u64).wrapping_mul(0x517C_C1B7_2722_0A95))
}

/// Returns the id of a stack, adding these return addresses to the table if needed; 0 if it is full.
fn intern(area: Area, frames: &[usize]) -> u32 {
    if frames.is_empty() {
        return 0;
    }
    let hash = hash(frames);
    let tag = hash >> 32 << 32;
    let mut appended = 0;
    for probe in 0..PROBES {
        let position = (hash as usize).wrapping_add(probe) % STACK_INDEX_ENTRIES;
        let entry = area.word(STACK_INDEX_OFFSET + 8 * position);
        let mut found = entry.load(Acquire);
        if found == 0 {
            if appended == 0 {
                appended = append(area, frames);
                if appended == 0 {
                    return 0;
                }
            }
            match entry.compare_exchange(0, tag | u64::from(appended), AcqRel, Acquire) {
                Ok(_) => return appended,
                // Another thread claimed this index entry first, possibly for the same stack.
                Err(now) => found = now,
            }
        }
        if found & tag_mask() == tag && matches_at(area, found as u32, frames) {
            return found as u32;
        }
    }
    count_lost(area)
}

const fn tag_mask() -> u64 {
    !0 << 32
}

fn count_lost(area: Area) -> u32 {
    area.word(STACKS_LOST_OFFSET).fetch_add(1, Relaxed);
    0
}

fn matches_at(area: Area, id: u32, frames: &[usize]) -> bool {
    let at = |index: usize| area.word(STACKS_OFFSET + 8 * index).load(Relaxed);
    let id = id as usize;
    id + frames.len() < STACK_WORDS
        && at(id) == frames.len() as u64
        && frames.iter().enumerate().all(|(index, frame)| at(id + 1 + index) == *frame as u64)
}

/// Appends a stack to the table and returns its id; 0 if there is no room.
#[cold]
#[inline(never)]
fn append(area: Area, frames: &[usize]) -> u32 {
    frames.iter().for_each(|frame| add_module(area, *frame));
    let used = area.word(STACK_WORDS_USED_OFFSET);
    let needed = frames.len() as u64 + 1;
    let fits = |used: u64| Some(used.max(1) + needed).filter(|end| *end <= STACK_WORDS as u64);
    let Ok(start) = used.fetch_update(AcqRel, Acquire, fits) else { return count_lost(area) };
    let start = start.max(1) as usize;
    for (index, frame) in frames.iter().enumerate() {
        area.word(STACKS_OFFSET + 8 * (start + 1 + index)).store(*frame as u64, Relaxed);
    }
    area.word(STACKS_OFFSET + 8 * start).store(frames.len() as u64, Release);
    start as u32
}

/// Adds the module that contains `address`, if not yet present. Two threads may add the same one twice.
fn add_module(area: Area, address: usize) {
    let used = (area.word(MODULES_USED_OFFSET).load(Acquire) as usize).min(MODULES);
    let is_known = (0..used).any(|index| {
        let at = |word: usize| area.word(MODULES_OFFSET + index * MODULE_BYTES + 8 * word).load(Relaxed);
        (at(0)..at(1)).contains(&(address as u64))
    });
    if is_known || session::has_stopped_system_calls() {
        return;
    }
    let _errno = uncopy_sys::errno::SavedErrno::new();
    let mut path = [0; PATH_CAPACITY_BYTES];
    let Some((module, path_len_bytes)) = module_at(address, &mut path) else { return };
    let fits = |used: u64| Some(used + 1).filter(|used| *used <= MODULES as u64);
    let Ok(index) = area.word(MODULES_USED_OFFSET).fetch_update(AcqRel, Acquire, fits) else { return };
    let offset = MODULES_OFFSET + index as usize * MODULE_BYTES;
    let set = |word: usize, value: usize| area.word(offset + 8 * word).store(value as u64, Relaxed);
    let path_len_bytes = path_len_bytes.min(PATH_CAPACITY_BYTES);
    let build_id_len_bytes = module.build_id_len_bytes.min(BUILD_ID_CAPACITY_BYTES);
    set(0, module.start);
    set(2, module.bias);
    set(4, path_len_bytes);
    set(5, build_id_len_bytes);
    area.write_text(offset + BUILD_ID_OFFSET, &module.build_id[..build_id_len_bytes]);
    area.write_text(offset + PATH_OFFSET, &path[..path_len_bytes]);
    // Storing the end address publishes the entry: until then the module covers no address.
    area.word(offset + 8).store(module.end as u64, Release);
}
