//! The clock by which segments age: rounds of upkeep, and forks.

use uncopy_sys::sync::Tally;
use uncopy_sys::sync::atomic::Ordering::Relaxed;

/// A fork, in a [`Moment`].
const FORK: u64 = 1 << 32;
/// Rounds of upkeep after a fork in which the handler looks whether children have read views.
const RECENT_ROUNDS: u32 = 30;

uncopy_sys::statics! {
    static NOW: Tally = Tally::new(0);
    /// The moment at which this process was forked; 0 in a process that was executed.
    static BIRTH: Tally = Tally::new(0);
    /// The moment of the last fork.
    static LAST_FORK: Tally = Tally::new(0);
}

/// A time in rounds of upkeep, and in forks of this process and of those that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(pub(crate) u64);

impl Moment {
    /// Number of the round of upkeep.
    #[must_use]
    pub const fn round(self) -> u32 {
        self.0 as u32
    }

    const fn forks(self) -> u32 {
        (self.0 / FORK) as u32
    }

    /// Whether this was before the last fork of this process or of those that it comes from.
    #[must_use]
    pub fn is_before_fork(self) -> bool {
        self.forks() != now().forks()
    }

    /// Whether this was before this process was forked.
    #[must_use]
    pub fn is_before_birth(self) -> bool {
        self.forks() < Self(BIRTH.load(Relaxed)).forks()
    }
}

/// Returns the number of rounds and forks so far.
#[inline]
#[must_use]
pub fn now() -> Moment {
    Moment(NOW.load(Relaxed))
}

/// Whether this process has forked.
pub(crate) fn has_forked() -> bool {
    Moment(BIRTH.load(Relaxed)).is_before_fork()
}

/// Whether this process has forked so recently that children are likely to begin reading.
pub(crate) fn has_just_forked() -> bool {
    has_forked() && now().round().wrapping_sub(Moment(LAST_FORK.load(Relaxed)).round()) < RECENT_ROUNDS
}

/// Begins the next round.
pub(crate) fn next_round() {
    NOW.fetch_add(1, Relaxed);
}

/// Records a fork in the parent.
pub(crate) fn note_fork() {
    NOW.fetch_add(FORK, Relaxed);
    LAST_FORK.store(now().0, Relaxed);
}

/// Records a fork in the child.
pub(crate) fn begin_in_child() {
    note_fork();
    BIRTH.store(now().0, Relaxed);
}
