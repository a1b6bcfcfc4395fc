//! Other processes that may write to a file through a descriptor inherited from this one.
//!
//! A child inherits all open descriptors. It holds a lifeline, by which its parent sees that it lives. Over the
//! lifeline the child announces that it is about to pass descriptors on: to a program that it executes or to
//! another process.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire};
use core::sync::atomic::{Ordering::Relaxed, Ordering::Release};
use std::sync::Mutex;
use uncopy_sys::descriptor::{OwnSlot, ProgramFd};
use uncopy_sys::lifeline::{self, Lifeline, LifelineEvent};
use uncopy_sys::lock::thread_id;

/// Maximum number of watched children. Files that are open when a further one is forked are no longer logged.
const MAX_CHILDREN: usize = 32;
/// Maximum number of ancestors that watch this process.
const MAX_ANCESTORS: usize = 8;
/// Lifeline message: descriptors are passed on.
const PASSED_ON: u64 = 1;
/// Maximum number of messages read from a child at a time. The child may have changed its user, and is not
/// trusted.
const MAX_WORDS: u32 = 16;

/// Slot for a child that is watched or being forked.
#[derive(Debug)]
struct Child {
    /// Number of the fork; 0: the slot is free.
    number: AtomicU64,
    /// ID of the forking thread.
    maker: AtomicU32,
    /// Whether the child announces, over the lifeline, that it uses a descriptor, before it does.
    is_careful: AtomicBool,
    /// End of the lifeline that this process watches.
    watched: OwnSlot,
    /// Child's end of the lifeline, while the child is being forked.
    held: OwnSlot,
}

static CHILDREN: [Child; MAX_CHILDREN] = [const { Child::none() }; MAX_CHILDREN];
/// Number of forks so far. `UNDER_WAY`, which is incremented first: forks in progress.
static FORKS: AtomicU64 = AtomicU64::new(0);
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
/// Number of the last fork whose child is not watched; 0: none.
static UNWATCHED: AtomicU64 = AtomicU64::new(0);
/// Number of the last fork whose child has passed descriptors on; 0: none.
static LAST_PASSED_ON: AtomicU64 = AtomicU64::new(0);
/// Locked while messages of children are read.
static READING: Mutex<()> = Mutex::new(());
/// Ends of lifelines that this process holds, as a child.
static HELD: [OwnSlot; MAX_ANCESTORS] = [const { OwnSlot::empty() }; MAX_ANCESTORS];
/// Number of the fork that created this process; 0: none.
static BORN_AT: AtomicU64 = AtomicU64::new(0);
/// Whether this process has announced that it passes descriptors on.
static HAS_ANNOUNCED: AtomicBool = AtomicBool::new(false);

impl Child {
    const fn none() -> Self {
        Self {
            number: AtomicU64::new(0),
            maker: AtomicU32::new(0),
            is_careful: AtomicBool::new(false),
            watched: OwnSlot::empty(),
            held: OwnSlot::empty(),
        }
    }

    /// Reads the child's messages. Returns whether the child may use descriptors that it has inherited.
    fn may_use(&self) -> bool {
        let Ok(_reading) = READING.try_lock() else { return true };
        self.lives_now() && !self.is_careful.load(Acquire)
    }

    /// Reads the child's messages. Returns whether it may be alive.
    fn lives(&self) -> bool {
        let Ok(_reading) = READING.try_lock() else { return true };
        self.lives_now()
    }

    /// Does so under the lock of the messages.
    fn lives_now(&self) -> bool {
        let number = self.number.load(Acquire);
        let Some(watched) = self.watched.get().filter(|_| number != 0) else { return number != 0 };
        for turn in 0.. {
            match lifeline::next_event(watched) {
                LifelineEvent::Word(_) if turn < MAX_WORDS => _ = LAST_PASSED_ON.fetch_max(number, AcqRel),
                // A child that floods the lifeline is alive.
                LifelineEvent::Nothing | LifelineEvent::Word(_) => return true,
                LifelineEvent::Ended => break,
            }
        }
        drop(self.watched.take());
        self.number.store(0, Release);
        false
    }
}

/// Returns the number of forks so far.
pub fn count() -> u64 {
    FORKS.load(Acquire)
}

/// Returns the number of forks before a file is opened; `None`: a fork in progress may copy the new descriptor.
pub fn number_before_open() -> Option<u64> {
    let number = count();
    (UNDER_WAY.load(Acquire) == 0).then_some(number)
}

/// Prepares for a fork. `is_careful`: the child announces that it uses a descriptor before it does ([`pass_on`]).
pub fn prepare(is_careful: bool) {
    UNDER_WAY.fetch_add(1, AcqRel);
    let number = FORKS.fetch_add(1, AcqRel) + 1;
    // Slots of children that have ended become free.
    CHILDREN.iter().filter(|child| child.held.get().is_none()).for_each(|child| _ = child.lives());
    let is_claimed = |child: &&Child| child.number.compare_exchange(0, number, AcqRel, Relaxed).is_ok();
    match (CHILDREN.iter().find(is_claimed), Lifeline::make()) {
        (Some(child), Ok(line)) => {
            child.maker.store(thread_id(), Relaxed);
            child.is_careful.store(is_careful, Release);
            drop(child.held.replace(Some(line.held)));
            drop(child.watched.replace(Some(line.watched)));
        }
        (child, _) => {
            UNWATCHED.fetch_max(number, AcqRel);
            child.into_iter().for_each(|child| child.number.store(0, Release));
        }
    }
}

/// Ends a fork in the parent, also when the fork failed.
pub fn parent() {
    let thread = thread_id();
    for child in &CHILDREN {
        if child.held.get().is_some() && child.maker.load(Relaxed) == thread {
            drop(child.held.take());
        }
    }
    UNDER_WAY.fetch_sub(1, AcqRel);
}

/// Ends a fork in the child, which also inherits lifelines of forks in progress in other threads.
pub fn child() {
    BORN_AT.store(count(), Relaxed);
    HAS_ANNOUNCED.store(false, Relaxed);
    UNDER_WAY.store(0, Relaxed);
    for child in &CHILDREN {
        child.number.store(0, Relaxed);
        drop(child.watched.take());
        if let Some(held) = child.held.take() {
            match HELD.iter().find(|slot| slot.get().is_none()) {
                Some(slot) => drop(slot.replace(Some(held))),
                // No slot is left: announce now, and keep the descriptor open for good.
                None => {
                    lifeline::send_word(&held, PASSED_ON);
                    held.leave_open();
                }
            }
        }
    }
}

/// Notes a child that shares this process's table of descriptors.
pub fn share() {
    UNWATCHED.fetch_max(count(), AcqRel);
}

/// Announces that this process uses or passes on a descriptor if that was opened before this process was forked.
pub fn pass_on(opened_at: u64) {
    if opened_at < BORN_AT.load(Relaxed) && !HAS_ANNOUNCED.swap(true, AcqRel) {
        HELD.iter().filter_map(OwnSlot::get).for_each(|held| lifeline::send_word(held, PASSED_ON));
    }
}

/// Returns whether another process may use, or get, a descriptor opened after `opened_at` forks.
pub fn has_others(opened_at: u64) -> bool {
    let is_later = |child: &&Child| child.number.load(Acquire) > opened_at;
    count() > opened_at
        && (CHILDREN.iter().filter(is_later).any(Child::may_use)
            || UNWATCHED.load(Acquire).max(LAST_PASSED_ON.load(Acquire)) > opened_at)
}

/// Returns whether a child may be alive that was created by the fork `made_until` or an earlier one.
pub fn has_children(made_until: u64) -> bool {
    let is_earlier = |child: &&Child| (1..=made_until).contains(&child.number.load(Acquire));
    made_until > 0 && (UNWATCHED.load(Acquire) > 0 || CHILDREN.iter().filter(is_earlier).any(Child::lives))
}

/// Returns the descriptors of lifelines.
pub fn descriptors() -> impl Iterator<Item = ProgramFd> {
    let of_children = CHILDREN.iter().flat_map(|child| [&child.watched, &child.held]);
    of_children.chain(&HELD).filter_map(OwnSlot::as_program)
}
