//! Whether the log pays: how long syncs take with it, and how long by the file system, for each size.
//!
//! ```text
//! syncs by the file system ─ enough of them ─► by the log ─ slower ─► by the file system, four times as long each time
//!            ▲                                     │ in any case, from time to time: what is known may be old
//!            └─────────────────────────────────────┘
//! ```
//!
//! What is compared is what the program waits for, the background's part in it: where the device has no room for all bytes twice, both
//! ways get slower, and syncs by the log more.

use std::sync::Mutex;

/// Ranges of sizes: powers of two of bytes in a sync.
const CLASSES: usize = 32;
/// Syncs by the file system that are enough to know how long they take.
pub const MIN_PLAIN_SYNCS: u32 = 24;
/// Syncs by the log, after which it is asked whether they were faster, and how long they take together at least, ns: so long that
/// files are synced in the background meanwhile, which slows down some.
const WINDOW_SYNCS: u32 = 128;
const WINDOW_NS: u64 = 1_200_000_000;
/// How long nothing is tried where the log was slower, ns, at first and at most.
const HOLD_NS: (u64, u64) = (5_000_000_000, 1_280_000_000_000);
/// How long what is known of the file system counts, ns, at first and at most.
const AGE_NS: (u64, u64) = (4_000_000_000, 256_000_000_000);

/// How long some syncs took.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u32,
    ns: u64,
}

impl Sum {
    const NONE: Self = Self { count: 0, ns: 0 };

    const fn add(&mut self, ns: u64) {
        self.count += 1;
        self.ns += ns;
    }

    /// Whether those took longer on average than these.
    const fn is_slower_than(&self, other: &Self) -> bool {
        self.ns as u128 * other.count as u128 > other.ns as u128 * self.count as u128
    }
}

#[derive(Clone, Copy, Debug)]
struct Class {
    plain: Sum,
    logged: Sum,
    window_ends_ns: u64,
    /// Windows in which the log was slower, one behind the other.
    losses: u32,
    held_until_ns: u64,
    hold_ns: u64,
    /// When the file system is to be asked again.
    plain_ends_ns: u64,
    age_ns: u64,
}

impl Class {
    const NEW: Self = Self {
        plain: Sum::NONE,
        logged: Sum::NONE,
        window_ends_ns: 0,
        losses: 0,
        held_until_ns: 0,
        hold_ns: HOLD_NS.0,
        plain_ends_ns: 0,
        age_ns: AGE_NS.0,
    };

    const fn hold(&mut self, now_ns: u64) {
        self.held_until_ns = now_ns + self.hold_ns;
        self.hold_ns = if self.hold_ns * 4 < HOLD_NS.1 { self.hold_ns * 4 } else { HOLD_NS.1 };
        self.losses = 0;
    }
}

/// What is known.
#[derive(Debug)]
pub struct Trial {
    classes: [Class; CLASSES],
}

impl Trial {
    const NEW: Self = Self { classes: [Class::NEW; CLASSES] };

    const fn class(&mut self, bytes: usize) -> &mut Class {
        let power = (usize::BITS - bytes.leading_zeros()) as usize;
        &mut self.classes[if power < CLASSES { power } else { CLASSES - 1 }]
    }

    /// The file system has synced so many bytes in `ns`. Whether it is time for the log.
    fn note_plain(&mut self, bytes: usize, ns: u64, now_ns: u64) -> bool {
        let class = self.class(bytes);
        class.plain.add(ns);
        class.plain.count >= MIN_PLAIN_SYNCS && now_ns >= class.held_until_ns
    }

    /// The log has synced so many bytes in `ns`. Whether it is time for the file system.
    fn note_logged(&mut self, bytes: usize, ns: u64, now_ns: u64) -> bool {
        let class = self.class(bytes);
        if class.plain.count < MIN_PLAIN_SYNCS {
            // Other sizes were known when the file came to take part.
            return false;
        }
        if class.logged.count == 0 {
            class.window_ends_ns = now_ns + WINDOW_NS;
            if class.plain_ends_ns == 0 {
                class.plain_ends_ns = now_ns + class.age_ns;
            }
        }
        class.logged.add(ns);
        if class.logged.count < WINDOW_SYNCS || now_ns < class.window_ends_ns {
            return false;
        }
        let is_slower = class.logged.is_slower_than(&class.plain);
        class.logged = Sum::NONE;
        class.losses = if is_slower { class.losses + 1 } else { 0 };
        let is_old = now_ns >= class.plain_ends_ns;
        if class.losses >= 2 {
            class.hold(now_ns);
        } else if is_old {
            class.age_ns = if class.age_ns * 2 < AGE_NS.1 { class.age_ns * 2 } else { AGE_NS.1 };
        } else {
            return false;
        }
        (class.plain, class.plain_ends_ns) = (Sum::NONE, 0);
        true
    }
}

static TRIAL: Mutex<Trial> = Mutex::new(Trial::NEW);

/// See [`Trial::note_plain`]. Another thread that notes something has the word.
pub fn note_plain(bytes: usize, ns: u64, now_ns: u64) -> bool {
    TRIAL.try_lock().is_ok_and(|mut trial| trial.note_plain(bytes, ns, now_ns))
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
            assert_eq!(trial.note_plain(BYTES, 200_000, now_ns), turn == MIN_PLAIN_SYNCS);
        }
        let mut renewals = Vec::new();
        for turn in 0..1_000_000 {
            now_ns += 100_000;
            // Each second files are synced in the background, and then the log is slower for a while.
            let ns = if turn % 10_000 < 1000 { 400_000 } else { 100_000 };
            if trial.note_logged(BYTES, ns, now_ns) {
                renewals.push(now_ns / 1_000_000_000);
                (0..MIN_PLAIN_SYNCS).for_each(|_| _ = trial.note_plain(BYTES, 200_000, now_ns));
            }
        }
        assert_eq!(renewals, [4, 13, 30, 62], "rarer each time");
    }

    #[test]
    fn a_log_that_does_not_pay_is_left_and_tried_again_later() {
        let mut trial = Trial::NEW;
        (0..MIN_PLAIN_SYNCS).for_each(|_| _ = trial.note_plain(BYTES, 100_000, 0));
        let leave = |trial: &mut Trial, from_ns| {
            let times = (from_ns..).step_by(110_000);
            times.into_iter().find(|now_ns| trial.note_logged(BYTES, 110_000, *now_ns)).expect("left")
        };
        let left_ns = leave(&mut trial, 1);
        assert!(
            (2 * WINDOW_NS..2 * WINDOW_NS + 1_000_000).contains(&left_ns),
            "after two windows: {left_ns}"
        );
        let is_time = |trial: &mut Trial, now_ns| {
            (0..MIN_PLAIN_SYNCS).any(|_| trial.note_plain(BYTES, 100_000, now_ns))
        };
        assert!(!is_time(&mut trial, left_ns + HOLD_NS.0 - 1));
        assert!(is_time(&mut trial, left_ns + HOLD_NS.0));
        let left_ns = leave(&mut trial, left_ns + HOLD_NS.0);
        assert!(
            !is_time(&mut trial, left_ns + 4 * HOLD_NS.0 - 1) && is_time(&mut trial, left_ns + 4 * HOLD_NS.0),
            "four times as long"
        );
    }
}
