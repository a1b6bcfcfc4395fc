//! Whether the log pays: how long writes and their sync take with it, and how long by the file system.
//!
//! ```text
//! syncs by the file system ─ enough of them ─► by the log ─ slower ─► by the file system, four times as long each time
//!            ▲                                     │ in any case, from time to time: what is known may be old
//!            └─────────────────────────────────────┘
//! ```
//!
//! What is compared is what the program waits for, the background's part in it: where the device has no room for all bytes twice, both
//! ways get slower, and the log more. A sync by the log is compared with what the file system took for as many bytes.

use std::sync::Mutex;

/// Ranges of sizes: powers of two of bytes in a sync.
const CLASSES: usize = 32;
/// Syncs by the file system that are enough to know how long they take.
pub const MIN_PLAIN_SYNCS: u32 = 24;
/// Syncs by the log, after which it is asked whether they were faster, and how long they take together at least, ns: so long that
/// files are synced in the background meanwhile, which slows down some.
const WINDOW_SYNCS: u32 = 128;
const WINDOW_NS: u64 = 1_200_000_000;
/// Windows in which the log was slower, one behind the other, after which it is left; at once where it took so much longer, percent.
const MAX_LOSSES: u32 = 2;
const GREAT_LOSS_PERCENT: u64 = 125;
/// For how much of the program's waiting for the file system nothing is tried where the log was slower, ns, at first and at most.
const HOLD_NS: (u64, u64) = (20_000_000_000, 1_280_000_000_000);
/// How long what is known of the file system counts, ns, at first and at most.
const AGE_NS: (u64, u64) = (4_000_000_000, 256_000_000_000);

/// Syncs of one range of sizes.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// By the file system, and how long they took, ns.
    plain: u32,
    plain_ns: u64,
    /// By the log, in this window.
    logged: u32,
    /// What is left of a hold, ns, and how long the next one is.
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

/// Syncs by the log that are looked at together.
#[derive(Clone, Copy, Debug)]
struct Window {
    ends_ns: u64,
    syncs: u32,
    /// Of a size of which it is not known how long the file system takes.
    unknown: u32,
    /// How long the others took, and would have taken, ns.
    ns: u64,
    plain_ns: u64,
}

impl Window {
    const NONE: Self = Self { ends_ns: 0, syncs: 0, unknown: 0, ns: 0, plain_ns: 0 };
}

/// What is known.
#[derive(Debug)]
pub struct Trial {
    classes: [Class; CLASSES],
    window: Window,
    losses: u32,
    /// When the file system is to be asked again; 0: not known yet.
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

    /// The file system has taken `ns` for so many bytes. Whether it is time for the log.
    fn note_plain(&mut self, bytes: usize, ns: u64) -> bool {
        let class = self.class(bytes);
        class.plain += 1;
        class.plain_ns += ns;
        class.held_ns = class.held_ns.saturating_sub(ns);
        class.is_known() && class.held_ns == 0
    }

    /// The log has taken `ns` for so many bytes. Whether it is time for the file system.
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

    /// A window has ended. Whether it is time for the file system.
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

/// See [`Trial::note_plain`]. Another thread that notes something has the word.
pub fn note_plain(bytes: usize, ns: u64) -> bool {
    TRIAL.try_lock().is_ok_and(|mut trial| trial.note_plain(bytes, ns))
}

/// See [`Trial::note_logged`].
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
            // Each second files are synced in the background, and then the log is slower for a while.
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
        // One size is known when the file comes to take part.
        (0..MIN_PLAIN_SYNCS).for_each(|_| _ = trial.note_plain(4096, 100_000));
        let mut left = Vec::new();
        let mut is_logged = true;
        for now_ns in (0..40_000_000_000_u64).step_by(100_000) {
            // Nine of ten are larger, for which the log is slower.
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
