//! Measures whether logging pays: durations of writes and their sync with the log and by the file system.
//!
//! ```text
//! syncs by the file system ─ enough ─► by the log ─ slower ─► by the file system, for 4 times as long
//!            ▲                              │ in any case from time to time: old measurements age
//!            └──────────────────────────────┘
//! ```
//!
//! The measure is the time that the program waits, including the cost of background syncs: on a device without
//! bandwidth to write all bytes twice, both ways get slower, and the log more so. A sync by the log is compared
//! with the file system's time for similarly many bytes.

use std::sync::Mutex;

/// Number of size classes: powers of two of the bytes in a sync.
const CLASSES: usize = 32;
/// Number of syncs by the file system after which their duration is known.
pub const MIN_PLAIN_SYNCS: u32 = 24;
/// Minimum number of syncs and minimum duration, ns, of a window of syncs by the log. A window is long enough
/// to contain background syncs, which slow down some.
const WINDOW_SYNCS: u32 = 128;
const WINDOW_NS: u64 = 1_200_000_000;
/// Number of consecutive lost windows after which the log is left, and the relative duration, percent, from
/// which one is enough.
const MAX_LOSSES: u32 = 2;
const GREAT_LOSS_PERCENT: u64 = 125;
/// Time of waiting for the file system, ns, before the log is tried after a loss: initial and maximum.
const HOLD_NS: (u64, u64) = (20_000_000_000, 1_280_000_000_000);
/// Age after which measurements of the file system are renewed, ns: initial and maximum.
const AGE_NS: (u64, u64) = (4_000_000_000, 256_000_000_000);

#[derive(Clone, Copy, Debug)]
struct Class {
    /// Number of syncs by the file system. `plain_ns`: their duration, nanoseconds.
    plain: u32,
    plain_ns: u64,
    /// Number of syncs by the log in the current window.
    logged: u32,
    /// Remaining hold, nanoseconds. `hold_ns`: length of the next one.
    held_ns: u64,
    hold_ns: u64,
}

impl Class {
    const NEW: Self = Self { plain: 0, plain_ns: 0, logged: 0, held_ns: 0, hold_ns: HOLD_NS.0 };

    const fn is_known(&self) -> bool {
        self.plain >= MIN_PLAIN_SYNCS
    }

    fn hold(&mut self) {
        self.held_ns = self.hold_ns;
        self.hold_ns = HOLD_NS.1.min(self.hold_ns * 4);
    }
}

#[derive(Clone, Copy, Debug)]
struct Window {
    ends_ns: u64,
    syncs: u32,
    /// Number of syncs in size classes whose duration by the file system is not known.
    unknown: u32,
    /// Duration of the other syncs, nanoseconds. `plain_ns`: the file system's time for them.
    ns: u64,
    plain_ns: u64,
}

impl Window {
    const NONE: Self = Self { ends_ns: 0, syncs: 0, unknown: 0, ns: 0, plain_ns: 0 };
}

#[derive(Debug)]
pub struct Trial {
    classes: [Class; CLASSES],
    window: Window,
    losses: u32,
    /// Time at which to measure the file system again; 0: not set yet.
    plain_ends_ns: u64,
    age_ns: u64,
}

impl Trial {
    const NEW: Self = Self {
        classes: [Class::NEW; CLASSES],
        window: Window::NONE,
        losses: 0,
        plain_ends_ns: 0,
        age_ns: AGE_NS.0,
    };

    fn class(&mut self, bytes: usize) -> &mut Class {
        let power = (usize::BITS - bytes.leading_zeros()) as usize;
        &mut self.classes[power.min(CLASSES - 1)]
    }

    /// Notes a sync by the file system, which took `ns`. Returns whether to try the log.
    fn note_plain(&mut self, bytes: usize, ns: u64) -> bool {
        let class = self.class(bytes);
        class.plain += 1;
        class.plain_ns += ns;
        class.held_ns = class.held_ns.saturating_sub(ns);
        class.is_known() && class.held_ns == 0
    }

    /// Notes a sync by the log, which took `ns`. Returns whether to go back to the file system.
    fn note_logged(&mut self, bytes: usize, ns: u64, now_ns: u64) -> bool {
        if self.window.syncs == 0 {
            self.window.ends_ns = now_ns + WINDOW_NS;
            if self.plain_ends_ns == 0 {
                self.plain_ends_ns = now_ns + self.age_ns;
            }
        }
        let class = self.class(bytes);
        class.logged += 1;
        let plain_ns = class.is_known().then(|| class.plain_ns / u64::from(class.plain));
        let window = &mut self.window;
        window.syncs += 1;
        match plain_ns {
            Some(plain_ns) => {
                window.ns += ns;
                window.plain_ns += plain_ns;
            }
            None => window.unknown += 1,
        }
        window.syncs >= WINDOW_SYNCS && now_ns >= window.ends_ns && self.judge(now_ns)
    }

    /// Evaluates a finished window. Returns whether to go back to the file system.
    fn judge(&mut self, now_ns: u64) -> bool {
        let window = core::mem::replace(&mut self.window, Window::NONE);
        self.losses = if window.ns * 100 > window.plain_ns * GREAT_LOSS_PERCENT {
            MAX_LOSSES
        } else if window.ns > window.plain_ns {
            self.losses + 1
        } else {
            0
        };
        let is_lost = self.losses >= MAX_LOSSES;
        let is_old = now_ns >= self.plain_ends_ns;
        let is_due = is_lost || is_old || 2 * window.unknown > window.syncs;
        if is_lost {
            self.losses = 0;
        } else if is_old {
            self.age_ns = AGE_NS.1.min(self.age_ns * 2);
        }
        if is_due {
            self.plain_ends_ns = 0;
        }
        for class in self.classes.iter_mut().filter(|class| class.logged > 0) {
            class.logged = 0;
            if is_lost {
                class.hold();
            }
            if is_due && class.is_known() {
                (class.plain, class.plain_ns) = (0, 0);
            }
        }
        is_due
    }
}

static TRIAL: Mutex<Trial> = Mutex::new(Trial::NEW);

/// Calls [`Trial::note_plain`]; returns false if another thread holds the lock.
pub fn note_plain(bytes: usize, ns: u64) -> bool {
    TRIAL.try_lock().is_ok_and(|mut trial| trial.note_plain(bytes, ns))
}

/// Calls [`Trial::note_logged`]; returns false if another thread holds the lock.
pub fn note_logged(bytes: usize, ns: u64, now_ns: u64) -> bool {
    TRIAL.try_lock().is_ok_and(|mut trial| trial.note_logged(bytes, ns, now_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 4096;

    #[test]
    fn a_log_that_pays_is_kept_and_what_is_known_is_renewed() {
        let mut trial = Trial::NEW;
        let mut now_ns = 0;
        for turn in 1..=MIN_PLAIN_SYNCS {
            assert_eq!(trial.note_plain(BYTES, 200_000), turn == MIN_PLAIN_SYNCS);
        }
        let mut renewals = Vec::new();
        for turn in 0..1_000_000 {
            now_ns += 100_000;
            // Background syncs each second slow the log down for a while.
            let ns = if turn % 10_000 < 1000 { 400_000 } else { 100_000 };
            if trial.note_logged(BYTES, ns, now_ns) {
                renewals.push(now_ns / 1_000_000_000);
                (0..MIN_PLAIN_SYNCS).for_each(|_| _ = trial.note_plain(BYTES, 200_000));
            }
        }
        assert_eq!(renewals, [4, 13, 30, 62], "rarer each time");
    }

    #[test]
    fn sizes_that_are_mixed_are_learned_and_judged_together() {
        let mut trial = Trial::NEW;
        // Only one size class is known when logging begins.
        (0..MIN_PLAIN_SYNCS).for_each(|_| _ = trial.note_plain(4096, 100_000));
        let mut left = Vec::new();
        let mut is_logged = true;
        for now_ns in (0..40_000_000_000_u64).step_by(100_000) {
            // Nine of ten syncs are larger, and slower by the log.
            let (bytes, ns) = if now_ns / 100_000 % 10 == 0 { (4096, 50_000) } else { (262_144, 300_000) };
            if is_logged && trial.note_logged(bytes, ns, now_ns) {
                left.push(now_ns / 1_000_000_000);
                is_logged = false;
            } else if !is_logged {
                is_logged = trial.note_plain(bytes, if bytes == 4096 { 100_000 } else { 200_000 });
            }
        }
        assert_eq!(left, [1, 2, 14], "first because it is not known how long the larger ones take");
    }

    #[test]
    fn a_log_that_does_not_pay_is_left_and_tried_again_later() {
        let mut trial = Trial::NEW;
        (0..MIN_PLAIN_SYNCS).for_each(|_| _ = trial.note_plain(BYTES, 100_000));
        let leave = |trial: &mut Trial, from_ns| {
            let times = (from_ns..).step_by(110_000);
            times.into_iter().find(|now_ns| trial.note_logged(BYTES, 110_000, *now_ns)).expect("left")
        };
        let left_ns = leave(&mut trial, 1);
        assert!(
            (2 * WINDOW_NS..2 * WINDOW_NS + 1_000_000).contains(&left_ns),
            "after two windows: {left_ns}"
        );
        let syncs = |trial: &mut Trial| {
            (1..).find(|_| trial.note_plain(BYTES, 100_000)).expect("it is time again") as u64
        };
        assert_eq!(syncs(&mut trial), HOLD_NS.0 / 100_000);
        let _ = leave(&mut trial, left_ns);
        assert_eq!(syncs(&mut trial), 4 * HOLD_NS.0 / 100_000, "four times as long");
    }
}
