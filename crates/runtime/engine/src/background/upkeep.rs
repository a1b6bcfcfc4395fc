//! Upkeep: the handler thread's work in idle times, which gives unneeded memory back.
//!
//! ```text
//! rest ──► reservoir ──► free blocks ──► settle views ──► look at segments ──► take pages out of segments ──► rest
//!   at most once a second                              │                                                       ▲
//!                                                      └─────── nothing has changed, or too little ────────────┘
//! ```
//!
//! A round is done in small steps, between which faults are served. Half of the resident pages and free
//! blocks that were not needed since the round before are given back. When nothing is left to give back,
//! rounds stop and the thread sleeps until the kernel wakes it. A thread that then leaves memory behind
//! touches a page ([`bell`]), whose fault the kernel reports.
//!
//! A step is part of the handler's turn, for whose end a fork waits (`fork_window`), so that no page, block or reference
//! is on the handler's stack when a process is copied. A step waits for no lock of a class or a block.

use crate::arena::pages::ARENA;
use crate::background::compaction::Compaction;
use crate::background::settling::Settling;
use crate::range::heap::HEAP;
use crate::range::heap::retention::DetachedBlock;
use crate::state::{bell, clock, counters, limits};
use uncopy_core::classes::CLASSES;
use uncopy_core::stats::Counter;
use uncopy_sys::sync::UnsafeCell;
use uncopy_sys::thread::now_ms;

/// Shortest time between rounds, ms.
const ROUND_MS: u64 = if limits::IS_EAGER { 4 } else { 1000 };
/// Rest after a long round, in multiples of the round's duration.
const REST_SHARE: u64 = if limits::IS_EAGER { 1 } else { 100 };
/// Pause after a step that another thread's lock prevented, ms.
const RETRY_MS: i32 = 1;

/// Next step of a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Rest,
    /// Resident pages still to be given back.
    Reservoir(usize),
    /// Class whose free blocks are next, and numbers of these to make bare.
    Blocks(usize, [u32; 2]),
    /// Views that children read.
    Settle,
    Scan,
    Release,
}

struct State {
    stage: Stage,
    settling: Settling,
    compaction: Compaction,
    /// A free block that is in no list at the moment.
    taken: Option<DetachedBlock>,
    /// Values of `WATCHED` when segments were last examined and nothing was left to do.
    seen: Option<[u64; WATCHED.len()]>,
    /// True if segments were found that will be old enough in the next round.
    has_young_waste: bool,
}

impl State {
    const fn new() -> Self {
        Self {
            stage: Stage::Rest,
            settling: Settling::new(),
            compaction: Compaction::new(),
            taken: None,
            seen: None,
            has_young_waste: false,
        }
    }
}

/// Counters that do not change unless the need for segments may have changed.
const WATCHED: [Counter; 6] = [
    Counter::SegmentsBytes,
    Counter::BlocksBytes,
    Counter::ElidedBytes,
    Counter::InputBytes,
    Counter::Faults,
    Counter::MovedPages,
];

struct Upkeep(UnsafeCell<State>);

// SAFETY: the state is accessed only by the handler thread, of which there is one at a time, and by a
// forked child before it starts its handler.
unsafe impl Sync for Upkeep {}

uncopy_sys::statics! {
    static UPKEEP: Upkeep = Upkeep(UnsafeCell::new(State::new()));
}

/// Resets the state in a forked child, whose handler begins anew, before anything is given back.
pub(crate) fn in_child() {
    bell::mute();
    // SAFETY: a forked child has one thread, and no handler yet, so there is no other reference.
    let state = unsafe { &mut *UPKEEP.0.get() };
    let fresh = State { settling: Settling::in_child(), ..State::new() };
    let old = core::mem::replace(state, fresh);
    if let Some(taken) = old.taken {
        // The locks are free, since this thread has just released them. One may still be held, by a handler
        // that forked on top of malloc; the child then leaks a free block.
        HEAP.put_back(taken);
    }
}

/// The handler thread's schedule of rounds.
pub(crate) struct Rounds {
    /// Time at which the next round is due, ms; `None`: when the bell rings.
    due_ms: Option<u64>,
    began_ms: u64,
    is_under_way: bool,
    must_retry: bool,
}

impl Rounds {
    pub(crate) fn new() -> Self {
        let due_ms = (!cfg!(loom)).then(|| now_ms() + ROUND_MS);
        Self { due_ms, began_ms: 0, is_under_way: false, must_retry: false }
    }

    /// Timeout for the handler's sleep, ms; -1: none.
    pub(crate) fn timeout_ms(&self) -> i32 {
        match self.due_ms {
            _ if self.must_retry => RETRY_MS,
            _ if self.is_under_way => 0,
            Some(due_ms) => i32::try_from(due_ms.saturating_sub(now_ms())).unwrap_or(i32::MAX),
            None => -1,
        }
    }

    pub(crate) fn wake(&mut self) {
        if self.due_ms.is_none() && !cfg!(loom) {
            bell::mute();
            self.due_ms = Some(now_ms() + ROUND_MS);
        }
    }

    pub(crate) fn end(&self) {
        bell::mute();
    }

    /// Continues a round, or begins one if it is due.
    pub(crate) fn step(&mut self) {
        let is_due = || self.due_ms.is_some_and(|due_ms| now_ms() >= due_ms);
        if !self.is_under_way && !is_due() {
            return;
        }
        // SAFETY: only the handler thread calls this, and no other reference to the state is alive.
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

    /// Arms the bell before the handler sleeps without timeout. False: there is work already.
    fn arm(&self, state: &State) -> bool {
        let page = if bell::address() == 0 {
            let Ok(page) = ARENA.take_nonresident(1) else { return true };
            bell::set_address(ARENA.address(page.start));
            page
        } else {
            ARENA.page_of(bell::address())
        };
        // Locked memory is always present and cannot be given back, so no wake-up is needed.
        if !ARENA.make_absent(page) {
            return true;
        }
        bell::arm();
        // A thread that left memory behind just before did not see the armed bell.
        !state.has_more() || !bell::disarm()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    More,
    /// Another thread's lock is in the way.
    Later,
    Done,
}

impl State {
    /// Whether another round would find work, as far as known.
    fn has_more(&self) -> bool {
        self.has_young_waste
            || counters::get(Counter::ReservoirBytes) > 0
            || ARENA.has_quarantined()
            || HEAP.retained_pages() > 0
            || self.settling.is_due()
            || clock::has_just_forked() && counters::get(Counter::SegmentsBytes) > 0
            || self.seen != Some(watched()) && may_waste()
    }

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
                clock::next_round();
                self.stage = Stage::Reservoir(ARENA.surplus_pages());
            }
            Stage::Reservoir(0) => self.stage = self.blocks_from(0),
            Stage::Reservoir(pages) => self.stage = Stage::Reservoir(ARENA.trim(pages)),
            Stage::Blocks(CLASSES.., _) => {
                self.settling.begin_round();
                self.stage = Stage::Settle;
            }
            Stage::Settle if self.settling.is_due() && !self.settling.step() => {}
            Stage::Settle => {
                let now = watched();
                let is_same = self.seen == Some(now) && !self.has_young_waste;
                self.has_young_waste = false;
                if is_same || !may_waste() || uncopy_sys::alloc::is_low() {
                    self.stage = Stage::Rest;
                    return Progress::Done;
                }
                // Values from before the scan: changes during the scan cause another one.
                self.seen = Some(now);
                self.compaction.begin();
                self.stage = Stage::Scan;
            }
            Stage::Blocks(class, [0, 0]) => self.stage = self.blocks_from(class + 1),
            Stage::Blocks(class, surplus) => {
                let left;
                (left, self.taken) = HEAP.trim(class, surplus);
                self.stage = Stage::Blocks(class, left);
            }
            Stage::Scan => {
                if self.compaction.scan() {
                    self.compaction.choose();
                    self.stage = Stage::Release;
                }
            }
            Stage::Release => {
                if self.compaction.release() {
                    self.has_young_waste = self.compaction.end();
                    self.stage = Stage::Rest;
                    return Progress::Done;
                }
            }
        }
        Progress::More
    }

    /// Next stage: the first class from `class` on with surplus free blocks.
    fn blocks_from(&self, class: usize) -> Stage {
        let mut classes = class..CLASSES;
        let found = classes.find_map(|class| {
            let surplus = HEAP.surplus_blocks(class).unwrap_or_default();
            (surplus != [0, 0]).then_some(Stage::Blocks(class, surplus))
        });
        found.unwrap_or(Stage::Blocks(CLASSES, [0, 0]))
    }
}

/// Whether segments are large enough for their waste to exceed the bound.
fn may_waste() -> bool {
    counters::get(Counter::SegmentsBytes) as usize > limits::max_waste_bytes()
}

fn watched() -> [u64; WATCHED.len()] {
    WATCHED.map(counters::get)
}
