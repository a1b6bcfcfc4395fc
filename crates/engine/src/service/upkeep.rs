//! What the handler thread does when there is nothing else to do: gives memory back that nobody needs.
//!
//! ```text
//! rest ──► reservoir ──► free blocks ──► look at segments ──► take pages out of segments ──► rest
//!   at most once a second            │                                                       ▲
//!                                    └─────── nothing has changed, or too little ────────────┘
//! ```
//!
//! A round is done in small steps, between which faults are served. Of resident pages, and of free blocks, half of
//! those go that nobody has needed since the round before. When nothing is left that could be given back, there
//! are no more rounds and the thread sleeps until the kernel has something for it. Whoever then leaves something
//! behind touches a page ([`bell`]), which the kernel reports as it does every fault.
//!
//! A step is part of the handler's turn, for whose end a fork waits (`window`): so no page, block or reference is
//! on the handler's stack when a process is copied. It waits for no lock of a class or a block.

use crate::arena::pages::ARENA;
use crate::range::heap::HEAP;
use crate::range::heap::retention::Taken;
use crate::service::compaction::Compaction;
use crate::state::{bell, counters, limits};
use uncopy_core::classes::CLASSES;
use uncopy_core::stats::Counter;
use uncopy_sys::sync::UnsafeCell;
use uncopy_sys::thread::now_ms;

/// Time between rounds at least, ms.
const ROUND_MS: u64 = if limits::IS_EAGER { 4 } else { 1000 };
/// A round that took long is followed by a rest of so many times that.
const REST_SHARE: u64 = if limits::IS_EAGER { 1 } else { 100 };
/// After a step that another thread's lock was in the way of, ms.
const RETRY_MS: i32 = 1;

/// What comes next in a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Rest,
    /// Resident pages still to be given back.
    Reservoir(usize),
    /// The class whose free blocks are next, and how many of them are to become bare.
    Blocks(usize, [u32; 2]),
    Look,
    Release,
}

struct State {
    stage: Stage,
    compaction: Compaction,
    /// A free block that is in no list.
    taken: Option<Taken>,
    /// The counters when segments were last looked at and nothing was left to be done.
    seen: Option<[u64; WATCHED.len()]>,
    /// Segments were found that will be old enough in the next round.
    is_early: bool,
}

impl State {
    const fn new() -> Self {
        Self { stage: Stage::Rest, compaction: Compaction::new(), taken: None, seen: None, is_early: false }
    }
}

/// Unless one of these changes, segments are needed as they were.
const WATCHED: [Counter; 6] = [
    Counter::SegmentsBytes,
    Counter::BlocksBytes,
    Counter::ElidedBytes,
    Counter::InputBytes,
    Counter::Faults,
    Counter::MovedPages,
];

struct Upkeep(UnsafeCell<State>);

// SAFETY: the state is only touched by the handler thread, of which there is one at a time, and in a child that has
// none yet.
unsafe impl Sync for Upkeep {}

uncopy_sys::statics! {
    static UPKEEP: Upkeep = Upkeep(UnsafeCell::new(State::new()));
}

/// In a forked child, before anything is given back: its handler begins anew.
pub(crate) fn in_child() {
    bell::mute();
    // SAFETY: no other thread exists.
    let old = core::mem::replace(unsafe { &mut *UPKEEP.0.get() }, State::new());
    if let Some(taken) = old.taken {
        // The locks are free: this thread has just given them back. Where one is not (a handler that forked on
        // top of malloc), the child has a free block less.
        HEAP.put_back(taken);
    }
}

/// What the handler thread knows of it.
pub(crate) struct Rounds {
    /// When the next round is due; `None`: when somebody says so.
    due_ms: Option<u64>,
    began_ms: u64,
    /// Under way, in small steps.
    is_under_way: bool,
    /// A step is to be tried again.
    must_retry: bool,
}

impl Rounds {
    pub(crate) fn new() -> Self {
        let due_ms = (!cfg!(loom)).then(|| now_ms() + ROUND_MS);
        Self { due_ms, began_ms: 0, is_under_way: false, must_retry: false }
    }

    /// How long the handler may sleep if nothing happens, ms; -1: without limit.
    pub(crate) fn timeout_ms(&self) -> i32 {
        match self.due_ms {
            _ if self.must_retry => RETRY_MS,
            _ if self.is_under_way => 0,
            Some(due_ms) => i32::try_from(due_ms.saturating_sub(now_ms())).unwrap_or(i32::MAX),
            None => -1,
        }
    }

    /// The handler has been woken.
    pub(crate) fn wake(&mut self) {
        if self.due_ms.is_none() && !cfg!(loom) {
            bell::mute();
            self.due_ms = Some(now_ms() + ROUND_MS);
        }
    }

    /// The handler ends: nobody is to wake it.
    pub(crate) fn end(&self) {
        bell::mute();
    }

    /// Goes on with a round, or begins one if that is due.
    pub(crate) fn step(&mut self) {
        let is_due = || self.due_ms.is_some_and(|due_ms| now_ms() >= due_ms);
        if !self.is_under_way && !is_due() {
            return;
        }
        // SAFETY: this is the handler thread.
        let state = unsafe { &mut *UPKEEP.0.get() };
        if !self.is_under_way {
            (self.is_under_way, self.began_ms) = (true, now_ms());
        }
        let progress = state.step();
        self.must_retry = progress == Progress::Later;
        if progress == Progress::Done {
            self.is_under_way = false;
            let now = now_ms();
            let rest_ms = ROUND_MS.max((now - self.began_ms) * REST_SHARE);
            self.due_ms = (state.has_more() || !self.arm(state)).then_some(now + rest_ms);
        }
    }

    /// Puts the bell where it can be rung before the handler sleeps without limit. False: there is something to
    /// be done already.
    fn arm(&self, state: &State) -> bool {
        let page = if bell::address() == 0 {
            let Ok(page) = ARENA.take_nonresident(1) else { return true };
            bell::set_address(ARENA.address(page.start));
            page
        } else {
            ARENA.page_of(bell::address())
        };
        // Locked memory is always present, and nothing can be given back of it: no need to be told.
        if !ARENA.make_absent(page) {
            return true;
        }
        bell::arm();
        // Whoever left something behind just before did not see that.
        !state.has_more() || !bell::disarm()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// There is more to do at once.
    More,
    /// Another thread's lock is in the way.
    Later,
    /// The round is over.
    Done,
}

impl State {
    /// Whether another round would find something to do, as far as that is known.
    fn has_more(&self) -> bool {
        self.is_early
            || counters::get(Counter::ReservoirBytes) > 0
            || ARENA.has_quarantined()
            || HEAP.retained_pages() > 0
            || self.seen != Some(watched()) && may_waste()
    }

    /// One small step.
    fn step(&mut self) -> Progress {
        if let Some(taken) = self.taken.take()
            && !HEAP.put_back(taken)
        {
            self.taken = Some(taken);
            return Progress::Later;
        }
        match self.stage {
            Stage::Rest if ARENA.drop_quarantined() => {}
            Stage::Rest => {
                limits::next_round();
                self.stage = Stage::Reservoir(ARENA.surplus_pages());
            }
            Stage::Reservoir(0) => self.stage = self.blocks_from(0),
            Stage::Reservoir(pages) => self.stage = Stage::Reservoir(ARENA.trim(pages)),
            Stage::Blocks(CLASSES.., _) => {
                let now = watched();
                let is_same = self.seen == Some(now) && !self.is_early;
                self.is_early = false;
                if is_same || !may_waste() || uncopy_sys::alloc::is_low() {
                    self.stage = Stage::Rest;
                    return Progress::Done;
                }
                // From before the look: what changes meanwhile is looked at again.
                self.seen = Some(now);
                self.compaction.begin();
                self.stage = Stage::Look;
            }
            Stage::Blocks(class, [0, 0]) => self.stage = self.blocks_from(class + 1),
            Stage::Blocks(class, surplus) => {
                let left;
                (left, self.taken) = HEAP.trim(class, surplus);
                self.stage = Stage::Blocks(class, left);
            }
            Stage::Look => {
                if self.compaction.look() {
                    self.compaction.choose();
                    self.stage = Stage::Release;
                }
            }
            Stage::Release => {
                if self.compaction.release() {
                    self.is_early = self.compaction.end();
                    self.stage = Stage::Rest;
                    return Progress::Done;
                }
            }
        }
        Progress::More
    }

    /// The first class from `class` on that has free blocks too many.
    fn blocks_from(&self, class: usize) -> Stage {
        let mut classes = class..CLASSES;
        let found = classes.find_map(|class| {
            let surplus = HEAP.surplus_blocks(class).unwrap_or_default();
            (surplus != [0, 0]).then_some(Stage::Blocks(class, surplus))
        });
        found.unwrap_or(Stage::Blocks(CLASSES, [0, 0]))
    }
}

/// Whether segments are large enough to waste more than they may.
fn may_waste() -> bool {
    counters::get(Counter::SegmentsBytes) as usize > limits::max_waste_bytes()
}

fn watched() -> [u64; WATCHED.len()] {
    WATCHED.map(counters::get)
}
