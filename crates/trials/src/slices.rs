//! The stages of a pair of slices, and what they cost.

use crate::arms::{self, ARMS, CONCERNED, DUE_MS, GAINS, IS_MEASURED, LOSSES};
use crate::moved::Moved;
use crate::pace::Pace;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use uncopy_core::policy::trials::Trials;
use uncopy_sys::clock;
use uncopy_sys::filter::{self, Feature};
use uncopy_sys::guarded::Guarded;
use uncopy_sys::lock::Critical;

/// A part of a slice in which too little goes on is given up after so many times its length.
const MAX_LENGTHS: u64 = 50;
/// What a call costs beside the bytes that it moves, as bytes: a copy of so many takes a tenth of what a call does, so
/// that slices with more or smaller calls than others count by their bytes.
const CALL_BYTES: u64 = 4096;

/// What is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What is usually done; the trials begin, or go on after the time of a pair.
    Rest,
    /// The first part of a slice (0 or 1), which does not count.
    Settle(usize),
    /// The part of it that does.
    Measure(usize),
}

/// A moment of the process.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    ms: u64,
    cpu_ns: u64,
    moved: Moved,
}

impl Moment {
    fn now() -> Self {
        let cpu_ns = clock::process_cpu_ns() + arms::others_cpu_ns();
        Self { ms: clock::now_ms(), cpu_ns, moved: Moved::so_far() }
    }
}

/// Who is told what is known after a pair of slices.
pub type Changed = fn(&Trials);

/// The trials of this process.
pub(crate) struct Trial {
    trials: Trials,
    pace: Pace,
    stage: Stage,
    /// When the part of the slice began.
    begun: Moment,
    costs: [f64; 2],
    /// Factors that somebody asked for in both slices.
    concerned: u32,
    changed: Option<Changed>,
}

uncopy_sys::statics! {
    static TRIAL: Guarded<Trial> = Guarded::new(Trial {
        trials: Trials::new(0),
        pace: Pace::USUAL,
        stage: Stage::Rest,
        begun: Moment { ms: 0, cpu_ns: 0, moved: Moved { bytes: 0, calls: 0 } },
        costs: [0.0; 2],
        concerned: 0,
        changed: None,
    });
}

static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

pub(crate) fn begin(pace: Pace, changed: Option<Changed>) {
    HAS_BEGUN.store(true, Relaxed);
    // No handler of the program may jump out of here with the lock.
    let _critical = Critical::enter_briefly();
    let mut trial = TRIAL.lock();
    trial.pace = pace;
    trial.changed = changed.or(trial.changed);
    trial.trials.reseed(clock::now_ns());
    trial.rest();
    DUE_MS.store(clock::now_ms() + pace.warm_up_ms, Relaxed);
    arms::have_ended();
}

/// Begins unless that has been done, here or by the engine. Where a filter may end the process for reading a clock, only
/// the engine finds out whether it does: until then nothing is done that can be left out.
#[inline]
pub(crate) fn begin_once() {
    if !HAS_BEGUN.load(Relaxed) && !HAS_BEGUN.swap(true, Relaxed) {
        begin_here();
    }
}

#[cold]
fn begin_here() {
    if !filter::allows(Feature::Clock) {
        arms::settle();
    } else {
        begin(Pace::USUAL, None);
    }
}

pub(crate) fn in_child() {
    // Another thread of the parent may have held it: that is not in this process.
    TRIAL.raw().unlock();
    let is_begun = HAS_BEGUN.load(Relaxed) && !arms::have_ended();
    if !is_begun || DUE_MS.load(Relaxed) == u64::MAX && !filter::allows(Feature::Clock) {
        return;
    }
    let mut trial = TRIAL.lock();
    trial.trials.reseed(clock::now_ns());
    trial.rest();
}

/// The time of the stage is over. Only one thread takes the next step.
#[cold]
pub(crate) fn step() {
    let _critical = Critical::enter_briefly();
    let Some(mut trial) = TRIAL.try_lock() else { return };
    if clock::now_ms() >= DUE_MS.load(Relaxed) {
        trial.step();
        arms::have_ended();
    }
}

impl Trial {
    fn step(&mut self) {
        let now = Moment::now();
        match self.stage {
            Stage::Rest => self.next_pair(CONCERNED.swap(0, Relaxed), now),
            Stage::Settle(slice) => {
                if !self.is_long_enough(now, self.pace.settle_ms, 0) {
                    return;
                }
                CONCERNED.store(0, Relaxed);
                self.begun = now;
                self.stage = Stage::Measure(slice);
                IS_MEASURED.store(true, Relaxed);
                DUE_MS.store(now.ms + self.pace.measure_ms, Relaxed);
            }
            Stage::Measure(slice) => {
                if !self.is_long_enough(now, self.pace.measure_ms, self.pace.min_calls) {
                    return;
                }
                let moved = now.moved.since(self.begun.moved);
                let work = moved.bytes + CALL_BYTES * moved.calls;
                #[expect(clippy::cast_precision_loss, reason = "a ratio of a few digits")]
                let cost = now.cpu_ns.saturating_sub(self.begun.cpu_ns) as f64 / work as f64;
                self.costs[slice] = cost;
                self.concerned &= CONCERNED.load(Relaxed);
                IS_MEASURED.store(false, Relaxed);
                if slice == 0 {
                    self.settle(1, now);
                } else {
                    self.trials.end_pair(self.costs, self.concerned);
                    LOSSES.store(self.trials.losses(), Relaxed);
                    GAINS.store(self.trials.gains(), Relaxed);
                    if let Some(changed) = self.changed {
                        changed(&self.trials);
                    }
                    self.next_pair(self.concerned, now);
                }
            }
        }
    }

    /// Whether enough has gone on in a part of a slice that is over by the clock. If not, that is asked again after a
    /// while, not in each call; the pair is given up where nothing goes on.
    fn is_long_enough(&mut self, now: Moment, length_ms: u64, min_calls: u64) -> bool {
        let cpu_ns = now.cpu_ns.saturating_sub(self.begun.cpu_ns);
        let is_long_enough = cpu_ns >= length_ms * 1_000_000 / self.pace.min_cpu_share
            && now.moved.since(self.begun.moved).calls >= min_calls;
        if !is_long_enough && now.ms > self.begun.ms + MAX_LENGTHS * length_ms {
            self.rest();
        } else if !is_long_enough {
            DUE_MS.store(now.ms + (length_ms / 8).max(1), Relaxed);
        }
        is_long_enough
    }

    /// Begins a slice.
    fn settle(&mut self, slice: usize, now: Moment) {
        self.begun = now;
        ARMS.store(self.trials.arm(slice), Relaxed);
        self.stage = Stage::Settle(slice);
        DUE_MS.store(now.ms + self.pace.settle_ms, Relaxed);
    }

    /// Does as usual for the time of a pair.
    fn rest(&mut self) {
        ARMS.store(self.trials.usual(), Relaxed);
        IS_MEASURED.store(false, Relaxed);
        self.stage = Stage::Rest;
        DUE_MS.store(clock::now_ms() + self.pace.pair_ms(), Relaxed);
    }

    /// Begins the next pair if it is a trial of something that went on lately.
    fn next_pair(&mut self, possible: u32, now: Moment) {
        if self.trials.begin_pair(possible) {
            self.concerned = u32::MAX;
            self.settle(0, now);
        } else {
            self.rest();
        }
    }
}
