//! Forks: who else may write to a file by the descriptor that the program has.
//!
//! A child has what was open when it was made. It holds a lifeline by which it is seen to live, and over which it says, before, that
//! it gives descriptors on: to a program that it executes, or to another process.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire};
use core::sync::atomic::{Ordering::Relaxed, Ordering::Release};
use std::sync::Mutex;
use uncopy_sys::lifeline::{self, Heard, Lifeline};
use uncopy_sys::lock::thread_id;

/// Children that are watched, at most. What was open when one more was made takes part no more.
const MAX_CHILDREN: usize = 32;
/// Processes before this one that watch it, at most.
const MAX_ANCESTORS: usize = 8;
/// What is said of descriptors that are given on.
const GIVEN: u64 = 1;
/// Words of a child that are heard at once: it may have become another user's.
const MAX_WORDS: u32 = 16;

/// A child, or one that is being made.
#[derive(Debug)]
struct Child {
    /// The fork's; 0: none is here.
    number: AtomicU64,
    /// The thread that forks.
    maker: AtomicU32,
    /// This process's end; -1: not made yet.
    watched: AtomicI32,
    /// The child's end, while it is being made; -1 after that.
    held: AtomicI32,
}

static CHILDREN: [Child; MAX_CHILDREN] = [const { Child::none() }; MAX_CHILDREN];
/// Forks so far, and those of them that are under way: counted there first.
static FORKS: AtomicU64 = AtomicU64::new(0);
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
/// The last fork whose child is not watched; 0: none.
static UNWATCHED: AtomicU64 = AtomicU64::new(0);
/// The last fork whose child has given descriptors on; 0: none.
static GIVEN_ON: AtomicU64 = AtomicU64::new(0);
/// Held while children are heard.
static HEARING: Mutex<()> = Mutex::new(());
/// The ends that this process holds.
static HELD: [AtomicI32; MAX_ANCESTORS] = [const { AtomicI32::new(-1) }; MAX_ANCESTORS];
/// The number of the fork that has made this process; 0: none of these.
static BORN_AT: AtomicU64 = AtomicU64::new(0);
/// What is said was said.
static HAS_SAID: AtomicBool = AtomicBool::new(false);

impl Child {
    const fn none() -> Self {
        Self {
            number: AtomicU64::new(0),
            maker: AtomicU32::new(0),
            watched: AtomicI32::new(-1),
            held: AtomicI32::new(-1),
        }
    }

    /// Whether it may live. What it has said is noted.
    fn lives(&self) -> bool {
        let Ok(_hearing) = HEARING.try_lock() else { return true };
        let (number, watched) = (self.number.load(Acquire), self.watched.load(Acquire));
        if number == 0 || watched < 0 {
            return number != 0;
        }
        for turn in 0.. {
            match lifeline::hear(watched) {
                Heard::Said(_) if turn < MAX_WORDS => _ = GIVEN_ON.fetch_max(number, AcqRel),
                // One that says more than it has to say, to no end, is alive.
                Heard::Nothing | Heard::Said(_) => return true,
                Heard::Ended => break,
            }
        }
        lifeline::close(self.watched.swap(-1, AcqRel));
        self.number.store(0, Release);
        false
    }
}

/// Forks so far.
pub fn number() -> u64 {
    FORKS.load(Acquire)
}

/// The same before a file is opened; `None`: a child may come to have it of which this number tells nothing.
pub fn number_before_open() -> Option<u64> {
    let number = number();
    (UNDER_WAY.load(Acquire) == 0).then_some(number)
}

/// Before a fork.
pub fn prepare() {
    UNDER_WAY.fetch_add(1, AcqRel);
    let number = FORKS.fetch_add(1, AcqRel) + 1;
    // Those that have ended make room.
    CHILDREN.iter().filter(|child| child.held.load(Acquire) < 0).for_each(|child| _ = child.lives());
    let is_claimed = |child: &&Child| child.number.compare_exchange(0, number, AcqRel, Relaxed).is_ok();
    match (CHILDREN.iter().find(is_claimed), Lifeline::make()) {
        (Some(child), Ok(line)) => {
            child.maker.store(thread_id(), Relaxed);
            child.held.store(line.held, Release);
            child.watched.store(line.watched, Release);
        }
        (child, line) => {
            UNWATCHED.fetch_max(number, AcqRel);
            child.into_iter().for_each(|child| child.number.store(0, Release));
            line.into_iter().for_each(|line| {
                lifeline::close(line.watched);
                lifeline::close(line.held);
            });
        }
    }
}

/// After it, in the parent, also if it failed.
pub fn parent() {
    let thread = thread_id();
    for child in &CHILDREN {
        if child.held.load(Acquire) >= 0 && child.maker.load(Relaxed) == thread {
            lifeline::close(child.held.swap(-1, AcqRel));
        }
    }
    UNDER_WAY.fetch_sub(1, AcqRel);
}

/// After it, in the child: other threads may have been about to fork too, whose lifelines it holds as well.
pub fn child() {
    BORN_AT.store(number(), Relaxed);
    HAS_SAID.store(false, Relaxed);
    UNDER_WAY.store(0, Relaxed);
    for child in &CHILDREN {
        let (watched, held) = (child.watched.swap(-1, Relaxed), child.held.swap(-1, Relaxed));
        child.number.store(0, Relaxed);
        if watched >= 0 {
            lifeline::close(watched);
        }
        if held >= 0 {
            match HELD.iter().find(|place| place.load(Relaxed) < 0) {
                Some(place) => place.store(held, Relaxed),
                // Held to the end, and said before.
                None => lifeline::say(held, GIVEN),
            }
        }
    }
}

/// A child is made that shares this process's table of descriptors.
pub fn share() {
    UNWATCHED.fetch_max(number(), AcqRel);
}

/// This process gives a descriptor on that was opened after so many forks, by this process or by one before it.
pub fn give_on(opened_at: u64) {
    if opened_at < BORN_AT.load(Relaxed) && !HAS_SAID.swap(true, AcqRel) {
        let held = HELD.iter().map(|held| held.load(Relaxed));
        held.filter(|held| *held >= 0).for_each(|held| lifeline::say(held, GIVEN));
    }
}

/// Whether somebody else may have what has been open since the fork with this number, or may come to have it.
pub fn has_others(opened_at: u64) -> bool {
    let is_later = |child: &&Child| child.number.load(Acquire) > opened_at;
    number() > opened_at
        && (CHILDREN.iter().filter(is_later).any(Child::lives)
            || UNWATCHED.load(Acquire).max(GIVEN_ON.load(Acquire)) > opened_at)
}

/// Whether a child may live that was made up to the fork with this number.
pub fn has_children(made_until: u64) -> bool {
    let is_earlier = |child: &&Child| (1..=made_until).contains(&child.number.load(Acquire));
    made_until > 0 && (UNWATCHED.load(Acquire) > 0 || CHILDREN.iter().filter(is_earlier).any(Child::lives))
}

/// The descriptors that are ours.
pub fn descriptors() -> impl Iterator<Item = i32> {
    let watched = CHILDREN.iter().flat_map(|child| [&child.watched, &child.held]);
    watched.chain(&HELD).map(|fd| fd.load(Relaxed)).filter(|fd| *fd >= 0)
}
