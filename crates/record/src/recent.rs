//! Stacks that were taken a moment ago: most events come from where one came from before, with the same frames above.
//!
//! To see that nothing has changed costs 10 to 20 ns, a walk 100 and more, and the table of stacks another 30. Each
//! thread looks in a part of its own, unless there are very many; a part that is in use (a signal handler on top of its
//! thread, another thread of the same part) is passed over.

use crate::area::Area;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use uncopy_core::recording::MAX_FRAMES;
use uncopy_unwind::{Registers, Trace, capture_traced};

const PARTS: usize = 64;
/// Stacks of a part, by where they begin (a power of two).
const PLACES: usize = 16;

#[derive(Clone, Copy)]
struct Entry {
    trace: Trace,
    /// When the recording was begun that the id is of; 0: none.
    began_ns: u64,
    id: u32,
}

#[repr(align(128))]
struct Part {
    is_in_use: AtomicBool,
    entries: UnsafeCell<[Entry; PLACES]>,
}

// SAFETY: the entries are only touched by who has set `is_in_use`.
unsafe impl Sync for Part {}

static RECENT: [Part; PARTS] = [const {
    Part {
        is_in_use: AtomicBool::new(false),
        entries: UnsafeCell::new([const { Entry { trace: Trace::NONE, began_ns: 0, id: 0 } }; PLACES]),
    }
}; PARTS];

fn place(start: Registers) -> usize {
    let mixed = (start.ip as u64 ^ (start.sp as u64).rotate_left(24)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 60) as usize % PLACES
}

/// The id of the stack from `start` on, in the recording that began at `began_ns`; `enter` finds it in the table, or puts it there.
#[inline]
pub(crate) fn id(area: Area, start: Registers, began_ns: u64, enter: fn(Area, &[usize]) -> u32) -> u32 {
    let part = &RECENT[uncopy_sys::thread::number() as usize % PARTS];
    if part.is_in_use.swap(true, Acquire) {
        let mut frames = [0; MAX_FRAMES];
        let count = uncopy_unwind::capture(start, &mut frames).min(MAX_FRAMES);
        return enter(area, &frames[..count]);
    }
    // SAFETY: `is_in_use` was not set, and is.
    let entry = unsafe { &mut (&mut *part.entries.get())[place(start)] };
    if entry.began_ns != began_ns || !entry.trace.holds(start) {
        learn(area, start, entry, enter);
        entry.began_ns = began_ns;
    }
    let id = entry.id;
    part.is_in_use.store(false, Release);
    id
}

#[inline(never)]
fn learn(area: Area, start: Registers, entry: &mut Entry, enter: fn(Area, &[usize]) -> u32) {
    let mut frames = [0; MAX_FRAMES];
    let count = capture_traced(start, &mut frames, &mut entry.trace).min(MAX_FRAMES);
    entry.id = enter(area, &frames[..count]);
}

/// In a forked child: what other threads had in use is free.
pub(crate) fn in_child() {
    for part in &RECENT {
        part.is_in_use.store(false, Relaxed);
    }
}
