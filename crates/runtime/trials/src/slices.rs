//! The stages of a pair of slices, and the measurement of their costs.

use crate::arms::{self, ARMS, DUE_MS, EXERCISED, GAINS, IS_MEASURED, LOSSES};
use crate::pace::Pace;
use crate::traffic::Traffic;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use uncopy_core::policy::trials::{MAX_FACTORS, Trials};
use uncopy_sys::filter::{self, CallGroup};
use uncopy_sys::guarded::Guarded;
use uncopy_sys::lock::Critical;
use uncopy_sys::{clock, features, probes};

/// A stage with too little traffic is abandoned after this many times its length.
const MAX_LENGTHS: u64 = 50;
/// Cost of a call besides that of its bytes, as a number of bytes: copying these takes a tenth of the call.
/// Slices with more or smaller calls than others are thus compared by their bytes.
const CALL_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No trial, for the length of a pair: factors are on or off as usual.
    Rest,
    /// First part of slice 0 or 1, which is not measured.
    Settle(usize),
    /// Second part of slice 0 or 1, which is measured.
    Measure(usize),
}

/// Clocks and counters of the process at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Snapshot {
    ms: u64,
    cpu_ns: u64,
    traffic: Traffic,
}

impl Snapshot {
    fn now() -> Self {
        let cpu_ns = clock::process_cpu_ns() + arms::peers_cpu_ns();
        Self { ms: clock::now_ms(), cpu_ns, traffic: Traffic::total() }
    }
}

/// Called after each pair of slices with what is known by then.
pub type PairCallback = fn(&Trials);

/// State of this process's trials.
pub(crate) struct Runner {
    trials: Trials,
    pace: Pace,
    stage: Stage,
    stage_start: Snapshot,
    costs: [f64; 2],
    /// Factors that had a use in each slice of the pair so far.
    exercised: u32,
    on_pair: Option<PairCallback>,
}

uncopy_sys::statics! {
    static RUNNER: Guarded<Runner> = Guarded::new(Runner {
        trials: Trials::new(0),
        pace: Pace::DEFAULT,
        stage: Stage::Rest,
        stage_start: Snapshot { ms: 0, cpu_ns: 0, traffic: Traffic { bytes: 0, calls: 0 } },
        costs: [0.0; 2],
        exercised: 0,
        on_pair: None,
    });
}

static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

pub(crate) fn begin(pace: Pace, on_pair: Option<PairCallback>) {
    HAS_BEGUN.store(true, Relaxed);
    // Signals are deferred: no handler of the program may jump out of here with the lock held.
    let _critical = Critical::enter_briefly();
    let mut runner = RUNNER.lock();
    runner.pace = pace;
    runner.on_pair = on_pair.or(runner.on_pair);
    runner.trials.reseed(clock::now_ns());
    features::set_active();
    runner.rest();
    DUE_MS.store(clock::now_ms() + pace.warm_up_ms, Relaxed);
    arms::stop_if_ended();
}

/// Begins the trials unless this crate or the engine has begun them. Where a filter may end the process for
/// reading a clock, only the engine can tell whether it does. Until then every factor is off.
#[inline]
pub(crate) fn begin_once() {
    if !HAS_BEGUN.load(Relaxed) && !HAS_BEGUN.swap(true, Relaxed) {
        begin_now();
    }
}

#[cold]
fn begin_now() {
    if !filter::allows(CallGroup::Clock) {
        arms::stop_trials();
    } else {
        begin(Pace::DEFAULT, None);
    }
}

pub(crate) fn restart_in_child() {
    // A thread of the parent that does not exist here may have held the lock.
    RUNNER.raw().unlock();
    let is_begun = HAS_BEGUN.load(Relaxed) && !arms::stop_if_ended();
    if !is_begun || DUE_MS.load(Relaxed) == u64::MAX && !filter::allows(CallGroup::Clock) {
        return;
    }
    let mut runner = RUNNER.lock();
    runner.trials.reseed(clock::now_ns());
    runner.rest();
}

/// Ends the stage. Only one thread at a time takes a step; the others return at once.
#[cold]
pub(crate) fn step() {
    let _critical = Critical::enter_briefly();
    let Some(mut runner) = RUNNER.try_lock() else { return };
    if clock::now_ms() >= DUE_MS.load(Relaxed) {
        runner.step();
        arms::stop_if_ended();
    }
}

/// Shows the findings about the factors in `tried`, a bit each, to tracers.
fn trace(trials: &Trials, tried: u32) {
    for factor in (0..MAX_FACTORS).filter(|factor| tried & 1 << factor != 0) {
        let report = trials.report(factor);
        // An undefined ratio, before the first samples, becomes 0.
        #[expect(clippy::cast_possible_truncation, reason = "a ratio is far below 2^63 millionths")]
        let ratio_ppm = (report.ratio * 1e6) as i64;
        probes::trial(factor, report.finding as u8, report.is_on, ratio_ppm, report.pairs);
    }
}

impl Runner {
    fn step(&mut self) {
        let now = Snapshot::now();
        match self.stage {
            Stage::Rest => self.next_pair(EXERCISED.swap(0, Relaxed), now),
            Stage::Settle(slice) => {
                if !self.has_enough_traffic(now, self.pace.settle_ms, 0) {
                    return;
                }
                EXERCISED.store(0, Relaxed);
                self.stage_start = now;
                self.stage = Stage::Measure(slice);
                IS_MEASURED.store(true, Relaxed);
                DUE_MS.store(now.ms + self.pace.measure_ms, Relaxed);
            }
            Stage::Measure(slice) => {
                if !self.has_enough_traffic(now, self.pace.measure_ms, self.pace.min_calls) {
                    return;
                }
                let traffic = now.traffic.since(self.stage_start.traffic);
                let work = traffic.bytes + CALL_BYTES * traffic.calls;
                #[expect(clippy::cast_precision_loss, reason = "a ratio of a few digits")]
                let cost = now.cpu_ns.saturating_sub(self.stage_start.cpu_ns) as f64 / work as f64;
                self.costs[slice] = cost;
                self.exercised &= EXERCISED.load(Relaxed);
                IS_MEASURED.store(false, Relaxed);
                if slice == 0 {
                    self.begin_slice(1, now);
                } else {
                    let tried = self.trials.end_pair(self.costs, self.exercised);
                    trace(&self.trials, tried);
                    LOSSES.store(self.trials.losses(), Relaxed);
                    GAINS.store(self.trials.gains(), Relaxed);
                    if let Some(on_pair) = self.on_pair {
                        on_pair(&self.trials);
                    }
                    self.next_pair(self.exercised, now);
                }
            }
        }
    }

    /// Whether a stage whose time is over has had enough traffic. If not, schedules the next check for a
    /// little later, or abandons the pair if there is next to none.
    fn has_enough_traffic(&mut self, now: Snapshot, length_ms: u64, min_calls: u64) -> bool {
        let cpu_ns = now.cpu_ns.saturating_sub(self.stage_start.cpu_ns);
        let has_enough_traffic = cpu_ns >= length_ms * 1_000_000 / self.pace.min_cpu_divisor
            && now.traffic.since(self.stage_start.traffic).calls >= min_calls;
        if !has_enough_traffic && now.ms > self.stage_start.ms + MAX_LENGTHS * length_ms {
            self.rest();
        } else if !has_enough_traffic {
            DUE_MS.store(now.ms + (length_ms / 8).max(1), Relaxed);
        }
        has_enough_traffic
    }

    fn begin_slice(&mut self, slice: usize, now: Snapshot) {
        self.stage_start = now;
        ARMS.store(self.trials.arm(slice), Relaxed);
        self.stage = Stage::Settle(slice);
        DUE_MS.store(now.ms + self.pace.settle_ms, Relaxed);
    }

    /// Turns factors on or off as usual for the length of a pair.
    fn rest(&mut self) {
        ARMS.store(self.trials.enabled(), Relaxed);
        IS_MEASURED.store(false, Relaxed);
        self.stage = Stage::Rest;
        DUE_MS.store(clock::now_ms() + self.pace.pair_ms(), Relaxed);
    }

    /// Begins the next pair if it is a trial of any factor in `candidates`, else rests.
    fn next_pair(&mut self, candidates: u32, now: Snapshot) {
        if self.trials.begin_pair(candidates) {
            self.exercised = u32::MAX;
            self.begin_slice(0, now);
        } else {
            self.rest();
        }
    }
}
