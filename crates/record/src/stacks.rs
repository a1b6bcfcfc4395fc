//! The table of stacks: each is entered once, with the modules that its addresses lie in.

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

/// Places of the index that are looked at for one stack.
const PROBES: usize = 64;

/// Where a call was made from.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    start: Registers,
}

impl Stack {
    /// Here, in the function that this is inlined into, which must not return before [`Stack::id`].
    #[inline(always)]
    #[must_use]
    pub fn here() -> Self {
        Self { start: Registers::here() }
    }

    /// The stack's id in the recording; 0: not known.
    pub(crate) fn id(self, area: Area) -> u32 {
        recent::id(area, self.start, session::began_ns(), intern)
    }
}

/// The stack's id in the recording that is on; 0: there is none, or it is not known.
#[must_use]
pub fn id_of(stack: Stack) -> u32 {
    session::area().map_or(0, |area| stack.id(area))
}

fn hash(frames: &[usize]) -> u64 {
    // As FxHash: a rotation, an addition without carry and a multiplication for each word.
    frames
        .iter()
        .fold(0, |hash: u64, frame| (hash.rotate_left(5) ^ *frame as u64).wrapping_mul(0x517C_C1B7_2722_0A95))
}

/// The id of a stack of these return addresses.
fn intern(area: Area, frames: &[usize]) -> u32 {
    if frames.is_empty() {
        return 0;
    }
    let hash = hash(frames);
    let tag = hash >> 32 << 32;
    let mut entered = 0;
    for probe in 0..PROBES {
        let place = (hash as usize).wrapping_add(probe) % STACK_INDEX_ENTRIES;
        let entry = area.word(STACK_INDEX_OFFSET + 8 * place);
        let mut found = entry.load(Acquire);
        if found == 0 {
            if entered == 0 {
                entered = enter(area, frames);
                if entered == 0 {
                    return 0;
                }
            }
            match entry.compare_exchange(0, tag | u64::from(entered), AcqRel, Acquire) {
                Ok(_) => return entered,
                // Another thread was faster, perhaps with the same.
                Err(now) => found = now,
            }
        }
        if found & tag_mask() == tag && is_at(area, found as u32, frames) {
            return found as u32;
        }
    }
    lost(area)
}

const fn tag_mask() -> u64 {
    !0 << 32
}

fn lost(area: Area) -> u32 {
    area.word(STACKS_LOST_OFFSET).fetch_add(1, Relaxed);
    0
}

fn is_at(area: Area, id: u32, frames: &[usize]) -> bool {
    let at = |index: usize| area.word(STACKS_OFFSET + 8 * index).load(Relaxed);
    let id = id as usize;
    id + frames.len() < STACK_WORDS
        && at(id) == frames.len() as u64
        && frames.iter().enumerate().all(|(index, frame)| at(id + 1 + index) == *frame as u64)
}

/// Writes a stack that is not known yet; 0: there is no room.
#[cold]
#[inline(never)]
fn enter(area: Area, frames: &[usize]) -> u32 {
    frames.iter().for_each(|frame| enter_module(area, *frame));
    let used = area.word(STACK_WORDS_USED_OFFSET);
    let needed = frames.len() as u64 + 1;
    let fits = |used: u64| Some(used.max(1) + needed).filter(|end| *end <= STACK_WORDS as u64);
    let Ok(start) = used.fetch_update(AcqRel, Acquire, fits) else { return lost(area) };
    let start = start.max(1) as usize;
    for (index, frame) in frames.iter().enumerate() {
        area.word(STACKS_OFFSET + 8 * (start + 1 + index)).store(*frame as u64, Relaxed);
    }
    area.word(STACKS_OFFSET + 8 * start).store(frames.len() as u64, Release);
    start as u32
}

/// Sees to it that the module is known that an address lies in. Two threads may enter one twice.
fn enter_module(area: Area, address: usize) {
    let used = (area.word(MODULES_USED_OFFSET).load(Acquire) as usize).min(MODULES);
    let is_known = (0..used).any(|index| {
        let at = |word: usize| area.word(MODULES_OFFSET + index * MODULE_BYTES + 8 * word).load(Relaxed);
        (at(0)..at(1)).contains(&(address as u64))
    });
    if is_known || session::is_confined() {
        return;
    }
    let _errno = uncopy_sys::errno::Keep::new();
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
    // Last: until then it is no module.
    area.word(offset + 8).store(module.end as u64, Release);
}
