//! Cache of recently captured stacks: most events repeat an earlier one's call site and frames above.
//!
//! Validating a cached stack costs 10 to 20 ns, an unwind 100 ns or more, and a lookup in the stack table
//! another 30 ns. Threads are distributed over shards. A thread that finds its shard in use (by the code its
//! signal handler interrupted, or by another thread) bypasses the cache.

use crate::area::Area;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use uncopy_core::recording::MAX_FRAMES;
use uncopy_unwind::{Registers, Trace, capture_traced};

const SHARDS: usize = 64;
/// Stacks per shard, indexed by a hash of the registers. Must be 16: [`index_of`] uses four bits.
const ENTRIES: usize = 16;

#[derive(Clone, Copy)]
struct Entry {
    trace: Trace,
    /// Start time of the recording that `id` belongs to; 0 for an empty entry.
    began_ns: u64,
    id: u32,
}

#[repr(align(128))]
struct Shard {
    is_in_use: AtomicBool,
    entries: UnsafeCell<[Entry; ENTRIES]>,
}

// SAFETY: only the thread that has set `is_in_use` accesses `entries`; it clears the flag with Release.
unsafe impl Sync for Shard {}

static RECENT: [Shard; SHARDS] = [const {
    Shard {
        is_in_use: AtomicBool::new(false),
        entries: UnsafeCell::new([const { Entry { trace: Trace::NONE, began_ns: 0, id: 0 } }; ENTRIES]),
    }
}; SHARDS];

fn index_of(start: Registers) -> usize {
    let mixed = (start.ip as u64 ^ (start.sp as u64).rotate_left(24)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 60) as usize % ENTRIES
}

/// Returns the id of the stack that starts at `start`, in the recording that began at `began_ns`. On a cache
/// miss `intern` finds the stack in the table or adds it.
#[inline]
pub(crate) fn id(area: Area, start: Registers, began_ns: u64, intern: fn(Area, &[usize]) -> u32) -> u32 {
    let shard = &RECENT[uncopy_sys::thread::number() as usize % SHARDS];
    if shard.is_in_use.swap(true, Acquire) {
        let mut frames = [0; MAX_FRAMES];
        let count = uncopy_unwind::capture(start, &mut frames).min(MAX_FRAMES);
        return intern(area, &frames[..count]);
    }
    // SAFETY: the swap above changed `is_in_use` from false to true, so this thread has exclusive access to
    // the entries until it clears the flag below.
    let entry = unsafe { &mut (&mut *shard.entries.get())[index_of(start)] };
    if entry.began_ns != began_ns || !entry.trace.matches(start) {
        refill(area, start, entry, intern);
        entry.began_ns = began_ns;
    }
    let id = entry.id;
    shard.is_in_use.store(false, Release);
    id
}

#[inline(never)]
fn refill(area: Area, start: Registers, entry: &mut Entry, intern: fn(Area, &[usize]) -> u32) {
    let mut frames = [0; MAX_FRAMES];
    let count = capture_traced(start, &mut frames, &mut entry.trace).min(MAX_FRAMES);
    entry.id = intern(area, &frames[..count]);
}

/// Releases shards that other threads of the parent had in use at the time of the fork.
pub(crate) fn in_child() {
    for shard in &RECENT {
        shard.is_in_use.store(false, Relaxed);
    }
}
